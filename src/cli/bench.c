/* loam bench: llama-bench's tests on loam.
 *
 * Each combination of -t, -b, -ub, -ctk, -ctv and --preset has an engine.  At each depth its sequences are filled once
 * and cut back to the depth before each repetition, so only the test is timed.  Token ids are random: the work does not
 * depend on them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "cli/bench_replay.h"
#include "cli/bench_result.h"
#include "cli/bundled_model.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_type.h"
#include "cli/page_fractions.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/trace_file.h"
#include "measure/bandwidth.h"
#include "measure/kv_scratch.h"
#include "platform/clock.h"

enum { FILL_SEED = 1, TESTS_MAX = 4096, PRESETS_LISTED = 16 };

struct bench {
    const struct options *options;
    char *preset_names; /* owned: the texts of presets, as --preset has them: "hata:512" */
    const char *presets[PRESETS_LISTED];
    size_t preset_count;
    struct plan plan;
    struct session session;
    struct kv_scratch scratch; /* where KV on disk lies */
    struct trace_file trace;
    struct bench_model model;
    struct bench_printer printer;
    struct random random;
    struct sequence *sequences[ENGINE_SEQUENCES_MAX];
    size_t sequence_count;      /* created */
    void *replay;               /* owned, of --replay; NULL: none */
    struct bandwidth bandwidth; /* open with --floor */
    char kernels[128];
    token_id *tokens; /* [longest prompt or depth] random ids */
    size_t token_capacity;
    bool quiet;
};

const struct bench_replay *bench_replay;

/* ---- one test ---- */

static enum status check_interrupt(struct error *error) {
    return interrupt_requested() ? error_set(error, STATUS_INTERRUPTED, "interrupted") : STATUS_OK;
}

static token_id random_token(struct bench *bench) {
    return (token_id)random_below(&bench->random, bench->session.model->config.vocabulary_size);
}

/* label NULL: no progress. */
static enum status prefill(struct bench *bench, struct sequence *sequence, uint64_t count, const char *label,
                           struct error *error) {
    struct progress progress;
    progress_begin(&progress, label, bench->quiet || label == NULL);
    for (uint64_t i = 0; i < count; i++) bench->tokens[i] = random_token(bench);
    struct prefill_request request = {
        .tokens = bench->tokens, .token_count = count, .progress = progress_engine, .progress_context = &progress};
    const float *logits;
    enum status status = engine_prefill(bench->session.engine, sequence, &request, &logits, error);
    progress_end(&progress);
    return status;
}

/* Adds the time of the plain reads, one between two steps, to *read_ns.  NULL: there are none. */
static enum status decode(struct bench *bench, uint64_t step_count, size_t sequence_count, uint64_t *read_ns,
                          struct error *error) {
    token_id tokens[ENGINE_SEQUENCES_MAX];
    for (uint64_t step = 0; step < step_count; step++) {
        for (size_t i = 0; i < sequence_count; i++) tokens[i] = random_token(bench);
        const float *logits;
        TRY(engine_step(bench->session.engine, bench->sequences, tokens, sequence_count, &logits, error));
        if (read_ns != NULL) *read_ns += bandwidth_pass_ns(&bench->bandwidth, device_pool(bench->session.device));
        TRY(check_interrupt(error));
    }
    return STATUS_OK;
}

static enum status run_test_once(struct bench *bench, const struct bench_test *test, uint64_t prompt_count,
                                 uint64_t generate_count, uint64_t *read_ns, struct error *error) {
    if (prompt_count > 0)
        for (size_t i = 0; i < test->sequence_count; i++)
            TRY(prefill(bench, bench->sequences[i], prompt_count, NULL, error));
    return decode(bench, generate_count, test->sequence_count, read_ns, error);
}

/* Afterwards every sequence of the test is depth tokens long. */
static enum status set_depth(struct bench *bench, const struct bench_test *test, struct error *error) {
    for (size_t i = 0; i < test->sequence_count; i++) {
        if (i == bench->sequence_count) {
            TRY(sequence_create(&bench->sequences[i], bench->session.engine, error));
            bench->sequence_count++;
        }
        struct sequence *sequence = bench->sequences[i];
        if (test->replays) {
            const struct replay_place place = {sequence, i, test->depth, max_size(test->generate_count, 1)};
            TRY(bench_replay->fill(bench->replay, bench->session.engine, &place, error));
            continue;
        }
        sequence_truncate(sequence, test->depth);
        uint64_t missing = test->depth - sequence_length(sequence);
        if (missing == 0) continue;
        if (test->random_depth)
            TRY(engine_fill_random(bench->session.engine, sequence, missing, FILL_SEED + i, error));
        else
            TRY(prefill(bench, sequence, missing, "depth", error));
    }
    for (size_t i = test->sequence_count; i < bench->sequence_count; i++)
        sequence_truncate(bench->sequences[i], 0); /* gives its memory back */
    return STATUS_OK;
}

static enum status run_test(struct bench *bench, struct bench_test *test, struct error *error) {
    TRY(set_depth(bench, test, error));
    if (!option_flag(bench->options, OPTION_NO_WARMUP)) {
        /* Touches weights and buffers as the test will: a block of prompt, a step. */
        TRY(run_test_once(bench, test, min_size(test->prompt_count, test->ubatch), test->generate_count > 0 ? 1 : 0,
                          NULL, error));
        TRY(set_depth(bench, test, error));
    }
    struct attention *attention = engine_attention(bench->session.engine);
    attention_reset_statistics(attention);
    struct kv_tier_statistics before = engine_tier_statistics(bench->session.engine);
    const struct rebuild_statistics rebuilt = attention_rebuild_statistics(attention);
    const struct device_counts counts = device_counts(bench->session.device);
    struct fetch_counts fetched;
    TRY(engine_fetch_counts(bench->session.engine, &fetched, error));
    uint64_t repetitions = option_count(bench->options, OPTION_REPETITIONS);
    const bool reads = bench->bandwidth.memory != NULL && bench_measures_floor(test);
    test->time = time(NULL);
    for (uint64_t r = 0; r < repetitions; r++) {
        if (r > 0) TRY(set_depth(bench, test, error));
        uint64_t read_ns = 0, began = clock_ns();
        TRY(run_test_once(bench, test, test->prompt_count, test->generate_count, reads ? &read_ns : NULL, error));
        test->samples_ns[test->sample_count] = clock_ns() - began - read_ns;
        if (reads)
            test->read_rates[test->sample_count] =
                (double)(test->generate_count * bench->bandwidth.size_bytes) * 1e9 / (double)read_ns;
        test->sample_count++;
        TRY(check_interrupt(error));
    }
    test->counted.device = device_counts(bench->session.device);
    counters_subtract(&device_counters, &test->counted.device, &counts);
    test->counted.select = attention_statistics(attention);
    test->counted.lists = attention_list_buffer_counts(attention);
    test->fractions = sequence_fractions(bench->sequences[0]);
    test->fractions_tokens = sequence_length(bench->sequences[0]);
    if (!bench->quiet) fractions_print(bench->session.engine, bench->sequences[0]);
    test->counted.tier = engine_tier_statistics(bench->session.engine);
    counters_subtract(&kv_tier_counters, &test->counted.tier, &before);
    test->counted.rebuilt = attention_rebuild_statistics(attention);
    counters_subtract(&rebuild_counters, &test->counted.rebuilt, &rebuilt);
    TRY(engine_fetch_counts(bench->session.engine, &test->counted.fetched, error));
    counters_subtract(&fetch_counters, &test->counted.fetched, &fetched);
    test->counted.unit_bytes = engine_unit_bytes(bench->session.engine);
    return bench_print_row(&bench->printer, test, error);
}

/* ---- the list of tests ---- */

struct test_list {
    struct bench_test *tests; /* [TESTS_MAX], only shapes; owned */
    size_t count;
};

static enum status list_add(struct test_list *list, uint64_t prompt_count, uint64_t generate_count, uint64_t depth,
                            uint64_t sequence_count, struct error *error) {
    if (prompt_count + generate_count == 0) return STATUS_OK;
    if (list->count == TESTS_MAX) return error_set(error, STATUS_USAGE, "bench: more than %d tests", TESTS_MAX);
    list->tests[list->count++] = (struct bench_test){.prompt_count = prompt_count,
                                                     .generate_count = generate_count,
                                                     .depth = depth,
                                                     .sequence_count = sequence_count};
    return STATUS_OK;
}

/* llama-bench's order: per depth the prompts, the generations, then the pairs; the batched tests last. */
static enum status list_tests(struct test_list *list, const struct options *options, struct error *error) {
    const struct option_value *prompts = option_list(options, OPTION_BENCH_PROMPT),
                              *generates = option_list(options, OPTION_BENCH_GENERATE),
                              *pairs = option_list(options, OPTION_BENCH_BOTH),
                              *depths = option_list(options, OPTION_BENCH_DEPTH),
                              *parallels = option_list(options, OPTION_BENCH_PARALLEL);
    if (pairs->list_count % 2 != 0)
        return error_set(error, STATUS_USAGE, "-pg: found %zu numbers, expected pairs P,N", pairs->list_count);
    for (size_t d = 0; d < depths->list_count; d++) {
        uint64_t depth = depths->list[d];
        for (size_t i = 0; i < prompts->list_count; i++) TRY(list_add(list, prompts->list[i], 0, depth, 1, error));
        for (size_t i = 0; i < generates->list_count; i++) TRY(list_add(list, 0, generates->list[i], depth, 1, error));
        for (size_t i = 0; i < pairs->list_count; i += 2)
            TRY(list_add(list, pairs->list[i], pairs->list[i + 1], depth, 1, error));
        for (size_t p = 0; p < parallels->list_count; p++)
            for (size_t i = 0; i < generates->list_count; i++)
                if (generates->list[i] > 0)
                    TRY(list_add(list, 0, generates->list[i], depth, parallels->list[p], error));
    }
    if (list->count == 0) return error_set(error, STATUS_USAGE, "bench: no test: -p and -n are both 0");
    if (option_text(options, OPTION_REPLAY) == NULL) return STATUS_OK;
    if (option_flag(options, OPTION_FILL_RANDOM))
        return error_set(error, STATUS_USAGE, "bench: --replay and --fill-random: expected one of them");
    for (size_t i = 0; i < list->count; i++)
        if (list->tests[i].prompt_count > 0)
            return error_set(error, STATUS_USAGE, "bench: --replay is of decode steps: give -p 0 and no -pg");
    return STATUS_OK;
}

/* ---- combinations ---- */

static void destroy_sequences(struct bench *bench) {
    if (bench->replay != NULL) bench_replay->forget(bench->replay);
    while (bench->sequence_count > 0) sequence_destroy(bench->sequences[--bench->sequence_count]);
}

/* Room for the longest test, once, for every combination. */
static enum status reserve_tokens(struct bench *bench, const struct test_list *list, struct plan *plan,
                                  struct error *error) {
    for (size_t i = 0; i < list->count; i++) {
        const struct bench_test *test = &list->tests[i];
        uint64_t length = test->depth + test->prompt_count + test->generate_count + 1;
        plan->context_size = max_size(plan->context_size, length);
        plan->sequence_capacity = max_size(plan->sequence_capacity, test->sequence_count);
        bench->token_capacity = max_size(bench->token_capacity, max_size(test->prompt_count, test->depth));
    }
    if (bench->tokens == NULL) bench->tokens = calloc(bench->token_capacity + 1, sizeof *bench->tokens);
    return bench->tokens != NULL ? STATUS_OK : error_set(error, STATUS_MEMORY, "no memory for the prompt");
}

/* As for `loam run`: the types of -ctk and -ctv, unless --set names a codec. */
static enum status set_axes(const struct bench *bench, struct plan *plan, const char *preset, enum kv_type k_type,
                            enum kv_type v_type, struct error *error) {
    const struct options *options = bench->options;
    plan->k_type = k_type;
    plan->v_type = v_type;
    if (bench->preset_count == 1) /* what --set and --keep change, where none is named */
        TRY(plan_read_axes(plan, options, error));
    else
        TRY(plan_read_preset(plan, options, preset, true, error));
    if ((option_given(options, OPTION_CACHE_K) && plan->k_type != k_type) ||
        (option_given(options, OPTION_CACHE_V) && plan->v_type != v_type))
        return error_set(error, STATUS_USAGE,
                         "bench: --set codec= and other types by -ctk or -ctv: expected one of them");
    return STATUS_OK;
}

/* Reads --preset, and checks every combination before the first one runs. */
static enum status check_axes(struct bench *bench, struct error *error) {
    const struct option_value *k_types = option_list(bench->options, OPTION_CACHE_K),
                              *v_types = option_list(bench->options, OPTION_CACHE_V);
    struct bench_printer *printer = &bench->printer;
    bench->preset_names = strdup(option_text(bench->options, OPTION_PRESET));
    if (bench->preset_names == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    char *rest = bench->preset_names;
    for (char *preset; (preset = strsep(&rest, ",")) != NULL; bench->presets[bench->preset_count++] = preset)
        if (bench->preset_count == PRESETS_LISTED)
            return error_set(error, STATUS_USAGE, "--preset: more than %d", PRESETS_LISTED);
    for (size_t p = 0; p < bench->preset_count; p++)
        for (size_t k = 0; k < k_types->list_count; k++)
            for (size_t v = 0; v < v_types->list_count; v++) {
                struct plan plan = bench->plan; /* borrows what it owns */
                TRY(set_axes(bench, &plan, bench->presets[p], kv_type_of_choice(k_types->list[k]),
                             kv_type_of_choice(v_types->list[v]), error));
                printer->shows_k |= option_given(bench->options, OPTION_CACHE_K) || plan.k_type != KV_F16;
                printer->shows_v |= option_given(bench->options, OPTION_CACHE_V) || plan.v_type != KV_F16;
                printer->shows_reuse |= plan.select.reuse.kind == REUSE_SIMILARITY;
                printer->shows_heads |= plan.persistent && plan.disk_directory != NULL;
            }
    return STATUS_OK;
}

static enum status run_tests(struct bench *bench, const struct test_list *list, const char *preset,
                             struct bench_test settings, struct error *error) {
    const struct engine_options engine_options = {.trace = bench->trace.trace};
    struct plan plan = bench->plan;
    plan.batch_size = min_size(settings.batch, settings.ubatch);
    plan.document_name = "bench";
    TRY(set_axes(bench, &plan, preset, settings.k_type, settings.v_type, error));
    settings.plan = &plan;
    settings.k_type = plan.k_type;
    settings.v_type = plan.v_type;
    TRY(reserve_tokens(bench, list, &plan, error));
    plan_bound_device(&plan, bench->session.device);
    if (plan.device_bytes != 0) TRY(plan_fit_context(&plan, &bench->session.model->config, error));
    TRY(plan_set_host_bytes(&plan, &bench->session.model->config, error));
    TRY(session_create_engine(&bench->session, &plan, &engine_options, error));
    settings.kv_bytes.per_token = engine_kv_bytes_per_token(bench->session.engine);
    settings.kv_bytes.row = engine_kv_row_bytes(bench->session.engine);
    struct bench_test *test = malloc(sizeof *test); /* its samples are too many for the stack */
    if (test == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < list->count; i++) {
        *test = settings;
        test->prompt_count = list->tests[i].prompt_count;
        test->generate_count = list->tests[i].generate_count;
        test->depth = list->tests[i].depth;
        test->sequence_count = list->tests[i].sequence_count;
        uint64_t middle = test->depth + test->prompt_count + test->generate_count / 2;
        test->kv_bytes.step = engine_step_bytes(bench->session.engine, middle);
        status = run_test(bench, test, error);
    }
    free(test);
    destroy_sequences(bench);
    return status;
}

static enum status open_model(struct bench *bench, uint64_t threads, struct error *error) {
    session_close(&bench->session);
    TRY(session_open(&bench->session, bench->options, threads, error));
    const struct model *model = bench->session.model;
    const char *path;
    TRY(model_path(bench->options, &path, error));
    bench->model = (struct bench_model){
        .path = path,
        .kernels = cpu_mask_text(bench->session.mask, bench->kernels, sizeof bench->kernels),
        .cpu = cpu_model_name(),
        .device = bench->session.device->name,
        .device_layers = device_memory_free(model->device) == UINT64_MAX
                             ? 0
                             : min_size(model->device_layers, model->config.layer_count),
        .bus_bytes = model->bus_bytes,
        .size_bytes = model_tensor_bytes(&model->gguf),
        .parameter_count = model_parameter_count(&model->gguf),
        .weight_bytes_per_token = model_step_bytes(model),
    };
    model_type_text(&model->gguf, bench->model.type, sizeof bench->model.type);
    if (bench->printer.has_floor && bench->bandwidth.memory == NULL)
        TRY(bandwidth_open(&bench->bandwidth, device_pool(bench->session.device), BANDWIDTH_PASS_BYTES, error));
    return STATUS_OK;
}

static enum status run_with_threads(struct bench *bench, const struct test_list *list, uint64_t threads,
                                    struct error *error) {
    const struct options *options = bench->options;
    const struct option_value *batches = option_list(options, OPTION_BATCH),
                              *ubatches = option_list(options, OPTION_UBATCH),
                              *k_types = option_list(options, OPTION_CACHE_K),
                              *v_types = option_list(options, OPTION_CACHE_V);
    TRY(open_model(bench, threads, error));
    if (bench->printer.row_count == 0) bench_print_head(&bench->printer);
    struct bench_test settings = {.random_depth = option_flag(options, OPTION_FILL_RANDOM),
                                  .replays = bench->replay != NULL,
                                  .threads = bench->session.thread_count};
    for (size_t k = 0; k < k_types->list_count; k++)
        for (size_t v = 0; v < v_types->list_count; v++)
            for (size_t b = 0; b < batches->list_count; b++)
                for (size_t u = 0; u < ubatches->list_count; u++) {
                    settings.k_type = kv_type_of_choice(k_types->list[k]);
                    settings.v_type = kv_type_of_choice(v_types->list[v]);
                    settings.batch = batches->list[b];
                    settings.ubatch = ubatches->list[u];
                    for (size_t p = 0; p < bench->preset_count; p++)
                        TRY(run_tests(bench, list, bench->presets[p], settings, error));
                }
    return STATUS_OK;
}

/* Replaces the folder of saved documents by a scratch folder: no document is used, added or removed. */
static enum status use_scratch(struct bench *bench, struct error *error) {
    struct plan *plan = &bench->plan;
    if (plan->disk_directory == NULL) return STATUS_OK;
    TRY(kv_scratch_open(&bench->scratch, plan->disk_directory, &plan->disk_bytes, error));
    free((char *)(uintptr_t)plan->disk_directory);
    return plan_set_disk(plan, bench->scratch.path, strlen(bench->scratch.path), plan->disk_bytes, error);
}

enum status bench_command(const struct options *options, struct error *error) {
    interrupt_install();
    struct bench *bench = calloc(1, sizeof *bench);
    struct test_list list = {.tests = calloc(TESTS_MAX, sizeof *list.tests)};
    enum status status = bench == NULL || list.tests == NULL ? error_set(error, STATUS_MEMORY, "out of memory")
                                                             : list_tests(&list, options, error);
    if (status == STATUS_OK) status = plan_read_budgets(&bench->plan, options, error);
    if (bench != NULL) bench->options = options;
    if (status == STATUS_OK) status = check_axes(bench, error);
    if (status == STATUS_OK) status = trace_file_open(&bench->trace, options, error);
    if (status == STATUS_OK) {
        status = use_scratch(bench, error);
        if (status == STATUS_OK && option_text(options, OPTION_REPLAY) != NULL)
            status = bench_replay->open(&bench->replay, option_text(options, OPTION_REPLAY), error);
        bench->quiet = option_flag(options, OPTION_QUIET);
        bench->printer.format = (enum bench_format)option_list(options, OPTION_OUTPUT)->count;
        bench->printer.model = &bench->model;
        bench->printer.has_floor = option_flag(options, OPTION_FLOOR);
        bench->printer.shows_batch = option_given(options, OPTION_BATCH);
        bench->printer.shows_ubatch = option_given(options, OPTION_UBATCH);
        random_init(&bench->random, FILL_SEED);
        const struct option_value *threads = option_list(options, OPTION_THREADS);
        for (size_t t = 0; status == STATUS_OK && t < threads->list_count; t++)
            status = run_with_threads(bench, &list, threads->list[t], error);
        bool has_head = bench->model.cpu != NULL;
        struct error end_error;
        enum status ended = has_head ? bench_print_end(&bench->printer, &end_error) : STATUS_OK;
        if (status == STATUS_OK && ended != STATUS_OK) {
            status = ended;
            *error = end_error;
        }
        destroy_sequences(bench);
        session_close(&bench->session);
        kv_scratch_close(&bench->scratch);
        if (bench->replay != NULL) bench_replay->close(bench->replay);
        bandwidth_close(&bench->bandwidth);
        status = trace_file_close(&bench->trace, status, error);
        free(bench->tokens);
    }
    if (bench != NULL) {
        plan_deinit(&bench->plan);
        free(bench->preset_names);
    }
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    free(list.tests);
    free(bench);
    return status;
}
