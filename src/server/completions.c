/* /v1/completions: raw text or tokens to continue, and the log-probabilities that lm-eval sums. */
#include <stdlib.h>

#include "server/ask.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/log_probabilities.h"
#include "server/openai.h"
#include "server/routes.h"
#include "server/token_text.h"

static const char object_name[] = "text_completion";

enum {
    COMPLETION_TOKENS_DEFAULT = 16, /* OpenAI's */
    ECHOED_MAX = 1 << 18            /* probabilities of prompts in an answer */
};

/* ---- the prompts: a string, [string], [id] or [[id]] ---- */

static bool encode_text(const struct server *server, const json_t *text, struct token_list *list,
                        struct api_error *error) {
    struct error reason;
    const struct tokenize_options how = {.add_special = true};
    if (tokenizer_encode(server->model.tokenizer, json_string_value(text), json_string_length(text), how, list,
                         &reason) == STATUS_OK)
        return true;
    return api_error_from(error, &reason);
}

static bool read_prompt(const struct server *server, const json_t *prompt, struct token_list *list,
                        struct api_error *error) {
    if (json_is_string(prompt)) return encode_text(server, prompt, list, error);
    if (json_is_array(prompt))
        return token_ids_read(prompt, "prompt", service_vocabulary_size(server->model.service), list, error);
    return field_refuse(error, "prompt", "found %s, expected a string or token ids", json_kind(prompt));
}

static bool is_list_of_prompts(const json_t *prompt) {
    const json_t *first = json_array_get(prompt, 0);
    return json_is_string(first) || json_is_array(first);
}

/* One prompt of ids, which were read with the body. */
static bool read_ids(struct ask *ask, struct api_error *error) {
    return token_ids_check(&ask->ids, "prompt", service_vocabulary_size(ask->server->model.service), error) &&
           ask_set_prompts(ask, &ask->ids, 1, error);
}

static bool read_prompts(struct ask *ask, struct api_error *error) {
    const json_t *prompt = field_get(ask->body, "prompt");
    if (prompt == NULL) return field_refuse(error, "prompt", "expected a string or token ids");
    if (ask->ids.count > 0) return read_ids(ask, error);
    const bool is_list = json_is_array(prompt) && is_list_of_prompts(prompt);
    const size_t count = is_list ? json_array_size(prompt) : 1;
    if (count > ASK_CHOICES_MAX)
        return field_refuse(error, "prompt", "found %zu prompts, expected at most %d", count, ASK_CHOICES_MAX);
    struct token_list lists[ASK_CHOICES_MAX] = {0};
    bool read = true;
    for (size_t i = 0; i < count && read; i++)
        read = read_prompt(ask->server, is_list ? json_array_get(prompt, i) : prompt, &lists[i], error);
    read = read && ask_set_prompts(ask, lists, count, error);
    for (size_t i = 0; i < count; i++) token_list_deinit(&lists[i]);
    return read;
}

/* ---- the options ---- */

static bool read_log_probabilities(struct ask *ask, struct api_error *error) {
    int64_t top = 0;
    if (field_get(ask->body, "logprobs") == NULL || json_is_false(field_get(ask->body, "logprobs"))) return true;
    if (!field_integer(ask->body, "logprobs", 0, ASK_TOP_MAX, &top, error)) return false;
    ask->options.has_log_probabilities = true;
    ask->options.top_count = (size_t)top;
    ask->form.lists_prompt = ask->form.echoes;
    return true;
}

/* Each choice has its prompt's probabilities, which take memory, and no time where the prompts are the same. */
static bool check_echo(const struct ask *ask, struct api_error *error) {
    const size_t choices = ask->options.choices;
    uint64_t tokens = 0;
    for (size_t i = 0; i < ask->choice_count; i += choices) tokens += (uint64_t)ask->choices[i].prompt.count * choices;
    const uint64_t probabilities = tokens * (ask->options.top_count + 1);
    if (!ask->form.lists_prompt || probabilities <= ECHOED_MAX) return true;
    return api_error_set(error, 400, "echo",
                         "'echo' with 'logprobs': found %llu probabilities (tokens of the prompts, times 'n', times "
                         "'logprobs' + 1), expected at most %d",
                         (unsigned long long)probabilities, ECHOED_MAX);
}

static bool read_request(struct ask *ask, struct api_error *error) {
    static const char *const token_max[] = {"max_tokens", "max_completion_tokens", "n_predict"};
    static const char *const refused[] = {"suffix", "chat_template", "images", "documents"};
    const struct server_model *model = &ask->server->model;
    if (!ask_options_read(&ask->options, ask->body, model, ask_seed(ask), error)) return false;
    ask->options.has_token_max = true;
    ask->options.token_max = COMPLETION_TOKENS_DEFAULT;
    int64_t best_of = (int64_t)ask->options.choices;
    if (!ask_options_read_token_max(&ask->options, ask->body, token_max, 3, error) ||
        !ask_options_refuse(ask->body, refused, sizeof refused / sizeof *refused, error) ||
        !field_integer(ask->body, "best_of", 1, ASK_CHOICES_MAX, &best_of, error) ||
        !field_flag(ask->body, "echo", &ask->form.echoes, error) || !read_log_probabilities(ask, error))
        return false;
    if (best_of != (int64_t)ask->options.choices)
        return field_refuse(error, "best_of", "not supported, unless it is 'n'");
    return read_prompts(ask, error) && check_echo(ask, error);
}

/* ---- the response ---- */

/* The text of a choice's prompt; the caller frees it. */
static char *prompt_text(const struct ask_choice *choice, size_t *length) {
    const struct ask *ask = choice->ask;
    const struct ask_choice *first = &ask->choices[choice->index - choice->index % ask->options.choices];
    char *text = NULL;
    *length = 0;
    if (tokenizer_decode(ask->server->model.tokenizer, first->prompt.ids, first->prompt.count, false, &text, length,
                         NULL) != STATUS_OK)
        return NULL;
    return text;
}

static json_t *choice_json(struct ask_choice *choice, json_t *text, size_t token_first, bool is_last) {
    const struct ask *ask = choice->ask;
    json_t *object = JSON({"index", json_uint(choice->index)}, {"text", text},
                          {"logprobs", ask->options.has_log_probabilities
                                           ? log_probabilities_completion(choice, token_first, choice->tokens.count,
                                                                          &choice->sent.characters)
                                           : json_null()});
    openai_put_finish(object, choice, is_last);
    return object;
}

/* What has come since the last frame. */
static void send_new(struct ask *ask, struct ask_choice *choice, bool is_last) {
    const size_t from = choice->sent.content, token_first = choice->sent.tokens;
    json_t *text =
        json_text(choice->content.bytes != NULL ? choice->content.bytes + from : "", choice->content.length - from);
    choice->sent.content = choice->content.length;
    json_t *object = choice_json(choice, text, token_first, is_last);
    choice->sent.tokens = choice->tokens.count;
    openai_send(ask, object_name, object);
}

static void stream_begin(struct ask *ask, const struct service_admission *admission) {
    (void)admission;
    if (!ask->form.echoes) return;
    for (size_t i = 0; i < ask->choice_count; i++) { /* their tokens come with the first frame of the answer */
        size_t length;
        char *text = prompt_text(&ask->choices[i], &length);
        if (text != NULL) (void)text_append(&ask->choices[i].content, text, length);
        free(text);
    }
}

static void stream_part(struct ask *ask, struct ask_choice *choice, const struct answer_part *part) {
    (void)part;
    if (!ask->options.has_log_probabilities) send_new(ask, choice, false);
}

static void stream_token(struct ask *ask, struct ask_choice *choice) { send_new(ask, choice, false); }

static void stream_choice_ends(struct ask *ask, struct ask_choice *choice) { send_new(ask, choice, true); }

static json_t *whole_choices(struct ask *ask) {
    json_t *choices = json_array();
    for (size_t i = 0; i < ask->choice_count; i++) {
        struct ask_choice *choice = &ask->choices[i];
        struct text text = {0};
        size_t length = 0;
        char *prompt = ask->form.echoes ? prompt_text(choice, &length) : NULL;
        if (prompt != NULL) text_append(&text, prompt, length);
        text_append(&text, choice->content.bytes, choice->content.length);
        json_t *value = text.failed ? NULL : json_text(text.bytes, text.length);
        json_array_append_new(choices, choice_json(choice, value, 0, true));
        text_deinit(&text);
        free(prompt);
    }
    return choices;
}

static void end(struct ask *ask) { openai_end(ask, object_name, whole_choices, object_name); }

static void beat(struct ask *ask) { openai_beat(ask, object_name, "text", json_string("")); }

static const struct ask_family family = {.id_prefix = "cmpl-",
                                         .ids_field = "prompt",
                                         .read = read_request,
                                         .begin = stream_begin,
                                         .part = stream_part,
                                         .token = stream_token,
                                         .choice_ends = stream_choice_ends,
                                         .end = end,
                                         .fail = openai_fail,
                                         .beat = beat};

void completions_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }
