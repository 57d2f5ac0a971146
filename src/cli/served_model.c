#include "cli/served_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bundled_model.h"
#include "cli/model_type.h"
#include "cli/prompt.h"

enum status served_model_read(struct served_model *model, const struct options *options, const char *document_name,
                              struct error *error) {
    model->options = options;
    model->document_name = document_name;
    TRY(plan_read(&model->plan, options, error));
    return sampling_read(&model->sampling, options, error);
}

/* context_size 0: that of the options. */
static enum status create_engine(struct served_model *model, bool found_damage, uint64_t context_size,
                                 struct error *error) {
    const struct engine_options options = {.found_damage = found_damage};
    struct session *session = model->answering;
    const struct model_config *config = &session->model->config;
    model->plan.context_size = context_size != 0 ? context_size : option_count(model->options, OPTION_CONTEXT);
    const size_t parallel = option_count(model->options, OPTION_PARALLEL);
    const bool chooses = model->is_batch && !option_given(model->options, OPTION_PARALLEL);
    size_t together = chooses ? model->sequences : model->is_batch ? parallel : 1;
    model->plan.sequence_capacity = model->sequences != 0 ? model->sequences : parallel;
    model->plan.document_name = model->document_name;
    model->plan.pools_key_index = true;
    plan_read_sizes(&model->plan, model->options);
    TRY(plan_take_auto(&model->plan, model->options, session, plan_context_size(&model->plan, config), &together,
                       error));
    if (chooses && together != 0) model->plan.sequence_capacity = model->sequences = together;
    plan_bound_device(&model->plan, session->device);
    TRY(plan_fit_context(&model->plan, config, error));
    TRY(plan_set_host_bytes(&model->plan, config, error));
    return session_create_engine(session, &model->plan, &options, error);
}

/* Where any device will do the processor takes over; else no request is answered any more.  The server describes the
 * model that it began with, so that one stays. */
static enum status leave_device(struct served_model *model, struct error *error) {
    struct session *broken = &model->session;
    const uint64_t context_size = broken->engine != NULL ? engine_context_size(broken->engine) : 0;
    enum status status = device_state(broken->device, error);
    engine_destroy(broken->engine);
    broken->engine = NULL;
    if (session_takes_any_device(model->options)) {
        fprintf(stderr, "loam: %s; answers go on by the cpu\n", error->message);
        status = session_open_cpu(&model->cpu, model->path, model->options, broken->thread_count, error);
        model->answering = &model->cpu;
        if (status == STATUS_OK) status = create_engine(model, false, context_size, error);
        if (status == STATUS_OK) return status;
    }
    model->lost = *error;
    atomic_store_explicit(&model->is_lost, true, memory_order_release); /* pairs with served_model_state */
    return status;
}

enum status served_model_state(const struct served_model *model, struct error *error) {
    if (!atomic_load_explicit(&model->is_lost, memory_order_acquire)) return STATUS_OK; /* pairs with leave_device */
    *error = model->lost;
    return model->lost.status;
}

/* In the place of one that found a saved document damaged, or whose device broke. */
static enum status make_engine(void *context, struct engine **engine, struct error *error) {
    struct served_model *model = context;
    TRY(served_model_state(model, error));
    model->answering->engine = *engine;
    const enum status status = device_state(model->answering->device, NULL) == STATUS_OK
                                   ? create_engine(model, true, 0, error)
                                   : leave_device(model, error);
    *engine = model->answering->engine;
    return status;
}

/* The name of --alias, or the file's without its folder and ending. */
static enum status name_model(struct served_model *model, struct error *error) {
    const char *alias = option_text(model->options, OPTION_ALIAS), *slash = strrchr(model->path, '/');
    model->id = strdup(alias != NULL ? alias : slash != NULL ? slash + 1 : model->path);
    if (model->id == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    const size_t length = strlen(model->id);
    if (alias == NULL && length > 5 && strcmp(model->id + length - 5, ".gguf") == 0) model->id[length - 5] = '\0';
    return STATUS_OK;
}

/* Without a template that can be used there are completions, and the other models' clients have their server. */
static enum status choose_template(struct served_model *model, struct error *error) {
    struct error why;
    const enum status status = prompt_template(model->options, &model->session.model->gguf, &model->chat, &why);
    if (status == STATUS_UNSUPPORTED) {
        fprintf(stderr, "loam: note: %s; chats are refused\n", why.message);
        return STATUS_OK;
    }
    if (status != STATUS_OK) *error = why;
    return status;
}

enum status served_model_open(struct served_model *model, struct error *error) {
    const struct options *options = model->options;
    TRY(model_path(options, &model->path, error));
    TRY(name_model(model, error));
    TRY(session_open(&model->session, options, option_count(options, OPTION_THREADS), error));
    TRY(sampling_take_model(&model->sampling, options, &model->session.model->gguf, error));
    TRY(session_open_tokenizer(&model->session, options, error));
    TRY(choose_template(model, error));
    model->answering = &model->session;
    enum status status = create_engine(model, false, 0, error);
    if (status != STATUS_OK && device_state(model->session.device, NULL) != STATUS_OK)
        status = leave_device(model, error);
    TRY(status);
    const struct service_options service = {.engine = model->answering->engine,
                                            .tokenizer = model->session.tokenizer,
                                            .make_engine = make_engine,
                                            .make_engine_context = model,
                                            .parallel = model->plan.sequence_capacity,
                                            .idle_ms = (uint32_t)option_count(options, OPTION_IDLE_UNLOAD) * 1000,
                                            .draft_max = option_count(options, OPTION_DRAFT_MAX)};
    return service_create(&model->service, &service, error);
}

struct server_model served_model_describe(const struct served_model *model) {
    const struct gguf *gguf = &model->session.model->gguf;
    struct gguf_string chat_text = {NULL, 0};
    struct error ignored; /* a template of another type: prompt_template has said so */
    (void)!gguf_get_string(gguf, "tokenizer.chat_template", &chat_text, &ignored);
    return (struct server_model){.id = model->id,
                                 .path = model->path,
                                 .model = model->session.model,
                                 .tokenizer = model->session.tokenizer,
                                 .chat = model->chat,
                                 .chat_text = chat_text.text,
                                 .chat_text_length = chat_text.length,
                                 .parameter_count = model_parameter_count(gguf),
                                 .size_bytes = model_tensor_bytes(gguf),
                                 .service = model->service,
                                 .sampling = model->sampling.options,
                                 .about_documents = model->sampling.about_documents,
                                 .has_seed = option_integer(model->options, OPTION_SEED) >= 0,
                                 .documents = model->plan.disk_directory,
                                 .in_tiers = model->plan.host_bytes > 0};
}

void served_model_close(struct served_model *model) {
    if (model->service != NULL) model->answering->engine = service_engine(model->service);
    service_destroy(model->service);
    chat_template_destroy(model->chat);
    session_close(&model->cpu);
    session_close(&model->session);
    plan_deinit(&model->plan);
    free(model->id);
}
