#include "server/guard.h"

#include <string.h>
#include <strings.h>

bool guard_is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 || strncmp(host, "127.", 4) == 0;
}

bool guard_is_file(const char *host) {
    const size_t length = strlen(host);
    return length > 5 && strcmp(host + length - 5, ".sock") == 0;
}

/* ---- keys ---- */

/* Every byte of every key is looked at, whatever differs first. */
static bool keys_equal(const char *key, struct head_text given) {
    unsigned char a[GUARD_KEY_BYTES_MAX + 1] = {0}, b[GUARD_KEY_BYTES_MAX + 1] = {0};
    const size_t length = strnlen(key, GUARD_KEY_BYTES_MAX);
    memcpy(a, key, length);
    memcpy(b, given.text, given.length);
    unsigned difference = (unsigned)(length ^ given.length);
    for (size_t i = 0; i < sizeof a; i++) difference |= (unsigned)(a[i] ^ b[i]);
    return difference == 0;
}

static struct head_text given_key(const struct head *head) {
    struct head_text value = head->authorization;
    if (value.text == NULL) return head->api_key;
    if (value.length < 7 || strncasecmp(value.text, "Bearer ", 7) != 0) return (struct head_text){NULL, 0};
    value.text += 7;
    value.length -= 7;
    while (value.length > 0 && value.text[0] == ' ') value.text++, value.length--;
    return value;
}

static bool check_key(const struct guard *guard, const struct head *head, uint32_t *key, struct api_error *error) {
    *key = 0;
    if (guard->key_count == 0) return true;
    const struct head_text given = given_key(head);
    if (given.text != NULL && given.length > 0 && given.length <= GUARD_KEY_BYTES_MAX)
        for (size_t i = 0; i < guard->key_count; i++)
            if (keys_equal(guard->keys[i], given)) *key = (uint32_t)i + 1;
    if (*key != 0) return true;
    return api_error_set(error, 401, NULL, "Invalid API key: expected 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
}

/* ---- where from ---- */

/* A host and an optional port. */
static struct head_text without_port(struct head_text host) {
    const char *colon = host.length > 0 && host.text[0] == '[' ? memchr(host.text, ']', host.length)
                                                               : memchr(host.text, ':', host.length);
    if (colon == NULL) return host;
    host.length = (size_t)(colon - host.text) + (*colon == ']' ? 1 : 0);
    return host;
}

static bool names_this_machine(const struct guard *guard, struct head_text host) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    const struct head_text name = without_port(host);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (head_text_is(name, names[i])) return true;
    return head_text_is(name, guard->host);
}

/* With keys a page from elsewhere that reaches this address has none, and proxies may pass their own name. */
static bool check_host(const struct guard *guard, const struct head *head, struct api_error *error) {
    if (!guard->is_loopback || guard->key_count > 0 || head->host.text == NULL || names_this_machine(guard, head->host))
        return true;
    return api_error_set(error, 403, NULL, "Host: expected this machine's name (localhost or its address)");
}

/* http://HOST: a page that this server delivered.  https://HOST: one that a proxy in front of it did, which passes its
 * own Host, and so needs keys (check_host) or a socket file. */
static bool is_same_origin(const struct guard *guard, const struct head *head) {
    const struct head_text origin = head->origin, host = head->host;
    const bool has_proxy = guard->key_count > 0 || guard->is_file;
    const char *scheme = has_proxy && origin.length >= 6 && origin.text[4] == 's' ? "https://" : "http://";
    const size_t length = strlen(scheme);
    return host.text != NULL && origin.length == host.length + length &&
           strncasecmp(origin.text, scheme, length) == 0 &&
           strncasecmp(origin.text + length, host.text, host.length) == 0;
}

bool guard_allows_origin(const struct guard *guard, const struct head *head) {
    if (head->origin.text == NULL) return false;
    for (size_t i = 0; i < guard->origin_count; i++) {
        const char *allowed = guard->origins[i];
        const size_t length = strlen(allowed);
        const size_t own = length > 0 && allowed[length - 1] == '/' ? length - 1 : length; /* as it is pasted */
        if (strcmp(allowed, "*") == 0 ||
            (own == head->origin.length && strncasecmp(head->origin.text, allowed, own) == 0))
            return true;
    }
    return false;
}

static bool check_origin(const struct guard *guard, const struct head *head, struct api_error *error) {
    if (head->origin.text == NULL || is_same_origin(guard, head) || guard_allows_origin(guard, head)) return true;
    return api_error_set(error, 403, NULL, "Origin: pages from elsewhere may not ask; --cors-origins allows one");
}

/* ---- the body ---- */

static bool is_type(struct head_text type, const char *name) {
    const size_t length = strlen(name);
    if (type.text == NULL || type.length < length || strncasecmp(type.text, name, length) != 0) return false;
    return type.length == length || strchr("; \t", type.text[length]) != NULL;
}

/* What curl -d sends unless it is told is named with the way out. */
static bool check_type(const struct head *head, const char *expected, struct api_error *error) {
    const struct head_text type = head->content_type;
    if (is_type(type, expected)) return true;
    return api_error_set(error, 415, NULL, "Content-Type: found %.*s, expected %s: curl -H 'Content-Type: %s'",
                         type.text != NULL ? (int)(type.length < 60 ? type.length : 60) : 4,
                         type.text != NULL ? type.text : "none", expected, expected);
}

static bool check_file(const struct head *head, struct api_error *error) {
    if (!head->has_length) return api_error_set(error, 411, NULL, "a file: Content-Length is needed");
    return check_type(head, "application/octet-stream", error);
}

static bool check_body(const struct head *head, struct api_error *error) {
    const bool has_body = head->is_chunked || head->content_length > 0;
    if (head->method == HTTP_POST || head->method == HTTP_PUT) {
        if (!head->has_length && !head->is_chunked)
            return api_error_set(error, 411, NULL, "a body: Content-Length is needed");
        if (!check_type(head, "application/json", error)) return false;
    } else if (has_body) {
        return api_error_set(error, 400, NULL, "a body where none is expected");
    }
    if (head->content_length > GUARD_BODY_BYTES_MAX)
        return api_error_set(error, 413, NULL, "the body has %llu bytes, expected at most %d",
                             (unsigned long long)head->content_length, GUARD_BODY_BYTES_MAX);
    return true;
}

/* What a supervisor asks without a key, and the page, which asks for one. */
static bool is_public(const struct head *head) {
    const bool reads = head->method == HTTP_GET || head->method == HTTP_HEAD;
    return head->method == HTTP_OPTIONS ||
           (reads && (head_text_is(head->path, "/health") || head_text_is(head->path, "/v1/health") ||
                      head_text_is(head->path, "/")));
}

bool guard_check(const struct guard *guard, const struct head *head, bool takes_file, uint32_t *key,
                 struct api_error *error) {
    if (!check_host(guard, head, error) || !check_origin(guard, head, error)) return false;
    *key = 0;
    if (!is_public(head) && !check_key(guard, head, key, error)) return false;
    return takes_file ? check_file(head, error) : check_body(head, error);
}
