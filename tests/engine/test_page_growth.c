/* The fraction of pages in 4 bits, chosen again for what a document adds: the arithmetic, and documents that grow under
 * one budget or another, by costs that are given. */
#include "lab/methods/methods.h"
#include "plan/quantized_pages.h"

#include "seed.h"
#include "testing.h"

#include <string.h>

#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/scratch.h"

enum { LAYERS = 2, FIRST = 1000, SECOND = 3205, THIRD = 5400, CONTEXT = 6144 };

/* ---- the arithmetic ---- */

static struct page_fractions even(unsigned sixteenths) {
    return (struct page_fractions){.layer_count = LAYERS,
                                   .sixteenths = {(uint8_t)sixteenths, (uint8_t)sixteenths}};
}

static void new_pages_make_up(void **state) {
    (void)state;
    /* 64 chunks in 4 bits; 128 are to have half: the new ones have none.  Three quarters: half of the new ones. */
    struct page_fractions fractions = even(16);
    struct page_fractions wanted = even(8);
    assert_true(quantized_pages_continue(&fractions, &wanted, 64, 128));
    assert_int_equal(fractions.later_count, 1);
    assert_int_equal(fractions.later[0].chunk_first, 64);
    assert_int_equal(page_fractions_at(&fractions, 0, 63), 16);
    assert_int_equal(page_fractions_at(&fractions, 1, 64), 0);
    fractions = even(16);
    wanted = even(12);
    assert_true(quantized_pages_continue(&fractions, &wanted, 64, 128));
    assert_int_equal(page_fractions_at(&fractions, 1, 64), 8);
    /* A segment that has begun keeps its form: chunks 64 to 79 are rows, 48 of 128 make up for it. */
    fractions = even(0);
    wanted = even(3);
    assert_true(quantized_pages_continue(&fractions, &wanted, 65, 128));
    assert_int_equal(fractions.later[0].chunk_first, 80);
    assert_int_equal(page_fractions_at(&fractions, 0, 80), 3 * 128 / 48);
}

static void little_changes_nothing(void **state) {
    (void)state;
    const struct page_fractions before = even(16), wanted = even(8), near = even(9);
    struct page_fractions fractions = before;
    assert_false(quantized_pages_continue(&fractions, &wanted, 64, 79));  /* less than a quarter */
    assert_false(quantized_pages_continue(&fractions, &wanted, 20, 47));  /* no segment of it is new */
    assert_false(quantized_pages_continue(&fractions, &before, 64, 128)); /* what it has is wanted */
    assert_memory_equal(&fractions, &before, sizeof fractions);
    fractions = even(8);
    assert_true(quantized_pages_continue(&fractions, &near, 16, 32));
    fractions = even(8);
    fractions.sixteenths[1] = 9;
    assert_false(quantized_pages_continue(&fractions, &near, 16, 17 * 16)); /* one of two layers by one */
}

/* Whatever was there: as near to what is wanted as the new pages can come, and as many spans as a document may have. */
static void the_whole_has_what_is_wanted(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(31));
    size_t exact = 0, clamped = 0, full = 0;
    for (int round = 0; round < 200; round++) {
        struct page_fractions fractions = even((unsigned)random_below(&random, 17));
        uint64_t chunks = 16 + random_below(&random, 100);
        for (int turn = 0; turn < 12; turn++) {
            const struct page_fractions before = fractions,
                                        wanted = even((unsigned)random_below(&random, 17));
            const uint64_t end = chunks + chunks / 4 + 32 + random_below(&random, 2 * chunks);
            const bool changed = quantized_pages_continue(&fractions, &wanted, chunks, end);
            full += fractions.later_count == PAGE_SPANS_MAX - 1;
            assert_true(fractions.later_count < PAGE_SPANS_MAX);
            for (uint64_t chunk = 0; chunk < chunks; chunk++) /* what is there stays */
                assert_int_equal(page_fractions_at(&fractions, 0, chunk),
                                 page_fractions_at(&before, 0, chunk));
            const double first = changed ? fractions.later[fractions.later_count - 1].chunk_first : 0;
            const double found = (double)page_fractions_before(&fractions, 0, 0, 1, end);
            const double off = found - (double)wanted.sixteenths[0] * (double)end / 16;
            const unsigned last = page_fractions_at(&fractions, 0, end);
            if (changed && last > 0 && last < 16) {
                assert_true(off <= ((double)end - first) / 32 + 1 && off >= -((double)end - first) / 32 - 1);
                exact++;
            } else if (changed) {
                assert_true(last == 0 ? off >= -((double)end - first) / 32 - 1
                                      : off <= ((double)end - first) / 32 + 1);
                clamped++;
            }
            chunks = end;
        }
    }
    assert_true(exact > 100 && clamped > 100 && full > 100);
}

/* ---- documents ---- */

/* A disk on which 4 bits are worth what they spare RAM, on every machine that runs this. */
static const struct page_costs costs = {
    .disk = {.page_seconds = 17e-6, .tail_seconds = 25e-6, .alone_seconds = 100e-6},
    .rows_attend = 1.7e-6,
    .quantized_attend = 1.7e-6,
    .decode = 2.5e-6};

struct rig {
    struct device *device;
    struct model *model;
    int32_t tokens[THIRD];
    struct scratch scratch;
    struct error error;
    struct plan options;
    uint64_t bytes_min;
    double layer_seconds; /* that a layer computes */
};

static void rig_open(struct rig *rig) {
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.head_dimension = 32;
    tiny.layer_count = LAYERS;
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&tiny, "growth", &device, &rig->device, &rig->model);
    random_init(&random, test_seed(32));
    tiny_model_tokens(&tiny, &random, rig->tokens, THIRD);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    rig->options = (struct plan){.context_size = CONTEXT,
                                 .sequence_capacity = 1,
                                 .suffix = SUFFIX_DENSE,
                                 .select = select_options_default(),
                                 .disk_directory = rig->scratch.path,
                                 .quantized_pages = true,
                                 .mixes_pages = true};
    rig->options.select.method = &select_quest;
    rig->options.select.keep = (struct select_keep){.tokens = 160};
    assert_ok(plan_host_bytes_min(&rig->options, &rig->model->config, &rig->bytes_min, &rig->error),
              rig->error);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
    scratch_destroy(&rig->scratch);
}

static struct engine *make_engine(struct rig *rig, uint64_t spare_bytes) {
    struct page_costs own = costs;
    own.layer = rig->layer_seconds;
    const struct engine_options options = {.page_costs = &own};
    struct engine *engine;
    rig->options.host_bytes = rig->bytes_min + spare_bytes;
    assert_ok(engine_create(&engine, rig->model, &rig->options, &options, &rig->error), rig->error);
    return engine;
}

/* Appends tokens [from, to) and gives the last one's logits. */
static void append(struct rig *rig, struct engine *engine, struct sequence *sequence, size_t from, size_t to,
                   float *logits) {
    const struct prefill_request request = {.tokens = rig->tokens + from, .token_count = to - from};
    const float *found;
    assert_ok(engine_prefill(engine, sequence, &request, &found, &rig->error), rig->error);
    assert_int_equal(sequence_length(sequence), to);
    assert_true(engine_tier_statistics(engine).host_bytes <= rig->options.host_bytes);
    memcpy(logits, found, rig->model->config.vocabulary_size * sizeof *logits);
}

/* An engine of its own for the prompt's first `to` tokens, of which the folder has `reused`. */
static struct page_fractions ask(struct rig *rig, uint64_t spare_bytes, size_t to, uint64_t reused,
                                 float *logits) {
    struct engine *engine = make_engine(rig, spare_bytes);
    struct sequence *sequence;
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    append(rig, engine, sequence, 0, to, logits);
    assert_int_equal(sequence_reused_tokens(sequence), reused);
    const struct page_fractions fractions = *sequence_fractions(sequence);
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return fractions;
}

enum { KIB = 1024, LITTLE = 800 * KIB, MORE = 1300 * KIB, AMPLE = 64 << 20 };

static double share_of(const struct page_fractions *fractions, uint64_t tokens) {
    return (double)page_fractions_before(fractions, 1, 0, 1, tokens / 64) / (double)(tokens / 64);
}

/* Where the next layer's choice is read while this one computes, reads that hide under that stay exact; where it is not
 * they hide under nothing. */
static void what_hides_is_exact(void **state) {
    (void)state;
    float logits[256];
    for (size_t prefetches = 0; prefetches < 2; prefetches++) {
        struct rig rig = {.error = {0}};
        rig_open(&rig);
        rig.options.prefetches = prefetches == 1;
        assert_ok(plan_host_bytes_min(&rig.options, &rig.model->config, &rig.bytes_min, &rig.error),
                  rig.error);
        rig.layer_seconds = 1;
        const struct page_fractions fractions = ask(&rig, 0, SECOND, 0, logits);
        assert_int_equal(page_fractions_at(&fractions, 1, 16), prefetches == 1 ? 0 : 16);
        rig_close(&rig);
    }
}

/* A text that RAM holds whole is exact.  Grown, it does not fit: the new pages are in 4 bits, as many as the budget
 * asks for.  What is there already stays, whatever the budget is later. */
static void a_document_grows(void **state) {
    (void)state;
    double shares[2];
    float logits[256], other[256];
    for (size_t i = 0; i < 2; i++) {
        const uint64_t spare = i == 0 ? LITTLE : MORE;
        struct rig rig = {0};
        rig_open(&rig);
        assert_true(rig.model->config.vocabulary_size <= 256);
        struct page_fractions fractions = ask(&rig, spare, FIRST, 0, logits);
        assert_true(fractions.later_count == 0 && share_of(&fractions, 1024) == 0);
        fractions = ask(&rig, spare, SECOND, FIRST, logits);
        assert_int_equal(fractions.later_count, 1);
        assert_int_equal(fractions.later[0].chunk_first, 16);
        assert_int_equal(page_fractions_at(&fractions, 0, 15), 0);
        shares[i] = share_of(&fractions, SECOND);
        assert_true(shares[i] > 0.1 && shares[i] < 0.9);
        const struct page_fractions again = ask(&rig, AMPLE, SECOND, SECOND - 1, other);
        assert_true(page_fractions_equal(&again, &fractions));
        (void)ask(&rig, 0, SECOND, SECOND - 1, logits); /* all of it from disk, both forms */
        assert_memory_equal(other, logits, rig.model->config.vocabulary_size * sizeof *other);
        /* Under another budget it grows once more: exact where there is RAM, and all in 4 bits where there is least. */
        const struct page_fractions third = ask(&rig, i == 0 ? AMPLE : 0, THIRD, SECOND, other);
        assert_int_equal(third.later_count, 2);
        assert_int_equal(third.later[1].chunk_first, 64);
        assert_true(page_fractions_at(&third, 0, 15) == 0 &&
                    page_fractions_at(&third, 0, 16) == page_fractions_at(&fractions, 0, 16));
        assert_int_equal(page_fractions_at(&third, 0, 64), i == 0 ? 0 : 16);
        rig_close(&rig);
    }
    assert_true(shares[0] > shares[1]); /* less RAM, more pages in 4 bits */
}

/* A prompt of one piece has its fractions from the beginning; in turns within one sequence, and in processes that open
 * what is saved, the same ones are chosen, and the same is attended to. */
static void in_turns_and_by_processes(void **state) {
    (void)state;
    struct rig rig = {0};
    struct sequence *sequence;
    float logits[256], other[256];
    rig_open(&rig);
    struct engine *engine = make_engine(&rig, LITTLE);
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    append(&rig, engine, sequence, 0, FIRST, logits);
    append(&rig, engine, sequence, FIRST, FIRST + 20, logits); /* too little to choose again */
    assert_int_equal(sequence_fractions(sequence)->later_count, 0);
    append(&rig, engine, sequence, FIRST + 20, SECOND, logits);
    const struct page_fractions turns = *sequence_fractions(sequence);
    assert_int_equal(turns.later_count, 1);
    sequence_destroy(sequence);
    engine_destroy(engine);
    scratch_empty(&rig.scratch);
    (void)ask(&rig, LITTLE, FIRST, 0, other);
    (void)ask(&rig, LITTLE, FIRST + 20, FIRST, other);
    const struct page_fractions opened = ask(&rig, LITTLE, SECOND, FIRST + 20, other);
    assert_true(page_fractions_equal(&opened, &turns));
    assert_memory_equal(other, logits, rig.model->config.vocabulary_size * sizeof *other);
    scratch_empty(&rig.scratch);
    const struct page_fractions whole = ask(&rig, LITTLE, SECOND, 0, other);
    assert_int_equal(whole.later_count, 0);
    const double off = share_of(&whole, SECOND) - share_of(&opened, SECOND);
    assert_true(off < 0.05 && off > -0.05); /* as many pages in all */
    rig_close(&rig);
}

/* A second document of an engine is no longer what the first one was. */
static void every_document_has_its_own(void **state) {
    (void)state;
    struct rig rig = {0};
    struct sequence *sequence;
    float logits[256];
    rig_open(&rig);
    struct engine *engine = make_engine(&rig, LITTLE);
    const size_t lengths[] = {FIRST, SECOND};
    double shares[2];
    for (size_t i = 0; i < 2; i++) {
        assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
        rig.tokens[0] = (int32_t)(3 + i);
        append(&rig, engine, sequence, 0, lengths[i], logits);
        assert_int_equal(sequence_reused_tokens(sequence), 0);
        shares[i] = share_of(sequence_fractions(sequence), lengths[i]);
        sequence_destroy(sequence);
    }
    assert_true(shares[0] == 0 && shares[1] > 0.1);
    engine_destroy(engine);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_pages_make_up),
        cmocka_unit_test(little_changes_nothing),
        cmocka_unit_test(the_whole_has_what_is_wanted),
        cmocka_unit_test(what_hides_is_exact),
        cmocka_unit_test(a_document_grows),
        cmocka_unit_test(in_turns_and_by_processes),
        cmocka_unit_test(every_document_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
