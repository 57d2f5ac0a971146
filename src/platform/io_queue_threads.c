/* Threads that call pread, pwrite and fdatasync, behind io_queue_internal.h.
 *
 * `waiting` and `finished` are the only things that both sides touch, under one lock; what the owner of the
 * queue has started lies in `gathered` until flush, so that many submits cost one locking.
 *
 * Threads wait on a semaphore, which has one permit for each slot of `waiting` and one for each thread that is to
 * stop.  A condition variable would do, were it not for glibc before 2.41: with several waiters one of its signals may
 * wake none (bug 25847), and a request would never be served.  `done` has one waiter. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

#include "platform/io_queue_internal.h"

struct threads_engine {
    struct io_slot_list gathered; /* the owner's own */
    size_t gathered_count;
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct io_slot_list waiting, finished; /* under lock */
    sem_t work;
    size_t thread_count;
    pthread_t threads[];
};

ssize_t io_slot_run(const struct io_slot *slot) {
    const struct io_request *request = &slot->request;
    uint8_t *memory = (uint8_t *)request->memory + slot->done;
    off_t offset = (off_t)(request->offset + slot->done);
    ssize_t result = -1;
    switch (request->operation) {
    case IO_READ: result = pread(request->file->fd, memory, slot->attempt_bytes, offset); break;
    case IO_WRITE: result = pwrite(request->file->fd, memory, slot->attempt_bytes, offset); break;
    case IO_SYNC: result = fdatasync(request->file->fd); break;
    }
    return result < 0 ? -errno : result;
}

static void *thread_main(void *argument) {
    struct threads_engine *engine = argument;
    for (;;) {
        while (sem_wait(&engine->work) != 0) continue; /* a signal came */
        pthread_mutex_lock(&engine->lock);
        struct io_slot *slot = io_slot_list_take(&engine->waiting);
        pthread_mutex_unlock(&engine->lock);
        if (slot == NULL) return NULL; /* a permit without a slot: the end */
        const ssize_t result = io_slot_run(slot);
        pthread_mutex_lock(&engine->lock);
        slot->result = result;
        io_slot_list_add(&engine->finished, slot);
        pthread_cond_signal(&engine->done);
        pthread_mutex_unlock(&engine->lock);
    }
}

static void threads_destroy(void *pointer) {
    struct threads_engine *engine = pointer;
    for (size_t i = 0; i < engine->thread_count; i++) (void)sem_post(&engine->work);
    for (size_t i = 0; i < engine->thread_count; i++) pthread_join(engine->threads[i], NULL);
    (void)sem_destroy(&engine->work);
    pthread_cond_destroy(&engine->done);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static void threads_start(void *pointer, struct io_slot *slot) {
    struct threads_engine *engine = pointer;
    io_slot_list_add(&engine->gathered, slot);
    engine->gathered_count++;
}

static void threads_flush(void *pointer) {
    struct threads_engine *engine = pointer;
    pthread_mutex_lock(&engine->lock);
    for (struct io_slot *slot; (slot = io_slot_list_take(&engine->gathered)) != NULL;)
        io_slot_list_add(&engine->waiting, slot);
    pthread_mutex_unlock(&engine->lock);
    for (; engine->gathered_count > 0; engine->gathered_count--) (void)sem_post(&engine->work);
}

static void threads_reap(void *pointer, bool wait, struct io_slot_list *finished) {
    struct threads_engine *engine = pointer;
    pthread_mutex_lock(&engine->lock);
    while (wait && engine->finished.first == NULL) pthread_cond_wait(&engine->done, &engine->lock);
    for (struct io_slot *slot; (slot = io_slot_list_take(&engine->finished)) != NULL;) io_slot_list_add(finished, slot);
    pthread_mutex_unlock(&engine->lock);
}

static bool threads_register_memory(void *pointer, void *memory, size_t bytes) {
    (void)pointer, (void)memory, (void)bytes;
    return false; /* nothing to win */
}

static const struct io_engine_operations threads_operations = {threads_destroy, threads_start, threads_flush,
                                                               threads_reap, threads_register_memory};

enum status io_threads_engine_create(struct io_queue *queue, size_t thread_count, struct error *error) {
    struct threads_engine *engine = calloc(1, sizeof *engine + thread_count * sizeof(pthread_t));
    if (engine == NULL) return error_set(error, STATUS_MEMORY, "I/O threads: out of memory");
    pthread_mutex_init(&engine->lock, NULL);
    (void)sem_init(&engine->work, 0, 0);
    pthread_cond_init(&engine->done, NULL);
    for (; engine->thread_count < thread_count; engine->thread_count++) {
        int failed = pthread_create(&engine->threads[engine->thread_count], NULL, thread_main, engine);
        if (failed == 0) continue;
        if (engine->thread_count > 0) break; /* fewer are slower, not wrong */
        threads_destroy(engine);
        return error_set_os(error, STATUS_MEMORY, failed, "I/O threads: starting one");
    }
    queue->operations = &threads_operations;
    queue->engine = engine;
    return STATUS_OK;
}
