#include "cli/serve_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/utf8.h"
#include "server/json_text.h"

enum { PATH_BYTES = 200, TIME_BYTES = 32 };

static const char *method_name(enum http_method method) {
    switch (method) {
    case HTTP_GET: return "GET";
    case HTTP_HEAD: return "HEAD";
    case HTTP_POST: return "POST";
    case HTTP_PUT: return "PUT";
    case HTTP_DELETE: return "DELETE";
    case HTTP_OPTIONS: return "OPTIONS";
    case HTTP_OTHER: break;
    }
    return "?";
}

/* What others ask every few seconds. */
static bool is_routine(const struct request_record *record) {
    static const char *const paths[] = {"/health", "/v1/health", "/metrics"};
    if (record->http_status != 200) return false;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (record->path.length == strlen(paths[i]) && memcmp(record->path.text, paths[i], record->path.length) == 0)
            return true;
    return false;
}

static const char *time_text(char text[TIME_BYTES]) {
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) == NULL || strftime(text, TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) text[0] = '\0';
    return text;
}

static void write_text(void *context, const struct request_record *record) {
    (void)context;
    if (is_routine(record)) return;
    char path[PATH_BYTES], time[TIME_BYTES], tokens[96] = "";
    if (record->has_tokens)
        snprintf(tokens, sizeof tokens, "read %" PRIu64 ", known %" PRIu64 ", made %" PRIu64 ", ", record->tokens.read,
                 record->tokens.known, record->tokens.made);
    fprintf(stderr, "loam: %s %s %s %u, %s%.3f s%s, %s\n", time_text(time), method_name(record->method),
            utf8_escape(record->path.text, record->path.length, path, sizeof path), record->http_status, tokens,
            record->seconds, record->has_left ? ", the client left" : "", record->id);
}

static void write_json(void *context, const struct request_record *record) {
    (void)context;
    if (is_routine(record)) return;
    char time[TIME_BYTES];
    json_t *line = JSON({"time", json_string(time_text(time))}, {"id", json_string(record->id)},
                        {"method", json_string(method_name(record->method))},
                        {"path", json_text_without_zeros(record->path.text, record->path.length)},
                        {"status", json_uint(record->http_status)}, {"left", json_boolean(record->has_left)});
    if (record->has_tokens) {
        JSON_PUT(line, {"read", json_uint(record->tokens.read)}, {"known", json_uint(record->tokens.known)},
                 {"made", json_uint(record->tokens.made)});
    }
    json_put_number(line, "seconds", record->seconds);
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6));
    if (text != NULL) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(line);
}

struct request_log serve_log_of(size_t form) {
    static void (*const forms[])(void *context, const struct request_record *record) = {write_text, write_json, NULL};
    return (struct request_log){.write = forms[form]};
}
