/* /tokenize, /detokenize, /tokenizer_info: llama-server's and vLLM's fields, both. */
#include <stdio.h>
#include <stdlib.h>

#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/token_text.h"

enum { TOKENS_MAX = 4 << 20 };

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
    char *bytes = NULL;
    size_t length = 0;
    if (list->count > TOKENS_MAX) {
        exchange_refuse(exchange, 413, "the text has %zu tokens, expected at most %d", list->count, TOKENS_MAX);
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
    exchange_refuse(exchange, 503, "no memory for the tokens of the text");
}

void tokenize_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    struct api_error error;
    const char *text = NULL;
    size_t length = 0;
    bool with_pieces = false; /* this and `how`: as llama-server and vLLM */
    struct token_list list = {0};
    struct error reason;
    struct tokenize_options how = {.parse_special = true};
    if (!field_text(body, "prompt", GUARD_BODY_BYTES_MAX, &text, &length, &error) ||
        (text == NULL && !field_text(body, "content", GUARD_BODY_BYTES_MAX, &text, &length, &error)) ||
        !field_flag(body, "add_special_tokens", &how.add_special, &error) ||
        !field_flag(body, "add_special", &how.add_special, &error) ||
        !field_flag(body, "parse_special", &how.parse_special, &error) ||
        !field_flag(body, "with_pieces", &with_pieces, &error) ||
        (text == NULL && !api_error_set(&error, 400, "prompt", "'prompt' (or 'content'): expected a string")))
        exchange_reply_error(exchange, &error);
    else if (tokenizer_encode(server->model.tokenizer, text, length, how, &list, &reason) != STATUS_OK)
        exchange_reply_failure(exchange, &reason);
    else
        reply_tokens(server, exchange, &list, with_pieces);
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
    char *text = NULL;
    size_t length = 0;
    struct error reason;
    if (!field_array(body, "tokens", TOKENS_MAX, &ids, &error) ||
        (ids == NULL && !field_refuse(&error, "tokens", "expected a list of ids")) ||
        (list.count > TOKENS_MAX &&
         !api_error_set(&error, 413, "tokens", "'tokens': found %zu, expected at most %d", list.count, TOKENS_MAX)) ||
        !(list.count > 0 ? token_ids_check(&list, "tokens", vocabulary_size, &error)
                         : token_ids_read(ids, "tokens", vocabulary_size, &list, &error))) {
        exchange_reply_error(exchange, &error);
    } else if (tokenizer_decode(server->model.tokenizer, list.ids, list.count, true, &text, &length, &reason) !=
               STATUS_OK) {
        exchange_reply_failure(exchange, &reason);
    } else {
        exchange_reply_json(exchange, 200,
                            JSON({"prompt", json_text(text, length)}, {"content", json_text(text, length)}));
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
    exchange_reply_json(
        exchange, 200,
        JSON({"eos_token", name_json(model->tokenizer, tokenizer_eos(model->tokenizer))},
             {"bos_token", name_json(model->tokenizer, tokenizer_bos(model->tokenizer))},
             {"pad_token", name_json(model->tokenizer, tokenizer_eos(model->tokenizer))},
             {"eos_token_id", json_integer(tokenizer_eos(model->tokenizer))},
             {"bos_token_id", json_integer(tokenizer_bos(model->tokenizer))},
             {"add_bos_token", json_boolean(tokenizer_adds_bos(model->tokenizer))},
             {"vocab_size", json_uint(tokenizer_vocabulary_size(model->tokenizer))},
             {"chat_template",
              model->chat_text != NULL ? json_text(model->chat_text, model->chat_text_length) : json_null()}));
}
