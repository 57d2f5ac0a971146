/* /tokenize, /detokenize, /tokenizer_info: llama-server's and vLLM's fields, both. */
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/token_text.h"

enum { TOKENS_MAX = 4 << 20 };

static void reply_error(struct exchange *exchange, json_t *body, const struct api_error *error) {
    exchange_reply_error(exchange, error);
    json_decref(body);
}

static json_t *pieces_json(const struct tokenizer *tokenizer, const struct token_list *list) {
    json_t *pieces = json_array();
    for (size_t i = 0; i < list->count; i++) {
        json_t *piece = json_object();
        json_put(piece, "id", json_integer(list->ids[i]));
        json_put(piece, "piece", token_text_json(tokenizer, list->ids[i]));
        json_array_append_new(pieces, piece);
    }
    return pieces;
}

static json_t *tokens_json(struct server *server, const struct token_list *list, bool with_pieces) {
    json_t *reply = json_object(), *ids = json_array();
    for (size_t i = 0; i < list->count; i++) json_array_append_new(ids, json_integer(list->ids[i]));
    json_put(reply, "tokens", with_pieces ? pieces_json(server->model.tokenizer, list) : ids);
    if (with_pieces) json_decref(ids);
    json_put_uint(reply, "count", list->count);
    json_put_uint(reply, "max_model_len", service_context_size(server->model.service));
    return reply;
}

void tokenize_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    struct api_error error;
    const char *text = NULL;
    size_t length = 0;
    bool adds = false, parses = true, with_pieces = false; /* as llama-server and vLLM */
    if (!field_text(body, "prompt", GUARD_BODY_BYTES_MAX, &text, &length, &error) ||
        (text == NULL && !field_text(body, "content", GUARD_BODY_BYTES_MAX, &text, &length, &error)) ||
        !field_flag(body, "add_special_tokens", &adds, &error) ||
        !field_flag(body, "add_special", &adds, &error) ||
        !field_flag(body, "parse_special", &parses, &error) ||
        !field_flag(body, "with_pieces", &with_pieces, &error)) {
        reply_error(exchange, body, &error);
        return;
    }
    if (text == NULL) {
        api_error_set(&error, 400, "prompt", "'prompt' (or 'content'): expected a string");
        reply_error(exchange, body, &error);
        return;
    }
    struct token_list list = {0};
    struct error reason;
    const struct tokenize_options how = {.add_special = adds, .parse_special = parses};
    if (tokenizer_encode(server->model.tokenizer, text, length, how, &list, &reason) == STATUS_OK) {
        exchange_reply_json(exchange, 200, tokens_json(server, &list, with_pieces));
    } else {
        api_error_from(&error, &reason);
        exchange_reply_error(exchange, &error);
    }
    token_list_deinit(&list);
    json_decref(body);
}

void detokenize_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    struct api_error error;
    struct token_list list = {0};
    const json_t *ids;
    if (!field_array(body, "tokens", TOKENS_MAX, &ids, &error)) {
        reply_error(exchange, body, &error);
        return;
    }
    if (ids == NULL) {
        api_error_set(&error, 400, "tokens", "'tokens': expected a list of ids");
        reply_error(exchange, body, &error);
        return;
    }
    char *text = NULL;
    size_t length = 0;
    struct error reason;
    if (!token_ids_read(ids, "tokens", service_vocabulary_size(server->model.service), &list, &error)) {
        exchange_reply_error(exchange, &error);
    } else if (tokenizer_decode(server->model.tokenizer, list.ids, list.count, true, &text, &length,
                                &reason) != STATUS_OK) {
        api_error_from(&error, &reason);
        exchange_reply_error(exchange, &error);
    } else {
        json_t *reply = json_object();
        json_put(reply, "prompt", json_text(text, length));
        json_put(reply, "content", json_text(text, length));
        exchange_reply_json(exchange, 200, reply);
    }
    free(text);
    token_list_deinit(&list);
    json_decref(body);
}

static json_t *name_json(const struct tokenizer *tokenizer, token_id id) {
    return id != TOKEN_NONE ? token_text_json(tokenizer, id) : json_null();
}

void tokenizer_info_route(struct server *server, struct exchange *exchange) {
    const struct server_model *model = &server->model;
    json_t *info = json_object();
    json_put(info, "eos_token", name_json(model->tokenizer, tokenizer_eos(model->tokenizer)));
    json_put(info, "bos_token", name_json(model->tokenizer, tokenizer_bos(model->tokenizer)));
    json_put(info, "pad_token", name_json(model->tokenizer, tokenizer_eos(model->tokenizer)));
    json_put(info, "eos_token_id", json_integer(tokenizer_eos(model->tokenizer)));
    json_put(info, "bos_token_id", json_integer(tokenizer_bos(model->tokenizer)));
    json_put(info, "add_bos_token", json_boolean(tokenizer_adds_bos(model->tokenizer)));
    json_put_uint(info, "vocab_size", tokenizer_vocabulary_size(model->tokenizer));
    json_put(info, "chat_template",
             model->chat_text != NULL ? json_text(model->chat_text, model->chat_text_length) : json_null());
    exchange_reply_json(exchange, 200, info);
}
