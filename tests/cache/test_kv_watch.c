/* Changes of maps: each reply is bounded, and whoever applies them has the map, however much changes. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cache/kv_watch_internal.h"
#include "seed.h"

enum { LAYERS = 16, HEADS = 8, LANES = LAYERS * HEADS, COLUMNS = 128, CELLS = LANES * COLUMNS };
enum { TOKENS = COLUMNS * KV_CHUNK_TOKENS };

struct rig {
    struct device *device;
    struct kv_cache *cache;
    struct kv_sequence *sequence;
    struct random random;
    char cells[CELLS]; /* the reader's */
    uint64_t number;
};

static void rig_open(struct rig *rig) {
    struct error error;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    const struct kv_cache_config config = {.layer_count = LAYERS,
                                           .kv_head_count = HEADS,
                                           .k_dimension = 32,
                                           .v_dimension = 32,
                                           .k_type = KV_Q8,
                                           .v_type = KV_Q8,
                                           .token_capacity = TOKENS,
                                           .sequence_capacity = 1};
    random_init(&rig->random, test_seed(20260129));
    assert_ok(device_cpu_create(&rig->device, &options, &error), error);
    assert_ok(kv_cache_create(&rig->cache, rig->device, &config, &error), error);
    assert_ok(kv_sequence_create(&rig->sequence, rig->cache, TOKENS, &error), error);
    assert_ok(kv_sequence_reserve(rig->sequence, TOKENS, &error), error);
    kv_sequence_set_length(rig->sequence, TOKENS);
}

static void rig_close(struct rig *rig) {
    kv_sequence_destroy(rig->sequence);
    kv_cache_destroy(rig->cache);
    device_destroy(rig->device);
}

/* Reads a map and applies it; returns the cells that it lacks.  *largest: the most bytes of changes yet. */
static size_t follow(struct rig *rig, size_t *largest) {
    struct kv_map map;
    struct error error;
    assert_ok(kv_sequence_read_map(rig->sequence, rig->number, &map, &error), error);
    rig->cache->watch_until_ns = UINT64_MAX; /* nothing here depends on the time */
    assert_int_equal(strlen(map.cells), CELLS);
    assert_int_equal(map.has_changes, rig->number != 0);
    if (!map.has_changes) memcpy(rig->cells, map.cells, CELLS);
    size_t bytes = 0, lacking = 0;
    for (size_t i = 0; i < map.run_count; i++) {
        const struct kv_map_run run = map.runs[i];
        char text[CELLS + 40];
        assert_true(run.count > 0 && run.first < CELLS && run.count <= CELLS - run.first);
        memcpy(rig->cells + run.first, map.cells + run.first, run.count);
        bytes += (size_t)snprintf(text, sizeof text, "%zu,\"%.*s\",", run.first, (int)run.count,
                                  map.cells + run.first);
    }
    if (bytes > KV_MAP_CHANGES_BYTES) fail_msg("%zu bytes of changes", bytes);
    if (bytes > *largest) *largest = bytes;
    for (size_t i = 0; i < CELLS; i++) lacking += rig->cells[i] != map.cells[i];
    assert_int_equal(lacking, map.late_count);
    rig->number = map.number;
    kv_map_deinit(&map);
    return lacking;
}

/* A token that attends to each chunk of the lanes before `end` by chance of one in `odds`, and to one of the last. */
static void attend(struct rig *rig, size_t end, uint64_t odds, int32_t last) {
    uint32_t rows[COLUMNS];
    kv_watch_begin_step(rig->sequence, TOKENS - 1);
    for (size_t lane = 0; lane < LANES; lane++) {
        size_t count = 0;
        for (uint32_t chunk = 0; chunk < COLUMNS && lane < end; chunk++)
            if (random_below(&rig->random, odds) == 0) rows[count++] = chunk * KV_CHUNK_TOKENS;
        if (lane == LANES - 1 && last >= 0) rows[count++] = (uint32_t)last * KV_CHUNK_TOKENS;
        kv_watch_list(rig->sequence, lane / HEADS, lane % HEADS, rows, count);
    }
}

static void changes_are_bounded(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    size_t largest = 0, most_late = 0;
    (void)state;
    assert_non_null(rig);
    rig_open(rig);
    assert_int_equal(follow(rig, &largest), 0);
    for (size_t round = 0; round < 60; round++) {
        attend(rig, LANES, 1 + random_below(&rig->random, 12), -1);
        const size_t late = follow(rig, &largest);
        if (late > most_late) most_late = late;
        while (round % 10 == 9 && follow(rig, &largest) > 0) continue; /* nothing changes: it catches up */
        if (round % 10 == 9) assert_int_equal(follow(rig, &largest), 0);
    }
    assert_true(most_late > 0 && largest > KV_MAP_CHANGES_BYTES - 16);
    rig_close(rig);
    free(rig);
}

/* One cell at the end, while those before it change all the time. */
static void none_waits_for_ever(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    size_t largest = 0, reads = 0;
    (void)state;
    assert_non_null(rig);
    rig_open(rig);
    assert_int_equal(follow(rig, &largest), 0);
    const char before = rig->cells[CELLS - 1];
    do {
        attend(rig, LANES - 1, 6, COLUMNS - 1);
        (void)follow(rig, &largest);
    } while (rig->cells[CELLS - 1] == before && ++reads < 100);
    assert_in_range(reads, 1, 10);
    rig_close(rig);
    free(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(changes_are_bounded),
                                       cmocka_unit_test(none_waits_for_ever)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
