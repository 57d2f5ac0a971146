/* Every call to the system that a save, an extension, a reading and a removal make, page files and catalog alike,
 * fails once and for ever: n is raised until the whole scenario passes.  After each the store is
 * opened without faults: the document saved before is whole, and of the new one exactly what was said to be
 * durable, or a later commit, can be used.  LOAM_TEST_FUZZ=N: N times, and with threads where they like to be.
 * LOAM_TEST_SEED repeats a run; an odd one has pages of two sizes. */
#include "testing.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/faulty_vfs.h"
#include "cache/store_sample.h"
#include "platform/scratch.h"
#include "seed.h"

enum { BEFORE_TOKENS = 64 * 2 + 5 };

static const uint64_t COMMITS[] = {64 * 2 + 10, 64 * 4, 64 * 17 + 3};
static uint64_t seed;

struct acknowledged {
    uint64_t tokens; /* of the new document, by a flush that returned STATUS_OK */
    bool removed;    /* store_remove said so */
    bool may_be_removed;
    bool unsaid; /* a flush returned STATUS_OK although a write or a flush before it had failed */
};

/* Whether what was asked for since the last time went through.  EINTR and EAGAIN are tried again, within. */
static bool went_through(struct fault_plan *plan) {
    const uint32_t lasting = 1U << IO_CALL_WRITE | 1U << IO_CALL_SYNC;
    const uint32_t hit = atomic_exchange(&plan->hit_calls, 0);
    return (hit & lasting) == 0 || plan->kind == FAULT_EINTR || plan->kind == FAULT_EAGAIN;
}

/* Saves in two openings, reads all of it, removes it (when asked).  Stops at the first failure, as a program would. */
static enum status scenario(const struct sample *sample, struct store *store, bool remove,
                            struct fault_plan *plan, struct acknowledged *acknowledged, struct error *error) {
    struct document *document;
    const struct document_description description = {&sample->model, &sample->layout, "new", COMMITS[2]};
    TRY(document_create(&document, store, &description, error));
    uint64_t id = document_id(document);
    enum status status = STATUS_OK;
    (void)went_through(plan);
    for (size_t i = 0; status == STATUS_OK && i < 2; i++) {
        status = sample_write(sample, document, i > 0 ? COMMITS[0] : 0, COMMITS[i], NULL, error);
        if (status == STATUS_OK) status = document_flush(document, error);
        if (status == STATUS_OK) acknowledged->tokens = COMMITS[i];
        if (status == STATUS_OK && !went_through(plan)) acknowledged->unsaid = true;
    }
    document_close(document);
    TRY(status);
    TRY(document_open(&document, store, id, &sample->model, &sample->layout, DOCUMENT_APPEND, COMMITS[2],
                      error));
    (void)went_through(plan); /* when a document is closed it is tidied up, as far as it can be */
    status = sample_write(sample, document, COMMITS[1], COMMITS[2], NULL, error);
    if (status == STATUS_OK) status = document_flush(document, error);
    if (status == STATUS_OK) acknowledged->tokens = COMMITS[2];
    if (status == STATUS_OK && !went_through(plan)) acknowledged->unsaid = true;
    document_close(document);
    TRY(status);
    TRY(document_open(&document, store, id, &sample->model, &sample->layout, DOCUMENT_READ, 0, error));
    status = sample_check(sample, document, error);
    document_close(document);
    TRY(status);
    if (!remove) return STATUS_OK;
    acknowledged->may_be_removed = true;
    TRY(store_remove(store, id, error));
    acknowledged->removed = true;
    return STATUS_OK;
}

static void assert_after(const struct scratch *scratch, const struct sample *before,
                         const struct sample *sample, const struct acknowledged *acknowledged,
                         const char *what) {
    struct store *store = sample_store_open(scratch->path);
    struct error error = {.message = "not found"};
    uint64_t reused;
    assert_ok(sample_reuse(before, store, 1000, &reused, &error), error);
    if (reused != BEFORE_TOKENS) fail_msg("%s: the document saved before is lost: %s", what, error.message);
    assert_ok(sample_reuse(sample, store, COMMITS[2], &reused, &error), error);
    bool commit = reused == 0 || reused == COMMITS[0] || reused == COMMITS[1] || reused == COMMITS[2];
    if (!commit || (!acknowledged->may_be_removed && reused < acknowledged->tokens) ||
        (acknowledged->removed && reused > 0))
        fail_msg("%s: %llu tokens, %llu were durable (%s)", what, (unsigned long long)reused,
                 (unsigned long long)acknowledged->tokens, error.message);
    store_close(store);
    size_t documents = reused > 0 ? 2 : 1;
    if (scratch_count(scratch) > 2 + 2 * documents) fail_msg("%s: files were left behind", what);
}

/* `./do test` has an odd and an even seed, each with one of STRIDE calls and both backends; `./do fuzz` makes all. */
enum { SEEDS = 2, STRIDE = 3 * SEEDS };

static struct scratch saved; /* a folder in which `before` is saved: where every run begins */

static void save_before(const struct sample *before) {
    const uint64_t tokens = BEFORE_TOKENS;
    struct error error;
    uint64_t id;
    scratch_create(&saved, SCRATCH_MEMORY);
    struct store *store = sample_store_open(saved.path);
    assert_ok(sample_save(before, store, &tokens, 1, &id, &error), error);
    store_close(store);
}

/* Returns whether that many calls were made. */
static bool run(const struct sample *before, const struct sample *sample, enum fault_kind kind,
                uint64_t first, bool for_ever, bool remove, uint64_t *failures) {
    struct scratch scratch;
    struct store *store;
    struct error error = {.message = ""};
    scratch_create(&scratch, SCRATCH_MEMORY);
    scratch_copy(&scratch, &saved);
    struct fault_plan plan;
    fault_plan_init(&plan, kind, first, for_ever, 0);
    faulty_vfs_use(&plan);
    const struct store_options options = {.directory = scratch.path,
                                          .backend = (first / SEEDS + seed / 2) % 2 == 0 ? IO_BACKEND_THREADS
                                                                                 : IO_BACKEND_AUTOMATIC,
                                          .faults = &plan.faults,
                                          .sqlite_vfs = FAULTY_VFS,
                                          .staging_bytes = 1 << 20};
    struct acknowledged acknowledged = {0};
    enum status status = store_open(&store, &options, &error);
    if (status == STATUS_OK) {
        status = scenario(sample, store, remove, &plan, &acknowledged, &error);
        store_close(store);
    }
    faulty_vfs_use(NULL);
    char what[80];
    snprintf(what, sizeof what, "seed %llu: %s at call %llu%s", (unsigned long long)seed, fault_name(kind),
             (unsigned long long)first, for_ever ? " and after" : "");
    if (acknowledged.unsaid) fail_msg("%s: what was to last failed, and the flush said nothing", what);
    if (status != STATUS_OK) {
        *failures += 1;
        if (error.message[0] == '\0' || (status != STATUS_IO && status != STATUS_DOCUMENT))
            fail_msg("%s: %s: \"%s\"", what, status_name(status), error.message);
    }
    assert_after(&scratch, before, sample, &acknowledged, what);
    scratch_destroy(&scratch);
    return plan.count > first;
}

static void every_call(bool all) {
    const uint64_t stride = (all ? 1 : STRIDE) * test_divisor();
    struct random random;
    random_init(&random, seed);
    struct sample sample = sample_random(&random), before;
    sample.layout.layer_count = 1;
    sample.layout.kv_head_count = 2;
    sample.layout.chunk_bytes = 4096;
    sample.layout.key_index_bytes = 64;
    if (seed % 2 == 1) sample_share(&sample, &random);
    if (seed % 4 == 1) page_fractions_keep_first(&sample.layout.fractions);
    before = sample_other(&sample, 3);
    uint64_t runs = 0, failures = 0;
    save_before(&before);
    for (enum fault_kind kind = FAULT_EIO; kind < FAULT_KINDS; kind++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            if (kind == FAULT_KILL) continue; /* test_store_kill.c */
            uint64_t first = seed % stride, failed = failures;
            for (; run(&before, &sample, kind, first, for_ever != 0, for_ever == 0, &failures); runs++)
                first += stride;
            assert_true(first > (kind < FAULT_KILL ? 100 : 10));
            if (kind == FAULT_CLOSE) /* everything had been flushed */
                assert_int_equal(failures, failed);
            else if (kind > FAULT_KILL && for_ever != 0)
                assert_met(failures > failed);
        }
    printf("%llu runs with a fault, %llu of them failed\n", (unsigned long long)runs,
           (unsigned long long)failures);
    assert_met(failures > runs / 5);
    scratch_destroy(&saved);
}

static void test_every_call(void **state) {
    (void)state;
    const char *more = getenv("LOAM_TEST_FUZZ");
    if (more == NULL) fault_stay_here();
    for (uint64_t i = more != NULL ? strtoull(more, NULL, 0) : 1; i > 0; i--) {
        every_call(more != NULL);
        seed++;
    }
}

int main(void) {
    seed = test_seed(20261121);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
