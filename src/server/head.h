/* head: the request line and the headers of an HTTP request, read strictly from the bytes as they came.
 *
 * What two readers of HTTP could understand differently is refused before libmicrohttpd sees it: a second Host or
 * Content-Length, Content-Length beside Transfer-Encoding, folded lines, bare line feeds, control characters, blanks
 * before a colon.  So nothing depends on which of two headers the library takes.  Thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api_error.h"

enum { HEAD_BYTES_MAX = 24 << 10, HEAD_LINE_MAX = 8 << 10, HEAD_COUNT_MAX = 100 };

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER };

/* Borrowed bytes; text NULL: the header is absent. */
struct head_text {
    const char *text;
    size_t length;
};

struct head {
    enum http_method method;
    struct head_text path; /* without the query; nothing is unescaped */
    struct head_text query;
    bool is_1_0;
    struct head_text host, authorization, api_key, origin, content_type, expect, if_none_match;
    bool has_length, is_chunked;
    uint64_t content_length;
};

enum head_result { HEAD_OK, HEAD_INCOMPLETE, HEAD_REFUSED };

/* HEAD_INCOMPLETE: no empty line yet, and nothing wrong so far. */
enum head_result head_read(const char *bytes, size_t length, struct head *head, struct api_error *error);

bool head_text_is(struct head_text text, const char *word); /* ASCII case does not matter */
