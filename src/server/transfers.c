#include "server/transfers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "platform/clock.h"

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
    transfers->thread_count = 0;
    memset(transfers->running, 0, sizeof transfers->running);
}

void transfers_deinit(struct transfers *transfers) {
    pthread_cond_destroy(&transfers->ended);
    pthread_mutex_destroy(&transfers->mutex);
}

/* Its thread stops waiting, and ends. */
static void end_stalled(struct exchange *exchange) {
    struct api_error error;
    api_error_set(&error, 408, NULL, "no byte of the file moved for %d s, and others wait: send it again",
                  TRANSFERS_STALL_SECONDS);
    if (exchange_is_stream(exchange))
        exchange_cut(exchange);
    else
        exchange_reply_error(exchange, &error);
}

/* A free place, or that of the file that has stalled for longest; NULL: all move.  The mutex is held. */
static struct exchange **find_place(struct transfers *transfers) {
    uint64_t longest_ns = clock_ns() - TRANSFERS_STALL_SECONDS * UINT64_C(1000000000);
    struct exchange **stalled = NULL;
    for (size_t i = 0; i < TRANSFERS_MAX; i++) {
        struct exchange **place = &transfers->running[i];
        if (*place == NULL) return place;
        const uint64_t since_ns = exchange_waits_since(*place);
        if (since_ns == 0 || since_ns >= longest_ns) continue;
        longest_ns = since_ns;
        stalled = place;
    }
    if (stalled != NULL) end_stalled(*stalled);
    return stalled;
}

static bool take_place(struct transfers *transfers, struct exchange *exchange) {
    pthread_mutex_lock(&transfers->mutex);
    struct exchange **place = find_place(transfers);
    if (place != NULL) {
        *place = exchange;
        transfers->thread_count++;
    }
    pthread_mutex_unlock(&transfers->mutex);
    return place != NULL;
}

/* Before its exchange goes. */
static void give_place(struct transfers *transfers, const struct exchange *exchange) {
    pthread_mutex_lock(&transfers->mutex);
    for (size_t i = 0; i < TRANSFERS_MAX; i++)
        if (transfers->running[i] == exchange) transfers->running[i] = NULL;
    pthread_mutex_unlock(&transfers->mutex);
}

/* The last that is touched: the server may go then. */
static void end_thread(struct transfers *transfers) {
    pthread_mutex_lock(&transfers->mutex);
    transfers->thread_count--;
    pthread_cond_broadcast(&transfers->ended);
    pthread_mutex_unlock(&transfers->mutex);
}

static void *carry(void *context) {
    struct transfer *transfer = context;
    struct transfers *transfers = transfer->transfers;
    transfer->carry(transfer->context, transfer->exchange);
    give_place(transfers, transfer->exchange);
    exchange_release(transfer->exchange);
    free(transfer);
    end_thread(transfers);
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
    if (!take_place(transfers, exchange)) {
        api_error_set(&error, 429, NULL, "%d documents are being exported and imported: try again later",
                      TRANSFERS_MAX);
        error.retry_after_seconds = TRANSFERS_STALL_SECONDS + 1; /* places that stand still are given away by then */
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
    give_place(transfers, exchange);
    end_thread(transfers);
    exchange_refuse(exchange, 503, "no memory");
    return false;
}

bool transfers_wait(struct transfers *transfers, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 1;
    pthread_mutex_lock(&transfers->mutex);
    while (transfers->thread_count > 0)
        if (pthread_cond_timedwait(&transfers->ended, &transfers->mutex, &until) == ETIMEDOUT) break;
    const bool none = transfers->thread_count == 0;
    pthread_mutex_unlock(&transfers->mutex);
    return none;
}
