/* Every system call of saving, reopening, extending and copying documents fails, once and from then on, for page files
 * and catalog, while prompts are read and answered.  An answer has the bits of a fresh one, or is rejected with a
 * reason that names a file.  Afterwards the document that was saved before is whole, and so is every other one that is
 * found.
 *
 * LOAM_TEST_SEED repeats a run, LOAM_TEST_FUZZ=1 takes every call instead of every STRIDEth, from one of the first
 * FIRST_MAX on, so that every kind of fault is met. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "cache/faulty_vfs.h"
#include "engine/document_rig.h"
#include "seed.h"

enum { SEED = 20261121, STRIDE = 97, FIRST_MAX = 24 };

struct counts {
    uint64_t runs, hits, answers, unsaved, anew, refused, refused_late; /* late: after the engine was made */
};

static void check_answer(const struct document_rig *rig, enum rig_prompt prompt,
                         const struct rig_answer *answer, const char *what, struct counts *counts) {
    if (answer->status == STATUS_OK) {
        counts->answers++;
        counts->unsaved += answer->saved != STATUS_OK;
        counts->anew += strstr(answer->notice, "computed anew") != NULL || answer->refusals > 0;
        if (!rig_is_right(rig, prompt, answer))
            fail_msg("%s: prompt %d: another answer (%s)", what, (int)prompt, answer->notice);
        if (answer->saved == STATUS_OK) return;
    } else {
        counts->refused++;
        /* A folder that cannot be written, and has nothing for the prompt, refuses it before any work, too. */
        counts->refused_late +=
            answer->opened && strstr(answer->error.message, "nothing begins like the prompt") == NULL;
    }
    enum status status = answer->status != STATUS_OK ? answer->status : answer->saved;
    if (status != STATUS_IO && status != STATUS_DOCUMENT)
        fail_msg("%s: prompt %d: %s: %s", what, (int)prompt, status_name(status), answer->error.message);
    if (strstr(answer->error.message, rig->scratch.path) == NULL)
        fail_msg("%s: prompt %d: no file in '%s'", what, (int)prompt, answer->error.message);
}

struct scenario {
    const struct select_method *method;
    enum rig_pages pages;
    bool is_ample;  /* everything fits in RAM, too */
    uint32_t calls; /* of struct fault_plan */
};

/* Returns whether that many calls were made. */
static bool run(struct document_rig *rig, const struct scenario *scenario, enum fault_kind kind,
                uint64_t first, bool for_ever, struct counts *counts) {
    static struct rig_answer answer;
    struct fault_plan plan;
    char what[120];
    snprintf(what, sizeof what, "seed %llu: %s at call %llu%s%s", (unsigned long long)test_seed(SEED),
             fault_name(kind), (unsigned long long)first, for_ever ? " and after" : "",
             scenario->is_ample ? ", all fits in RAM" : "");
    document_rig_reset(rig);
    fault_plan_init(&plan, kind, first, for_ever, scenario->calls);
    faulty_vfs_use(&plan);
    struct plan options = rig->options;
    const struct engine_options faults = {.io_faults = &plan.faults, .sqlite_vfs = FAULTY_VFS};
    if (scenario->is_ample) options.host_bytes = RIG_AMPLE_BYTES;
    for (enum rig_prompt prompt = RIG_FIRST; prompt < RIG_PROMPTS; prompt++) {
        rig_ask(rig, rig->model, &options, &faults, prompt, &answer);
        check_answer(rig, prompt, &answer, what, counts);
    }
    faulty_vfs_use(NULL);
    counts->runs++;
    counts->hits += plan.hits > 0;
    uint64_t reused = rig_ask_clean(rig, RIG_BEFORE, what, NULL);
    if (reused != rig_reused_max(rig, RIG_BEFORE))
        fail_msg("%s: the document saved before is lost: %llu tokens", what, (unsigned long long)reused);
    for (enum rig_prompt prompt = RIG_FIRST; prompt < RIG_PROMPTS; prompt++)
        (void)rig_ask_clean(rig, prompt, what, NULL);
    return plan.count > first;
}

static struct counts every_call(const struct scenario *scenario) {
    struct document_rig rig;
    struct counts counts = {0};
    struct random random;
    /* Most of what is called is as in rows. */
    const uint64_t fewer = scenario->pages == RIG_STATES ? 8 : scenario->pages != RIG_ROWS ? 2 : 1;
    uint64_t stride = rig_fuzz() > 0 ? 1 : STRIDE * fewer * test_divisor(), calls = 0;
    if (rig_fuzz() == 0) fault_stay_here();
    document_rig_open(&rig, scenario->method, scenario->pages);
    random_init(&random, test_seed(SEED));
    for (enum fault_kind kind = FAULT_EIO; kind < FAULT_KINDS; kind++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            if (kind == FAULT_KILL) continue; /* test_document_kill.c */
            uint64_t first = random_below(&random, min_size(stride, FIRST_MAX));
            while (run(&rig, scenario, kind, first, for_ever != 0, &counts)) first += stride;
            if (first > calls) calls = first;
        }
    document_rig_close(&rig);
    printf(
        "%s, select=%s%s: %llu calls; %llu runs, %llu with a fault: %llu answers, %llu of them not saved, %llu "
        "computed "
        "anew; %llu refused, %llu of them after the opening\n",
        rig.family, scenario->method->name, scenario->pages == RIG_MIXED ? ", pages in both forms" : "",
        (unsigned long long)calls, (unsigned long long)counts.runs, (unsigned long long)counts.hits,
        (unsigned long long)counts.answers, (unsigned long long)counts.unsaved,
        (unsigned long long)counts.anew, (unsigned long long)counts.refused,
        (unsigned long long)counts.refused_late);
    return counts;
}

/* All pages of one layer, those that windows see of the other. */
static void every_call_fails(void **state) {
    (void)state;
    struct counts counts = every_call(&(struct scenario){.method = &select_tree, .pages = RIG_WINDOWS});
    assert_met(counts.hits > 40 && counts.refused > 0 && counts.answers > counts.refused);
}

static void every_call_fails_with_pages_in_both_forms(void **state) {
    (void)state;
    struct counts counts = every_call(&(struct scenario){.method = &select_tree, .pages = RIG_MIXED});
    assert_met(counts.hits > 40 && counts.refused > 0 && counts.answers > counts.refused);
}

static void every_call_fails_with_the_key_index_on_disk(void **state) {
    (void)state;
    struct counts counts = every_call(&(struct scenario){.method = &select_tree, .pages = RIG_INDEX_APART});
    assert_met(counts.hits > 40 && counts.refused > 0 && counts.answers > counts.refused);
}

/* Tokens are chosen in the layers with K and V; the others' states are saved beside the pages. */
static void every_call_fails_with_states(void **state) {
    (void)state;
    struct counts counts = every_call(&(struct scenario){.method = &select_hash, .pages = RIG_STATES});
    assert_met(counts.hits > 10 && counts.refused > 0 && counts.answers > counts.refused);
}

/* If RAM holds the KV, a disk that cannot be written does not prevent the answer, except before any work. */
static void what_cannot_be_written_stays_in_ram(void **state) {
    (void)state;
    struct counts counts = every_call(&(struct scenario){
        .method = &select_all,
        .is_ample = true,
        .calls = 1U << IO_CALL_WRITE | 1U << IO_CALL_SYNC | 1U << IO_CALL_TRUNCATE | 1U << IO_CALL_REMOVE});
    assert_met(counts.hits > 20 && counts.unsaved > 0);
    assert_int_equal(counts.refused_late, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails),
        cmocka_unit_test(every_call_fails_with_pages_in_both_forms),
        cmocka_unit_test(every_call_fails_with_the_key_index_on_disk),
        cmocka_unit_test(every_call_fails_with_states),
        cmocka_unit_test(what_cannot_be_written_stays_in_ram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
