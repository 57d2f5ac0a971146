/* The KV cache against a model: random operations with a printed seed, every stored row a number that
 * names its sequence and position. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_cache.h"
#include "device/host_span.h"
#include "seed.h"

enum { SEQUENCES = 5, LAYERS = 3, HEADS = 2 };

static struct stream *stream; /* of the device, which has no queue */

static struct device *make_device(void) {
    struct device *device;
    struct error error;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    assert_ok(device->operations->stream_create(device, &stream, &error), error);
    return device;
}

static struct kv_cache *make_cache(struct device *device, uint64_t token_capacity) {
    struct kv_cache *cache;
    struct error error;
    const struct kv_cache_config config = {.layer_count = LAYERS,
                                           .kv_head_count = HEADS,
                                           .k_dimension = 32,
                                           .v_dimension = 64,
                                           .k_type = KV_F16,
                                           .v_type = KV_Q8,
                                           .token_capacity = token_capacity,
                                           .sequence_capacity = SEQUENCES};
    assert_ok(kv_cache_create(&cache, device, &config, &error), error);
    return cache;
}

/* What the cache must hold, kept the plain way. */
struct model_sequence {
    struct kv_sequence *sequence; /* NULL: dead */
    uint64_t length, reserved_columns;
    uint32_t *rows; /* [length] what was written at each position */
};

static uint64_t columns_of(uint64_t tokens) { return (tokens + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS; }

/* The first word of a K row: enough to tell rows apart. */
static uint8_t *row_address(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t position) {
    const struct kv_view view = kv_sequence_view(sequence, stream, layer);
    const uint32_t place = span_place(view.chunks, head * view.chunk_stride + position / KV_CHUNK_TOKENS);
    uint8_t *chunk = span_memory(kv_pools_chunk(view.pools, place));
    size_t token = position % KV_CHUNK_TOKENS;
    assert_ptr_equal(chunk,
                     span_memory(kv_sequence_chunk(sequence, layer, head, position / KV_CHUNK_TOKENS)));
    return chunk + token / KV_BLOCK_TOKENS * view.layout->block_bytes +
           token % KV_BLOCK_TOKENS * view.layout->k_row_bytes;
}

static void write_row(struct model_sequence *model, uint64_t position, uint32_t value) {
    model->rows[position] = value;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++) {
            uint32_t word = value * 31 + (uint32_t)(layer * HEADS + head);
            memcpy(row_address(model->sequence, layer, head, position), &word, sizeof word);
        }
}

static void check_rows(const struct model_sequence *model) {
    assert_int_equal(kv_sequence_length(model->sequence), model->length);
    for (uint64_t position = 0; position < model->length; position++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t head = 0; head < HEADS; head++) {
                uint32_t word;
                memcpy(&word, row_address(model->sequence, layer, head, position), sizeof word);
                assert_int_equal(word, model->rows[position] * 31 + (uint32_t)(layer * HEADS + head));
            }
}

static void check_all(struct kv_cache *cache, struct model_sequence *models, uint64_t column_bytes) {
    uint64_t columns = 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        if (models[i].sequence == NULL) continue;
        check_rows(&models[i]);
        columns += models[i].reserved_columns;
    }
    assert_int_equal(kv_cache_used_bytes(cache), columns * column_bytes);
}

/* Of all its columns. */
static uint64_t capacity_bytes(const struct kv_cache *cache) {
    const struct kv_cache_config *config = kv_cache_get_config(cache);
    return kv_cache_sequence_bytes(config, kv_chunks_of(config->token_capacity) * KV_CHUNK_TOKENS);
}

static void grow(struct kv_cache *cache, struct model_sequence *model, uint64_t target, uint64_t column_bytes,
                 uint32_t *stamp) {
    struct error error;
    uint64_t free_columns = (capacity_bytes(cache) - kv_cache_used_bytes(cache)) / column_bytes;
    uint64_t needed = columns_of(target);
    bool fits = needed <= model->reserved_columns || needed - model->reserved_columns <= free_columns;
    enum status status = kv_sequence_reserve(model->sequence, target, &error);
    if (!fits) {
        assert_int_equal(status, STATUS_FULL);
        char expected[64];
        snprintf(expected, sizeof expected, "need %llu bytes more",
                 (unsigned long long)((needed - model->reserved_columns) * column_bytes));
        assert_non_null(strstr(error.message, expected));
        return;
    }
    assert_int_equal(status, STATUS_OK);
    if (needed > model->reserved_columns) model->reserved_columns = needed;
    for (uint64_t position = model->length; position < target; position++)
        write_row(model, position, ++*stamp);
    if (target <= model->length) return;
    kv_sequence_set_length(model->sequence, target);
    model->length = target;
}

static void shrink(struct model_sequence *model, uint64_t target) {
    if (target < model->length) model->reserved_columns = columns_of(target);
    kv_sequence_set_length(model->sequence, target);
    model->length = target;
}

static void random_operations(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(20260101));
    struct device *device = make_device();
    enum { CAPACITY = 20 * KV_CHUNK_TOKENS };
    device->buffer_max = 100000; /* the slab is many buffers */
    struct kv_cache *cache = make_cache(device, CAPACITY);
    uint64_t column_bytes = capacity_bytes(cache) / 20;
    struct model_sequence models[SEQUENCES] = {0};
    uint32_t stamp = 0;
    size_t full_count = 0;
    for (int step = 0; step < 3000; step++) {
        struct model_sequence *model = &models[random_below(&random, SEQUENCES)];
        struct error error;
        if (model->sequence == NULL) {
            assert_ok(kv_sequence_create(&model->sequence, cache, CAPACITY, &error), error);
            model->rows = calloc(CAPACITY, sizeof *model->rows);
            continue;
        }
        uint64_t action = random_below(&random, 10), before = model->length;
        if (action < 6) {
            uint64_t target = min_size(model->length + random_below(&random, 300), CAPACITY);
            grow(cache, model, target, column_bytes, &stamp);
            full_count += model->length < target && model->length == before;
        } else if (action < 9) {
            shrink(model, random_below(&random, model->length + 1));
        } else {
            kv_sequence_destroy(model->sequence);
            free(model->rows);
            *model = (struct model_sequence){0};
        }
        check_all(cache, models, column_bytes);
    }
    assert_met(full_count > 20); /* the slab was full often enough to mean something */
    for (size_t i = 0; i < SEQUENCES; i++) {
        kv_sequence_destroy(models[i].sequence);
        free(models[i].rows);
    }
    assert_int_equal(kv_cache_used_bytes(cache), 0);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void full_slab_changes_nothing(void **state) {
    (void)state;
    struct device *device = make_device();
    struct kv_cache *cache = make_cache(device, 300); /* rounded up to 5 chunks */
    struct kv_sequence *first, *second;
    struct error error;
    assert_ok(kv_sequence_create(&first, cache, 1000000, &error), error);
    assert_ok(kv_sequence_create(&second, cache, 128, &error), error);
    assert_ok(kv_sequence_reserve(first, 200, &error), error);
    uint64_t used = kv_cache_used_bytes(cache);
    assert_int_equal(used, capacity_bytes(cache) / 5 * 4);
    assert_int_equal(kv_sequence_reserve(second, 65, &error), STATUS_FULL);
    assert_non_null(strstr(error.message, "are free of"));
    assert_int_equal(kv_cache_used_bytes(cache), used);
    assert_ok(kv_sequence_reserve(second, 64, &error), error);
    assert_ok(kv_sequence_reserve(first, 256, &error), error); /* room it has already */
    assert_int_equal(kv_sequence_reserve(first, 257, &error), STATUS_FULL);
    assert_int_equal(kv_sequence_reserve(second, 129, &error), STATUS_FULL); /* its own capacity */
    assert_non_null(strstr(error.message, "at most 128"));
    kv_sequence_destroy(second);
    assert_ok(kv_sequence_reserve(first, 257, &error), error);
    kv_sequence_destroy(first);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void no_more_sequences_than_made_for(void **state) {
    (void)state;
    struct device *device = make_device();
    struct kv_cache *cache = make_cache(device, 64);
    struct kv_sequence *sequences[SEQUENCES], *extra;
    struct error error;
    for (size_t i = 0; i < SEQUENCES; i++)
        assert_ok(kv_sequence_create(&sequences[i], cache, 64, &error), error);
    assert_int_equal(kv_sequence_create(&extra, cache, 64, &error), STATUS_FULL);
    kv_sequence_destroy(sequences[0]);
    assert_ok(kv_sequence_create(&sequences[0], cache, 64, &error), error);
    for (size_t i = 0; i < SEQUENCES; i++) kv_sequence_destroy(sequences[i]);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* A context of four million tokens and a slab of 25 GB: only addresses, nothing touched. */
static void long_contexts_have_no_32_bit_offsets(void **state) {
    (void)state;
    struct device *device = make_device();
    struct kv_cache *cache;
    struct kv_sequence *sequence;
    struct error error;
    const uint64_t tokens = (uint64_t)4 << 20;
    const struct kv_cache_config config = {.layer_count = 2,
                                           .kv_head_count = 12,
                                           .k_dimension = 64,
                                           .v_dimension = 64,
                                           .token_capacity = tokens,
                                           .sequence_capacity = 1};
    assert_int_equal(kv_cache_bytes_per_token(&config), 2 * 12 * 256);
    assert_ok(kv_cache_create(&cache, device, &config, &error), error);
    assert_int_equal(capacity_bytes(cache), tokens * 2 * 12 * 256);
    assert_ok(kv_sequence_create(&sequence, cache, tokens, &error), error);
    assert_ok(kv_sequence_reserve(sequence, tokens, &error), error);
    uint8_t *first = span_memory(kv_sequence_chunk(sequence, 0, 0, 0));
    uint8_t *last = span_memory(kv_sequence_chunk(sequence, 1, 11, tokens / KV_CHUNK_TOKENS - 1));
    assert_int_equal(last - first, capacity_bytes(cache) - kv_cache_layout(cache)->chunk_bytes);
    *last = 7; /* the end is memory too */
    assert_int_equal(*last, 7);
    kv_sequence_destroy(sequence);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void absurd_sizes_are_refused(void **state) {
    (void)state;
    struct device *device = make_device();
    struct kv_cache *cache;
    struct error error;
    struct kv_cache_config config = {.layer_count = 128,
                                     .kv_head_count = 128,
                                     .k_dimension = 128,
                                     .v_dimension = 128,
                                     .token_capacity = UINT64_MAX / 2,
                                     .sequence_capacity = 1};
    assert_int_equal(kv_cache_create(&cache, device, &config, &error), STATUS_MEMORY);
    config.token_capacity = (uint64_t)1 << 40; /* fits 64 bits, not the address space */
    assert_int_equal(kv_cache_create(&cache, device, &config, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "KV cache: "));
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations),
        cmocka_unit_test(full_slab_changes_nothing),
        cmocka_unit_test(no_more_sequences_than_made_for),
        cmocka_unit_test(long_contexts_have_no_32_bit_offsets),
        cmocka_unit_test(absurd_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
