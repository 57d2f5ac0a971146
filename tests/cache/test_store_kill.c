/* Processes that die while they save, and several at once.
 *
 * A child saves documents and reports each flush that returned; SIGKILL ends it before its n-th call to the system, for
 * one n in nine (`./do fuzz`: every one), and at random moments of the time that it takes.  Then: the document saved
 * before is whole, of each new one there is the prefix of some commit, no older than the last that was reported, equal
 * byte for byte, and the writing can be resumed where it ended. */
#include "testing.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/faulty_vfs.h"
#include "cache/store_sample.h"
#include "platform/clock.h"
#include "platform/scratch.h"
#include "seed.h"

enum { BEFORE_TOKENS = 64 * 3 + 7, DOCUMENTS = 2, COMMITS = 5, CALLS_MAX = 10000 };
#define NEVER UINT64_MAX

static const uint64_t commits[COMMITS] = {64, 64 * 2 + 20, 64 * 2 + 21, 64 * 16, 64 * 18 + 1};
static uint64_t seed;

static struct sample new_sample(const struct sample *before, size_t number) {
    return sample_other(before, 1000 + number);
}

/* The child: never returns. */
static void child_save(const struct scratch *scratch, const struct sample *before, int report,
                       uint64_t kill_at, uint64_t kill_after_ns) {
    struct fault_plan plan;
    end_at_failure();
    if (kill_after_ns != NEVER) fault_kill_after(kill_after_ns);
    fault_plan_init(&plan, kill_at == NEVER ? FAULT_NONE : FAULT_KILL, kill_at, false, 0);
    faulty_vfs_use(&plan);
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch->path,
                                          .backend =
                                              kill_at % 2 == 0 ? IO_BACKEND_THREADS : IO_BACKEND_AUTOMATIC,
                                          .faults = &plan.faults,
                                          .sqlite_vfs = FAULTY_VFS,
                                          .staging_bytes = 1 << 20};
    if (store_open(&store, &options, &error) != STATUS_OK) _exit(2);
    for (size_t number = 0; number < DOCUMENTS; number++) {
        struct sample sample = new_sample(before, number);
        struct document *document;
        const struct document_description description = {&sample.model, &sample.layout, "new",
                                                         commits[COMMITS - 1]};
        if (document_create(&document, store, &description, &error) != STATUS_OK) _exit(3);
        for (size_t i = 0; i < COMMITS; i++) {
            if (sample_write(&sample, document, i > 0 ? commits[i - 1] : 0, commits[i], NULL, &error) !=
                STATUS_OK)
                _exit(4);
            if (document_flush(document, &error) != STATUS_OK) _exit(5);
            const uint64_t said[2] = {number, commits[i]};
            if (write(report, said, sizeof said) != sizeof said) _exit(6);
        }
        document_close(document);
    }
    store_close(store);
    _exit(0);
}

static void resume(struct store *store, const struct sample *sample, uint64_t done) {
    struct store_match match;
    struct document *document;
    struct error error;
    int32_t *tokens = sample_tokens(sample, commits[COMMITS - 1]);
    assert_ok(store_find(store,
                         &(struct store_query){&sample->model, &sample->layout, tokens, commits[COMMITS - 1],
                                               STORE_LIKE_KIND},
                         &match, &error),
              error);
    free(tokens);
    assert_int_equal(match.token_count, done);
    assert_ok(document_open(&document, store, match.document, &sample->model, &sample->layout,
                            DOCUMENT_APPEND, commits[COMMITS - 1], &error),
              error);
    assert_ok(sample_write(sample, document, done, commits[COMMITS - 1], NULL, &error), error);
    assert_ok(document_flush(document, &error), error);
    document_close(document);
    uint64_t reused;
    assert_ok(sample_reuse(sample, store, commits[COMMITS - 1], &reused, &error), error);
    assert_int_equal(reused, commits[COMMITS - 1]);
}

static void assert_after(const struct scratch *scratch, const struct sample *before, const uint64_t *durable,
                         const char *what) {
    struct store *store = sample_store_open(scratch->path);
    struct error error = {.message = "not found"};
    uint64_t reused;
    assert_ok(sample_reuse(before, store, 1000, &reused, &error), error);
    if (reused != BEFORE_TOKENS) fail_msg("%s: the document saved before is lost: %s", what, error.message);
    size_t documents = 1;
    for (size_t number = 0; number < DOCUMENTS; number++) {
        struct sample sample = new_sample(before, number);
        assert_ok(sample_reuse(&sample, store, commits[COMMITS - 1], &reused, &error), error);
        bool commit = reused == 0;
        for (size_t i = 0; i < COMMITS; i++) commit = commit || reused == commits[i];
        if (!commit || reused < durable[number])
            fail_msg("%s: document %zu has %llu tokens, %llu were durable (%s)", what, number,
                     (unsigned long long)reused, (unsigned long long)durable[number], error.message);
        documents += reused > 0;
        if (reused > 0 && reused < commits[COMMITS - 1]) resume(store, &sample, reused);
    }
    store_close(store);
    if (scratch_count(scratch) > 2 + 2 * documents) fail_msg("%s: files were left behind", what);
}

/* Before a call, or after a time, or NEVER.  Returns whether the child died by the signal (false: it was done before);
 * *took_ns: how long it lived. */
static bool kill_once(const struct sample *before, uint64_t kill_at, uint64_t kill_after_ns,
                      uint64_t *took_ns) {
    struct scratch scratch;
    struct error error;
    uint64_t id, durable[DOCUMENTS] = {0};
    const uint64_t tokens = BEFORE_TOKENS;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    assert_ok(sample_save(before, store, &tokens, 1, &id, &error), error);
    store_close(store); /* nothing of the store crosses the fork */
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    uint64_t began_ns = clock_ns();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) child_save(&scratch, before, ends[1], kill_at, kill_after_ns);
    close(ends[1]);
    uint64_t said[2];
    while (read(ends[0], said, sizeof said) == sizeof said) durable[said[0]] = said[1];
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    *took_ns = clock_ns() - began_ns;
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("the child ended with %#x", (unsigned)status);
    char what[80];
    snprintf(what, sizeof what, "seed %llu: killed at call %lld, after %lld ns", (unsigned long long)seed,
             (long long)kill_at, (long long)kill_after_ns);
    assert_after(&scratch, before, durable, what);
    scratch_destroy(&scratch);
    return killed;
}

static struct sample make_sample(void) {
    struct random random;
    random_init(&random, seed);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = 2;
    sample.layout.kv_head_count = 1;
    sample.layout.chunk_bytes = 8 * 500;
    sample.layout.key_index_bytes = 48;
    if (seed % 2 == 1) sample_share(&sample, &random);
    if (seed % 4 == 1) page_fractions_keep_first(&sample.layout.fractions);
    return sample;
}

static void test_kill_at_calls(void **state) {
    (void)state;
    struct sample sample = make_sample();
    const char *more = getenv("LOAM_TEST_FUZZ");
    uint64_t stride = more != NULL ? 1 : 9, points = 0, took_ns; /* odd: both backends */
    for (uint64_t kill_at = seed % stride; kill_once(&sample, kill_at, NEVER, &took_ns); kill_at += stride) {
        assert_true(kill_at < CALLS_MAX); /* else something waits by calling again and again */
        points++;
    }
    printf("killed at %llu calls\n", (unsigned long long)points);
    assert_true(points >= 50);
}

/* States of the sample, in place of pages of two forms. */
static struct sample make_sample_with_states(void) {
    struct sample sample = make_sample();
    struct random random;
    random_init(&random, seed + 2);
    sample.layout.tail_bytes = 0;
    sample.layout.fractions = (struct page_fractions){0};
    sample_state(&sample, &random);
    sample.layout.state_bytes = 300000; /* two parts */
    return sample;
}

/* Layers with windows, of which commits have other pages. */
static struct sample make_sample_with_windows(void) {
    struct sample sample = make_sample();
    sample.layout.windows = (struct store_windows){.tokens = 70, .slides = {true}};
    return sample;
}

static void kill_some(struct sample sample, const char *with) {
    const char *more = getenv("LOAM_TEST_FUZZ");
    uint64_t stride = more != NULL ? 1 : 15, points = 0, took_ns;
    for (uint64_t kill_at = seed % stride; kill_once(&sample, kill_at, NEVER, &took_ns); kill_at += stride) {
        assert_true(kill_at < CALLS_MAX);
        points++;
    }
    printf("killed at %llu calls, with %s\n", (unsigned long long)points, with);
    assert_true(points >= 20);
}

/* The same with states, or windows: a commit names new positions, and what it does without may be written over by the
 * next, or is given back. */
static void test_kill_with_positions(void **state) {
    (void)state;
    kill_some(make_sample_with_states(), "states");
    kill_some(make_sample_with_windows(), "windows");
}

static void test_kill_at_any_time(void **state) {
    (void)state;
    struct sample sample = make_sample();
    struct random random;
    random_init(&random, seed + 1);
    const char *more = getenv("LOAM_TEST_FUZZ");
    uint64_t killed = 0, rounds = 20 * (more != NULL ? strtoull(more, NULL, 0) : 1), clean_ns, took_ns;
    assert_false(kill_once(&sample, NEVER, NEVER, &clean_ns));
    for (uint64_t i = 0; i < rounds || killed == 0; i++)
        if (kill_once(&sample, NEVER, random_below(&random, clean_ns), &took_ns))
            killed++;
        else if (took_ns < clean_ns)
            clean_ns = took_ns; /* it was timed on a machine that had more to do */
    printf("killed %llu times of %llu, in at most %.1f ms\n", (unsigned long long)killed,
           (unsigned long long)rounds, (double)clean_ns * 1e-6);
}

/* A process that reads all the time while this one writes, and that tries to write too. */
static void child_read(const struct scratch *scratch, const struct sample *sample, uint64_t id, int go_on) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch->path};
    uint64_t reused, last = 0, rounds = 0;
    end_at_failure();
    if (store_open(&store, &options, &error) != STATUS_OK) _exit(2);
    struct document *document;
    if (document_open(&document, store, id, &sample->model, &sample->layout, DOCUMENT_APPEND, 5000, &error) !=
        STATUS_FULL)
        _exit(3);
    if (strstr(error.message, "is being written by process") == NULL) _exit(4);
    char byte;
    for (; read(go_on, &byte, 1) == 1; rounds++) {
        if (sample_reuse(sample, store, 5000, &reused, &error) != STATUS_OK) _exit(5);
        bool changed =
            reused == 0 && strstr(error.message, "has grown") != NULL; /* while it was read: asked again */
        if (!changed && reused < last) _exit(6);
        if (!changed) last = reused;
    }
    /* The writer is done: now nothing is locked. */
    if (sample_reuse(sample, store, 5000, &reused, &error) != STATUS_OK) _exit(7);
    store_close(store);
    _exit(reused == 5000 && rounds == 49 ? 0 : 8);
}

static void two_processes(struct sample sample) {
    struct scratch scratch;
    struct error error;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    store_close(store);
    int ids[2], go_on[2];
    assert_int_equal(pipe(ids), 0);
    assert_int_equal(pipe(go_on), 0);
    fflush(stdout);
    pid_t child = fork(); /* before there is a thread or a database here */
    assert_true(child >= 0);
    if (child == 0) {
        uint64_t id;
        close(go_on[1]);
        if (read(ids[0], &id, sizeof id) != sizeof id) _exit(1);
        child_read(&scratch, &sample, id, go_on[0]);
    }
    store = sample_store_open(scratch.path);
    struct document *document;
    const struct document_description description = {&sample.model, &sample.layout, "new", 5000};
    assert_ok(document_create(&document, store, &description, &error), error);
    assert_ok(sample_write(&sample, document, 0, 100, NULL, &error), error);
    assert_ok(document_flush(document, &error), error);
    uint64_t id = document_id(document);
    assert_int_equal(write(ids[1], &id, sizeof id), sizeof id);
    for (uint64_t to = 200; to <= 5000; to += 100) {
        assert_int_equal(write(go_on[1], "", 1), 1);
        assert_ok(sample_write(&sample, document, to - 100, to, NULL, &error), error);
        assert_ok(document_flush(document, &error), error);
    }
    close(go_on[1]);
    close(go_on[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("seed %llu: the reader ended with %#x", (unsigned long long)seed, (unsigned)status);
    document_close(document);
    store_close(store);
    close(ids[0]);
    close(ids[1]);
    scratch_destroy(&scratch);
}

static void test_two_processes(void **state) {
    (void)state;
    two_processes(make_sample());
    two_processes(make_sample_with_states());
}

/* What holds a killed writer's files for a moment, here as long as we like: another process that shares them (the open
 * file descriptions, as the kernel's own work does), while the writer is a zombie, and once it is gone. */
static void child_hold(const struct scratch *scratch, const struct sample *sample, int report) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch->path, .backend = IO_BACKEND_THREADS};
    struct document *document;
    const struct document_description description = {&sample->model, &sample->layout, "new", 5000};
    end_at_failure();
    if (store_open(&store, &options, &error) != STATUS_OK) _exit(2);
    if (document_create(&document, store, &description, &error) != STATUS_OK) _exit(3);
    if (sample_write(sample, document, 0, 100, NULL, &error) != STATUS_OK) _exit(4);
    if (document_flush(document, &error) != STATUS_OK) _exit(5);
    uint64_t id = document_id(document);
    pid_t holder = fork();
    if (holder == 0) {
        alarm(60); /* should the test end early */
        pause();
        _exit(0);
    }
    const uint64_t said[2] = {id, (uint64_t)holder};
    if (write(report, said, sizeof said) != sizeof said) _exit(6);
    alarm(60); /* as above */
    pause();
    _exit(7);
}

/* Ends the holder a while later, from a process of its own. */
static pid_t end_later(pid_t holder, unsigned microseconds) {
    fflush(stdout);
    pid_t child = fork();
    if (child != 0) return child;
    usleep(microseconds);
    kill(holder, SIGKILL);
    _exit(0);
}

static void test_killed_writer_lets_go_late(void **state) {
    (void)state;
    enum { LATE = 300000 };
    struct sample sample = make_sample();
    for (int reaped = 0; reaped < 2; reaped++) {
        struct scratch scratch;
        struct error error;
        scratch_create(&scratch, SCRATCH_MEMORY);
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) child_hold(&scratch, &sample, ends[1]);
        uint64_t said[2] = {0};
        assert_int_equal(read(ends[0], said, sizeof said), sizeof said);
        struct store *store = sample_store_open(scratch.path);
        struct document *document;
        double begin = clock_seconds();
        assert_int_equal(document_open(&document, store, said[0], &sample.model, &sample.layout,
                                       DOCUMENT_APPEND, 5000, &error),
                         STATUS_FULL); /* it lives: at once, of the 5 s that a dead one is given */
        print_message("refused after %.3f s\n", clock_seconds() - begin);
        kill(child, SIGKILL);
        siginfo_t ended;
        assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | (reaped ? 0 : WNOWAIT)), 0);
        pid_t ending = end_later((pid_t)said[1], LATE);
        assert_ok(document_open(&document, store, said[0], &sample.model, &sample.layout, DOCUMENT_APPEND,
                                5000, &error),
                  error);
        assert_int_equal(document_token_count(document), 100);
        document_close(document);
        assert_int_equal(waitpid(ending, &status, 0), ending);
        if (!reaped) assert_int_equal(waitpid(child, &status, 0), child);
        store_close(store);
        close(ends[0]);
        close(ends[1]);
        scratch_destroy(&scratch);
    }
}

int main(void) {
    seed = test_seed(20261121);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_calls),
        cmocka_unit_test(test_kill_with_positions),
        cmocka_unit_test(test_kill_at_any_time),
        cmocka_unit_test(test_two_processes),
        cmocka_unit_test(test_killed_writer_lets_go_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
