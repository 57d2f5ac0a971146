/* /v1/loam/conversations: what people wrote, on the server's disk by their choice (cache/store/conversations.h).
 *
 * These wait for the disk on the worker's thread, and never for the service's, but for the limit of a folder that is
 * written to. */
#include <string.h>

#include "cache/store/conversations.h"
#include "engine/document_terms.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"

enum { ID_MAX = 64, TITLE_BYTES_MAX = 1024 };

static void reply_none(struct exchange *exchange) { exchange_refuse(exchange, 404, "there is no such conversation"); }

/* The id in the path; NULL: 404 was replied. */
static const char *id_of_path(struct server *server, struct exchange *exchange) {
    const char *id = strrchr(exchange_path(exchange), '/') + 1;
    const size_t length = strspn(id, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-");
    if (server->model.documents != NULL && length > 0 && length <= ID_MAX && id[length] == '\0' &&
        (size_t)(id - exchange_path(exchange)) == strlen("/v1/loam/conversations/"))
        return id;
    if (server->model.documents == NULL)
        exchange_refuse(exchange, 404, "conversations are kept with --kv-disk DIR alone");
    else
        reply_none(exchange);
    return NULL;
}

static void see(void *context, const struct conversation_row *row) {
    json_t *object = JSON({"id", json_text(row->id, strlen(row->id))}, {"object", json_string("loam.conversation")},
                          {"title", json_text(row->title, strlen(row->title))},
                          {"version", json_text(row->version, strlen(row->version))}, {"bytes", json_uint(row->length)},
                          {"changed", json_integer(row->changed)});
    if (row->content != NULL) json_put(object, "content", json_text(row->content, row->length));
    json_array_append_new(context, object);
}

/* All of this key's, or, with an id, one. */
static void reply_rows(struct server *server, struct exchange *exchange, const char *id) {
    char owner[SERVICE_OWNER_MAX];
    struct error reason;
    json_t *data = json_array();
    if (server->model.documents != NULL &&
        conversations_see(server->model.documents, server_owner(server, exchange_key(exchange), owner), id, see, data,
                          &reason) != STATUS_OK)
        server_reply_disk_failure(exchange, &reason);
    else if (id == NULL)
        server_reply_list(server, exchange, json_incref(data));
    else if (json_array_size(data) == 1)
        exchange_reply_json(exchange, 200, json_incref(json_array_get(data, 0)));
    else
        reply_none(exchange);
    json_decref(data);
}

void conversation_list_route(struct server *server, struct exchange *exchange) { reply_rows(server, exchange, NULL); }

void conversation_show_route(struct server *server, struct exchange *exchange) {
    const char *id = id_of_path(server, exchange);
    if (id != NULL) reply_rows(server, exchange, id);
}

static bool read_row(const json_t *body, struct conversation_row *row, struct api_error *error) {
    size_t title_length = 0, version_length = 0;
    const char *version = "";
    row->title = "";
    if (!field_text(body, "title", TITLE_BYTES_MAX, &row->title, &title_length, error) ||
        !field_text(body, "version", sizeof row->version - 1, &version, &version_length, error) ||
        !field_text(body, "content", GUARD_BODY_BYTES_MAX, &row->content, &row->length, error))
        return false;
    if (row->content == NULL) return api_error_set(error, 400, "content", "'content': expected text");
    if (strlen(row->title) != title_length)
        return api_error_set(error, 400, "title", "'title': expected text without zeros");
    memcpy(row->version, version, version_length);
    return true;
}

static enum status put(struct server *server, struct conversation_row *row, bool *is_stale, struct error *error) {
    struct document_terms terms;
    struct store *store;
    TRY(service_document_terms(server->model.service, row->owner, true, &terms, error));
    const struct store_options options = {.directory = server->model.documents, .limit_bytes = terms.limit_bytes};
    TRY(store_open(&store, &options, error));
    const enum status status = conversations_put(store, row, is_stale, error);
    store_close(store);
    return status;
}

void conversation_put_route(struct server *server, struct exchange *exchange) {
    char owner[SERVICE_OWNER_MAX];
    struct api_error refusal;
    struct error reason;
    json_t *body;
    bool is_stale;
    struct conversation_row row = {.owner = server_owner(server, exchange_key(exchange), owner),
                                   .id = id_of_path(server, exchange)};
    if (row.id == NULL || !server_read_body(exchange, &body)) return;
    if (!read_row(body, &row, &refusal)) {
        exchange_reply_error(exchange, &refusal);
    } else if (put(server, &row, &is_stale, &reason) != STATUS_OK) {
        server_reply_disk_failure(exchange, &reason);
    } else if (is_stale && row.version[0] == '\0') {
        reply_none(exchange); /* it was deleted */
    } else if (is_stale) {
        exchange_refuse(exchange, 409, "'version': the conversation was changed meanwhile, to version %s", row.version);
    } else {
        exchange_reply_json(exchange, 200,
                            JSON({"id", json_string(row.id)}, {"object", json_string("loam.conversation")},
                                 {"version", json_string(row.version)}));
    }
    json_decref(body);
}

void conversation_remove_route(struct server *server, struct exchange *exchange) {
    char owner[SERVICE_OWNER_MAX];
    struct error reason;
    bool found;
    const char *id = id_of_path(server, exchange);
    if (id == NULL) return;
    if (conversations_remove(server->model.documents, server_owner(server, exchange_key(exchange), owner), id, &found,
                             &reason) != STATUS_OK)
        server_reply_disk_failure(exchange, &reason);
    else if (!found)
        reply_none(exchange);
    else
        server_reply_deleted(exchange, "loam.conversation.deleted", json_string(id));
}
