/* loam serve: a model behind HTTP. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/bundled_model.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_type.h"
#include "cli/plan.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "cli/version.h"
#include "server/server.h"

enum { DRAIN_SECONDS = 30 };

/* Texts separated by commas or line ends. */
struct words {
    char *text; /* owned; cut into words */
    const char *words[OPTION_LIST_MAX];
    size_t count;
};

struct serve {
    const struct options *options;
    struct plan plan;
    struct session session;
    struct sampling sampling;
    struct words keys, file_keys, origins;
    const char *all_keys[2 * OPTION_LIST_MAX];
    char *id; /* owned: the model's name */
    struct service *service;
    struct server *server;
};

/* ---- the options ---- */

/* Takes text. */
static enum status words_split(struct words *words, char *text, const char *separators, const char *option,
                               struct error *error) {
    words->text = text;
    char *rest = NULL;
    for (char *word = text != NULL ? strtok_r(text, separators, &rest) : NULL; word != NULL;
         word = strtok_r(NULL, separators, &rest)) {
        if (words->count == OPTION_LIST_MAX)
            return error_set(error, STATUS_USAGE, "%s: more than %d", option, OPTION_LIST_MAX);
        words->words[words->count++] = word;
    }
    return STATUS_OK;
}

static enum status words_of_option(struct words *words, const struct options *options, enum option_id id,
                                   const char *name, struct error *error) {
    const char *given = option_text(options, id);
    char *text = given != NULL ? strdup(given) : NULL;
    if (given != NULL && text == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    TRY(words_split(words, text, ",", name, error));
    if (given == NULL || words->count > 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: found nothing", name);
}

static enum status read_keys(struct serve *serve, struct error *error) {
    const char *path = option_text(serve->options, OPTION_API_KEY_FILE);
    TRY(words_of_option(&serve->keys, serve->options, OPTION_API_KEY, "--api-key", error));
    if (path != NULL) {
        char *text;
        size_t length;
        TRY(prompt_read_file(path, &text, &length, error));
        TRY(words_split(&serve->file_keys, text, "\r\n", "--api-key-file", error));
        if (serve->file_keys.count == 0)
            return error_set(error, STATUS_USAGE, "%s: found no key, expected one a line", path);
    }
    memcpy(serve->all_keys, serve->keys.words, sizeof serve->keys.words);
    memcpy(serve->all_keys + serve->keys.count, serve->file_keys.words,
           serve->file_keys.count * sizeof *serve->all_keys);
    return STATUS_OK;
}

/* Bound before the model is loaded: a port that is taken is told at once, and who asks early is answered 503. */
static enum status open_server(struct serve *serve, struct error *error) {
    const struct options *options = serve->options;
    TRY(read_keys(serve, error));
    TRY(words_of_option(&serve->origins, options, OPTION_CORS_ORIGINS, "--cors-origins", error));
    const struct server_options server = {
        .host = option_text(options, OPTION_HOST),
        .port = (uint16_t)option_count(options, OPTION_PORT),
        .keys = serve->all_keys,
        .key_count = serve->keys.count + serve->file_keys.count,
        .origins = serve->origins.words,
        .origin_count = serve->origins.count,
        .shares_documents = option_flag(options, OPTION_SHARED_DOCUMENTS),
        .has_vllm_metrics = option_flag(options, OPTION_VLLM_METRICS),
        .version = version_number,
    };
    return server_create(&serve->server, &server, error);
}

/* ---- the model ---- */

static enum status create_engine(struct serve *serve, bool found_damage, struct error *error) {
    const struct engine_options options = {.found_damage = found_damage};
    const struct model_config *config = &serve->session.model->config;
    serve->plan.context_size = option_count(serve->options, OPTION_CONTEXT);
    serve->plan.sequence_capacity = option_count(serve->options, OPTION_PARALLEL);
    serve->plan.document_name = "serve";
    plan_read_sizes(&serve->plan, serve->options);
    TRY(plan_fit_context(&serve->plan, config, error));
    TRY(plan_set_host_bytes(&serve->plan, config, error));
    return session_create_engine(&serve->session, &serve->plan, &options, error);
}

/* In the place of one that found a saved document damaged. */
static enum status make_engine(void *context, struct engine **engine, struct error *error) {
    struct serve *serve = context;
    serve->session.engine = *engine;
    enum status status = create_engine(serve, true, error);
    *engine = serve->session.engine;
    return status;
}

/* The name of --alias, or the file's without its folder and ending. */
static enum status name_model(struct serve *serve, const char *path, struct error *error) {
    const char *alias = option_text(serve->options, OPTION_ALIAS), *slash = strrchr(path, '/');
    serve->id = strdup(alias != NULL ? alias : slash != NULL ? slash + 1 : path);
    if (serve->id == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    const size_t length = strlen(serve->id);
    if (alias == NULL && length > 5 && strcmp(serve->id + length - 5, ".gguf") == 0)
        serve->id[length - 5] = '\0';
    return STATUS_OK;
}

static enum status open_model(struct serve *serve, struct error *error) {
    const struct options *options = serve->options;
    const char *path;
    struct gguf_string chat_text = {NULL, 0};
    const struct chat_template *chat;
    TRY(model_path(options, &path, error));
    TRY(name_model(serve, path, error));
    TRY(session_open(&serve->session, options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&serve->session, options, error));
    const struct gguf *gguf = &serve->session.model->gguf;
    TRY(prompt_template(options, gguf, &chat, error));
    TRY(gguf_get_string(gguf, "tokenizer.chat_template", &chat_text, error));
    TRY(create_engine(serve, false, error));
    const struct service_options service = {.engine = serve->session.engine,
                                            .tokenizer = serve->session.tokenizer,
                                            .make_engine = make_engine,
                                            .make_engine_context = serve,
                                            .parallel = option_count(options, OPTION_PARALLEL)};
    TRY(service_create(&serve->service, &service, error));
    server_begin(serve->server, &(struct server_model){.id = serve->id,
                                                       .path = path,
                                                       .model = serve->session.model,
                                                       .tokenizer = serve->session.tokenizer,
                                                       .chat = chat,
                                                       .chat_text = chat_text.text,
                                                       .chat_text_length = chat_text.length,
                                                       .parameter_count = model_parameter_count(gguf),
                                                       .size_bytes = model_tensor_bytes(gguf),
                                                       .service = serve->service,
                                                       .sampling = serve->sampling.options,
                                                       .has_seed = option_integer(options, OPTION_SEED) >= 0,
                                                       .documents = serve->plan.disk_directory});
    return STATUS_OK;
}

static enum status serve_until_interrupted(struct serve *serve, struct error *error) {
    const struct options *options = serve->options;
    TRY(plan_read(&serve->plan, options, error));
    TRY(sampling_read(&serve->sampling, options, error));
    TRY(open_server(serve, error));
    TRY(open_model(serve, error));
    fprintf(stderr, "loam: %s on http://%s:%u, %zu requests at once of %llu tokens each\n", serve->id,
            option_text(options, OPTION_HOST), server_port(serve->server), service_parallel(serve->service),
            (unsigned long long)service_context_size(serve->service));
    const struct timespec nap = {.tv_nsec = 50000000};
    while (!interrupt_requested()) nanosleep(&nap, NULL);
    if (!option_flag(options, OPTION_QUIET)) fputs("loam: stopping; once more leaves at once\n", stderr);
    server_stop(serve->server, DRAIN_SECONDS);
    return STATUS_OK;
}

enum status serve_command(const struct options *options, struct error *error) {
    interrupt_install();
    struct serve *serve = calloc(1, sizeof *serve);
    if (serve == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    serve->options = options;
    enum status status = serve_until_interrupted(serve, error);
    server_destroy(serve->server);
    if (serve->service != NULL) serve->session.engine = service_engine(serve->service);
    service_destroy(serve->service);
    session_close(&serve->session);
    plan_deinit(&serve->plan);
    free(serve->keys.text);
    free(serve->file_keys.text);
    free(serve->origins.text);
    free(serve->id);
    free(serve);
    return status;
}
