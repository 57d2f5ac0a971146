/* http: the server's HTTP, by libmicrohttpd behind a front (front.h).
 *
 * One thread of libmicrohttpd moves bytes.  A request whose body is complete goes to `handle`, on a worker; its
 * connection is suspended until the exchange has something to send.  One whose body is a file goes there before its
 * body, which then comes as it is read.
 */
#pragma once

#include <stdint.h>

#include "server/exchange.h"
#include "server/guard.h"

struct http;

struct http_options {
    const char *host;
    uint16_t port;
    size_t network_max; /* front.h */
    bool counts_local;
    const struct guard *guard;
    struct request_log log;
    bool (*has_route)(const struct head *head, struct api_error *error);
    bool (*takes_file)(const struct head *head); /* front.h; NULL: none does */
    /* Replies to the exchange, now or later.  On a worker. */
    void (*handle)(void *context, struct exchange *exchange);
    void *context;
};

/* Listens; what connects waits until http_start. */
enum status http_create(struct http **http, const struct http_options *options, struct error *error) STATUS_CHECKED;
enum status http_start(struct http *http, struct error *error) STATUS_CHECKED;
uint16_t http_port(const struct http *http);
void http_close_listener(struct http *http);
/* Waits until the connections are gone; false: `seconds` passed first. */
bool http_wait_idle(struct http *http, double seconds);
void http_destroy(struct http *http); /* connections that are left are cut; NULL: allowed */
