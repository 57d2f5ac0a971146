/* kill -9 while prompts are read, saved, extended and copied: a child answers one prompt after the other and says when
 * each was saved; it ends before its n-th call to the system, page files and catalog alike.  Then the document saved
 * before is whole, what was said to be saved is found, and every prompt has the answer of a fresh one.
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

enum { POINTS_LEAST = 100, STRIDE = 5 };

/* Never returns. */
static void child_answers(struct document_rig *rig, int report, uint64_t kill_at) {
    static struct rig_answer answer;
    struct fault_plan plan;
    fault_plan_init(&plan, FAULT_KILL, kill_at, false, 0);
    faulty_vfs_use(&plan);
    struct engine_options options = rig->options;
    options.io_faults = &plan.faults;
    options.sqlite_vfs = FAULTY_VFS;
    for (enum rig_prompt prompt = RIG_FIRST; prompt < RIG_PROMPTS; prompt++) {
        rig_ask(rig, rig->model, &options, prompt, &answer);
        if (answer.status != STATUS_OK || answer.saved != STATUS_OK) _exit(2);
        const char said = (char)prompt;
        if (write(report, &said, 1) != 1) _exit(3);
    }
    _exit(0);
}

/* What is reused at least of a prompt, when these are saved. */
static uint64_t reused_least(const struct document_rig *rig, enum rig_prompt prompt, enum rig_prompt saved) {
    if (prompt <= saved) return rig_reused_most(rig, prompt);
    if (prompt == RIG_LONGER && saved >= RIG_FIRST) return rig_prompt_count(RIG_FIRST);
    return 0;
}

/* Returns whether the child died by the signal. */
static bool kill_once(struct document_rig *rig, uint64_t kill_at) {
    int ends[2], status;
    char what[80], said;
    enum rig_prompt saved = RIG_BEFORE;
    document_rig_reset(rig);
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) child_answers(rig, ends[1], kill_at);
    close(ends[1]);
    while (read(ends[0], &said, 1) == 1) saved = (enum rig_prompt)said;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("the child ended with %#x", (unsigned)status);
    snprintf(what, sizeof what, "killed at call %llu", (unsigned long long)kill_at);
    for (enum rig_prompt prompt = RIG_BEFORE; prompt < RIG_PROMPTS; prompt++) {
        uint64_t reused = rig_ask_clean(rig, prompt, what), least = reused_least(rig, prompt, saved);
        if (reused < least)
            fail_msg("%s: prompt %d: %llu tokens, %llu were saved", what, (int)prompt,
                     (unsigned long long)reused, (unsigned long long)least);
    }
    return killed;
}

static void kill_everywhere(enum rig_pages pages) {
    struct document_rig rig;
    struct random random;
    uint64_t stride = rig_fuzz() > 0 ? 1 : STRIDE, points = 0;
    document_rig_open(&rig, &select_tree, pages);
    random_init(&random, rig_seed());
    for (uint64_t kill_at = random_below(&random, stride); kill_once(&rig, kill_at); kill_at += stride)
        points++;
    printf("killed at %llu calls\n", (unsigned long long)points);
    assert_true(points >= POINTS_LEAST);
    document_rig_close(&rig);
}

static void killed_while_saving(void **state) {
    (void)state;
    kill_everywhere(RIG_ROWS);
}

static void killed_while_saving_pages_in_both_forms(void **state) {
    (void)state;
    kill_everywhere(RIG_MIXED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_saving),
        cmocka_unit_test(killed_while_saving_pages_in_both_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
