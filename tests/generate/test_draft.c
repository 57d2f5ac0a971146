/* What a draft is, and answers with drafts: the same tokens as without, greedy and sampled, wherever they end, by
 * models whose layers keep a state too. */
#include "testing.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/random.h"
#include "generate/generate.h"
#include "model/tiny_model.h"
#include "seed.h"

/* ---- the tokens of a draft ---- */

static void add(struct token_list *list, const token_id *ids, size_t count) {
    struct error error;
    for (size_t i = 0; i < count; i++) assert_ok(token_list_append(list, ids[i], &error), error);
}

/* A pass whose rows take so much of a step's second each. */
static void learn(struct draft *draft, size_t drafted, size_t right, double row) {
    draft_learn(draft, drafted, right, 1 + row * (double)drafted);
}

static void what_followed(void **state) {
    (void)state;
    enum { TEXT = 24, BEHIND = 8 };
    static const token_id text[TEXT] = {21, 22, 23, 24, 1, 2,  3,  4,  50, 51, 52, 53,
                                        54, 55, 56, 57, 9, 21, 22, 23, 24, 1,  2,  3};
    static const token_id later[] = {4, 60, 21, 22, 23, 24, 1, 2, 3};
    struct token_list list = {0};
    struct draft draft = {0};
    token_id drafted[DRAFT_MAX];
    assert_int_equal(draft_next(&draft, &list, 1, DRAFT_MAX, drafted), 0);
    add(&list, text, TEXT);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted),
                     0); /* what a step takes is not known */
    learn(&draft, 0, 0, 0);
    learn(&draft, 0, 0, 0);
    assert_int_equal(draft_next(&draft, &list, 5, DRAFT_MAX, drafted), 0); /* ... 3 5 was never there */
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 1);
    assert_int_equal(drafted[0], 50);
    learn(&draft, 1, 1, 0.25); /* longer where it was right */
    assert_int_equal(draft_next(&draft, &list, 4, 1, drafted), 1);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 2);
    assert_memory_equal(drafted, text + BEHIND, 2 * sizeof *drafted);
    learn(&draft, 2, 2, 0.25);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 4);
    learn(&draft, 4, 4, 0.25);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), DRAFT_MAX);
    assert_memory_equal(drafted, text + BEHIND, DRAFT_MAX * sizeof *drafted);
    learn(&draft, DRAFT_MAX, 1, 0.25); /* shorter where it was not */
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 3);
    add(&list, later, 9);
    learn(&draft, 3, 3, 0.25);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 6); /* the last time */
    assert_memory_equal(drafted, later + 1, 6 * sizeof *drafted);
    list.count = TEXT; /* the later one is gone */
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 6);
    assert_memory_equal(drafted, text + BEHIND, 6 * sizeof *drafted);
    draft_deinit(&draft);
    token_list_deinit(&list);
}

/* A text that goes on as before for so long, of whose drafts one in `right_in` is right then (0: none), and none later:
 * the steps that passes take for it over those of steps alone. */
static double steps_with_drafts(size_t quoted, size_t step_count, size_t right_in, double row, size_t *rows) {
    struct token_list list = {0};
    struct draft draft = {0};
    token_id drafted[DRAFT_MAX];
    double seconds = 0;
    *rows = 0;
    for (token_id i = 0; i < 64; i++) add(&list, (const token_id[]){i % 8}, 1);
    for (size_t step = 0, drafts = 0; step < step_count;) {
        const size_t count = draft_next(&draft, &list, 0, DRAFT_MAX, drafted);
        const bool is_right = count > 0 && right_in > 0 && step < quoted && drafts++ % right_in == 0;
        learn(&draft, count, is_right ? count : 0, row);
        seconds += 1 + row * (double)count;
        step += 1 + (is_right ? count : 0);
        *rows += count;
    }
    draft_deinit(&draft);
    token_list_deinit(&list);
    return seconds / (double)step_count;
}

/* What rows cost decides: a text that never goes on as before loses half a step and a hundredth, whatever a row takes,
 * and no more behind one that did. */
static void costs(void **state) {
    (void)state;
    enum { STEPS = 2000 };
    static const double rows_of[] = {0.02, 0.3, 0.5, 0.8, 1.5};
    size_t rows;
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
        const double row = rows_of[i], guessed = row > 0.5 ? row - 0.5 : 0,
                     most = 1.01 + (0.5 + (1 + 2 + 4) * guessed) /
                                       STEPS; /* the price of the first ones is a guess */
        const double never = steps_with_drafts(0, STEPS, 0, row, &rows);
        assert_true(rows > 0); /* it is tried again and again */
        assert_true(never <= most);
        assert_true(steps_with_drafts(STEPS / 2, STEPS, 3, row, &rows) <= most);
        const double quoted = steps_with_drafts(STEPS, STEPS, 1, row, &rows);
        assert_true(quoted < (row < 1 ? (1 + 7 * row) / 8 + 0.02 : most));
    }
}

/* Against a search for the last place from the end. */
static void as_searched(void **state) {
    (void)state;
    struct token_list list = {0};
    struct draft draft = {0};
    struct random random;
    size_t found = 0;
    random_init(&random, test_seed(3));
    for (int i = 0; i < 2; i++) learn(&draft, 0, 0, 0);
    for (size_t i = 0; i < 20000; i++) {
        token_id drafted[DRAFT_MAX];
        const token_id id = (token_id)random_below(&random, 3), last = (token_id)random_below(&random, 3);
        add(&list, &id, 1);
        const size_t count = draft_next(&draft, &list, last, DRAFT_MAX, drafted);
        size_t end = list.count;
        while (--end >= DRAFT_GRAM)
            if (list.ids[end - 1] == last &&
                memcmp(list.ids + end - DRAFT_GRAM, list.ids + list.count - (DRAFT_GRAM - 1),
                       (DRAFT_GRAM - 1) * sizeof id) == 0)
                break;
        if (count == 0) continue; /* none, or another gram has its slot */
        found++;
        assert_true(end >= DRAFT_GRAM);
        assert_memory_equal(drafted, list.ids + end, count * sizeof *drafted);
        learn(&draft, count, count, 0.25);
        if (i % 1000 == 999) list.count /= 2;
    }
    assert_true(found > 5000);
    draft_deinit(&draft);
    token_list_deinit(&list);
}

/* ---- answers ---- */

enum { CONTEXT = 400, PROMPT = 40 };

struct rig {
    struct device *device;
    struct model *model;
};

static void rig_open(struct rig *rig, const char *family) {
    struct error error;
    const struct tiny_model tiny = tiny_model_default(family);
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device, &options, &error), error);
    tiny_model_load_on(&tiny, "draft", rig->device, &rig->model);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* A step and a pass take as long as each other, whatever this machine does meanwhile: so much a look at the clock. */
int __real_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);

int __wrap_clock_gettime(clockid_t id, struct timespec *now) {
    static _Atomic uint64_t looks;
    if (id != CLOCK_MONOTONIC) return __real_clock_gettime(id, now);
    const uint64_t ms = atomic_fetch_add(&looks, 1) + 1;
    *now = (struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    return 0;
}

/* The tokens of an answer to a prompt that says everything twice. */
static struct generation_figures answer_of(struct rig *rig, const struct sampler_options *sampling,
                                           size_t draft_max, int64_t token_max, struct token_list *tokens,
                                           enum stop_reason *stop) {
    struct error error;
    struct engine *engine;
    const struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64};
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &error), error);
    struct generation generation = {
        .engine = engine, .token_max = token_max, .ignore_end = true, .draft_max = draft_max};
    struct token_list prompt = {0};
    for (token_id i = 0; i < PROMPT; i++) add(&prompt, (const token_id[]){i % (PROMPT / 2)}, 1);
    struct answer answer, *answers[] = {&answer};
    assert_ok(answer_create(&answer, &generation, sampling, &error), error);
    answer.prompt = &prompt;
    assert_ok(generation_run(&generation, answers, 1, &error), error);
    add(tokens, answer.tokens.ids, answer.tokens.count);
    *stop = answer.stop;
    assert_int_equal(sequence_length(answer.sequence), answer.stored.count);
    assert_int_equal(answer.stored.count, PROMPT + answer.tokens.count - 1);
    answer_destroy(&answer);
    token_list_deinit(&prompt);
    engine_destroy(engine);
    return generation.figures;
}

static struct generation_figures same_answer(struct rig *rig, const struct sampler_options *sampling,
                                             int64_t token_max, enum stop_reason *stop) {
    struct token_list plain = {0}, drafted = {0};
    enum stop_reason plain_stop;
    const struct generation_figures without = answer_of(rig, sampling, 0, token_max, &plain, &plain_stop),
                                    with = answer_of(rig, sampling, DRAFT_MAX, token_max, &drafted, stop);
    assert_int_equal(drafted.count, plain.count);
    assert_memory_equal(drafted.ids, plain.ids, plain.count * sizeof *plain.ids);
    assert_int_equal(*stop, plain_stop);
    assert_int_equal(without.drafted_tokens, 0);
    assert_int_equal(with.step_tokens, without.step_tokens);
    print_message("%zu tokens, %llu drafted, %llu accepted\n", plain.count, (unsigned long long)with.drafted_tokens,
                  (unsigned long long)with.accepted_tokens);
    token_list_deinit(&plain);
    token_list_deinit(&drafted);
    return with;
}

/* Greedy, and so hot that most drafts are wrong, and with penalties; to the context's end, and less far. */
static void same_answers(void **state) {
    struct sampler_options ways[3] = {sampler_options_default(), sampler_options_default(),
                                      sampler_options_default()};
    for (size_t w = 0; w < 3; w++) ways[w].top_p = 1, ways[w].min_p = 0;
    ways[0].temperature = 0;
    ways[1].temperature = 9, ways[1].seed = test_seed(5);
    ways[2].temperature = 6, ways[2].repeat_penalty = 1.02F, ways[2].seed = test_seed(5) + 1;
    static const int64_t token_max[] = {-1, 97, 2};
    struct rig rig;
    enum stop_reason stop;
    (void)state;
    rig_open(&rig, "llama");
    for (size_t w = 0; w < 3; w++)
        for (size_t t = 0; t < 3; t++) {
            const struct generation_figures with = same_answer(&rig, &ways[w], token_max[t], &stop);
            if (w == 1 && t == 0) assert_met(with.accepted_tokens < with.drafted_tokens);
            if (w == 0 && t == 0) { /* a greedy answer of random weights goes round in circles */
                assert_int_equal(stop, STOP_CONTEXT);
                assert_true(with.accepted_tokens > with.step_tokens / 3);
            }
        }
    rig_close(&rig);
    for (size_t f = 0; f < TINY_STATE_FAMILIES; f++) {
        struct generation_figures sum = {0};
        rig_open(&rig, tiny_state_families[f]);
        for (size_t w = 0; w < 3; w++) {
            ways[1].temperature = (float[]){0, 3, 4}[w];
            const struct generation_figures with = same_answer(&rig, &ways[1], -1, &stop);
            sum.drafted_tokens += with.drafted_tokens;
            sum.accepted_tokens += with.accepted_tokens;
        }
        assert_met(sum.accepted_tokens > 0 && sum.accepted_tokens < sum.drafted_tokens);
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_followed), cmocka_unit_test(costs),
                                       cmocka_unit_test(as_searched), cmocka_unit_test(same_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
