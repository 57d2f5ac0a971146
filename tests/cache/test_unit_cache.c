/* Slots of units (cache/unit_cache.h) by the cpu device's fetch: a head that is whole reads each unit once, one that
 * was to be has more slots than the others, and the bytes are never exceeded.  Layers differ in heads and in bytes of a
 * unit, and one has no slots. */
#include "cache/unit_cache.h"

#include "seed.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "kernels/codec/codec.h"

enum { LAYERS = 3, HEADS = 3, LANES = 6, CHUNKS = 16, UNITS = (CHUNKS - 1) * KV_CHUNK_BLOCKS, LISTED = 12, STEPS = 40 };
enum { CONTEXT = CHUNKS * KV_CHUNK_TOKENS, ALL = CHUNKS * KV_CHUNK_BLOCKS, SEQUENCES = 2 };
static const size_t heads_of[LAYERS] = {2, 1, HEADS}, dimension_of[LAYERS] = {32, 0, 64};
static const uint32_t whole[] = {5, 0, 3}; /* lanes: the last layer has 3 to 5 */

static struct { /* what the cache has allocated */
    const struct device_operations *own;
    uint64_t bytes;
} counted;

static enum status count_bytes(struct device *device, enum memory_kind kind, size_t bytes, struct buffer *buffer,
                               struct error *error) {
    counted.bytes += bytes;
    return counted.own->allocate(device, kind, bytes, buffer, error);
}

struct rig {
    struct device *device;
    struct stream *stream;
    struct device_operations operations;
    struct random random;
    struct buffer chunks, pages, tokens;
    struct kv_layout layout[LAYERS];
    struct kv_pools pools;
    struct error error;
};

static void rig_open(struct rig *rig) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    *rig = (struct rig){.stream = NULL};
    random_init(&rig->random, test_seed(78));
    assert_ok(device_cpu_create(&rig->device, &options, &rig->error), rig->error);
    const struct device_operations *operations = counted.own = rig->device->operations;
    assert_ok(operations->stream_create(rig->device, &rig->stream, &rig->error), rig->error);
    for (size_t i = 0; i < LAYERS; i += 2)
        kv_layout_init(&rig->layout[i], KV_F16, KV_F16, dimension_of[i], dimension_of[i]);
    const size_t slot = rig->layout[LAYERS - 1].chunk_bytes, count = HEADS * CHUNKS;
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, count * slot, &rig->chunks, &rig->error), rig->error);
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, count * sizeof(uint32_t), &rig->pages, &rig->error),
              rig->error);
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, LISTED * KV_BLOCK_TOKENS * sizeof(uint32_t),
                                   &rig->tokens, &rig->error),
              rig->error);
    uint8_t *bytes = rig->chunks.host;
    uint32_t *pages = rig->pages.host;
    for (size_t i = 0; i < count * slot; i++) bytes[i] = (uint8_t)random_below(&rig->random, 256);
    for (size_t i = 0; i < count; i++) pages[i] = place_make(POOL_ROWS, count - 1 - i);
    rig->pools.list[POOL_ROWS] = (struct kv_pool){&rig->chunks, 1, POOL_ONE_BUFFER, slot};
    rig->operations = *operations;
    rig->operations.allocate = count_bytes;
}

static void rig_close(struct rig *rig) {
    struct buffer *const buffers[] = {&rig->chunks, &rig->pages, &rig->tokens};
    rig->device->operations = counted.own;
    for (size_t i = 0; i < 3; i++) counted.own->release(rig->device, buffers[i]);
    counted.own->stream_destroy(rig->stream);
    device_destroy(rig->device);
}

static struct unit_cache *cache_of(struct rig *rig, uint64_t bytes) {
    const struct unit_cache_layer layers[LAYERS] = {
        {.kv_head_count = heads_of[0], .block_bytes = rig->layout[0].block_bytes},
        {.kv_head_count = heads_of[1]},
        {.kv_head_count = heads_of[2], .block_bytes = rig->layout[2].block_bytes}};
    const struct unit_cache_options options = {.layers = layers,
                                               .layer_count = LAYERS,
                                               .context_size = CONTEXT,
                                               .sequence_capacity = SEQUENCES,
                                               .bytes = bytes,
                                               .whole = whole,
                                               .whole_count = sizeof whole / sizeof *whole,
                                               .list_units = LISTED};
    struct unit_cache *cache;
    counted.bytes = 0;
    rig->device->operations = &rig->operations;
    assert_ok(unit_cache_create(&cache, rig->device, &options, &rig->error), rig->error);
    assert_in_range(counted.bytes, cache != NULL, bytes);
    assert_int_equal(unit_cache_bytes(cache), cache != NULL ? counted.bytes : 0);
    return cache;
}

/* Draws a list, and fetches it for one head; which units it named.  Counts what that added. */
static struct fetch_counts fetch(struct rig *rig, struct unit_cache *cache, size_t layer, size_t head,
                                 uint64_t generation, uint64_t position, bool *named) {
    struct fetch_counts before, after;
    uint32_t *tokens = rig->tokens.host;
    size_t stride;
    memset(named, 0, UNITS * sizeof *named);
    for (size_t count = 0; count < LISTED;) {
        const size_t unit = (size_t)random_below(&rig->random, UNITS);
        count += !named[unit];
        named[unit] = true;
    }
    for (size_t unit = 0, at = 0; unit < UNITS; unit++)
        for (size_t i = 0; i < KV_BLOCK_TOKENS && named[unit]; i++)
            tokens[at++] = (uint32_t)(unit * KV_BLOCK_TOKENS + i);
    struct row_list list[HEADS] = {{.count = 0}};
    list[head] = (struct row_list){span_of(&rig->tokens, 0), LISTED * KV_BLOCK_TOKENS};
    const struct kv_layout *layout = &rig->layout[layer];
    const struct rows_item item = {
        .view = {.layout = layout, .pools = &rig->pools, .chunks = span_of(&rig->pages, 0), .chunk_stride = CHUNKS},
        .position = position,
        .lists = list};
    const struct unit_lists lists = {.layer_index = layer,
                                     .item_count = 1,
                                     .items = &item,
                                     .generations = &generation,
                                     .head_first = head,
                                     .head_count = 1};
    assert_ok(unit_cache_counts(cache, rig->stream, &before, &rig->error), rig->error);
    unit_cache_fetch(cache, rig->stream, &lists);
    assert_ok(unit_cache_counts(cache, rig->stream, &after, &rig->error), rig->error);
    const struct span at_places = unit_cache_places(cache, &stride);
    const uint64_t *places = (const uint64_t *)(uintptr_t)(at_places.buffer->address + at_places.offset);
    for (size_t unit = 0, at = 0; unit < UNITS; unit++) {
        if (!named[unit]) continue;
        const uint8_t *chunk = span_host(kv_pools_chunk(
                          &rig->pools, ((uint32_t *)rig->pages.host)[head * CHUNKS + unit / KV_CHUNK_BLOCKS])),
                      *home = chunk + unit % KV_CHUNK_BLOCKS * layout->block_bytes;
        assert_memory_equal((void *)(uintptr_t)places[head * stride + at++], home, layout->block_bytes);
    }
    return (struct fetch_counts){.hits = after.hits - before.hits,
                                 .misses = after.misses - before.misses,
                                 .direct = after.direct - before.direct,
                                 .absent = after.absent - before.absent};
}

/* Two sequences in turns: the units that each head had before are hits where it is whole. */
static void whole_heads_read_each_unit_once(void **state) {
    (void)state;
    static bool had[SEQUENCES][LANES][UNITS];
    bool named[UNITS];
    struct rig rig;
    rig_open(&rig);
    struct unit_cache *cache = cache_of(&rig, 2 * (2 * ALL + 6 * LISTED) * rig.layout[LAYERS - 1].block_bytes);
    assert_int_equal(unit_cache_whole_count(cache), 2);
    /* What a row that sees everything may have in all heads' slots: those of the head that has the fewest. */
    assert_in_range(unit_cache_tokens(cache), LISTED * KV_BLOCK_TOKENS, (ALL - 1) * KV_BLOCK_TOKENS);
    uint64_t again[LANES] = {0}; /* misses of units that a head had before */
    memset(had, 0, sizeof had);
    for (size_t i = 0; i < STEPS * SEQUENCES; i++)
        for (size_t lane = 0; lane < LANES; lane++) {
            const size_t layer = lane < heads_of[0] ? 0 : 2,
                         head = layer == 0 ? lane : lane - heads_of[0] - heads_of[1];
            if (lane == heads_of[0]) continue; /* no slots */
            const struct fetch_counts counts =
                fetch(&rig, cache, layer, head, 7 + i % SEQUENCES, UNITS * KV_BLOCK_TOKENS + i / SEQUENCES, named);
            uint64_t fresh = 0;
            for (size_t unit = 0; unit < UNITS; unit++) {
                fresh += named[unit] && !had[i % SEQUENCES][lane][unit];
                had[i % SEQUENCES][lane][unit] |= named[unit];
            }
            assert_int_equal(counts.hits + counts.misses, LISTED); /* there is a slot for each */
            again[lane] += counts.misses - fresh;
        }
    assert_int_equal(again[whole[0]] + again[whole[1]], 0);
    assert_met(again[1] > STEPS && again[4] > STEPS && again[whole[2]] > STEPS);
    assert_met(again[whole[2]] < again[1] && again[whole[2]] < again[4]);
    for (size_t lane = 0; lane < 2; lane++) /* of a new generation, in place of the first one: nothing is there */
        assert_int_equal(fetch(&rig, cache, 0, lane, 9, UNITS * KV_BLOCK_TOKENS, named).misses, LISTED);
    unit_cache_destroy(cache);
    rig_close(&rig);
}

/* The more memory the more heads are whole; until the last one is, all of it is used. */
static void bytes_hold_what_they_can(void **state) {
    (void)state;
    struct rig rig;
    size_t before = 0, none = 0, seen[4] = {0};
    rig_open(&rig);
    const uint64_t all = (uint64_t)LANES * ALL * rig.layout[LAYERS - 1].block_bytes * SEQUENCES * 2;
    for (uint64_t bytes = 1 << 10; bytes < all; bytes += bytes / 16) {
        struct unit_cache *cache = cache_of(&rig, bytes);
        const size_t count = unit_cache_whole_count(cache);
        none += cache == NULL;
        if (count > 0) assert_true(counted.bytes > bytes / 2 || count == 3);
        const uint64_t each = bytes / (LANES * SEQUENCES * rig.layout[LAYERS - 1].block_bytes);
        if (cache != NULL && count == 0)
            assert_in_range(unit_cache_tokens(cache) / KV_BLOCK_TOKENS, max_size(each / 4, 1), 2 * each);
        assert_in_range(count, before, 3);
        seen[before = count]++;
        unit_cache_destroy(cache);
    }
    assert_true(none > 0 && seen[0] > none && seen[1] > 0 && seen[2] > 0 && seen[3] > 0);
    rig_close(&rig);
}

/* ---- chunks in 4 bits ---- */

/* Fetches all units of the complete chunks for a head, those with in_4_bits[chunk] from there; what was counted. */
static struct fetch_counts fetch_all(struct rig *rig, struct unit_cache *cache, const bool *in_4_bits, size_t head) {
    const struct device_operations *operations = rig->device->operations;
    const struct kv_layout *layout = &rig->layout[LAYERS - 1];
    const size_t q4_bytes = kv_q4_chunk_bytes(layout), tokens = UNITS * KV_BLOCK_TOKENS;
    struct fetch_counts before, after;
    struct buffer rows, pages, q4;
    const uint64_t generation = 5;
    size_t stride;
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, tokens * sizeof(uint32_t), &rows, &rig->error),
              rig->error);
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, HEADS * CHUNKS * sizeof(uint32_t), &pages, &rig->error),
              rig->error);
    assert_ok(operations->allocate(rig->device, MEMORY_SHARED, HEADS * CHUNKS * q4_bytes, &q4, &rig->error),
              rig->error);
    for (size_t i = 0; i < tokens; i++) ((uint32_t *)rows.host)[i] = (uint32_t)i;
    for (size_t i = 0; i < HEADS * CHUNKS; i++)
        ((uint32_t *)pages.host)[i] = in_4_bits[i % CHUNKS] ? place_make(POOL_QUANTIZED, i) : PLACE_NOWHERE;
    for (size_t i = 0; i < HEADS * CHUNKS * q4_bytes; i++)
        ((uint8_t *)q4.host)[i] = (uint8_t)random_below(&rig->random, 256);
    rig->pools.list[POOL_QUANTIZED] = (struct kv_pool){&q4, 1, POOL_ONE_BUFFER, q4_bytes};
    struct row_list list[HEADS] = {{.count = 0}};
    list[head] = (struct row_list){span_of(&rows, 0), tokens};
    const struct rows_item item = {.view = {.layout = layout,
                                            .pools = &rig->pools,
                                            .chunks = span_of(&rig->pages, 0),
                                            .quantized = span_of(&pages, 0),
                                            .chunk_stride = CHUNKS},
                                   .position = tokens,
                                   .lists = list};
    const struct unit_lists lists = {
        .item_count = 1, .items = &item, .generations = &generation, .head_first = head, .head_count = 1};
    assert_ok(unit_cache_counts(cache, rig->stream, &before, &rig->error), rig->error);
    unit_cache_fetch(cache, rig->stream, &lists);
    assert_ok(unit_cache_counts(cache, rig->stream, &after, &rig->error), rig->error);
    const struct span at_places = unit_cache_places(cache, &stride);
    const uint64_t *places = (const uint64_t *)(uintptr_t)(at_places.buffer->address + at_places.offset);
    for (size_t unit = 0; unit < UNITS; unit++) { /* whole, wherever it lies */
        const size_t chunk = unit / KV_CHUNK_BLOCKS;
        if (in_4_bits[chunk])
            assert_memory_equal((void *)(uintptr_t)(places[head * stride + unit] & ~(uint64_t)15),
                                (uint8_t *)q4.host + (head * CHUNKS + chunk) * q4_bytes, q4_bytes);
    }
    rig->pools.list[POOL_QUANTIZED] = (struct kv_pool){.buffers = NULL};
    operations->release(rig->device, &rows);
    operations->release(rig->device, &pages);
    operations->release(rig->device, &q4);
    return (struct fetch_counts){.misses = after.misses - before.misses,
                                 .direct = after.direct - before.direct,
                                 .chunk_misses = after.chunk_misses - before.chunk_misses,
                                 .chunk_direct = after.chunk_direct - before.chunk_direct};
}

static struct unit_cache *q4_cache_of(struct rig *rig, uint64_t bytes, const struct unit_cache_layer *layer) {
    static const uint32_t none[1];
    const struct unit_cache_options options = {.layers = layer,
                                               .layer_count = 1,
                                               .context_size = CONTEXT,
                                               .sequence_capacity = 1,
                                               .bytes = bytes,
                                               .whole = none,
                                               .list_units = LISTED};
    struct unit_cache *cache;
    counted.bytes = 0;
    rig->device->operations = &rig->operations;
    assert_ok(unit_cache_create(&cache, rig->device, &options, &rig->error), rig->error);
    assert_in_range(counted.bytes, cache != NULL, bytes);
    return cache;
}

/* A layer's fraction in 4 bits has that fraction of the slots, in tokens: of either form as much is held.  Of a whole
 * context a head may have a chunk more of either form than the fraction, and all of it is held. */
static void forms_share_the_bytes(void **state) {
    (void)state;
    static const struct {
        unsigned q4_of_16;
        bool first_is_rows;
        size_t each;                             /* one chunk of so many is in 4 bits */
        enum { EVEN, ONE_MORE, ONE_LESS } apart; /* from that */
    } cases[] = {{16, true, 1, EVEN},    {16, false, 1, EVEN},   {8, true, 2, EVEN},      {4, true, 4, EVEN},
                 {8, true, 2, ONE_MORE}, {8, true, 2, ONE_LESS}, {8, false, 2, ONE_MORE}, {8, false, 2, ONE_LESS},
                 {4, true, 4, ONE_MORE}, {4, true, 4, ONE_LESS}};
    struct rig rig;
    rig_open(&rig);
    const struct kv_layout *layout = &rig.layout[LAYERS - 1];
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        bool in_4_bits[CHUNKS] = {false};
        size_t q4 = 0, met = 0;
        const struct unit_cache_layer layer = {.kv_head_count = HEADS,
                                               .block_bytes = layout->block_bytes,
                                               .q4_bytes = kv_q4_chunk_bytes(layout),
                                               .q4_of_16 = cases[n].q4_of_16,
                                               .first_is_rows = cases[n].first_is_rows};
        for (size_t c = 0; c < CHUNKS - 1; c++) {
            in_4_bits[c] = c % cases[n].each == cases[n].each - 1 && !(c == 0 && cases[n].first_is_rows);
            q4 += in_4_bits[c];
        }
        for (size_t c = 1; c < CHUNKS - 1 && cases[n].apart != EVEN; c++) {
            if (in_4_bits[c] == (cases[n].apart == ONE_MORE)) continue;
            in_4_bits[c] = !in_4_bits[c];
            q4 += cases[n].apart == ONE_MORE ? 1 : (size_t)-1;
            break;
        }
        const uint64_t all = (uint64_t)HEADS * ALL * layout->block_bytes;
        for (uint64_t bytes = all / 16; bytes < 2 * all; bytes += bytes / 4) {
            struct unit_cache *cache = q4_cache_of(&rig, bytes, &layer);
            if (cache == NULL) continue;
            const struct fetch_counts counts = fetch_all(&rig, cache, in_4_bits, n % HEADS);
            const size_t rows = UNITS - q4 * KV_CHUNK_BLOCKS, first = cases[n].first_is_rows ? KV_CHUNK_BLOCKS : 0;
            assert_int_equal(counts.misses + counts.direct, rows);
            assert_int_equal(counts.chunk_misses + counts.chunk_direct, q4);
            if (bytes > all + all / 4) assert_int_equal(counts.direct + counts.chunk_direct, 0);
            if (counts.chunk_direct > 0) assert_true(counted.bytes > bytes / 2);
            unit_cache_destroy(cache);
            if (counts.direct + counts.chunk_direct == 0 || counts.misses < first || rows == first) continue;
            if (cases[n].apart != EVEN) continue; /* what these are about is that a whole context is held */
            /* Of q4 chunks as many of 100 as of rows, to within two chunks. */
            const double held = (double)counts.chunk_misses / (double)q4,
                         held_rows = (double)(counts.misses - first) / (double)(rows - first);
            assert_true(fabs(held - held_rows) <= 2.0 / (double)q4);
            met++;
        }
        if (cases[n].each > 1 && cases[n].apart == EVEN) assert_true(met > 3);
    }
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_heads_read_each_unit_once),
        cmocka_unit_test(bytes_hold_what_they_can),
        cmocka_unit_test(forms_share_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
