/* Pages read in parts: the bytes of the page, each part under a checksum of its own; damage, faults, and documents of
 * catalogs before version 4, which have no such checksums. */
#include "testing.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cache/store/store_internal.h"
#include "cache/store_sample.h"
#include "platform/fault_plan.h"
#include "platform/scratch.h"
#include "seed.h"

static struct scratch scratch;
static uint64_t seed;

static int set_up(void **state) {
    (void)state;
    scratch_create(&scratch, SCRATCH_MEMORY);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_destroy(&scratch);
    return 0;
}

static struct store *open_store(bool whole_pages, const struct io_faults *faults) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch.path,
                                          .backend = IO_BACKEND_THREADS,
                                          .staging_bytes = 1 << 20,
                                          .faults = faults,
                                          .whole_pages = whole_pages};
    assert_ok(store_open(&store, &options, &error), error);
    return store;
}

/* Shapes of which some pages have parts. */
static struct sample sample_of_parts(struct random *random, bool mixed) {
    struct sample sample;
    do {
        sample = sample_random(random);
        if (mixed) sample_share(&sample, random);
    } while (store_page_parts(&sample.layout).count == 0 ||
             (mixed && sample.layout.fractions.sixteenths[0] == PAGE_FRACTION_WHOLE));
    return sample;
}

static uint64_t save(struct store *store, const struct sample *sample, uint64_t tokens) {
    uint64_t id;
    struct error error;
    assert_ok(sample_save(sample, store, &tokens, 1, &id, &error), error);
    return id;
}

static struct document *open_document(struct store *store, const struct sample *sample, uint64_t id,
                                      enum document_mode mode, uint64_t capacity) {
    struct document *document;
    struct error error;
    assert_ok(document_open(&document, store, id, &sample->model, &sample->layout, mode, capacity, &error),
              error);
    return document;
}

struct reader {
    struct io_queue *queue;
    uint8_t *memory, *expected;
    size_t bytes;
};

static void reader_open(struct reader *reader, const struct sample *sample) {
    struct error error;
    const struct io_queue_options options = {.backend = IO_BACKEND_THREADS, .depth = 4};
    assert_ok(io_queue_create(&reader->queue, &options, &error), error);
    const size_t page = store_page_bytes(&sample->layout), tail = store_tail_bytes(&sample->layout);
    reader->bytes = page > tail ? page : tail;
    reader->memory = aligned_alloc(IO_ALIGNMENT, reader->bytes);
    reader->expected = malloc(reader->bytes);
}

static void reader_close(struct reader *reader) {
    io_queue_destroy(reader->queue);
    free(reader->memory);
    free(reader->expected);
}

static enum status read_page(struct reader *reader, struct document *document, struct page_read *read,
                             struct error *error) {
    size_t next = 0;
    struct io_completion done;
    read->memory = reader->memory;
    memset(reader->memory, 0xa5, reader->bytes);
    assert_int_equal(document_read_pages(document, reader->queue, read, 1, &next, 0), STATUS_OK);
    assert_int_equal(io_queue_wait(reader->queue, &done, 1, 1), 1);
    if (done.status != STATUS_OK) return document_read_failed(document, &done, error);
    return document_check_page(document, read, error);
}

/* A chunk's bytes, [first, end) of them by the parts that were asked for, and nothing changed before. */
static void assert_read(const struct reader *reader, const struct sample *sample,
                        const struct page_read *read, size_t chunk_bytes) {
    const size_t part = store_page_parts(&sample->layout).bytes, first = read->part_first * part;
    size_t end = read->part_count == 0 ? chunk_bytes : first + read->part_count * part;
    if (end > chunk_bytes) end = chunk_bytes;
    sample_page(sample, read->layer, read->kv_head, read->chunk, reader->expected);
    assert_memory_equal(reader->memory + first, reader->expected + first, end - first);
    for (size_t i = 0; i < first; i++) assert_int_equal(reader->memory[i], 0xa5);
}

static void test_parts_are_of_the_page(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed);
    size_t in_parts = 0, whole = 0;
    for (int round = 0; round < 12; round++) {
        struct sample sample = sample_of_parts(&random, round % 2 == 1);
        const uint64_t chunks = 1 + random_below(&random, 40);
        struct store *store = open_store(false, NULL);
        uint64_t id = save(store, &sample, chunks * 64 + random_below(&random, 64));
        struct document *document = open_document(store, &sample, id, DOCUMENT_READ, 0);
        struct reader reader;
        struct error error;
        reader_open(&reader, &sample);
        for (int i = 0; i < 200; i++) {
            struct page_read read = {.layer = (uint32_t)random_below(&random, sample.layout.layer_count),
                                     .kv_head = (uint32_t)random_below(&random, sample.layout.kv_head_count),
                                     .chunk = random_below(&random, chunks)};
            const size_t parts = document_page_parts(document, &read);
            const size_t bytes = page_chunk_bytes(&document->geometry, read.layer, read.kv_head, read.chunk);
            assert_int_equal(parts > 0,
                             page_is_rows(&document->geometry, read.layer, read.kv_head, read.chunk));
            if (parts > 0) {
                read.part_first = (uint8_t)random_below(&random, parts);
                read.part_count = (uint8_t)random_below(&random, parts - read.part_first + 1);
                if (read.part_count == 0) read.part_first = 0;
            }
            *(read.part_count > 0 ? &in_parts : &whole) += 1;
            assert_ok(read_page(&reader, document, &read, &error), error);
            assert_read(&reader, &sample, &read, bytes);
        }
        reader_close(&reader);
        document_close(document);
        store_close(store);
        scratch_empty(&scratch);
    }
    assert_met(in_parts > 500 && whole > 100);
}

static void flip(uint64_t id, uint64_t offset, unsigned bit) {
    char name[40];
    uint8_t byte;
    document_file_name(name, id, "pages");
    int fd = open(scratch_name(&scratch, name), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= (uint8_t)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

/* A flipped bit is found by every read of its part, and by none of the others. */
static void test_damage_is_of_its_part(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 1);
    for (int round = 0; round < 10; round++) {
        struct sample sample = sample_of_parts(&random, false);
        struct store *store = open_store(false, NULL);
        uint64_t id = save(store, &sample, 64 * 3);
        struct document *document = open_document(store, &sample, id, DOCUMENT_READ, 0);
        struct reader reader;
        struct error error;
        reader_open(&reader, &sample);
        const size_t bytes = sample.layout.chunk_bytes, part = document->geometry.part_bytes;
        const uint64_t chunk = random_below(&random, 3), at = random_below(&random, bytes);
        flip(id, page_offset(&document->geometry, 0, 0, chunk) + at, (unsigned)random_below(&random, 8));
        for (uint8_t i = 0; i < document->geometry.part_count; i++) {
            struct page_read read = {.chunk = chunk, .part_first = i, .part_count = 1};
            enum status status = read_page(&reader, document, &read, &error);
            assert_int_equal(status, i == at / part ? STATUS_DOCUMENT : STATUS_OK);
            if (status == STATUS_OK) assert_read(&reader, &sample, &read, bytes);
        }
        struct page_read all = {.chunk = chunk};
        assert_int_equal(read_page(&reader, document, &all, &error), STATUS_DOCUMENT);
        reader_close(&reader);
        document_close(document);
        struct store_match match; /* it is flagged */
        int32_t *tokens = sample_tokens(&sample, 64 * 3);
        assert_ok(
            store_find(store,
                       &(struct store_query){&sample.model, &sample.layout, tokens, 64 * 3, STORE_LIKE_KIND},
                       &match, &error),
            error);
        assert_int_equal(match.document, 0);
        free(tokens);
        store_close(store);
        scratch_empty(&scratch);
    }
}

static void test_reads_that_fail(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 2);
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_EINTR, FAULT_EAGAIN, FAULT_SHORT_ONE,
                                            FAULT_SHORT_HALF};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct sample sample = sample_of_parts(&random, false);
        struct fault_plan plan;
        fault_plan_init(&plan, FAULT_NONE, 0, false, 1u << IO_CALL_READ);
        struct store *store = open_store(false, &plan.faults);
        uint64_t id = save(store, &sample, 64 * 2);
        struct document *document = open_document(store, &sample, id, DOCUMENT_READ, 0);
        struct reader reader;
        struct error error;
        reader_open(&reader, &sample);
        plan.kind = kinds[k];
        plan.first = plan.count;
        struct page_read read = {.chunk = 1, .part_count = 1};
        enum status status = read_page(&reader, document, &read, &error);
        assert_int_equal(plan.hits, 1);
        assert_int_equal(status, kinds[k] == FAULT_EIO ? STATUS_IO : STATUS_OK);
        if (status == STATUS_OK) assert_read(&reader, &sample, &read, sample.layout.chunk_bytes);
        reader_close(&reader);
        document_close(document);
        store_close(store);
        scratch_empty(&scratch);
    }
}

/* The last page loses its last part: the others are still good, and that one is damage. */
static void test_truncation(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 3);
    struct sample sample = sample_of_parts(&random, false);
    struct store *store = open_store(false, NULL);
    uint64_t id = save(store, &sample, 64);
    struct document *document = open_document(store, &sample, id, DOCUMENT_READ, 0);
    const struct geometry *geometry = &document->geometry;
    const uint32_t layer = (uint32_t)geometry->layer_count - 1,
                   head = (uint32_t)geometry->groups[0].kv_head_count - 1;
    const uint8_t last = (uint8_t)(geometry->part_count - 1);
    char name[40];
    document_file_name(name, id, "pages");
    const off_t end = (off_t)(page_offset(geometry, layer, head, 0) + last * geometry->part_bytes);
    assert_int_equal(truncate(scratch_name(&scratch, name), end), 0);
    struct reader reader;
    struct error error;
    reader_open(&reader, &sample);
    struct page_read read = {.layer = layer, .kv_head = head, .part_count = last};
    assert_ok(read_page(&reader, document, &read, &error), error);
    assert_read(&reader, &sample, &read, sample.layout.chunk_bytes);
    read.part_first = last;
    read.part_count = 1;
    assert_int_equal(read_page(&reader, document, &read, &error), STATUS_DOCUMENT);
    reader_close(&reader);
    document_close(document);
    store_close(store);
}

static int64_t catalog_version(void) {
    sqlite3 *database;
    sqlite3_stmt *statement;
    assert_int_equal(sqlite3_open(scratch_name(&scratch, "catalog.db"), &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, "PRAGMA user_version", -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t version = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return version;
}

/* A document of before: read whole, appended to, and what is appended has parts. */
static void test_documents_of_before(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 4);
    for (int round = 0; round < 6; round++) {
        struct sample sample = sample_of_parts(&random, round % 2 == 1);
        struct error error;
        const uint64_t before = 64 * (1 + random_below(&random, 20)) + random_below(&random, 64),
                       after = before + 64 * (1 + random_below(&random, 20));
        struct store *store = open_store(true, NULL);
        uint64_t id = save(store, &sample, before);
        store_close(store);
        assert_int_equal(catalog_version(), round % 2 == 1 ? 3 : 2);
        store = open_store(false, NULL);
        struct document *document = open_document(store, &sample, id, DOCUMENT_READ, 0);
        assert_ok(sample_check(&sample, document, &error), error);
        for (uint64_t chunk = 0; chunk < before / 64; chunk++)
            assert_int_equal(document_page_parts(document, &(struct page_read){.chunk = chunk}), 0);
        document_close(document);
        assert_int_equal(catalog_version(), round % 2 == 1 ? 3 : 2); /* it has only been read */
        document = open_document(store, &sample, id, DOCUMENT_APPEND, after);
        assert_ok(sample_write(&sample, document, before, after, &random, &error), error);
        assert_ok(document_flush(document, &error), error);
        document_close(document);
        assert_int_equal(catalog_version(), 4);
        document = open_document(store, &sample, id, DOCUMENT_READ, 0);
        assert_ok(sample_check(&sample, document, &error), error);
        for (uint64_t chunk = 0; chunk < after / 64; chunk++)
            assert_int_equal(document_page_parts(document, &(struct page_read){.chunk = chunk}) > 0,
                             chunk >= before / 64 && page_is_rows(&document->geometry, 0, 0, chunk));
        document_close(document);
        store_close(store);
        scratch_empty(&scratch);
    }
}

#if defined(__x86_64__)
/* Whether the upper halves of vector registers are in use: XINUSE, where the processor tells. */
static bool upper_halves_are_used(bool *told) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_xsave = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_OSXSAVE) != 0;
    *told = has_xsave && __get_cpuid_count(13, 1, &a, &b, &c, &d) != 0 && (a & 4) != 0;
    if (!*told) return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
    return (a & 4) != 0;
}
#endif

/* What computes them leaves no upper halves of vectors behind, for which code of SSE would wait. */
static void test_vectors_are_left(void **state) {
    (void)state;
#if defined(__x86_64__)
    static int32_t tokens[1024];
    uint8_t *bytes = (uint8_t *)tokens;
    bool told;
    for (size_t i = 0; i < sizeof tokens; i++) bytes[i] = (uint8_t)i;
    static const size_t sizes[] = {16, 240, 241, 1024, 1536, sizeof tokens};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct checksum sum = checksum_of(bytes, sizes[i]);
        assert_false(upper_halves_are_used(&told));
        const struct part_sum part = part_sum_of(bytes, sizes[i]);
        assert_false(upper_halves_are_used(&told));
        bytes[0] ^= sum.bytes[0] ^ part.bytes[0];
    }
    assert_true(prefix_of(tokens) != 0 && !upper_halves_are_used(&told));
    if (!told) skip();
#else
    skip();
#endif
}

int main(void) {
    seed = test_seed(20261123);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts_are_of_the_page, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage_is_of_its_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reads_that_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_truncation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_documents_of_before, set_up, tear_down),
        cmocka_unit_test(test_vectors_are_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
