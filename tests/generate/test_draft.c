/* What a draft is, and answers with drafts: the same tokens as without, greedy and sampled, wherever they end. */
#include "testing.h"

#include <string.h>
#include <unistd.h>

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

/* So many tokens, at most, until the draft does not rest. */
static size_t next(struct draft *draft, const struct token_list *list, token_id last, size_t most, token_id *drafted) {
    while (draft->rest > 0) assert_int_equal(draft_next(draft, list, last, most, drafted), 0);
    return draft_next(draft, list, last, most, drafted);
}

static void what_followed(void **state) {
    (void)state;
    enum { TEXT = 24, BEHIND = 8 };
    static const token_id text[TEXT] = {21, 22, 23, 24, 1,  2, 3,  4,  50, 51, 52, 53,
                                        54, 55, 56, 57, 9, 21, 22, 23, 24, 1,  2,  3};
    static const token_id later[] = {4, 60, 21, 22, 23, 24, 1, 2, 3};
    struct token_list list = {0};
    struct draft draft = {0};
    token_id drafted[DRAFT_MAX];
    assert_int_equal(draft_next(&draft, &list, 1, DRAFT_MAX, drafted), 0);
    add(&list, text, TEXT);
    assert_int_equal(draft_next(&draft, &list, 5, DRAFT_MAX, drafted), 0); /* ... 3 5 was never there */
    assert_int_equal(draft_next(&draft, &list, 4, 1, drafted), 1);
    assert_int_equal(drafted[0], 50);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 2);
    assert_memory_equal(drafted, text + BEHIND, 2 * sizeof *drafted);
    draft_learn(&draft, 2, 2); /* longer where it was right */
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 4);
    draft_learn(&draft, 4, 4);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), DRAFT_MAX);
    assert_memory_equal(drafted, text + BEHIND, DRAFT_MAX * sizeof *drafted);
    draft_learn(&draft, DRAFT_MAX, 1); /* shorter, and after a while, where it was not */
    assert_int_equal(draft.rest, 8);
    assert_int_equal(next(&draft, &list, 4, DRAFT_MAX, drafted), 3);
    add(&list, later, 9);
    draft_learn(&draft, 3, 3);
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 6); /* the last time */
    assert_memory_equal(drafted, later + 1, 6 * sizeof *drafted);
    list.count = TEXT; /* the later one is gone */
    assert_int_equal(draft_next(&draft, &list, 4, DRAFT_MAX, drafted), 6);
    assert_memory_equal(drafted, text + BEHIND, 6 * sizeof *drafted);
    draft_deinit(&draft);
    token_list_deinit(&list);
}

/* Where nothing is ever right, drafts become rare: one in DRAFT_REST_MAX steps. */
static void rests(void **state) {
    (void)state;
    struct token_list list = {0};
    struct draft draft = {0};
    token_id drafted[DRAFT_MAX];
    size_t drafts = 0, rows = 0;
    enum { STEPS = 2000 };
    for (token_id i = 0; i < 64; i++) add(&list, (const token_id[]){i % 8}, 1);
    for (size_t step = 0; step < STEPS; step++) {
        const size_t count = draft_next(&draft, &list, 0, DRAFT_MAX, drafted);
        drafts += count > 0;
        rows += count;
        if (count > 0) draft_learn(&draft, count, 0);
    }
    assert_in_range(drafts, 1, STEPS / DRAFT_REST_MAX + 8);
    assert_in_range(rows, 1, drafts + 1);
    draft_learn(&draft, 1, 1);
    assert_int_equal(next(&draft, &list, 0, DRAFT_MAX, drafted), 2);
    draft_deinit(&draft);
    token_list_deinit(&list);
}

/* Against a search for the last place from the end. */
static void as_searched(void **state) {
    (void)state;
    struct token_list list = {0};
    struct draft draft = {0};
    struct random random;
    size_t found = 0;
    random_init(&random, test_seed(3));
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
        draft_learn(&draft, count, count);
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
    char path[64];
};

static int rig_open(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    struct error error;
    struct tiny_model tiny = tiny_model_default("llama");
    assert_non_null(rig);
    tiny_model_write(&tiny, tiny_model_path("draft", rig->path, sizeof rig->path));
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device, &options, &error), error);
    assert_ok(model_load(&rig->model, rig->path, rig->device, &error), error);
    *state = rig;
    return 0;
}

static int rig_close(void **state) {
    struct rig *rig = *state;
    model_destroy(rig->model);
    device_destroy(rig->device);
    unlink(rig->path);
    free(rig);
    return 0;
}

/* The tokens of an answer to a prompt that says everything twice. */
static struct generation_figures answer_of(struct rig *rig, const struct sampler_options *sampling, size_t draft_max,
                                           int64_t token_max, struct token_list *tokens, enum stop_reason *stop) {
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

static void same_answers(void **state) {
    struct rig *rig = *state;
    struct sampler_options ways[3] = {sampler_options_default(), sampler_options_default(), sampler_options_default()};
    for (size_t w = 0; w < 3; w++) ways[w].top_p = 1, ways[w].min_p = 0;
    ways[0].temperature = 0;
    ways[1].temperature = 9, ways[1].seed = test_seed(5);
    ways[2].temperature = 6, ways[2].repeat_penalty = 1.02F, ways[2].seed = test_seed(5) + 1;
    static const int64_t token_max[] = {-1, 97, 2};
    for (size_t w = 0; w < 3; w++)
        for (size_t t = 0; t < 3; t++) {
            struct token_list plain = {0}, drafted = {0};
            enum stop_reason stops[2];
            struct generation_figures without, with;
            without = answer_of(rig, &ways[w], 0, token_max[t], &plain, &stops[0]);
            with = answer_of(rig, &ways[w], DRAFT_MAX, token_max[t], &drafted, &stops[1]);
            assert_int_equal(drafted.count, plain.count);
            assert_memory_equal(drafted.ids, plain.ids, plain.count * sizeof *plain.ids);
            assert_int_equal(stops[1], stops[0]);
            assert_int_equal(without.drafted_tokens, 0);
            assert_int_equal(with.step_tokens, without.step_tokens);
            print_message("%zu tokens, %llu drafted, %llu accepted\n", plain.count,
                          (unsigned long long)with.drafted_tokens, (unsigned long long)with.accepted_tokens);
            if (w == 1 && t == 0) assert_met(with.accepted_tokens < with.drafted_tokens);
            if (w == 0 && t == 0) { /* a greedy answer of random weights goes round in circles */
                assert_int_equal(stops[0], STOP_CONTEXT);
                assert_true(with.accepted_tokens > plain.count / 3);
            }
            token_list_deinit(&plain);
            token_list_deinit(&drafted);
        }
}

int main(void) {
    const struct CMUnitTest drafts[] = {cmocka_unit_test(what_followed), cmocka_unit_test(rests),
                                        cmocka_unit_test(as_searched)};
    const struct CMUnitTest answers[] = {cmocka_unit_test(same_answers)};
    return cmocka_run_group_tests(drafts, NULL, NULL) + cmocka_run_group_tests(answers, rig_open, rig_close);
}
