/* KV in tiers against KV in RAM, on tiny random models: the same logits, bit for bit, at any budget, for attention over
 * everything and for every selection; a prompt that was saved is opened and not computed; what is damaged is computed
 * anew. */
#include "testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "attention/dial.h"
#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "lab/methods/methods.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { DEEP = 6, PROMPT = 1400, CONTEXT = 2048, STEPS = 12, SEQUENCES = 3, METHODS = 8, BLOCK = 96 };

static const struct
    select_method
        *const
            methods
                [METHODS + 1] = {&select_all,  &select_window, &select_quest,   &select_meanstd,
                                 &select_hash, &select_tree,   &select_cluster, &select_product,
                                 &select_exact}; /* beyond METHODS: keeps no key index, and reads no 4-bit rows */

/* What full chunks are: rows, 4 bits, or some of both. */
enum form { ROWS, Q4, MIXED };

/* All of a round's chunks in 4 bits, or some. */
static enum form form_of(bool q4, size_t round) { return !q4 ? ROWS : round % 2 == 0 ? Q4 : MIXED; }

struct rig {
    struct device *device;
    struct model *model;
    char *calibration;                         /* owned: its path */
    int32_t tokens[SEQUENCES][PROMPT + STEPS]; /* of each sequence its own */
    size_t width;
    struct error error;
};

struct rig_shape {
    const char *architecture;
    size_t layer_count, kv_head_count;
    cpu_mask mask; /* 0: the reference kernels */
    size_t thread_count;
    bool adds_nothing; /* each layer has the same input (tiny_model.h) */
};

static void rig_open_shaped(struct rig *rig, const struct rig_shape *shape) {
    struct random random;
    struct tiny_model tiny = tiny_model_default(shape->architecture);
    tiny.head_dimension = 32; /* what q8 needs */
    tiny.layer_count = shape->layer_count;
    tiny.kv_head_count = shape->kv_head_count;
    tiny.adds_nothing = shape->adds_nothing;
    const struct device_options device = {.thread_count = shape->thread_count, .mask = shape->mask};
    tiny_model_load(&tiny, "tiered", &device, &rig->device, &rig->model);
    rig->calibration = tiny_calibration_write(rig->model);
    rig->width = tiny.vocabulary_size;
    random_init(&random, 99);
    for (size_t s = 0; s < SEQUENCES; s++) tiny_model_tokens(&tiny, &random, rig->tokens[s], PROMPT + STEPS);
}

static void rig_open_deep(struct rig *rig, const char *architecture, cpu_mask mask, size_t layer_count) {
    rig_open_shaped(rig, &(struct rig_shape){architecture, layer_count, 2, mask, 1, false});
}

static void rig_open(struct rig *rig, const char *architecture, cpu_mask mask) {
    rig_open_deep(rig, architecture, mask, 2);
}

static void rig_close(struct rig *rig) {
    unlink(rig->calibration);
    free(rig->calibration);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static struct plan options_of(const struct select_method *method, enum kv_type type) {
    struct plan options = {.context_size = CONTEXT,
                           .sequence_capacity = SEQUENCES,
                           .batch_size = BLOCK,
                           .k_type = type,
                           .v_type = type,
                           .select = select_options_default()};
    options.select.method = method;
    options.select.dense_layers = 1;
    options.select.recent = 32;
    if (method != &select_all) options.select.keep = (struct select_keep){.tokens = 160};
    return options;
}

/* Of mixed pages a layer may have all, some or none in 4 bits. */
static void set_form(struct plan *options, enum form form) {
    static const uint8_t fractions[DEEP] = {7, 12, 16, 0, 1, 8};
    options->quantized_pages = form != ROWS;
    options->mixes_pages = form == MIXED;
    if (form == MIXED) options->fractions.layer_count = DEEP;
    if (form == MIXED) memcpy(options->fractions.sixteenths, fractions, sizeof fractions);
}

static struct engine *make_engine(struct rig *rig, const struct plan *options) {
    struct engine *engine;
    assert_ok(engine_create(&engine, rig->model, options, NULL, &rig->error), rig->error);
    return engine;
}

static struct sequence *prefilled(struct rig *rig, struct engine *engine, size_t index, size_t count) {
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->tokens[index], .token_count = count};
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    return sequence;
}

/* Sequences of the given lengths decode together: [STEPS][count][width]; the caller frees. */
static float *decode(struct rig *rig, struct engine *engine, const size_t *lengths, size_t count) {
    struct sequence *sequences[SEQUENCES];
    float *all = calloc(STEPS * count * rig->width, sizeof *all);
    for (size_t i = 0; i < count; i++) sequences[i] = prefilled(rig, engine, i, lengths[i]);
    for (size_t step = 0; step < STEPS; step++) {
        int32_t tokens[SEQUENCES];
        const float *logits;
        for (size_t i = 0; i < count; i++) tokens[i] = rig->tokens[i][lengths[i] + step];
        assert_ok(engine_step(engine, sequences, tokens, count, &logits, &rig->error), rig->error);
        memcpy(all + step * count * rig->width, logits, count * rig->width * sizeof *all);
    }
    for (size_t i = 0; i < count; i++) sequence_destroy(sequences[i]);
    return all;
}

static bool has_bounds(const struct select_method *method) {
    return method == &select_quest || method == &select_meanstd || method == &select_tree;
}

static struct mass_bounds mass_bounds_of(struct engine *engine) {
    return attention_statistics(engine_attention(engine)).mass_bound;
}

/* Heads are in another order, so their sums differ. */
static void assert_same_mass_bounds(struct mass_bounds found, struct mass_bounds expected) {
    assert_int_equal(found.count, expected.count);
    assert_true(found.min == expected.min);
    assert_true(fabs(found.sum - expected.sum) <= 1e-9 * (double)expected.count);
}

enum { AMPLE_BYTES = 1 << 28 };           /* nothing leaves RAM */
enum { ROWS_BYTES = 64 * (32 + 32) * 2 }; /* a chunk of the tiny model in f16 */

/* Rounds go through so many methods.  A fourth of them is on the reference kernels, which take ten times as long, each
 * time around with other methods; of either kind some with two threads. */
static struct rig_shape shape_of_round(size_t round, size_t method_count, struct random *random) {
    const bool is_reference = (round / method_count + round % method_count) % 4 == 1;
    return (struct rig_shape){.architecture = random_below(random, 3) == 0 ? "qwen3" : "llama",
                              .layer_count = 4,
                              .kv_head_count = random_below(random, 3) > 0 ? 4 : 2,
                              .mask = is_reference ? 0 : cpu_default(),
                              .thread_count = round / 2 % 4 == 0 ? 2 : 1};
}

/* At least the first one is long, so that its KV exceeds the minimum.  On the reference kernels it is shorter; shorter
 * still where everything is wanted, so that any budget reads. */
static size_t draw_lengths(size_t lengths[SEQUENCES], const struct rig_shape *shape, bool all_long,
                           struct random *random) {
    const size_t length_max = shape->mask != 0 ? 2 * PROMPT / 3 : all_long ? PROMPT / 5 : PROMPT / 3,
                 count = 1 + random_below(random, SEQUENCES);
    for (size_t i = 0; i < count; i++)
        lengths[i] = all_long || i == 0 ? length_max / 2 + random_below(random, length_max / 2)
                                        : 1 + random_below(random, length_max);
    return count;
}

/* A budget between the minimum and what holds all KV of the sequences, in the form in which it lies there.  Space for
 * no more sequences and tokens than there are: a larger context has a larger minimum, and nothing would be evicted. */
static void draw_budget(const struct rig *rig, struct plan *options, const size_t *lengths, size_t count,
                        uint64_t *bytes_min, struct random *random) {
    struct error error;
    uint64_t bytes = 0, all_bytes;
    options->sequence_capacity = count;
    options->context_size = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += kv_chunks_of(lengths[i]) * ROWS_BYTES;
        options->context_size = max_size(options->context_size, lengths[i] + STEPS);
    }
    bytes *= rig->model->config.layer_count * rig->model->config.kv_head_count;
    if (options->quantized_pages) bytes /= options->mixes_pages ? 2 : 3;
    options->host_bytes = 0;
    assert_ok(plan_host_bytes_min(options, &rig->model->config, bytes_min, &error), error);
    assert_ok(plan_host_bytes_around(options, &rig->model->config, bytes, &all_bytes, &error), error);
    /* With 4-bit pages the minimum includes slots of rows, which may exceed all of the sequences' 4-bit pages. */
    uint64_t spare = all_bytes > *bytes_min ? all_bytes - *bytes_min : 0;
    if (options->quantized_pages && spare < bytes / 8) spare = bytes / 2;
    options->host_bytes = *bytes_min + (spare > 1 ? 1 + random_below(random, spare - 1) : 0);
}

static struct list_buffer_counts lists; /* of all engines that expect_logits made */

/* Logits in tiers and mass bounds are those expected; returns what the tiers did. */
static struct kv_tier_statistics expect_logits(struct rig *rig, const struct plan *options,
                                               const size_t *lengths, size_t count, const float *expected,
                                               struct mass_bounds bounds) {
    struct engine *engine = make_engine(rig, options);
    float *found = decode(rig, engine, lengths, count);
    assert_memory_equal(found, expected, STEPS * count * rig->width * sizeof *found);
    assert_same_mass_bounds(mass_bounds_of(engine), bounds);
    const struct kv_tier_statistics statistics = engine_tier_statistics(engine);
    assert_true(statistics.host_bytes <= options->host_bytes);
    assert_true(statistics.prefetch_hits <= statistics.prefetched &&
                statistics.prefetch_hits <= statistics.hits);
    if (!options->prefetches) assert_int_equal(statistics.prefetched, 0);
    const struct list_buffer_counts counts = attention_list_buffer_counts(engine_attention(engine));
    assert_true(options->select.list_buffers || counts.kept + counts.copied == 0);
    lists.heads += counts.heads;
    lists.kept += counts.kept;
    lists.copied += counts.copied;
    engine_destroy(engine);
    free(found);
    return statistics;
}

/* In 4 bits chunks that are full hold what 4 bits hold, so it is another budget that gives the same bits, not no
 * budget. */
static void logits_at_any_budget(enum form form, size_t rounds) {
    const bool q4 = form != ROWS;
    struct random random;
    const uint64_t seed = test_seed(20261121);
    random_init(&random, seed);
    size_t between = 0, reading = 0;
    uint64_t bound_count = 0, prefetched = 0, prefetch_hits = 0;
    for (size_t round = 0; round < rounds; round++) {
        if (!test_takes(seed, round)) continue;
        struct rig rig = {0};
        struct scratch scratch, ample;
        const size_t method_count = q4 ? METHODS : METHODS + 1;
        const struct select_method *method = methods[round % method_count];
        const struct rig_shape shape = shape_of_round(round, method_count, &random);
        rig_open_shaped(&rig, &shape);
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&ample, SCRATCH_MEMORY);
        struct plan options =
            options_of(method, q4 || random_below(&random, 2) == 0 || method->reads_keys ? KV_F16 : KV_Q8);
        if (random_below(&random, 2) == 0) options.select.page = 8u << random_below(&random, 4);
        const bool has_lists = !q4 && (options.select.method == &select_hash ||
                                       options.select.method == &select_product); /* of single tokens */
        if (has_lists && round % 4 != 3) options.select.page = 0;
        /* heads that keep different numbers of rows, some of them at a time */
        if (shape.kv_head_count == 4) options.select.heads = SELECT_HEADS_IMPORTANCE;
        options.select.mass_bound = has_bounds(options.select.method) && random_below(&random, 2) == 0;
        if (random_below(&random, 2) == 0) options.select.rank = TREE_MEAN_DEVIATION;
        set_form(&options, form);
        if (form == MIXED)
            for (size_t i = 0; i < DEEP; i++)
                options.fractions.sixteenths[i] = (uint8_t)random_below(&random, PAGE_FRACTION_WHOLE + 1);
        if (form == MIXED && round % 2 == 0) page_fractions_keep_first(&options.fractions);
        options.disk_directory = q4 ? ample.path : NULL;
        options.host_bytes = q4 ? AMPLE_BYTES : 0;
        size_t lengths[SEQUENCES], count = draw_lengths(lengths, &shape, false, &random);
        struct engine *engine = make_engine(&rig, &options);
        float *expected = decode(&rig, engine, lengths, count);
        assert_int_equal(engine_tier_statistics(engine).read_pages, 0);
        const struct mass_bounds bounds = mass_bounds_of(engine);
        assert_true((bounds.count > 0) <= options.select.mass_bound);
        bound_count += bounds.count;
        engine_destroy(engine);

        uint64_t bytes_min;
        options.disk_directory = scratch.path;
        options.prefetches = random_below(&random, 2) == 0;
        draw_budget(&rig, &options, lengths, count, &bytes_min, &random);
        options.resident_layers = random_below(&random, 3);
        options.select.scan = !q4 && random_below(&random, 3) == 0;
        options.select.list_buffers = random_below(&random, 2) == 0;
        if (has_lists && round % 4 != 3) options.select.list_buffers = true;
        if (round % 4 == 3) options.host_bytes = bytes_min;
        between += options.host_bytes > bytes_min;
        const struct kv_tier_statistics did = expect_logits(&rig, &options, lengths, count, expected, bounds);
        reading += did.read_pages > 0;
        prefetched += did.prefetched;
        prefetch_hits += did.prefetch_hits;
        free(expected);
        scratch_destroy(&scratch);
        scratch_destroy(&ample);
        rig_close(&rig);
    }
    print_message("%zu rounds, %zu between the least and all, %zu reading, %llu heads with a mass bound, "
                  "%llu of %llu prefetched "
                  "chunks used\n",
                  rounds, between, reading, (unsigned long long)bound_count,
                  (unsigned long long)prefetch_hits, (unsigned long long)prefetched);
    print_message("%llu rows of lists kept, %llu copied\n", (unsigned long long)lists.kept,
                  (unsigned long long)lists.copied);
    assert_met(between > 0 && reading > 0); /* or nothing was tested */
    assert_met(q4 || (lists.kept > 0 && lists.copied > 0));
}

/* Where layers add nothing the next layer's queries are those that are taken for them, and so is its choice: what is
 * prefetched is used, to the last chunk.  How much is prefetched depends on the disk; that something is, in the first
 * steps (prefetch_gate.h), does not. */
static void what_is_certain_is_prefetched(void **state) {
    (void)state;
    test_skip_part();
    const size_t lengths[] = {PROMPT};
    const struct rig_shape shape = {"llama", 4, 2, cpu_default(), 1, true};
    for (size_t method = 1; method < METHODS; method++)
        for (enum form form = ROWS; form <= Q4; form++) {
            struct rig rig = {0};
            struct scratch scratch;
            rig_open_shaped(&rig, &shape);
            scratch_create(&scratch, SCRATCH_MEMORY);
            struct plan options = options_of(methods[method], KV_F16);
            set_form(&options, form);
            options.sequence_capacity = 1;
            options.prefetches = true;
            options.disk_directory = scratch.path;
            assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                      rig.error);
            struct engine *engine = make_engine(&rig, &options);
            free(decode(&rig, engine, lengths, 1));
            const struct kv_tier_statistics did = engine_tier_statistics(engine);
            print_message("select=%s%s: %llu of %llu prefetched chunks used, %llu read when wanted\n",
                          methods[method]->name, form == Q4 ? " in 4 bits" : "",
                          (unsigned long long)did.prefetch_hits, (unsigned long long)did.prefetched,
                          (unsigned long long)did.misses);
            assert_true(did.prefetched > 0 || methods[method] == &select_window);
            assert_int_equal(did.prefetch_hits, did.prefetched);
            engine_destroy(engine);
            scratch_destroy(&scratch);
            rig_close(&rig);
        }
}

/* full and flexgen: every chunk is wanted in every step, so that any budget below all of the KV reads. */
static void exact_at_any_budget(void **state) {
    enum { ROUNDS = 8 };
    (void)state;
    struct random random;
    size_t between = 0, reading = 0;
    const uint64_t seed = test_seed(20261121);
    random_init(&random, seed);
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes(seed, round)) continue;
        struct rig rig = {0};
        struct scratch scratch;
        const struct rig_shape shape = shape_of_round(round, METHODS, &random);
        rig_open_shaped(&rig, &shape);
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct plan options = options_of(&select_all, random_below(&random, 2) == 0 ? KV_F16 : KV_Q8);
        size_t lengths[SEQUENCES], count = draw_lengths(lengths, &shape, true, &random);
        struct engine *engine = make_engine(&rig, &options);
        float *expected = decode(&rig, engine, lengths, count);
        engine_destroy(engine);
        uint64_t bytes_min;
        options.disk_directory = scratch.path;
        options.prefetches = round / 4 % 2 == 0;
        draw_budget(&rig, &options, lengths, count, &bytes_min, &random);
        options.segment_size = random_below(&random, 5) * BLOCK;
        options.resident_layers = random_below(&random, 3);
        const struct kv_tier_statistics did =
            expect_logits(&rig, &options, lengths, count, expected, (struct mass_bounds){0});
        between += options.host_bytes > bytes_min;
        reading += did.read_pages > 0;
        free(expected);
        scratch_destroy(&scratch);
        rig_close(&rig);
    }
    printf("%zu between the least and all, %zu reading\n", between, reading);
    assert_met(between >= ROUNDS - 1 && reading == ROUNDS);
}

/* The first sequence had nothing to be read ahead, and the others' chunks that had are in its way. */
static void a_short_sequence_beside_long_ones(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig = {0};
    struct scratch scratch;
    const size_t lengths[SEQUENCES] = {26, 562, 491};
    rig_open(&rig, "llama", cpu_default());
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan options = options_of(&select_all, KV_Q8);
    struct engine *engine = make_engine(&rig, &options);
    float *expected = decode(&rig, engine, lengths, SEQUENCES);
    engine_destroy(engine);
    options.disk_directory = scratch.path;
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error), rig.error);
    engine = make_engine(&rig, &options);
    float *found = decode(&rig, engine, lengths, SEQUENCES);
    assert_memory_equal(found, expected, STEPS * SEQUENCES * rig.width * sizeof *found);
    engine_destroy(engine);
    free(expected);
    free(found);
    scratch_destroy(&scratch);
    rig_close(&rig);
}

static void same_logits_at_any_budget(void **state) {
    (void)state;
    logits_at_any_budget(ROWS, 3 * (METHODS + 1));
}

static void same_logits_at_any_budget_in_4_bits(void **state) {
    (void)state;
    logits_at_any_budget(Q4, METHODS);
}

static void same_logits_at_any_budget_in_both_forms(void **state) {
    (void)state;
    logits_at_any_budget(MIXED, METHODS);
}

/* Cut back into chunks that were rounded, and on from there: [width] logits; the caller frees. */
static float *after_cuts(struct rig *rig, const struct plan *options, uint64_t *pages) {
    struct engine *engine = make_engine(rig, options);
    struct sequence *sequence = prefilled(rig, engine, 0, PROMPT);
    const float *logits = NULL;
    static const size_t cuts[] = {1390, 1300, 1152, 1000};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        sequence_truncate(sequence, cuts[i]);
        const struct prefill_request request = {.tokens = rig->tokens[1 + i % 2],
                                                .token_count = 300 + 200 * i};
        assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig->error), rig->error);
    }
    float *found = malloc(rig->width * sizeof *found);
    memcpy(found, logits, rig->width * sizeof *found);
    *pages = engine_tier_statistics(engine).read_pages;
    sequence_destroy(sequence);
    engine_destroy(engine);
    return found;
}

static void cutting_back(enum form form) {
    struct rig rig = {0};
    struct scratch scratches[2];
    float *found[2];
    uint64_t pages[2];
    rig_open(&rig, "llama", cpu_default());
    for (size_t i = 0; i < 2; i++) {
        scratch_create(&scratches[i], SCRATCH_MEMORY);
        struct plan options = options_of(&select_all, KV_F16);
        set_form(&options, form);
        options.sequence_capacity = 1;
        options.disk_directory = scratches[i].path;
        if (i == 0)
            options.host_bytes = AMPLE_BYTES;
        else
            assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                      rig.error);
        found[i] = after_cuts(&rig, &options, &pages[i]);
    }
    assert_memory_equal(found[0], found[1], rig.width * sizeof(float));
    assert_int_equal(pages[0], 0);
    assert_true(pages[1] > 0);
    for (size_t i = 0; i < 2; i++) {
        free(found[i]);
        scratch_destroy(&scratches[i]);
    }
    rig_close(&rig);
}

static void cutting_back_does_not_depend_on_the_budget_in_4_bits(void **state) {
    (void)state;
    test_skip_part();
    cutting_back(Q4);
    cutting_back(MIXED);
}

enum { RESIDENT = 1, LAYER_CHUNKS = 2 * CONTEXT / 64 };

/* Steps behind a prompt: nothing of the first layer is read in them, and of the others pages are (but by the window,
 * which is in RAM). */
static void decode_reads_only_others(struct rig *rig, const struct plan *options, const float *expected,
                                     uint64_t expected_reused, uint64_t expected_read) {
    struct engine *engine = make_engine(rig, options);
    struct sequence *sequence = prefilled(rig, engine, 0, PROMPT);
    struct kv_tier_statistics before = engine_tier_statistics(engine);
    assert_int_equal(sequence_reused_tokens(sequence), expected_reused);
    assert_int_equal(before.resident_layers, RESIDENT);
    assert_int_equal(before.resident_read_pages, expected_read);
    for (size_t step = 0; step < STEPS; step++) {
        const float *logits;
        assert_ok(engine_step(engine, &sequence, &rig->tokens[0][PROMPT + step], 1, &logits, &rig->error),
                  rig->error);
        if (expected_reused == 0) /* else other blocks: other rounding */
            assert_memory_equal(logits, expected + step * rig->width, rig->width * sizeof *logits);
    }
    struct kv_tier_statistics after = engine_tier_statistics(engine);
    assert_int_equal(after.resident_read_pages, before.resident_read_pages);
    assert_true(after.read_pages > before.read_pages || options->select.method == &select_window);
    assert_true(after.host_bytes <= options->host_bytes);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void the_first_layers_stay(bool q4) {
    for (size_t round = 0; round < METHODS; round++) {
        const enum form form = form_of(q4, round);
        struct rig rig = {0};
        struct scratch scratch, small;
        uint64_t bytes_min;
        const size_t lengths[] = {PROMPT};
        rig_open_deep(&rig, "llama", cpu_default(), DEEP);
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&small, SCRATCH_MEMORY);
        struct plan options = options_of(methods[round], KV_F16);
        options.sequence_capacity = 1;
        set_form(&options, form);
        options.resident_layers = RESIDENT;
        options.disk_directory = small.path;
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &bytes_min, &rig.error), rig.error);
        /* The minimum does not grow: at the minimum none stay, and answers are the same. */
        options.host_bytes = bytes_min;
        struct engine *engine = make_engine(&rig, &options);
        float *expected = decode(&rig, engine, lengths, 1);
        assert_int_equal(engine_tier_statistics(engine).resident_layers, 0);
        assert_true(engine_tier_statistics(engine).read_pages > 0);
        engine_destroy(engine);

        options.disk_directory = scratch.path;
        options.host_bytes = bytes_min + LAYER_CHUNKS * (ROWS_BYTES + 64);
        decode_reads_only_others(&rig, &options, expected, 0, 0);
        decode_reads_only_others(&rig, &options, expected, PROMPT - 1, 2 * kv_chunks_of(PROMPT - 1));
        free(expected);
        scratch_destroy(&scratch);
        scratch_destroy(&small);
        rig_close(&rig);
    }
}

static void first_layers_are_never_read_in_decode(void **state) {
    (void)state;
    test_skip_part();
    the_first_layers_stay(false);
}

static void first_layers_are_never_read_in_decode_in_4_bits(void **state) {
    (void)state;
    test_skip_part();
    the_first_layers_stay(true);
}

static size_t likeliest(const float *logits, size_t width) {
    size_t best = 0;
    for (size_t i = 1; i < width; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Steps behind a prompt of that length with all KV in RAM; the caller frees. */
static float *decoded_in_ram(struct rig *rig, const struct select_method *method, enum form form, size_t length) {
    struct scratch ample;
    struct plan plain = options_of(method, KV_F16);
    scratch_create(&ample, SCRATCH_MEMORY);
    set_form(&plain, form);
    plain.disk_directory = form != ROWS ? ample.path : NULL;
    plain.host_bytes = form != ROWS ? AMPLE_BYTES : 0;
    struct engine *engine = make_engine(rig, &plain);
    float *expected = decode(rig, engine, &length, 1);
    engine_destroy(engine);
    scratch_destroy(&ample);
    return expected;
}

/* The prompt again, and another one that begins like it, in a new engine each. */
static void saved_prompt_is_opened(bool q4) {
    for (size_t round = 0; round < METHODS; round++) {
        const enum form form = form_of(q4, round);
        struct rig rig = {0};
        struct scratch scratch;
        rig_open(&rig, "llama", cpu_default());
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct plan options = options_of(methods[round], KV_F16);
        options.disk_directory = scratch.path;
        set_form(&options, form);
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                  rig.error);
        enum { CASES = 6 };
        static const size_t lengths[CASES] = {1000, 1000, 1300, 700, 1300, 900};
        static const uint64_t reused[CASES] = {0, 999, 1000, 699, 1299, 899};
        static const uint64_t reused_q4[CASES] = {0,   999,  1000,
                                                  640, 1299, 896}; /* rows of rounded chunks: all or none */
        float *expected[CASES];
        size_t like[CASES]; /* the first case of the same length */
        for (size_t i = 0; i < CASES; i++) {
            for (like[i] = 0; lengths[like[i]] != lengths[i];) like[i]++;
            expected[i] = like[i] < i ? expected[like[i]] : decoded_in_ram(&rig, methods[round], form, lengths[i]);
            struct engine *engine = make_engine(&rig, &options);
            struct sequence *sequence = prefilled(&rig, engine, 0, lengths[i]);
            assert_int_equal(sequence_reused_tokens(sequence), q4 ? reused_q4[i] : reused[i]);
            assert_string_equal(sequence_notice(sequence), "");
            sequence_destroy(sequence);
            float *found = decode(&rig, engine, &lengths[i], 1);
            engine_destroy(engine);
            for (size_t step = 0; step < STEPS; step++) /* other blocks: other rounding */
                assert_int_equal(likeliest(found + step * rig.width, rig.width),
                                 likeliest(expected[i] + step * rig.width, rig.width));
            free(found);
        }
        for (size_t i = 0; i < CASES; i++)
            if (like[i] == i) free(expected[i]);
        scratch_destroy(&scratch);
        rig_close(&rig);
    }
}

static void a_saved_prompt_is_opened(void **state) {
    (void)state;
    test_skip_part();
    saved_prompt_is_opened(false);
}

static void a_saved_prompt_is_opened_in_4_bits(void **state) {
    (void)state;
    test_skip_part();
    saved_prompt_is_opened(true);
}

enum { DOCUMENT = 10 * BLOCK, QUESTION_MAX = 30 };

/* Logits of the last of `question` tokens behind a document in RAM, which is cut back to it; the caller frees. */
static float *asked_in_ram(struct rig *rig, struct engine *engine, struct sequence *sequence, size_t question,
                           bool selects) {
    const struct prefill_request request = {
        .tokens = rig->tokens[0] + DOCUMENT, .token_count = question, .selects = selects};
    const float *logits;
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig->error), rig->error);
    float *found = malloc(rig->width * sizeof *found);
    memcpy(found, logits, rig->width * sizeof *found);
    sequence_truncate(sequence, DOCUMENT);
    return found;
}

/* Behind a document that was opened tokens select as in steps of their own, or attend to all, as asked for. */
static void what_follows_a_document_selects(void **state) {
    (void)state;
    test_skip_part();
    static const struct {
        enum plan_suffix suffix;
        size_t question;
        bool selects;
    } cases[] = {{SUFFIX_DENSE, 1, false},
                 {SUFFIX_DENSE, 30, false},
                 {SUFFIX_SELECTS, 1, true},
                 {SUFFIX_SELECTS, 30, true},
                 {SUFFIX_CHEAPER, DOCUMENT / 160, true},
                 {SUFFIX_CHEAPER, DOCUMENT / 160 + 1, false}};
    for (size_t method = 1; method < METHODS; method++) {
        struct rig rig = {0};
        rig_open(&rig, "llama", cpu_default());
        struct plan options = options_of(methods[method], KV_F16);
        struct engine *in_ram = make_engine(&rig, &options);
        struct sequence *document = prefilled(&rig, in_ram, 0, DOCUMENT);
        options.disk_directory = "of each case its own";
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                  rig.error);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct scratch scratch;
            scratch_create(&scratch, SCRATCH_MEMORY);
            options.disk_directory = scratch.path;
            options.suffix = cases[i].suffix;
            struct engine *engine = make_engine(&rig, &options);
            sequence_destroy(prefilled(&rig, engine, 0, DOCUMENT));
            const struct prefill_request request = {.tokens = rig.tokens[0],
                                                    .token_count = DOCUMENT + cases[i].question};
            struct sequence *sequence;
            const float *logits;
            assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
            assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig.error), rig.error);
            assert_int_equal(sequence_reused_tokens(sequence), DOCUMENT);
            float *same = asked_in_ram(&rig, in_ram, document, cases[i].question, cases[i].selects);
            float *other = asked_in_ram(&rig, in_ram, document, cases[i].question, !cases[i].selects);
            assert_memory_equal(logits, same, rig.width * sizeof *same);
            assert_memory_not_equal(logits, other, rig.width * sizeof *other);
            free(same);
            free(other);
            sequence_destroy(sequence);
            engine_destroy(engine);
            scratch_destroy(&scratch);
        }
        sequence_destroy(document);
        engine_destroy(in_ram);
        rig_close(&rig);
    }
}

/* The answer to a prompt in an engine of its own, and what was saved of it: [STEPS][width]; the caller frees. */
static float *answered(struct rig *rig, const struct plan *options, const int32_t *tokens, size_t count,
                       uint64_t expected_reused, uint64_t *written) {
    struct engine *engine = make_engine(rig, options);
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = tokens, .token_count = count};
    float *all = calloc(STEPS * rig->width, sizeof *all);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    assert_int_equal(sequence_reused_tokens(sequence), expected_reused);
    assert_string_equal(sequence_notice(sequence), "");
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    *written = engine_tier_statistics(engine).write_bytes;
    for (size_t step = 0; step < STEPS; step++) {
        const float *logits;
        assert_ok(engine_step(engine, &sequence, &rig->tokens[2][step], 1, &logits, &rig->error), rig->error);
        memcpy(all + step * rig->width, logits, rig->width * sizeof *all);
    }
    sequence_destroy(sequence);
    engine_destroy(engine);
    return all;
}

static void assert_same_likeliest(const struct rig *rig, const float *found, const float *expected) {
    for (size_t step = 0; step < STEPS; step++) /* other blocks: other rounding */
        assert_int_equal(likeliest(found + step * rig->width, rig->width),
                         likeliest(expected + step * rig->width, rig->width));
}

/* A prompt that departs from a saved one takes over its pages and is saved itself, when there is enough that is new. */
static void departing_prompt_is_saved(bool q4) {
    for (size_t round = 0; round < METHODS; round++) {
        const enum form form = form_of(q4, round + 1); /* the other one of saved_prompt_is_opened */
        struct rig rig = {0};
        struct scratch scratch, fresh;
        rig_open(&rig, "llama", cpu_default());
        struct plan options = options_of(methods[round], KV_F16);
        set_form(&options, form);
        options.disk_directory = "one of two";
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                  rig.error);
        scratch_create(&scratch, SCRATCH_MEMORY);
        options.disk_directory = scratch.path;
        uint64_t written[4], alone;
        free(answered(&rig, &options, rig.tokens[0], 1000, 0, &written[0]));
        /* 672 tokens in common: whole blocks and, but for the last half of one, whole chunks. */
        int32_t other[PROMPT];
        memcpy(other, rig.tokens[0], 672 * sizeof *other);
        memcpy(other + 672, rig.tokens[1], 400 * sizeof *other);
        uint64_t common = q4 ? 640 : 672;
        float *found = answered(&rig, &options, other, 1072, common, &written[1]);
        float *again = answered(&rig, &options, other, 1072, 1071, &written[2]);
        free(answered(&rig, &options, rig.tokens[0], 1000, 999, &written[3])); /* as it was */
        scratch_create(&fresh, SCRATCH_MEMORY);
        options.disk_directory = fresh.path;
        float *expected = answered(&rig, &options, other, 1072, 0, &alone);
        if (!q4) assert_memory_equal(found, expected, STEPS * rig.width * sizeof *found);
        assert_same_likeliest(&rig, found, expected);
        assert_same_likeliest(&rig, again, expected);
        assert_int_equal(written[1], alone); /* the shared pages once more, and the new ones */
        assert_int_equal(written[2], 0);
        assert_int_equal(written[3], 0);
        /* A prompt that ends within a document only reads it. */
        memcpy(other, rig.tokens[0], 672 * sizeof *other);
        free(answered(&rig, &options, other, 672, q4 ? 640 : 671, &written[0]));
        assert_int_equal(written[0], 0);
        free(found);
        free(again);
        free(expected);
        scratch_destroy(&scratch);
        scratch_destroy(&fresh);
        rig_close(&rig);
    }
}

static void a_departing_prompt_is_saved(void **state) {
    (void)state;
    test_skip_part();
    departing_prompt_is_saved(false);
}

static void a_departing_prompt_is_saved_in_4_bits(void **state) {
    (void)state;
    test_skip_part();
    departing_prompt_is_saved(true);
}

/* A document saved by one method and opened by another: the other key index is built of its keys. */
static void another_method_opens_it(void **state) {
    (void)state;
    test_skip_part();
    for (size_t to = 0; to < METHODS; to++) {
        struct rig rig = {0};
        struct scratch scratch, fresh;
        uint64_t written, unused = 0;
        rig_open(&rig, "llama", cpu_default());
        struct plan from = options_of(methods[(to + 2) % METHODS], KV_F16),
                    options = options_of(methods[to], KV_F16);
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&fresh, SCRATCH_MEMORY);
        from.disk_directory = options.disk_directory = scratch.path;
        assert_ok(plan_host_bytes_min(&from, &rig.model->config, &from.host_bytes, &rig.error), rig.error);
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error),
                  rig.error);
        free(answered(&rig, &from, rig.tokens[0], DOCUMENT, 0, &written));
        /* Much that is new makes a document of the other kind. */
        float *found = answered(&rig, &options, rig.tokens[0], DOCUMENT + 4 * BLOCK, DOCUMENT, &written);
        float *again =
            answered(&rig, &options, rig.tokens[0], DOCUMENT + 4 * BLOCK, DOCUMENT + 4 * BLOCK - 1, &unused);
        options.disk_directory = fresh.path;
        float *expected = answered(&rig, &options, rig.tokens[0], DOCUMENT + 4 * BLOCK, 0, &unused);
        assert_memory_equal(found, expected, STEPS * rig.width * sizeof *found);
        assert_same_likeliest(&rig, again, expected);
        assert_true(written == unused || methods[to] == methods[(to + 2) % METHODS]);
        free(found);
        free(again);
        free(expected);
        scratch_destroy(&scratch);
        scratch_destroy(&fresh);
        rig_close(&rig);
    }
}

static void flip_byte(const struct scratch *scratch, const char *ending, double where) {
    DIR *folder = opendir(scratch->path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ending) != 0) continue;
        int file = open(scratch_name(scratch, entry->d_name), O_RDWR);
        unsigned char byte;
        uint64_t offset = (uint64_t)(where * (double)lseek(file, 0, SEEK_END));
        assert_int_equal(pread(file, &byte, 1, (off_t)offset), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, (off_t)offset), 1);
        close(file);
    }
    closedir(folder);
}

/* A page that is not what was written is never attended to, and the next prefill computes it anew. */
static void a_damaged_page_is_refused(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig = {0};
    struct scratch scratch;
    rig_open(&rig, "llama", cpu_default());
    scratch_create(&scratch, SCRATCH_DISK);
    struct plan options = options_of(&select_all, KV_F16);
    options.disk_directory = scratch.path;
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error), rig.error);
    struct engine *engine = make_engine(&rig, &options);
    sequence_destroy(prefilled(&rig, engine, 0, 1000));
    engine_destroy(engine);
    flip_byte(&scratch, ".pages", 0.5);

    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig.tokens[0], .token_count = 1000};
    engine = make_engine(&rig, &options);
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    assert_int_equal(engine_prefill(engine, sequence, &request, NULL, &rig.error), STATUS_DOCUMENT);
    assert_non_null(strstr(rig.error.message, "damaged"));
    sequence_destroy(sequence);
    engine_destroy(engine);

    engine = make_engine(&rig, &options);
    sequence = prefilled(&rig, engine, 0, 1000);
    assert_int_equal(sequence_reused_tokens(sequence), 0);
    sequence_destroy(sequence);
    engine_destroy(engine);
    scratch_destroy(&scratch);
    rig_close(&rig);
}

/* What reads every row cannot have them in other forms. */
static void scans_read_rows(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig = {0};
    struct engine *engine;
    rig_open(&rig, "llama", cpu_default());
    struct plan exact = options_of(&select_exact, KV_Q8);
    assert_int_equal(engine_create(&engine, rig.model, &exact, NULL, &rig.error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(rig.error.message, "select=exact reads keys as halves"));
    struct plan scans = options_of(&select_quest, KV_F16);
    scans.select.scan = scans.quantized_pages = true;
    scans.disk_directory = "none";
    scans.host_bytes = AMPLE_BYTES;
    assert_int_equal(engine_create(&engine, rig.model, &scans, NULL, &rig.error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(rig.error.message, "not 4-bit pages"));
    rig_close(&rig);
}

/* What is kept has lists, and those are of the budget: it grows by them, and a sequence keeps no more
 * than they hold. */
static void lists_of_chosen_rows_are_counted(void **state) {
    (void)state;
    test_skip_part();
    enum { FEW = 400, MANY = 900, LISTS = 8 * 2 /* rows at once, KV heads */ };
    for (size_t method = 1; method < METHODS; method++) {
        struct rig rig = {0};
        struct scratch scratch;
        uint64_t few, many;
        rig_open(&rig, "llama", cpu_default());
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct plan options = options_of(methods[method], KV_F16);
        options.disk_directory = scratch.path;
        options.key_index = PLAN_KEY_INDEX_RAM; /* on disk it would take less */
        options.select.keep = (struct select_keep){.tokens = MANY};
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &many, &rig.error), rig.error);
        options.select.keep = (struct select_keep){.tokens = FEW};
        assert_ok(plan_host_bytes_min(&options, &rig.model->config, &few, &rig.error), rig.error);
        assert_int_equal(many - few, LISTS * (MANY - FEW) * sizeof(uint32_t));
        char named[64];
        snprintf(named, sizeof named, "needs at least %llu:", (unsigned long long)few);
        options.host_bytes = few - 1;
        struct engine *refused;
        assert_int_equal(engine_create(&refused, rig.model, &options, NULL, &rig.error), STATUS_MEMORY);
        if (strstr(rig.error.message, named) == NULL) fail_msg("%s", rig.error.message);
        options.host_bytes = 1; /* not by its key index alone */
        assert_int_equal(engine_create(&refused, rig.model, &options, NULL, &rig.error), STATUS_MEMORY);
        if (strstr(rig.error.message, named) == NULL) fail_msg("%s", rig.error.message);
        options.host_bytes = few;
        struct engine *engine = make_engine(&rig, &options);
        struct sequence *sequence;
        assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
        const struct select_keep keeps[] = {{.tokens = MANY}, {.tokens = FEW}, {.tokens = FEW / 2}};
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(sequence_set_select(sequence, methods[method], keeps[i], &rig.error),
                             i == 0 ? STATUS_UNSUPPORTED : STATUS_OK);
        sequence_destroy(sequence);
        engine_destroy(engine);
        scratch_destroy(&scratch);
        rig_close(&rig);
    }
}

/* --loss has a number for each sequence, layer and KV head, receipts have none. */
static void what_the_dial_holds_is_counted(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig = {0};
    uint64_t with_receipt, with_dial;
    rig_open(&rig, "llama", cpu_default());
    struct plan options = options_of(&select_hash, KV_F16);
    options.select.receipt = true;
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &with_receipt, &rig.error), rig.error);
    options.select.loss = 0.05;
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &with_dial, &rig.error), rig.error);
    const struct dial_shape shape = {.layer_count = rig.model->config.layer_count,
                                     .kv_head_count = rig.model->config.kv_head_count,
                                     .sequence_capacity = options.sequence_capacity};
    assert_true(dial_bytes(&shape) >=
                shape.layer_count * shape.kv_head_count * shape.sequence_capacity * sizeof(double));
    assert_int_equal(with_dial - with_receipt, dial_bytes(&shape));
    rig_close(&rig);
}

/* Without a disk the budget is all there is. */
static void a_budget_without_a_disk_holds(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig = {0};
    rig_open(&rig, "llama", cpu_default());
    struct plan options = options_of(&select_all, KV_F16);
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error), rig.error);
    struct engine *engine = make_engine(&rig, &options);
    struct sequence *sequences[2];
    enum status status = STATUS_OK;
    const struct prefill_request request = {.tokens = rig.tokens[0], .token_count = PROMPT};
    for (size_t i = 0; i < 2; i++) {
        assert_ok(sequence_create(&sequences[i], engine, &rig.error), rig.error);
        if (status == STATUS_OK) status = engine_prefill(engine, sequences[i], &request, NULL, &rig.error);
    }
    assert_int_equal(status, STATUS_MEMORY);
    assert_non_null(strstr(rig.error.message, "--kv-host"));
    for (size_t i = 0; i < 2; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    options.host_bytes--;
    assert_int_equal(engine_create(&engine, rig.model, &options, NULL, &rig.error), STATUS_MEMORY);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits_at_any_budget),
        cmocka_unit_test(what_is_certain_is_prefetched),
        cmocka_unit_test(exact_at_any_budget),
        cmocka_unit_test(a_short_sequence_beside_long_ones),
        cmocka_unit_test(same_logits_at_any_budget_in_4_bits),
        cmocka_unit_test(same_logits_at_any_budget_in_both_forms),
        cmocka_unit_test(cutting_back_does_not_depend_on_the_budget_in_4_bits),
        cmocka_unit_test(first_layers_are_never_read_in_decode),
        cmocka_unit_test(first_layers_are_never_read_in_decode_in_4_bits),
        cmocka_unit_test(a_saved_prompt_is_opened),
        cmocka_unit_test(a_saved_prompt_is_opened_in_4_bits),
        cmocka_unit_test(a_departing_prompt_is_saved),
        cmocka_unit_test(a_departing_prompt_is_saved_in_4_bits),
        cmocka_unit_test(another_method_opens_it),
        cmocka_unit_test(what_follows_a_document_selects),
        cmocka_unit_test(a_damaged_page_is_refused),
        cmocka_unit_test(scans_read_rows),
        cmocka_unit_test(lists_of_chosen_rows_are_counted),
        cmocka_unit_test(what_the_dial_holds_is_counted),
        cmocka_unit_test(a_budget_without_a_disk_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
