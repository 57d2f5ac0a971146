#include "server/head.h"

#include <string.h>
#include <strings.h>

bool head_text_is(struct head_text text, const char *word) {
    return text.text != NULL && strlen(word) == text.length && strncasecmp(text.text, word, text.length) == 0;
}

/* The characters of a method or of a header's name (RFC 9110, 5.6.2). */
static bool is_token(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool refuse(struct api_error *error, const char *what) {
    return api_error_set(error, 400, NULL, "HTTP: %s", what);
}

static bool read_method(struct head_text word, enum http_method *method, struct api_error *error) {
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
    if (word.length == 0) return refuse(error, "no method");
    for (size_t i = 0; i < word.length; i++)
        if (!is_token(word.text[i])) return refuse(error, "a method with unknown characters");
    *method = HTTP_OTHER;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == word.length && memcmp(names[i], word.text, word.length) == 0)
            *method = (enum http_method)i;
    return true;
}

/* METHOD /path?query HTTP/1.x */
static bool read_request_line(struct head_text line, struct head *head, struct api_error *error) {
    const char *first = memchr(line.text, ' ', line.length);
    if (first == NULL) return refuse(error, "a request line without a path");
    const size_t method_length = (size_t)(first - line.text);
    if (!read_method((struct head_text){line.text, method_length}, &head->method, error)) return false;
    struct head_text target = {first + 1, line.length - method_length - 1};
    const char *second = memchr(target.text, ' ', target.length);
    if (second == NULL) return refuse(error, "a request line without a version");
    const struct head_text version = {second + 1, target.length - (size_t)(second - target.text) - 1};
    target.length = (size_t)(second - target.text);
    if (version.length != 8 || memcmp(version.text, "HTTP/1.", 7) != 0 ||
        (version.text[7] != '0' && version.text[7] != '1'))
        return api_error_set(error, 505, NULL, "HTTP: expected version 1.1 or 1.0");
    head->is_1_0 = version.text[7] == '0';
    if (target.length == 0 || target.text[0] != '/') return refuse(error, "expected a path that begins with '/'");
    for (size_t i = 0; i < target.length; i++)
        if (target.text[i] <= ' ' || target.text[i] == 0x7F)
            return refuse(error, "a path with control characters or bytes beyond ASCII");
    const char *mark = memchr(target.text, '?', target.length);
    head->path = target;
    if (mark != NULL) {
        head->path.length = (size_t)(mark - target.text);
        head->query = (struct head_text){mark + 1, target.length - head->path.length - 1};
    }
    return true;
}

static bool read_once(struct head_text *slot, struct head_text value, const char *what, struct api_error *error) {
    if (slot->text != NULL) return refuse(error, what);
    *slot = value;
    return true;
}

static bool read_content_length(struct head *head, struct head_text value, struct api_error *error) {
    if (head->has_length) return refuse(error, "two Content-Length headers");
    if (value.length == 0 || value.length > 18) return refuse(error, "Content-Length: expected a decimal number");
    for (size_t i = 0; i < value.length; i++) {
        if (value.text[i] < '0' || value.text[i] > '9')
            return refuse(error, "Content-Length: expected a decimal number");
        head->content_length = head->content_length * 10 + (uint64_t)(value.text[i] - '0');
    }
    head->has_length = true;
    return true;
}

static bool take_header(struct head *head, struct head_text name, struct head_text value, struct api_error *error) {
    if (head_text_is(name, "host")) return read_once(&head->host, value, "two Host headers", error);
    if (head_text_is(name, "content-length")) return read_content_length(head, value, error);
    if (head_text_is(name, "transfer-encoding")) {
        if (head->is_chunked) return refuse(error, "two Transfer-Encoding headers");
        if (!head_text_is(value, "chunked"))
            return api_error_set(error, 400, NULL, "HTTP: Transfer-Encoding: expected chunked");
        head->is_chunked = true;
        return true;
    }
    if (head_text_is(name, "authorization"))
        return read_once(&head->authorization, value, "two Authorization headers", error);
    if (head_text_is(name, "x-api-key")) return read_once(&head->api_key, value, "two x-api-key headers", error);
    if (head_text_is(name, "origin")) return read_once(&head->origin, value, "two Origin headers", error);
    if (head_text_is(name, "content-type"))
        return read_once(&head->content_type, value, "two Content-Type headers", error);
    if (head_text_is(name, "if-none-match")) head->if_none_match = value; /* of several, any will do */
    if (head_text_is(name, "content-encoding") && !head_text_is(value, "identity"))
        return api_error_set(error, 415, NULL, "Content-Encoding: a compressed body is not supported");
    if (head_text_is(name, "upgrade")) return true; /* h2c is offered, never taken */
    if (head_text_is(name, "expect")) {
        if (!head_text_is(value, "100-continue"))
            return api_error_set(error, 417, NULL, "Expect: expected 100-continue");
        return read_once(&head->expect, value, "two Expect headers", error);
    }
    return true;
}

static bool read_header(struct head_text line, struct head *head, struct api_error *error) {
    if (line.text[0] == ' ' || line.text[0] == '\t') return refuse(error, "a folded header line");
    const char *colon = memchr(line.text, ':', line.length);
    if (colon == NULL || colon == line.text) return refuse(error, "a header line without a name");
    const struct head_text name = {line.text, (size_t)(colon - line.text)};
    for (size_t i = 0; i < name.length; i++)
        if (!is_token(name.text[i])) return refuse(error, "a header name with unknown characters");
    struct head_text value = {colon + 1, line.length - name.length - 1};
    while (value.length > 0 && (value.text[0] == ' ' || value.text[0] == '\t')) value.text++, value.length--;
    while (value.length > 0 && (value.text[value.length - 1] == ' ' || value.text[value.length - 1] == '\t'))
        value.length--;
    return take_header(head, name, value, error);
}

/* What must be true of all headers together. */
static bool check_together(const struct head *head, struct api_error *error) {
    if (head->has_length && head->is_chunked) return refuse(error, "Content-Length beside Transfer-Encoding");
    if (head->is_chunked && head->is_1_0) return refuse(error, "Transfer-Encoding in HTTP/1.0");
    if (head->host.text == NULL && !head->is_1_0) return refuse(error, "no Host header");
    return true;
}

/* The next line, without CR LF.  HEAD_REFUSED: a control character, a bare CR or LF. */
static enum head_result next_line(const char *bytes, size_t length, size_t *at, struct head_text *line,
                                  struct api_error *error) {
    for (size_t i = *at; i < length; i++) {
        const char c = bytes[i];
        if (c == '\r' && i + 1 < length) {
            if (bytes[i + 1] != '\n') return refuse(error, "a bare carriage return"), HEAD_REFUSED;
            *line = (struct head_text){bytes + *at, i - *at};
            *at = i + 2;
            return HEAD_OK;
        }
        if (c == '\n') return refuse(error, "a bare line feed"), HEAD_REFUSED;
        if ((c >= 0 && c < ' ' && c != '\t' && c != '\r') || c == 0x7F)
            return refuse(error, "a control character"), HEAD_REFUSED;
        if (i - *at >= HEAD_LINE_MAX)
            return api_error_set(error, *at == 0 ? 414 : 431, NULL, "HTTP: a line longer than %d bytes", HEAD_LINE_MAX),
                   HEAD_REFUSED;
    }
    return HEAD_INCOMPLETE;
}

enum head_result head_read(const char *bytes, size_t length, struct head *head, struct api_error *error) {
    *head = (struct head){0};
    size_t at = 0, count = 0;
    struct head_text line;
    for (;;) {
        const enum head_result result = next_line(bytes, length, &at, &line, error);
        if (result != HEAD_OK) {
            if (result == HEAD_REFUSED || length < HEAD_BYTES_MAX) return result;
            api_error_set(error, 431, NULL, "HTTP: headers of more than %d bytes", HEAD_BYTES_MAX);
            return HEAD_REFUSED;
        }
        if (line.length == 0 && count > 0) break;
        if (++count > HEAD_COUNT_MAX + 1) {
            api_error_set(error, 431, NULL, "HTTP: more than %d headers", HEAD_COUNT_MAX);
            return HEAD_REFUSED;
        }
        const bool taken = count == 1 ? read_request_line(line, head, error) : read_header(line, head, error);
        if (!taken) return HEAD_REFUSED;
    }
    return check_together(head, error) ? HEAD_OK : HEAD_REFUSED;
}
