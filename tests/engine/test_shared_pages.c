/* Sequences of one engine over the same document: what one has in memory of it the others do not read again, it is
 * there once, and each computes what it computes alone, whatever happens to the others. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "document_rig.h"
#include "lab/methods/methods.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { DOCUMENT = 970, CONTEXT = 1280, SEQUENCES = 3, OPERATIONS = 100, STEPS_MAX = 5, SUFFIX_MAX = 70 };

struct run {
    struct device *device;
    struct model *model;
    struct scratch scratch;
    struct random random;
    struct engine *shared, *plain; /* plain: everything in RAM, nothing saved */
    struct sequence *sequences[SEQUENCES], *mirrors[SEQUENCES];
    int32_t document[DOCUMENT];
    uint64_t host_bytes;
    size_t width, full_count; /* full: the key index of another token found no memory */
};

static struct plan plan_of(const struct select_method *method, enum plan_suffix suffix) {
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES,
                        .batch_size = 64,
                        .segment_size = 128,
                        .select = select_options_default(),
                        .suffix = suffix};
    plan.select.method = method;
    plan.select.dense_layers = 0;
    plan.select.recent = 32;
    plan.select.leaf = 16;
    if (method != &select_all) plan.select.keep = (struct select_keep){.tokens = 192};
    return plan;
}

static void save_document(struct run *run) {
    struct error error;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = run->document, .token_count = DOCUMENT};
    const float *logits;
    assert_ok(sequence_create(&sequence, run->shared, &error), error);
    assert_ok(engine_prefill(run->shared, sequence, &request, &logits, &error), error);
    assert_ok(sequence_flush(sequence, &error), error);
    sequence_destroy(sequence);
}

/* host_bytes: beyond the least; below it key index is pooled. */
static void run_open(struct run *run, const struct select_method *method, int64_t host_bytes,
                     enum plan_suffix suffix) {
    struct error error;
    char path[64];
    *run = (struct run){0};
    random_init(&run->random, test_seed(19));
    const struct device_options device = {.thread_count = 1,
                                          .mask = cpu_default()};
    assert_ok(device_cpu_create(&run->device, &device, &error), error);
    const struct tiny_model tiny = tiny_model_default("llama");
    tiny_model_write(&tiny, tiny_model_path("shared_pages", path, sizeof path));
    assert_ok(model_load(&run->model, path, run->device, &error), error);
    unlink(path);
    run->width = tiny.vocabulary_size;
    for (size_t i = 0; i < DOCUMENT; i++)
        run->document[i] = (int32_t)random_below(&run->random, tiny.vocabulary_size);
    struct plan plan = plan_of(method, suffix);
    assert_ok(engine_create(&run->plain, run->model, &plan, NULL, &error), error);
    scratch_create(&run->scratch, SCRATCH_MEMORY);
    plan.disk_directory = run->scratch.path;
    plan.document_name = "shared";
    assert_ok(plan_host_bytes_min(&plan, &run->model->config, &plan.host_bytes, &error), error);
    plan.host_bytes += (uint64_t)host_bytes;
    plan.pools_key_index = host_bytes < 0;
    run->host_bytes = plan.host_bytes;
    assert_ok(engine_create(&run->shared, run->model, &plan, NULL, &error), error);
    save_document(run);
}

static void close_sequence(struct run *run, size_t i) {
    sequence_destroy(run->sequences[i]);
    sequence_destroy(run->mirrors[i]);
    run->sequences[i] = run->mirrors[i] = NULL;
}

static void run_close(struct run *run) {
    for (size_t i = 0; i < SEQUENCES; i++) close_sequence(run, i);
    engine_destroy(run->shared);
    engine_destroy(run->plain);
    model_destroy(run->model);
    device_destroy(run->device);
    scratch_destroy(&run->scratch);
}

/* Of both: the same logits.  Where memory lacks the sequence ends. */
static void compare(struct run *run, size_t i, enum status status, const float *logits, const float *expected,
                    const struct error *error) {
    if (status == STATUS_MEMORY) {
        run->full_count++;
        close_sequence(run, i);
        return;
    }
    assert_ok(status, *error);
    assert_memory_equal(expected, logits, run->width * sizeof *logits);
}

static void prefill(struct run *run, size_t i, const int32_t *tokens, size_t count) {
    struct error error;
    const struct prefill_request request = {.tokens = tokens, .token_count = count};
    const float *logits;
    float expected[512];
    assert_true(run->width <= 512);
    assert_ok(engine_prefill(run->plain, run->mirrors[i], &request, &logits, &error), error);
    memcpy(expected, logits, run->width * sizeof *logits);
    enum status status = engine_prefill(run->shared, run->sequences[i], &request, &logits, &error);
    compare(run, i, status == STATUS_FULL ? STATUS_MEMORY : status, logits, expected, &error);
}

static void step(struct run *run, size_t i) {
    struct error error;
    const int32_t token = (int32_t)random_below(&run->random, run->width);
    const float *logits;
    float expected[512];
    if (run->sequences[i] == NULL) return;
    assert_ok(engine_step(run->plain, &run->mirrors[i], &token, 1, &logits, &error), error);
    memcpy(expected, logits, run->width * sizeof *logits);
    enum status status = engine_step(run->shared, &run->sequences[i], &token, 1, &logits, &error);
    compare(run, i, status, logits, expected, &error);
}

/* A prompt of the document's first tokens and some of its own. */
static void open_sequence(struct run *run, size_t i, size_t prefix, size_t suffix) {
    struct error error;
    int32_t tokens[DOCUMENT + SUFFIX_MAX];
    memcpy(tokens, run->document, prefix * sizeof *tokens);
    for (size_t j = 0; j < suffix; j++) tokens[prefix + j] = (int32_t)random_below(&run->random, run->width);
    assert_ok(sequence_create(&run->sequences[i], run->shared, &error), error);
    assert_ok(sequence_create(&run->mirrors[i], run->plain, &error), error);
    prefill(run, i, tokens, prefix + suffix);
    if (run->sequences[i] == NULL) return;
    assert_in_range(sequence_reused_tokens(run->sequences[i]), prefix - prefix % 64,
                    prefix + suffix); /* others may have begun like it */
}

static void cut(struct run *run, size_t i) {
    const uint64_t length = random_below(&run->random, sequence_length(run->sequences[i])) + 1;
    int32_t token = (int32_t)random_below(&run->random, run->width);
    sequence_truncate(run->sequences[i], length);
    sequence_truncate(run->mirrors[i], length);
    prefill(run, i, &token, 1);
}

/* Reads ahead, so many times; whether there is more to read. */
static bool warm(struct run *run, size_t i, size_t times) {
    struct error error;
    bool more = true;
    for (size_t n = 0; n < times && more; n++) assert_ok(sequence_warm(run->sequences[i], &more, &error), error);
    return more;
}

static void operate(struct run *run) {
    const size_t i = random_below(&run->random, SEQUENCES);
    if (run->sequences[i] == NULL) {
        const size_t prefix = 64 + random_below(&run->random, DOCUMENT - 63);
        open_sequence(run, i, prefix, 1 + random_below(&run->random, SUFFIX_MAX));
        return;
    }
    const size_t room = CONTEXT - (size_t)sequence_length(run->sequences[i]);
    const size_t what = random_below(&run->random, 7);
    if (what == 0 || room <= STEPS_MAX)
        close_sequence(run, i);
    else if (what == 6)
        (void)warm(run, i, random_below(&run->random, 4));
    else if (what == 1)
        cut(run, i);
    else
        for (size_t count = 1 + random_below(&run->random, STEPS_MAX); count > 0; count--) step(run, i);
}

static void test_as_alone(void **state) {
    static const struct select_method *const methods[] = {&select_all, &select_tree, &select_quest};
    struct run run;
    (void)state;
    for (size_t method = 0; method < sizeof methods / sizeof *methods; method++)
        for (size_t budget = methods[method] == &select_all; budget < 4; budget++) {
            static const int64_t host_bytes[] = {-(1 << 15), 0, 1 << 16, RIG_AMPLE_BYTES};
            run_open(&run, methods[method], host_bytes[budget], SUFFIX_DENSE);
            for (size_t i = 0; i < OPERATIONS; i++) operate(&run);
            assert_true(run.full_count == 0 || budget == 0);
            run_close(&run);
        }
}

/* The second one reads nothing, and takes the memory of what it adds. */
static void test_bytes(void **state) {
    struct run run;
    (void)state;
    run_open(&run, &select_tree, RIG_AMPLE_BYTES, SUFFIX_DENSE);
    open_sequence(&run, 0, DOCUMENT, 20);
    for (size_t i = 0; i < 4; i++) step(&run, 0);
    const uint64_t first = engine_kv_used_bytes(run.shared);
    const uint64_t pages = engine_tier_statistics(run.shared).read_pages;
    const struct model_config *config = &run.model->config;
    open_sequence(&run, 1, DOCUMENT, 20);
    assert_in_range(engine_tier_statistics(run.shared).read_pages - pages, 0,
                    config->layer_count * config->kv_head_count); /* the tail, where rows are appended */
    const uint64_t second = engine_kv_used_bytes(run.shared) - first;
    assert_in_range(second, 1, first / 10); /* its last chunk, and the one that grows */
    step(&run, 1);
    const uint64_t before = engine_tier_statistics(run.shared).read_pages;
    close_sequence(&run, 0);
    step(&run, 1); /* what it shared stays */
    assert_int_equal(engine_tier_statistics(run.shared).read_pages, before);
    close_sequence(&run, 1);
    assert_int_equal(engine_kv_used_bytes(run.shared), 0);
    run_close(&run);
}

/* A question behind the document that chooses, and some steps; ahead: with what can be read ahead before them. */
static struct kv_tier_statistics ask_choosing(struct run *run, bool ahead, float *logits) {
    enum { STEPS = 8 };
    struct error error;
    struct sequence *sequence;
    const float *found;
    int32_t tokens[DOCUMENT + 1];
    bool more = ahead;
    memcpy(tokens, run->document, sizeof run->document);
    tokens[DOCUMENT] = 3;
    const struct prefill_request request = {.tokens = tokens, .token_count = DOCUMENT + 1};
    assert_ok(sequence_create(&sequence, run->shared, &error), error);
    assert_ok(engine_prefill(run->shared, sequence, &request, &found, &error), error);
    while (more) assert_ok(sequence_warm(sequence, &more, &error), error);
    const struct kv_tier_statistics before = engine_tier_statistics(run->shared);
    for (int32_t i = 0; i < STEPS; i++) {
        assert_ok(engine_step(run->shared, &sequence, &i, 1, &found, &error), error);
        memcpy(logits + (size_t)i * run->width, found, run->width * sizeof *logits);
    }
    struct kv_tier_statistics after = engine_tier_statistics(run->shared);
    assert_true(after.host_bytes <= run->host_bytes);
    after.misses -= before.misses;
    after.prefetched = before.prefetched; /* by reading ahead: `prefetch` is off */
    sequence_destroy(sequence);
    return after;
}

/* What was read ahead is not read again, and changes nothing.  Where there is no room it reads less. */
static void test_reads_ahead(void **state) {
    static const int64_t budgets[] = {RIG_AMPLE_BYTES, 1 << 16, 0};
    static float cold[8 * 512], warm[8 * 512];
    struct run run;
    (void)state;
    for (size_t budget = 0; budget < 3; budget++) {
        run_open(&run, &select_tree, budgets[budget], SUFFIX_SELECTS);
        assert_true(run.width <= 512);
        const struct kv_tier_statistics first = ask_choosing(&run, false, cold);
        const struct kv_tier_statistics second = ask_choosing(&run, true, warm);
        assert_memory_equal(cold, warm, 8 * run.width * sizeof *warm);
        if (budget == 0) {
            assert_in_range(second.prefetched - first.prefetched, 1,
                            DOCUMENT / 64 * run.model->config.layer_count * run.model->config.kv_head_count);
            assert_true(first.misses > 0);
            assert_int_equal(second.misses, 0);
        }
        run_close(&run);
    }
}

/* Key index of nobody is left, and a cut needs a block of its own. */
static void test_cut_when_full(void **state) {
    struct run run;
    struct error error;
    struct sequence *other;
    int32_t tokens[64] = {0};
    const float *logits;
    enum status status = STATUS_OK;
    (void)state;
    run_open(&run, &select_quest, -(1 << 15), SUFFIX_DENSE);
    for (size_t i = 0; i < 2; i++) open_sequence(&run, i, DOCUMENT, 20);
    assert_ok(sequence_create(&other, run.shared, &error), error);
    const struct prefill_request request = {.tokens = tokens, .token_count = 64};
    while (status == STATUS_OK) status = engine_prefill(run.shared, other, &request, &logits, &error);
    assert_int_equal(status, STATUS_MEMORY);
    sequence_truncate(run.sequences[0], 100);
    sequence_truncate(run.mirrors[0], 100);
    prefill(&run, 0, tokens, 1);
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 3; j++) step(&run, i);
    assert_int_equal(run.full_count, 0);
    sequence_destroy(other);
    run_close(&run);
}

/* Pages in 4 bits, and a key index on disk: three prompts with a beginning in common, alive at once. */
static void test_forms(void **state) {
    (void)state;
    for (enum rig_pages pages = RIG_ROWS; pages <= RIG_INDEX_APART; pages++) {
        struct document_rig rig;
        struct error error;
        struct engine *engine;
        struct sequence *sequences[RIG_PROMPTS] = {NULL};
        document_rig_open(&rig, &select_tree, pages);
        struct plan plan = rig.options;
        plan.sequence_capacity = RIG_PROMPTS;
        plan.host_bytes = RIG_AMPLE_BYTES;
        scratch_empty(&rig.scratch);
        assert_ok(engine_create(&engine, rig.model, &plan, NULL, &error), error);
        for (enum rig_prompt prompt = RIG_FIRST; prompt < RIG_PROMPTS; prompt++) {
            const struct prefill_request request = {.tokens = rig.tokens[prompt],
                                                    .token_count = rig_prompt_count(prompt)};
            const float *logits;
            assert_ok(sequence_create(&sequences[prompt], engine, &error), error);
            assert_ok(engine_prefill(engine, sequences[prompt], &request, &logits, &error), error);
            assert_memory_equal(logits, rig.expected[prompt], RIG_WIDTH * sizeof *logits);
            assert_ok(sequence_flush(sequences[prompt], &error), error);
            assert_true(prompt == RIG_FIRST || sequence_reused_tokens(sequences[prompt]) >= 128);
        }
        sequence_destroy(sequences[RIG_FIRST]);
        for (size_t i = 0; i < RIG_STEPS; i++)
            for (enum rig_prompt prompt = RIG_LONGER; prompt < RIG_PROMPTS; prompt++) {
                const int32_t token = (int32_t)(i + 3);
                const float *logits;
                assert_ok(engine_step(engine, &sequences[prompt], &token, 1, &logits, &error), error);
                assert_memory_equal(logits, rig.expected[prompt] + (1 + i) * RIG_WIDTH,
                                    RIG_WIDTH * sizeof *logits);
            }
        sequence_destroy(sequences[RIG_LONGER]);
        sequence_destroy(sequences[RIG_DEPARTS]);
        engine_destroy(engine);
        document_rig_close(&rig);
    }
}

static void ask(struct engine *engine, struct sequence *sequence, const int32_t *tokens, size_t count,
                float *logits) {
    struct error error;
    const struct prefill_request request = {.tokens = tokens, .token_count = count};
    const float *found;
    assert_ok(engine_prefill(engine, sequence, &request, &found, &error), error);
    memcpy(logits, found, RIG_WIDTH * sizeof *logits);
}

/* A saved prompt of 300 tokens.  Its last chunk, of 44 rows, is a tail; whoever goes on fills it, and then it is 4 bits
 * in memory, whose rows are not those of the tail.  first: somebody goes on.  Logits of another prompt behind it. */
static void ask_behind_tail(struct document_rig *rig, bool first, float *logits) {
    enum { TAIL_AT = 300, MORE = 60, AFTER = 20 };
    struct error error;
    struct engine *engine;
    struct sequence *saved, *writer = NULL, *reader;
    struct plan plan = rig->options;
    plan.context_size = 2 * RIG_TOKENS;
    plan.sequence_capacity = 2;
    plan.host_bytes = RIG_AMPLE_BYTES;
    plan.suffix = SUFFIX_DENSE;
    int32_t tokens[TAIL_AT + MORE];
    memcpy(tokens, rig->tokens[RIG_LONGER], TAIL_AT * sizeof *tokens);
    memcpy(tokens + TAIL_AT, rig->tokens[RIG_BEFORE], MORE * sizeof *tokens);
    scratch_empty(&rig->scratch);
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &error), error);
    assert_ok(sequence_create(&saved, engine, &error), error);
    ask(engine, saved, tokens, TAIL_AT, logits);
    assert_ok(sequence_flush(saved, &error), error);
    sequence_destroy(saved);
    if (first) {
        assert_ok(sequence_create(&writer, engine, &error), error);
        ask(engine, writer, tokens, TAIL_AT + 1, logits); /* it has the document, and no commit of more */
        for (size_t i = 0; i < MORE; i++) {
            const float *ignored;
            assert_ok(engine_step(engine, &writer, &tokens[i], 1, &ignored, &error), error);
        }
        assert_ok(sequence_set_select(writer, &select_all, select_keep_all(), &error), error);
        const float *ignored;
        assert_ok(engine_step(engine, &writer, &tokens[0], 1, &ignored, &error), error); /* reads rows */
    }
    assert_ok(sequence_create(&reader, engine, &error), error);
    tokens[TAIL_AT] ^= 1;
    ask(engine, reader, tokens, TAIL_AT + AFTER, logits);
    assert_int_equal(sequence_reused_tokens(reader), TAIL_AT);
    sequence_destroy(reader);
    sequence_destroy(writer);
    engine_destroy(engine);
}

static void test_tail(void **state) {
    struct document_rig rig;
    float alone[RIG_WIDTH], beside[RIG_WIDTH];
    (void)state;
    document_rig_open(&rig, &select_tree, RIG_MIXED);
    ask_behind_tail(&rig, false, alone);
    ask_behind_tail(&rig, true, beside);
    assert_memory_equal(alone, beside, sizeof alone);
    document_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_alone), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_reads_ahead), cmocka_unit_test(test_cut_when_full),
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
