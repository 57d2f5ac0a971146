#include "engine/document_rig.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/random.h"
#include "cache/faulty_vfs.h"
#include "model/tiny_model.h"

uint64_t rig_fuzz(void) {
    const char *given = getenv("LOAM_TEST_FUZZ");
    return given != NULL ? strtoull(given, NULL, 10) : 0;
}

size_t rig_prompt_count(enum rig_prompt prompt) {
    static const size_t counts[RIG_PROMPTS] = {192, 256, 320, 256};
    return counts[prompt];
}

size_t rig_reused_max(const struct document_rig *rig, enum rig_prompt prompt) {
    size_t count = rig_prompt_count(prompt);
    const bool by_chunks = rig->options.quantized_pages || model_state_floats(&rig->model->config) > 0;
    return by_chunks ? (count - 1) / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS : count - 1;
}

/* Inputs are kept where K and V are more bytes. */
static struct model *load(struct document_rig *rig, uint64_t seed, enum rig_pages pages) {
    char path[64];
    struct error error;
    struct model *model;
    struct tiny_model tiny = tiny_model_default(rig->family);
    tiny.seed = seed;
    if (pages == RIG_INPUTS) tiny.kv_head_count = tiny.head_count;
    if (pages == RIG_WINDOWS) tiny.window = 8; /* most chunks of a prompt are seen by none of its positions */
    assert_int_equal(tiny.vocabulary_size, RIG_WIDTH);
    tiny_model_write(&tiny, tiny_model_path("documents", path, sizeof path));
    assert_ok(model_load(&model, path, rig->device, &error), error);
    unlink(path);
    return model;
}

static float *copy_of(const struct rig_answer *answer) {
    float *copy = malloc(sizeof answer->logits);
    assert_non_null(copy);
    memcpy(copy, answer->logits, sizeof answer->logits);
    return copy;
}

static void set_expected(struct document_rig *rig) {
    struct plan plain = rig->options;
    plain.host_bytes =
        plain.quantized_pages ? RIG_AMPLE_BYTES : 0; /* 4 bits are of chunks that have a page */
    plain.key_index = PLAN_KEY_INDEX_FITS;
    if (!plain.quantized_pages) plain.disk_directory = NULL;
    plain.rebuilds = false;
    for (enum rig_prompt prompt = 0; prompt < RIG_PROMPTS; prompt++) {
        struct rig_answer answer;
        scratch_empty(&rig->scratch);
        rig_ask(rig, rig->model, &plain, NULL, prompt, &answer);
        assert_ok(answer.status, answer.error);
        rig->expected[prompt] = copy_of(&answer);
    }
    for (enum rig_prompt prompt = 0; prompt < RIG_PROMPTS; prompt++) {
        struct rig_answer answer;
        scratch_empty(&rig->scratch);
        for (size_t i = 0; i < 2; i++) {
            rig_ask(rig, rig->model, &rig->options, NULL, prompt, &answer);
            assert_ok(answer.status, answer.error);
            assert_ok(answer.saved, answer.error);
            assert_int_equal(answer.reused, i == 0 ? 0 : rig_reused_max(rig, prompt));
        }
        rig->repeated[prompt] = copy_of(&answer);
    }
}

void document_rig_open(struct document_rig *rig, const struct select_method *method, enum rig_pages pages) {
    struct error error;
    struct random random;
    *rig = (struct document_rig){.family = pages == RIG_STATES    ? "qwen35"
                                           : pages == RIG_WINDOWS ? "gemma3"
                                                                  : "llama"};
    /* Engines come by the thousand: a sixth of the time would go into clearing huge pages for their slabs. */
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device, &device, &error), error);
    rig->model = load(rig, 1, pages);
    rig->other = load(rig, 2, pages);
    random_init(&random, 7);
    for (enum rig_prompt prompt = 0; prompt < RIG_PROMPTS; prompt++)
        for (size_t i = 0; i < RIG_TOKENS; i++)
            rig->tokens[prompt][i] = (int32_t)random_below(&random, RIG_WIDTH);
    memcpy(rig->tokens[RIG_LONGER], rig->tokens[RIG_FIRST], 256 * sizeof(int32_t));
    memcpy(rig->tokens[RIG_DEPARTS], rig->tokens[RIG_FIRST], 128 * sizeof(int32_t));
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    rig->options = (struct plan){.context_size = RIG_TOKENS + RIG_STEPS,
                                 .sequence_capacity = 1,
                                 .batch_size = RIG_BLOCK,
                                 .segment_size = RIG_SEGMENT,
                                 .select = select_options_default(),
                                 .disk_directory = rig->scratch.path,
                                 .document_name = "rig"};
    rig->options.select.method = method;
    rig->options.select.dense_layers = 0;
    rig->options.select.recent = 32;
    if (method != &select_all) rig->options.select.keep = (struct select_keep){.tokens = 160};
    if (pages == RIG_MIXED) {
        rig->options.quantized_pages = rig->options.mixes_pages = true;
        rig->options.fractions.layer_count = (uint16_t)rig->model->config.layer_count;
        memset(rig->options.fractions.sixteenths, PAGE_FRACTION_WHOLE, rig->model->config.layer_count);
        rig->options.fractions.sixteenths[0] = PAGE_FRACTION_WHOLE / 2;
    }
    if (pages == RIG_INDEX_APART) {
        rig->options.key_index = PLAN_KEY_INDEX_DISK;
        rig->options.select.leaf = 16;
        rig->options.select.keep.tokens = 208; /* leaves beside the window: some are chosen */
    }
    rig->options.rebuilds = pages == RIG_INPUTS;
    assert_ok(plan_host_bytes_min(&rig->options, &rig->model->config, &rig->options.host_bytes, &error),
              error);
    set_expected(rig);
    scratch_empty(&rig->scratch);
    assert_int_equal(rig_ask_clean(rig, RIG_BEFORE, "the document before", NULL), 0);
    scratch_create(&rig->before, SCRATCH_MEMORY);
    scratch_copy(&rig->before, &rig->scratch);
}

void document_rig_close(struct document_rig *rig) {
    for (enum rig_prompt prompt = 0; prompt < RIG_PROMPTS; prompt++) {
        free(rig->expected[prompt]);
        free(rig->repeated[prompt]);
    }
    model_destroy(rig->model);
    model_destroy(rig->other);
    device_destroy(rig->device);
    scratch_destroy(&rig->scratch);
    scratch_destroy(&rig->before);
}

void document_rig_reset(struct document_rig *rig) {
    scratch_empty(&rig->scratch);
    scratch_copy(&rig->scratch, &rig->before);
}

static enum status answer_run(struct document_rig *rig, struct engine *engine, struct sequence *sequence,
                              enum rig_prompt prompt, struct rig_answer *answer) {
    const struct prefill_request request = {.tokens = rig->tokens[prompt],
                                            .token_count = rig_prompt_count(prompt)};
    const float *logits;
    enum status status = engine_prefill(engine, sequence, &request, &logits, &answer->error);
    snprintf(answer->notice, sizeof answer->notice, "%s", sequence_notice(sequence));
    answer->reused = sequence_reused_tokens(sequence);
    if (status == STATUS_OK) memcpy(answer->logits[0], logits, sizeof answer->logits[0]);
    for (size_t step = 0; status == STATUS_OK && step < RIG_STEPS; step++) {
        const int32_t token = (int32_t)(step + 3);
        status = engine_step(engine, &sequence, &token, 1, &logits, &answer->error);
        if (status == STATUS_OK) memcpy(answer->logits[1 + step], logits, sizeof answer->logits[0]);
    }
    if (status == STATUS_DOCUMENT) answer->refusals++;
    return status;
}

static enum status answer_once(struct document_rig *rig, struct model *model, const struct plan *options,
                               const struct engine_options *faults, enum rig_prompt prompt,
                               struct rig_answer *answer) {
    struct engine *engine;
    struct sequence *sequence;
    TRY(engine_create(&engine, model, options, faults, &answer->error));
    answer->opened = true;
    if (engine_documents_warning(engine) != NULL)
        snprintf(answer->warning, sizeof answer->warning, "%s", engine_documents_warning(engine));
    if (options->rebuilds) attention_force_rebuild(engine_attention(engine), SIZE_MAX);
    enum status status = sequence_create(&sequence, engine, &answer->error);
    if (status == STATUS_OK) {
        status = answer_run(rig, engine, sequence, prompt, answer);
        if (status == STATUS_OK) answer->saved = sequence_flush(sequence, &answer->error);
    }
    answer->read_pages += engine_tier_statistics(engine).read_pages;
    const struct rebuild_statistics rebuilt = attention_rebuild_statistics(engine_attention(engine));
    answer->rebuilt_chunks += rebuilt.chunks;
    answer->rebuild_refusals += rebuilt.refusals;
    if (rebuilt.refusals > 0) snprintf(answer->refusal, sizeof answer->refusal, "%s", rebuilt.refusal);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return status;
}

void rig_ask(struct document_rig *rig, struct model *model, const struct plan *options,
             const struct engine_options *faults, enum rig_prompt prompt, struct rig_answer *answer) {
    *answer = (struct rig_answer){0};
    answer->status = answer_once(rig, model, options, faults, prompt, answer);
    if (answer->refusals > 0) answer->status = answer_once(rig, model, options, faults, prompt, answer);
}

bool rig_is_right(const struct document_rig *rig, enum rig_prompt prompt, const struct rig_answer *answer) {
    const float *expected = answer->reused % RIG_BLOCK == 0 ? rig->expected[prompt] : rig->repeated[prompt];
    return memcmp(answer->logits, expected, sizeof answer->logits) == 0;
}

uint64_t rig_ask_clean(struct document_rig *rig, enum rig_prompt prompt, const char *what,
                       uint64_t *rebuilt_chunks) {
    struct rig_answer answer;
    rig_ask(rig, rig->model, &rig->options, NULL, prompt, &answer);
    if (answer.status != STATUS_OK || answer.saved != STATUS_OK)
        fail_msg("%s: then, without faults, prompt %d: %s", what, (int)prompt, answer.error.message);
    if (!rig_is_right(rig, prompt, &answer))
        fail_msg("%s: then prompt %d: another answer", what, (int)prompt);
    if (answer.notice[0] != '\0') fail_msg("%s: then prompt %d: %s", what, (int)prompt, answer.notice);
    if (answer.rebuild_refusals > 0)
        fail_msg("%s: then prompt %d: inputs are not used: %s", what, (int)prompt, answer.refusal);
    if (rebuilt_chunks != NULL) *rebuilt_chunks = answer.rebuilt_chunks;
    return answer.reused;
}
