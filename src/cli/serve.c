/* loam serve: a model behind HTTP. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/prompt.h"
#include "cli/serve_log.h"
#include "cli/served_model.h"
#include "cli/version.h"
#include "platform/memory.h"
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
    struct served_model model;
    struct words keys, file_keys, origins;
    char host[1024]; /* a name, an address, or the path of a socket */
    const char *all_keys[2 * OPTION_LIST_MAX];
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

/* [::1] is ::1, as in an address. */
static enum status read_host(struct serve *serve, struct error *error) {
    const char *host = option_text(serve->options, OPTION_HOST);
    size_t length = strlen(host);
    if (length > 2 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length >= sizeof serve->host)
        return error_set(error, STATUS_USAGE, "--host: found %zu bytes, expected fewer than %zu", length,
                         sizeof serve->host);
    memcpy(serve->host, host, length);
    serve->host[length] = '\0';
    return STATUS_OK;
}

/* Bound before the model is loaded: a port that is taken is told at once, and who asks early is answered 503. */
static enum status open_server(struct serve *serve, struct error *error) {
    const struct options *options = serve->options;
    TRY(read_keys(serve, error));
    TRY(read_host(serve, error));
    TRY(words_of_option(&serve->origins, options, OPTION_CORS_ORIGINS, "--cors-origins", error));
    const struct server_options server = {
        .host = serve->host,
        .port = (uint16_t)option_count(options, OPTION_PORT),
        .network_max = option_count(options, OPTION_ADDRESS_CONNECTIONS),
        .counts_local = option_given(options, OPTION_ADDRESS_CONNECTIONS),
        .keys = serve->all_keys,
        .key_count = serve->keys.count + serve->file_keys.count,
        .origins = serve->origins.words,
        .origin_count = serve->origins.count,
        .shares_documents = option_flag(options, OPTION_SHARED_DOCUMENTS),
        .has_vllm_metrics = option_flag(options, OPTION_VLLM_METRICS),
        .version = version_number,
        .log = serve_log_of(option_flag(options, OPTION_QUIET) ? SERVE_LOG_NONE : option_count(options, OPTION_LOG)),
    };
    return server_create(&serve->server, &server, error);
}

static void tell_address(const struct serve *serve, const struct served_model *model) {
    const bool is_v6 = strchr(serve->host, ':') != NULL;
    char host[sizeof serve->host + 2], where[24] = "";
    snprintf(host, sizeof host, "%s%s%s", is_v6 ? "[" : "", serve->host, is_v6 ? "]" : "");
    if (server_port(serve->server) > 0) snprintf(where, sizeof where, ":%u", server_port(serve->server));
    fprintf(stderr, "loam: %s on %s%s%s, %zu requests at once of %llu tokens each\n", model->id,
            where[0] != '\0' ? "http://" : "", host, where, service_parallel(model->service),
            (unsigned long long)service_context_size(model->service));
}

/* Once. */
static void tell_damage(const struct serve *serve, bool *is_told) {
    const struct service_statistics now = service_get_statistics(serve->model.service);
    if (*is_told || now.documents_damage[0] == '\0') return;
    *is_told = true;
    fprintf(stderr, "loam: %s; answers go on without it\n", now.documents_damage);
}

/* What the model's file was when it changed (gguf_check): no request is answered from then on.  A device that broke
 * ends the server, unless the processor takes over: it works again for another process at best. */
static enum status watch_model(struct serve *serve, struct error *error) {
    const struct timespec nap = {.tv_nsec = 50000000};
    enum status status = STATUS_OK;
    bool is_told = false;
    while (!interrupt_requested()) {
        TRY(served_model_state(&serve->model, error));
        if (status == STATUS_OK) {
            status = gguf_check(&serve->model.session.model->gguf, error);
            if (status != STATUS_OK) fprintf(stderr, "loam: %s; every request is refused\n", error->message);
        }
        tell_damage(serve, &is_told);
        nanosleep(&nap, NULL);
    }
    return status;
}

static enum status serve_until_interrupted(struct serve *serve, struct error *error) {
    const struct options *options = serve->options;
    struct served_model *model = &serve->model;
    TRY(served_model_read(model, options, "serve", error));
    TRY(open_server(serve, error));
    TRY(served_model_open(model, error));
    const struct server_model served = served_model_describe(model);
    server_begin(serve->server, &served);
    tell_address(serve, model);
    const enum status status = watch_model(serve, error);
    if (interrupt_requested() && !option_flag(options, OPTION_QUIET))
        fputs("loam: stopping; once more leaves at once\n", stderr);
    server_stop(serve->server, DRAIN_SECONDS);
    return status;
}

enum status serve_command(const struct options *options, struct error *error) {
    interrupt_install();
    memory_keep_little(); /* of the largest request */
    struct serve *serve = calloc(1, sizeof *serve);
    if (serve == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    serve->options = options;
    enum status status = serve_until_interrupted(serve, error);
    server_destroy(serve->server);
    served_model_close(&serve->model);
    free(serve->keys.text);
    free(serve->file_keys.text);
    free(serve->origins.text);
    free(serve);
    return status;
}
