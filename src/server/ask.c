#include "server/ask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/array.h"
#include "base/assert.h"
#include "platform/clock.h"
#include "server/answer_form.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/tool_choice.h"

enum { PROGRESS_INTERVAL_NS = 100000000 };

uint64_t ask_seed(const struct ask *ask) {
    if (ask->server->model.has_seed) return ask->server->model.sampling.seed;
    uint64_t seed = clock_ns();
    (void)!getrandom(&seed, sizeof seed, GRND_NONBLOCK);
    return seed;
}

/* ---- life ---- */

/* Takes the body. NULL: no memory, and replied. */
static struct ask *create(struct server *server, struct exchange *exchange, json_t *body,
                          const struct ask_family *family) {
    struct ask *ask = calloc(1, sizeof *ask);
    if (ask == NULL) {
        exchange_refuse(exchange, 503, "no memory");
        json_decref(body);
        return NULL;
    }
    ask->server = server;
    ask->exchange = exchange;
    exchange_acquire(exchange);
    ask->family = family;
    ask->body = body;
    ask->created = (int64_t)time(NULL);
    server_new_id(server, family->id_prefix, ask->id);
    pthread_mutex_init(&ask->end.mutex, NULL);
    return ask;
}

static void ask_choice_deinit(struct ask_choice *choice) {
    token_list_deinit(&choice->prompt);
    text_deinit(&choice->content);
    text_deinit(&choice->reasoning);
    for (size_t i = 0; i < choice->call_count; i++) {
        free(choice->calls[i].name);
        free(choice->calls[i].arguments);
    }
    free(choice->calls);
    free(choice->items);
    free(choice->tokens.items);
    answer_parser_deinit(&choice->parser);
}

static void ask_destroy(struct ask *ask) {
    exchange_set_work(ask->exchange, NULL);
    if (ask->family->destroy != NULL) ask->family->destroy(ask->data);
    for (size_t i = 0; i < ask->choice_count; i++) ask_choice_deinit(&ask->choices[i]);
    free(ask->choices);
    json_schema_destroy(ask->form.schema);
    json_decref(ask->body);
    token_list_deinit(&ask->ids);
    exchange_release(ask->exchange);
    pthread_mutex_destroy(&ask->end.mutex);
    free(ask);
}

bool ask_set_prompts(struct ask *ask, struct token_list *prompts, size_t prompt_count, struct api_error *error) {
    const uint64_t context = service_context_size(ask->server->model.service);
    const size_t n = ask->options.choices;
    if (ask->form.schema == NULL && !answer_form_read(&ask->options, &ask->form.schema, error)) return false;
    for (size_t i = 0; i < prompt_count && ask->form.schema != NULL && ask->form.thinks; i++)
        if (!tool_choice_end_thought(ask->server->model.tokenizer, &prompts[i], error)) return false;
    if (ask->form.schema != NULL) ask->form.thinks = false;
    for (size_t i = 0; i < prompt_count; i++) {
        if (prompts[i].count == 0) return field_refuse(error, "prompt", "found no tokens");
        if (prompts[i].count >= context) return api_error_set_overflow(error, prompts[i].count, context);
    }
    if (prompt_count * n > ASK_CHOICES_MAX)
        return field_refuse(error, "n", "%zu prompts of %zu answers, expected at most %d together", prompt_count, n,
                            ASK_CHOICES_MAX);
    ask->choices = calloc(prompt_count * n, sizeof *ask->choices);
    if (ask->choices == NULL) return api_error_set(error, 503, NULL, "no memory");
    ask->choice_count = prompt_count * n;
    for (size_t i = 0; i < ask->choice_count; i++) {
        struct ask_choice *choice = &ask->choices[i];
        *choice = (struct ask_choice){.ask = ask, .index = i};
        choice->parser.has_tools = ask->form.parses_tools;
        choice->parser.has_reasoning = ask->form.parses_reasoning;
        choice->parser.syntax = ask->form.syntax;
        if (ask->form.thinks) answer_parser_begin_thought(&choice->parser);
        if (ask->form.must_call) choice->parser.state = ANSWER_IN_TOOL_CALL;
        if (i % n != 0) continue;
        choice->prompt = prompts[i / n];
        prompts[i / n] = (struct token_list){0};
    }
    return true;
}

/* ---- ends ---- */

static void finish(struct ask *ask) {
    const struct ask_usage usage = ask_usage(ask);
    const struct request_tokens tokens = {
        .read = usage.prompt_tokens - usage.reused_tokens, .known = usage.reused_tokens, .made = usage.answer_tokens};
    exchange_note_tokens(ask->exchange, &tokens);
    if (!ask->end.has_failed) {
        ask->family->end(ask);
    } else if (exchange_is_stream(ask->exchange)) {
        if (ask->family->fail != NULL) ask->family->fail(ask, &ask->end.failure);
    } else {
        exchange_reply_error(ask->exchange, &ask->end.failure);
    }
    exchange_stream_end(ask->exchange);
    ask_destroy(ask);
}

/* One of those that ask->pending counts. */
static void settle(struct ask *ask) {
    pthread_mutex_lock(&ask->end.mutex);
    ASSERT(ask->end.pending > 0);
    const bool last = --ask->end.pending == 0;
    pthread_mutex_unlock(&ask->end.mutex);
    if (last) finish(ask);
}

static void tell_all(struct ask *ask, void (*tell)(struct service *service, service_ticket ticket)) {
    for (size_t i = 0; i < ask->choice_count; i++) {
        pthread_mutex_lock(&ask->end.mutex);
        const service_ticket ticket = ask->choices[i].ticket;
        pthread_mutex_unlock(&ask->end.mutex);
        if (ticket != 0) tell(ask->server->model.service, ticket);
    }
}

/* The first failure is told; the other choices end. */
static void fail(struct ask *ask, const struct api_error *error) {
    pthread_mutex_lock(&ask->end.mutex);
    const bool first = !ask->end.has_failed;
    ask->end.has_failed = true;
    if (first) ask->end.failure = *error;
    pthread_mutex_unlock(&ask->end.mutex);
    if (first) tell_all(ask, service_cancel);
}

/* ---- the service's callbacks ---- */

static void on_admitted(void *context, const struct service_admission *admission) {
    struct ask_choice *choice = context;
    struct ask *ask = choice->ask;
    choice->figures.prompt_tokens = admission->prompt_tokens;
    choice->figures.reused_tokens = admission->reused_tokens;
    if (ask->progress.has_begun) return;
    ask->progress.has_begun = true;
    ask->progress.admission = *admission;
    ask->progress.admitted_ns = clock_ns();
    atomic_store(&ask->progress.total, admission->prompt_tokens);
    if (!ask->options.streams) return;
    exchange_stream_begin(ask->exchange);
    if (ask->family->begin != NULL) ask->family->begin(ask, admission);
    atomic_store(&ask->progress.is_open, true);
}

static void on_progress(void *context, size_t done, size_t total) {
    const struct ask_choice *choice = context;
    struct ask *ask = choice->ask;
    if (choice->index != 0) return;
    atomic_store(&ask->progress.done, done);
    atomic_store(&ask->progress.total, total);
    const uint64_t now_ns = clock_ns();
    const bool is_news = done == ask->progress.admission.reused_tokens || done >= total ||
                         now_ns - ask->progress.told_ns >= PROGRESS_INTERVAL_NS;
    if (!is_news || !ask->options.streams || ask->family->progress == NULL) return;
    if (done == ask->progress.admission.reused_tokens && ask->progress.told_ns != 0) return; /* told already */
    ask->progress.told_ns = now_ns;
    ask->family->progress(ask, done, total);
}

static bool add_token(struct ask_choice *choice, token_id id, float log_probability,
                      const struct token_probability *top, size_t top_count) {
    struct ask_tokens *tokens = &choice->tokens;
    if (!array_reserve(&tokens->items, tokens->count, &tokens->capacity, sizeof *tokens->items)) return false;
    struct ask_token *token = &tokens->items[tokens->count++];
    *token = (struct ask_token){
        .id = id, .log_probability = log_probability, .has_log_probability = !isnan(log_probability)};
    token->top_count = top_count < ASK_TOP_MAX ? top_count : ASK_TOP_MAX;
    if (token->top_count > 0) memcpy(token->top, top, token->top_count * sizeof *top);
    return true;
}

static void no_memory(struct ask *ask) {
    struct api_error error;
    api_error_set(&error, 503, NULL, "no memory for the answer");
    fail(ask, &error);
}

static void on_prompt_token(void *context, const struct service_prompt_token *token) {
    struct ask_choice *choice = context;
    if (!add_token(choice, token->id, token->log_probability, token->top, token->top_count)) no_memory(choice->ask);
}

static bool add_call(struct ask_choice *choice, const struct answer_part *part) {
    struct ask_call *grown = realloc(choice->calls, (choice->call_count + 1) * sizeof *grown);
    if (grown == NULL) return false;
    choice->calls = grown;
    struct ask_call *call = &grown[choice->call_count];
    const char *prefix = choice->ask->family->call_prefix;
    server_new_id(choice->ask->server, prefix != NULL ? prefix : "call_", call->id);
    call->name = strdup(part->tool_name);
    call->arguments = strndup(part->bytes, part->length);
    if (call->name != NULL && call->arguments != NULL) {
        choice->call_count++;
        return true;
    }
    free(call->name);
    free(call->arguments);
    return false;
}

/* The part goes on with the last item, or begins one.  end: where its kind's bytes, or calls, end now. */
static bool note_item(struct ask_choice *choice, enum answer_part_kind kind, size_t begin, size_t end) {
    struct ask_item *last = choice->item_count > 0 ? &choice->items[choice->item_count - 1] : NULL;
    if (last != NULL && last->kind == kind && kind != ANSWER_TOOL_CALL) {
        last->end = end;
        return true;
    }
    struct ask_item *grown = realloc(choice->items, (choice->item_count + 1) * sizeof *grown);
    if (grown == NULL) return false;
    static const char *const prefixes[] = {
        [ANSWER_CONTENT] = "msg_", [ANSWER_REASONING] = "rs_", [ANSWER_TOOL_CALL] = "fc_"};
    choice->items = grown;
    struct ask_item *item = &grown[choice->item_count++];
    *item = (struct ask_item){.kind = kind, .begin = begin, .end = end};
    server_new_id(choice->ask->server, prefixes[kind], item->id);
    return true;
}

static void take_part(void *context, const struct answer_part *part) {
    struct ask_choice *choice = context;
    struct ask *ask = choice->ask;
    bool taken = true;
    const size_t begin = part->kind == ANSWER_CONTENT     ? choice->content.length
                         : part->kind == ANSWER_REASONING ? choice->reasoning.length
                                                          : choice->call_count;
    switch (part->kind) {
    case ANSWER_CONTENT: taken = text_append(&choice->content, part->bytes, part->length); break;
    case ANSWER_REASONING: taken = text_append(&choice->reasoning, part->bytes, part->length); break;
    case ANSWER_TOOL_CALL: taken = add_call(choice, part); break;
    }
    taken = taken && note_item(choice, part->kind, begin, begin + (part->kind == ANSWER_TOOL_CALL ? 1 : part->length));
    if (!taken)
        no_memory(ask);
    else if (ask->options.streams && ask->family->part != NULL)
        ask->family->part(ask, choice, part);
}

/* A control token is not shown, but it may be what a call begins with. */
static void push_mark(struct ask_choice *choice, const struct service_token *token) {
    const struct tokenizer *tokenizer = choice->ask->server->model.tokenizer;
    char piece[64];
    if (token->id == TOKEN_NONE || token->is_end || !tokenizer_is_control(tokenizer, token->id)) return;
    if (!choice->parser.has_tools && !choice->parser.has_reasoning) return;
    const size_t length = tokenizer_piece(tokenizer, token->id, true, piece, sizeof piece);
    if (length <= sizeof piece && answer_has_mark(choice->parser.syntax, piece, length) &&
        !answer_parser_push(&choice->parser, piece, length, take_part, choice))
        no_memory(choice->ask);
}

static enum service_flow on_token(void *context, const struct service_token *token) {
    struct ask_choice *choice = context;
    struct ask *ask = choice->ask;
    ask->is_full = false;
    if (token->id != TOKEN_NONE && ask->options.has_log_probabilities &&
        !add_token(choice, token->id, token->log_probability, token->top, token->top_count))
        no_memory(ask);
    const bool was_thinking = choice->parser.state == ANSWER_IN_REASONING;
    if (!answer_parser_push(&choice->parser, token->bytes, token->length, take_part, choice)) no_memory(ask);
    push_mark(choice, token);
    if (token->id != TOKEN_NONE && (was_thinking || choice->parser.state == ANSWER_IN_REASONING))
        choice->reasoning_tokens++;
    if (ask->options.streams && ask->options.has_log_probabilities && ask->family->token != NULL)
        ask->family->token(ask, choice);
    return ask->is_full ? SERVICE_PAUSE : SERVICE_CONTINUE;
}

static void on_done(void *context, const struct service_done *done) {
    struct ask_choice *choice = context;
    struct ask *ask = choice->ask;
    choice->stop = done->reason;
    choice->stop_index = done->stop_index;
    choice->figures = done->figures;
    choice->document = done->document;
    const char *notice = done->error.message[0] != '\0' ? done->error.message : done->notice;
    snprintf(choice->notice, sizeof choice->notice, "%s", notice);
    if (done->was_admitted) latencies_note(&ask->server->latencies, &done->figures);
    pthread_mutex_lock(&ask->end.mutex);
    choice->has_ended = true;
    const bool was_left = ask->end.has_left;
    choice->ticket = 0;
    pthread_mutex_unlock(&ask->end.mutex);
    if (done->reason == STOP_FAILED || done->reason == STOP_INTERRUPTED) {
        struct api_error error;
        api_error_from(&error, &done->error);
        fail(ask, &error);
    } else if (!was_left) {
        answer_parser_finish(&choice->parser, take_part, choice);
        if (ask->options.streams && ask->family->choice_ends != NULL) ask->family->choice_ends(ask, choice);
    }
    settle(ask);
}

/* ---- the exchange's callbacks ---- */

static void on_leave(void *context) {
    struct ask *ask = context;
    pthread_mutex_lock(&ask->end.mutex);
    ask->end.has_left = true;
    pthread_mutex_unlock(&ask->end.mutex);
    tell_all(ask, service_cancel);
}

static void on_resume(void *context) { tell_all(context, service_resume); }

static void on_beat(void *context) {
    struct ask *ask = context;
    if (atomic_load(&ask->progress.is_open) && ask->family->beat != NULL) ask->family->beat(ask);
}

/* ---- submitting ---- */

static bool submit_choice(struct ask *ask, struct ask_choice *choice, const struct ask_choice *first) {
    const struct ask_options *options = &ask->options;
    char owner[SERVICE_OWNER_MAX];
    struct service_request request = {
        .prompt = first->prompt.ids,
        .prompt_count = first->prompt.count,
        .turn_end = ask->turn_end,
        .drops_answer = ask->drops_answer,
        .sampling = options->sampling,
        .greedy = options->is_greedy,
        .has_token_max = options->has_token_max,
        .token_max = options->token_max,
        .stops = options->stops,
        .stop_count = options->stop_count,
        .ignore_end = options->ignore_end,
        .replaces_invalid = true,
        .log_probabilities = options->has_log_probabilities,
        .top_count = options->top_count,
        .prompt_log_probabilities = ask->form.lists_prompt,
        .owner = server_owner(ask->server, exchange_key(ask->exchange), owner),
        .priority = options->is_low_priority ? SERVICE_LOW : SERVICE_NORMAL,
        .document_name = ask->document_name[0] != '\0' ? ask->document_name : NULL,
        .mask = ask->form.mask,
        .observer = ask->observer,
    };
    request.sampling.seed += choice->index;
    const struct service_listener listener = {.context = choice,
                                              .admitted = on_admitted,
                                              .progress = on_progress,
                                              .prompt_token = on_prompt_token,
                                              .token = on_token,
                                              .done = on_done};
    struct error reason = {0};
    service_ticket ticket = 0;
    struct logit_mask mask;
    enum status status = STATUS_OK;
    if (ask->form.schema != NULL) {
        status = server_mask(ask->server, ask->form.schema, &mask, &reason);
        request.mask = &mask;
    }
    pthread_mutex_lock(&ask->end.mutex);
    ask->end.pending++;
    pthread_mutex_unlock(&ask->end.mutex);
    if (status == STATUS_OK) {
        status = service_submit(ask->server->model.service, &request, &listener, &ticket, &reason);
        if (status != STATUS_OK && ask->form.schema != NULL) mask.destroy(mask.context);
    }
    pthread_mutex_lock(&ask->end.mutex);
    const bool has_left = ask->end.has_left || ask->end.has_failed;
    if (status == STATUS_OK && !choice->has_ended) choice->ticket = ticket;
    if (status != STATUS_OK) ask->end.pending--;
    pthread_mutex_unlock(&ask->end.mutex);
    if (status == STATUS_OK) {
        if (has_left) service_cancel(ask->server->model.service, ticket);
        return true;
    }
    struct api_error error;
    api_error_from(&error, &reason);
    if (status == STATUS_FULL) error.retry_after_seconds = service_wait_estimate(ask->server->model.service);
    fail(ask, &error);
    return false;
}

/* The ask may be gone when this returns. */
static void submit(struct ask *ask) {
    const struct exchange_work work = {
        .context = ask, .leave = on_leave, .resume = on_resume, .beat = on_beat, .streams = ask->options.streams};
    ask->end.pending = 1; /* this function's */
    exchange_set_work(ask->exchange, &work);
    const struct ask_choice *first = NULL;
    for (size_t i = 0; i < ask->choice_count; i++) {
        if (i % ask->options.choices == 0) first = &ask->choices[i];
        if (!submit_choice(ask, &ask->choices[i], first)) break;
    }
    settle(ask);
}

void ask_route(struct server *server, struct exchange *exchange, const struct ask_family *family) {
    json_t *body;
    struct token_list ids = {0};
    if (!(family->ids_field != NULL ? server_read_body_with_ids(exchange, family->ids_field, &body, &ids)
                                    : server_read_body(exchange, &body)))
        return;
    struct ask *ask = create(server, exchange, body, family);
    if (ask == NULL) {
        token_list_deinit(&ids);
        return;
    }
    ask->ids = ids;
    struct api_error error;
    if (family->read(ask, &error)) {
        submit(ask);
        return;
    }
    exchange_reply_error(ask->exchange, &error);
    ask_destroy(ask);
}

/* ---- figures ---- */

struct ask_usage ask_usage(const struct ask *ask) {
    struct ask_usage usage = {0};
    for (size_t i = 0; i < ask->choice_count; i++) {
        const struct ask_choice *choice = &ask->choices[i];
        usage.answer_tokens += choice->figures.answer_tokens;
        usage.reasoning_tokens += choice->reasoning_tokens;
        if (i % ask->options.choices != 0) continue; /* a prompt counts once */
        usage.prompt_tokens += choice->figures.prompt_tokens;
        usage.reused_tokens += choice->figures.reused_tokens;
    }
    return usage;
}

json_t *ask_timings(const struct ask *ask) {
    const struct service_figures *f = &ask->choices[0].figures;
    const size_t computed = f->prompt_tokens - f->reused_tokens;
    return JSON({"cache_n", json_uint(f->reused_tokens)}, {"prompt_n", json_uint(computed)},
                {"prompt_ms", json_number(f->prefill_seconds * 1e3)},
                {"prompt_per_second", json_number(f->prefill_seconds > 0 ? (double)computed / f->prefill_seconds : 0)},
                {"predicted_n", json_uint(f->answer_tokens)}, {"predicted_ms", json_number(f->decode_seconds * 1e3)},
                {"predicted_per_second",
                 json_number(f->decode_seconds > 0 ? (double)f->answer_tokens / f->decode_seconds : 0)});
}
