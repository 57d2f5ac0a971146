#include "server/routes.h"

#include <stdlib.h>
#include <string.h>

struct route {
    enum http_method method;
    /* That ends in '/', but '/' itself: everything below it.  '*': one name */
    const char *path;
    void (*handle)(struct server *server, struct exchange *exchange);
    bool answers_always; /* while loading and draining, too */
    bool takes_file;     /* the body is a file, read as it comes (exchange.h) */
};

static void embeddings_route(struct server *server, struct exchange *exchange) {
    struct api_error error;
    (void)server;
    api_error_set(&error, 501, NULL, "embeddings: this server does not compute them");
    error.never_retry = true;
    exchange_reply_error(exchange, &error);
}

static const struct route table[] = {
    {HTTP_GET, "/", page_route, true, false},
    {HTTP_GET, "/health", health_route, true, false},
    {HTTP_GET, "/v1/health", health_route, true, false},
    {HTTP_GET, "/v1/models", models_route, false, false},
    {HTTP_GET, "/v1/models/", model_route, false, false},
    {HTTP_GET, "/models", models_route, false, false},
    {HTTP_GET, "/props", props_route, false, false},
    {HTTP_GET, "/metrics", metrics_route, false, false},
    {HTTP_POST, "/v1/completions", completions_route, false, false},
    {HTTP_POST, "/v1/chat/completions", chat_route, false, false},
    {HTTP_POST, "/v1/responses", responses_route, false, false},
    {HTTP_POST, "/v1/messages", messages_route, false, false},
    {HTTP_POST, "/v1/messages/count_tokens", count_tokens_route, false, false},
    {HTTP_POST, "/apply-template", apply_template_route, false, false},
    {HTTP_POST, "/tokenize", tokenize_route, false, false},
    {HTTP_POST, "/detokenize", detokenize_route, false, false},
    {HTTP_GET, "/tokenizer_info", tokenizer_info_route, false, false},
    {HTTP_POST, "/v1/loam/documents", document_upload_route, false, false},
    {HTTP_GET, "/v1/loam/documents", document_list_route, false, false},
    {HTTP_POST, "/v1/loam/documents/import", document_import_route, false, true},
    {HTTP_GET, "/v1/loam/documents/*/export", document_export_route, false, false},
    {HTTP_GET, "/v1/loam/documents/*/text", document_text_route, false, false},
    {HTTP_GET, "/v1/loam/documents/", document_show_route, false, false},
    {HTTP_DELETE, "/v1/loam/documents/", document_remove_route, false, false},
    {HTTP_GET, "/v1/loam/conversations", conversation_list_route, false, false},
    {HTTP_GET, "/v1/loam/conversations/", conversation_show_route, false, false},
    {HTTP_PUT, "/v1/loam/conversations/", conversation_put_route, false, false},
    {HTTP_DELETE, "/v1/loam/conversations/", conversation_remove_route, false, false},
    {HTTP_POST, "/v1/loam/text", text_route, false, true},
    {HTTP_GET, "/v1/loam/map", map_route, false, false},
    {HTTP_POST, "/v1/loam/explain", explain_route, false, false},
    {HTTP_POST, "/v1/embeddings", embeddings_route, false, false},
};

/* What is before the name, and behind it. */
static bool matches_around(const char *pattern, const char *star, const char *path, size_t length) {
    const size_t before = (size_t)(star - pattern), after = strlen(star + 1);
    return length > before + after && memcmp(path, pattern, before) == 0 &&
           memcmp(path + length - after, star + 1, after) == 0 &&
           memchr(path + before, '/', length - before - after) == NULL;
}

/* A path is also known without /v1, with slashes twice, and with one behind it: clients join addresses in many ways. */
static bool is_spelled(const char *route, const char *path, size_t length) {
    const char *end = path + length;
    while (length > 1 && end[-1] == '/' && end > path + 1) end--;
    for (int version = 1; version >= 0; version--) {
        const char *want = route, *at = path;
        if (version == 0 && strncmp(route, "/v1/", 4) != 0) break;
        if (version == 0) want += 3;
        while (*want != '\0' && at < end && *want == *at) {
            want++, at++;
            while (at[-1] == '/' && at < end && *at == '/') at++;
        }
        if (*want == '\0' && at == end) return true;
    }
    return false;
}

static bool matches(const struct route *route, const char *path, size_t length) {
    const size_t own = strlen(route->path);
    const char *star = strchr(route->path, '*');
    if (star != NULL) return matches_around(route->path, star, path, length);
    if (own > 1 && route->path[own - 1] == '/') return length > own && memcmp(path, route->path, own) == 0;
    return is_spelled(route->path, path, length);
}

bool routes_have(const struct head *head, struct api_error *error) {
    const enum http_method method = head->method == HTTP_HEAD ? HTTP_GET : head->method;
    bool has_path = false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!matches(&table[i], head->path.text, head->path.length)) continue;
        if (method == table[i].method || method == HTTP_OPTIONS) return true;
        has_path = true;
    }
    if (has_path) return api_error_set(error, 405, NULL, "this path has no such method");
    const int shown = head->path.length < 200 ? (int)head->path.length : 200;
    return api_error_set(error, 404, NULL, "no route %.*s", shown, head->path.text);
}

bool routes_take_file(const struct head *head) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].method == head->method && matches(&table[i], head->path.text, head->path.length))
            return table[i].takes_file;
    return false;
}

static const struct route *find(const struct exchange *exchange) {
    const enum http_method method = exchange_method(exchange);
    const char *path = exchange_path(exchange);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (matches(&table[i], path, strlen(path)) && table[i].method == (method == HTTP_HEAD ? HTTP_GET : method))
            return &table[i];
    return NULL;
}

void routes_handle(void *context, struct exchange *exchange) {
    struct server *server = context;
    struct api_error error;
    const struct route *route = find(exchange);
    const int state = atomic_load(&server->state);
    if (exchange_method(exchange) == HTTP_OPTIONS) {
        exchange_reply(exchange, 204, "text/plain", NULL, 0);
    } else if (route == NULL) { /* a path that the exchange has cut short */
        exchange_refuse(exchange, 404, "no such route");
    } else if (state == SERVER_READY || route->answers_always) {
        route->handle(server, exchange);
    } else {
        api_error_set(&error, 503, NULL, state == SERVER_LOADING ? "Loading model" : "the server is stopping");
        error.retry_after_seconds = 1;
        exchange_reply_error(exchange, &error);
    }
    uint64_t ignored;
    if (!exchange_streams_body(exchange, &ignored)) exchange_drop_body(exchange);
}
