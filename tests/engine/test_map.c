/* The map of a sequence (cache/kv_watch.h) against the engine's own lists, tables and counters, after every step: in
 * RAM and from disk, with presets that choose and with full attention.  Watching changes no logit. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "attention/attention.h"
#include "cache/kv_watch_internal.h"
#include "device/host_span.h"
#include "engine/decode_rig.h"
#include "engine/engine_internal.h"
#include "model/tiny_model.h"

enum {
    LAYERS = DECODE_RIG_LAYERS,
    PROMPT = 2600,
    STEPS = 6,
    CONTEXT = 2688,
    CHUNKS = CONTEXT / 64,
    HEADS_MAX = 8
};

struct lists { /* rows of each chunk that a step attended to */
    size_t heads;
    uint8_t rows[LAYERS][HEADS_MAX][CHUNKS];
    bool chose[LAYERS];
};

struct run {
    struct decode_rig *base;
    struct scratch scratch;
    struct plan plan;
    struct engine *engine;
    struct sequence *sequence;
    struct lists lists;
};

static void run_open(struct run *run, struct decode_rig *base, const char *preset, bool on_disk,
                     bool prefetches) {
    *run = (struct run){.base = base,
                        .plan = {.context_size = CONTEXT,
                                 .sequence_capacity = 1,
                                 .batch_size = 256,
                                 .k_type = KV_F16,
                                 .v_type = KV_F16}};
    run->lists.heads = base->model->config.kv_head_count;
    assert_true(run->lists.heads <= HEADS_MAX);
    scratch_create(&run->scratch, SCRATCH_MEMORY);
    struct plan *plan = &run->plan;
    if (on_disk)
        assert_ok(plan_set_disk(plan, run->scratch.path, strlen(run->scratch.path), 0, &base->error),
                  base->error);
    assert_ok(plan_set_axes(plan, preset, NULL, NULL, &base->error), base->error);
    plan->prefetches = prefetches;
    if (on_disk)
        assert_ok(plan_host_bytes_min(plan, &base->model->config, &plan->host_bytes, &base->error),
                  base->error);
    assert_ok(engine_create(&run->engine, base->model, plan, NULL, &base->error), base->error);
    run->sequence = decode_rig_prompt(base, run->engine, PROMPT);
}

static void run_close(struct run *run) {
    sequence_destroy(run->sequence);
    engine_destroy(run->engine);
    plan_deinit(&run->plan);
    scratch_destroy(&run->scratch);
}

/* It is watched from here on, however long this machine takes for a step. */
static struct kv_map map_since(struct run *run, uint64_t since) {
    struct kv_map map;
    assert_ok(kv_sequence_read_map(sequence_kv(run->sequence), since, &map, &run->base->error), run->base->error);
    run->engine->cache->watch_until_ns = UINT64_MAX;
    return map;
}

static struct kv_map map_of(struct run *run) {
    struct kv_map map = map_since(run, 0);
    assert_int_equal(map.column_chunks, 1);
    assert_int_equal(strlen(map.cells), LAYERS * run->lists.heads * map.column_count);
    return map;
}

static unsigned cell_of(const struct run *run, const struct kv_map *map, size_t layer, size_t head,
                        size_t chunk) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found =
        strchr(alphabet, map->cells[(layer * run->lists.heads + head) * map->column_count + chunk]);
    assert_non_null(found);
    return (unsigned)(found - alphabet);
}

/* ---- what was attended to ---- */

static void note(void *context, const struct select_event *event) {
    struct lists *lists = context;
    lists->chose[event->layer_index] = true;
    for (size_t head = 0; head < lists->heads; head++)
        for (size_t i = 0; i < event->lists[head].count; i++)
            lists->rows[event->layer_index][head][event->lists[head].rows[i] / 64]++;
}

/* Layers that did not choose see everything up to the position. */
static void fill_dense(struct lists *lists, uint64_t position) {
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < lists->heads && !lists->chose[layer]; head++)
            for (uint64_t row = 0; row <= position; row++) lists->rows[layer][head][row / 64]++;
}

static unsigned level(size_t part, size_t all) {
    return part == 0 ? 0 : part == all ? 3 : 2 * part >= all ? 2 : 1;
}

static void expect_lists(const struct run *run, const struct kv_map *map, uint64_t position) {
    size_t rows = 0, chunks = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < run->lists.heads; head++)
            for (size_t chunk = 0; chunk < map->column_count; chunk++) {
                const size_t found = run->lists.rows[layer][head][chunk];
                const size_t stored = position + 1 - chunk * 64 < 64 ? position + 1 - chunk * 64 : 64;
                assert_int_equal((cell_of(run, map, layer, head, chunk) & KV_CELL_ROWS) >> KV_CELL_ROWS_SHIFT,
                                 level(found, stored));
                rows += found;
                chunks += found > 0;
            }
    assert_true(map->has_token);
    assert_int_equal(map->position, position);
    assert_int_equal(map->token.rows, rows);
    assert_int_equal(map->token.visible, LAYERS * run->lists.heads * (position + 1));
    assert_int_equal(map->chunks.attended, chunks);
}

/* What each step chose is what its map shows; the cells' rows, [STEPS][cells], for others to be compared with. */
static void lists_of_preset(struct decode_rig *base, const char *preset, bool chooses) {
    struct run plain, run;
    run_open(&plain, base, preset, false, false);
    run_open(&run, base, preset, false, false);
    assert_false(kv_sequence_is_watched(run.sequence->kv));
    struct kv_map map = map_of(&run);
    assert_false(map.has_token);
    assert_int_equal(map.chunks.attended, 0);
    assert_int_equal(map.chunks.in_ram, map.chunks.all);
    assert_int_equal(map.chunks.saved, 0);
    kv_map_deinit(&map);
    for (size_t step = 0; step < STEPS; step++) {
        const uint64_t position = PROMPT + step;
        memset(run.lists.rows, 0, sizeof run.lists.rows);
        attention_set_observer(engine_attention(run.engine), note, &run.lists);
        const float *logits = decode_rig_step(base, run.engine, run.sequence);
        float *copy = malloc(base->width * sizeof *copy);
        assert_non_null(copy);
        memcpy(copy, logits, base->width * sizeof *copy);
        assert_memory_equal(copy, decode_rig_step(base, plain.engine, plain.sequence),
                            base->width * sizeof *copy);
        free(copy);
        fill_dense(&run.lists, position);
        map = map_of(&run);
        assert_int_equal(map.token.rows < map.token.visible, chooses);
        expect_lists(&run, &map, position);
        assert_int_equal(map.watched_tokens, step + 1);
        kv_map_deinit(&map);
    }
    assert_false(kv_sequence_is_watched(plain.sequence->kv));
    run_close(&run);
    run_close(&plain);
}

static void shows_lists(void **state) {
    lists_of_preset(*state, "quest", true);
    lists_of_preset(*state, "full", false);
}

/* ---- where chunks are ---- */

static void expect_tables(const struct run *run, const struct kv_map *map, bool reads_chosen_alone) {
    size_t in_ram = 0, read = 0, only_saved = 0;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        const struct kv_view view = kv_sequence_view(run->sequence->kv, run->engine->stream, layer);
        for (size_t head = 0; head < run->lists.heads; head++)
            for (size_t chunk = 0; chunk < map->column_count; chunk++) {
                const size_t at = head * view.chunk_stride + chunk;
                const bool has_slot =
                    span_place(view.chunks, at) != PLACE_NOWHERE ||
                    (span_exists(view.quantized) && span_place(view.quantized, at) != PLACE_NOWHERE);
                const unsigned cell = cell_of(run, map, layer, head, chunk);
                const bool was_read = (cell & KV_CELL_READ) != 0, is_saved = (cell & KV_CELL_SAVED) != 0;
                if ((cell & KV_CELL_RAM) == 0)
                    assert_true(!has_slot || was_read); /* still on its way */
                else
                    assert_true((cell & KV_CELL_RAM) == 3 && has_slot);
                if (reads_chosen_alone && was_read) assert_true((cell & KV_CELL_ROWS) != 0);
                assert_true(is_saved || has_slot);
                assert_int_equal(is_saved, (chunk + 1) * 64 <= map->token_count);
                in_ram += (cell & KV_CELL_RAM) != 0;
                only_saved += is_saved && (cell & KV_CELL_RAM) == 0;
                read += was_read;
            }
    }
    assert_int_equal(map->chunks.in_ram, in_ram);
    assert_int_equal(map->chunks.only_saved, only_saved);
    assert_int_equal(map->chunks.read, read);
    assert_true(read <= map->token.misses + map->token.prefetched);
}

static void expect_counters(const struct kv_watch_counts *counts, const struct kv_tier_statistics *before,
                            const struct kv_tier_statistics *after) {
    assert_int_equal(counts->hits, after->hits - before->hits);
    assert_int_equal(counts->misses, after->misses - before->misses);
    assert_int_equal(counts->prefetched, after->prefetched - before->prefetched);
    assert_int_equal(counts->prefetch_hits, after->prefetch_hits - before->prefetch_hits);
    assert_int_equal(counts->read_bytes, after->read_bytes - before->read_bytes);
}

static void tiers_of_preset(struct decode_rig *base, const char *preset, bool prefetches) {
    struct run run, in_ram;
    run_open(&run, base, preset, true, prefetches);
    run_open(&in_ram, base, preset, false, false);
    struct kv_map map = map_of(&run), other = map_of(&in_ram);
    kv_map_deinit(&map);
    kv_map_deinit(&other);
    const struct kv_tier_statistics began = engine_tier_statistics(run.engine);
    struct kv_tier_statistics before = began;
    for (size_t step = 0; step < STEPS; step++) {
        (void)decode_rig_step(base, run.engine, run.sequence);
        (void)decode_rig_step(base, in_ram.engine, in_ram.sequence);
        const struct kv_tier_statistics after = engine_tier_statistics(run.engine);
        map = map_of(&run);
        other = map_of(&in_ram);
        expect_counters(&map.token, &before, &after);
        expect_counters(&map.watched, &began, &after);
        assert_true(map.token.misses + map.token.prefetched > 0 && map.chunks.only_saved > 0);
        expect_tables(&run, &map, !prefetches);
        for (size_t i = 0; map.cells[i] != '\0'; i++) { /* the same choice as in RAM */
            const size_t lane = i / map.column_count, chunk = i % map.column_count;
            const size_t layer = lane / run.lists.heads, head = lane % run.lists.heads;
            assert_int_equal(cell_of(&run, &map, layer, head, chunk) & KV_CELL_ROWS,
                             cell_of(&in_ram, &other, layer, head, chunk) & KV_CELL_ROWS);
        }
        assert_int_equal(map.token.rows, other.token.rows);
        before = after;
        kv_map_deinit(&map);
        kv_map_deinit(&other);
    }
    run_close(&run);
    run_close(&in_ram);
}

static void shows_tiers(void **state) {
    tiers_of_preset(*state, "quest", false);
    tiers_of_preset(*state, "quest", true);
    tiers_of_preset(*state, "full", true);
}

/* ---- its size, its changes, its end ---- */

static void aggregates_columns(void **state) {
    enum { LONG = 40000 };
    struct decode_rig *base = *state;
    const struct plan plan = {.context_size = LONG, .sequence_capacity = 1, .batch_size = 64};
    struct engine *engine;
    struct sequence *sequence;
    struct kv_map map;
    assert_ok(engine_create(&engine, base->model, &plan, NULL, &base->error), base->error);
    assert_ok(sequence_create(&sequence, engine, &base->error), base->error);
    assert_ok(engine_fill_random(engine, sequence, LONG - 1, 3, &base->error), base->error);
    assert_ok(kv_sequence_read_map(sequence_kv(sequence), 0, &map, &base->error), base->error);
    const size_t lanes = LAYERS * base->model->config.kv_head_count;
    assert_int_equal(map.chunk_count, LONG / 64);
    assert_int_equal(map.column_chunks, 2);
    assert_int_equal(map.column_count, (LONG / 64 + 1) / 2);
    assert_true(map.column_count <= KV_MAP_COLUMNS_MAX);
    assert_int_equal(strlen(map.cells), lanes * map.column_count);
    assert_int_equal(map.chunks.all, lanes * (LONG / 64));
    assert_int_equal(map.chunks.in_ram, map.chunks.all);
    kv_map_deinit(&map);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void follows_and_ends(void **state) {
    struct run run;
    run_open(&run, *state, "quest", false, false);
    struct kv_map first = map_of(&run);
    assert_false(first.has_changes);
    (void)decode_rig_step(run.base, run.engine, run.sequence);
    struct kv_map second = map_since(&run, first.number);
    assert_true(second.has_changes && second.run_count > 0);
    assert_int_equal(second.late_count, 0);
    assert_true(second.number > first.number);
    assert_string_not_equal(second.cells, first.cells);
    for (size_t i = 0; i < second.run_count; i++)
        memcpy(first.cells + second.runs[i].first, second.cells + second.runs[i].first, second.runs[i].count);
    assert_string_equal(second.cells, first.cells);
    struct kv_map another = map_since(&run, first.number); /* which is not the last one any more */
    assert_false(another.has_changes);
    kv_map_deinit(&another);
    run.engine->cache->watch_until_ns = 1; /* long ago */
    (void)decode_rig_step(run.base, run.engine, run.sequence);
    assert_false(kv_sequence_is_watched(run.sequence->kv));
    struct kv_map third = map_since(&run, second.number + 1);
    assert_false(third.has_changes);
    assert_true(third.number > second.number);
    sequence_destroy(run.sequence); /* the next one is watched from its prompt on */
    run.sequence = decode_rig_prompt(run.base, run.engine, PROMPT);
    (void)decode_rig_step(run.base, run.engine, run.sequence);
    struct kv_map fourth = map_of(&run);
    assert_int_equal(fourth.watched_tokens, 1);
    kv_map_deinit(&fourth);
    kv_map_deinit(&first);
    kv_map_deinit(&second);
    kv_map_deinit(&third);
    run_close(&run);
}

/* Layers of different KV heads: a line for as many as any layer has, and of a layer that stores nothing none. */
static void shows_layers_that_differ(void **state) {
    const struct tiny_model tiny = tiny_model_of_groups(true);
    struct decode_rig base;
    struct run run;
    (void)state;
    decode_rig_open_model(&base, "map", &tiny, NULL, PROMPT + STEPS, 21);
    run_open(&run, &base, "full", false, false);
    for (int step = 0; step < 2; step++) {
        struct kv_map map;
        assert_ok(kv_sequence_read_map(sequence_kv(run.sequence), 0, &map, &base.error), base.error);
        (void)decode_rig_step(&base, run.engine, run.sequence);
        assert_int_equal(strlen(map.cells), (tiny.layer_count - 1) * 4 * map.column_count);
        size_t chunks = 0;
        for (size_t layer = 0; layer + 1 < tiny.layer_count; layer++)
            for (size_t head = 0; head < 4; head++) {
                const unsigned cell = cell_of(&run, &map, layer, head, 0),
                               last = cell_of(&run, &map, layer, head, map.column_count - 1);
                const bool is_there = head < (size_t)tiny.kv_heads[layer], slides = tiny.slides[layer] != 0;
                chunks += is_there ? map.chunk_count : 0;
                assert_int_equal(cell != 0, is_there);
                assert_int_equal(last >> KV_CELL_ROWS_SHIFT & 3, is_there && step > 0 ? 3 : 0);
                if (step > 0) assert_int_equal(cell >> KV_CELL_ROWS_SHIFT & 3, is_there && !slides ? 3 : 0);
            }
        assert_int_equal(map.chunks.all, chunks);
        kv_map_deinit(&map);
    }
    run_close(&run);
    decode_rig_close(&base);
}

static int rig_open(void **state) {
    struct decode_rig *base = calloc(1, sizeof *base);
    assert_non_null(base);
    decode_rig_open(base, "map", "llama", NULL, PROMPT + STEPS, 21);
    *state = base;
    return 0;
}

static int rig_close(void **state) {
    decode_rig_close(*state);
    free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shows_lists, rig_open, rig_close),
        cmocka_unit_test_setup_teardown(shows_tiers, rig_open, rig_close),
        cmocka_unit_test_setup_teardown(aggregates_columns, rig_open, rig_close),
        cmocka_unit_test_setup_teardown(follows_and_ends, rig_open, rig_close),
        cmocka_unit_test(shows_layers_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
