/* What the store's thread does before a write has ended, and what it leaves until then, over an I/O queue that the test
 * holds (platform/held_io.h): a page is on disk when its write has ended and not before, a commit flushes when all
 * writes of its document have ended, and the memory of a write is not filled again before. */
#include "testing.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "cache/store/store_internal.h"
#include "cache/store_sample.h"
#include "platform/held_io.h"
#include "platform/scratch.h"

/* Flushes of files with pages or key indexes; of these, while writes were on their way.  The store's thread counts. */
static _Atomic size_t flushes, too_soon;

/* Every call to the system outside of the queue: none fails, and flushes are counted. */
static struct io_fault see_call(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    (void)context, (void)offset, (void)bytes;
    const char *suffix = strrchr(path, '.');
    if (call == IO_CALL_SYNC && suffix != NULL && strcmp(suffix, ".db") != 0) {
        flushes++;
        too_soon += held_io_now().writes > 0;
    }
    return (struct io_fault){0, SIZE_MAX};
}

/* Tests */

static const struct io_faults faults = {NULL, see_call};
static struct scratch scratch;

static int set_up(void **state) {
    (void)state;
    scratch_create(&scratch, SCRATCH_MEMORY);
    held_io_close(false); /* a test that failed may have left it closed */
    held_io_forget();
    flushes = too_soon = 0;
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
    held_io_close(true);
    sample_page(&sample, 0, 0, 0, page);
    sample_key_index(&sample, 0, 0, 0, key_index);
    assert_ok(document_write_pages(document, 0, 0, 0, 1, &chunk, &error), error);
    held_io_await_writes(1);
    assert_false(document_page_written(document, 0, 0, 0));
    assert_false(document_is_flushed(document));
    held_io_close(false);
    assert_ok(document_flush(document, &error), error);
    assert_true(document_page_written(document, 0, 0, 0));
    assert_true(document_is_flushed(document));
    held_io_close(true);
    for (size_t head = 0; head < 2; head++) {
        const struct key_index_write write = {0, head, 1, 0, 1, key_index};
        assert_ok(document_write_key_index(document, &write, &error), error);
    }
    held_io_await_writes(1);
    assert_false(document_key_index_written(document, 0, 0, 1));
    held_io_close(false);
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
        held_io_close(true);
        assert_ok(sample_write(&sample, document, i > 0 ? commits[0] : 0, commits[i], NULL, &error), error);
        held_io_await_writes(1);
        held_io_close(false);
        assert_ok(document_flush(document, &error), error);
        assert_true(held_io_now().writes_max >= 3 && flushes >= 2 * (i + 1)); /* many at once; both files */
        assert_int_equal(too_soon, 0);
        held_io_forget();
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
    assert_int_equal(too_soon, 0);
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
