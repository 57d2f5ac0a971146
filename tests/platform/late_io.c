/* late_io: a back end of the I/O queue in place of io_uring's, for tests that have LATE_IO in their loam_test.
 *
 * It has no ring and no threads: it reads and writes in the thread that asks what has ended.  Of the requests that are
 * handed to it half are done at once, as by a kernel that has the pages, and half when they are reaped; which of them
 * end, and in which order, is drawn.  So a request may end long after those that were submitted behind it, memory that
 * is read before its request has ended lacks the bytes, and memory that is written before then has them in the file.  A
 * poll may find that nothing has ended; a wait finds one at least.
 *
 * What is drawn is the same on every run; LOAM_TEST_SEED changes it.
 *
 * Nobody measures such a disk, which takes 50 ms of a processor for each engine that keeps inputs, and gives other
 * numbers each time: it has made-up rates. */
#define LOAM_TEST_SEEDED
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/random.h"
#include "engine/documents.h"
#include "platform/io_queue_internal.h"
#include "seed.h"

struct late_slot {
    struct io_slot *slot;
    bool is_done;
};

struct late_engine {
    struct random random;
    struct io_slot_list gathered; /* started and not flushed */
    size_t count;                 /* of those that were flushed and have not ended */
    struct late_slot late[];      /* [depth] */
};

static void late_start(void *pointer, struct io_slot *slot) {
    struct late_engine *engine = pointer;
    io_slot_list_add(&engine->gathered, slot);
}

static void late_flush(void *pointer) {
    struct late_engine *engine = pointer;
    for (struct io_slot *slot; (slot = io_slot_list_take(&engine->gathered)) != NULL;) {
        const bool is_done = random_below(&engine->random, 2) == 0;
        if (is_done) slot->result = io_slot_run(slot);
        engine->late[engine->count++] = (struct late_slot){slot, is_done};
    }
}

static void late_reap(void *pointer, bool wait, struct io_slot_list *finished) {
    struct late_engine *engine = pointer;
    const size_t least = wait && engine->count > 0;
    for (size_t left = least + random_below(&engine->random, engine->count - least + 1); left > 0; left--) {
        struct late_slot *late = &engine->late[random_below(&engine->random, engine->count)];
        if (!late->is_done) late->slot->result = io_slot_run(late->slot);
        io_slot_list_add(finished, late->slot);
        *late = engine->late[--engine->count];
    }
}

static bool late_register_memory(void *pointer, void *memory, size_t bytes) {
    (void)pointer, (void)memory, (void)bytes;
    return true;
}

static const struct io_engine_operations late_operations = {free, late_start, late_flush, late_reap,
                                                            late_register_memory};

enum status __wrap_io_uring_engine_create(struct io_queue *queue, struct error *error) STATUS_CHECKED;

enum status __wrap_io_uring_engine_create(struct io_queue *queue, struct error *error) {
    static _Atomic uint64_t engines;
    struct late_engine *engine = calloc(1, sizeof *engine + queue->depth * sizeof *engine->late);
    if (engine == NULL) return error_set(error, STATUS_MEMORY, "late I/O: out of memory");
    random_init(&engine->random, test_seed_unsaid(0) + (engines++ << 32));
    queue->operations = &late_operations;
    queue->engine = engine;
    return STATUS_OK;
}

enum status __wrap_documents_measure(struct documents *documents, uint64_t token_capacity, struct store_rates *rates,
                                     struct error *error) STATUS_CHECKED;

enum status __wrap_documents_measure(struct documents *documents, uint64_t token_capacity, struct store_rates *rates,
                                     struct error *error) {
    (void)documents, (void)token_capacity, (void)error;
    *rates = (struct store_rates){.page_seconds = 20e-6, .tail_seconds = 20e-6, .alone_seconds = 100e-6};
    return STATUS_OK;
}
