/* front: accepts connections, reads the head of each request before libmicrohttpd does, and watches the connections
 * from then on.
 *
 *   accepted -> head complete -> guard and routes -> adopt (libmicrohttpd reads it once more) -> forgotten when closed
 *                             -> refused: the error is written, and what the client still sends is read for a while
 *
 * A connection carries one request: there is nothing behind it that could be understood differently.  One thread:
 * an epoll of its own sees a client that closes at once, also while libmicrohttpd has the connection suspended
 * (decision 0042).  Deadlines close by shutdown, which libmicrohttpd notices.
 *
 * A client that sends no more may still read: its request is answered if it is whole.  A body of at most
 * FRONT_BODY_SHORT bytes is waited for before the connection is given away, so that one that is cut is told so, and so
 * is one in chunks (chunks.h), as far as the first HEAD_BYTES_MAX of the request go.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/status.h"
#include "server/exchange.h"
#include "server/guard.h"

enum {
    FRONT_CONNECTIONS_MAX = 2048,
    FRONT_HEAD_SECONDS = 10,
    FRONT_BODY_SECONDS = 60, /* of a file: each FRONT_FILE_STEP bytes of it */
    FRONT_FILE_STEP = 64 << 10,
    FRONT_BODY_SHORT = 16 << 10,
};
/* Bodies of all requests together. */
#define FRONT_BODY_BYTES_MAX (UINT64_C(256) << 20)

/* They are too large at the moment: 429.  Returns false. */
bool front_has_no_room(struct api_error *error);

struct front_options {
    const char *host; /* a name, an address, or a file (listener.h) */
    uint16_t port;    /* 0: any that is free */
    /* Connections that come from one place (client_network.h), at most; further ones are closed.  0: as many as from
     * all.  counts_local: from this machine, too. */
    size_t network_max;
    bool counts_local;
    const struct guard *guard;
    struct request_log log;
    /* Whether there is such a route; else *error says 404 or 405. */
    bool (*has_route)(const struct head *head, struct api_error *error);
    /* Whether its body is a file that is read as it comes (exchange.h); NULL: none is. */
    bool (*takes_file)(const struct head *head);
    /* Gives the socket away; false: it was closed. */
    bool (*adopt)(void *context, int socket, const struct sockaddr *address, socklen_t length);
    void *context;
};

struct front;

/* Binds and listens.  Nothing is accepted before front_start. */
enum status front_create(struct front **front, const struct front_options *options, struct error *error) STATUS_CHECKED;
enum status front_start(struct front *front, struct error *error) STATUS_CHECKED;
uint16_t front_port(const struct front *front);
/* Closes the listening socket; connections go on. */
void front_close_listener(struct front *front);
size_t front_connections(struct front *front);
/* Ends the thread: nothing is accepted or watched any more. */
void front_stop(struct front *front);
/* After front_stop.  Every client counts as gone: suspended connections wake, and their work is cancelled. */
void front_leave_all(struct front *front);
void front_destroy(struct front *front); /* NULL: allowed */

/* For the one who adopts.  The exchange of a socket, acquired; NULL: it was given up. */
struct exchange *front_exchange(struct front *front, int socket);
/* The body is complete: from here on the work takes as long as it takes. */
void front_body_complete(struct front *front, int socket);
/* So many bytes of a file came.  0: it waits for who reads it, and has no deadline meanwhile. */
void front_file_moves(struct front *front, int socket, size_t bytes);
/* The socket is about to be closed. */
void front_forget(struct front *front, int socket);
