#include "cli/session.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "attention/attention.h"
#include "cli/bundled_model.h"
#include "cli/progress.h"
#include "device/device_open.h"
#include "model/model_size.h"
#include "model/weight_stream.h"
#include "platform/clock.h"
#include "platform/io_link.h"

enum status session_open(struct session *session, const struct options *options, size_t thread_count,
                         struct error *error) {
    *session = (struct session){0};
    const char *path;
    TRY(model_path(options, &path, error));
    return session_open_path(session, path, options, thread_count, error);
}

static enum status limit_weights(struct session *session, uint64_t bytes, struct error *error) {
    TRY(model_limit_weights(session->model, bytes, NULL, error));
    if (session->model->stream == NULL || session->quiet) return STATUS_OK;
    const struct weight_figures figures = weight_stream_figures(session->model->stream);
    const struct model_config *config = &session->model->config;
    const double pass = (double)figures.pass_bytes / (1 << 20), all = (double)figures.weight_bytes / (1 << 20);
    if (figures.expert_slots > 0)
        fprintf(stderr, "loam: note: %zu of %zu experts fit into RAM; of %.1f of %.1f MiB a pass reads what it misses",
                figures.expert_slots, (config->layer_count - config->experts.dense_layers) * config->experts.count,
                pass, all);
    else
        fprintf(stderr, "loam: note: %zu of %zu layers stay in RAM; %.1f of %.1f MiB of weights are read for each pass",
                figures.resident_layers, config->layer_count, pass, all);
    fprintf(stderr, "%s\n", figures.direct ? "" : ", through the page cache: this file system has no O_DIRECT");
    return STATUS_OK;
}

/* A card attends to everything.  What asks for less, or to know what was left out, runs on the processor. */
static bool reads_everything(const struct options *options) {
    static const enum option_id less[] = {OPTION_SET, OPTION_KEEP, OPTION_LOSS, OPTION_KLD, OPTION_RECEIPT};
    for (size_t i = 0; i < sizeof less / sizeof less[0]; i++)
        if (option_given(options, less[i])) return false;
    const char *preset = option_text(options, OPTION_PRESET);
    return preset == NULL || strcmp(preset, "full") == 0 || strcmp(preset, "flexgen") == 0 ||
           strcmp(preset, "auto") == 0;
}

static size_t device_layers(const struct options *options) {
    return option_given(options, OPTION_GPU_LAYERS) ? option_count(options, OPTION_GPU_LAYERS) : SIZE_MAX;
}

static const char *device_name(const struct options *options) {
    if (option_given(options, OPTION_GPU_LAYERS)) {
        if (option_count(options, OPTION_GPU_LAYERS) == 0) return "cpu";
        if (!option_given(options, OPTION_DEVICE)) return "auto";
    }
    return option_text(options, OPTION_DEVICE);
}

bool session_takes_any_device(const struct options *options) {
    const char *name = device_name(options);
    return name != NULL && strcmp(name, "auto") == 0;
}

enum status session_open_device(struct session *session, const char *path, const struct options *options,
                                struct error *error) {
    struct device_request request = {.name = device_name(options),
                                     .options = {.thread_count = session->thread_count, .mask = session->mask}};
    struct error why;
    if (session_takes_any_device(options)) {
        if (option_given(options, OPTION_WEIGHTS_HOST) || !reads_everything(options)) request.name = "cpu";
        if (path != NULL) request.weights_bytes = model_device_bytes(path, device_layers(options));
    }
    TRY(device_open(&session->device, &request, &why, error));
    if (why.status != STATUS_OK && !session->quiet) fprintf(stderr, "loam: note: %s\n", why.message);
    return STATUS_OK;
}

/* Of --rope-scaling yarn; *tokens 0: positions are as the file says. */
static enum status stretched_context(const struct options *options, uint64_t *tokens, struct error *error) {
    *tokens = 0;
    if (!option_given(options, OPTION_ROPE_SCALING) || option_count(options, OPTION_ROPE_SCALING) != ROPE_BY_YARN)
        return STATUS_OK;
    *tokens = option_count(options, OPTION_CONTEXT);
    if (*tokens > 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "--rope-scaling yarn: expected -c, the context that it stretches to");
}

static enum status load_model(struct session *session, const char *path, const struct options *options, size_t layers,
                              struct error *error) {
    uint64_t stretched;
    TRY(stretched_context(options, &stretched, error));
    struct progress progress;
    progress_begin(&progress, "weights", session->quiet);
    progress.unit = PROGRESS_BYTES;
    const struct model_load_options load = {.device_layers = layers,
                                            .stretched = stretched,
                                            .progress = progress_engine,
                                            .progress_context = &progress};
    enum status status = model_load_with(&session->model, path, session->device, &load, error);
    progress_end(&progress);
    TRY(status);
    const struct model *model = session->model;
    if (stretched > 0 && !session->quiet)
        fprintf(stderr,
                "loam: note: YaRN stretches the %llu tokens that the model was trained for to %llu: answers get "
                "worse, those to short texts too (docs/evaluation.md)\n",
                (unsigned long long)model->config.stretched_from, (unsigned long long)stretched);
    if (model->bus_bytes > 0 && device_memory_free(session->device) != UINT64_MAX && !session->quiet)
        fprintf(stderr, "loam: note: %zu of %zu layers are on %s; %.1f MiB of weights in RAM are read for each pass\n",
                layers, model->config.layer_count, session->device->name, (double)model->bus_bytes / (1 << 20));
    return STATUS_OK;
}

static enum status open_cpu(struct session *session, struct error *error) {
    const struct device_options cpu = {.thread_count = session->thread_count, .mask = session->mask};
    return device_cpu_create(&session->device, &cpu, error);
}

/* A card that breaks, lacks memory or cannot run the model while it is loaded: the processor, if any device will do. */
static bool may_leave_card(const struct session *session, const struct options *options, enum status status) {
    if (!session_takes_any_device(options) || device_memory_free(session->device) == UINT64_MAX) return false;
    return status == STATUS_MEMORY || status == STATUS_UNSUPPORTED || device_state(session->device, NULL) != STATUS_OK;
}

static enum status open_path(struct session *session, const char *path, const struct options *options, bool only_cpu,
                             struct error *error) {
    double began = clock_seconds();
    struct error why;
    session->quiet = option_flag(options, OPTION_QUIET);
    if (option_given(options, OPTION_READ_LIMIT)) io_link_limit(option_count(options, OPTION_READ_LIMIT));
    TRY(cpu_mask_parse(option_text(options, OPTION_CPU_MASK), &session->mask, error));
    TRY(only_cpu ? open_cpu(session, error) : session_open_device(session, path, options, error));
    enum status status = load_model(session, path, options, only_cpu ? SIZE_MAX : device_layers(options), &why);
    if (status != STATUS_OK && !only_cpu && may_leave_card(session, options, status)) {
        if (!session->quiet) fprintf(stderr, "loam: note: %s; the cpu is used\n", why.message);
        device_destroy(session->device);
        session->device = NULL;
        TRY(open_cpu(session, error));
        status = load_model(session, path, options, SIZE_MAX, &why);
    }
    if (status != STATUS_OK) {
        *error = why;
        return status;
    }
    if (option_given(options, OPTION_WEIGHTS_HOST))
        TRY(limit_weights(session, option_count(options, OPTION_WEIGHTS_HOST), error));
    session->load_seconds = clock_seconds() - began;
    return STATUS_OK;
}

enum status session_open_path(struct session *session, const char *path, const struct options *options,
                              size_t thread_count, struct error *error) {
    *session = (struct session){.thread_count = thread_count != 0 ? thread_count : cpu_count()};
    return open_path(session, path, options, false, error);
}

enum status session_open_cpu(struct session *session, const char *path, const struct options *options,
                             size_t thread_count, struct error *error) {
    *session = (struct session){.thread_count = thread_count != 0 ? thread_count : cpu_count()};
    return open_path(session, path, options, true, error);
}

enum status session_open_vocabulary(struct session *session, const struct options *options, struct error *error) {
    *session = (struct session){0};
    const char *path;
    TRY(model_path(options, &path, error));
    struct gguf gguf = {0};
    enum status status = gguf_open(&gguf, path, error);
    if (status == STATUS_OK)
        status = tokenizer_create(&session->tokenizer, &gguf, option_flag(options, OPTION_FORCE_PRE), error);
    gguf_close(&gguf);
    return status;
}

enum status session_open_tokenizer(struct session *session, const struct options *options, struct error *error) {
    double began = clock_seconds();
    TRY(tokenizer_create(&session->tokenizer, &session->model->gguf, option_flag(options, OPTION_FORCE_PRE), error));
    session->load_seconds += clock_seconds() - began;
    return STATUS_OK;
}

/* What a card had no memory for was small; what takes it is known. */
static void say_what_takes_memory(const struct session *session, struct error *error) {
    const size_t used = strlen(error->message);
    if (error->status == STATUS_MEMORY && strstr(error->message, "CUDA_ERROR") != NULL)
        snprintf(error->message + used, sizeof error->message - used,
                 ": try a smaller -c, or fewer layers on %s (-ngl)", session->device->name);
}

enum status session_create_engine(struct session *session, const struct plan *plan,
                                  const struct engine_options *engine_options, struct error *error) {
    double began = clock_seconds();
    engine_destroy(session->engine);
    session->engine = NULL;
    struct plan on_this_disk = *plan;
    if (plan->disk_directory != NULL && plan->read_gap_bytes == 0)
        on_this_disk.read_gap_bytes = machine_file_read_gap();
    const enum status status = engine_create(&session->engine, session->model, &on_this_disk, engine_options, error);
    if (status != STATUS_OK) say_what_takes_memory(session, error);
    TRY(status);
    session->load_seconds += clock_seconds() - began;
    const char *warning = engine_documents_warning(session->engine);
    if (warning != NULL && !session->quiet) fprintf(stderr, "loam: note: %s\n", warning);
    size_t wanted = min_size(plan->resident_layers, session->model->config.layer_count),
           resident = engine_tier_statistics(session->engine).resident_layers;
    if (plan->disk_directory != NULL && resident < wanted && !session->quiet)
        fprintf(stderr,
                "loam: note: of the first %zu layers, which are to stay in RAM, --kv-host holds %zu; of the others "
                "steps read from the disk\n",
                wanted, resident);
    const size_t hard = engine_hard_heads(session->engine);
    if (hard > 0 && plan->disk_directory != NULL && !session->quiet)
        fprintf(stderr, "loam: note: of %zu KV heads that are hard to reuse %zu stay in RAM\n", hard,
                engine_tier_statistics(session->engine).resident_heads);
    if (plan->persistent && plan->unit_bytes > 0 && !session->quiet)
        fprintf(stderr, "loam: note: of the KV heads that choose anew %zu have slots of the device for all units\n",
                attention_whole_heads(engine_attention(session->engine)));
    if (plan_caveat(plan) != NULL && !session->quiet) fprintf(stderr, "loam: note: %s\n", plan_caveat(plan));
    const struct select *select = engine_select(session->engine);
    if (select != NULL && select_fallback(select) != NULL && !session->quiet)
        fprintf(stderr, "loam: note: %s\n", select_fallback(select));
    return STATUS_OK;
}

enum status session_take_choice(struct session *session, const struct auto_choice *choice, struct error *error) {
    if (choice->thread_count != 0 && choice->thread_count != session->thread_count) {
        TRY(device_set_threads(session->device, choice->thread_count, error));
        session->thread_count = choice->thread_count;
    }
    return choice->weights_host_bytes > 0 ? limit_weights(session, choice->weights_host_bytes, error) : STATUS_OK;
}

void session_close(struct session *session) {
    engine_destroy(session->engine);
    tokenizer_destroy(session->tokenizer);
    model_destroy(session->model);
    device_destroy(session->device);
    *session = (struct session){0};
}
