/* /health, /v1/models, /props: what the server and its model are. */
#include <string.h>

#include "server/json_text.h"
#include "server/routes.h"

void health_route(struct server *server, struct exchange *exchange) {
    json_t *body = json_object();
    const int state = atomic_load(&server->state);
    struct error changed = {.message = ""};
    if (state == SERVER_READY && gguf_check(&server->model.model->gguf, &changed) == STATUS_OK) {
        json_put(body, "status", json_string("ok"));
        exchange_reply_json(exchange, 200, body);
        return;
    }
    json_t *error = JSON({"code", json_uint(503)});
    const char *reason = state == SERVER_LOADING ? "Loading model" : "Stopping";
    if (state == SERVER_READY) reason = changed.message;
    JSON_PUT(error, {"message", json_text(reason, strlen(reason))}, {"type", json_string("unavailable_error")});
    json_put(body, "error", error);
    exchange_reply_json(exchange, 503, body);
}

static json_t *model_json(const struct server *server) {
    const struct server_model *model = &server->model;
    const struct model_config *config = &model->model->config;
    char created[32];
    struct tm utc;
    gmtime_r(&server->started, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *object = JSON({"id", json_text(model->id, strlen(model->id))}, {"object", json_string("model")},
                          {"created", json_uint((uint64_t)server->started)}, {"owned_by", json_string("loam")});
    /* Anthropic's fields. */
    JSON_PUT(object, {"type", json_string("model")}, {"display_name", json_text(config->name, strlen(config->name))},
             {"created_at", json_string(created)});
    /* vLLM's and llama-server's. */
    json_put_uint(object, "max_model_len", service_context_size(model->service));
    json_put_number(object, "document_temperature", (double)model->about_documents); /* loam's page's */
    json_t *meta = JSON(
        {"n_vocab", json_uint(config->vocabulary_size)}, {"n_ctx", json_uint(service_context_size(model->service))},
        {"n_ctx_train", json_uint(config->stretched_from > 0 ? config->stretched_from : config->context_length)},
        {"n_embd", json_uint(config->hidden_size)}, {"n_params", json_uint(model->parameter_count)},
        {"size", json_uint(model->size_bytes)});
    json_put(object, "meta", meta);
    return object;
}

void models_route(struct server *server, struct exchange *exchange) {
    const struct server_model *model = &server->model;
    json_t *data = json_array();
    json_array_append_new(data, model_json(server));
    exchange_reply_json(exchange, 200,
                        JSON({"object", json_string("list")}, {"data", data}, {"has_more", json_false()},
                             {"first_id", json_text(model->id, strlen(model->id))},
                             {"last_id", json_text(model->id, strlen(model->id))}));
}

/* /v1/models/ID */
void model_route(struct server *server, struct exchange *exchange) {
    static const char folder[] = "/v1/models/";
    if (strcmp(exchange_path(exchange) + sizeof folder - 1, server->model.id) == 0) {
        exchange_reply_json(exchange, 200, model_json(server));
        return;
    }
    struct api_error error;
    api_error_set(&error, 404, "model", "there is no such model: this server has '%.200s'", server->model.id);
    error.code = "model_not_found";
    exchange_reply_error(exchange, &error);
}

static json_t *sampling_json(const struct sampler_options *sampling) {
    return JSON({"temperature", json_number((double)sampling->temperature)}, {"top_k", json_uint(sampling->top_k)},
                {"top_p", json_number((double)sampling->top_p)}, {"min_p", json_number((double)sampling->min_p)},
                {"repeat_penalty", json_number((double)sampling->repeat_penalty)},
                {"presence_penalty", json_number((double)sampling->presence_penalty)},
                {"frequency_penalty", json_number((double)sampling->frequency_penalty)},
                {"repeat_last_n", json_uint(sampling->repeat_last)});
}

void props_route(struct server *server, struct exchange *exchange) {
    const struct server_model *model = &server->model;
    json_t *settings =
        JSON({"n_ctx", json_uint(service_context_size(model->service))}, {"params", sampling_json(&model->sampling)});
    json_t *props =
        JSON({"default_generation_settings", settings}, {"total_slots", json_uint(service_parallel(model->service))},
             {"model_alias", json_text(model->id, strlen(model->id))},
             {"model_path", json_text(model->path, strlen(model->path))},
             {"chat_template", json_text(model->chat_text != NULL ? model->chat_text : "", model->chat_text_length)},
             {"chat_template_name", model->chat != NULL ? json_string(chat_template_name(model->chat)) : json_null()});
    json_t *modalities = JSON({"vision", json_false()}, {"audio", json_false()});
    JSON_PUT(props, {"modalities", modalities},
             {"build_info", json_text(server->options.version, strlen(server->options.version))});
    exchange_reply_json(exchange, 200, props);
}
