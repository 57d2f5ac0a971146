#include "pull/http.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "platform/child.h"

enum { LINE_BYTES = 8192, READ_BYTES = 1 << 16 };

/* The bytes that curl hands out: the heads of all hops, each ended by an empty line, then the body. */
struct answer {
    const struct http_listener *listener;
    struct http_response *response;
    char line[LINE_BYTES]; /* what there is of a line of a head */
    size_t length;
    bool has_location, in_body;
};

static bool is_sha256(const char *text, size_t length) {
    if (length != SHA256_TEXT_BYTES - 1) return false;
    for (size_t i = 0; i < length; i++)
        if (!isxdigit((unsigned char)text[i])) return false;
    return true;
}

/* An entity tag without quotes. */
static size_t unquoted(const char **text) {
    if (strncmp(*text, "W/", 2) == 0) *text += 2;
    if (**text == '"') ++*text;
    return strcspn(*text, "\"");
}

static void take_range(struct http_response *response, const char *text) {
    unsigned long long begin, end, size;
    if (sscanf(text, "bytes %llu-%llu/%llu", &begin, &end, &size) != 3 || begin > end || end >= size) return;
    response->begin = begin;
    response->size_bytes = size;
}

static void take_field(struct answer *answer, const char *name, const char *value) {
    struct http_response *response = answer->response;
    const char *tag = value;
    if (strcasecmp(name, "location") == 0) answer->has_location = true;
    if (strcasecmp(name, "content-length") == 0 && response->status == 200)
        response->size_bytes = strtoull(value, NULL, 10);
    if (strcasecmp(name, "content-range") == 0) take_range(response, value);
    if (strcasecmp(name, "etag") == 0) {
        size_t length = unquoted(&tag);
        snprintf(response->tag, sizeof response->tag, "%.*s", (int)length, tag);
    }
    if (strcasecmp(name, "x-linked-etag") == 0) {
        size_t length = unquoted(&tag);
        if (!is_sha256(tag, length)) return;
        for (size_t i = 0; i < length; i++) response->sha256[i] = (char)tolower((unsigned char)tag[i]);
        response->sha256[length] = '\0';
    }
}

/* A line of a head, without its end. */
static enum status take_line(struct answer *answer, struct error *error) {
    struct http_response *response = answer->response;
    answer->line[answer->length] = '\0';
    answer->length = 0;
    if (answer->line[0] == '\0') {
        const bool follows = response->status >= 300 && response->status < 400 && answer->has_location;
        if (response->status < 200 || follows) return STATUS_OK;
        answer->in_body = true;
        return answer->listener->begins(answer->listener->context, response, error);
    }
    if (strncmp(answer->line, "HTTP/", 5) == 0) {
        const char *code = strchr(answer->line, ' ');
        /* The digest of an earlier hop is kept: the registry's own answer has it, and redirects to what has not. */
        struct http_response next = {.status = code != NULL ? (unsigned)strtoul(code, NULL, 10) : 0,
                                     .size_bytes = UINT64_MAX};
        memcpy(next.sha256, response->sha256, sizeof next.sha256);
        *response = next;
        answer->has_location = false;
        return STATUS_OK;
    }
    char *value = strchr(answer->line, ':');
    if (value == NULL) return STATUS_OK;
    *value++ = '\0';
    while (*value == ' ' || *value == '\t') value++;
    take_field(answer, answer->line, value);
    return STATUS_OK;
}

static enum status take(struct answer *answer, const char *bytes, size_t count, struct error *error) {
    while (count > 0 && !answer->in_body) {
        const char *end = memchr(bytes, '\n', count);
        size_t part = end != NULL ? (size_t)(end - bytes) : count;
        if (answer->length + part >= LINE_BYTES)
            return error_set(error, STATUS_IO, "a header of the answer is longer than %d bytes", LINE_BYTES);
        memcpy(answer->line + answer->length, bytes, part);
        answer->length += part;
        if (end == NULL) return STATUS_OK;
        bytes += part + 1;
        count -= part + 1;
        if (answer->length > 0 && answer->line[answer->length - 1] == '\r') answer->length--;
        TRY(take_line(answer, error));
    }
    return count > 0 ? answer->listener->body(answer->listener->context, bytes, count, error) : STATUS_OK;
}

/* A line of curl's configuration.  false: the value has control characters, which none of ours has. */
static bool add_setting(char **config, const char *name, const char *value) {
    for (const char *c = value; *c != '\0'; c++)
        if ((unsigned char)*c < 32 || *c == 127) return false;
    char *line = malloc(strlen(*config) + strlen(name) + 2 * strlen(value) + 8);
    if (line == NULL) return false;
    char *end = line + sprintf(line, "%s%s = \"", *config, name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') *end++ = '\\';
        *end++ = *c;
    }
    strcpy(end, "\"\n");
    free(*config);
    *config = line;
    return true;
}

static enum status make_config(char **config, const struct http_request *request, struct error *error) {
    *config = strdup("");
    bool fine = *config != NULL && add_setting(config, "url", request->url);
    char *bearer = NULL, range[32];
    if (fine && request->token != NULL)
        fine =
            asprintf(&bearer, "Authorization: Bearer %s", request->token) > 0 && add_setting(config, "header", bearer);
    snprintf(range, sizeof range, "%llu-", (unsigned long long)request->offset);
    if (fine && request->offset > 0) fine = add_setting(config, "range", range);
    free(bearer);
    return fine ? STATUS_OK : error_set(error, STATUS_USAGE, "control characters in the address or the token");
}

static enum status start(struct child *child, const struct http_request *request, struct error *error) {
    const char *protocols = strncmp(request->url, "https:", 6) == 0 ? "=https" : "=http,https";
    const char *const argv[] = {"curl",
                                "-q",
                                "-sSN",
                                "-g",
                                "-i",
                                "-L",
                                "--max-redirs",
                                "10",
                                "--proto",
                                protocols,
                                "--proto-redir",
                                protocols,
                                "--connect-timeout",
                                "20",
                                "--speed-limit",
                                "1",
                                "--speed-time",
                                "60",
                                "--suppress-connect-headers",
                                "-A",
                                "loam",
                                "-K",
                                "-",
                                NULL};
    char *config;
    enum status status = make_config(&config, request, error);
    if (status == STATUS_OK) status = child_start(child, argv, NULL, error);
    if (status == STATUS_UNSUPPORTED)
        error_set(error, status,
                  "loam fetches files through the program curl, which is not there (Debian: apt-get "
                  "install curl)");
    if (status == STATUS_OK) status = child_write(child, config, strlen(config), error);
    if (status == STATUS_OK) child_end_input(child);
    free(config);
    return status;
}

/* curl's exit code.  What breaks a connection that was there may be gone the next time. */
static enum status judge(struct child *child, struct http_response *response, struct error *error) {
    char said[200];
    child_read_errors(child, said, sizeof said);
    int code = child_wait(child);
    if (code == 0) return STATUS_OK;
    static const int cuts[] = {18, 28, 52, 55, 56, 92}; /* partial, timeout, empty, send, receive, HTTP/2 stream */
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) response->is_cut |= code == cuts[i];
    return error_set(error, STATUS_IO, "%s", said[0] != '\0' ? said : "curl failed without a reason");
}

enum status http_get(const struct http_request *request, const struct http_listener *listener,
                     struct http_response *response, struct error *error) {
    *response = (struct http_response){.size_bytes = UINT64_MAX};
    struct answer *answer = calloc(1, sizeof *answer);
    char *bytes = malloc(READ_BYTES);
    struct child child = {.input = -1, .output = -1, .errors = -1};
    enum status status = answer != NULL && bytes != NULL ? start(&child, request, error)
                                                         : error_set(error, STATUS_MEMORY, "out of memory");
    if (answer != NULL) *answer = (struct answer){.listener = listener, .response = response};
    child.stops = listener->stops;
    child.stops_context = listener->context;
    while (status == STATUS_OK) {
        size_t count;
        status = child_read(&child, bytes, READ_BYTES, &count, error);
        if (status != STATUS_OK) break;
        if (count == 0) {
            status = judge(&child, response, error);
            if (status != STATUS_OK && listener->stops != NULL && listener->stops(listener->context))
                status = error_set(error, STATUS_INTERRUPTED, "stopped"); /* Ctrl-C ends curl too */
            break;
        }
        status = take(answer, bytes, count, error);
    }
    child_close(&child);
    free(bytes);
    free(answer);
    return status;
}
