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
    json_t *error = json_object();
    json_put_uint(error, "code", 503);
    const char *reason = state == SERVER_LOADING ? "Loading model" : "Stopping";
    if (state == SERVER_READY) reason = changed.message;
    json_put(error, "message", json_text(reason, strlen(reason)));
    json_put(error, "type", json_string("unavailable_error"));
    json_put(body, "error", error);
    exchange_reply_json(exchange, 503, body);
}

static json_t *model_json(const struct server *server) {
    const struct server_model *model = &server->model;
    const struct model_config *config = &model->model->config;
    json_t *object = json_object(), *meta = json_object();
    char created[32];
    struct tm utc;
    gmtime_r(&server->started, &utc);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_put(object, "id", json_text(model->id, strlen(model->id)));
    json_put(object, "object", json_string("model"));
    json_put_uint(object, "created", (uint64_t)server->started);
    json_put(object, "owned_by", json_string("loam"));
    /* Anthropic's fields. */
    json_put(object, "type", json_string("model"));
    json_put(object, "display_name", json_text(config->name, strlen(config->name)));
    json_put(object, "created_at", json_string(created));
    /* vLLM's and llama-server's. */
    json_put_uint(object, "max_model_len", service_context_size(model->service));
    json_put_number(object, "document_temperature", (double)model->about_documents); /* loam's page's */
    json_put_uint(meta, "n_vocab", config->vocabulary_size);
    json_put_uint(meta, "n_ctx", service_context_size(model->service));
    json_put_uint(meta, "n_ctx_train", config->stretched_from > 0 ? config->stretched_from : config->context_length);
    json_put_uint(meta, "n_embd", config->hidden_size);
    json_put_uint(meta, "n_params", model->parameter_count);
    json_put_uint(meta, "size", model->size_bytes);
    json_put(object, "meta", meta);
    return object;
}

void models_route(struct server *server, struct exchange *exchange) {
    const struct server_model *model = &server->model;
    json_t *list = json_object(), *data = json_array();
    json_array_append_new(data, model_json(server));
    json_put(list, "object", json_string("list"));
    json_put(list, "data", data);
    json_put(list, "has_more", json_false());
    json_put(list, "first_id", json_text(model->id, strlen(model->id)));
    json_put(list, "last_id", json_text(model->id, strlen(model->id)));
    exchange_reply_json(exchange, 200, list);
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
    json_t *params = json_object();
    json_put_number(params, "temperature", (double)sampling->temperature);
    json_put_uint(params, "top_k", sampling->top_k);
    json_put_number(params, "top_p", (double)sampling->top_p);
    json_put_number(params, "min_p", (double)sampling->min_p);
    json_put_number(params, "repeat_penalty", (double)sampling->repeat_penalty);
    json_put_number(params, "presence_penalty", (double)sampling->presence_penalty);
    json_put_number(params, "frequency_penalty", (double)sampling->frequency_penalty);
    json_put_uint(params, "repeat_last_n", sampling->repeat_last);
    return params;
}

void props_route(struct server *server, struct exchange *exchange) {
    const struct server_model *model = &server->model;
    json_t *props = json_object(), *settings = json_object(), *modalities = json_object();
    json_put_uint(settings, "n_ctx", service_context_size(model->service));
    json_put(settings, "params", sampling_json(&model->sampling));
    json_put(props, "default_generation_settings", settings);
    json_put_uint(props, "total_slots", service_parallel(model->service));
    json_put(props, "model_alias", json_text(model->id, strlen(model->id)));
    json_put(props, "model_path", json_text(model->path, strlen(model->path)));
    json_put(props, "chat_template",
             json_text(model->chat_text != NULL ? model->chat_text : "", model->chat_text_length));
    json_put(props, "chat_template_name",
             model->chat != NULL ? json_string(chat_template_name(model->chat)) : json_null());
    json_put(modalities, "vision", json_false());
    json_put(modalities, "audio", json_false());
    json_put(props, "modalities", modalities);
    json_put(props, "build_info", json_text(server->options.version, strlen(server->options.version)));
    exchange_reply_json(exchange, 200, props);
}
