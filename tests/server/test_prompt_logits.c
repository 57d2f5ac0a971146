#include "testing.h"

#include "server/prompt_logits.h"

enum { LENGTH = 5, VOCABULARY = 3 };

struct prompt {
    token_id tokens[LENGTH];
    float logits[VOCABULARY];
};

static struct prompt prompt_of(int number) {
    const float value = (float)number;
    return (struct prompt){{1, 2, 3, 4, number}, {value, -value, value / 2}};
}

static void note(struct prompt_logits *prompts, const char *owner, int number) {
    const struct prompt prompt = prompt_of(number);
    prompt_logits_note(prompts, owner, prompt.tokens, LENGTH, prompt.logits, VOCABULARY);
}

static bool knows(struct prompt_logits *prompts, const char *owner, int number) {
    const struct prompt prompt = prompt_of(number);
    const float *found = prompt_logits_find(prompts, owner, prompt.tokens, LENGTH);
    if (found != NULL) assert_memory_equal(found, prompt.logits, sizeof prompt.logits);
    return found != NULL;
}

static void test_exactly_this_prompt(void **state) {
    (void)state;
    struct prompt_logits prompts = {0};
    const struct prompt prompt = prompt_of(7);
    assert_false(knows(&prompts, "", 7));
    note(&prompts, "", 7);
    assert_true(knows(&prompts, "", 7));
    assert_false(knows(&prompts, "", 8));
    assert_false(knows(&prompts, "somebody", 7));
    assert_null(prompt_logits_find(&prompts, "", prompt.tokens, LENGTH - 1));
    prompt_logits_deinit(&prompts);
}

static void test_newest_logits_stay(void **state) {
    (void)state;
    struct prompt_logits prompts = {0};
    struct prompt other = prompt_of(7);
    other.logits[0] = 100;
    prompt_logits_note(&prompts, "", other.tokens, LENGTH, other.logits, VOCABULARY);
    note(&prompts, "", 7);
    assert_true(knows(&prompts, "", 7));
    for (int i = 1; i < PROMPT_LOGITS_MAX; i++) note(&prompts, "", 100 + i);
    assert_true(knows(&prompts, "", 7)); /* one place, not two */
    prompt_logits_deinit(&prompts);
}

static void test_asked_longest_ago_goes(void **state) {
    (void)state;
    struct prompt_logits prompts = {0};
    for (int i = 0; i < PROMPT_LOGITS_MAX; i++) note(&prompts, "", i);
    assert_true(knows(&prompts, "", 0));
    note(&prompts, "", PROMPT_LOGITS_MAX);
    assert_true(knows(&prompts, "", 0));
    assert_false(knows(&prompts, "", 1));
    for (int i = 2; i <= PROMPT_LOGITS_MAX; i++) assert_true(knows(&prompts, "", i));
    prompt_logits_deinit(&prompts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exactly_this_prompt),
        cmocka_unit_test(test_newest_logits_stay),
        cmocka_unit_test(test_asked_longest_ago_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
