/* What the store's thread does before a write has ended, and what it leaves until then: the I/O queue has a back end
 * that the test holds.  Requests that are handed to it end when somebody waits for one, one at a time and the last one
 * first; a poll finds none.  While the gate is closed none ends at all.  So no order here is luck: a page is on disk
 * when its write has ended and not before, a commit flushes when all writes of its document have ended, and the memory
 * of a write is not filled again before. */
#include "testing.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/store/store_internal.h"
#include "cache/store_sample.h"
#include "platform/io_queue_internal.h"
#include "platform/scratch.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_closed;
    size_t writes;            /* on their way, of all queues */
    size_t writes_max;        /* as many were at once */
    size_t flushes, too_soon; /* of files with pages or key indexes; of these, while writes were on their way */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void gate_set(bool is_closed) {
    pthread_mutex_lock(&gate.lock);
    gate.is_closed = is_closed;
    if (is_closed) gate.writes_max = gate.flushes = gate.too_soon = 0;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_await_writes(size_t count) {
    pthread_mutex_lock(&gate.lock);
    while (gate.writes < count) pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* The back end */

struct held_engine {
    struct io_slot_list gathered; /* started and not flushed */
    size_t count;
    struct io_slot *held[]; /* [depth]; those that were flushed and have not ended */
};

static void run(struct io_slot *slot) {
    const struct io_request *request = &slot->request;
    uint8_t *memory = (uint8_t *)request->memory + slot->done;
    const off_t offset = (off_t)(request->offset + slot->done);
    assert_true(request->operation != IO_SYNC); /* the store's thread flushes by itself */
    const ssize_t result = request->operation == IO_READ
                               ? pread(request->file->fd, memory, slot->attempt_bytes, offset)
                               : pwrite(request->file->fd, memory, slot->attempt_bytes, offset);
    slot->result = result < 0 ? -errno : result;
}

static void held_start(void *pointer, struct io_slot *slot) {
    struct held_engine *engine = pointer;
    io_slot_list_add(&engine->gathered, slot);
}

static void held_flush(void *pointer) {
    struct held_engine *engine = pointer;
    pthread_mutex_lock(&gate.lock);
    for (struct io_slot *slot; (slot = io_slot_list_take(&engine->gathered)) != NULL;) {
        engine->held[engine->count++] = slot;
        if (slot->request.operation == IO_WRITE) gate.writes++;
    }
    if (gate.writes_max < gate.writes) gate.writes_max = gate.writes;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void held_reap(void *pointer, bool wait, struct io_slot_list *finished) {
    struct held_engine *engine = pointer;
    if (!wait || engine->count == 0) return;
    struct io_slot *slot = engine->held[--engine->count];
    pthread_mutex_lock(&gate.lock);
    while (gate.is_closed) pthread_cond_wait(&gate.changed, &gate.lock);
    run(slot);
    if (slot->request.operation == IO_WRITE) gate.writes--;
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

/* Every call to the system outside of the queue: none fails, and flushes are counted. */
static struct io_fault see_call(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    (void)context, (void)offset, (void)bytes;
    const char *suffix = strrchr(path, '.');
    if (call == IO_CALL_SYNC && suffix != NULL && strcmp(suffix, ".db") != 0) {
        pthread_mutex_lock(&gate.lock);
        gate.flushes++;
        if (gate.writes > 0) gate.too_soon++;
        pthread_mutex_unlock(&gate.lock);
    }
    return (struct io_fault){0, SIZE_MAX};
}

/* Tests */

static const struct io_faults faults = {NULL, see_call};
static struct scratch scratch;

static int set_up(void **state) {
    (void)state;
    scratch_create(&scratch, SCRATCH_MEMORY);
    gate.is_closed = false;
    gate.too_soon = 0;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_destroy(&scratch);
    return 0;
}

static struct sample small_sample(void) {
    struct random random;
    random_init(&random, 20261129);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = 1;
    sample.layout.kv_head_count = 2;
    sample.layout.chunk_bytes = 8 * 600;
    sample.layout.key_index_bytes = 100;
    return sample;
}

static struct store *open_store(size_t staging_bytes) {
    struct store *store;
    struct error error;
    const struct store_options options = {
        .directory = scratch.path, .backend = IO_BACKEND_URING, .staging_bytes = staging_bytes, .faults = &faults};
    assert_ok(store_open(&store, &options, &error), error);
    return store;
}

static struct document *create(struct store *store, const struct sample *sample, uint64_t tokens) {
    struct document *document;
    struct error error;
    const struct document_description description = {&sample->model, &sample->layout, "late", tokens};
    assert_ok(document_create(&document, store, &description, &error), error);
    return document;
}

static void assert_saved(struct store *store, const struct sample *sample, uint64_t tokens) {
    struct error error = {.message = "not found"};
    uint64_t reused;
    assert_ok(sample_reuse(sample, store, tokens, &reused, &error), error);
    if (reused != tokens)
        fail_msg("%llu of %llu tokens: %s", (unsigned long long)reused, (unsigned long long)tokens, error.message);
}

/* A sequence evicts a chunk that is on disk, and reads it from there. */
static void test_written_when_the_write_has_ended(void **state) {
    (void)state;
    const struct sample sample = small_sample();
    struct store *store = open_store(64 << 20);
    struct document *document = create(store, &sample, 640);
    struct error error;
    uint8_t page[8 * 600], key_index[100];
    const void *chunk = page;
    gate_set(true);
    sample_page(&sample, 0, 0, 0, page);
    sample_key_index(&sample, 0, 0, 0, key_index);
    assert_ok(document_write_pages(document, 0, 0, 0, 1, &chunk, &error), error);
    gate_await_writes(1);
    assert_false(document_page_written(document, 0, 0, 0));
    assert_false(document_is_flushed(document));
    gate_set(false);
    assert_ok(document_flush(document, &error), error);
    assert_true(document_page_written(document, 0, 0, 0));
    assert_true(document_is_flushed(document));
    gate_set(true);
    for (size_t head = 0; head < 2; head++)
        assert_ok(document_write_key_index(document, 0, head, 0, 1, key_index, &error), error);
    gate_await_writes(1);
    assert_false(document_key_index_written(document, 0, 0, 1));
    gate_set(false);
    assert_ok(document_flush(document, &error), error);
    assert_true(document_key_index_written(document, 0, 0, 1));
    document_close(document);
    store_close(store);
}

/* What the catalog names is on disk before it does: no file is flushed, which a commit does first, while a write of
 * its document is on its way.  The gate opens when all has been asked for; until then the thread may have waited for
 * one write, so all others are on their way when the commit's turn comes. */
static void test_commit_waits_for_its_writes(void **state) {
    (void)state;
    const struct sample sample = small_sample();
    const uint64_t commits[] = {64 * 3, 64 * 5 + 20};
    struct store *store = open_store(64 << 20);
    struct document *document = create(store, &sample, 640);
    struct error error;
    for (size_t i = 0; i < 2; i++) {
        gate_set(true);
        assert_ok(sample_write(&sample, document, i > 0 ? commits[0] : 0, commits[i], NULL, &error), error);
        gate_await_writes(1);
        gate_set(false);
        assert_ok(document_flush(document, &error), error);
        assert_true(gate.writes_max >= 3 && gate.flushes >= 2); /* many at once; both files */
        assert_int_equal(gate.too_soon, 0);
        assert_int_equal(document_token_count(document), commits[i]);
    }
    document_close(document);
    assert_saved(store, &sample, commits[1]);
    store_close(store);
}

/* Few buffers, and the last write ends first: each is filled many times. */
static void test_memory_stays_until_the_write_has_ended(void **state) {
    (void)state;
    const struct sample sample = small_sample();
    const uint64_t tokens = 64 * 120 + 20;
    struct store *store = open_store(1 << 20);
    struct document *document = create(store, &sample, tokens);
    struct error error;
    assert_ok(sample_write(&sample, document, 0, tokens, NULL, &error), error);
    assert_ok(document_flush(document, &error), error);
    assert_int_equal(gate.too_soon, 0);
    document_close(document);
    assert_saved(store, &sample, tokens);
    store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_written_when_the_write_has_ended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_commit_waits_for_its_writes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_memory_stays_until_the_write_has_ended, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
