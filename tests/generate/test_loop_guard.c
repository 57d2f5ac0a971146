/* An answer that repeats itself without end is noticed; what people ask for is not. */
#include "testing.h"

#include <stdlib.h>

#include "base/random.h"
#include "generate/loop_guard.h"

enum { TOKENS_MAX = 8192 };

/* Where the guard stops an answer of these tokens; 0: nowhere. */
static size_t stops_at(const token_id *tokens, size_t count) {
    for (size_t i = 1; i <= count; i++)
        if (loop_guard_finds(tokens, i)) return i;
    return 0;
}

/* `head` tokens without a pattern, then a cycle of `period` whose tokens differ, to the end. */
static void fill(token_id *tokens, size_t count, size_t head, size_t period) {
    struct random random;
    random_init(&random, 7);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (token_id)(i < head ? 1000 + random_below(&random, 30000) : (i - head) % period);
}

static void a_cycle_is_found_where_it_has_enough_rounds(void **state) {
    (void)state;
    token_id *tokens = calloc(TOKENS_MAX, sizeof *tokens);
    assert_non_null(tokens);
    static const size_t periods[] = {1, 2, 3, 31, 32, 33, 100, 128};
    for (size_t i = 0; i < sizeof periods / sizeof *periods; i++) {
        const size_t period = periods[i], head = 500;
        const size_t wanted = period * LOOP_ROUNDS > LOOP_TOKENS ? period * LOOP_ROUNDS : LOOP_TOKENS;
        fill(tokens, TOKENS_MAX, head, period);
        assert_int_equal(stops_at(tokens, TOKENS_MAX), head + wanted);
        tokens[head + wanted / 2] = -1; /* one difference: it counts anew behind it */
        assert_int_equal(stops_at(tokens, head + wanted), 0);
        assert_int_equal(stops_at(tokens, TOKENS_MAX), head + wanted / 2 + 1 + wanted);
    }
    fill(tokens, TOKENS_MAX, 0, LOOP_PERIOD_MAX + 1);
    assert_int_equal(stops_at(tokens, TOKENS_MAX), 0);
    free(tokens);
}

/* A line a hundred times, a table of zeros, numbers that count, a long answer of words. */
static void what_people_ask_for_is_none(void **state) {
    (void)state;
    token_id *tokens = calloc(TOKENS_MAX, sizeof *tokens);
    assert_non_null(tokens);
    fill(tokens, 1000, 0, 10);
    assert_int_equal(stops_at(tokens, 1000), 0);
    fill(tokens, 1023, 0, 1);
    assert_int_equal(stops_at(tokens, 1023), 0);
    for (size_t i = 0; i < TOKENS_MAX; i++) tokens[i] = i % 8 == 7 ? (token_id)(1000 + i) : (token_id)(i % 8);
    assert_int_equal(stops_at(tokens, TOKENS_MAX), 0);
    fill(tokens, TOKENS_MAX, TOKENS_MAX, 1);
    assert_int_equal(stops_at(tokens, TOKENS_MAX), 0);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cycle_is_found_where_it_has_enough_rounds),
        cmocka_unit_test(what_people_ask_for_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
