/* A second engine continues a saved document while the first one is about to open or read it: before every call of the
 * first one that opens or reads a file, once.  (It stands for another process: locks are between open files.)  Both
 * answer as if they were alone, nothing is taken for damage, and the folder is whole afterwards. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/document_rig.h"

/* Prefixes of one text.  With tails, so that a reader's tail is replaced under it. */
static const size_t lengths[] = {140, 200, 250, 300};
enum { SAVED = 140, ASKED = 290, LENGTHS = 4, ANSWERS = RIG_TOKENS + 1 };

struct others {
    struct io_faults faults;
    struct document_rig *rig;
    uint64_t at;            /* the call before which they answer */
    size_t end;             /* they answer lengths[1, end) */
    _Atomic uint64_t calls; /* so far, of all threads */
    _Atomic bool busy;
};

static float answers[ANSWERS][RIG_WIDTH]; /* by the prompt's length: all in RAM */

/* The least bits that differ are the order of sums: other blocks, other partials. */
static void expect_answer(const float *logits, size_t token_count, const char *who, uint64_t at) {
    for (size_t i = 0; i < RIG_WIDTH; i++)
        if (!(fabsf(logits[i] - answers[token_count][i]) < 1e-3F))
            fail_msg("call %llu: %s, %zu tokens: logit %zu is %g, alone %g", (unsigned long long)at, who,
                     token_count, i, (double)logits[i], (double)answers[token_count][i]);
}

static enum status ask(struct document_rig *rig, const struct plan *options,
                       const struct engine_options *faults, size_t token_count, float *result, char *notice,
                       struct error *error) {
    const struct prefill_request request = {.tokens = rig->tokens[RIG_LONGER], .token_count = token_count};
    struct engine *engine;
    struct sequence *sequence;
    const float *logits;
    TRY(engine_create(&engine, rig->model, options, faults, error));
    enum status status = sequence_create(&sequence, engine, error);
    if (status == STATUS_OK) status = engine_prefill(engine, sequence, &request, &logits, error);
    if (status == STATUS_OK) memcpy(result, logits, RIG_WIDTH * sizeof *result);
    if (status == STATUS_OK) snprintf(notice, 512, "%s", sequence_notice(sequence));
    if (status == STATUS_OK) status = sequence_flush(sequence, error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return status;
}

static void expect_asked(struct document_rig *rig, const struct plan *options,
                         const struct engine_options *faults, size_t token_count, const char *who,
                         uint64_t at) {
    float logits[RIG_WIDTH];
    char notice[512];
    struct error error;
    enum status status = ask(rig, options, faults, token_count, logits, notice, &error);
    if (status != STATUS_OK) fail_msg("call %llu: %s: %s", (unsigned long long)at, who, error.message);
    if (strstr(notice, "anew") != NULL) fail_msg("call %llu: %s: %s", (unsigned long long)at, who, notice);
    expect_answer(logits, token_count, who, at);
}

static struct io_fault decide(void *context, enum io_call call, const char *path, uint64_t offset,
                              size_t bytes) {
    (void)offset;
    struct others *others = context;
    const struct io_fault none = {0, bytes};
    if (others->busy || (call != IO_CALL_OPEN && call != IO_CALL_READ) || access(path, F_OK) != 0)
        return none;
    if (others->calls++ != others->at) return none;
    others->busy = true;
    for (size_t i = 1; i < others->end; i++)
        expect_asked(others->rig, &others->rig->options, NULL, lengths[i], "the other", others->at);
    others->busy = false;
    return none;
}

/* Returns how many calls were made. */
static uint64_t run(struct document_rig *rig, uint64_t at, size_t end) {
    struct others others = {.rig = rig, .at = at, .end = end};
    others.faults = (struct io_faults){&others, decide};
    scratch_empty(&rig->scratch);
    expect_asked(rig, &rig->options, NULL, SAVED, "before", at);
    const struct engine_options faults = {.io_faults = &others.faults};
    expect_asked(rig, &rig->options, &faults, ASKED, "this one", at);
    expect_asked(rig, &rig->options, NULL, ASKED, "afterwards", at);
    return others.calls;
}

static void it_grows_at_every_call(const struct select_method *method) {
    struct document_rig rig;
    document_rig_open(&rig, method, RIG_ROWS);
    struct plan alone = rig.options;
    char notice[512];
    struct error error;
    alone.host_bytes = 0;
    alone.disk_directory = NULL;
    assert_ok(ask(&rig, &alone, NULL, ASKED, answers[ASKED], notice, &error), error);
    for (size_t i = 0; i < LENGTHS; i++)
        assert_ok(ask(&rig, &alone, NULL, lengths[i], answers[lengths[i]], notice, &error), error);
    uint64_t calls = 0;
    for (size_t end = 2; end <= LENGTHS; end++)
        for (uint64_t at = 0;; at++) {
            uint64_t made = run(&rig, at, end);
            if (made > calls) calls = made;
            if (made <= at) break;
        }
    printf("select=%s: %llu calls\n", method->name, (unsigned long long)calls);
    assert_true(calls > 10);
    document_rig_close(&rig);
}

static void all(void **state) {
    (void)state;
    it_grows_at_every_call(&select_all);
}

static void tree(void **state) {
    (void)state;
    it_grows_at_every_call(&select_tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all), cmocka_unit_test(tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
