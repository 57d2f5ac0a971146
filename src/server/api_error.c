#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "platform/io_file.h"
#include "server/json_text.h"

bool api_error_set(struct api_error *error, unsigned http_status, const char *param, const char *format, ...) {
    *error = (struct api_error){.http_status = http_status, .never_retry = http_status < 429};
    if (param != NULL) snprintf(error->param, sizeof error->param, "%s", param);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

bool api_error_set_overflow(struct api_error *error, uint64_t prompt_tokens, uint64_t context_tokens) {
    api_error_set(error, 400, NULL,
                  "This model's maximum context length is %llu tokens. However, your messages resulted in %llu "
                  "tokens. Please reduce the length of the messages.",
                  (unsigned long long)context_tokens, (unsigned long long)prompt_tokens);
    error->code = "context_length_exceeded";
    error->prompt_tokens = prompt_tokens;
    error->context_tokens = context_tokens;
    return false;
}

bool api_error_from(struct api_error *error, const struct error *reason) {
    unsigned http_status = 500;
    switch (reason->status) {
    case STATUS_USAGE: http_status = 400; break;
    case STATUS_UNSUPPORTED: http_status = 501; break;
    case STATUS_FULL: http_status = 429; break;
    case STATUS_INTERRUPTED: http_status = 503; break;
    case STATUS_MEMORY: http_status = io_is_full(reason->os_error) ? 507 : 503; break;
    case STATUS_IO: http_status = io_is_full(reason->os_error) ? 507 : 500; break;
    case STATUS_MODEL: http_status = 503; break; /* its file has changed */
    case STATUS_OK:
    case STATUS_FAILED:
    case STATUS_DOCUMENT: break;
    }
    return api_error_set(error, http_status, NULL, "%s", reason->message);
}

bool api_error_is_anthropic(const char *path, size_t length) {
    static const char *const words[] = {"v1", "messages"};
    const char *end = path + length;
    for (size_t i = 0; i < 2; i++) {
        while (path < end && *path == '/') path++;
        const size_t own = strlen(words[i]);
        const bool is_there = (size_t)(end - path) >= own && memcmp(path, words[i], own) == 0;
        if (!is_there && i == 1) return false;
        if (is_there) path += own;
    }
    return true;
}

static const char *type_of(unsigned http_status, bool anthropic) {
    switch (http_status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return anthropic ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 501: return anthropic ? "invalid_request_error" : "not_supported_error";
    case 503: return anthropic ? "overloaded_error" : "unavailable_error";
    default: break;
    }
    if (http_status < 500) return "invalid_request_error";
    return anthropic ? "api_error" : "server_error";
}

static json_t *text_or_null(const char *text) {
    return text != NULL && text[0] != '\0' ? json_text(text, strlen(text)) : json_null();
}

json_t *api_error_json(const struct api_error *error, bool anthropic) {
    json_t *body = json_object();
    char words[96];
    const bool is_overflow = anthropic && error->context_tokens > 0;
    snprintf(words, sizeof words, "prompt is too long: %llu tokens > %llu maximum",
             (unsigned long long)error->prompt_tokens, (unsigned long long)error->context_tokens);
    const char *message = is_overflow ? words : error->message;
    json_t *inner = JSON({"message", json_text(message, strlen(message))},
                         {"type", json_string(type_of(error->http_status, anthropic))});
    if (anthropic) {
        json_put(body, "type", json_string("error"));
    } else {
        JSON_PUT(inner, {"param", text_or_null(error->param)}, {"code", text_or_null(error->code)});
        if (error->context_tokens > 0) {
            JSON_PUT(inner, {"n_prompt_tokens", json_uint(error->prompt_tokens)},
                     {"n_ctx", json_uint(error->context_tokens)});
        }
    }
    json_put(body, "error", inner);
    return body;
}
