/* A document as one file: carried to another folder it is the same byte for byte, and exported there the file is, too.
 * Damaged or cut anywhere it is refused with a line, and the folder is as it was; whatever call to the system fails, or
 * ends the process, the document is there whole or not at all. */
#include "testing.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/faulty_vfs.h"
#include "cache/store/parcel.h"
#include "cache/store_sample.h"
#include "platform/scratch.h"
#include "seed.h"

enum { BEFORE_TOKENS = 64 * 2 + 5 };

static uint64_t seed;

/* A file in memory. */
struct parcel_file {
    uint8_t *bytes;
    size_t count;
};

/* Of which so many bytes come at once, and after fails_at of them an error. */
struct feed {
    const uint8_t *bytes;
    size_t count, done, at_once, fails_at;
};

static enum status feed_read(void *context, void *memory, size_t bytes, size_t *read, struct error *error) {
    struct feed *feed = context;
    const size_t left = feed->count - feed->done;
    if (feed->done >= feed->fails_at)
        return error_set_os(error, STATUS_IO, EIO, "feed: reading at %zu", feed->done);
    *read = bytes < left ? bytes : left;
    if (*read > feed->at_once) *read = feed->at_once;
    memcpy(memory, feed->bytes + feed->done, *read);
    feed->done += *read;
    return STATUS_OK;
}

static enum status pack(struct store *store, const uint64_t *ids, size_t count, struct parcel_file *file,
                        struct error *error) {
    struct parcel *parcel;
    *file = (struct parcel_file){0};
    TRY(parcel_open(&parcel, store, ids, count, NULL, error));
    file->bytes = malloc(parcel_bytes(parcel) + 1);
    assert_non_null(file->bytes);
    enum status status = STATUS_OK;
    for (size_t read = 1, step = 1; status == STATUS_OK && read > 0; step = step * 7 % 100003) {
        const size_t left = (size_t)parcel_bytes(parcel) + 1 - file->count;
        status = parcel_read(parcel, file->bytes + file->count, step < left ? step : left, &read, error);
        file->count += read;
    }
    if (status == STATUS_OK) assert_int_equal(file->count, parcel_bytes(parcel));
    parcel_close(parcel);
    return status;
}

static enum status take(struct store *store, const struct parcel_file *file, bool knows_size,
                        struct parcel_content *content, struct error *error) {
    struct feed feed = {file->bytes, file->count, 0, 5000, SIZE_MAX};
    const struct parcel_source source = {"book.loam", knows_size ? file->count : UINT64_MAX, &feed,
                                         feed_read};
    return parcel_take(store, &source, NULL, NULL, content, error);
}

static void count_document(void *context, const struct document_info *info) {
    (void)info;
    ++*(size_t *)context;
}

static size_t documents_in(struct store *store) {
    size_t count = 0;
    struct error error;
    assert_ok(store_list(store, count_document, &count, &error), error);
    return count;
}

static void expect_whole(struct store *store, const struct sample *sample, uint64_t tokens) {
    struct error error = {.message = "not found"};
    uint64_t reused;
    assert_ok(sample_reuse(sample, store, tokens, &reused, &error), error);
    if (reused != tokens)
        fail_msg("seed %llu: %llu of %llu tokens: %s", (unsigned long long)seed, (unsigned long long)reused,
                 (unsigned long long)tokens, error.message);
}

static uint64_t save(const struct sample *sample, struct store *store, uint64_t tokens) {
    uint64_t id;
    struct error error;
    assert_ok(sample_save(sample, store, &tokens, 1, &id, &error), error);
    return id;
}

/* ---- there and back ---- */

static void round_trip(const struct sample *sample, const uint64_t *commits, size_t commit_count) {
    struct scratch from, to;
    struct error error;
    struct parcel_file file, again;
    struct parcel_content content;
    uint64_t id;
    scratch_create(&from, SCRATCH_MEMORY);
    scratch_create(&to, SCRATCH_MEMORY);
    struct store *store = sample_store_open(from.path);
    assert_ok(sample_save(sample, store, commits, commit_count, &id, &error), error);
    assert_ok(pack(store, &id, 1, &file, &error), error);
    store_close(store);
    const uint64_t tokens = commits[commit_count - 1];
    store = sample_store_open(to.path);
    assert_ok(take(NULL, &file, true, &content, &error), error);
    assert_int_equal(content.documents[0].id, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(take(store, &file, i == 0, &content, &error), error);
        assert_int_equal(content.count, 1);
        assert_int_equal(content.documents[0].was_there, i);
        assert_int_equal(content.documents[0].token_count, tokens);
        assert_string_equal(content.documents[0].name, "sample.txt");
        assert_int_equal(documents_in(store), 1); /* not stored twice */
    }
    if (tokens >= 64) expect_whole(store, sample, tokens);
    id = content.documents[0].id;
    assert_ok(store_verify(store, id, &error), error);
    assert_ok(pack(store, &id, 1, &again, &error), error);
    assert_int_equal(again.count, file.count);
    assert_memory_equal(again.bytes, file.bytes, file.count);
    store_close(store);
    free(file.bytes);
    free(again.bytes);
    scratch_destroy(&from);
    scratch_destroy(&to);
}

static void test_round_trips(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed);
    for (int round = 0; round < 15; round++) {
        struct sample sample = sample_random(&random);
        if (round % 3 != 0) sample_share(&sample, &random);
        if (round % 6 == 0) sample_group(&sample, &random);
        if (round % 3 == 0 && sample.layout.fractions.layer_count == 0) sample_state(&sample, &random);
        if (sample.layout.state_bytes == 0 && round % 2 == 0) sample_window(&sample, &random);
        if (round % 3 == 2) page_fractions_keep_first(&sample.layout.fractions);
        const uint64_t first = 1 + random_below(&random, 64 * 18);
        if (round % 3 == 2) sample_share_again(&sample, first, &random);
        uint64_t commits[2] = {first, first + 1 + random_below(&random, 64 * 20)};
        if (round % 4 == 0) commits[1] = (commits[1] + 63) / 64 * 64;
        if (round == 1) commits[0] = 5, commits[1] = 37; /* less than a chunk */
        round_trip(&sample, commits, 2);
    }
    struct sample sample = sample_random(&random); /* more tokens than a block has */
    sample.layout.layer_count = sample.layout.kv_head_count = 1;
    sample.layout.chunk_bytes = 64;
    const uint64_t many = 2 * 16384 + 7;
    round_trip(&sample, &many, 1);
}

/* One with larger pages of its own behind it, as kept inputs are. */
static void test_two_documents(void **state) {
    (void)state;
    struct scratch scratch;
    struct error error;
    struct random random;
    struct parcel_file file;
    struct parcel_content content;
    random_init(&random, seed);
    struct sample first = sample_random(&random), second = sample_other(&first, 77);
    first.layout.chunk_bytes = 4096;
    second.layout.chunk_bytes = 512 << 10; /* more than a write-behind buffer has otherwise */
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    const uint64_t ids[2] = {save(&second, store, 64 * 3 + 1), save(&first, store, 64 * 2)};
    const uint64_t swapped[2] = {ids[1], ids[0]};
    assert_ok(pack(store, swapped, 2, &file, &error), error);
    for (int removed = 0; removed < 4; removed++) {
        for (int i = 0; i < 2; i++)
            if (removed >> i & 1) assert_ok(store_remove(store, swapped[i], &error), error);
        store_close(store);
        store = sample_store_open(scratch.path); /* its buffers are made anew */
        assert_ok(take(store, &file, true, &content, &error), error);
        assert_int_equal(content.count, 2);
        for (int i = 0; i < 2; i++) assert_int_equal(content.documents[i].was_there, !(removed >> i & 1));
        assert_int_equal(documents_in(store), 2);
        expect_whole(store, &first, 64 * 2);
        expect_whole(store, &second, 64 * 3 + 1);
        for (int i = 0; i < 2; i++) { /* the next round finds them under their numbers */
            if (content.documents[i].id == swapped[i]) continue;
            assert_ok(store_remove(store, content.documents[i].id, &error), error);
            store_close(store);
            scratch_empty(&scratch);
            store = sample_store_open(scratch.path);
            assert_int_equal(save(&second, store, 64 * 3 + 1), ids[0]);
            assert_int_equal(save(&first, store, 64 * 2), ids[1]);
            break;
        }
    }
    free(file.bytes);
    store_close(store);
    scratch_destroy(&scratch);
}

static enum status accept(void *context, struct parcel_document *document, struct error *error) {
    if (context == NULL) return error_set(error, STATUS_DOCUMENT, "of another model");
    memcpy(document->fingerprint, context, sizeof document->fingerprint);
    return STATUS_OK;
}

static void test_accepted_as_anothers(void **state) {
    (void)state;
    struct scratch scratch;
    struct error error;
    struct random random;
    struct parcel_file file;
    struct parcel_content content;
    random_init(&random, seed);
    struct sample sample = sample_random(&random), others = sample;
    others.model.fingerprint[3] ^= 1;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    const uint64_t id = save(&sample, store, 100);
    assert_ok(pack(store, &id, 1, &file, &error), error);
    struct feed feed = {file.bytes, file.count, 0, 1 << 20, SIZE_MAX};
    const struct parcel_source source = {"book.loam", file.count, &feed, feed_read};
    assert_int_equal(parcel_take(store, &source, accept, NULL, &content, &error), STATUS_DOCUMENT);
    assert_string_equal(error.message, "of another model");
    assert_int_equal(documents_in(store), 1);
    feed.done = 0;
    assert_ok(parcel_take(store, &source, accept, others.model.fingerprint, &content, &error), error);
    assert_false(content.documents[0].was_there);
    expect_whole(store, &sample, 100);
    expect_whole(store, &others, 100);
    free(file.bytes);
    store_close(store);
    scratch_destroy(&scratch);
}

/* ---- what is not as it was made ---- */

struct rig {
    struct scratch scratch;
    struct store *store;
    struct sample before, sample;
    struct parcel_file file;
    uint64_t tokens;
};

static struct sample small_sample(uint64_t of) {
    struct random random;
    random_init(&random, of);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = 1;
    sample.layout.kv_head_count = 2;
    sample.layout.chunk_bytes = 8 * 300;
    sample.layout.key_index_bytes = 64;
    if (of % 2 == 1) {
        sample_share(&sample, &random);
        sample.layout.tail_bytes = 8 * 600;
    }
    return sample;
}

/* A folder with one document, and the parcel of another. */
static void rig_init(struct rig *rig, uint64_t tokens) {
    struct error error;
    struct scratch from;
    *rig = (struct rig){.sample = small_sample(seed), .tokens = tokens};
    rig->before = sample_other(&rig->sample, 3);
    scratch_create(&from, SCRATCH_MEMORY);
    rig->store = sample_store_open(from.path);
    const uint64_t id = save(&rig->sample, rig->store, tokens);
    assert_ok(pack(rig->store, &id, 1, &rig->file, &error), error);
    store_close(rig->store);
    scratch_destroy(&from);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    rig->store = sample_store_open(rig->scratch.path);
    (void)save(&rig->before, rig->store, BEFORE_TOKENS);
}

static void rig_deinit(struct rig *rig) {
    free(rig->file.bytes);
    if (rig->store != NULL) store_close(rig->store);
    scratch_destroy(&rig->scratch);
}

static void expect_refused(struct rig *rig, const struct parcel_file *file, bool stores, bool knows_size,
                           const char *what, size_t where) {
    struct error error = {.message = ""};
    struct parcel_content content;
    const size_t files = scratch_count(&rig->scratch);
    const enum status status = take(stores ? rig->store : NULL, file, knows_size, &content, &error);
    if (status != STATUS_DOCUMENT || strncmp(error.message, "book.loam: ", 11) != 0 ||
        strstr(error.message, "found") == NULL || strchr(error.message, '\n') != NULL)
        fail_msg("seed %llu, %s at %zu of %zu: %s: \"%s\"", (unsigned long long)seed, what, where,
                 rig->file.count, status_name(status), error.message);
    if (!stores) return;
    assert_int_equal(documents_in(rig->store), 1);
    assert_int_equal(scratch_count(&rig->scratch), files);
}

static void test_every_byte_counts(void **state) {
    (void)state;
    struct rig rig;
    struct random random;
    rig_init(&rig, 64 * 17 + 9);
    random_init(&random, seed + 1);
    uint8_t *bytes = rig.file.bytes;
    size_t rounds = 0;
    for (size_t at = 0; at < rig.file.count; at += at < 1000 ? 1 : 1 + random_below(&random, 997)) {
        const uint8_t change = (uint8_t)(1U << random_below(&random, 8));
        bytes[at] ^= change;
        expect_refused(&rig, &rig.file, rounds % 32 == 0, at % 2 == 0, "a bit changed", at);
        bytes[at] ^= change;
        rounds++;
    }
    struct parcel_content content;
    struct error error;
    assert_ok(take(rig.store, &rig.file, true, &content, &error), error); /* it was the changes */
    expect_whole(rig.store, &rig.sample, rig.tokens);
    expect_whole(rig.store, &rig.before, BEFORE_TOKENS);
    rig_deinit(&rig);
}

static void test_every_length_counts(void **state) {
    (void)state;
    struct rig rig;
    struct random random;
    rig_init(&rig, 64 * 3 + 9);
    random_init(&random, seed + 2);
    const size_t whole = rig.file.count;
    size_t rounds = 0;
    for (size_t length = 0; length < whole; length += length < 1000 ? 1 : 1 + random_below(&random, 211)) {
        const struct parcel_file cut = {rig.file.bytes, length};
        expect_refused(&rig, &cut, rounds % 32 == 0, rounds % 3 == 0, "cut", length);
        rounds++;
    }
    for (size_t length = whole - 40; length < whole; length++) { /* the last block's checksum */
        const struct parcel_file cut = {rig.file.bytes, length};
        expect_refused(&rig, &cut, true, false, "cut", length);
    }
    struct parcel_file longer = {malloc(whole + 1), whole + 1};
    assert_non_null(longer.bytes);
    memcpy(longer.bytes, rig.file.bytes, whole);
    longer.bytes[whole] = 0;
    for (int i = 0; i < 2; i++) expect_refused(&rig, &longer, true, i == 0, "a byte more", whole);
    free(longer.bytes);
    rig_deinit(&rig);
}

/* Blocks of one size, each with the checksum that it had. */
static void test_order_counts(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 64 * 4);
    const size_t page = (size_t)rig.sample.layout.chunk_bytes + 16;
    uint8_t *first = NULL, *copy = malloc(rig.file.count);
    assert_non_null(copy);
    memcpy(copy, rig.file.bytes, rig.file.count);
    struct parcel_file changed = {copy, rig.file.count};
    first = copy + 24 + 16 + 808 + 16 + 64 * 4 * 4 + 16; /* behind header, description, tokens */
    for (size_t i = 0; i < page; i++) {
        const uint8_t byte = first[i];
        first[i] = first[page + i];
        first[page + i] = byte;
    }
    expect_refused(&rig, &changed, true, true, "pages exchanged", (size_t)(first - copy));
    free(copy);
    rig_deinit(&rig);
}

static void test_a_source_that_fails(void **state) {
    (void)state;
    struct rig rig;
    struct random random;
    struct parcel_content content;
    rig_init(&rig, 64 * 3 + 9);
    random_init(&random, seed + 3);
    for (int i = 0; i < 60; i++) {
        struct error error = {.message = ""};
        struct feed feed = {rig.file.bytes, rig.file.count, 0, 700, random_below(&random, rig.file.count)};
        const struct parcel_source source = {"book.loam", UINT64_MAX, &feed, feed_read};
        assert_int_equal(parcel_take(rig.store, &source, NULL, NULL, &content, &error), STATUS_IO);
        assert_int_equal(documents_in(rig.store), 1);
    }
    assert_int_equal(scratch_count(&rig.scratch), 4); /* the catalog, its journal, one document */
    rig_deinit(&rig);
}

/* ---- a damaged document is not exported ---- */

static void test_damage_is_not_exported(void **state) {
    (void)state;
    struct scratch scratch;
    struct error error;
    struct parcel_file file;
    struct sample sample = small_sample(seed);
    scratch_create(&scratch, SCRATCH_MEMORY);
    for (int which = 0; which < 2; which++) {
        struct store *store = sample_store_open(scratch.path);
        const uint64_t id = save(&sample, store, 64 * 18);
        char name[40];
        snprintf(name, sizeof name, "%llu.%s", (unsigned long long)id, which == 0 ? "pages" : "metadata");
        FILE *stream = fopen(scratch_name(&scratch, name), "r+b");
        assert_non_null(stream);
        assert_int_equal(fseek(stream, which == 0 ? -4096 : -64, SEEK_END), 0);
        assert_int_not_equal(fputc(fgetc(stream) ^ 1, stream), EOF);
        assert_int_equal(fseek(stream, which == 0 ? -4096 : -64, SEEK_END), 0);
        assert_int_not_equal(fputc(0xa5, stream), EOF);
        assert_int_equal(fclose(stream), 0);
        const enum status status = pack(store, &id, 1, &file, &error);
        assert_int_equal(status, STATUS_DOCUMENT);
        assert_non_null(strstr(error.message, name));
        free(file.bytes);
        store_close(store);
    }
    scratch_destroy(&scratch);
}

/* ---- room ---- */

static void test_no_room(void **state) {
    (void)state;
    struct rig rig;
    struct error error;
    struct parcel_content content;
    rig_init(&rig, 64 * 40 + 3);
    store_close(rig.store);
    struct store_options options = {
        .directory = rig.scratch.path, .backend = IO_BACKEND_THREADS, .limit_bytes = 800 << 10};
    assert_ok(store_open(&rig.store, &options, &error), error);
    assert_int_equal(take(rig.store, &rig.file, true, &content, &error), STATUS_FULL);
    assert_non_null(strstr(error.message, "of the limit of"));
    assert_int_equal(documents_in(rig.store), 1); /* nothing goes for what will not fit even then */
    expect_whole(rig.store, &rig.before, BEFORE_TOKENS);
    store_close(rig.store);
    options.limit_bytes = 0;
    options.read_only = true;
    assert_ok(store_open(&rig.store, &options, &error), error);
    assert_int_equal(take(rig.store, &rig.file, true, &content, &error), STATUS_IO);
    rig_deinit(&rig);
}

/* Where another document would go for it, and may not. */
static void test_keeps_documents(void **state) {
    enum { STEP = 32 << 10 };
    (void)state;
    struct rig rig;
    struct error error;
    struct parcel_content content;
    enum status status = STATUS_FULL;
    rig_init(&rig, 64 * 40 + 3);
    store_close(rig.store);
    struct store_options options = {
        .directory = rig.scratch.path, .backend = IO_BACKEND_THREADS, .limit_bytes = 800 << 10};
    for (; status == STATUS_FULL; options.limit_bytes += STEP) {
        options.keeps_documents = true;
        assert_ok(store_open(&rig.store, &options, &error), error);
        assert_int_equal(store_check_room(rig.store, options.limit_bytes, &error), STATUS_FULL);
        assert_int_equal(take(rig.store, &rig.file, true, &content, &error), STATUS_FULL);
        assert_int_equal(documents_in(rig.store), 1);
        expect_whole(rig.store, &rig.before, BEFORE_TOKENS);
        store_close(rig.store);
        options.keeps_documents = false;
        assert_ok(store_open(&rig.store, &options, &error), error);
        status = take(rig.store, &rig.file, true, &content, &error);
        if (status == STATUS_FULL) store_close(rig.store);
    }
    assert_int_equal(status, STATUS_OK);
    assert_int_equal(documents_in(rig.store), 1);
    expect_whole(rig.store, &rig.sample, rig.tokens);
    rig_deinit(&rig);
}

/* ---- calls that fail ---- */

static struct store_options faulty_options(const struct scratch *scratch, struct fault_plan *plan,
                                           uint64_t first) {
    return (struct store_options){.directory = scratch->path,
                                  .backend = first % 2 == 0 ? IO_BACKEND_THREADS : IO_BACKEND_AUTOMATIC,
                                  .faults = &plan->faults,
                                  .sqlite_vfs = FAULTY_VFS,
                                  .staging_bytes = 1 << 20};
}

/* The document is there whole, or not at all, and nothing else is left; returns whether it is. */
static bool expect_after(struct rig *rig, const char *what) {
    struct error error = {.message = ""};
    uint64_t reused;
    struct store *store = sample_store_open(rig->scratch.path);
    expect_whole(store, &rig->before, BEFORE_TOKENS);
    assert_ok(sample_reuse(&rig->sample, store, rig->tokens, &reused, &error), error);
    if (reused != 0 && reused != rig->tokens)
        fail_msg("%s: %llu of %llu tokens", what, (unsigned long long)reused,
                 (unsigned long long)rig->tokens);
    store_close(store);
    if (scratch_count(&rig->scratch) > 2 + 2 * (reused > 0 ? 2u : 1u))
        fail_msg("%s: files were left behind", what);
    return reused > 0;
}

/* Back to the one document. */
static void forget(struct rig *rig) {
    scratch_empty(&rig->scratch);
    rig->store = sample_store_open(rig->scratch.path);
    (void)save(&rig->before, rig->store, BEFORE_TOKENS);
    store_close(rig->store);
    rig->store = NULL;
}

/* Whether that many calls were made. */
static bool take_with_fault(struct rig *rig, enum fault_kind kind, uint64_t first, bool for_ever,
                            uint64_t *failures) {
    struct fault_plan plan;
    struct error error = {.message = ""};
    struct parcel_content content;
    char what[80];
    forget(rig);
    fault_plan_init(&plan, kind, first, for_ever, 0);
    faulty_vfs_use(&plan);
    const struct store_options options = faulty_options(&rig->scratch, &plan, first);
    struct store *store;
    enum status status = store_open(&store, &options, &error);
    if (status == STATUS_OK) {
        status = take(store, &rig->file, true, &content, &error);
        store_close(store);
    }
    faulty_vfs_use(NULL);
    snprintf(what, sizeof what, "seed %llu: %s at call %llu%s", (unsigned long long)seed, fault_name(kind),
             (unsigned long long)first, for_ever ? " and after" : "");
    if (status != STATUS_OK) {
        ++*failures;
        if (error.message[0] == '\0' || (status != STATUS_IO && status != STATUS_DOCUMENT))
            fail_msg("%s: %s: \"%s\"", what, status_name(status), error.message);
    }
    const bool there = expect_after(rig, what);
    if (status == STATUS_OK && !there) fail_msg("%s: nothing was said, and nothing is there", what);
    return plan.count > first;
}

static void test_every_call_fails(void **state) {
    (void)state;
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_ENOSPC, FAULT_EINTR, FAULT_SHORT_HALF,
                                            FAULT_EDQUOT};
    struct rig rig;
    uint64_t runs = 0, failures = 0;
    fault_stay_here();
    rig_init(&rig, 64 * 2 + 9);
    store_close(rig.store);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            const uint64_t stride = 7 * test_divisor();
            uint64_t first = (seed + i) % stride;
            for (; take_with_fault(&rig, kinds[i], first, for_ever != 0, &failures); runs++) first += stride;
            assert_true(first > 7);
        }
    printf("%llu runs with a fault, %llu of them failed\n", (unsigned long long)runs,
           (unsigned long long)failures);
    assert_met(failures > runs / 5);
    rig_deinit(&rig);
}

static void test_every_read_fails(void **state) {
    (void)state;
    struct rig rig;
    uint64_t failures = 0, whole = 0;
    rig_init(&rig, 64 * 2 + 9);
    struct error error;
    struct parcel_content content;
    assert_ok(take(rig.store, &rig.file, true, &content, &error), error);
    store_close(rig.store);
    rig.store = NULL;
    for (uint64_t first = 0; whole == 0; first++) {
        struct fault_plan plan;
        struct parcel_file file = {0};
        struct store *store;
        fault_plan_init(&plan, FAULT_EIO, first, false, 0);
        faulty_vfs_use(&plan);
        struct store_options options = faulty_options(&rig.scratch, &plan, first);
        enum status status = store_open(&store, &options, &error);
        if (status == STATUS_OK) {
            status = pack(store, &content.documents[0].id, 1, &file, &error);
            store_close(store);
        }
        faulty_vfs_use(NULL);
        if (status == STATUS_OK) {
            assert_int_equal(file.count, rig.file.count);
            assert_memory_equal(file.bytes, rig.file.bytes, file.count);
        } else {
            assert_true(status == STATUS_IO && error.message[0] != '\0');
            failures++;
        }
        whole += plan.count <= first;
        free(file.bytes);
    }
    assert_true(failures > 10);
    expect_after(&rig, "reading");
    rig_deinit(&rig);
}

/* ---- the process ends ---- */

static void child_take(struct rig *rig, uint64_t kill_at) {
    struct fault_plan plan;
    struct error error;
    struct parcel_content content;
    struct store *store;
    end_at_failure();
    fault_plan_init(&plan, FAULT_KILL, kill_at, false, 0);
    faulty_vfs_use(&plan);
    const struct store_options options = faulty_options(&rig->scratch, &plan, kill_at);
    if (store_open(&store, &options, &error) != STATUS_OK) _exit(2);
    if (take(store, &rig->file, true, &content, &error) != STATUS_OK) _exit(3);
    store_close(store);
    _exit(0);
}

static void test_killed_at_every_call(void **state) {
    (void)state;
    struct rig rig;
    uint64_t points = 0, there = 0;
    rig_init(&rig, 64 * 2 + 9);
    store_close(rig.store);
    bool killed = true;
    for (uint64_t kill_at = seed % 3; killed; kill_at += 3 * test_divisor(), points++) {
        char what[80];
        int status;
        assert_true(kill_at < 10000); /* else something waits by calling again and again */
        forget(&rig);
        fflush(stdout);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) child_take(&rig, kill_at);
        assert_int_equal(waitpid(child, &status, 0), child);
        killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            fail_msg("the child ended with %#x", (unsigned)status);
        snprintf(what, sizeof what, "seed %llu: killed at call %llu", (unsigned long long)seed,
                 (unsigned long long)kill_at);
        there += expect_after(&rig, what);
    }
    printf("killed at %llu calls, after %llu of them the document was there\n", (unsigned long long)points,
           (unsigned long long)there);
    assert_met(points > 20 && there > 0 && there < points);
    rig_deinit(&rig);
}

int main(void) {
    seed = test_seed(20261123);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_two_documents),
        cmocka_unit_test(test_accepted_as_anothers),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_every_length_counts),
        cmocka_unit_test(test_order_counts),
        cmocka_unit_test(test_a_source_that_fails),
        cmocka_unit_test(test_damage_is_not_exported),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_keeps_documents),
        cmocka_unit_test(test_killed_at_every_call), /* before there is a thread */
        cmocka_unit_test(test_every_read_fails),
        cmocka_unit_test(test_every_call_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
