/* K and V computed again from the layers' inputs (attention/rebuild.h): the same logits, bit for bit, as with all KV in
 * memory, for every family, weight type and level of instructions but AMX and NEON; saved and opened again; and without
 * the inputs where they are damaged, missing or end early. */
#include "testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "model/weight_stream.h"

enum { PROMPT = 292, MORE = 40, STEPS = 3, CONTEXT = 480, BLOCK = 96, WIDTH_MAX = 512 };
enum { LONG = 1600, LONG_CONTEXT = 1664, LONG_HOST_BYTES = 8 << 20 }; /* three whole ranges of attention */
enum { SHORTER = LONG - 100, ROOM_BYTES = 48 << 20 };                 /* that all of it fits into */

struct rig {
    struct device *device;
    struct model *model;
    struct scratch scratch;
    struct error error;
    size_t width;
    int32_t tokens[LONG + STEPS];
};

static void rig_open(struct rig *rig, const struct tiny_model *tiny, cpu_mask mask) {
    const struct device_options device = {.thread_count = 1, .mask = mask};
    struct random random;
    memset(rig, 0, sizeof *rig);
    tiny_model_load(tiny, "rebuild", &device, &rig->device, &rig->model);
    rig->width = tiny->vocabulary_size;
    assert_true(rig->width <= WIDTH_MAX);
    random_init(&random, 8);
    tiny_model_tokens(tiny, &random, rig->tokens, LONG + STEPS);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
    scratch_destroy(&rig->scratch);
}

static struct plan plan_of(const struct rig *rig, enum kv_type type) {
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 1,
                        .batch_size = BLOCK,
                        .segment_size = 2 * BLOCK,
                        .k_type = type,
                        .v_type = type,
                        .disk_directory = rig->scratch.path,
                        .document_name = "rebuild",
                        .rebuilds = true};
    return plan;
}

struct answer {
    float logits[1 + STEPS][WIDTH_MAX];
    uint64_t reused;
    char notice[256], refusal[256];
    struct rebuild_statistics rebuilt;
    struct kv_tier_statistics tier;
};

/* As the engine has it, which knows the form of inputs. */
static uint64_t least_bytes(struct rig *rig, const struct plan *plan) {
    struct plan too_small = *plan;
    struct engine *engine;
    unsigned long long least = 0;
    too_small.host_bytes = 1;
    assert_int_equal(engine_create(&engine, rig->model, &too_small, NULL, &rig->error), STATUS_MEMORY);
    if (sscanf(rig->error.message, "--kv-host: 1 bytes, but this context needs at least %llu", &least) != 1)
        fail_msg("%s", rig->error.message);
    return least;
}

/* A prompt of `count` tokens and the steps behind it; forced 0: no KV on disk; host_bytes 0: the least. */
static void ask_within(struct rig *rig, enum kv_type type, size_t count, size_t forced, uint64_t host_bytes,
                       struct answer *answer) {
    struct plan plan = plan_of(rig, type);
    struct engine *engine;
    struct sequence *sequence;
    const float *logits;
    memset(answer, 0, sizeof *answer);
    if (count > CONTEXT) plan.context_size = LONG_CONTEXT;
    if (forced == 0) {
        plan.disk_directory = NULL;
        plan.rebuilds = false;
    } else {
        plan.host_bytes = host_bytes > 0 ? host_bytes : least_bytes(rig, &plan);
    }
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    if (forced > 0 && count == LONG && host_bytes == 0) {
        assert_true(plan.host_bytes <= LONG_HOST_BYTES);
        engine_destroy(engine);
        plan.host_bytes = LONG_HOST_BYTES;
        assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    }
    attention_force_rebuild(engine_attention(engine), forced);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = count};
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig->error), rig->error);
    memcpy(answer->logits[0], logits, rig->width * sizeof *logits);
    for (size_t step = 0; step < STEPS; step++) {
        assert_ok(engine_step(engine, &sequence, &rig->tokens[count + step], 1, &logits, &rig->error),
                  rig->error);
        memcpy(answer->logits[1 + step], logits, rig->width * sizeof *logits);
    }
    answer->reused = sequence_reused_tokens(sequence);
    snprintf(answer->notice, sizeof answer->notice, "%s", sequence_notice(sequence));
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    answer->rebuilt = attention_rebuild_statistics(engine_attention(engine));
    answer->tier = engine_tier_statistics(engine);
    if (answer->rebuilt.refusal != NULL)
        snprintf(answer->refusal, sizeof answer->refusal, "%s", answer->rebuilt.refusal);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void ask(struct rig *rig, enum kv_type type, size_t count, size_t forced, struct answer *answer) {
    ask_within(rig, type, count, forced, 0, answer);
}

static void assert_same(const struct rig *rig, const struct answer *got, const struct answer *want,
                        const char *what) {
    for (size_t i = 0; i <= STEPS; i++)
        for (size_t j = 0; j < rig->width; j++)
            if (memcmp(&got->logits[i][j], &want->logits[i][j], sizeof(float)) != 0)
                fail_msg("%s: logit %zu of row %zu is %.9g, not %.9g", what, j, i, (double)got->logits[i][j],
                         (double)want->logits[i][j]);
}

/* As it is made, opened again, and continued if it is to be. */
static void check_as_far(const struct tiny_model *tiny, cpu_mask mask, enum kv_type type, bool continues) {
    struct rig rig;
    struct answer want, longer, got;
    char what[96];
    rig_open(&rig, tiny, mask);
    snprintf(what, sizeof what, "%s, %s, mask %x, KV %d", tiny->family, tensor_type_info(tiny->type)->name,
             (unsigned)mask, (int)type);
    ask(&rig, type, PROMPT, 0, &want);
    if (continues) ask(&rig, type, PROMPT + MORE, 0, &longer);
    assert_int_equal(want.rebuilt.layers, 0);
    for (size_t round = 0; round < 2; round++) {
        ask(&rig, type, PROMPT, 3, &got);
        assert_string_equal(got.notice, "");
        assert_int_equal(got.reused, round == 0 ? 0 : PROMPT - 1);
        assert_true(got.rebuilt.chunks > 0 && got.rebuilt.refusals == 0);
        assert_true(got.rebuilt.chunks < got.rebuilt.missing_chunks); /* others were read */
        assert_same(&rig, &got, &want, what);
    }
    for (size_t round = 0; continues && round < 2; round++) {
        ask(&rig, type, PROMPT + MORE, 5, &got);
        assert_int_equal(got.reused, round == 0 ? PROMPT : PROMPT + MORE - 1);
        assert_true(got.rebuilt.chunks > 0 && got.rebuilt.refusals == 0);
        assert_same(&rig, &got, &longer, what);
    }
    rig_close(&rig);
}

static void check(const struct tiny_model *tiny, cpu_mask mask, enum kv_type type) {
    check_as_far(tiny, mask, type, true);
}

static size_t masks_known(cpu_mask masks[3]) {
    const cpu_mask have = cpu_features();
    size_t count = 0;
    masks[count++] = 0;
    if (have & CPU_AVX2) masks[count++] = CPU_AVX2;
    if (have & CPU_AVX512) masks[count++] = have & ~(cpu_mask)CPU_AMX;
    return count;
}

/* The reference kernels take ten times as long. */
static void shrink_for_reference(struct tiny_model *tiny) {
    tiny->hidden_size = 128, tiny->ffn_size = 128, tiny->head_dimension = 32;
}

static struct tiny_model tiny_of(const char *family, enum tensor_type type) {
    struct tiny_model tiny = tiny_model_default(family);
    tiny.type = type;
    tiny.layer_count = 6; /* more than the least budget holds */
    tiny.hidden_size = 256, tiny.ffn_size = 256;
    tiny.head_count = 4, tiny.head_dimension = 64;
    return tiny;
}

/* With grouped queries and without; in every form of KV that has rows. */
static void every_family(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen2", "qwen3", "opt"};
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    for (size_t m = 0; m < mask_count; m++)
        for (size_t f = 0; f < 4; f++) {
            struct tiny_model tiny = tiny_of(families[f], m % 2 == 0 ? TENSOR_F32 : TENSOR_Q8_0);
            tiny.kv_head_count = f == 3 ? 4 : 2;
            if (masks[m] == 0 && f % 3 != 0) continue; /* as the others in what the kernels get: biases, norms */
            if (masks[m] == 0) shrink_for_reference(&tiny);
            check(&tiny, masks[m], KV_F16);
            if (m + 1 < mask_count) continue;
            tiny.type = TENSOR_Q4_0;
            tiny.kv_head_count = 4;
            check(&tiny, masks[m], KV_Q8);
            if (f < 3) check(&tiny, masks[m], KV_F16);
        }
}

static void every_weight_type(void **state) {
    (void)state;
    static const enum tensor_type types[] = {TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_1, TENSOR_Q5_0,
                                             TENSOR_Q2_K, TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_IQ4_XS};
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    for (size_t t = 0; t < sizeof types / sizeof *types && mask_count > 1; t++) { /* each by one level */
        const struct tiny_model tiny = tiny_of("llama", types[t]);
        check_as_far(&tiny, masks[1 + t % (mask_count - 1)], KV_F16, false);
    }
}

/* W_K and W_V come from the file for each pass (model/weight_stream.h), while K and V are computed again with them. */
static void with_weights_on_their_way(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen3", "opt"};
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    for (size_t f = 0; f < 3; f++) {
        struct tiny_model tiny = tiny_of(families[f], f == 0 ? TENSOR_F32 : TENSOR_Q8_0);
        struct rig rig;
        struct answer want, got;
        unsigned long long least = 0;
        char path[64];
        tiny.kv_head_count = 4;
        if (masks[f % mask_count] == 0) shrink_for_reference(&tiny);
        rig_open(&rig, &tiny, masks[f % mask_count]);
        model_destroy(rig.model); /* its file is gone: this one stays */
        tiny_model_write(&tiny, tiny_model_path("streamed", path, sizeof path));
        assert_ok(model_load(&rig.model, path, rig.device, &rig.error), rig.error);
        ask(&rig, KV_F16, PROMPT, 0, &want);
        assert_int_equal(model_limit_weights(rig.model, 1, NULL, &rig.error), STATUS_MEMORY);
        const char *number = strstr(rig.error.message, "at least ");
        assert_non_null(number);
        assert_int_equal(sscanf(number, "at least %llu", &least), 1);
        assert_ok(model_limit_weights(rig.model, least, NULL, &rig.error), rig.error);
        for (size_t round = 0; round < 2; round++) { /* as it is made, and opened again */
            const uint64_t before = weight_stream_figures(rig.model->stream).read_bytes;
            ask(&rig, KV_F16, PROMPT, 3, &got);
            assert_int_equal(got.reused, round == 0 ? 0 : PROMPT - 1);
            assert_true(got.rebuilt.chunks > 0 && got.rebuilt.refusals == 0);
            const struct weight_figures figures = weight_stream_figures(rig.model->stream);
            assert_true(figures.resident_layers < tiny.layer_count &&
                        figures.read_bytes - before >= STEPS * figures.pass_bytes);
            assert_same(&rig, &got, &want, tiny.family);
        }
        rig_close(&rig);
        assert_int_equal(unlink(path), 0);
    }
}

/* More than the workspace holds: each range attends as it is computed, and is merged with those that were read. */
static void ranges_attend_by_themselves(void **state) {
    (void)state;
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    struct tiny_model tiny = tiny_of("qwen3", TENSOR_Q8_0);
    struct rig rig;
    struct answer want, got;
    tiny.kv_head_count = 4;
    rig_open(&rig, &tiny, masks[mask_count - 1]);
    ask(&rig, KV_F16, LONG, 0, &want);
    for (size_t round = 0; round < 2; round++) {
        ask(&rig, KV_F16, LONG, round == 0 ? SIZE_MAX : 17, &got);
        assert_int_equal(got.rebuilt.refusals, 0);
        assert_true(got.rebuilt.chunks > 0);
        assert_same(&rig, &got, &want, "ranges");
    }
    rig_close(&rig);
}

enum { FULL_LAYERS = 6, FULL_CHUNKS = SHORTER / KV_CHUNK_TOKENS };

/* An opened document that RAM has room for: what is computed again stays there, and what is not is read, both once, by
 * the rows of a question (first opened) and by a single row. */
static void an_opened_document_is_computed_or_loaded(void **state) {
    (void)state;
    static const size_t forced[] = {SIZE_MAX, 17, REBUILD_NOTHING};
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    struct tiny_model tiny = tiny_of("llama", TENSOR_Q8_0);
    struct answer want, got;
    tiny.kv_head_count = 4;
    for (size_t i = 0; i < 3; i++) {
        struct rig rig;
        rig_open(&rig, &tiny, masks[mask_count - 1]);
        ask(&rig, KV_F16, LONG, 0, &want);
        ask_within(&rig, KV_F16, SHORTER, REBUILD_NOTHING, ROOM_BYTES, &got);
        for (size_t round = 0; round < 2; round++) {
            ask_within(&rig, KV_F16, LONG, forced[i], ROOM_BYTES, &got);
            const uint64_t chunks = round == 0 ? FULL_CHUNKS : (LONG - 1) / KV_CHUNK_TOKENS,
                           computed = forced[i] == REBUILD_NOTHING ? 0
                                      : forced[i] < chunks         ? forced[i]
                                                                   : chunks;
            assert_int_equal(got.reused, round == 0 ? SHORTER : LONG - 1);
            assert_int_equal(got.rebuilt.refusals, 0);
            if (computed > 0) /* not in a second pass; what is all read is prefetched */
                assert_int_equal(got.rebuilt.missing_chunks, FULL_LAYERS * chunks);
            assert_int_equal(got.rebuilt.chunks, FULL_LAYERS * computed);
            assert_int_equal(got.rebuilt.kept_chunks, FULL_LAYERS * computed);
            assert_int_equal(got.tier.read_pages / tiny.kv_head_count,
                             FULL_LAYERS * (chunks - computed + 1)); /* and the one that grows */
            assert_same(&rig, &got, &want, "computed or loaded");
        }
        rig_close(&rig);
    }
}

/* Layers that slide see few chunks and read them; the others are rebuilt as ever. */
static void sliding_layers_are_read(void **state) {
    (void)state;
    const cpu_mask mask = cpu_default();
    struct tiny_model tiny = tiny_of("llama", TENSOR_Q8_0);
    struct rig rig;
    struct answer want, got;
    tiny.window = 100, tiny.window_period = 2;
    check(&tiny, mask, KV_F16);
    tiny.window_period = 0; /* all of them */
    rig_open(&rig, &tiny, mask);
    ask(&rig, KV_F16, PROMPT, 0, &want);
    for (size_t round = 0; round < 2; round++) {
        ask(&rig, KV_F16, PROMPT, 3, &got);
        assert_true(got.rebuilt.layers == 0 && got.rebuilt.chunks == 0);
        assert_same(&rig, &got, &want, "all layers slide");
    }
    rig_close(&rig);
}

/* Inputs of a shorter prefix than KV: another prompt goes on where they were cut back. */
static void a_prefix_of_the_inputs_is_used(void **state) {
    (void)state;
    struct rig rig;
    struct answer want, got;
    const struct tiny_model tiny = tiny_of("qwen2", TENSOR_Q8_0);
    rig_open(&rig, &tiny, cpu_default());
    ask(&rig, KV_F16, PROMPT, 3, &got);
    for (size_t i = PROMPT / 2; i < PROMPT + STEPS; i++) rig.tokens[i] ^= 1;
    ask(&rig, KV_F16, PROMPT, 0, &want);
    ask(&rig, KV_F16, PROMPT, SIZE_MAX, &got);
    assert_int_equal(got.reused, PROMPT / 2);
    assert_true(got.rebuilt.chunks > 0 && got.rebuilt.refusals == 0);
    assert_same(&rig, &got, &want, "half of the prefix");
    rig_close(&rig);
}

/* Changes a byte of the pages, from a part of the file on, of the document whose layout is that of inputs: the larger
 * id. */
static void damage_inputs(const struct rig *rig, unsigned document, double from) {
    char path[256];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%u.pages", rig->scratch.path, document);
    const int file = open(path, O_RDWR);
    assert_true(file >= 0);
    const off_t end = lseek(file, 0, SEEK_END);
    for (off_t at = (off_t)(from * (double)end) / 4096 * 4096; at < end; at += 4096) { /* every page */
        assert_int_equal(pread(file, &byte, 1, at + 8), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at + 8), 1);
    }
    close(file);
}

/* Then K and V are read, and the answer is the same; the damaged inputs are not asked for a second time. */
static void damaged_inputs_are_not_used(void **state) {
    (void)state;
    struct rig rig;
    struct answer want, got;
    const struct tiny_model tiny = tiny_of("llama", TENSOR_Q8_0);
    rig_open(&rig, &tiny, cpu_default());
    ask(&rig, KV_F16, PROMPT, 0, &want);
    ask(&rig, KV_F16, PROMPT, 3, &got);
    damage_inputs(&rig, 2, 0);
    ask(&rig, KV_F16, PROMPT - 20, 3, &got); /* it only reads: the tail is not needed */
    assert_int_equal(got.reused, PROMPT - 21);
    assert_int_equal(got.rebuilt.refusals, 1);
    assert_non_null(strstr(got.refusal, "2.pages"));
    ask(&rig, KV_F16, PROMPT, 3, &got);
    assert_int_equal(got.reused, PROMPT - 1);
    assert_int_equal(got.rebuilt.refusals, 0);
    assert_int_equal(got.rebuilt.chunks, 0);
    assert_same(&rig, &got, &want, "after damage");
    rig_close(&rig);
}

/* What was computed before the damage stays; slots of what was to be computed behind it are read into. */
static void damage_behind_some_that_stay(void **state) {
    (void)state;
    struct rig rig;
    struct answer want, got;
    struct tiny_model tiny = tiny_of("llama", TENSOR_Q8_0);
    tiny.kv_head_count = 4;
    rig_open(&rig, &tiny, cpu_default());
    ask(&rig, KV_F16, LONG, 0, &want);
    ask_within(&rig, KV_F16, LONG, REBUILD_NOTHING, ROOM_BYTES, &got);
    damage_inputs(&rig, 2, 0.5);
    ask_within(&rig, KV_F16, LONG, SIZE_MAX, ROOM_BYTES, &got);
    const uint64_t chunks = (LONG - 1) / KV_CHUNK_TOKENS, kept = got.rebuilt.kept_chunks;
    assert_int_equal(got.rebuilt.refusals, 1);
    assert_true(kept > chunks && kept < FULL_LAYERS * chunks && kept % chunks != 0);
    assert_int_equal(got.tier.read_pages / tiny.kv_head_count, FULL_LAYERS * (chunks + 1) - kept);
    assert_same(&rig, &got, &want, "damage behind some");
    rig_close(&rig);
}

/* A document that was made without inputs is used without. */
static void old_documents_have_none(void **state) {
    (void)state;
    struct rig rig;
    struct answer want, got;
    const struct tiny_model tiny = tiny_of("opt", TENSOR_F32);
    struct plan plan;
    struct engine *engine;
    struct sequence *sequence;
    rig_open(&rig, &tiny, cpu_default());
    ask(&rig, KV_F16, PROMPT, 0, &want);
    plan = plan_of(&rig, KV_F16);
    plan.rebuilds = false;
    assert_ok(plan_host_bytes_min(&plan, &rig.model->config, &plan.host_bytes, &rig.error), rig.error);
    assert_ok(engine_create(&engine, rig.model, &plan, NULL, &rig.error), rig.error);
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    const struct prefill_request request = {.tokens = rig.tokens, .token_count = PROMPT};
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig.error), rig.error);
    assert_ok(sequence_flush(sequence, &rig.error), rig.error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    ask(&rig, KV_F16, PROMPT, 3, &got);
    assert_int_equal(got.reused, PROMPT - 1);
    assert_int_equal(got.rebuilt.chunks, 0);
    assert_same(&rig, &got, &want, "without inputs");
    rig_close(&rig);
}

/* Grouped queries: two KV heads of 64 in halves are 512 bytes, 256 inputs in 8 bits 288, in floats 1,024. */
static void says_why_not(void **state) {
    (void)state;
    struct rig rig;
    struct answer got;
    struct tiny_model tiny = tiny_of("llama", TENSOR_F32);
    tiny.kv_head_count = 2;
    rig_open(&rig, &tiny, cpu_default());
    ask(&rig, KV_F16, PROMPT, SIZE_MAX, &got);
    assert_true(got.rebuilt.input_bytes == 1024 && got.rebuilt.kv_bytes == 512);
    rig_close(&rig);
}

/* A budget counts inputs in the form in which they are kept: 36 bytes for 32 columns where a kernel multiplies those,
 * as with quantized weights, and else rows of floats. */
static void their_real_size_counts(void **state) {
    (void)state;
    enum { CHUNK_COLUMNS = 256, SPARED = KV_CHUNK_TOKENS * CHUNK_COLUMNS * 92 / 32 }; /* of a layer's chunk */
    for (size_t quantized = 0; quantized < 2; quantized++) {
        struct rig rig;
        struct tiny_model tiny = tiny_of("llama", quantized ? TENSOR_Q8_0 : TENSOR_F32);
        uint64_t floats;
        tiny.hidden_size = CHUNK_COLUMNS;
        tiny.kv_head_count = 4;
        rig_open(&rig, &tiny, cpu_default());
        struct plan plan = plan_of(&rig, KV_F16);
        plan.sequence_capacity = 3;
        assert_ok(plan_host_bytes_min(&plan, &rig.model->config, &floats, &rig.error), rig.error);
        const uint64_t counted = least_bytes(&rig, &plan),
                       layers = tiny.layer_count - 1; /* the first's are not kept */
        assert_true(counted <= floats);
        if (cpu_default() != 0) /* rows that grow, and a chunk that is read in whole pages */
            assert_in_range(floats - counted, quantized * 3 * layers * SPARED,
                            quantized * 3 * (layers + 1) * SPARED);
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(every_weight_type),
        cmocka_unit_test(with_weights_on_their_way),
        cmocka_unit_test(ranges_attend_by_themselves),
        cmocka_unit_test(an_opened_document_is_computed_or_loaded),
        cmocka_unit_test(damage_behind_some_that_stay),
        cmocka_unit_test(sliding_layers_are_read),
        cmocka_unit_test(a_prefix_of_the_inputs_is_used),
        cmocka_unit_test(damaged_inputs_are_not_used),
        cmocka_unit_test(old_documents_have_none),
        cmocka_unit_test(says_why_not),
        cmocka_unit_test(their_real_size_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
