/* Buffers of lists: whatever lists follow each other, a buffer has their rows to the byte, and copies those that it
 * lacks; a cut and another sequence empty it; what there is memory for is what heads get. */
#include "attention/list_buffer.h"

#include "device/placed.h"
#include "seed.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cache/kv_cache.h"
#include "device/host_span.h"

enum { LAYERS = 3, HEADS = 2, TOKENS = 640, ROWS = 200, DIMENSION = 32 };

struct rig {
    struct device *device;
    struct kv_cache *cache;
    struct kv_sequence *sequences[3];
    struct kv_layout layout;
    struct list_buffers *buffers;
    struct stream *stream;
    uint8_t *chunks[TOKENS / KV_CHUNK_TOKENS]; /* of a head */
    bool stays[LAYERS * HEADS];
    struct error error;
};

static void rig_open(struct rig *rig, enum kv_type type, size_t heads, size_t sequences) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    const struct kv_cache_config config = {.layer_count = LAYERS,
                                           .kv_head_count = HEADS,
                                           .k_dimension = DIMENSION,
                                           .v_dimension = 2 * DIMENSION,
                                           .k_type = type,
                                           .v_type = type,
                                           .token_capacity = 3 * TOKENS,
                                           .sequence_capacity = 3};
    kv_layout_init(&rig->layout, type, type, DIMENSION, 2 * DIMENSION);
    assert_ok(device_cpu_create(&rig->device, &options, &rig->error), rig->error);
    assert_ok(rig->device->operations->stream_create(rig->device, &rig->stream, &rig->error), rig->error);
    assert_ok(kv_cache_create(&rig->cache, rig->device, &config, &rig->error), rig->error);
    for (size_t i = 0; i < 3; i++)
        assert_ok(kv_sequence_create(&rig->sequences[i], rig->cache, TOKENS, &rig->error), rig->error);
    struct list_buffer_shape shape = {.layer_count = LAYERS,
                                      .kv_head_count = HEADS,
                                      .sequence_capacity = sequences,
                                      .layer_first = 1,
                                      .list_rows = ROWS,
                                      .chunk_bytes = rig->layout.chunk_bytes,
                                      .stays = rig->stays};
    shape.bytes = list_buffer_table_bytes(&shape) +
                  sequences * heads * list_buffer_head_bytes(ROWS, rig->layout.chunk_bytes);
    if (heads == 0) shape.bytes--;
    assert_ok(list_buffers_create(&rig->buffers, rig->device, &shape, &rig->error), rig->error);
    for (size_t i = 0; i < TOKENS / KV_CHUNK_TOKENS; i++)
        rig->chunks[i] = aligned_alloc(64, rig->layout.chunk_bytes);
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < TOKENS / KV_CHUNK_TOKENS; i++) free(rig->chunks[i]);
    list_buffers_destroy(rig->buffers);
    for (size_t i = 0; i < 3; i++) kv_sequence_destroy(rig->sequences[i]);
    kv_cache_destroy(rig->cache);
    rig->device->operations->stream_destroy(rig->stream);
    device_destroy(rig->device);
}

static void fill(struct rig *rig, struct random *random) {
    for (size_t i = 0; i < TOKENS / KV_CHUNK_TOKENS; i++)
        for (size_t b = 0; b < rig->layout.chunk_bytes; b++)
            rig->chunks[i][b] = (uint8_t)random_below(random, 256);
}

/* Ascending, of at most `count` rows; near: most of the rows before, too. */
static struct row_list draw(struct random *random, uint32_t rows[ROWS], const struct row_list *near) {
    bool in[TOKENS] = {false};
    const size_t count = 1 + (size_t)random_below(random, ROWS);
    for (size_t i = 0; i < near->count; i++) in[row_list_host(near)[i]] = random_below(random, 4) > 0;
    for (size_t i = 0; i < count / 4; i++) in[random_below(random, TOKENS)] = true;
    struct row_list list = {.rows = host_span(rows)};
    for (uint32_t row = 0; row < TOKENS && list.count < ROWS; row++)
        if (in[row]) rows[list.count++] = row;
    if (list.count == 0) rows[list.count++] = (uint32_t)random_below(random, TOKENS);
    return list;
}

static void assert_row(const struct kv_layout *layout, const void *found, size_t to, const void *expected,
                       size_t from) {
    assert_memory_equal(kv_k_row(layout, found, to), kv_k_row(layout, expected, from), layout->k_row_bytes);
    assert_memory_equal(kv_v_row(layout, found, to), kv_v_row(layout, expected, from), layout->v_row_bytes);
    if (layout->k_type != KV_Q8) return;
    const size_t k = layout->k_dimension / KV_SCALE_GROUP * 2, v = layout->v_dimension / KV_SCALE_GROUP * 2;
    const uint8_t *own = kv_block(layout, found, to), *block = kv_block(layout, expected, from);
    assert_memory_equal(own + layout->k_scales_offset + to % 8 * k,
                        block + layout->k_scales_offset + from % 8 * k, k);
    assert_memory_equal(own + layout->v_scales_offset + to % 8 * v,
                        block + layout->v_scales_offset + from % 8 * v, v);
}

/* Of the first head, as the cpu device finds it. */
static const void *chunk_of(const struct kv_view *view, size_t chunk) {
    const uint32_t *table = (const uint32_t *)(uintptr_t)(view->chunks.buffer->address + view->chunks.offset);
    return span_host(kv_pools_chunk(view->pools, table[chunk]));
}

/* Asks, hides every chunk that no missing row lies in, fills and compares. */
static void turn(struct rig *rig, struct list_buffer *buffer, const struct row_list *list, size_t *missed) {
    void *chunks[TOKENS / KV_CHUNK_TOKENS] = {NULL};
    const uint32_t *missing = list_buffer_missing(rig->buffers, buffer, list, missed);
    for (size_t i = 0; i < *missed; i++)
        chunks[missing[i] / KV_CHUNK_TOKENS] = rig->chunks[missing[i] / KV_CHUNK_TOKENS];
    struct placed placed = {0};
    const uint32_t *places = placed_table(&placed, POOL_ROWS, chunks, TOKENS / KV_CHUNK_TOKENS);
    const struct kv_view source = {.layout = &rig->layout, .pools = &placed.pools};
    list_buffer_fill(rig->buffers, buffer, list, &source, places);
    const struct row_list rows = list_buffer_rows(buffer);
    const struct list_buffer *shown = buffer;
    const struct kv_view view = list_buffers_view(rig->buffers, rig->stream, &rig->layout, &shown, 1);
    bool taken[ROWS] = {false};
    assert_int_equal(rows.count, list->count);
    for (size_t i = 0; i < list->count; i++) {
        const uint32_t row = row_list_host(&rows)[i];
        assert_true(row < ROWS && !taken[row]);
        taken[row] = true;
        assert_row(&rig->layout, chunk_of(&view, row / KV_CHUNK_TOKENS), row % KV_CHUNK_TOKENS,
                   rig->chunks[row_list_host(list)[i] / KV_CHUNK_TOKENS],
                   row_list_host(list)[i] % KV_CHUNK_TOKENS);
    }
    placed_free(&placed);
}

static void lists_follow_each_other(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(41));
    for (int round = 0; round < 6; round++) {
        struct rig rig = {0};
        uint32_t rows[2][ROWS];
        struct row_list list = {.rows = host_span(rows[1])};
        uint64_t kept = 0, copied = 0;
        rig_open(&rig, round % 2 == 0 ? KV_F16 : KV_Q8, 2, 1);
        fill(&rig, &random);
        for (int step = 0; step < 60; step++) {
            size_t missed, again;
            list = draw(&random, rows[step % 2], &list);
            struct list_buffer *buffer = list_buffers_of(rig.buffers, rig.sequences[0], 1, 0, &list);
            turn(&rig, buffer, &list, &missed);
            turn(&rig, buffer, &list, &again); /* the same list: nothing */
            assert_int_equal(again, 0);
            kept += 2 * list.count - missed;
            copied += missed;
        }
        const struct list_buffer_counts counts = list_buffers_counts(rig.buffers);
        assert_true(counts.kept == kept && counts.copied == copied && kept > copied);
        list_buffers_reset_counts(rig.buffers);
        assert_int_equal(list_buffers_counts(rig.buffers).kept, 0);
        rig_close(&rig);
    }
}

/* A cut, a failed step (its length set to what it was) and another sequence: nothing is left of what was there. */
static void what_was_there_is_forgotten(void **state) {
    (void)state;
    struct rig rig = {0};
    struct random random;
    uint32_t rows[ROWS];
    size_t missed;
    random_init(&random, test_seed(42));
    rig_open(&rig, KV_F16, 2, 2);
    fill(&rig, &random);
    const struct row_list list = draw(&random, rows, &(struct row_list){.count = 0});
    for (size_t i = 0; i < 2; i++) {
        turn(&rig, list_buffers_of(rig.buffers, rig.sequences[i], 1, 1, &list), &list, &missed);
        assert_int_equal(missed, list.count);
    }
    fill(&rig, &random); /* other rows at the same positions */
    kv_sequence_set_length(rig.sequences[0], 0);
    turn(&rig, list_buffers_of(rig.buffers, rig.sequences[0], 1, 1, &list), &list, &missed);
    assert_int_equal(missed, list.count);
    turn(&rig, list_buffers_of(rig.buffers, rig.sequences[0], 1, 1, &list), &list, &missed);
    assert_int_equal(missed, 0);
    turn(&rig, list_buffers_of(rig.buffers, rig.sequences[2], 1, 1, &list), &list,
         &missed); /* of two, the older */
    assert_int_equal(missed, list.count);
    turn(&rig, list_buffers_of(rig.buffers, rig.sequences[0], 1, 1, &list), &list, &missed);
    assert_int_equal(missed, 0);
    rig_close(&rig);
}

static void as_many_as_there_is_memory_for(void **state) {
    (void)state;
    static const uint32_t rows[ROWS + 1] = {0};
    const struct row_list list = {host_span(rows), 1}, longer = {host_span(rows), ROWS + 1};
    struct rig rig = {0};
    rig_open(&rig, KV_F16, 0, 1);
    assert_null(rig.buffers);
    assert_null(list_buffers_of(rig.buffers, rig.sequences[0], 1, 0, &list));
    assert_int_equal(list_buffers_counts(rig.buffers).heads, 0);
    rig_close(&rig);
    rig_open(&rig, KV_F16, 3, 1);
    assert_int_equal(list_buffers_counts(rig.buffers).heads, 3);
    rig.stays[2 * HEADS + 1] = true;
    assert_null(list_buffers_of(rig.buffers, rig.sequences[0], 2, 1, &list)); /* it stays itself */
    rig.stays[2 * HEADS + 1] = false;
    assert_null(list_buffers_of(rig.buffers, rig.sequences[0], 0, 1, &list)); /* its layer stays */
    assert_null(list_buffers_of(rig.buffers, rig.sequences[0], 1, 1, &longer));
    struct list_buffer *first = list_buffers_of(rig.buffers, rig.sequences[0], 2, 1, &list);
    struct list_buffer *second = list_buffers_of(rig.buffers, rig.sequences[0], 1, 0, &list);
    assert_true(first != NULL && second != NULL && first != second);
    assert_non_null(list_buffers_of(rig.buffers, rig.sequences[0], 1, 1, &list));
    assert_null(list_buffers_of(rig.buffers, rig.sequences[0], 2, 0, &list));
    assert_ptr_equal(list_buffers_of(rig.buffers, rig.sequences[0], 2, 1, &list), first);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_follow_each_other),
        cmocka_unit_test(what_was_there_is_forgotten),
        cmocka_unit_test(as_many_as_there_is_memory_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
