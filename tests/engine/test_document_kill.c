/* kill -9 while prompts are read, saved, extended and copied: a child answers one prompt after the other and says when
 * each was saved; it ends before its n-th call to the system, page files and catalog alike, and at random moments of
 * the time that it takes.  Then the document saved before is whole, what was said to be saved is found, and every
 * prompt has the answer of a fresh one.
 *
 * LOAM_TEST_SEED repeats a run, LOAM_TEST_FUZZ=1 takes every call. */
#include "testing.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "cache/faulty_vfs.h"
#include "engine/document_rig.h"
#include "engine/documents.h"
#include "platform/clock.h"
#include "seed.h"

enum { SEED = 20261121, POINTS_MIN = 40, STRIDE = 10, MOMENTS = 10 };
#define NEVER UINT64_MAX

/* An engine that keeps inputs measures the disk first, which takes longer than all the rest. */
enum status __wrap_documents_measure(struct documents *documents, uint64_t token_capacity,
                                     struct store_rates *rates, struct error *error);
enum status __wrap_documents_measure(struct documents *documents, uint64_t token_capacity,
                                     struct store_rates *rates, struct error *error) {
    (void)documents, (void)token_capacity, (void)rates;
    return error_set(error, STATUS_IO, "not measured");
}

/* Never returns. */
static void child_answers(struct document_rig *rig, int report, uint64_t kill_at, uint64_t kill_after_ns) {
    static struct rig_answer answer;
    struct fault_plan plan;
    end_at_failure();
    if (kill_after_ns != NEVER) fault_kill_after(kill_after_ns);
    fault_plan_init(&plan, kill_at == NEVER ? FAULT_NONE : FAULT_KILL, kill_at, false, 0);
    faulty_vfs_use(&plan);
    struct plan options = rig->options;
    const struct engine_options faults = {.io_faults = &plan.faults, .sqlite_vfs = FAULTY_VFS};
    for (enum rig_prompt prompt = RIG_FIRST; prompt < RIG_PROMPTS; prompt++) {
        rig_ask(rig, rig->model, &options, &faults, prompt, &answer);
        if (answer.status != STATUS_OK || answer.saved != STATUS_OK) _exit(2);
        const char said = (char)prompt;
        if (write(report, &said, 1) != 1) _exit(3);
    }
    _exit(0);
}

/* The minimum that is reused of a prompt, if these are saved. */
static uint64_t reused_min(const struct document_rig *rig, enum rig_prompt prompt, enum rig_prompt saved) {
    if (prompt <= saved) return rig_reused_max(rig, prompt);
    if (prompt == RIG_LONGER && saved >= RIG_FIRST) return rig_prompt_count(RIG_FIRST);
    return 0;
}

/* Before a call, or after a time, or NEVER.  Returns whether the child died by the signal; *took_ns: how long it
 * lived. */
static bool kill_once(struct document_rig *rig, uint64_t kill_at, uint64_t kill_after_ns, uint64_t *took_ns) {
    int ends[2], status;
    char what[120], said;
    enum rig_prompt saved = RIG_BEFORE;
    document_rig_reset(rig);
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    uint64_t began_ns = clock_ns();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) child_answers(rig, ends[1], kill_at, kill_after_ns);
    close(ends[1]);
    while (read(ends[0], &said, 1) == 1) saved = (enum rig_prompt)said;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    *took_ns = clock_ns() - began_ns;
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("the child ended with %#x", (unsigned)status);
    snprintf(what, sizeof what, "killed at call %lld, after %lld ns", (long long)kill_at,
             (long long)kill_after_ns);
    for (enum rig_prompt prompt = RIG_BEFORE; prompt < RIG_PROMPTS; prompt++) {
        uint64_t rebuilt, reused = rig_ask_clean(rig, prompt, what, &rebuilt),
                          expected_min = reused_min(rig, prompt, saved);
        if (rig->options.rebuilds && expected_min > 0 && rebuilt == 0)
            fail_msg("%s: prompt %d: its inputs were saved, and nothing was computed from them", what,
                     (int)prompt);
        if (reused < expected_min)
            fail_msg("%s: prompt %d: %llu tokens, %llu were saved", what, (int)prompt,
                     (unsigned long long)reused, (unsigned long long)expected_min);
    }
    return killed;
}

static const struct select_method *method_of(enum rig_pages pages) {
    return pages == RIG_INPUTS || pages == RIG_STATES ? &select_all : &select_tree;
}

static void kill_everywhere(enum rig_pages pages) {
    struct document_rig rig;
    struct random random;
    const uint64_t fewer = pages == RIG_STATES || pages == RIG_MIXED ? 2 : 1; /* most of what is called is as in rows */
    uint64_t stride = rig_fuzz() > 0 ? 1 : STRIDE * test_divisor() * fewer, points = 0, took_ns;
    document_rig_open(&rig, method_of(pages), pages);
    random_init(&random, test_seed(SEED));
    for (uint64_t kill_at = random_below(&random, stride); kill_once(&rig, kill_at, NEVER, &took_ns);
         kill_at += stride)
        points++;
    printf("killed at %llu calls\n", (unsigned long long)points);
    assert_met(points >= POINTS_MIN / fewer);
    document_rig_close(&rig);
}

static void kill_at_any_time(enum rig_pages pages) {
    struct document_rig rig;
    struct random random;
    uint64_t rounds = test_part(MOMENTS) * (rig_fuzz() > 0 ? rig_fuzz() : 1), killed = 0, clean_ns, took_ns;
    document_rig_open(&rig, method_of(pages), pages);
    random_init(&random, test_seed(SEED));
    assert_false(kill_once(&rig, NEVER, NEVER, &clean_ns));
    for (uint64_t i = 0; i < rounds || killed == 0; i++)
        if (kill_once(&rig, NEVER, random_below(&random, clean_ns), &took_ns))
            killed++;
        else if (took_ns < clean_ns)
            clean_ns = took_ns; /* it was timed on a machine that had more to do */
    printf("killed %llu times of %llu, in at most %.1f ms\n", (unsigned long long)killed,
           (unsigned long long)rounds, (double)clean_ns * 1e-6);
    document_rig_close(&rig);
}

static void killed_at_any_time(void **state) {
    (void)state;
    kill_at_any_time(RIG_WINDOWS);
    kill_at_any_time(RIG_MIXED);
    kill_at_any_time(RIG_INPUTS);
    kill_at_any_time(RIG_STATES);
}

/* All pages of one layer, those that windows see of the other. */
static void killed_while_saving(void **state) {
    (void)state;
    kill_everywhere(RIG_WINDOWS);
}

static void killed_while_saving_pages_in_both_forms(void **state) {
    (void)state;
    kill_everywhere(RIG_MIXED);
}

/* Documents of inputs beside those of KV, written and read at the same time; each is extended where it ends. */
static void killed_while_saving_inputs(void **state) {
    (void)state;
    kill_everywhere(RIG_INPUTS);
}

/* States beside pages: a commit names other ones than the commit before it. */
static void killed_while_saving_states(void **state) {
    (void)state;
    kill_everywhere(RIG_STATES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_saving),
        cmocka_unit_test(killed_while_saving_pages_in_both_forms),
        cmocka_unit_test(killed_while_saving_inputs),
        cmocka_unit_test(killed_while_saving_states),
        cmocka_unit_test(killed_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
