/* request_log: what a request came to, for whoever runs the server. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/head.h"

struct request_tokens {
    uint64_t read;  /* of the prompt, computed */
    uint64_t known; /* of the prompt, taken from what was saved or in memory */
    uint64_t made;  /* of the answers */
};

struct request_record {
    enum http_method method;
    struct head_text path; /* as the client sent it */
    const char *id;        /* x-request-id */
    unsigned http_status;  /* 0: the client left before there was one */
    bool has_left;         /* ... or before it had all */
    bool has_tokens;
    struct request_tokens tokens;
    double seconds; /* from its head to the end of its response and of its work */
};

/* Any thread. */
struct request_log {
    void (*write)(void *context, const struct request_record *record); /* NULL: there is no log */
    void *context;
};
