#include "server/transfers.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

struct transfer {
    struct transfers *transfers;
    struct exchange *exchange; /* a reference */
    void (*carry)(void *context, struct exchange *exchange);
    void *context;
};

void transfers_init(struct transfers *transfers) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&transfers->mutex, NULL);
    pthread_cond_init(&transfers->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    transfers->count = 0;
}

void transfers_deinit(struct transfers *transfers) {
    pthread_cond_destroy(&transfers->ended);
    pthread_mutex_destroy(&transfers->mutex);
}

static bool take_place(struct transfers *transfers) {
    pthread_mutex_lock(&transfers->mutex);
    const bool has_place = transfers->count < TRANSFERS_MAX;
    if (has_place) transfers->count++;
    pthread_mutex_unlock(&transfers->mutex);
    return has_place;
}

static void give_place(struct transfers *transfers) {
    pthread_mutex_lock(&transfers->mutex);
    transfers->count--;
    pthread_cond_broadcast(&transfers->ended);
    pthread_mutex_unlock(&transfers->mutex);
}

static void *carry(void *context) {
    struct transfer *transfer = context;
    struct transfers *transfers = transfer->transfers;
    transfer->carry(transfer->context, transfer->exchange);
    exchange_release(transfer->exchange);
    free(transfer);
    give_place(transfers); /* the last that is touched: the server may go now */
    return NULL;
}

static bool start(struct transfer *transfer) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool started = pthread_create(&thread, &attributes, carry, transfer) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

bool transfers_begin(struct transfers *transfers, struct exchange *exchange,
                     void (*function)(void *context, struct exchange *exchange), void *context) {
    struct api_error error;
    if (!take_place(transfers)) {
        api_error_set(&error, 429, NULL, "%d documents are being exported and imported: try again later",
                      TRANSFERS_MAX);
        error.retry_after_seconds = 10;
        exchange_reply_error(exchange, &error);
        return false;
    }
    struct transfer *transfer = malloc(sizeof *transfer);
    if (transfer != NULL) {
        *transfer = (struct transfer){transfers, exchange, function, context};
        exchange_acquire(exchange);
        if (start(transfer)) return true;
        exchange_release(exchange);
    }
    free(transfer);
    give_place(transfers);
    api_error_set(&error, 503, NULL, "no memory");
    exchange_reply_error(exchange, &error);
    return false;
}

bool transfers_wait(struct transfers *transfers, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 1;
    pthread_mutex_lock(&transfers->mutex);
    while (transfers->count > 0)
        if (pthread_cond_timedwait(&transfers->ended, &transfers->mutex, &until) == ETIMEDOUT) break;
    const bool none = transfers->count == 0;
    pthread_mutex_unlock(&transfers->mutex);
    return none;
}
