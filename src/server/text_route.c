/* /v1/loam/text: a file's bytes as text with marks of its pages (document/document.h), for who then uploads it, asks
 * about it, or looks into it.
 *
 * The body is the file, as it is.  A thread of its own carries it (transfers.h): a PDF takes as long as it takes. */
#include <stdlib.h>
#include <string.h>

#include "document/document.h"
#include "server/guard.h"
#include "server/json_text.h"
#include "server/routes.h"

enum { NAME_BYTES = 256 };
static const uint64_t file_bytes_max = UINT64_C(128) << 20;

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The parameter of an address's query, unescaped; false: it is not there. */
static bool query_value(const char *query, const char *name, char value[NAME_BYTES]) {
    const size_t own = strlen(name);
    size_t length = 0;
    for (const char *at = query; at != NULL; at = strchr(at, '&')) {
        at += *at == '&' ? 1 : 0;
        if (strncmp(at, name, own) != 0 || at[own] != '=') continue;
        for (at += own + 1; *at != '\0' && *at != '&' && length < NAME_BYTES - 1; at++) {
            const bool is_escaped = *at == '%' && digit_of(at[1]) >= 0 && digit_of(at[2]) >= 0;
            value[length++] = is_escaped ? (char)(digit_of(at[1]) * 16 + digit_of(at[2])) : *at == '+' ? ' ' : *at;
            if (is_escaped) at += 2;
        }
        value[length] = '\0';
        return true;
    }
    return false;
}

static json_t *text_json(const char *name, const struct document *document) {
    json_t *object = JSON({"object", json_string("loam.text")}, {"name", json_text(name, strlen(name))},
                          {"format", json_string(document_format_name(document->format))});
    if (document->note[0] != '\0') json_put(object, "note", json_string(document->note));
    JSON_PUT(object, {"pages", json_uint(document->pages)}, {"chapters", json_uint(document->chapters)},
             {"text", json_text(document->text, document->length)});
    return object;
}

static void refuse(struct exchange *exchange, const struct error *reason) {
    struct api_error error;
    api_error_from(&error, reason);
    if (reason->status == STATUS_USAGE) error.http_status = 415;
    exchange_reply_error(exchange, &error);
}

static void reply(struct exchange *exchange, const char *bytes, size_t length) {
    char name[NAME_BYTES] = "document", encoding[NAME_BYTES];
    const char *query = exchange_query(exchange);
    (void)query_value(query, "name", name);
    const bool has_encoding = query_value(query, "encoding", encoding) && encoding[0] != '\0';
    const struct document_source source = {.name = name,
                                           .bytes = bytes,
                                           .length = length,
                                           .encoding = has_encoding ? encoding : NULL,
                                           .text_bytes_max = GUARD_BODY_BYTES_MAX};
    struct document document;
    struct error reason;
    if (document_read(&document, &source, &reason) != STATUS_OK) {
        refuse(exchange, &reason);
        return;
    }
    if (document.length > GUARD_BODY_BYTES_MAX) {
        exchange_refuse(exchange, 413, "%s: has %zu bytes of text, expected at most %d", name, document.length,
                        GUARD_BODY_BYTES_MAX);
    } else {
        exchange_reply_json(exchange, 200, text_json(name, &document));
    }
    document_deinit(&document);
}

static void carry(void *context, struct exchange *exchange) {
    uint64_t bytes = 0;
    size_t taken = 0, read = 1;
    (void)context;
    (void)exchange_streams_body(exchange, &bytes);
    char *file = malloc((size_t)bytes + 1);
    if (file == NULL) {
        refuse(exchange, &(struct error){.status = STATUS_MEMORY, .message = "no memory for the file"});
        return;
    }
    exchange_want_body(exchange);
    while (taken < bytes && read > 0) {
        if (!exchange_read_body(exchange, file + taken, (size_t)bytes - taken, &read)) break;
        taken += read;
    }
    if (taken == bytes) reply(exchange, file, taken);
    free(file);
}

void text_route(struct server *server, struct exchange *exchange) {
    uint64_t bytes;
    if (!exchange_streams_body(exchange, &bytes)) { /* of this process, without HTTP */
        exchange_refuse(exchange, 400, "a file is read over HTTP");
    } else if (bytes > file_bytes_max) {
        exchange_refuse(exchange, 413, "the file has %llu bytes, expected at most %llu", (unsigned long long)bytes,
                        (unsigned long long)file_bytes_max);
    } else {
        (void)transfers_begin(&server->transfers, exchange, carry, NULL);
    }
}
