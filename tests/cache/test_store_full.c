/* A full disk: no write of page files or of the catalog succeeds until something is cut or removed.  Saved documents
 * can be read and removed, a document that was begun gives its space back, and opening a store writes nothing. */
#include "testing.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/faulty_vfs.h"
#include "cache/store_sample.h"
#include "platform/scratch.h"

enum { BEFORE_TOKENS = 64 * 2 + 5, COMMITTED = 64 * 3 + 7, ALL_TOKENS = 64 * 20 + 3 };

struct small_disk {
    struct io_faults faults;
    struct fault_plan catalog;
    _Atomic int writes_left; /* of page files, before it is full: several threads write */
    bool frees;              /* cutting and removing files of documents frees space */
    _Atomic bool is_empty;   /* it did */
};

static void set_full(struct small_disk *disk, bool full) {
    disk->is_empty = !full;
    disk->writes_left = full ? 0 : INT_MAX;
    disk->catalog.kind = full ? FAULT_ENOSPC : FAULT_NONE;
}

static struct io_fault decide(void *context, enum io_call call, const char *path, uint64_t offset,
                              size_t bytes) {
    struct small_disk *disk = context;
    (void)path, (void)offset, (void)bytes;
    if ((call == IO_CALL_TRUNCATE || call == IO_CALL_REMOVE) && disk->frees) set_full(disk, false);
    if (call == IO_CALL_WRITE && atomic_fetch_sub(&disk->writes_left, 1) <= 0 && !disk->is_empty) {
        disk->catalog.kind = FAULT_ENOSPC;
        return (struct io_fault){ENOSPC, SIZE_MAX};
    }
    return (struct io_fault){0, SIZE_MAX};
}

/* Writes of the catalog fail if those of pages do. */
static void disk_init(struct small_disk *disk, int writes, bool frees) {
    *disk = (struct small_disk){.faults = {disk, decide}, .writes_left = writes, .frees = frees};
    fault_plan_init(&disk->catalog, writes == 0 ? FAULT_ENOSPC : FAULT_NONE, 0, true, 1U << IO_CALL_WRITE);
    faulty_vfs_use(&disk->catalog);
}

static struct store *open_on(struct small_disk *disk, const char *path) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = path,
                                          .backend = IO_BACKEND_THREADS,
                                          .faults = &disk->faults,
                                          .sqlite_vfs = FAULTY_VFS,
                                          .staging_bytes = 1 << 20};
    assert_ok(store_open(&store, &options, &error), error);
    return store;
}

static bool has_states; /* the documents of sample_make */

static struct sample sample_make(uint64_t seed) {
    struct random random;
    random_init(&random, 7);
    struct sample sample = sample_random(&random), other = sample_other(&sample, seed);
    other.layout.layer_count = other.layout.kv_head_count = 2;
    other.layout.chunk_bytes = 4096;
    if (has_states) sample_state(&other, &random);
    return other;
}

/* A folder with one document; returns its id. */
static uint64_t folder_init(struct scratch *scratch) {
    const struct sample before = sample_make(1);
    const uint64_t tokens = BEFORE_TOKENS;
    struct error error;
    uint64_t id;
    scratch_create(scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch->path);
    assert_ok(sample_save(&before, store, &tokens, 1, &id, &error), error);
    store_close(store);
    return id;
}

static uint64_t reused(struct store *store, const struct sample *sample, uint64_t token_count) {
    struct error error = {.message = ""};
    uint64_t tokens;
    assert_ok(sample_reuse(sample, store, token_count, &tokens, &error), error);
    return tokens;
}

static uint64_t size_of(const struct scratch *scratch, uint64_t id) {
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%s/%llu.pages", scratch->path, (unsigned long long)id);
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

/* Blocks that the file of pages takes, in bytes. */
static uint64_t space_of(const struct scratch *scratch, uint64_t id) {
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%s/%llu.pages", scratch->path, (unsigned long long)id);
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

static void count_document(void *context, const struct document_info *info) {
    (void)info;
    ++*(size_t *)context;
}

static size_t document_count(struct store *store) {
    size_t count = 0;
    struct error error;
    assert_ok(store_list(store, count_document, &count, &error), error);
    return count;
}

/* Begins a document, commits the first tokens of it (0: none), and writes until the disk is full.  Returns its id. */
static uint64_t fill(struct small_disk *disk, struct store *store, uint64_t committed) {
    const struct sample sample = sample_make(2);
    const struct document_description description = {&sample.model, &sample.layout, "new", ALL_TOKENS};
    struct document *document;
    struct error error;
    assert_ok(document_create(&document, store, &description, &error), error);
    if (committed > 0) {
        assert_ok(sample_write(&sample, document, 0, committed, NULL, &error), error);
        assert_ok(document_flush(document, &error), error);
    }
    disk->writes_left = 3;
    enum status status = sample_write(&sample, document, committed, ALL_TOKENS, NULL, &error);
    if (status == STATUS_OK) status = document_flush(document, &error);
    assert_int_equal(status, STATUS_IO);
    assert_non_null(strstr(error.message, "No space left"));
    const uint64_t id = document_id(document);
    document_close(document);
    return id;
}

/* Closing the document that did not fit frees its space, with which the catalog can remove its row. */
static void what_was_begun_is_given_back(void **state) {
    (void)state;
    const struct sample before = sample_make(1), sample = sample_make(2);
    for (int commits = 0; commits < 2; commits++) {
        struct scratch scratch;
        struct small_disk disk;
        folder_init(&scratch);
        disk_init(&disk, INT_MAX, true);
        struct store *store = open_on(&disk, scratch.path);
        const uint64_t id = fill(&disk, store, commits > 0 ? COMMITTED : 0);
        assert_true(disk.is_empty);
        assert_int_equal(document_count(store), 1 + commits);
        assert_int_equal(reused(store, &before, 1000), BEFORE_TOKENS);
        assert_int_equal(reused(store, &sample, ALL_TOKENS), commits > 0 ? COMMITTED : 0);
        if (commits == 0) assert_int_equal(size_of(&scratch, id), 0);
        store_close(store);
        faulty_vfs_use(NULL);
        scratch_destroy(&scratch);
    }
}

/* Pages of the segment that the last commit ends in, and its tail's successor: the file does not end behind them. */
static void what_was_begun_within_a_segment_too(void **state) {
    (void)state;
    static const uint64_t ends[][2] = {
        {64 * 3 + 7, 64 * 9 + 5}, {64 * 3 + 7, 64 * 3 + 9}, {64 * 3, 64 * 9}, {7, 9}, {7, 64}};
    struct sample sample = sample_make(2);
    sample.layout.key_index_bytes = 0; /* every write is one of the file */
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        for (int writes = 1; writes < 4; writes++) {
            const struct document_description description = {&sample.model, &sample.layout, "new",
                                                             ALL_TOKENS};
            struct scratch scratch;
            struct small_disk disk;
            struct document *document;
            struct error error;
            scratch_create(&scratch, SCRATCH_MEMORY);
            disk_init(&disk, INT_MAX, false);
            struct store *store = open_on(&disk, scratch.path);
            assert_ok(document_create(&document, store, &description, &error), error);
            assert_ok(sample_write(&sample, document, 0, ends[i][0], NULL, &error), error);
            assert_ok(document_flush(document, &error), error);
            const uint64_t id = document_id(document), before = space_of(&scratch, id);
            disk.writes_left = writes;
            enum status status = sample_write(&sample, document, ends[i][0], ends[i][1], NULL, &error);
            assert_int_equal(document_flush(document, &error), STATUS_IO); /* once nothing is under way */
            (void)status;
            assert_true(space_of(&scratch, id) > before);
            disk_init(&disk, INT_MAX, false);
            document_close(document);
            if (space_of(&scratch, id) != before)
                fail_msg("%llu tokens, then %d writes up to %llu: %llu bytes, %llu before",
                         (unsigned long long)ends[i][0], writes, (unsigned long long)ends[i][1],
                         (unsigned long long)space_of(&scratch, id), (unsigned long long)before);
            assert_int_equal(reused(store, &sample, ALL_TOKENS), ends[i][0] < 64 ? 0 : ends[i][0]);
            store_close(store);
            faulty_vfs_use(NULL);
            scratch_destroy(&scratch);
        }
}

static void states_are_given_back(void **state) {
    has_states = true;
    what_was_begun_is_given_back(state);
    what_was_begun_within_a_segment_too(state);
    has_states = false;
}

/* Another program filled the disk, so cutting does not help.  The reservation is freed, and everything saved is read.
 */
static void a_full_disk_is_read(void **state) {
    (void)state;
    const struct sample before = sample_make(1), sample = sample_make(2);
    struct scratch scratch;
    struct small_disk disk;
    folder_init(&scratch);
    disk_init(&disk, INT_MAX, false);
    struct store *store = open_on(&disk, scratch.path);
    const uint64_t id = fill(&disk, store, 0);
    assert_int_equal(size_of(&scratch, id), 0);
    assert_int_equal(reused(store, &before, 1000), BEFORE_TOKENS);
    store_close(store);
    for (int times = 0; times < 2; times++) { /* the row of the new one is still there, and cannot go */
        disk_init(&disk, 0, false);
        store = open_on(&disk, scratch.path);
        assert_int_equal(reused(store, &before, 1000), BEFORE_TOKENS);
        assert_int_equal(reused(store, &sample, ALL_TOKENS), 0);
        store_close(store);
    }
    disk_init(&disk, INT_MAX, false); /* room again */
    store = open_on(&disk, scratch.path);
    assert_int_equal(document_count(store), 1);
    assert_int_equal(reused(store, &before, 1000), BEFORE_TOKENS);
    store_close(store);
    faulty_vfs_use(NULL);
    scratch_destroy(&scratch);
}

static void opening_writes_nothing(void **state) {
    (void)state;
    struct scratch scratch;
    struct small_disk disk;
    folder_init(&scratch);
    for (int times = 0; times < 2; times++) {
        disk_init(&disk, 0, false);
        struct store *store = open_on(&disk, scratch.path);
        store_close(store);
        assert_int_equal(disk.catalog.hits, 0);
    }
    faulty_vfs_use(NULL);
    scratch_destroy(&scratch);
}

static void a_document_is_removed(void **state) {
    (void)state;
    const struct sample before = sample_make(1);
    struct scratch scratch;
    struct small_disk disk;
    struct error error;
    const uint64_t id = folder_init(&scratch);
    disk_init(&disk, 0, false); /* nothing helps: an error says so, and the row stays */
    struct store *store = open_on(&disk, scratch.path);
    assert_int_equal(store_remove(store, id, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "full"));
    assert_int_equal(document_count(store), 1);
    store_close(store);
    disk_init(&disk, 0, true);
    store = open_on(&disk, scratch.path);
    assert_ok(store_remove(store, id, &error), error);
    assert_int_equal(document_count(store), 0);
    assert_int_equal(reused(store, &before, 1000), 0);
    store_close(store);
    assert_int_equal(size_of(&scratch, id), 0);
    faulty_vfs_use(NULL);
    scratch_destroy(&scratch);
}

/* Removed while a store is open: the message is for a user. */
static void a_folder_that_goes_is_named(void **state) {
    (void)state;
    const struct sample sample = sample_make(2);
    const struct document_description description = {&sample.model, &sample.layout, "new", ALL_TOKENS};
    struct scratch scratch;
    struct document *document;
    struct error error;
    folder_init(&scratch);
    struct store *store = sample_store_open(scratch.path);
    assert_ok(document_create(&document, store, &description, &error), error);
    assert_int_equal(unlink(scratch_name(&scratch, "catalog.db")), 0);
    enum status status = sample_write(&sample, document, 0, COMMITTED, NULL, &error);
    if (status == STATUS_OK) status = document_flush(document, &error);
    assert_int_equal(status, STATUS_IO);
    document_close(document);
    if (strstr(error.message, "was removed or replaced meanwhile") == NULL) fail_msg("%s", error.message);
    store_close(store);
    scratch_destroy(&scratch);
}

/* A process that was killed before its document's row was durable leaves two empty files, and nobody hears of them. */
static void empty_files_go_without_a_word(void **state) {
    (void)state;
    struct scratch scratch;
    folder_init(&scratch);
    const size_t files = scratch_count(&scratch);
    for (unsigned id = 100; id < 120; id++) { /* in whatever order the folder shows them */
        static const char *const suffixes[] = {"pages", "metadata"};
        for (size_t i = 0; i < 2; i++) {
            char path[256];
            snprintf(path, sizeof path, "%s/%u.%s", scratch.path, id, suffixes[(i + id) % 2]);
            FILE *file = fopen(path, "w");
            assert_non_null(file);
            fclose(file);
        }
    }
    struct store *store = sample_store_open(scratch.path);
    if (store_warning(store) != NULL) fail_msg("%s", store_warning(store));
    assert_int_equal(scratch_count(&scratch), files);
    store_close(store);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_begun_is_given_back), cmocka_unit_test(what_was_begun_within_a_segment_too),
        cmocka_unit_test(states_are_given_back),
        cmocka_unit_test(a_full_disk_is_read),          cmocka_unit_test(opening_writes_nothing),
        cmocka_unit_test(a_document_is_removed),        cmocka_unit_test(empty_files_go_without_a_word),
        cmocka_unit_test(a_folder_that_goes_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
