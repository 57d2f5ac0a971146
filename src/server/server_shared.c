/* What all routes use of the server. */
#include <stdio.h>
#include <stdlib.h>

#include "server/fields.h"
#include "server/id_array.h"
#include "server/json_text.h"
#include "server/server_internal.h"

const char *server_new_id(struct server *server, const char *prefix, char *buffer) {
    uint64_t x = atomic_fetch_add(&server->next_id, 1) + 0x9E3779B97F4A7C15u; /* splitmix64: no two alike */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    snprintf(buffer, SERVER_ID_BYTES, "%s%016llx", prefix, (unsigned long long)(x ^ x >> 31));
    return buffer;
}

const char *server_owner(const struct server *server, uint32_t key, char *buffer) {
    if (key == 0 || server->options.shares_documents) return "";
    snprintf(buffer, SERVICE_OWNER_MAX, "key %s", server->key_names[key - 1]);
    return buffer;
}

enum status server_mask(struct server *server, const struct json_schema *schema, struct logit_mask *mask,
                        struct error *error) {
    enum status status = STATUS_OK;
    pthread_mutex_lock(&server->trie_mutex);
    if (server->trie == NULL) status = token_trie_create(&server->trie, server->model.tokenizer, error);
    pthread_mutex_unlock(&server->trie_mutex);
    return status != STATUS_OK ? status : json_mask_create(mask, schema, server->trie, error);
}

void server_reply_list(const struct server *server, struct exchange *exchange, json_t *data) {
    exchange_reply_json(exchange, 200,
                        JSON({"object", json_string("list")}, {"saves", json_boolean(server->model.documents != NULL)},
                             {"data", data}));
}

void server_reply_deleted(struct exchange *exchange, const char *object, json_t *id) {
    exchange_reply_json(exchange, 200, JSON({"id", id}, {"object", json_string(object)}, {"deleted", json_true()}));
}

void server_reply_disk_failure(struct exchange *exchange, const struct error *reason) {
    struct api_error error;
    api_error_from(&error, reason);
    if (reason->status == STATUS_FULL) error.http_status = 507;
    error.never_retry = reason->status != STATUS_MEMORY && reason->status != STATUS_INTERRUPTED;
    exchange_reply_error(exchange, &error);
}

bool server_read_body(struct exchange *exchange, json_t **body) {
    size_t length;
    const char *bytes = exchange_body(exchange, &length);
    struct api_error error;
    if (fields_parse(bytes, length, body, &error)) return true;
    exchange_reply_error(exchange, &error);
    return false;
}

bool server_read_body_with_ids(struct exchange *exchange, const char *name, json_t **body, struct token_list *ids) {
    size_t length, rest_length;
    char *rest;
    struct api_error ignored;
    const char *bytes = exchange_body(exchange, &length);
    if (id_array_take(bytes, length, name, ids, &rest, &rest_length)) {
        const bool parsed = fields_parse(rest, rest_length, body, &ignored);
        free(rest);
        if (parsed) return true;
        token_list_deinit(ids);
    }
    return server_read_body(exchange, body); /* with its errors */
}
