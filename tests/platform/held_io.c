#include "platform/held_io.h"

#include "testing.h"

#include <pthread.h>

#include "platform/io_queue_internal.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_closed;
    size_t reads; /* on their way */
    struct held_io now;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

struct held_io held_io_now(void) {
    pthread_mutex_lock(&gate.lock);
    const struct held_io now = gate.now;
    pthread_mutex_unlock(&gate.lock);
    return now;
}

void held_io_forget(void) {
    pthread_mutex_lock(&gate.lock);
    gate.now.reads_max = gate.reads;
    gate.now.writes_max = gate.now.writes;
    pthread_mutex_unlock(&gate.lock);
}

void held_io_close(bool is_closed) {
    pthread_mutex_lock(&gate.lock);
    gate.is_closed = is_closed;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

void held_io_await_writes(size_t count) {
    pthread_mutex_lock(&gate.lock);
    while (gate.now.writes < count) pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

struct held_engine {
    struct io_slot_list gathered; /* started and not flushed */
    size_t count;
    struct io_slot *held[]; /* [depth]; those that were flushed and have not ended */
};

static void held_start(void *pointer, struct io_slot *slot) {
    struct held_engine *engine = pointer;
    io_slot_list_add(&engine->gathered, slot);
}

static void held_flush(void *pointer) {
    struct held_engine *engine = pointer;
    pthread_mutex_lock(&gate.lock);
    for (struct io_slot *slot; (slot = io_slot_list_take(&engine->gathered)) != NULL;) {
        engine->held[engine->count++] = slot;
        gate.reads += slot->request.operation == IO_READ;
        gate.now.writes += slot->request.operation == IO_WRITE;
    }
    if (gate.now.reads_max < gate.reads) gate.now.reads_max = gate.reads;
    if (gate.now.writes_max < gate.now.writes) gate.now.writes_max = gate.now.writes;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void held_reap(void *pointer, bool wait, struct io_slot_list *finished) {
    struct held_engine *engine = pointer;
    if (!wait || engine->count == 0) return;
    struct io_slot *slot = engine->held[--engine->count];
    pthread_mutex_lock(&gate.lock);
    while (gate.is_closed) pthread_cond_wait(&gate.changed, &gate.lock);
    slot->result = io_slot_run(slot);
    gate.reads -= slot->request.operation == IO_READ;
    gate.now.writes -= slot->request.operation == IO_WRITE;
    pthread_mutex_unlock(&gate.lock);
    io_slot_list_add(finished, slot);
}

static bool held_register_memory(void *pointer, void *memory, size_t bytes) {
    (void)pointer, (void)memory, (void)bytes;
    return true;
}

static const struct io_engine_operations held_operations = {free, held_start, held_flush, held_reap,
                                                            held_register_memory};

enum status __wrap_io_uring_engine_create(struct io_queue *queue, struct error *error) STATUS_CHECKED;

enum status __wrap_io_uring_engine_create(struct io_queue *queue, struct error *error) {
    struct held_engine *engine = calloc(1, sizeof *engine + queue->depth * sizeof *engine->held);
    if (engine == NULL) return error_set(error, STATUS_MEMORY, "held I/O: out of memory");
    queue->operations = &held_operations;
    queue->engine = engine;
    return STATUS_OK;
}
