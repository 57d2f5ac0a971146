/* /v1/loam/documents: texts that are read once, by key. */
#include <stdlib.h>
#include <string.h>

#include "cache/store/store.h"
#include "server/ask.h"
#include "server/document_id.h"
#include "server/document_text.h"
#include "server/fields.h"
#include "server/file_part.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/sse.h"

/* ---- uploading: a request for no tokens ---- */

static json_t *uploaded_json(const struct ask *ask) {
    const struct ask_choice *choice = &ask->choices[0];
    return JSON({"id", json_uint(choice->document)}, {"object", json_string("loam.document")},
                {"name", json_text(ask->document_name, strlen(ask->document_name))},
                {"token_count", json_uint(choice->figures.prompt_tokens)},
                {"cached_tokens", json_uint(choice->figures.reused_tokens)}, {"created", json_integer(ask->created)});
}

static void upload_progress(struct ask *ask, size_t done, size_t total) {
    (void)sse_send(ask->exchange, NULL,
                   JSON({"object", json_string("loam.document.progress")}, {"processed", json_uint(done)},
                        {"total", json_uint(total)}, {"cached", json_uint(ask->progress.admission.reused_tokens)}));
}

static void upload_beat(struct ask *ask) {
    upload_progress(ask, atomic_load(&ask->progress.done), atomic_load(&ask->progress.total));
}

static void upload_fail(struct ask *ask, const struct api_error *error) {
    (void)sse_send(ask->exchange, NULL, api_error_json(error, false));
}

static void upload_end(struct ask *ask) {
    const struct ask_choice *choice = &ask->choices[0];
    if (choice->document == 0) {
        struct api_error error;
        api_error_set(&error, 507, NULL, "the document was read and not saved: %s",
                      choice->notice[0] != '\0' ? choice->notice : "it is shorter than what is saved");
        if (ask->options.streams)
            upload_fail(ask, &error);
        else
            exchange_reply_error(ask->exchange, &error);
        return;
    }
    if (!ask->options.streams) {
        exchange_reply_json(ask->exchange, 200, uploaded_json(ask));
        return;
    }
    (void)sse_send(ask->exchange, NULL, uploaded_json(ask));
    sse_send_done(ask->exchange);
}

static bool read_name(struct ask *ask, struct api_error *error) {
    const char *name = "document";
    size_t length = strlen(name);
    if (!field_text(ask->body, "name", sizeof ask->document_name - 1, &name, &length, error)) return false;
    bool is_plain = length > 0 && strlen(name) == length;
    for (size_t i = 0; i < length; i++) is_plain = is_plain && (unsigned char)name[i] >= ' ' && name[i] != 0x7F;
    if (!is_plain) return api_error_set(error, 400, "name", "'name': expected text without control characters");
    memcpy(ask->document_name, name, length + 1);
    return true;
}

/* The field `file`, in base64, as its text; without it *document stays empty. */
static bool read_file(const struct ask *ask, struct document *document, struct api_error *error) {
    const char *encoding = NULL;
    size_t length;
    const json_t *file = field_get(ask->body, "file");
    if (file == NULL) return true;
    if (!field_text(ask->body, "encoding", 64, &encoding, &length, error)) return false;
    if (!json_is_string(file) || field_get(ask->body, "text") != NULL)
        return api_error_set(error, 400, "file", "'file': expected base64, and no 'text' beside it");
    return file_part_read(file, ask->document_name, encoding, "file", document, error);
}

static bool add_messages(const struct ask *ask, const struct document *document, struct conversation *conversation,
                         struct api_error *error) {
    const char *text = document->text, *system = NULL;
    size_t length = document->length, system_length = 0;
    if (!field_text(ask->body, "text", GUARD_BODY_BYTES_MAX, &text, &length, error) ||
        !field_text(ask->body, "system", GUARD_BODY_BYTES_MAX, &system, &system_length, error))
        return false;
    while (length > 0 && text[length - 1] == '\n') length--; /* as the page sends it */
    if (length == 0) return api_error_set(error, 400, "text", "'text': expected the document's text, or 'file'");
    if (system != NULL && (!conversation_add(conversation, CHAT_SYSTEM, error) ||
                           !conversation_append(conversation, system, system_length, error)))
        return false;
    return conversation_add(conversation, CHAT_USER, error) && conversation_append(conversation, text, length, error);
}

static bool read_conversation(const struct ask *ask, struct conversation *conversation, struct api_error *error) {
    struct document document = {0};
    const bool read = read_file(ask, &document, error) && add_messages(ask, &document, conversation, error);
    document_deinit(&document);
    return read;
}

static bool read_upload(struct ask *ask, struct api_error *error) {
    const struct server_model *model = &ask->server->model;
    struct conversation conversation = {0};
    struct token_list prompt = {0};
    ask->options =
        (struct ask_options){.is_greedy = true, .has_token_max = true, .choices = 1, .sampling = model->sampling};
    if (model->documents == NULL)
        return api_error_set(error, 400, NULL, "documents are saved with --kv-disk DIR alone");
    const bool read = field_flag(ask->body, "stream", &ask->options.streams, error) && read_name(ask, error) &&
                      read_conversation(ask, &conversation, error) &&
                      conversation_encode(&conversation, model->chat, model->tokenizer, &prompt, error) &&
                      ask_set_prompts(ask, &prompt, 1, error);
    token_list_deinit(&prompt);
    conversation_deinit(&conversation);
    return read;
}

static const struct ask_family family = {.id_prefix = "doc-",
                                         .read = read_upload,
                                         .progress = upload_progress,
                                         .end = upload_end,
                                         .fail = upload_fail,
                                         .beat = upload_beat};

void document_upload_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }

/* ---- what there is ---- */

struct listing {
    json_t *data;
    uint64_t id; /* 0: all */
};

static void see(void *context, const struct document_info *info) {
    const struct listing *listing = context;
    if (listing->id != 0 && info->id != listing->id) return;
    json_array_append_new(
        listing->data,
        JSON({"id", json_uint(info->id)}, {"object", json_string("loam.document")},
             {"name", json_text(info->name, strlen(info->name))}, {"token_count", json_uint(info->token_count)},
             {"bytes", json_uint(info->bytes)}, {"created", json_integer(info->created)},
             {"used", json_integer(info->used)}, {"in_use", json_boolean(info->in_use)},
             {"other_version", json_boolean(info->is_other)},
             {"damaged", info->damaged != NULL ? json_text(info->damaged, strlen(info->damaged)) : json_null()}));
}

static bool list(struct server *server, struct exchange *exchange, uint64_t id, json_t **data) {
    char owner[SERVICE_OWNER_MAX];
    struct listing listing = {.data = json_array(), .id = id};
    struct error reason = {0};
    *data = listing.data;
    if (service_list_documents(server->model.service, server_owner(server, exchange_key(exchange), owner), see,
                               &listing, &reason) == STATUS_OK)
        return true;
    exchange_reply_failure(exchange, &reason);
    json_decref(listing.data);
    return false;
}

void document_list_route(struct server *server, struct exchange *exchange) {
    json_t *data;
    if (!list(server, exchange, 0, &data)) return;
    server_reply_list(server, exchange, data);
}

void document_show_route(struct server *server, struct exchange *exchange) {
    const uint64_t id = document_id_of_path(exchange, "");
    json_t *data;
    if (id == 0) {
        document_id_reply_none(exchange);
        return;
    }
    if (!list(server, exchange, id, &data)) return;
    if (json_array_size(data) == 1)
        exchange_reply_json(exchange, 200, json_incref(json_array_get(data, 0)));
    else
        document_id_reply_none(exchange);
    json_decref(data);
}

void document_text_route(struct server *server, struct exchange *exchange) {
    const uint64_t id = document_id_of_path(exchange, "/text");
    struct api_error error;
    char *text = NULL;
    size_t length = 0;
    if (id == 0) {
        document_id_reply_none(exchange);
    } else if (!document_text_read(server, exchange_key(exchange), id, NULL, &text, &length, &error)) {
        exchange_reply_error(exchange, &error);
    } else {
        exchange_reply_json(exchange, 200,
                            JSON({"id", json_uint(id)}, {"object", json_string("loam.document.text")},
                                 {"text", json_text(text, length)}));
    }
    free(text);
}

void document_remove_route(struct server *server, struct exchange *exchange) {
    char owner[SERVICE_OWNER_MAX];
    const uint64_t id = document_id_of_path(exchange, "");
    struct error reason = {0};
    const enum status status =
        id == 0 ? STATUS_DOCUMENT
                : service_remove_document(server->model.service, server_owner(server, exchange_key(exchange), owner),
                                          id, &reason);
    if (status == STATUS_OK) {
        server_reply_deleted(exchange, "loam.document.deleted", json_integer((json_int_t)id));
    } else if (status == STATUS_DOCUMENT) {
        document_id_reply_none(exchange);
    } else {
        struct api_error error;
        api_error_from(&error, &reason);
        if (status == STATUS_FULL) error.http_status = 409;
        exchange_reply_error(exchange, &error);
    }
}
