/* select=nested on a tiny random model: without candidates and factor it is hash, to the bit; candidates bound the
 * chunks that a list has units of; those of the last list stay if they are to, and so do units that were listed. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/engine.h"
#include "model/tiny_model.h"

enum { PROMPT = 1500, STEPS = 24, LAYERS = 2, HEADS = 2, PAGE = 8, SINKS = 8, RECENT = 16, KEEP = 96 };
enum { UNITS = (PROMPT + STEPS) / PAGE + 1, UNITS_OF_CHUNK = KV_CHUNK_TOKENS / PAGE, MEMORY = 8 };

struct rig {
    struct device *device;
    struct model *model;
    int32_t tokens[PROMPT + STEPS];
    size_t width;
    struct error error;
};

/* Of all rows, layers and KV heads. */
struct lists {
    bool takes[STEPS][LAYERS][HEADS][UNITS]; /* units that were picked */
    size_t step, chunks_most;                /* chunks of a list, at most */
    size_t fresh;                            /* units that none of the last MEMORY lists had */
    size_t entered;                          /* units in chunks that the last list had none of */
};

static void keep_list(void *context, const struct select_event *event) {
    struct lists *lists = context;
    const size_t step = (size_t)event->position - PROMPT, layer = event->layer_index;
    for (size_t head = 0; head < HEADS; head++) {
        bool *takes = lists->takes[step][layer][head];
        const uint64_t end = (event->position + 1) / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS; /* of full chunks */
        size_t chunks = 0;
        for (size_t i = 0; i < event->lists[head].count; i++) {
            const uint32_t row = event->lists[head].rows[i];
            if (row >= SINKS && row < end && row + RECENT <= event->position) takes[row / PAGE] = true;
        }
        for (size_t first = 0; first < UNITS; first += UNITS_OF_CHUNK) {
            bool has = false, had = false;
            for (size_t unit = first; unit < first + UNITS_OF_CHUNK && unit < UNITS; unit++) {
                bool seen = false;
                for (size_t back = 1; back <= MEMORY && back <= step; back++)
                    seen = seen || lists->takes[step - back][layer][head][unit];
                lists->fresh += takes[unit] && !seen;
                has = has || takes[unit];
                had = had || (step > 0 && lists->takes[step - 1][layer][head][unit]);
            }
            for (size_t unit = first; step > 0 && !had && unit < first + UNITS_OF_CHUNK && unit < UNITS;
                 unit++)
                lists->entered += takes[unit];
            chunks += has;
        }
        if (chunks > lists->chunks_most) lists->chunks_most = chunks;
    }
}

/* Logits of the last step; nested NULL: by hash, of all chunks: alpha leaves nothing out. */
static float *decode(struct rig *rig, const struct nested_layout *nested, struct lists *lists) {
    struct plan plan = {.context_size = PROMPT + STEPS,
                        .sequence_capacity = 1,
                        .batch_size = 128,
                        .k_type = KV_F16,
                        .v_type = KV_F16,
                        .select = select_options_default()};
    struct engine *engine;
    struct sequence *sequence;
    const float *logits;
    float *last = calloc(rig->width, sizeof *last);
    struct select_options *select = &plan.select;
    select->method = select_method_find(nested != NULL ? "nested" : "hash");
    select->planes = 1, select->page = PAGE, select->sinks = SINKS, select->recent = RECENT;
    select->dense_layers = 0, select->keep = (struct select_keep){.tokens = KEEP};
    select->alpha = nested == NULL ? 1000 : 0;
    if (nested != NULL)
        select->candidates = nested->candidates, select->stays = nested->stays,
        select->listed = (double)nested->listed;
    memset(lists, 0, sizeof *lists);
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = PROMPT};
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    attention_set_observer(engine_attention(engine), keep_list, lists);
    for (size_t i = 0; i < STEPS; i++)
        assert_ok(engine_step(engine, &sequence, &rig->tokens[PROMPT + i], 1, &logits, &rig->error),
                  rig->error);
    memcpy(last, logits, rig->width * sizeof *last);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return last;
}

static void units_are_of_candidates(void **state) {
    (void)state;
    static struct lists hash, plain, all, few, stays, listed;
    static struct lists *const made[] = {&plain, &all, &few, &stays, &listed};
    static const struct nested_layout cases[] = {{.listed = 1},
                                                 {.candidates = 1000, .listed = 1},
                                                 {.candidates = 4, .listed = 1},
                                                 {.candidates = 4, .stays = true, .listed = 1},
                                                 {.listed = 4}};
    enum { CASES = sizeof cases / sizeof *cases, CANDIDATES = 4 * KEEP / KV_CHUNK_TOKENS };
    struct rig rig = {0};
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = LAYERS, tiny.head_dimension = 32;
    assert_int_equal(tiny.kv_head_count, HEADS);
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&tiny, "nested", &device, &rig.device, &rig.model);
    rig.width = tiny.vocabulary_size;
    random_init(&random, 7);
    tiny_model_tokens(&tiny, &random, rig.tokens, PROMPT + STEPS);
    float *expected = decode(&rig, NULL, &hash);
    for (size_t i = 0; i < CASES; i++) {
        float *logits = decode(&rig, &cases[i], made[i]);
        const bool is_same = memcmp(logits, expected, rig.width * sizeof *logits) == 0;
        assert_int_equal(is_same, i < 2);
        assert_int_equal(memcmp(made[i]->takes, hash.takes, sizeof hash.takes) == 0, i < 2);
        free(logits);
    }
    assert_true(hash.chunks_most > CANDIDATES); /* else nothing would be bounded */
    assert_in_range(few.chunks_most, 1, CANDIDATES);
    assert_in_range(stays.entered, 1, few.entered - 1);
    assert_true(listed.fresh < plain.fresh);
    free(expected);
    model_destroy(rig.model);
    device_destroy(rig.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_are_of_candidates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
