#include "server/workers.h"

#include <pthread.h>
#include <stdlib.h>

enum { WORKERS_MAX = 16 };

struct entry {
    struct exchange *exchange;
    struct entry *next;
};

struct workers {
    void (*handle)(void *context, struct exchange *exchange);
    void *context;
    pthread_t threads[WORKERS_MAX];
    size_t thread_count;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    struct entry *first, *last;
    bool stops;
};

static void *worker_thread(void *context) {
    struct workers *workers = context;
    pthread_mutex_lock(&workers->mutex);
    for (;;) {
        while (workers->first == NULL && !workers->stops) pthread_cond_wait(&workers->changed, &workers->mutex);
        struct entry *entry = workers->first;
        if (entry == NULL) break;
        workers->first = entry->next;
        if (workers->first == NULL) workers->last = NULL;
        pthread_mutex_unlock(&workers->mutex);
        workers->handle(workers->context, entry->exchange);
        exchange_release(entry->exchange);
        free(entry);
        pthread_mutex_lock(&workers->mutex);
    }
    pthread_mutex_unlock(&workers->mutex);
    return NULL;
}

enum status workers_create(struct workers **result, size_t thread_count,
                           void (*handle)(void *context, struct exchange *exchange), void *context,
                           struct error *error) {
    struct workers *workers = *result = calloc(1, sizeof *workers);
    if (workers == NULL) return error_set(error, STATUS_MEMORY, "no memory for the server");
    workers->handle = handle;
    workers->context = context;
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_cond_init(&workers->changed, NULL);
    for (size_t i = 0; i < thread_count && i < WORKERS_MAX; i++) {
        const int failed = pthread_create(&workers->threads[i], NULL, worker_thread, workers);
        if (failed != 0) return error_set_os(error, STATUS_MEMORY, failed, "a thread for the server");
        workers->thread_count++;
    }
    return STATUS_OK;
}

bool workers_submit(struct workers *workers, struct exchange *exchange) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) return false;
    exchange_acquire(exchange);
    entry->exchange = exchange;
    pthread_mutex_lock(&workers->mutex);
    if (workers->last != NULL)
        workers->last->next = entry;
    else
        workers->first = entry;
    workers->last = entry;
    pthread_cond_broadcast(&workers->changed); /* not a signal: platform/io_queue_threads.c */
    pthread_mutex_unlock(&workers->mutex);
    return true;
}

void workers_destroy(struct workers *workers) {
    if (workers == NULL) return;
    pthread_mutex_lock(&workers->mutex);
    workers->stops = true;
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->mutex);
    for (size_t i = 0; i < workers->thread_count; i++) pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->changed);
    pthread_mutex_destroy(&workers->mutex);
    free(workers);
}
