/* Weights beyond a budget, read for each pass, give bit for bit the logits of weights in memory: random families,
 * windows, types, budgets, batches and tiers of KV, with a printed seed.  A read that fails, an interrupted prompt and
 * a file that changes end a pass with a message; the next pass is right again. */
#include "testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/engine.h"
#include "lab/methods/methods.h"
#include "model/model_size.h"
#include "model/tiny_model.h"
#include "model/weight_stream.h"
#include "platform/fault_plan.h"
#include "platform/scratch.h"
#include "seed.h"

enum { ROUNDS = 24, PROMPT_MAX = 200, STEPS = 3, SEQUENCES = 3, CONTEXT = 256, LAYERS_MAX = 7, METHODS = 3 };

static const struct select_method *const methods[METHODS] = {&select_all, &select_quest, &select_hash};

/* The same file twice: mapped, and read. */
struct rig {
    struct random random;
    struct tiny_model tiny;
    char path[64];
    struct device *device;
    struct model *models[2];
    struct engine *engines[2];
    struct scratch scratches[2];
    bool has_disk;
    uint64_t least;
    size_t counts[SEQUENCES];
    int32_t tokens[SEQUENCES][PROMPT_MAX + STEPS];
    struct error error;
};

static uint64_t least_of(struct model *model) {
    struct error error;
    unsigned long long least = 0;
    assert_int_equal(model_limit_weights(model, 1, NULL, &error), STATUS_MEMORY);
    const char *number = strstr(error.message, "at least ");
    assert_non_null(number);
    assert_int_equal(sscanf(number, "at least %llu", &least), 1);
    assert_int_equal(model_limit_weights(model, least - 1, NULL, &error), STATUS_MEMORY);
    return least;
}

static void open_engines(struct rig *rig) {
    struct random *random = &rig->random;
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES,
                        .batch_size = random_between(random, 1, 64),
                        .segment_size = random_between(random, 1, 200),
                        .k_type = random_below(random, 2) ? KV_Q8 : KV_F16,
                        .select = select_options_default()};
    plan.v_type = plan.k_type;
    plan.select.method = methods[random_below(random, METHODS)];
    if (plan.select.method != &select_all) plan.select.keep = (struct select_keep){.tokens = 160};
    plan.select.recent = 32;
    plan.select.dense_layers = random_below(random, 2);
    rig->has_disk = rig->tiny.window == 0 && random_below(random, 2) == 0;
    for (size_t i = 0; i < 2; i++) {
        if (rig->has_disk) {
            scratch_create(&rig->scratches[i], SCRATCH_MEMORY);
            plan.disk_directory = rig->scratches[i].path;
            plan.prefetches = true;
            assert_ok(plan_host_bytes_min(&plan, &rig->models[0]->config, &plan.host_bytes, &rig->error),
                      rig->error);
        }
        assert_ok(engine_create(&rig->engines[i], rig->models[i], &plan, NULL, &rig->error), rig->error);
    }
}

static void rig_open_of(struct rig *rig, uint64_t seed, const char *const *families, size_t family_count) {
    *rig = (struct rig){0};
    random_init(&rig->random, seed);
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_Q8_0, TENSOR_Q4_0};
    rig->tiny = tiny_model_random(&rig->random, families, family_count);
    rig->tiny.layer_count = random_between(&rig->random, 4, rig->tiny.kv_heads != NULL ? 6 : LAYERS_MAX);
    rig->tiny.tied = random_below(&rig->random, 2);
    rig->tiny.type = types[random_below(&rig->random, 4)];
    if (rig->tiny.delta_v > 0) rig->tiny.delta_v = 32; /* what types with blocks take */
    if (rig->tiny.expert_count > 0) { /* more than all the rest */
        rig->tiny.expert_count = 12, rig->tiny.expert_size = 96;
        if (rig->tiny.shared_size > 0) rig->tiny.shared_size = 96;
    }
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device, &device, &rig->error), rig->error);
    tiny_model_write(&rig->tiny, tiny_model_path("weight_stream", rig->path, sizeof rig->path));
    for (size_t i = 0; i < 2; i++)
        assert_ok(model_load(&rig->models[i], rig->path, rig->device, &rig->error), rig->error);
    rig->least = least_of(rig->models[1]);
    open_engines(rig);
    for (size_t s = 0; s < SEQUENCES; s++) {
        /* With room for the experts of a row each row reads its own: one prompt of many is enough. */
        const size_t most = rig->tiny.expert_count > 0 && s > 0 ? PROMPT_MAX / 8 : PROMPT_MAX;
        rig->counts[s] = random_between(&rig->random, 1, most);
        tiny_model_tokens(&rig->tiny, &rig->random, rig->tokens[s], PROMPT_MAX + STEPS);
    }
}

static void rig_open(struct rig *rig, uint64_t seed) {
    if (seed % 4 == 0)
        rig_open_of(rig, seed, tiny_state_families, TINY_STATE_FAMILIES);
    else
        rig_open_of(rig, seed, tiny_families, TINY_FAMILIES);
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < 2; i++) {
        engine_destroy(rig->engines[i]);
        model_destroy(rig->models[i]);
        if (rig->has_disk) scratch_destroy(&rig->scratches[i]);
    }
    unlink(rig->path);
    device_destroy(rig->device);
}

/* Prompts, then steps of all sequences together.  The caller frees. */
static float *run(struct rig *rig, size_t engine) {
    const size_t width = rig->tiny.vocabulary_size;
    struct sequence *sequences[SEQUENCES];
    float *all = calloc(SEQUENCES * (1 + STEPS) * width, sizeof *all), *next = all;
    const float *logits;
    for (size_t s = 0; s < SEQUENCES; s++, next += width) {
        const struct prefill_request request = {.tokens = rig->tokens[s], .token_count = rig->counts[s]};
        assert_ok(sequence_create(&sequences[s], rig->engines[engine], &rig->error), rig->error);
        assert_ok(engine_prefill(rig->engines[engine], sequences[s], &request, &logits, &rig->error),
                  rig->error);
        memcpy(next, logits, width * sizeof *next);
    }
    for (size_t step = 0; step < STEPS; step++, next += SEQUENCES * width) {
        int32_t tokens[SEQUENCES];
        for (size_t s = 0; s < SEQUENCES; s++) tokens[s] = rig->tokens[s][rig->counts[s] + step];
        assert_ok(engine_step(rig->engines[engine], sequences, tokens, SEQUENCES, &logits, &rig->error),
                  rig->error);
        memcpy(next, logits, SEQUENCES * width * sizeof *next);
    }
    for (size_t s = 0; s < SEQUENCES; s++) sequence_destroy(sequences[s]);
    return all;
}

static enum status take_logits(void *context, uint64_t index, const float *logits, struct error *error) {
    enum { WIDTH = 80 };
    (void)error;
    memcpy((float *)context + index * WIDTH, logits, WIDTH * sizeof *logits);
    return STATUS_OK;
}

/* Logits of the last token, or of all. */
static void prompt_of(struct rig *rig, size_t engine, bool all, float *found) {
    struct sequence *sequence;
    const float *logits;
    const struct prefill_request request = {.tokens = rig->tokens[0],
                                            .token_count = rig->counts[0],
                                            .each = all ? take_logits : NULL,
                                            .each_context = found};
    assert_ok(sequence_create(&sequence, rig->engines[engine], &rig->error), rig->error);
    assert_ok(engine_prefill(rig->engines[engine], sequence, &request, &logits, &rig->error), rig->error);
    if (!all) memcpy(found, logits, rig->tiny.vocabulary_size * sizeof *found);
    sequence_destroy(sequence);
}

/* A budget between the least and all, and what it must lead to. */
static uint64_t limit(struct rig *rig, uint64_t budget, const struct io_faults *faults) {
    assert_ok(model_limit_weights(rig->models[1], budget, faults, &rig->error), rig->error);
    assert_non_null(rig->models[1]->stream);
    const struct weight_figures figures = weight_stream_figures(rig->models[1]->stream);
    assert_true(figures.resident_bytes + figures.slot_bytes <= budget);
    assert_true(figures.resident_layers < rig->tiny.layer_count);
    assert_true(figures.pass_bytes > 0 && figures.read_bytes == 0);
    return figures.pass_bytes;
}

/* Layers are read in each pass, experts where they are missing. */
static void check_reads(const struct weight_figures *figures, uint64_t pass) {
    if (figures->expert_slots == 0) {
        assert_true(figures->read_bytes >= (SEQUENCES + STEPS) * pass);
        return;
    }
    const uint64_t expert = figures->slot_bytes / figures->expert_slots;
    assert_true(figures->expert_misses > 0 && figures->expert_ahead_used <= figures->expert_ahead);
    assert_true(figures->read_bytes > 0 &&
                figures->read_bytes <= (figures->expert_misses + figures->expert_ahead) * expert);
}

static uint64_t weight_bytes(const struct model *model) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < model->gguf.tensor_count; i++) bytes += model->gguf.tensors[i].size_bytes;
    return bytes;
}

static void test_same_bits(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20261123);
    size_t resident = 0, with_disk = 0, wholly_read = 0, ahead = 0, hits = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        const uint64_t all = weight_bytes(rig.models[1]);
        struct fault_plan parts; /* reads end in parts: bytes that are used too early are not there */
        fault_plan_init(&parts, FAULT_SHORT_HALF, 0, true, 0);
        if (rig.least < all) {
            float *expected = run(&rig, 0);
            const bool has_experts = rig.tiny.expert_count > 0; /* for which test_experts tries the least */
            for (size_t tries = has_experts; tries < 2; tries++) {
                const uint64_t spare = all - rig.least;
                const uint64_t budget = rig.least + (tries == 0 ? 0 : random_below(&rig.random, spare));
                const uint64_t pass = limit(&rig, budget, tries == 0 || has_experts ? &parts.faults : NULL);
                float *found = run(&rig, 1);
                const struct weight_figures figures = weight_stream_figures(rig.models[1]->stream);
                if (memcmp(found, expected,
                           SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found) != 0)
                    fail_msg("seed %llu: %llu bytes of weights: other logits",
                             (unsigned long long)(seed + round), (unsigned long long)budget);
                check_reads(&figures, pass);
                resident += figures.resident_layers > 0;
                wholly_read += figures.resident_layers == 0;
                ahead += figures.expert_ahead_used;
                hits += figures.expert_hits;
                free(found);
            }
            with_disk += rig.has_disk;
            free(expected);
        }
        /* All of it: nothing is read. */
        assert_ok(model_limit_weights(rig.models[1], all, NULL, &rig.error), rig.error);
        assert_null(rig.models[1]->stream);
        rig_close(&rig);
    }
    assert_met(resident > 0 && with_disk > 0 && wholly_read > 0 && ahead > 0 && hits > 0);
}

/* What the header says is at least what streaming takes, so a budget that is chosen by it holds as many layers. */
static void test_sizes_of_the_header(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20261124);
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        const struct model *model = rig.models[1];
        const struct weight_sizes sizes = weight_sizes_of(&model->gguf, &model->config);
        assert_true(sizes.all == weight_bytes(model) && sizes.layer_count == rig.tiny.layer_count);
        if (rig.least < sizes.all) {
            (void)limit(&rig, rig.least, NULL);
            const struct weight_figures figures = weight_stream_figures(model->stream);
            const size_t experts = sizes.mixture.layers * sizes.mixture.count;
            const size_t units = experts > 0 ? experts : sizes.layer_count;
            assert_int_equal(figures.resident_layers, sizes.mixture.count > 0 ? rig.tiny.dense_layers : 0);
            assert_true(sizes.top >= figures.resident_bytes);
            assert_int_equal(figures.expert_slots, sizes.mixture.used);
            assert_true(2 * sizes.slot >= figures.slot_bytes);
            assert_true(sizes.layers <= figures.pass_bytes && figures.pass_bytes <= units * sizes.slot);
        }
        assert_int_equal(weight_sizes_resident(&sizes, sizes.all), sizes.layer_count);
        assert_int_equal(weight_sizes_resident(&sizes, 0), 0);
        assert_true(weight_sizes_pass_bytes(&sizes, sizes.all) == 0);
        assert_true(weight_sizes_pass_bytes(&sizes, 0) == (double)sizes.layers);
        assert_true(weight_sizes_host_bytes(&sizes, sizes.all) == sizes.all);
        rig_close(&rig);
    }
}

/* Experts of all families that have some, with room for those of a row, for half of them and for nearly all. */
static void test_experts(void **state) {
    (void)state;
    static const char *const families[] = {"qwen3moe",  "qwen2moe", "glm4moe",   "gpt-oss",
                                           "qwen35moe", "lfm2moe",  "qwen3next", "gemma4",
                                           "minimax-m2", "granitemoe"};
    enum { FAMILIES = sizeof families / sizeof *families };
    const uint64_t seed = test_seed(20261128);
    uint64_t reads[3] = {0}, hits = 0, ahead = 0;
    for (size_t round = 0; round < FAMILIES; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open_of(&rig, seed + round, &families[round], 1);
        rig.counts[0] = min_size(rig.counts[0], 64); /* by the least budget row after row is read for */
        const uint64_t all = weight_bytes(rig.models[1]);
        const uint64_t budgets[] = {rig.least, (rig.least + all) / 2, all - 1};
        float *expected = run(&rig, 0);
        assert_true(rig.least < all);
        for (size_t i = 0; i < 3; i++) {
            const uint64_t pass = limit(&rig, budgets[i], NULL);
            float *found = run(&rig, 1);
            const struct weight_figures figures = weight_stream_figures(rig.models[1]->stream);
            if (memcmp(found, expected,
                       SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found) != 0)
                fail_msg("%s, seed %llu: %llu bytes of weights: other logits", families[round],
                         (unsigned long long)(seed + round), (unsigned long long)budgets[i]);
            check_reads(&figures, pass);
            reads[i] += figures.expert_misses + figures.expert_ahead;
            hits += figures.expert_hits;
            ahead += figures.expert_ahead_used;
            free(found);
        }
        free(expected);
        rig_close(&rig);
    }
    assert_met(reads[0] > reads[1] && reads[1] > reads[2] && hits > 0 && ahead > 0);
}

/* A prompt in one segment of several blocks: each expert is in work once a layer at most, whatever there is room for,
 * and so read once at most, but for what another layer's router had expected in vain. */
static void read_once(const char *family, bool all) {
    enum { LAYERS = 5, EXPERTS = 12, TOKENS = 160 };
    struct rig rig = {.counts = {TOKENS}};
    random_init(&rig.random, test_seed(20261129));
    rig.tiny = tiny_model_default(family);
    rig.tiny.layer_count = LAYERS;
    rig.tiny.expert_count = EXPERTS, rig.tiny.expert_size = 96;
    tiny_model_tokens(&rig.tiny, &rig.random, rig.tokens[0], TOKENS);
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig.device, &device, &rig.error), rig.error);
    tiny_model_write(&rig.tiny, tiny_model_path("read_once", rig.path, sizeof rig.path));
    float *logits[2];
    const struct plan plan = {
        .context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 16, .segment_size = TOKENS};
    for (size_t i = 0; i < 2; i++) {
        assert_ok(model_load(&rig.models[i], rig.path, rig.device, &rig.error), rig.error);
        assert_ok(engine_create(&rig.engines[i], rig.models[i], &plan, NULL, &rig.error), rig.error);
        logits[i] = calloc(TOKENS * rig.tiny.vocabulary_size, sizeof **logits);
    }
    rig.least = least_of(rig.models[1]);
    prompt_of(&rig, 0, all, logits[0]);
    for (uint64_t budget = rig.least; budget < weight_bytes(rig.models[1]);
         budget += (weight_bytes(rig.models[1]) - rig.least) / 4) {
        (void)limit(&rig, budget, NULL);
        prompt_of(&rig, 1, all, logits[1]);
        assert_memory_equal(logits[1], logits[0], TOKENS * rig.tiny.vocabulary_size * sizeof **logits);
        const struct weight_figures figures = weight_stream_figures(rig.models[1]->stream);
        const uint64_t in_work = figures.expert_hits + figures.expert_misses + figures.expert_ahead_used;
        print_message("%s, %llu slots: %llu in work, %llu read, %llu of them in vain\n",
                      family, (unsigned long long)figures.expert_slots, (unsigned long long)in_work,
                      (unsigned long long)(figures.expert_misses + figures.expert_ahead),
                      (unsigned long long)(figures.expert_ahead - figures.expert_ahead_used));
        /* Of the last layer one row's, or all. */
        const uint64_t most = (LAYERS - 1) * EXPERTS + (all ? EXPERTS : rig.tiny.expert_used);
        assert_true(in_work <= most);
        assert_met(in_work == most);
    }
    for (size_t i = 0; i < 2; i++) free(logits[i]);
    rig_close(&rig);
}

/* Also beside a dense part, with what tokens give the layers behind them; and where every row's logits are wanted. */
static void test_experts_are_read_once(void **state) {
    (void)state;
    read_once("qwen3moe", false);
    read_once("qwen3moe", true);
    read_once("gemma4", true);
}

static bool stop_at(void *context, uint64_t done, uint64_t total) {
    uint64_t *calls = context;
    (void)done, (void)total;
    return --*calls == 0;
}

/* A pass that ended within a layer leaves nothing behind. */
static void test_interrupted_prompt(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20261123);
    for (size_t round = 0; round < ROUNDS / 4; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        float *expected = run(&rig, 0);
        (void)limit(&rig, rig.least, NULL);
        struct sequence *sequence;
        const float *logits;
        uint64_t calls = random_between(&rig.random, 1, 6);
        const struct prefill_request request = {.tokens = rig.tokens[0],
                                                .token_count = rig.counts[0],
                                                .progress = stop_at,
                                                .progress_context = &calls};
        assert_ok(sequence_create(&sequence, rig.engines[1], &rig.error), rig.error);
        const enum status status = engine_prefill(rig.engines[1], sequence, &request, &logits, &rig.error);
        assert_true(status == STATUS_INTERRUPTED || status == STATUS_OK);
        sequence_destroy(sequence);
        float *found = run(&rig, 1);
        assert_memory_equal(found, expected,
                            SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found);
        free(found), free(expected);
        rig_close(&rig);
    }
}

static enum status try_prompt_of(struct rig *rig, size_t which, struct error *error) {
    struct sequence *sequence;
    const float *logits;
    const struct prefill_request request = {.tokens = rig->tokens[0], .token_count = rig->counts[0]};
    assert_ok(sequence_create(&sequence, rig->engines[which], &rig->error), rig->error);
    enum status status = engine_prefill(rig->engines[which], sequence, &request, &logits, error);
    sequence_destroy(sequence);
    return status;
}

static enum status try_prompt(struct rig *rig, struct error *error) { return try_prompt_of(rig, 1, error); }

/* The n-th call to the system fails, for every n: the file is named, and the next pass is right.  Of a mixture for some
 * n: an expert is read by many calls that are alike. */
static void fail_calls(const char *const *families, size_t family_count) {
    const uint64_t seed = test_seed(20261123);
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_EMFILE, FAULT_EINTR, FAULT_EAGAIN,
                                            FAULT_SHORT_HALF};
    struct fault_plan faults; /* the model's file uses it until the rig is closed */
    struct rig rig;
    rig_open_of(&rig, seed, families, family_count);
    const bool has_experts = rig.tiny.expert_count > 0;
    const uint64_t budget = has_experts ? weight_bytes(rig.models[1]) - 1 : rig.least, stride = has_experts ? 37 : 1;
    for (size_t s = 0; s < SEQUENCES && has_experts; s++) rig.counts[s] = min_size(rig.counts[s], 8);
    float *expected = run(&rig, 0);
    size_t refused = 0, failed = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++)
        for (uint64_t n = kind % stride;; n += stride) {
            struct error error = {.message = ""};
            fault_plan_init(&faults, kinds[kind], n, false, 0);
            enum status status = model_limit_weights(rig.models[1], budget, &faults.faults, &error);
            const bool stands = status == STATUS_OK;
            if (stands) status = try_prompt(&rig, &error);
            const bool hit = faults.hits > 0;
            faults.kind = FAULT_NONE; /* what was read ahead for the next pass may have failed, too */
            if (stands && status == STATUS_OK) status = try_prompt(&rig, &error);
            if (kinds[kind] != FAULT_EIO && kinds[kind] != FAULT_EMFILE) assert_int_equal(status, STATUS_OK);
            if (status != STATUS_OK) {
                assert_int_equal(status, STATUS_IO);
                assert_non_null(strstr(error.message, rig.path));
                refused += !stands, failed += stands;
            }
            if (stands && n % 4 == 0) { /* the fault is over: the next passes are right */
                float *found = run(&rig, 1);
                assert_memory_equal(found, expected,
                                    SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found);
                free(found);
            }
            if (!hit) break;
        }
    if (has_experts)
        assert_met(failed > 0); /* not where all that failed was read ahead: it is read again */
    else
        assert_true(refused > 0 && failed > 0);
    free(expected);
    rig_close(&rig);
}

static void test_every_fault(void **state) {
    (void)state;
    static const char *const with_experts = "qwen3moe";
    fail_calls(tiny_families, TINY_FAMILIES);
    fail_calls(&with_experts, 1);
}

static void change_last_byte(const char *path) {
    FILE *file = fopen(path, "r+be");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void cut_last_byte(const char *path) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, before.st_size - 1), 0);
}

/* As a tool that keeps times writes it. */
static void change_and_date_back(const char *path) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    change_last_byte(path);
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A process that touches a mapped page that is not there any more gets SIGBUS. */
static void cut_all_but_a_byte(const char *path) {
    assert_int_equal(truncate(path, 1), 0);
}

static void add_byte(const char *path) {
    FILE *file = fopen(path, "abe");
    assert_non_null(file);
    assert_int_equal(fputc(1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* A model file that is written to while it is in use, mapped or read: no answer is computed from two versions of it
 * unsaid, nothing is saved, and the process lives. */
static void test_changed_file(void **state) {
    (void)state;
    static void (*const changes[])(const char *path) = {change_last_byte, cut_last_byte, add_byte,
                                                        change_and_date_back, cut_all_but_a_byte};
    static const char *const families[] = {"llama", "llama", "qwen3moe"};
    for (size_t i = 0; i < 3 * sizeof changes / sizeof *changes; i++) {
        struct rig rig;
        const size_t which = i % 3 > 0;
        if (i % 3 == 2 && changes[i / 3] != change_last_byte && changes[i / 3] != cut_all_but_a_byte) continue;
        struct sequence *sequence;
        rig_open_of(&rig, test_seed(20261123), &families[i % 3], 1);
        if (i % 3 == 2) rig.counts[0] = 8;
        struct error error = {.message = ""};
        if (which == 1) (void)limit(&rig, rig.least, NULL);
        assert_ok(try_prompt_of(&rig, which, &error), error);
        assert_ok(sequence_create(&sequence, rig.engines[which], &error), error);
        sequence_set_owner(sequence, NULL, "kept"); /* however short */
        const struct prefill_request request = {.tokens = rig.tokens[0], .token_count = rig.counts[0]};
        assert_ok(engine_prefill(rig.engines[which], sequence, &request, NULL, &error), error);
        changes[i / 3](rig.path);
        for (int again = 0; again < 2; again++) {
            error.message[0] = '\0';
            assert_int_equal(try_prompt_of(&rig, which, &error), STATUS_MODEL);
            assert_non_null(strstr(error.message, rig.path));
            assert_non_null(strstr(error.message, "changed"));
        }
        const float *logits;
        assert_int_equal(engine_step(rig.engines[which], &sequence, rig.tokens[0], 1, &logits, &error), STATUS_MODEL);
        assert_int_equal(sequence_save(sequence, &error), rig.has_disk ? STATUS_MODEL : STATUS_OK);
        sequence_destroy(sequence);
        rig_close(&rig);
    }
}

/* Another file of that name, as a download puts it there: the answers are those of the file that was opened. */
static void test_replaced_file(void **state) {
    (void)state;
    struct rig rig;
    char other[80];
    rig_open(&rig, test_seed(20261123));
    float *expected = run(&rig, 0);
    (void)limit(&rig, rig.least, NULL);
    snprintf(other, sizeof other, "%s.other", rig.path);
    struct tiny_model tiny = rig.tiny;
    tiny.seed++;
    tiny_model_write(&tiny, other);
    assert_int_equal(rename(other, rig.path), 0);
    for (size_t which = 0; which < 2; which++) {
        float *found = run(&rig, which);
        assert_memory_equal(found, expected,
                            SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found);
        free(found);
    }
    free(expected);
    rig_close(&rig);
}

/* A second name and other rights, as a backup by links gives them, are no change; bytes behind them are. */
static void test_linked_file(void **state) {
    (void)state;
    struct rig rig;
    struct error error = {.message = ""};
    char other[80];
    rig_open(&rig, test_seed(20261128));
    (void)limit(&rig, rig.least, NULL);
    snprintf(other, sizeof other, "%s.other", rig.path);
    assert_int_equal(link(rig.path, other), 0);
    for (size_t which = 0; which < 2; which++) assert_ok(try_prompt_of(&rig, which, &error), error);
    assert_int_equal(chmod(other, 0400), 0);
    for (size_t which = 0; which < 2; which++) assert_ok(try_prompt_of(&rig, which, &error), error);
    assert_int_equal(chmod(other, 0600), 0);
    change_last_byte(other);
    for (size_t which = 0; which < 2; which++) assert_int_equal(try_prompt_of(&rig, which, &error), STATUS_MODEL);
    unlink(other);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_sizes_of_the_header),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_experts_are_read_once),
        cmocka_unit_test(test_interrupted_prompt),
        cmocka_unit_test(test_every_fault),
        cmocka_unit_test(test_changed_file),
        cmocka_unit_test(test_replaced_file),
        cmocka_unit_test(test_linked_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
