/* /tokenize, /detokenize, /tokenizer_info: llama-server's and vLLM's fields, both. */
#include <stdio.h>
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

/* Written as it comes: a value of jansson's for each piece takes 700 bytes. */
static void write_tokens(FILE *stream, const struct server *server, const struct token_list *list, bool with_pieces) {
    fputs("{\"tokens\":[", stream);
    for (size_t i = 0; i < list->count; i++) {
        if (i > 0) fputc(',', stream);
        if (!with_pieces) {
            fprintf(stream, "%d", list->ids[i]);
            continue;
        }
        json_t *piece = token_text_json(server->model.tokenizer, list->ids[i]);
        fprintf(stream, "{\"id\":%d,\"piece\":", list->ids[i]);
        if (piece == NULL || json_dumpf(piece, stream, JSON_ENCODE_ANY) != 0) fputs("null", stream);
        fputc('}', stream);
        json_decref(piece);
    }
    fprintf(stream, "],\"count\":%zu,\"max_model_len\":%llu}", list->count,
            (unsigned long long)service_context_size(server->model.service));
}

static void reply_tokens(struct server *server, struct exchange *exchange, const struct token_list *list,
                         bool with_pieces) {
    struct api_error error;
    char *bytes = NULL;
    size_t length = 0;
    if (list->count > TOKENS_MAX) {
        api_error_set(&error, 413, NULL, "the text has %zu tokens, expected at most %d", list->count, TOKENS_MAX);
        exchange_reply_error(exchange, &error);
        return;
    }
    FILE *stream = open_memstream(&bytes, &length);
    bool written = stream != NULL;
    if (written) {
        write_tokens(stream, server, list, with_pieces);
        written = ferror(stream) == 0;
        written = fclose(stream) == 0 && written;
    }
    if (written) {
        exchange_reply(exchange, 200, "application/json", bytes, length);
        return;
    }
    free(bytes);
    api_error_set(&error, 503, NULL, "no memory for the tokens of the text");
    exchange_reply_error(exchange, &error);
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
        reply_tokens(server, exchange, &list, with_pieces);
    } else {
        api_error_from(&error, &reason);
        exchange_reply_error(exchange, &error);
    }
    token_list_deinit(&list);
    json_decref(body);
}

void detokenize_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    struct api_error error;
    struct token_list list = {0};
    const size_t vocabulary_size = service_vocabulary_size(server->model.service);
    if (!server_read_body_with_ids(exchange, "tokens", &body, &list)) return;
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
    if (list.count > TOKENS_MAX) {
        api_error_set(&error, 413, "tokens", "'tokens': found %zu, expected at most %d", list.count, TOKENS_MAX);
        reply_error(exchange, body, &error);
        token_list_deinit(&list);
        return;
    }
    char *text = NULL;
    size_t length = 0;
    struct error reason;
    if (list.count > 0 ? !token_ids_check(&list, "tokens", vocabulary_size, &error)
                       : !token_ids_read(ids, "tokens", vocabulary_size, &list, &error)) {
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
