/* The key index on disk against the key index in RAM, on tiny random models: the same logits, bit for bit, for every
 * selection that may have it there, at the least budget that there is, for one and several sequences, in pages of any
 * form, after cuts and after opening what was saved; what is damaged or cut off is refused; and budgets of a 64th of
 * the KV at a million tokens are accepted. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "engine/engine.h"
#include "lab/methods/methods.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"
#include "seed.h"

enum {
    LAYERS = 4,
    PROMPT = 1300,
    CONTEXT = 2048,
    STEPS = 8,
    SEQUENCES = 3,
    BLOCK = 96,
    AMPLE_BYTES = 1 << 28
};

static const struct select_method *const methods[] = {&select_quest, &select_meanstd, &select_hash,
                                                      &select_tree,  &select_cluster, &select_lowrank};
enum { METHODS = sizeof methods / sizeof methods[0] };
enum form { ROWS, Q4, MIXED, FORMS };

static struct rig {
    struct device *device;
    struct model *model;
    char *calibration; /* owned: its path */
    int32_t tokens[SEQUENCES][CONTEXT];
    size_t width;
    struct error error;
} rig;

static void rig_open(void) {
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.head_dimension = 32;
    tiny.layer_count = LAYERS;
    tiny.kv_head_count = 2;
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    tiny_model_load(&tiny, "key_index_disk", &device, &rig.device, &rig.model);
    rig.calibration = tiny_calibration_write(rig.model);
    rig.width = tiny.vocabulary_size;
    random_init(&random, 17);
    for (size_t s = 0; s < SEQUENCES; s++) tiny_model_tokens(&tiny, &random, rig.tokens[s], CONTEXT);
}

static void rig_close(void) {
    remove(rig.calibration);
    free(rig.calibration);
    model_destroy(rig.model);
    device_destroy(rig.device);
}

static struct plan options_of(const struct select_method *method, enum form form,
                              const struct scratch *scratch) {
    struct plan options = {.context_size = CONTEXT,
                           .sequence_capacity = 1,
                           .batch_size = BLOCK,
                           .k_type = KV_F16,
                           .v_type = KV_F16,
                           .select = select_options_default(),
                           .quantized_pages = form != ROWS,
                           .mixes_pages = form == MIXED,
                           .disk_directory = scratch->path};
    options.select.method = method;
    options.select.dense_layers = 1;
    options.select.recent = 32;
    options.select.leaf = KV_CHUNK_TOKENS;
    options.select.keep = (struct select_keep){.tokens = 320};
    if (form == MIXED) options.fractions = (struct page_fractions){.layer_count = LAYERS, .sixteenths = {7, 12, 16, 0}};
    return options;
}

static void set_disk(struct plan *options) {
    options->key_index = PLAN_KEY_INDEX_DISK;
    options->host_bytes = 0;
    assert_ok(plan_host_bytes_min(options, &rig.model->config, &options->host_bytes, &rig.error), rig.error);
}

/* The same with room for the key index of two layers, so that one may be chosen for a layer ahead. */
static void set_disk_of_two(struct plan *options) {
    struct kv_cache_config cache;
    set_disk(options);
    assert_ok(plan_cache_config(options, &rig.model->config, &cache, &rig.error), rig.error);
    assert_int_equal(cache.key_index_places, 1);
    cache.key_index_places = 2;
    options->host_bytes = kv_tier_bytes_min(&cache);
    assert_ok(plan_cache_config(options, &rig.model->config, &cache, &rig.error), rig.error);
    assert_true(cache.key_index_places != 1);
}

static struct engine *make_engine(const struct plan *options) {
    struct engine *engine;
    assert_ok(engine_create(&engine, rig.model, options, NULL, &rig.error), rig.error);
    return engine;
}

static struct sequence *prefilled(struct engine *engine, size_t index, size_t count) {
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig.tokens[index], .token_count = count};
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig.error), rig.error);
    return sequence;
}

/* [STEPS][count][width]; the caller frees. */
static float *steps(struct engine *engine, struct sequence *const *sequences, size_t count) {
    float *all = calloc(STEPS * count * rig.width, sizeof *all);
    assert_non_null(all);
    for (size_t step = 0; step < STEPS; step++) {
        int32_t tokens[SEQUENCES];
        const float *logits;
        for (size_t i = 0; i < count; i++)
            tokens[i] = rig.tokens[i][(sequence_length(sequences[i]) * 7 + step) % CONTEXT];
        assert_ok(engine_step(engine, sequences, tokens, count, &logits, &rig.error), rig.error);
        memcpy(all + step * count * rig.width, logits, count * rig.width * sizeof *all);
    }
    return all;
}

static float *answer(const struct plan *options, const size_t *lengths, size_t count,
                     struct kv_tier_statistics *did) {
    struct engine *engine = make_engine(options);
    struct sequence *sequences[SEQUENCES];
    for (size_t i = 0; i < count; i++) sequences[i] = prefilled(engine, i, lengths[i]);
    float *found = steps(engine, sequences, count);
    *did = engine_tier_statistics(engine);
    for (size_t i = 0; i < count; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    return found;
}

static void set_random(struct plan *options, struct random *random) {
    options->prefetches = random_below(random, 2) == 0;
    options->select.page = 8U << random_below(random, 4);
    options->select.rank = random_below(random, 2) == 0 ? TREE_BOUND : TREE_MEAN_DEVIATION;
    if (random_below(random, 2) == 0) options->select.group = SELECT_GROUP_SOFTMAX;
    if (options->select.method == &select_tree) {
        options->select.leaf = 8U << random_below(random, 4);
        /* pages by their best leaf, and no nodes above */
        if (random_below(random, 3) == 0) options->select.take = KV_CHUNK_TOKENS;
    }
    if (options->select.method == &select_hash || options->select.method == &select_lowrank ||
        options->select.method == &select_cluster)
        options->select.page = 0;
    options->select.receipt = random_below(random, 3) == 0;
    options->select.mass_bound = options->select.method == &select_quest && random_below(random, 2) == 0;
}

/* RAM for the key index, and for all KV, against the least budget without it. */
static void same_logits(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(20261123));
    for (size_t round = 0; round < (size_t)METHODS * FORMS; round++) {
        if (!test_takes_next()) continue;
        struct scratch scratch, ample;
        struct kv_tier_statistics in_ram, on_disk;
        size_t lengths[SEQUENCES];
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&ample, SCRATCH_MEMORY);
        struct plan options = options_of(methods[round % METHODS], round / METHODS, &ample);
        const size_t count = 1 + round % SEQUENCES;
        options.sequence_capacity = count;
        for (size_t i = 0; i < count; i++) lengths[i] = 700 + random_below(&random, PROMPT - 700);
        set_random(&options, &random);
        options.host_bytes = AMPLE_BYTES;
        float *expected = answer(&options, lengths, count, &in_ram);
        options.disk_directory = scratch.path;
        (random_below(&random, 2) == 0 ? set_disk : set_disk_of_two)(&options);
        float *found = answer(&options, lengths, count, &on_disk);
        if (memcmp(found, expected, STEPS * count * rig.width * sizeof *found) != 0)
            fail_msg("select=%s, form %d, %zu sequences: other logits", methods[round % METHODS]->name,
                     (int)(round / METHODS), count);
        assert_int_equal(in_ram.key_index_read_bytes, 0);
        assert_true(on_disk.key_index_read_bytes > 0 && on_disk.read_pages > 0);
        assert_true(on_disk.host_bytes <= options.host_bytes);
        free(expected);
        free(found);
        scratch_destroy(&scratch);
        scratch_destroy(&ample);
    }
}

/* A layer that is decided before its rows are there chooses of the chunk that grows too. */
static void decided_a_layer_ahead(void **state) {
    (void)state;
    test_skip_part();
    struct scratch scratch, ample;
    struct kv_tier_statistics did;
    const size_t lengths[] = {1270};
    scratch_create(&scratch, SCRATCH_MEMORY);
    scratch_create(&ample, SCRATCH_MEMORY);
    struct plan options = options_of(&select_hash, ROWS, &ample);
    options.select.recent = 1;
    options.select.reuse.kind = REUSE_SIMILARITY;
    options.select.reuse.labels = REUSE_SPECULATED;
    options.select.reuse.eta = 1; /* as good as never reused */
    options.select.reuse.power = 0;
    options.prefetches = true;
    options.host_bytes = AMPLE_BYTES;
    float *expected = answer(&options, lengths, 1, &did);
    options.disk_directory = scratch.path;
    for (size_t places = 1; places <= 2; places++) {
        (places == 1 ? set_disk : set_disk_of_two)(&options);
        float *found = answer(&options, lengths, 1, &did);
        assert_true(did.key_index_read_bytes > 0);
        assert_memory_equal(found, expected, STEPS * rig.width * sizeof *found);
        free(found);
    }
    free(expected);
    scratch_destroy(&scratch);
    scratch_destroy(&ample);
}

/* Cuts into full chunks, at their ends and into the one that grows, each followed by more of another text. */
static float *after_cuts(const struct plan *options) {
    static const size_t cuts[] = {1290, 1216, 1152, 1000, 2};
    struct engine *engine = make_engine(options);
    struct sequence *sequence = prefilled(engine, 0, PROMPT);
    float *all = calloc(sizeof cuts / sizeof cuts[0] * STEPS * rig.width, sizeof *all);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        sequence_truncate(sequence, cuts[i]);
        const struct prefill_request request = {.tokens = rig.tokens[1 + i % 2],
                                                .token_count = 150 + 200 * i};
        assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig.error), rig.error);
        float *found = steps(engine, &sequence, 1);
        memcpy(all + i * STEPS * rig.width, found, STEPS * rig.width * sizeof *found);
        free(found);
    }
    sequence_destroy(sequence);
    engine_destroy(engine);
    return all;
}

static void cutting_back(void **state) {
    (void)state;
    test_skip_part();
    for (size_t round = 0; round < METHODS; round++) {
        struct scratch scratch, ample;
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&ample, SCRATCH_MEMORY);
        struct plan options = options_of(methods[round], round % 2 == 0 ? ROWS : Q4, &ample);
        options.host_bytes = AMPLE_BYTES;
        if (methods[round] == &select_quest) options.select.page = 8;
        if (methods[round] == &select_tree) options.select.leaf = 16;
        float *expected = after_cuts(&options);
        options.disk_directory = scratch.path;
        set_disk(&options);
        float *found = after_cuts(&options);
        if (memcmp(found, expected, 5 * STEPS * rig.width * sizeof *found) != 0)
            fail_msg("select=%s: other logits", methods[round]->name);
        free(expected);
        free(found);
        scratch_destroy(&scratch);
        scratch_destroy(&ample);
    }
}

/* The key index that was saved is the same: nodes above chunks too, which a search may not have come to. */
static void assert_same_files(const struct scratch *a, const struct scratch *b, const char *name) {
    enum { BYTES_MAX = 1 << 22 };
    char *bytes[2];
    size_t sizes[2];
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(scratch_name(i == 0 ? a : b, name), "rb");
        assert_non_null(file);
        bytes[i] = malloc(BYTES_MAX);
        assert_non_null(bytes[i]);
        sizes[i] = fread(bytes[i], 1, BYTES_MAX, file);
        fclose(file);
    }
    assert_true(sizes[0] == sizes[1] && sizes[0] > 0 && sizes[0] < BYTES_MAX);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* A prompt that was saved, again; a longer one; one that departs, for which a part is copied: as with the key index in
 * RAM. */
static void saved_prompts(void **state) {
    (void)state;
    test_skip_part();
    static const size_t lengths[] = {1000, 1000, 1200, 900, 1200};
    for (size_t round = 0; round < METHODS; round++) {
        struct scratch scratches[2];
        float *found[2][sizeof lengths / sizeof lengths[0]];
        for (size_t place = 0; place < 2; place++) {
            scratch_create(&scratches[place], SCRATCH_MEMORY);
            struct plan options =
                options_of(methods[round], round % 2 == 0 ? MIXED : ROWS, &scratches[place]);
            options.host_bytes = AMPLE_BYTES;
            if (methods[round] == &select_tree) options.select.leaf = 16;
            if (place == 1) set_disk(&options);
            for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
                struct engine *engine = make_engine(&options);
                struct sequence *sequence = prefilled(engine, 0, lengths[i]);
                assert_string_equal(sequence_notice(sequence), "");
                assert_true((sequence_reused_tokens(sequence) > 0) == (i > 0));
                found[place][i] = steps(engine, &sequence, 1);
                sequence_destroy(sequence);
                engine_destroy(engine);
            }
        }
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            if (memcmp(found[0][i], found[1][i], STEPS * rig.width * sizeof(float)) != 0)
                fail_msg("select=%s, prompt %zu: other logits", methods[round]->name, i);
            free(found[0][i]);
            free(found[1][i]);
        }
        assert_same_files(&scratches[0], &scratches[1], "1.metadata");
        for (size_t place = 0; place < 2; place++) scratch_destroy(&scratches[place]);
    }
}

/* With the budget of the others, a document whose key index is of another kind is not used. */
static void another_method_computes(void **state) {
    (void)state;
    test_skip_part();
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan options = options_of(&select_quest, ROWS, &scratch);
    set_disk(&options);
    struct engine *engine = make_engine(&options);
    sequence_destroy(prefilled(engine, 0, 1000));
    engine_destroy(engine);
    options = options_of(&select_meanstd, ROWS, &scratch);
    set_disk(&options);
    engine = make_engine(&options);
    struct sequence *sequence = prefilled(engine, 0, 1000);
    assert_int_equal(sequence_reused_tokens(sequence), 0);
    sequence_destroy(sequence);
    engine_destroy(engine);
    scratch_destroy(&scratch);
}

/* ---- budgets ---- */

static struct model_config config_of(size_t layers, size_t heads, size_t dimension) {
    return (struct model_config){.layer_count = layers,
                                 .head_count = heads * 4,
                                 .kv_head_count = heads,
                                 .k_dimension = dimension,
                                 .v_dimension = dimension,
                                 .context_length = 1 << 20,
                                 .has_rope = true};
}

/* llama-1b, in 4 bits, and the 8B of the family, as leoam has it on disk: a 64th of the KV in f16 holds what a million
 * tokens need, once the key index is on disk, and does not before. */
static void a_sixty_fourth_of_a_million_tokens(void **state) {
    (void)state;
    static const struct {
        size_t layers, heads, dimension;
        const char *set;
    } shapes[] = {{16, 8, 64, "codec=q4"}, {32, 8, 128, NULL}, {28, 8, 128, NULL}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct plan plan = {.sequence_capacity = 1, .context_size = 1 << 20};
        struct kv_cache_config cache;
        const struct model_config config = config_of(shapes[i].layers, shapes[i].heads, shapes[i].dimension);
        assert_ok(plan_set_disk(&plan, "kv", 2, 0, &rig.error), rig.error);
        assert_ok(plan_set_axes(&plan, "leoam", shapes[i].set, "2048", &rig.error), rig.error);
        plan.has_budget = true;
        plan.budget_bytes =
            shapes[i].layers * shapes[i].heads * shapes[i].dimension * 4 * (uint64_t)(1 << 20) / 64;
        assert_ok(plan_set_host_bytes(&plan, &config, &rig.error), rig.error);
        assert_ok(plan_cache_config(&plan, &config, &cache, &rig.error), rig.error);
        assert_true(cache.key_index_on_disk);
        const uint64_t on_disk = kv_tier_bytes_min(&cache);
        cache.key_index_on_disk = false;
        const uint64_t in_ram = kv_tier_bytes_min(&cache);
        print_message(
            "%zu layers, %zu KV heads of %zu: %.0f MiB; needed %.0f, with the key index in RAM %.0f\n",
            shapes[i].layers, shapes[i].heads, shapes[i].dimension, (double)plan.host_bytes / (1 << 20),
            (double)on_disk / (1 << 20), (double)in_ram / (1 << 20));
        assert_true(on_disk <= plan.host_bytes && in_ram > plan.host_bytes);
        plan_deinit(&plan);
    }
}

/* Where RAM holds it, it is there; codes by a codebook have it there always. */
static void what_fits_stays(void **state) {
    (void)state;
    struct scratch scratch;
    struct kv_cache_config cache;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan options = options_of(&select_quest, ROWS, &scratch);
    options.host_bytes = AMPLE_BYTES;
    assert_ok(plan_cache_config(&options, &rig.model->config, &cache, &rig.error), rig.error);
    assert_false(cache.key_index_on_disk);
    options.host_bytes = 0;
    assert_ok(plan_host_bytes_min(&options, &rig.model->config, &options.host_bytes, &rig.error), rig.error);
    assert_ok(plan_cache_config(&options, &rig.model->config, &cache, &rig.error), rig.error);
    assert_false(cache.key_index_on_disk);
    options.host_bytes--;
    assert_ok(plan_cache_config(&options, &rig.model->config, &cache, &rig.error), rig.error);
    assert_true(cache.key_index_on_disk);
    options.key_index = PLAN_KEY_INDEX_RAM;
    struct engine *engine;
    assert_int_equal(engine_create(&engine, rig.model, &options, NULL, &rig.error), STATUS_MEMORY);
    options = options_of(&select_product, ROWS, &scratch);
    options.host_bytes = AMPLE_BYTES;
    options.key_index = PLAN_KEY_INDEX_DISK;
    assert_int_equal(engine_create(&engine, rig.model, &options, NULL, &rig.error), STATUS_UNSUPPORTED);
    scratch_destroy(&scratch);
}

static int setup(void **state) {
    (void)state;
    rig_open();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    rig_close();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits),
        cmocka_unit_test(decided_a_layer_ahead),
        cmocka_unit_test(cutting_back),
        cmocka_unit_test(saved_prompts),
        cmocka_unit_test(another_method_computes),
        cmocka_unit_test(a_sixty_fourth_of_a_million_tokens),
        cmocka_unit_test(what_fits_stays),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
