/* prefetch_gate: a layer's prefetches go on while enough of their reads are used, stop when too few are, and are tried
 * again.  They read as much as the disk has time for. */
#include "testing.h"

#include "attention/prefetch_gate.h"

enum { STEPS = 2000 };

/* Steps of the last half in which a layer prefetched, when `used` of 50 chunks read were used. */
static size_t prefetches(struct prefetch_gate *gate, size_t used) {
    size_t opened = 0;
    for (size_t step = 0; step < STEPS; step++)
        if (prefetch_gate_opens(gate)) {
            prefetch_gate_add(gate, &(struct prefetch_outcome){.read = 50, .used = used});
            opened += step >= STEPS / 2;
        }
    return opened;
}

static void the_first_are_free(void **state) {
    (void)state;
    struct prefetch_gate gate;
    prefetch_gate_init(&gate);
    size_t opened = 0;
    for (size_t step = 0; step < 5; step++)
        if (prefetch_gate_opens(&gate)) {
            prefetch_gate_add(&gate, &(struct prefetch_outcome){.read = 50});
            opened++;
        }
    assert_in_range(opened, 2, 5); /* one prefetch says little */
}

static void what_is_used_goes_on(void **state) {
    (void)state;
    struct prefetch_gate good, fair, poor, none;
    prefetch_gate_init(&good), prefetch_gate_init(&fair), prefetch_gate_init(&poor),
        prefetch_gate_init(&none);
    assert_int_equal(prefetches(&good, 50), STEPS / 2);
    assert_int_equal(prefetches(&fair, 15), STEPS / 2);
    assert_in_range(prefetches(&poor, 5), 1, STEPS / 2 / 20);
    assert_in_range(prefetches(&none, 0), 1, STEPS / 2 / 20);
}

/* Everything is in memory: nothing is prefetched, and trying would gain nothing. */
static void nothing_to_read_is_nothing_to_prefetch(void **state) {
    (void)state;
    struct prefetch_gate gate;
    prefetch_gate_init(&gate);
    size_t opened = 0;
    for (size_t step = 0; step < STEPS; step++)
        if (prefetch_gate_opens(&gate)) {
            prefetch_gate_add(&gate, &(struct prefetch_outcome){0});
            opened++;
        }
    assert_in_range(opened, 1, STEPS / 20);
}

static void it_changes_its_mind(void **state) {
    (void)state;
    struct prefetch_gate gate;
    prefetch_gate_init(&gate);
    assert_in_range(prefetches(&gate, 0), 1, STEPS / 2 / 20);
    assert_int_equal(prefetches(&gate, 40), STEPS / 2);
    assert_in_range(prefetches(&gate, 2), 1, STEPS / 2 / 20);
}

/* A prefetch that wants 100 chunks, half of which are used, before a disk that reads so many in time: chunks read on
 * average in the second half of the steps, and how many of the prefetches were late. */
static double read_on_average(struct prefetch_gate *gate, size_t in_time, double *late_share) {
    size_t read = 0, late = 0, prefetched = 0;
    for (size_t step = 0; step < STEPS; step++) {
        if (!prefetch_gate_opens(gate)) continue;
        size_t chunks_max = prefetch_gate_chunks(gate), now = chunks_max < 100 ? chunks_max : 100;
        prefetch_gate_add(gate,
                          &(struct prefetch_outcome){.read = now, .used = now / 2, .late = now > in_time});
        if (step < STEPS / 2) continue;
        read += now;
        late += now > in_time;
        prefetched++;
    }
    *late_share = prefetched > 0 ? (double)late / (double)prefetched : 0;
    return (double)read / (STEPS / 2.0);
}

static void it_reads_what_there_is_time_for(void **state) {
    (void)state;
    struct prefetch_gate fast, slow, none;
    double late;
    prefetch_gate_init(&fast), prefetch_gate_init(&slow), prefetch_gate_init(&none);
    assert_true(read_on_average(&fast, 200, &late) == 100 && late == 0);
    double slowly = read_on_average(&slow, 40, &late);
    assert_true(slowly > 30 && slowly <= 44 && late < 0.4);
    assert_true(read_on_average(&none, 0, &late) < 1);
    slowly = read_on_average(&none, 40, &late); /* the disk has time again */
    assert_true(slowly > 30 && slowly <= 44);
}

/* Ten times slower: late prefetches of 32 steps are enough to read no more than what is in time. */
static void a_slower_disk_is_asked_for_less(void **state) {
    (void)state;
    struct prefetch_gate gate;
    size_t read = 0, last = 0;
    prefetch_gate_init(&gate);
    for (size_t step = 0; step < STEPS; step++) {
        const size_t in_time = step < STEPS - 32 ? 400 : 40;
        if (!prefetch_gate_opens(&gate)) continue;
        read = prefetch_gate_chunks(&gate) < 400 ? prefetch_gate_chunks(&gate) : 400;
        if (step == STEPS - 33) assert_int_equal(read, 400);
        if (step >= STEPS - 8 && read > last) last = read;
        prefetch_gate_add(&gate,
                          &(struct prefetch_outcome){.read = read, .used = read, .late = read > in_time});
    }
    assert_in_range(last, 30, 44);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_are_free),
        cmocka_unit_test(what_is_used_goes_on),
        cmocka_unit_test(nothing_to_read_is_nothing_to_prefetch),
        cmocka_unit_test(it_changes_its_mind),
        cmocka_unit_test(it_reads_what_there_is_time_for),
        cmocka_unit_test(a_slower_disk_is_asked_for_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
