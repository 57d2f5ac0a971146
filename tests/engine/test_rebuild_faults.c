/* Inputs of layers that cannot be read, are damaged, or end early (attention/rebuild.h): K and V are read instead, the
 * logits are the same bit for bit, and one line says which file and why.  Every read and write of the inputs' file
 * fails in turn, and pieces of it are changed, cut off and moved. */
#include "testing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/fault_plan.h"
#include "../platform/scratch.h"
#include "base/random.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "seed.h"

enum {
    PROMPT = 292,
    STEPS = 2,
    CONTEXT = 320,
    WIDTH_MAX = 512,
    FLIPS = 16,
    CUTS = 8,
    FORCED = 3,
    WORKSPACE = 512 << 10
};

struct rig {
    struct device *device;
    struct model *model;
    struct scratch scratch, saved; /* saved: a copy of the folder with the prompt in it */
    struct error error;
    size_t width;
    int32_t tokens[PROMPT + STEPS];
    float want[1 + STEPS][WIDTH_MAX];
    uint8_t *pages; /* owned: the inputs' file as it was written */
    size_t pages_bytes;
};

struct answer {
    struct rebuild_statistics rebuilt;
    char refusal[256], notice[256];
};

/* The prompt and the steps behind it; on_disk false: all KV in memory, and the logits are those that are wanted. */
static void ask(struct rig *rig, bool on_disk, const struct io_faults *faults, struct answer *answer) {
    const struct engine_options options = {.io_faults = faults};
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 1,
                        .batch_size = 96,
                        .segment_size = 192,
                        .k_type = KV_F16,
                        .v_type = KV_F16,
                        .disk_directory = on_disk ? rig->scratch.path : NULL,
                        .document_name = "rebuild",
                        .rebuilds = on_disk};
    struct engine *engine;
    struct sequence *sequence;
    const float *logits;
    if (on_disk) {
        assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error), rig->error);
        plan.host_bytes += WORKSPACE; /* for more than a chunk at once, whose reads would be very many */
    }
    assert_ok(engine_create(&engine, rig->model, &plan, &options, &rig->error), rig->error);
    attention_force_rebuild(engine_attention(engine), FORCED);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = PROMPT};
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig->error), rig->error);
    for (size_t row = 0;; row++) {
        if (!on_disk) memcpy(rig->want[row], logits, rig->width * sizeof *logits);
        assert_memory_equal(logits, rig->want[row], rig->width * sizeof *logits);
        if (row == STEPS) break;
        assert_ok(engine_step(engine, &sequence, &rig->tokens[PROMPT + row], 1, &logits, &rig->error),
                  rig->error);
    }
    memset(answer, 0, sizeof *answer);
    answer->rebuilt = attention_rebuild_statistics(engine_attention(engine));
    if (answer->rebuilt.refusal != NULL)
        snprintf(answer->refusal, sizeof answer->refusal, "%s", answer->rebuilt.refusal);
    snprintf(answer->notice, sizeof answer->notice, "%s", sequence_notice(sequence));
    sequence_truncate(sequence, PROMPT); /* the document stays as it is */
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void pages_path(const struct rig *rig, char path[256]) {
    snprintf(path, 256, "%s/2.pages", rig->scratch.path); /* the second document: the first one has KV */
}

static void write_pages(const struct rig *rig, size_t bytes) {
    char path[256];
    pages_path(rig, path);
    const int file = open(path, O_WRONLY | O_TRUNC);
    assert_true(file >= 0);
    assert_int_equal(write(file, rig->pages, bytes), bytes);
    close(file);
}

static void read_pages(struct rig *rig) {
    char path[256];
    pages_path(rig, path);
    const int file = open(path, O_RDONLY);
    assert_true(file >= 0);
    rig->pages_bytes = (size_t)lseek(file, 0, SEEK_END);
    rig->pages = realloc(rig->pages, rig->pages_bytes);
    assert_non_null(rig->pages);
    assert_int_equal(pread(file, rig->pages, rig->pages_bytes, 0), rig->pages_bytes);
    close(file);
}

/* A saved prompt with its inputs. */
static void save(struct rig *rig) {
    struct answer answer;
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    scratch_create(&rig->saved, SCRATCH_MEMORY);
    ask(rig, true, NULL, &answer);
    assert_true(answer.rebuilt.chunks > 0 && answer.rebuilt.refusals == 0);
    read_pages(rig);
    scratch_copy(&rig->saved, &rig->scratch);
}

static void forget(struct rig *rig) {
    free(rig->pages);
    scratch_destroy(&rig->scratch);
    scratch_destroy(&rig->saved);
}

static void rig_open(struct rig *rig) {
    const struct device_options device = {.thread_count = 1,
                                          .mask = cpu_default()};
    struct tiny_model tiny = tiny_model_default("llama");
    struct answer answer;
    struct random random;
    tiny.type = TENSOR_Q8_0;
    tiny.layer_count = 6; /* more than the least budget holds */
    tiny.hidden_size = 256, tiny.ffn_size = 256;
    tiny.head_count = tiny.kv_head_count = 4, tiny.head_dimension = 64;
    memset(rig, 0, sizeof *rig);
    tiny_model_load(&tiny, "rebuild_faults", &device, &rig->device, &rig->model);
    rig->width = tiny.vocabulary_size;
    assert_true(rig->width <= WIDTH_MAX);
    random_init(&random, 8);
    tiny_model_tokens(&tiny, &random, rig->tokens, PROMPT + STEPS);
    ask(rig, false, NULL, &answer);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* ---- reads that fail ---- */

/* A fault plan for reads of the inputs' file alone. */
static struct io_fault decide_inputs(void *context, enum io_call call, const char *path, uint64_t offset,
                                     size_t bytes) {
    const size_t length = strlen(path);
    (void)offset;
    if (length < 8 || strcmp(path + length - 8, "/2.pages") != 0) return (struct io_fault){0, bytes};
    return fault_plan_decide(context, call, bytes);
}

static bool is_harmless(enum fault_kind kind, bool for_ever) {
    return kind == FAULT_SHORT_HALF || kind == FAULT_SHORT_ONE ||
           (!for_ever && (kind == FAULT_EINTR || kind == FAULT_EAGAIN));
}

/* Returns how many of the reads failed; *reads: all of them. */
static uint64_t fail_read(struct rig *rig, enum fault_kind kind, uint64_t first, bool for_ever) {
    struct fault_plan plan;
    struct answer answer;
    fault_plan_init(&plan, kind, first, for_ever, 1U << IO_CALL_READ);
    const struct io_faults faults = {&plan, decide_inputs};
    ask(rig, true, &faults, &answer);
    const bool failed = plan.hits > 0 && !is_harmless(kind, for_ever);
    if (failed != (answer.rebuilt.refusals + (answer.notice[0] != '\0') > 0))
        fail_msg("%s of read %d%s: %d refusals, notice \"%s\"", fault_name(kind), (int)first,
                 for_ever ? " and after" : "", (int)answer.rebuilt.refusals, answer.notice);
    assert_true(answer.rebuilt.refusals <= 1); /* not asked for again */
    if (answer.rebuilt.refusals > 0) assert_non_null(strstr(answer.refusal, "2.pages"));
    if (!failed) assert_true(answer.rebuilt.chunks > 0);
    return plan.hits;
}

static void every_read_fails(void **state) {
    (void)state;
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_EINTR, FAULT_EAGAIN, FAULT_SHORT_ONE,
                                            FAULT_SHORT_HALF};
    struct rig rig;
    rig_open(&rig);
    save(&rig);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            uint64_t first = 0;
            while (fail_read(&rig, kinds[kind], first, for_ever != 0) > 0) first++;
            assert_true(first > 5);
        }
    forget(&rig);
    rig_close(&rig);
}

/* Keeping ends, the answer does not; what was committed before can be used afterwards. */
static void every_write_fails(void **state) {
    (void)state;
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_ENOSPC};
    struct rig rig;
    rig_open(&rig);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        uint64_t hits = 1;
        for (uint64_t first = 0; hits > 0; first++) {
            struct fault_plan plan;
            struct answer answer;
            fault_plan_init(&plan, kinds[kind], first, kinds[kind] == FAULT_ENOSPC,
                            1U << IO_CALL_OPEN | 1U << IO_CALL_WRITE | 1U << IO_CALL_SYNC |
                                1U << IO_CALL_TRUNCATE);
            const struct io_faults faults = {&plan, decide_inputs};
            scratch_create(&rig.scratch, SCRATCH_MEMORY);
            ask(&rig, true, &faults, &answer);
            hits = plan.hits;
            ask(&rig, true, NULL, &answer);
            assert_int_equal(answer.rebuilt.refusals, 0);
            if (hits == 0) assert_true(first > 3 && answer.rebuilt.chunks > 0);
            scratch_destroy(&rig.scratch);
        }
    }
    rig_close(&rig);
}

/* ---- files that are not what was written ---- */

/* Of a page that no step rebuilds nobody knows; of any other the line names the file. */
static bool damaged(struct rig *rig, size_t bytes) {
    struct answer answer;
    write_pages(rig, bytes);
    ask(rig, true, NULL, &answer);
    assert_true(answer.rebuilt.refusals <= 1);
    if (answer.rebuilt.refusals > 0) assert_non_null(strstr(answer.refusal, "2.pages"));
    scratch_empty(&rig->scratch); /* what is found to be damaged is flagged there */
    scratch_copy(&rig->scratch, &rig->saved);
    read_pages(rig);
    return answer.rebuilt.refusals > 0 || answer.notice[0] != '\0';
}

static void any_byte_is_changed(void **state) {
    (void)state;
    struct rig rig;
    struct random random;
    size_t found = 0;
    random_init(&random, test_seed(20));
    rig_open(&rig);
    save(&rig);
    for (size_t i = 0; i < FLIPS; i++) {
        rig.pages[random_below(&random, (uint32_t)rig.pages_bytes)] ^=
            (uint8_t)(1U << random_below(&random, 8));
        found += damaged(&rig, rig.pages_bytes);
    }
    assert_met(found > FLIPS / 8);
    forget(&rig);
    rig_close(&rig);
}

/* Cut anywhere, and two pages in each other's place. */
static void the_file_is_cut_or_stirred(void **state) {
    (void)state;
    struct rig rig;
    struct random random;
    size_t found = 0;
    random_init(&random, test_seed(21));
    rig_open(&rig);
    save(&rig);
    for (size_t i = 0; i < CUTS; i++)
        found += damaged(&rig, i == 0 ? 0 : random_below(&random, (uint32_t)rig.pages_bytes));
    assert_met(found > CUTS / 4);
    found = 0;
    for (size_t i = 0; i < CUTS; i++) {
        enum { PIECE = 4096 };
        const size_t pieces = rig.pages_bytes / PIECE, a = random_below(&random, (uint32_t)pieces),
                     b = random_below(&random, (uint32_t)pieces);
        uint8_t piece[PIECE];
        memcpy(piece, rig.pages + a * PIECE, PIECE);
        memcpy(rig.pages + a * PIECE, rig.pages + b * PIECE, PIECE);
        memcpy(rig.pages + b * PIECE, piece, PIECE);
        found += damaged(&rig, rig.pages_bytes);
    }
    assert_met(found > CUTS / 4);
    forget(&rig);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_read_fails),
        cmocka_unit_test(every_write_fails),
        cmocka_unit_test(any_byte_is_changed),
        cmocka_unit_test(the_file_is_cut_or_stirred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
