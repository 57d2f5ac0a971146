/* /v1/loam/explain: which sentences the tokens of an answer attended to.
 *
 * The request is that of /v1/chat/completions with the answer as its last message.  The prompt attaches to what is
 * known of it, and the answer's tokens are stepped once more, with an observer (explain/explain.h): a mask lets only
 * them be picked.  The last of them is stepped too, so one more token is picked, which nobody sees. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "explain/explain_sources.h"
#include "platform/clock.h"
#include "server/ask.h"
#include "server/chat_messages.h"
#include "server/document_text.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/sse.h"

enum { SPANS_DEFAULT = 5, SPANS_MAX = 1000, SOURCES_MAX = 64, STEPS_MAX = 1024 };
static const uint64_t weights_bytes_max = UINT64_C(64) << 20, /* a float of each step and position */
    progress_interval_ns = UINT64_C(200000000);

struct source {
    char *name;  /* owned; NULL: none */
    char *bytes; /* owned; [length] */
    size_t length;
    uint64_t document; /* 0: none */
};

/* The family's data. */
struct explaining {
    struct source sources[SOURCES_MAX];
    size_t source_count, spans_max;
    struct token_list answer;
    _Atomic size_t picked; /* tokens of the answer so far */
    uint64_t told_ns;      /* when a stream was last told of it */
    struct ask *ask;
    struct explain explain;
    struct logit_mask mask;
};

static bool no_memory(struct api_error *error) { return api_error_set(error, 503, NULL, "no memory"); }

static void explaining_destroy(void *data) {
    struct explaining *e = data;
    if (e == NULL) return;
    for (size_t i = 0; i < e->source_count; i++) {
        free(e->sources[i].name);
        free(e->sources[i].bytes);
    }
    token_list_deinit(&e->answer);
    explain_destroy(&e->explain);
    free(e);
}

/* ---- the answer, once more ---- */

static enum status allow_next(void *context, float *logits, size_t vocabulary_size, struct error *error) {
    const struct explaining *e = context;
    (void)error;
    for (size_t i = 0; i < vocabulary_size && e->picked < e->answer.count; i++)
        if ((token_id)i != e->answer.ids[e->picked]) logits[i] = -INFINITY;
    return STATUS_OK;
}

static bool work(void *context, struct sequence *sequence, bool (*pauses)(void *context), void *pauses_context) {
    return explain_work(context, sequence_kv(sequence), pauses, pauses_context);
}

/* In a stream: of the prompt that is read, then of the answer. */
static void send_progress(struct ask *ask, bool reads, size_t done, size_t total) {
    (void)sse_send(ask->exchange, NULL,
                   JSON({"object", json_string("loam.explanation.progress")},
                        {"state", json_string(reads ? "reading" : "explaining")}, {"processed", json_uint(done)},
                        {"total", json_uint(total)}));
}

static void reading_progress(struct ask *ask, size_t done, size_t total) { send_progress(ask, true, done, total); }

static enum status count_picked(void *context, int32_t token, struct error *error) {
    struct explaining *e = context;
    (void)token, (void)error;
    const size_t picked = min_size(atomic_fetch_add(&e->picked, 1) + 1, e->answer.count);
    const uint64_t now_ns = clock_ns();
    if (!e->ask->options.streams || now_ns - e->told_ns < progress_interval_ns) return STATUS_OK;
    e->told_ns = now_ns;
    send_progress(e->ask, false, picked, e->answer.count);
    return STATUS_OK;
}

static void beat(struct ask *ask) {
    struct explaining *e = ask->data;
    const size_t picked = min_size(atomic_load(&e->picked), e->answer.count);
    if (picked > 0)
        send_progress(ask, false, picked, e->answer.count);
    else
        send_progress(ask, true, atomic_load(&ask->progress.done), atomic_load(&ask->progress.total));
}

/* ---- the request ---- */

static bool add_source(struct explaining *e, const char *name, const char *bytes, size_t length,
                       struct api_error *error) {
    if (e->source_count == SOURCES_MAX) return field_refuse(error, "sources", "expected at most %d", SOURCES_MAX);
    struct source *source = &e->sources[e->source_count];
    *source =
        (struct source){.name = name != NULL ? strdup(name) : NULL, .bytes = malloc(length + 1), .length = length};
    e->source_count++;
    if (source->bytes == NULL || (name != NULL && source->name == NULL)) return no_memory(error);
    memcpy(source->bytes, bytes, length);
    return true;
}

/* The field `sources`, [{name, text}]. */
static bool add_given(struct explaining *e, const json_t *sources, struct api_error *error) {
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const json_t *source = json_array_get(sources, i);
        const char *name = NULL, *text = NULL;
        size_t name_length, length = 0;
        if (!json_is_object(source))
            return api_error_set(error, 400, "sources", "'sources'[%zu]: found %s, expected {name, text}", i,
                                 json_kind(source));
        if (!field_text(source, "name", SERVICE_NAME_MAX, &name, &name_length, error) ||
            !field_text(source, "text", GUARD_BODY_BYTES_MAX, &text, &length, error))
            return false;
        if (text == NULL) return api_error_set(error, 400, "sources", "'sources'[%zu]: 'text' is missing", i);
        if (!add_source(e, name, text, length, error)) return false;
    }
    return true;
}

/* Notes the name of the document that was added last. */
static void see_document(void *context, const struct document_info *info) {
    struct explaining *e = context;
    struct source *source = &e->sources[e->source_count - 1];
    if (info->id == source->document && source->name == NULL) source->name = strdup(info->name);
}

/* The documents of the field `documents`, under the system message that they were read with. */
static bool add_documents(struct explaining *e, const struct conversation *conversation, struct api_error *error) {
    struct server *server = e->ask->server;
    const uint32_t key = exchange_key(e->ask->exchange);
    const struct conversation_message *system =
        conversation->count > 0 && conversation->messages[0].role == CHAT_SYSTEM ? conversation->messages : NULL;
    const json_t *ids;
    char owner[SERVICE_OWNER_MAX];
    if (!field_array(e->ask->body, "documents", SOURCES_MAX, &ids, error)) return false;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *number = json_array_get(ids, i);
        if (!json_is_integer(number) || json_integer_value(number) <= 0)
            return api_error_set(error, 400, "documents", "'documents'[%zu]: expected the id of a document", i);
        const uint64_t id = (uint64_t)json_integer_value(number);
        char *text = NULL;
        size_t length = 0;
        struct error reason;
        bool added = document_text_read(server, key, id, system, &text, &length, error) &&
                     add_source(e, NULL, text, length, error);
        free(text);
        if (!added) return false;
        e->sources[e->source_count - 1].document = id;
        if (service_list_documents(server->model.service, server_owner(server, key, owner), see_document, e, &reason) !=
            STATUS_OK)
            return api_error_from(error, &reason);
    }
    return true;
}

/* Those that are given, or else the documents and the users' messages, before the documents are put into them. */
static bool read_sources(struct explaining *e, const struct conversation *conversation, struct api_error *error) {
    const json_t *sources;
    if (!field_array(e->ask->body, "sources", SOURCES_MAX, &sources, error)) return false;
    if (json_array_size(sources) > 0) return add_given(e, sources, error);
    if (!add_documents(e, conversation, error)) return false;
    for (size_t i = 0; i < conversation->count; i++)
        if (conversation->messages[i].role == CHAT_USER && !add_source(e, NULL, conversation->messages[i].content.bytes,
                                                                       conversation->messages[i].content.length, error))
            return false;
    return true;
}

/* The last message, taken out: its tokens are the answer's. */
static bool take_answer(struct ask *ask, struct explaining *e, struct conversation *conversation,
                        struct api_error *error) {
    struct conversation_message *last =
        conversation->count > 0 ? &conversation->messages[conversation->count - 1] : NULL;
    if (last == NULL || last->role != CHAT_ASSISTANT || last->content.length == 0)
        return field_refuse(error, "messages", "expected the answer, of the assistant, as the last one");
    struct error reason;
    const enum status status = tokenizer_encode(ask->server->model.tokenizer, last->content.bytes, last->content.length,
                                                (struct tokenize_options){0}, &e->answer, &reason);
    conversation_message_deinit(last);
    conversation->count--;
    return status == STATUS_OK || api_error_from(error, &reason);
}

static bool prepare(struct ask *ask, struct explaining *e, size_t prompt_count, struct api_error *error) {
    const struct server_model *model = &ask->server->model;
    const size_t rows = prompt_count + e->answer.count + 1;
    const uint64_t steps_max = weights_bytes_max / (rows * sizeof(float)) + 1;
    const size_t context = (size_t)service_context_size(model->service);
    struct error reason;
    if (rows > context) return api_error_set_overflow(error, rows, context);
    if (e->answer.count > STEPS_MAX) e->answer.count = STEPS_MAX;
    if (e->answer.count > steps_max) e->answer.count = (size_t)steps_max;
    if (explain_create(&e->explain, model->model, prompt_count, e->answer.count, model->in_tiers, &reason) != STATUS_OK)
        return api_error_from(error, &reason);
    e->mask = (struct logit_mask){.context = e, .apply = allow_next, .accept = count_picked};
    ask->form.mask = &e->mask;
    ask->observer = (struct service_observer){.note = explain_note, .work = work, .context = &e->explain};
    ask->options = (struct ask_options){.is_greedy = true,
                                        .has_token_max = true,
                                        .token_max = e->answer.count + 1,
                                        .ignore_end = true,
                                        .choices = 1,
                                        .streams = ask->options.streams,
                                        .is_low_priority = true,
                                        .sampling = model->sampling};
    return true;
}

static bool read_request(struct ask *ask, struct api_error *error) {
    struct explaining *e = ask->data = calloc(1, sizeof *e);
    if (e == NULL) return no_memory(error);
    const struct server_model *model = &ask->server->model;
    struct conversation conversation = {0};
    struct token_list prompt = {0};
    int64_t spans = SPANS_DEFAULT;
    e->ask = ask;
    bool read = field_flag(ask->body, "stream", &ask->options.streams, error) &&
                field_integer(ask->body, "spans", 1, SPANS_MAX, &spans, error) &&
                chat_messages_read(&conversation, ask->body, error) && take_answer(ask, e, &conversation, error) &&
                read_sources(e, &conversation, error) &&
                document_text_prepend(ask->server, exchange_key(ask->exchange), ask->body, &conversation, error) &&
                conversation_encode(&conversation, model->chat, model->tokenizer, &prompt, error) &&
                prepare(ask, e, prompt.count, error) && ask_set_prompts(ask, &prompt, 1, error);
    e->spans_max = (size_t)spans;
    token_list_deinit(&prompt);
    conversation_deinit(&conversation);
    return read;
}

/* ---- the response ---- */

static json_t *span_json(const struct explaining *e, const struct explain_span *span) {
    const struct source *source = &e->sources[span->document];
    json_t *object = JSON({"source", json_uint(span->document)});
    if (source->name != NULL) json_put(object, "name", json_text(source->name, strlen(source->name)));
    if (source->document != 0) json_put_uint(object, "document", source->document);
    json_put_uint(object, "line", span->place.line);
    if (span->place.page > 0) json_put_uint(object, "page", span->place.page);
    if (span->place.chapter > 0) json_put_uint(object, "chapter", span->place.chapter);
    if (span->place.name != NULL) json_put(object, "file", json_text(span->place.name, span->place.name_length));
    JSON_PUT(object, {"begin", json_uint(span->begin)}, {"end", json_uint(span->end)},
             {"share", json_number(span->share)}, {"lift", json_number(span->lift)},
             {"text", json_text(source->bytes + span->begin, span->end - span->begin)});
    return object;
}

static enum status find_spans(const struct ask *ask, struct explain_span **spans, size_t *count, struct error *error) {
    const struct explaining *e = ask->data;
    const struct token_list *prompt = &ask->choices[0].prompt;
    struct explain_source sources[SOURCES_MAX];
    *spans = NULL;
    if (e->explain.failed != STATUS_OK) {
        *error = e->explain.failure;
        return e->explain.failed;
    }
    for (size_t i = 0; i < e->source_count; i++)
        sources[i] = (struct explain_source){e->sources[i].bytes, e->sources[i].length};
    const struct explain_texts texts = {.tokenizer = ask->server->model.tokenizer,
                                        .prompt = prompt->ids,
                                        .prompt_count = prompt->count,
                                        .sources = sources,
                                        .source_count = e->source_count};
    return explain_find_sources(&e->explain, &texts, spans, count, error);
}

static json_t *explanation_json(const struct ask *ask, const struct explain_span *spans, size_t count) {
    const struct explaining *e = ask->data;
    const struct service_figures *figures = &ask->choices[0].figures;
    json_t *list = json_array();
    for (size_t i = 0; i < min_size(count, e->spans_max); i++) json_array_append_new(list, span_json(e, &spans[i]));
    return JSON({"object", json_string("loam.explanation")}, {"prompt_tokens", json_uint(figures->prompt_tokens)},
                {"cached_tokens", json_uint(figures->reused_tokens)},
                {"answer_tokens", json_uint(e->explain.step_count)}, {"spans", list});
}

static void fail(struct ask *ask, const struct api_error *error) {
    (void)sse_send(ask->exchange, NULL, api_error_json(error, false));
}

static void reply(struct ask *ask) {
    struct explain_span *spans;
    struct error reason;
    struct api_error error;
    size_t count = 0;
    const enum status status = find_spans(ask, &spans, &count, &reason);
    if (status != STATUS_OK) api_error_from(&error, &reason);
    if (!ask->options.streams && status == STATUS_OK) {
        exchange_reply_json(ask->exchange, 200, explanation_json(ask, spans, count));
    } else if (!ask->options.streams) {
        exchange_reply_error(ask->exchange, &error);
    } else if (status == STATUS_OK) {
        (void)sse_send(ask->exchange, NULL, explanation_json(ask, spans, count));
        sse_send_done(ask->exchange);
    } else {
        fail(ask, &error);
    }
    free(spans);
}

static const struct ask_family family = {.id_prefix = "explain-",
                                         .read = read_request,
                                         .progress = reading_progress,
                                         .end = reply,
                                         .fail = fail,
                                         .beat = beat,
                                         .destroy = explaining_destroy};

void explain_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }
