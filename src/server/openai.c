#include "server/openai.h"

#include <string.h>

#include "platform/clock.h"
#include "server/json_text.h"
#include "server/sse.h"

/* {id, object, created, model, system_fingerprint} */
static json_t *envelope_json(const struct ask *ask, const char *object) {
    const struct server_model *model = &ask->server->model;
    json_t *envelope = json_object();
    json_put(envelope, "id", json_string(ask->id));
    json_put(envelope, "object", json_string(object));
    json_put(envelope, "created", json_integer(ask->created));
    json_put(envelope, "model", json_text(model->id, strlen(model->id)));
    json_put(envelope, "system_fingerprint", json_string(ask->server->options.version));
    return envelope;
}

static json_t *usage_json(const struct ask *ask) {
    const struct ask_usage usage = ask_usage(ask);
    json_t *object = json_object(), *details = json_object(), *answer = json_object();
    json_put_uint(object, "prompt_tokens", usage.prompt_tokens);
    json_put_uint(object, "completion_tokens", usage.answer_tokens);
    json_put_uint(object, "total_tokens", usage.prompt_tokens + usage.answer_tokens);
    json_put_uint(details, "cached_tokens", usage.reused_tokens);
    json_put(object, "prompt_tokens_details", details);
    json_put_uint(answer, "reasoning_tokens", usage.reasoning_tokens);
    json_put(object, "completion_tokens_details", answer);
    return object;
}

static const char *finish_reason(const struct ask_choice *choice) {
    switch (choice->stop) {
    case STOP_LENGTH:
    case STOP_CONTEXT:
    case STOP_LOOP: return "length";
    case STOP_NONE:
    case STOP_END:
    case STOP_STRING:
    case STOP_INTERRUPTED:
    case STOP_FAILED: break;
    }
    return choice->call_count > 0 ? "tool_calls" : "stop";
}

void openai_put_finish(json_t *object, const struct ask_choice *choice, bool is_last) {
    json_put(object, "finish_reason", is_last ? json_string(finish_reason(choice)) : json_null());
    if (is_last && choice->stop == STOP_LOOP) json_put(object, "stop_reason", json_string(stop_reason_name(STOP_LOOP)));
}

static json_t *progress_json(const struct ask *ask) {
    json_t *progress = json_object();
    json_put_uint(progress, "total", atomic_load(&ask->progress.total));
    json_put_uint(progress, "cache", ask->progress.admission.reused_tokens);
    json_put_uint(progress, "processed", atomic_load(&ask->progress.done));
    json_put_uint(progress, "time_ms", (clock_ns() - ask->progress.admitted_ns) / 1000000);
    return progress;
}

static json_t *frame(const struct ask *ask, const char *object, json_t *choice) {
    json_t *envelope = envelope_json(ask, object), *choices = json_array();
    json_array_append_new(choices, choice);
    json_put(envelope, "choices", choices);
    return envelope;
}

void openai_send(struct ask *ask, const char *object, json_t *choice) {
    if (sse_send(ask->exchange, NULL, frame(ask, object, choice))) ask->is_full = true;
}

void openai_beat(struct ask *ask, const char *object, const char *key, json_t *nothing) {
    json_t *choice = json_object(), *envelope = frame(ask, object, choice);
    json_put_uint(choice, "index", 0);
    json_put(choice, key, nothing);
    json_put(choice, "finish_reason", json_null());
    json_put(envelope, "prompt_progress", progress_json(ask));
    (void)sse_send(ask->exchange, NULL, envelope);
}

static json_t *last_object(const struct ask *ask, const char *object, json_t *choices) {
    json_t *envelope = envelope_json(ask, object);
    json_put(envelope, "choices", choices);
    json_put(envelope, "usage", usage_json(ask));
    json_put(envelope, "timings", ask_timings(ask));
    return envelope;
}

void openai_end(struct ask *ask, const char *whole, json_t *(*choices)(struct ask *ask), const char *chunk) {
    if (!ask->options.streams) {
        exchange_reply_json(ask->exchange, 200, last_object(ask, whole, choices(ask)));
        return;
    }
    if (ask->options.includes_usage) (void)sse_send(ask->exchange, NULL, last_object(ask, chunk, json_array()));
    sse_send_done(ask->exchange);
}

void openai_fail(struct ask *ask, const struct api_error *error) {
    (void)sse_send(ask->exchange, NULL, api_error_json(error, false));
}
