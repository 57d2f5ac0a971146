/* http: one file by HTTP or HTTPS, through the program curl.
 *
 * A child process: TLS, proxies and their updates are the system's, nothing that a server sends is parsed by a library
 * inside loam, and a build needs no more than before (docs/decisions, 0071).  Redirects are followed,
 * from https to https alone.  A token goes to the first host only, and never stands on a command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { HTTP_TAG_BYTES = 160, SHA256_TEXT_BYTES = 65 };

struct http_request {
    const char *url;
    const char *token; /* NULL: none */
    uint64_t offset;   /* the first byte that is wanted */
};

struct http_response {
    unsigned status;                /* of the last hop; 0: none came */
    uint64_t begin;                 /* the first byte that comes: 0, or of Content-Range */
    uint64_t size_bytes;            /* of the whole file; UINT64_MAX: not known */
    char tag[HTTP_TAG_BYTES];       /* ETag of the last hop; "": none */
    char sha256[SHA256_TEXT_BYTES]; /* of the file, by X-Linked-Etag of any hop; "": none */
    bool is_cut;                    /* a failure that may not happen again: the connection broke */
};

struct http_listener {
    void *context;
    /* The head of the last hop, before its body. */
    enum status (*begins)(void *context, const struct http_response *response, struct error *error);
    enum status (*body)(void *context, const void *bytes, size_t count, struct error *error);
    bool (*stops)(void *context); /* STATUS_INTERRUPTED follows */
};

/* STATUS_OK: the answer came whole, whatever its status.  STATUS_IO with curl's reason; STATUS_UNSUPPORTED: there is no
 * curl; what the listener returned. */
enum status http_get(const struct http_request *request, const struct http_listener *listener,
                     struct http_response *response, struct error *error) STATUS_CHECKED;
