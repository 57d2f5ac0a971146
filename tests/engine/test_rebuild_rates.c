/* rebuild_rates: the split follows what a made-up machine measures, step by step, and nothing of the clock: one bad
 * sample changes nothing, a real change of any rate counts within 32 steps, and what does not pay is seldom tried. */
#include "testing.h"

#include <math.h>

#include "attention/rebuild_rates.h"

enum { LAYERS = 8, TOKENS = 8192, TILE = 64, STEPS_MAX = 32 };

/* A machine, and what the step that runs on it read and computed. */
struct machine {
    double bytes_per_second, seconds_per_token, besides;
    double slower; /* in this step: another program runs */
};
static const struct machine quiet = {
    .bytes_per_second = 100e6, .seconds_per_token = 5e-6, .besides = 1e-3, .slower = 1};

static struct split_question question_of(const struct machine *machine) {
    return (struct split_question){.token_count = TOKENS,
                                   .tokens_max = TOKENS,
                                   .tile_tokens = TILE,
                                   .input_bytes = 1152,
                                   .kv_bytes = 4096,
                                   .bytes_per_second = machine->bytes_per_second,
                                   .seconds_per_token = machine->seconds_per_token,
                                   .schedule = SPLIT_COLUMN};
}

struct step {
    uint64_t computed, in_a_layer; /* tokens of all layers; of the last */
    double read_bytes;
};

/* The link is looked at after each tile that is computed, and waited for after the last. */
static void note_layer(struct rebuild_rates *rates, const struct machine *machine, uint64_t l, double bytes) {
    const double link = bytes / machine->bytes_per_second * machine->slower,
                 computing = (double)l * machine->seconds_per_token * machine->slower,
                 tiles = (double)l / REBUILD_TRIAL_TOKENS, looks = floor(link / computing * tiles);
    rebuild_rates_add_computing(rates, (double)l, computing);
    if (looks >= tiles)
        rebuild_rates_add_link(rates, bytes, link, true);
    else
        rebuild_rates_add_link(rates, bytes, (looks + 1) / tiles * computing, looks >= 3);
}

/* A step of all layers, which notes what rebuild.c would. */
static struct step run_step(struct rebuild_rates *rates, const struct machine *machine) {
    const struct split_question truth = question_of(machine);
    const double slower = machine->slower;
    struct step step = {0};
    double seconds = 0;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        struct split_question question = truth;
        const uint64_t l = rebuild_rates_choose(rates, &question, REBUILD_STEP);
        const double bytes = (double)l * truth.input_bytes + (double)(TOKENS - l) * truth.kv_bytes;
        assert_true(l % TILE == 0 && l <= TOKENS);
        step.computed += l;
        step.in_a_layer = l;
        step.read_bytes += bytes;
        rebuild_rates_add_besides(rates, REBUILD_STEP, machine->besides * slower);
        if (l > 0) note_layer(rates, machine, l, bytes);
        seconds += split_seconds(&truth, 0) > machine->besides * slower ? split_seconds(&truth, 0)
                                                                        : machine->besides * slower;
    }
    if (step.computed == 0)
        rebuild_rates_add_link(rates, step.read_bytes, seconds,
                               split_seconds(&truth, 0) > machine->besides * slower);
    rebuild_rates_end_step(rates);
    return step;
}

/* Steps until a layer computes what is best on this machine, within a tile of the crossing; up to limit. */
static size_t steps_until_best(struct rebuild_rates *rates, const struct machine *machine, size_t limit) {
    const struct split_question question = question_of(machine);
    const struct split best = split_choose(&question);
    const double beside = best.seconds_without > machine->besides ? best.seconds_without : machine->besides;
    const uint64_t want = best.seconds + machine->besides < 0.9 * beside ? best.tokens : 0;
    size_t right = 0;
    for (size_t step = 0; step < limit; step++) {
        const struct step done = run_step(rates, machine);
        const uint64_t l = done.in_a_layer;
        right = (l > want ? l - want : want - l) <= want / 20 ? right + 1 : 0;
        if (right == 4) return step - 3; /* it stays */
    }
    return limit;
}

static void settle(struct rebuild_rates *rates, const struct machine *machine) {
    rebuild_rates_init(rates);
    for (size_t step = 0; step < 100; step++) (void)run_step(rates, machine);
}

/* The first sample and any later one: a step whose tiles, reads, or both took 20 times as long. */
static void a_bad_sample_changes_nothing(void **state) {
    (void)state;
    struct machine busy[3] = {quiet, quiet, quiet};
    busy[0].seconds_per_token *= 20;
    busy[1].bytes_per_second /= 20;
    busy[2].slower = 20;
    for (size_t i = 0; i < 3; i++) {
        struct rebuild_rates rates;
        settle(&rates, &quiet);
        const struct step before = run_step(&rates, &quiet);
        assert_true(before.in_a_layer > TOKENS / 2);
        for (size_t round = 0; round < 20; round++) {
            (void)run_step(&rates, &busy[i]);
            for (size_t step = 0; step < RATE_SAMPLES; step++)
                assert_int_equal(run_step(&rates, &quiet).in_a_layer, before.in_a_layer);
        }
        rebuild_rates_init(&rates);
        rebuild_rates_add_link(&rates, quiet.bytes_per_second, 1, true);
        rebuild_rates_end_step(&rates);
        (void)run_step(&rates, &busy[i]);
        assert_true(steps_until_best(&rates, &quiet, STEPS_MAX) <= RATE_SAMPLES);
    }
}

/* Bytes that took long although nobody waited for them say only that the link is no slower. */
static void what_is_not_waited_for_is_a_bound(void **state) {
    (void)state;
    static const struct {
        double sent;
        bool is_bound;
        double known;
    } turns[] = {{100e6, true, 100e6}, {10e6, false, 100e6}, {200e6, false, 200e6}, {50e6, true, 50e6}};
    struct rebuild_rates rates;
    rebuild_rates_init(&rates);
    for (size_t turn = 0; turn < sizeof turns / sizeof *turns; turn++) {
        for (size_t step = 0; step < RATE_SAMPLES; step++) {
            rebuild_rates_add_link(&rates, turns[turn].sent, 1, turns[turn].is_bound);
            rebuild_rates_end_step(&rates);
        }
        assert_true(fabs(rate_per_second(&rates.link) / turns[turn].known - 1) < 1e-9);
    }
}

/* One layer of the first step is a trial; those behind it go by what it measured. */
static void the_first_step_knows(void **state) {
    (void)state;
    struct rebuild_rates rates;
    rebuild_rates_init(&rates);
    rebuild_rates_add_link(&rates, quiet.bytes_per_second, 1, true);
    rebuild_rates_end_step(&rates);
    assert_true(run_step(&rates, &quiet).in_a_layer > TOKENS / 2);
}

/* Computing takes long for many steps, and nothing is computed again; when it is fast again nothing shows that but a
 * trial. */
static void it_comes_back(void **state) {
    (void)state;
    struct machine busy = quiet;
    busy.seconds_per_token *= 100;
    for (size_t wait = 0; wait < 2 * REBUILD_PAUSE_MAX; wait++) {
        struct rebuild_rates rates;
        settle(&rates, &quiet);
        for (size_t step = 0; step < 200; step++) (void)run_step(&rates, &busy);
        for (size_t step = 0; step < wait; step++)
            assert_true(run_step(&rates, &busy).computed <= REBUILD_TRIAL_TOKENS);
        assert_true(steps_until_best(&rates, &quiet, 2 * STEPS_MAX) < STEPS_MAX);
    }
}

/* The other program slows all that the processor does: its end shows in what layers compute besides. */
static void what_else_is_computed_tells(void **state) {
    (void)state;
    struct machine busy = quiet;
    busy.seconds_per_token *= 100;
    busy.besides *= 3;
    for (size_t wait = 0; wait < 2 * REBUILD_PAUSE_MAX; wait++) {
        struct rebuild_rates rates;
        settle(&rates, &busy);
        for (size_t step = 0; step < wait; step++) (void)run_step(&rates, &busy);
        assert_true(steps_until_best(&rates, &quiet, STEPS_MAX) <= RATE_SAMPLES + REBUILD_TRIAL_STEPS);
    }
}

static void every_change_counts_within_32_steps(void **state) {
    (void)state;
    static const struct machine machines[] = {
        {.bytes_per_second = 10e6, .seconds_per_token = 5e-6, .besides = 1e-3, .slower = 1},
        {.bytes_per_second = 100e6, .seconds_per_token = 5e-6, .besides = 1e-3, .slower = 1},
        {.bytes_per_second = 1e9, .seconds_per_token = 5e-6, .besides = 1e-3, .slower = 1},
        {.bytes_per_second = 10e9, .seconds_per_token = 5e-6, .besides = 1e-3, .slower = 1}, /* nothing */
        {.bytes_per_second = 100e6, .seconds_per_token = 50e-6, .besides = 1e-3, .slower = 1},
        {.bytes_per_second = 100e6, .seconds_per_token = 5e-6, .besides = 2, .slower = 1}, /* nothing */
        {.bytes_per_second = 1e9, .seconds_per_token = 1e-6, .besides = 1e-3, .slower = 1},
    };
    enum { COUNT = sizeof machines / sizeof *machines };
    for (size_t from = 0; from < COUNT; from++)
        for (size_t to = 0; to < COUNT; to++)
            for (size_t wait = 0; wait < REBUILD_PAUSE_MAX + REBUILD_TRIAL_STEPS; wait++) {
                struct rebuild_rates rates;
                settle(&rates, &machines[from]);
                for (size_t step = 0; step < wait; step++) (void)run_step(&rates, &machines[from]);
                const size_t steps = steps_until_best(&rates, &machines[to], 2 * STEPS_MAX);
                if (steps >= STEPS_MAX)
                    fail_msg("from %zu to %zu, %zu steps later: %zu steps", from, to, wait, steps);
            }
}

/* A disk that becomes ten times slower while the link was fast enough for everything to be read: in bytes, what is read
 * of 32 steps is close to what the best split reads from the first of them on. */
static void a_slower_disk_is_read_less(void **state) {
    (void)state;
    struct rebuild_rates rates;
    struct machine fast = quiet, slow = quiet;
    fast.bytes_per_second = 3e9;
    slow.bytes_per_second = 3e8;
    settle(&rates, &fast);
    double before = 0, after = 0, least = 0;
    for (size_t step = 0; step < STEPS_MAX; step++) before += run_step(&rates, &fast).read_bytes;
    const struct split_question question = question_of(&slow);
    const struct split best = split_choose(&question);
    for (size_t step = 0; step < STEPS_MAX; step++) {
        after += run_step(&rates, &slow).read_bytes;
        least += LAYERS * ((double)best.tokens * question.input_bytes +
                           (double)(TOKENS - best.tokens) * question.kv_bytes);
    }
    assert_true(after < 0.75 * before && after < 1.25 * least);
    for (size_t wait = 0; wait < REBUILD_PAUSE_MAX + REBUILD_TRIAL_STEPS;
         wait++) { /* no pause is waited for */
        settle(&rates, &fast);
        for (size_t step = 0; step < wait; step++) (void)run_step(&rates, &fast);
        assert_true(steps_until_best(&rates, &slow, STEPS_MAX) <= RATE_SAMPLES + REBUILD_TRIAL_STEPS);
    }
}

/* What reading costs the thread that computes is in the split: of a token as much as the link takes for it, so fewer
 * are computed again; and it is forgotten within the samples. */
static void what_reading_costs_counts(void **state) {
    (void)state;
    static const double costs[] = {0, 20e-6, 0};
    struct rebuild_rates rates;
    struct split_question question = question_of(&quiet);
    uint64_t chosen[3];
    question.schedule = SPLIT_OVERLAPPED;
    question.first_tokens = REBUILD_TRIAL_TOKENS;
    question.held_tokens = TOKENS;
    rebuild_rates_init(&rates);
    for (size_t i = 0; i < 3; i++) {
        for (size_t step = 0; step < RATE_SAMPLES; step++) {
            rebuild_rates_add_link(&rates, quiet.bytes_per_second, 1, true);
            rebuild_rates_add_computing(&rates, 1000, 0.04);
            rebuild_rates_add_reading(&rates, 1000, 1000 * costs[i]);
            rebuild_rates_end_step(&rates);
        }
        assert_true(fabs(rate_seconds(&rates.reading) - costs[i]) < 1e-12);
        chosen[i] = rebuild_rates_choose(&rates, &question, REBUILD_STEP);
        question.seconds_per_read = costs[i];
        assert_int_equal(chosen[i], split_choose(&question).tokens);
    }
    assert_true(chosen[1] < chosen[0] && chosen[2] == chosen[0] && chosen[1] > 0);
}

/* Where it does not pay: a tile in one layer of 3 steps of every 19, and that soon. */
static void what_does_not_pay_is_seldom_tried(void **state) {
    (void)state;
    struct rebuild_rates rates;
    struct machine fast = quiet;
    uint64_t computed = 0;
    size_t tried = 0;
    fast.bytes_per_second = 10e9;
    settle(&rates, &fast);
    for (size_t step = 0; step < 10 * (REBUILD_PAUSE_MAX + REBUILD_TRIAL_STEPS); step++) {
        const uint64_t tokens = run_step(&rates, &fast).computed;
        computed += tokens;
        tried += tokens > 0;
    }
    assert_int_equal(tried, 10 * REBUILD_TRIAL_STEPS);
    assert_int_equal(computed, 10 * REBUILD_TRIAL_STEPS * REBUILD_TRIAL_TOKENS);
}

/* Inputs that are kept of nothing, or less than a tile of them, are never asked for. */
static void nothing_kept_is_nothing_chosen(void **state) {
    (void)state;
    struct rebuild_rates rates;
    struct split_question question = question_of(&quiet);
    rebuild_rates_init(&rates);
    question.tokens_max = TILE - 1;
    for (size_t step = 0; step < STEPS_MAX; step++) {
        assert_int_equal(rebuild_rates_choose(&rates, &question, REBUILD_STEP), 0);
        rebuild_rates_end_step(&rates);
    }
    question.tokens_max = TOKENS; /* now they are */
    assert_int_equal(rebuild_rates_choose(&rates, &question, REBUILD_STEP), REBUILD_TRIAL_TOKENS);
}

static void a_rate_is_the_median_of_its_last_samples(void **state) {
    (void)state;
    struct rate rate = {.count = 0};
    assert_true(rate_seconds(&rate) == 0 && rate_per_second(&rate) == 0 && rate_spread(&rate) == 0);
    rate_end_sample(&rate);
    assert_int_equal(rate.count, 0); /* nothing was added */
    rate_add(&rate, 2, 3);
    rate_add(&rate, 2, 1);
    assert_true(rate_seconds(&rate) == 1 && rate_spread(&rate) == 0); /* the sample so far */
    rate_end_sample(&rate);
    rate_note(&rate, 1, 4);
    assert_true(rate_seconds(&rate) == 1); /* of two the smaller */
    rate_note(&rate, 1, 2);
    assert_true(rate_seconds(&rate) == 2 && rate_per_second(&rate) == 0.5 && rate_spread(&rate) == 1.5);
    for (int i = 0; i < RATE_SAMPLES; i++) rate_note(&rate, 2, 16); /* what was before has gone */
    assert_true(rate_seconds(&rate) == 8 && rate_spread(&rate) == 0);
    assert_false(rate_has_changed(&rate, 0, 1.5)); /* not known then */
    assert_false(rate_has_changed(&rate, 6, 1.5));
    assert_true(rate_has_changed(&rate, 5, 1.5) && rate_has_changed(&rate, 13, 1.5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_is_the_median_of_its_last_samples),
        cmocka_unit_test(a_bad_sample_changes_nothing),
        cmocka_unit_test(what_is_not_waited_for_is_a_bound),
        cmocka_unit_test(the_first_step_knows),
        cmocka_unit_test(it_comes_back),
        cmocka_unit_test(what_else_is_computed_tells),
        cmocka_unit_test(every_change_counts_within_32_steps),
        cmocka_unit_test(a_slower_disk_is_read_less),
        cmocka_unit_test(what_reading_costs_counts),
        cmocka_unit_test(what_does_not_pay_is_seldom_tried),
        cmocka_unit_test(nothing_kept_is_nothing_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
