#include "server/openai.h"

#include <string.h>

#include "platform/clock.h"
#include "server/json_text.h"
#include "server/sse.h"

/* {id, object, created, model, system_fingerprint} */
static json_t *envelope_json(const struct ask *ask, const char *object) {
    const struct server_model *model = &ask->server->model;
    return JSON({"id", json_string(ask->id)}, {"object", json_string(object)}, {"created", json_integer(ask->created)},
                {"model", json_text(model->id, strlen(model->id))},
                {"system_fingerprint", json_string(ask->server->options.version)});
}

static json_t *usage_json(const struct ask *ask) {
    const struct ask_usage usage = ask_usage(ask);
    json_t *object =
        JSON({"prompt_tokens", json_uint(usage.prompt_tokens)}, {"completion_tokens", json_uint(usage.answer_tokens)},
             {"total_tokens", json_uint(usage.prompt_tokens + usage.answer_tokens)});
    JSON_PUT(object, {"prompt_tokens_details", JSON({"cached_tokens", json_uint(usage.reused_tokens)})},
             {"completion_tokens_details", JSON({"reasoning_tokens", json_uint(usage.reasoning_tokens)})});
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
    return JSON({"total", json_uint(atomic_load(&ask->progress.total))},
                {"cache", json_uint(ask->progress.admission.reused_tokens)},
                {"processed", json_uint(atomic_load(&ask->progress.done))},
                {"time_ms", json_uint((clock_ns() - ask->progress.admitted_ns) / 1000000)});
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
    json_t *envelope =
        frame(ask, object, JSON({"index", json_uint(0)}, {key, nothing}, {"finish_reason", json_null()}));
    json_put(envelope, "prompt_progress", progress_json(ask));
    (void)sse_send(ask->exchange, NULL, envelope);
}

static json_t *last_object(const struct ask *ask, const char *object, json_t *choices) {
    json_t *envelope = envelope_json(ask, object);
    JSON_PUT(envelope, {"choices", choices}, {"usage", usage_json(ask)}, {"timings", ask_timings(ask)});
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
