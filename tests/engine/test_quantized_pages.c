/* The fraction of pages in 4 bits: the balance of a layer, by hand and by properties of its parts; the measurement;
 * and documents, which keep their fractions. */
#include "lab/methods/methods.h"
#include "plan/quantized_pages.h"

#include "seed.h"
#include "testing.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/fault_plan.h"
#include "platform/scratch.h"

enum { LAYERS = 2, PROMPT = 1000, SHORT = 700, CONTEXT = 2048 };

/* ---- the balance ---- */

/* 1B shape at 32K, keep 2,048, an eighth in RAM, on the disk of decision 0012. */
static const struct page_work usual = {.layer_count = 16,
                                       .kv_head_count = 8,
                                       .thread_count = 2,
                                       .rows_bytes = 16384,
                                       .quantized_bytes = 4864,
                                       .chunks = 512,
                                       .kept = 32};
static const struct page_costs disk = {
    .disk = {.page_seconds = 17e-6, .tail_seconds = 25e-6, .alone_seconds = 100e-6},
    .rows_attend = 1.7e-6,
    .quantized_attend = 1.7e-6,
    .decode = 2.5e-6};

enum { STEPS = 256 };

static bool is_near(double found, double expected) { return fabs(found - expected) <= 1.01 / STEPS; }

/* If RAM holds nothing it is the closed form. */
static void balance_by_hand(void **state) {
    (void)state;
    /* 256 pages of 25 us wait for 0.22 ms of attention: nothing hides, and all are in 4 bits. */
    assert_true(quantized_pages_fraction(&disk, &usual, 3) == 1);
    /* Behind a layer of 5 ms: 0.1 + 6.4 ms of reading, 4 bits save 8 us a page and cost nothing. */
    struct page_costs ahead = disk;
    ahead.layer = 5e-3;
    double late = 100e-6 + 256 * 25e-6 - (256 * 1.7e-6 / 2 + 5e-3);
    assert_true(is_near(quantized_pages_fraction(&ahead, &usual, 3), late / (256 * 8e-6)));
    /* A layer that attends to everything decodes what is in 4 bits, all 4,096 chunks. */
    struct page_work dense = usual;
    dense.dense_layers = 1;
    ahead.layer = 85e-3;
    late = 100e-6 + 4096 * 25e-6 - (4096 * 1.7e-6 / 2 + 85e-3);
    double found = quantized_pages_fraction(&ahead, &dense, 0);
    assert_true(found > 0.1 && found < 0.9 && is_near(found, late / (4096 * 8e-6 + 4096 * 2.5e-6)));
    assert_true(quantized_pages_fraction(&ahead, &dense, 1) == 0); /* it hides */
}

/* Seconds of a layer at a fraction, with RAM. */
static double seconds_at(const struct page_costs *costs, const struct page_work *work, double x) {
    double slot = (16384 * (1 - x) + 4864 * x) / 16384, missed = 256 * fmax(1 - work->held / slot, 0);
    double read = missed * (25e-6 * (1 - x) + 17e-6 * x) + (missed > 0 ? 100e-6 : 0);
    double compute = costs->layer + 128 * (1.7e-6 + fmax(costs->quantized_attend - 1.7e-6, 0) * x);
    return fmax(read, compute);
}

static void balance_with_ram_is_the_min(void **state) {
    (void)state;
    size_t between = 0;
    for (int held = 0; held <= 10; held++)
        for (int layer = 0; layer <= 12; layer++)
            for (int slower = 0; slower < 2; slower++) {
                struct page_costs costs = disk;
                struct page_work work = usual;
                work.held = held * 0.1;
                costs.layer = layer * 0.5e-3;
                costs.quantized_attend += slower * 20e-6;
                double share = quantized_pages_fraction(&costs, &work, 0),
                       seconds = seconds_at(&costs, &work, share);
                for (int step = 0; step <= STEPS; step++) {
                    double other = seconds_at(&costs, &work, (double)step / STEPS);
                    assert_true(seconds <= other * (1 + 1e-6));
                    if ((double)step / STEPS < share) assert_true(seconds < other); /* no more than needed */
                }
                between += share > 0 && share < 1;
                if (held == 10) assert_true(share == 0); /* nothing is read */
            }
    assert_true(between > 30);
}

static void balance_by_its_parts(void **state) {
    (void)state;
    struct page_costs costs = disk;
    struct page_work work = usual;
    work.held = 0.125;
    costs.layer = 4e-3;
    double share = quantized_pages_fraction(&costs, &work, 0);
    assert_true(share > 0.2 && share < 0.8);
    costs.disk.tail_seconds *= 1.1; /* a slower disk */
    costs.disk.page_seconds *= 1.1;
    assert_true(quantized_pages_fraction(&costs, &work, 0) > share);
    costs = disk;
    costs.layer = 5e-3; /* more to hide under */
    assert_true(quantized_pages_fraction(&costs, &work, 0) < share);
    costs = disk;
    costs.layer = 4e-3;
    costs.quantized_attend = 5e-6; /* 4 bits that cost something */
    assert_true(quantized_pages_fraction(&costs, &work, 0) < share);
    costs.quantized_attend = 1e-6; /* and that cost less than nothing are not paid for */
    assert_true(quantized_pages_fraction(&costs, &work, 0) == share);
    work.held = 0.2; /* more RAM */
    assert_true(quantized_pages_fraction(&costs, &work, 0) < share);
    work.held = 0.125;
    costs.disk.tail_seconds = 1e-6; /* all of it hides: f16 */
    costs.disk.page_seconds = 0.7e-6;
    assert_true(quantized_pages_fraction(&costs, &work, 0) == 0);
    /* A disk to which pages are all one: 4 bits save misses. */
    costs = disk;
    costs.disk.page_seconds = costs.disk.tail_seconds;
    assert_true(quantized_pages_fraction(&costs, &work, 0) == 1);
}

static unsigned sum_of(const struct page_fractions *fractions) {
    unsigned sum = 0;
    for (size_t i = 0; i < fractions->layer_count; i++) sum += fractions->sixteenths[i];
    return sum;
}

static void sensitive_layers_have_less(void **state) {
    (void)state;
    struct page_costs costs = disk;
    struct page_work work = usual;
    struct page_fractions even, uneven;
    float sensitivity[16];
    costs.layer = 5.5e-3;
    for (size_t i = 0; i < 16; i++) sensitivity[i] = i < 4 ? 0.2F : 0.1F;
    quantized_pages_choose(&costs, &work, &even);
    work.sensitivity = sensitivity;
    quantized_pages_choose(&costs, &work, &uneven);
    assert_int_equal(even.layer_count, 16);
    assert_true(sum_of(&even) > 16 * 4 && sum_of(&even) < 16 * 12);
    assert_true(sum_of(&uneven) + 1 >= sum_of(&even) && sum_of(&uneven) <= sum_of(&even) + 1);
    for (size_t i = 0; i < 4; i++) assert_true(uneven.sixteenths[i] < even.sixteenths[i]);
    for (size_t i = 4; i < 16; i++) assert_true(uneven.sixteenths[i] >= even.sixteenths[i]);
}

/* ---- the measurement ---- */

static void it_measures(void **state) {
    (void)state;
    struct scratch scratch;
    struct store *store;
    struct error error;
    struct page_costs costs;
    struct kv_layout kv;
    struct fault_plan plan;
    kv_layout_init(&kv, KV_F16, KV_F16, 64, 64);
    const struct store_layout layout = {
        .layer_count = 1, .kv_head_count = 1, .chunk_bytes = 4864, .tail_bytes = 16384};
    scratch_create(&scratch, SCRATCH_DISK);
    fault_plan_init(&plan, FAULT_NONE, 0, false, 0);
    const struct store_options options = {.directory = scratch.path, .faults = &plan.faults};
    assert_ok(store_open(&store, &options, &error), error);
    const struct page_sample sample = {store, &layout, 1 << 16, 1 << 20, &kv, 4};
    size_t files = scratch_count(&scratch);
    uint64_t before = plan.written_bytes;
    assert_ok(quantized_pages_measure(&costs, &sample, &error), error);
    const double found[] = {costs.disk.page_seconds, costs.disk.tail_seconds, costs.disk.alone_seconds,
                            costs.rows_attend,       costs.quantized_attend,  costs.decode};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) assert_true(found[i] > 1e-9 && found[i] < 1);
    assert_int_equal(plan.written_bytes - before, 1 << 20);
    assert_int_equal(scratch_count(&scratch), files);
    print_message("a page in %.1f us, in 4 bits in %.1f\n", costs.disk.tail_seconds * 1e6,
                  costs.disk.page_seconds * 1e6);
    /* Every call of it fails once: it says so, and leaves nothing. */
    for (uint64_t first = 0;; first++) {
        plan.count = plan.hits = 0;
        plan.kind = FAULT_EIO;
        plan.first = first;
        enum status status = quantized_pages_measure(&costs, &sample, &error);
        if (plan.hits > 0) assert_int_equal(status, STATUS_IO);
        assert_true(scratch_count(&scratch) <= files + 1);
        if (first > 20) break;
    }
    plan.kind = FAULT_NONE;
    assert_ok(quantized_pages_measure(&costs, &sample, &error), error);
    assert_int_equal(scratch_count(&scratch), files);
    store_close(store);
    /* Where there is no space for the document there is none for the measurement either. */
    const struct store_options limited = {
        .directory = scratch.path, .faults = &plan.faults, .limit_bytes = 4 << 20};
    assert_ok(store_open(&store, &limited, &error), error);
    const struct page_sample large = {store, &layout, 1 << 16, 1 << 20, &kv, 4};
    before = plan.written_bytes;
    assert_int_equal(quantized_pages_measure(&costs, &large, &error), STATUS_FULL);
    assert_int_equal(plan.written_bytes, before);
    const struct page_sample small = {store, &layout, 1 << 12, 1 << 20, &kv, 4};
    assert_ok(quantized_pages_measure(&costs, &small, &error), error);
    assert_true(plan.written_bytes - before <= 1 << 20);
    store_close(store);
    scratch_destroy(&scratch);
}

/* ---- documents ---- */

struct rig {
    struct device *device;
    struct model *model;
    int32_t tokens[PROMPT], others[PROMPT];
    struct scratch scratch;
    struct error error;
    struct plan options;
};

static void rig_open(struct rig *rig) {
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.head_dimension = 32;
    tiny.layer_count = LAYERS;
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    tiny_model_load(&tiny, "share", &device, &rig->device, &rig->model);
    random_init(&random, test_seed(5));
    tiny_model_tokens(&tiny, &random, rig->tokens, PROMPT);
    tiny_model_tokens(&tiny, &random, rig->others, PROMPT);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    rig->options = (struct plan){.context_size = CONTEXT,
                                 .sequence_capacity = 1,
                                 .select = select_options_default(),
                                 .disk_directory = rig->scratch.path,
                                 .quantized_pages = true,
                                 .mixes_pages = true};
    rig->options.select.method = &select_quest;
    rig->options.select.keep = (struct select_keep){.tokens = 160};
    assert_ok(plan_host_bytes_min(&rig->options, &rig->model->config, &rig->options.host_bytes, &rig->error),
              rig->error);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
    scratch_destroy(&rig->scratch);
}

/* Prefills a prompt in an engine that would choose `chosen`; gives the tokens that were saved, and the fractions. */
static enum status ask(struct rig *rig, struct page_fractions chosen, const int32_t *tokens, size_t count,
                       uint64_t *reused, struct page_fractions *fractions) {
    struct engine *engine;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = tokens, .token_count = count};
    rig->options.fractions = chosen;
    assert_ok(engine_create(&engine, rig->model, &rig->options, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    enum status status = engine_prefill(engine, sequence, &request, NULL, &rig->error);
    *reused = sequence_reused_tokens(sequence);
    *fractions = *sequence_fractions(sequence);
    if (status == STATUS_OK) assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    assert_true(engine_tier_statistics(engine).host_bytes <= rig->options.host_bytes);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return status;
}

static void assert_fractions(const struct page_fractions *found, struct page_fractions expected) {
    assert_memory_equal(found, &expected, sizeof expected);
}

static const struct page_fractions then = {.layer_count = LAYERS, .sixteenths = {3, 14}},
                                   now = {.layer_count = LAYERS, .sixteenths = {16, 0}};

/* A document is used, continued and copied with its own fractions; a new one has the engine's. */
static void a_document_keeps_its_fractions(void **state) {
    (void)state;
    struct rig rig = {0};
    struct page_fractions fractions;
    uint64_t reused;
    rig_open(&rig);
    assert_ok(ask(&rig, then, rig.tokens, SHORT, &reused, &fractions), rig.error);
    assert_int_equal(reused, 0);
    assert_fractions(&fractions, then);
    assert_ok(ask(&rig, now, rig.tokens, PROMPT, &reused, &fractions), rig.error); /* continues the document */
    assert_int_equal(reused, SHORT);
    assert_fractions(&fractions, then);
    assert_ok(ask(&rig, now, rig.tokens, PROMPT, &reused, &fractions), rig.error);
    assert_int_equal(reused, PROMPT - 1);
    assert_fractions(&fractions, then);
    assert_ok(ask(&rig, now, rig.others, SHORT, &reused, &fractions), rig.error);
    assert_int_equal(reused, 0);
    assert_fractions(&fractions, now);
    memcpy(rig.others, rig.tokens, 640 * sizeof *rig.others); /* departs, and is saved with what it shares */
    assert_ok(ask(&rig, now, rig.others, PROMPT, &reused, &fractions), rig.error);
    assert_int_equal(reused, 640);
    assert_fractions(&fractions, then);
    assert_ok(ask(&rig, now, rig.others, PROMPT, &reused, &fractions), rig.error);
    assert_int_equal(reused, PROMPT - 1);
    assert_fractions(&fractions, then);
    rig.options.mixes_pages = false; /* q4 */
    struct engine *engine;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig.tokens, .token_count = PROMPT};
    assert_ok(engine_create(&engine, rig.model, &rig.options, NULL, &rig.error), rig.error);
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig.error), rig.error);
    assert_int_equal(sequence_reused_tokens(sequence), 0);
    assert_null(sequence_fractions(sequence));
    sequence_destroy(sequence);
    engine_destroy(engine);
    rig_close(&rig);
}

/* What an engine of rig.options has of the prompt, and its logits. */
static uint64_t answer(struct rig *rig, const int32_t *tokens, size_t count, float *logits) {
    struct engine *engine;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = tokens, .token_count = count};
    const float *found;
    assert_ok(engine_create(&engine, rig->model, &rig->options, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, &found, &rig->error), rig->error);
    memcpy(logits, found, rig->model->config.vocabulary_size * sizeof *logits);
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    const uint64_t reused = sequence_reused_tokens(sequence);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return reused;
}

/* A document without pages in 4 bits has fractions of zero: it is opened, continued or departed from, and answers as
 * where pages are not mixed.  Only fixed fractions other than zero reject it. */
static void a_document_in_f16_is_opened(void **state) {
    (void)state;
    static const struct select_method *const savers[] = {&select_all,
                                                         &select_quest}; /* other key index, and the same */
    static const struct page_fractions none = {.layer_count = LAYERS};
    float exact[256], mixed_logits[256], unused[256];
    for (size_t i = 0; i < 4; i++) {
        const bool departs = i % 2 == 1;
        struct rig rig = {0};
        struct page_fractions fractions;
        uint64_t reused;
        rig_open(&rig);
        assert_true(rig.model->config.vocabulary_size <= 256);
        if (departs) memcpy(rig.others, rig.tokens, 640 * sizeof *rig.others);
        rig.others[640] = rig.tokens[640] == 1 ? 2 : 1;
        const int32_t *longer = departs ? rig.others : rig.tokens;
        const uint64_t known = departs ? 640 : SHORT;
        const struct plan mixed = rig.options;
        struct plan rows = mixed, saves;
        rows.quantized_pages = rows.mixes_pages = false;
        rows.host_bytes *= 2;
        saves = rows;
        saves.select.method = savers[i / 2];
        if (i / 2 == 0) saves.select.keep = (struct select_keep){.tokens = UINT64_MAX};
        for (int mixes = 0; mixes < 2; mixes++) { /* each on a document of its own */
            scratch_empty(&rig.scratch);
            rig.options = saves;
            assert_int_equal(answer(&rig, rig.tokens, SHORT, unused), 0);
            rig.options = mixes ? mixed : rows;
            assert_int_equal(answer(&rig, longer, PROMPT, mixes ? mixed_logits : exact), known);
        }
        assert_memory_equal(mixed_logits, exact, rig.model->config.vocabulary_size * sizeof *exact);
        assert_ok(ask(&rig, now, longer, PROMPT, &reused, &fractions), rig.error);
        assert_true(reused == PROMPT - 1 && memcmp(&fractions, &none, sizeof none) == 0);
        rig.options.fixes_fractions = true;
        assert_ok(ask(&rig, (struct page_fractions){0}, longer, PROMPT, &reused, &fractions), rig.error);
        assert_true(reused == PROMPT - 1 && memcmp(&fractions, &none, sizeof none) == 0);
        rig.options.quantized_of_16 = 4;
        assert_ok(ask(&rig, (struct page_fractions){0}, longer, PROMPT, &reused, &fractions), rig.error);
        assert_true(reused == 0 && fractions.sixteenths[0] == 4);
        rig_close(&rig);
    }
}

/* A prompt too short to measure is in 4 bits; in an engine that measures, a document keeps its fractions, too. */
static void short_prompts_are_not_measured(void **state) {
    (void)state;
    struct rig rig = {0};
    struct page_fractions fractions;
    uint64_t reused;
    rig_open(&rig);
    assert_ok(ask(&rig, (struct page_fractions){0}, rig.tokens, SHORT, &reused, &fractions), rig.error);
    assert_fractions(&fractions, (struct page_fractions){
                                     .layer_count = LAYERS, .sixteenths = {16, 16}, .first_is_rows = true});
    assert_ok(ask(&rig, then, rig.others, SHORT, &reused, &fractions), rig.error);
    assert_ok(ask(&rig, (struct page_fractions){0}, rig.others, PROMPT, &reused, &fractions), rig.error);
    assert_int_equal(reused, SHORT);
    assert_fractions(&fractions, then);
    rig_close(&rig);
}

/* The first 64 tokens of a text stay exact where all pages are in 4 bits, and only they. */
static void first_pages_are_exact(void **state) {
    (void)state;
    static const size_t lengths[] = {100, 200}; /* one full page, and three */
    float exact[256], logits[256];
    for (size_t i = 0; i < 2; i++) {
        struct rig rig = {0};
        rig_open(&rig);
        assert_true(rig.model->config.vocabulary_size <= 256);
        const size_t bytes = rig.model->config.vocabulary_size * sizeof *exact;
        rig.options.fixes_fractions = true;
        for (uint8_t quantized = 0; quantized <= 16; quantized += 16) {
            float *found = quantized == 0 ? exact : logits;
            rig.options.quantized_of_16 = quantized;
            assert_int_equal(answer(&rig, rig.tokens, lengths[i], found), 0);
            assert_int_equal(answer(&rig, rig.tokens, lengths[i], found), lengths[i] - 1); /* from the disk */
        }
        assert_true((memcmp(logits, exact, bytes) == 0) == (i == 0));
        rig_close(&rig);
    }
}

/* A document of before, whose first pages are in 4 bits, keeps them so and is read and continued as it is. */
static void first_pages_of_before_stay(void **state) {
    (void)state;
    static const struct page_fractions all = {.layer_count = LAYERS, .sixteenths = {16, 16}};
    struct rig rig = {0};
    struct page_fractions fractions;
    uint64_t reused;
    rig_open(&rig);
    assert_ok(ask(&rig, all, rig.tokens, SHORT, &reused, &fractions), rig.error);
    assert_ok(ask(&rig, (struct page_fractions){0}, rig.tokens, PROMPT, &reused, &fractions), rig.error);
    assert_true(reused == SHORT && !fractions.first_is_rows);
    rig.options.fixes_fractions = true; /* those of today, which are others */
    rig.options.quantized_of_16 = 16;
    assert_ok(ask(&rig, (struct page_fractions){0}, rig.tokens, PROMPT, &reused, &fractions), rig.error);
    assert_true(reused == 0 && fractions.first_is_rows);
    rig_close(&rig);
}

/* Flips a byte of a page that is there in each form. */
static void flip(struct rig *rig, uint64_t offset) {
    int fd = open(scratch_name(&rig->scratch, "1.pages"), O_RDWR);
    uint8_t byte = 0;
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static void a_damaged_page_of_either_form_is_computed_anew(void **state) {
    (void)state;
    enum { ROWS = 8192, Q4 = 4096, HEADS = 2, TAILS = 2 * LAYERS * HEADS * ROWS };
    /* Layer 0 is rows alone, layer 1 4 bits alone: the second segment's page of chunk 8 in each. */
    static const struct page_fractions halves = {.layer_count = LAYERS, .sixteenths = {0, 16}};
    static const uint64_t offsets[] = {TAILS + 8 * ROWS + 77, TAILS + 16 * HEADS * ROWS + 8 * Q4 + 77};
    for (size_t i = 0; i < 2; i++) {
        struct rig rig = {0};
        struct page_fractions fractions;
        uint64_t reused;
        rig_open(&rig);
        rig.options.select.method = &select_all; /* reads every page */
        rig.options.select.keep = select_options_default().keep;
        assert_ok(plan_host_bytes_min(&rig.options, &rig.model->config, &rig.options.host_bytes, &rig.error),
                  rig.error);
        assert_ok(ask(&rig, halves, rig.tokens, PROMPT, &reused, &fractions), rig.error);
        flip(&rig, offsets[i]);
        assert_int_equal(ask(&rig, halves, rig.tokens, PROMPT, &reused, &fractions), STATUS_DOCUMENT);
        char where[40];
        snprintf(where, sizeof where, "layer %zu, KV head 0, chunk 8", i);
        if (strstr(rig.error.message, where) == NULL) fail_msg("%s", rig.error.message);
        assert_ok(ask(&rig, now, rig.tokens, PROMPT, &reused, &fractions), rig.error);
        assert_int_equal(reused, 0);
        assert_fractions(&fractions, now); /* nothing is left to follow */
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balance_by_hand),
        cmocka_unit_test(balance_with_ram_is_the_min),
        cmocka_unit_test(balance_by_its_parts),
        cmocka_unit_test(sensitive_layers_have_less),
        cmocka_unit_test(it_measures),
        cmocka_unit_test(a_document_keeps_its_fractions),
        cmocka_unit_test(a_document_in_f16_is_opened),
        cmocka_unit_test(short_prompts_are_not_measured),
        cmocka_unit_test(first_pages_are_exact),
        cmocka_unit_test(first_pages_of_before_stay),
        cmocka_unit_test(a_damaged_page_of_either_form_is_computed_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
