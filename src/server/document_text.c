#include "server/document_text.h"

#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

static bool not_found(uint64_t id, struct api_error *error) {
    return api_error_set(error, 404, "documents", "document %llu: there is none", (unsigned long long)id);
}

/* The text of tokens, control tokens included. */
static bool decode(const struct server *server, const token_id *ids, size_t count, char **text, size_t *length,
                   struct api_error *error) {
    struct error reason;
    return tokenizer_decode(server->model.tokenizer, ids, count, true, text, length, &reason) == STATUS_OK ||
           api_error_from(error, &reason);
}

/* What the template puts around one user's message: *text has both, with the mark in between. */
static const char mark[] = "==loam==";

static bool read_frame(const struct server *server, const struct conversation_message *system, char **text,
                       size_t *length, struct api_error *error) {
    struct conversation frame = {0};
    struct token_list list = {0};
    bool read = true;
    if (system != NULL)
        read = conversation_add(&frame, CHAT_SYSTEM, error) &&
               conversation_append(&frame, system->content.bytes, system->content.length, error);
    read = read && conversation_add(&frame, CHAT_USER, error) &&
           conversation_append(&frame, mark, sizeof mark - 1, error) &&
           conversation_encode(&frame, server->model.chat, server->model.tokenizer, &list, error) &&
           decode(server, list.ids, list.count, text, length, error);
    token_list_deinit(&list);
    conversation_deinit(&frame);
    return read;
}

/* *text becomes what is between the two parts of the frame. */
static bool cut(char *text, size_t *length, const char *frame, size_t frame_length) {
    const char *at = memmem(frame, frame_length, mark, sizeof mark - 1);
    if (at == NULL) return false;
    const size_t before = (size_t)(at - frame), after = frame_length - before - (sizeof mark - 1);
    if (*length < before || memcmp(text, frame, before) != 0) return false;
    const char *end = memmem(text + before, *length - before, at + sizeof mark - 1, after);
    if (end == NULL) return false;
    *length = (size_t)(end - text) - before;
    memmove(text, text + before, *length);
    return true;
}

bool document_text_read(struct server *server, uint32_t key, uint64_t id, const struct conversation_message *system,
                        char **text, size_t *length, struct api_error *error) {
    char owner[SERVICE_OWNER_MAX];
    struct error reason = {0};
    int32_t *tokens = NULL;
    uint64_t count = 0;
    char *frame = NULL;
    size_t frame_length = 0;
    *text = NULL;
    const enum status status =
        service_document_tokens(server->model.service, server_owner(server, key, owner), id, &tokens, &count, &reason);
    if (status == STATUS_DOCUMENT) return not_found(id, error);
    if (status != STATUS_OK) return api_error_from(error, &reason);
    bool read = decode(server, tokens, (size_t)count, text, length, error) &&
                read_frame(server, system, &frame, &frame_length, error);
    if (read && !cut(*text, length, frame, frame_length))
        read = api_error_set(error, 400, "documents",
                             "document %llu: it is no uploaded text, or was read under another system message",
                             (unsigned long long)id);
    free(frame);
    free(tokens);
    return read;
}

static struct conversation_message *first_of(struct conversation *conversation, enum chat_role role) {
    for (size_t i = 0; i < conversation->count; i++)
        if (conversation->messages[i].role == role) return &conversation->messages[i];
    return NULL;
}

/* texts, then a paragraph, then the message's own text. */
static bool put_before(struct conversation_message *message, const struct conversation *texts,
                       struct api_error *error) {
    struct conversation joined = {.messages = message, .count = 1};
    char *own = message->content.bytes;
    const size_t own_length = message->content.length;
    message->content = (struct text){0};
    bool put = true;
    for (size_t i = 0; i < texts->count && put; i++)
        put =
            conversation_append(&joined, texts->messages[i].content.bytes, texts->messages[i].content.length, error) &&
            conversation_append(&joined, "\n\n", 2, error);
    put = put && conversation_append(&joined, own, own_length, error);
    free(own);
    return put;
}

bool document_text_prepend(struct server *server, uint32_t key, const json_t *body, struct conversation *conversation,
                           struct api_error *error) {
    const json_t *ids;
    if (!field_array(body, "documents", DOCUMENTS_ASKED_MAX, &ids, error)) return false;
    if (json_array_size(ids) == 0) return true;
    struct conversation_message *message = first_of(conversation, CHAT_USER);
    if (message == NULL) return field_refuse(error, "documents", "there is no user's message to put them before");
    struct conversation texts = {0};
    bool read = true;
    for (size_t i = 0; i < json_array_size(ids) && read; i++) {
        const json_t *id = json_array_get(ids, i);
        char *text = NULL;
        size_t length = 0;
        if (!json_is_integer(id) || json_integer_value(id) <= 0)
            read = api_error_set(error, 400, "documents", "'documents'[%zu]: expected the id of a document", i);
        read = read &&
               document_text_read(server, key, (uint64_t)json_integer_value(id), first_of(conversation, CHAT_SYSTEM),
                                  &text, &length, error) &&
               conversation_add(&texts, CHAT_USER, error) && conversation_append(&texts, text, length, error);
        free(text);
    }
    read = read && put_before(message, &texts, error);
    conversation_deinit(&texts);
    return read;
}
