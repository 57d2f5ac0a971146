/* transfers: requests that carry a file, each on a thread of its own.  They take as long as a client or a disk takes,
 * which must hold up neither a worker nor the service.
 *
 * A place is held by a file that moves.  One that has waited for its client for TRANSFERS_STALL_SECONDS, without a
 * byte, gives its place to who comes next; while nobody does it waits on, and the front gives it up in the end.
 *
 * Thread-safe.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "server/exchange.h"

enum { TRANSFERS_MAX = 4 /* at once */, TRANSFERS_STALL_SECONDS = 5 };

struct transfers {
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t ended;
    size_t thread_count;                     /* with those that gave their place away and are about to end */
    struct exchange *running[TRANSFERS_MAX]; /* NULL: a free place */
};

void transfers_init(struct transfers *transfers);
void transfers_deinit(struct transfers *transfers);
/* Runs carry(context, exchange), which replies.  false: the exchange was told why not, and carry will not run. */
bool transfers_begin(struct transfers *transfers, struct exchange *exchange,
                     void (*carry)(void *context, struct exchange *exchange), void *context);
/* Until none is left; false: `seconds` passed first. */
bool transfers_wait(struct transfers *transfers, double seconds);
