#include "server/log_probabilities.h"

#include <math.h>

#include "server/json_text.h"
#include "server/token_text.h"

static json_t *number(float log_probability) {
    return json_real(isfinite(log_probability) ? (double)log_probability : -9999.0);
}

/* Two tokens may have one text: the later one is told by its bytes. */
static json_t *top_object(const struct tokenizer *tokenizer, const struct ask_token *token, size_t top_max) {
    json_t *object = json_object();
    bool has_it = false;
    for (size_t i = 0; i < token->top_count && i < top_max; i++) {
        if (token->top[i].id < 0) break;
        json_t *text = token_text_json(tokenizer, token->top[i].id);
        if (json_object_get(object, json_string_value(text)) != NULL) {
            json_decref(text);
            text = token_bytes_json(tokenizer, token->top[i].id);
        }
        json_put(object, json_string_value(text), number(token->top[i].log_probability));
        json_decref(text);
        has_it = has_it || token->top[i].id == token->id;
    }
    if (has_it || top_max == 0) return object;
    json_t *text = token_text_json(tokenizer, token->id); /* OpenAI: the sampled one is always there */
    if (json_object_get(object, json_string_value(text)) != NULL) {
        json_decref(text);
        text = token_bytes_json(tokenizer, token->id);
    }
    json_put(object, json_string_value(text), number(token->log_probability));
    json_decref(text);
    return object;
}

json_t *log_probabilities_completion(const struct ask_choice *choice, size_t first, size_t end, size_t *characters) {
    const struct ask *ask = choice->ask;
    const struct tokenizer *tokenizer = ask->server->model.tokenizer;
    json_t *tokens = json_array(), *own = json_array(), *top = json_array(), *offsets = json_array();
    for (size_t i = first; i < end; i++) {
        const struct ask_token *token = &choice->tokens.items[i];
        json_array_append_new(tokens, token_text_json(tokenizer, token->id));
        json_array_append_new(own, token->has_log_probability ? number(token->log_probability) : json_null());
        json_array_append_new(top, token->has_log_probability ? top_object(tokenizer, token, ask->options.top_count)
                                                              : json_null());
        json_array_append_new(offsets, json_integer((json_int_t)*characters));
        *characters += token_character_count(tokenizer, token->id);
    }
    return JSON({"tokens", tokens}, {"token_logprobs", own}, {"top_logprobs", top}, {"text_offset", offsets});
}

static json_t *chat_entry(const struct tokenizer *tokenizer, token_id id, float log_probability) {
    return JSON({"token", token_text_json(tokenizer, id)}, {"logprob", number(log_probability)},
                {"bytes", token_byte_list_json(tokenizer, id)});
}

json_t *log_probabilities_chat(const struct ask_choice *choice, size_t first, size_t end) {
    const struct ask *ask = choice->ask;
    const struct tokenizer *tokenizer = ask->server->model.tokenizer;
    json_t *content = json_array();
    for (size_t i = first; i < end; i++) {
        const struct ask_token *token = &choice->tokens.items[i];
        json_t *entry = chat_entry(tokenizer, token->id, token->log_probability), *top = json_array();
        for (size_t t = 0; t < token->top_count && t < ask->options.top_count; t++)
            if (token->top[t].id >= 0)
                json_array_append_new(top, chat_entry(tokenizer, token->top[t].id, token->top[t].log_probability));
        json_put(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return JSON({"content", content}, {"refusal", json_null()});
}
