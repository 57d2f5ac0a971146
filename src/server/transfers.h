/* transfers: requests that carry a file, each on a thread of its own.  They take as long as a client or a disk takes,
 * which must hold up neither a worker nor the service.
 *
 * Thread-safe.
 */
#ifndef LOAM_SERVER_TRANSFERS_H
#define LOAM_SERVER_TRANSFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "server/exchange.h"

enum { TRANSFERS_MAX = 4 }; /* at once */

struct transfers {
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t ended;
    size_t count;
};

void transfers_init(struct transfers *transfers);
void transfers_deinit(struct transfers *transfers);
/* Runs carry(context, exchange), which replies.  false: the exchange was told why not, and carry will not run. */
bool transfers_begin(struct transfers *transfers, struct exchange *exchange,
                     void (*carry)(void *context, struct exchange *exchange), void *context);
/* Until none is left; false: `seconds` passed first. */
bool transfers_wait(struct transfers *transfers, double seconds);

#endif
