/* guess_gate: a layer's guesses go on while enough of what they read is used, stop when it is not, and are tried
 * again. */
#include "testing.h"

#include "attention/guess_gate.h"

enum { STEPS = 2000 };

/* Steps of the last half in which a layer guessed, when of 50 chunks read so many were used. */
static size_t guesses(struct guess_gate *gate, size_t used) {
    size_t opened = 0;
    for (size_t step = 0; step < STEPS; step++)
        if (guess_gate_opens(gate)) {
            guess_gate_add(gate, 50, used);
            opened += step >= STEPS / 2;
        }
    return opened;
}

static void the_first_are_free(void **state) {
    (void)state;
    struct guess_gate gate = {0};
    size_t opened = 0;
    for (size_t step = 0; step < 5; step++)
        if (guess_gate_opens(&gate)) {
            guess_gate_add(&gate, 50, 0);
            opened++;
        }
    assert_in_range(opened, 2, 5); /* one guess says little */
}

static void what_is_used_goes_on(void **state) {
    (void)state;
    struct guess_gate good = {0}, fair = {0}, poor = {0}, none = {0};
    assert_int_equal(guesses(&good, 50), STEPS / 2);
    assert_int_equal(guesses(&fair, 15), STEPS / 2);
    assert_in_range(guesses(&poor, 5), 1, STEPS / 2 / 20);
    assert_in_range(guesses(&none, 0), 1, STEPS / 2 / 20);
}

/* All is in memory: nothing is read for a guess, nothing is gained by one. */
static void nothing_to_read_is_nothing_to_guess(void **state) {
    (void)state;
    struct guess_gate gate = {0};
    size_t opened = 0;
    for (size_t step = 0; step < STEPS; step++)
        if (guess_gate_opens(&gate)) {
            guess_gate_add(&gate, 0, 0);
            opened++;
        }
    assert_in_range(opened, 1, STEPS / 20);
}

static void it_changes_its_mind(void **state) {
    (void)state;
    struct guess_gate gate = {0};
    assert_in_range(guesses(&gate, 0), 1, STEPS / 2 / 20);
    assert_int_equal(guesses(&gate, 40), STEPS / 2);
    assert_in_range(guesses(&gate, 2), 1, STEPS / 2 / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_are_free),
        cmocka_unit_test(what_is_used_goes_on),
        cmocka_unit_test(nothing_to_read_is_nothing_to_guess),
        cmocka_unit_test(it_changes_its_mind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
