/* Several processes save one prompt at once: one complete document stays, and no other document is taken for a copy.
 * What a writer has costs a short document nothing. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/store_sample.h"
#include "platform/io_queue.h"
#include "platform/scratch.h"

enum { TOKENS = 64 * 4 + 9, WRITERS = 4 };

static void count_document(void *context, const struct document_info *info) {
    *(size_t *)context += info->damaged == NULL;
}

static size_t document_count(const char *path) {
    struct store *store = sample_store_open(path);
    struct error error;
    size_t count = 0;
    assert_null(store_warning(store));
    assert_ok(store_list(store, count_document, &count, &error), error);
    store_close(store);
    return count;
}

static struct sample sample_make(uint64_t seed) {
    struct random random;
    random_init(&random, 11);
    struct sample sample = sample_random(&random);
    return sample_other(&sample, seed);
}

struct writing {
    struct store *store;
    struct document *document;
};

/* A store of its own, as another process has; everything written and durable. */
static struct writing begin_in(struct store *store, const struct sample *sample, uint64_t tokens) {
    struct writing writing = {.store = store};
    const struct document_description description = {&sample->model, &sample->layout, "copy", TOKENS};
    struct error error;
    assert_ok(document_create(&writing.document, writing.store, &description, &error), error);
    if (tokens == 0) return writing;
    assert_ok(sample_write(sample, writing.document, 0, tokens, NULL, &error), error);
    assert_ok(document_flush(writing.document, &error), error);
    return writing;
}

static struct writing begin(const char *path, const struct sample *sample, uint64_t tokens) {
    return begin_in(sample_store_open(path), sample, tokens);
}

static void end(struct writing *writing) {
    document_close(writing->document);
    store_close(writing->store);
}

static void expect_reuse(const char *path, const struct sample *sample, uint64_t tokens) {
    struct store *store = sample_store_open(path);
    struct error error;
    uint64_t reused;
    assert_ok(sample_reuse(sample, store, TOKENS, &reused, &error), error);
    assert_int_equal(reused, tokens);
    store_close(store);
}

static void of_copies_one_stays(void **state) {
    (void)state;
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    const struct sample samples[] = {sample_make(1), sample_make(2)};
    struct writing writings[2 * WRITERS];
    for (size_t i = 0; i < 2 * WRITERS; i++) writings[i] = begin(scratch.path, &samples[i % 2], TOKENS);
    assert_int_equal(document_count(scratch.path), 2 * WRITERS);
    for (size_t i = 0; i < 2 * WRITERS; i++) { /* whoever closes first */
        end(&writings[(i * 3 + 5) % (2 * WRITERS)]);
        expect_reuse(scratch.path, &samples[0], TOKENS);
        expect_reuse(scratch.path, &samples[1], TOKENS);
    }
    assert_int_equal(document_count(scratch.path), 2);
    assert_int_equal(scratch_count(&scratch), 2 * 2 + 2); /* nothing is left of the others */
    scratch_destroy(&scratch);
}

/* Shorter, damaged, of another model, or being read: not a copy that may be removed. */
static void what_is_no_copy_stays(void **state) {
    (void)state;
    struct scratch scratch;
    struct error error;
    char name[40];
    const struct sample sample = sample_make(1);
    struct sample other = sample;
    other.model.fingerprint[3] ^= 1;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct writing shorter = begin(scratch.path, &sample, 64 * 2),
                   whole = begin(scratch.path, &sample, TOKENS),
                   foreign = begin(scratch.path, &other, TOKENS);
    end(&shorter);
    end(&whole);
    end(&foreign);
    assert_int_equal(document_count(scratch.path), 3);
    struct writing copy = begin(scratch.path, &sample, TOKENS);
    struct store *reading = sample_store_open(scratch.path);
    struct document *read;
    assert_ok(document_open(&read, reading, document_id(copy.document), &sample.model, &sample.layout,
                            DOCUMENT_READ, 0, &error),
              error);
    end(&copy);
    assert_int_equal(document_count(scratch.path), 4);
    assert_ok(sample_check(&sample, read, &error), error);
    document_close(read);
    store_close(reading);
    scratch_empty(&scratch);
    whole = begin(scratch.path, &sample, TOKENS);
    snprintf(name, sizeof name, "%llu.pages", (unsigned long long)document_id(whole.document));
    end(&whole);
    assert_int_equal(truncate(scratch_name(&scratch, name), 4096), 0); /* the copy is the only good one */
    copy = begin(scratch.path, &sample, TOKENS);
    end(&copy);
    assert_int_equal(document_count(scratch.path), 2);
    scratch_destroy(&scratch);
}

static size_t registrations;
bool __real_io_queue_register_memory(struct io_queue *queue, void *memory, size_t bytes);
bool __wrap_io_queue_register_memory(struct io_queue *queue, void *memory, size_t bytes);

bool __wrap_io_queue_register_memory(struct io_queue *queue, void *memory, size_t bytes) {
    registrations++;
    return __real_io_queue_register_memory(queue, memory, bytes);
}

/* It fills fewer buffers than there are, however late they are written, and memory that is registered is resident. */
static void a_short_document_registers_no_memory(void **state) {
    (void)state;
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    const struct sample sample = sample_make(1);
    const struct store_options options = {
        .directory = scratch.path, .backend = IO_BACKEND_THREADS, .staging_bytes = 64 << 20};
    struct store *store;
    struct error error;
    assert_ok(store_open(&store, &options, &error), error);
    struct writing writing = begin_in(store, &sample, 64);
    end(&writing);
    assert_int_equal(registrations, 0);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_document_registers_no_memory),
        cmocka_unit_test(of_copies_one_stays),
        cmocka_unit_test(what_is_no_copy_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
