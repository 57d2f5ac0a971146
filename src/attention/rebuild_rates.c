#include "attention/rebuild_rates.h"

#include <string.h>

#include "base/checked.h"

static const double GAIN_MIN = 0.9; /* of the time beside: a smaller gain may be what the rates miss */
static const double CHANGE_MIN = 1.25;

/* ---- a rate ---- */

static void rate_add(struct rebuild_rate *rate, double amount, double seconds) {
    rate->now.amount += amount;
    rate->now.seconds += seconds;
}

static void rate_end_step(struct rebuild_rate *rate) {
    struct rebuild_window *past = &rate->past;
    if (rate->now.amount > 0) {
        past->samples[past->next] = rate->now.seconds / rate->now.amount;
        past->next = (past->next + 1) % REBUILD_SAMPLES;
        past->count = min_size(past->count + 1, REBUILD_SAMPLES);
    }
    rate->now = (struct rebuild_sum){0};
}

/* Seconds for one: the median, of an even number the smaller of the two; in the first step what it has measured so far.
 * 0: not known. */
static double rate_value(const struct rebuild_rate *rate) {
    double sorted[REBUILD_SAMPLES];
    const size_t count = rate->past.count;
    if (count == 0) return rate->now.amount > 0 ? rate->now.seconds / rate->now.amount : 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > rate->past.samples[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = rate->past.samples[i];
    }
    return sorted[(count - 1) / 2];
}

static bool has_changed(const struct rebuild_rate *rate, double then) {
    const double value = rate_value(rate);
    return then > 0 && (value > CHANGE_MIN * then || CHANGE_MIN * value < then);
}

/* ---- a step ---- */

void rebuild_rates_init(struct rebuild_rates *rates) {
    *rates = (struct rebuild_rates){
        .trial_steps = REBUILD_TRIAL_STEPS, .pause = REBUILD_PAUSE_MIN, .pause_next = REBUILD_PAUSE_MIN};
}

void rebuild_rates_add_link(struct rebuild_rates *rates, double bytes, double seconds, bool is_bound) {
    if (bytes > 0 && (is_bound || seconds < bytes * rate_value(&rates->link)))
        rate_add(&rates->link, bytes, seconds);
}

void rebuild_rates_add_computing(struct rebuild_rates *rates, double tokens, double seconds) {
    rate_add(&rates->computing, tokens, seconds);
}

void rebuild_rates_add_reading(struct rebuild_rates *rates, double tokens, double seconds) {
    rate_add(&rates->reading, tokens, seconds);
}

void rebuild_rates_add_besides(struct rebuild_rates *rates, enum rebuild_kind kind, double seconds) {
    rate_add(&rates->besides[kind], 1, seconds);
}

static void rest(struct rebuild_rates *rates, unsigned pause, unsigned pause_next) {
    rates->trial_steps = 0;
    rates->pause = pause;
    rates->pause_next = pause_next < REBUILD_PAUSE_MAX ? pause_next : REBUILD_PAUSE_MAX;
    for (size_t kind = 0; kind < 2; kind++) rates->besides_then[kind] = rate_value(&rates->besides[kind]);
}

static void begin_trial(struct rebuild_rates *rates) {
    const bool changed = has_changed(&rates->besides[REBUILD_STEP], rates->besides_then[REBUILD_STEP]) ||
                         has_changed(&rates->besides[REBUILD_PROMPT], rates->besides_then[REBUILD_PROMPT]);
    if (changed) rates->pause_next = REBUILD_PAUSE_MIN;
    if (changed || --rates->pause == 0) rates->trial_steps = REBUILD_TRIAL_STEPS;
}

void rebuild_rates_end_step(struct rebuild_rates *rates) {
    const bool has_rebuilt = rates->computing.now.amount > 0;
    rate_end_step(&rates->link);
    rate_end_step(&rates->computing);
    rate_end_step(&rates->reading);
    rate_end_step(&rates->besides[REBUILD_STEP]);
    rate_end_step(&rates->besides[REBUILD_PROMPT]);
    if (rates->trial_steps > 1)
        rates->trial_steps -= has_rebuilt;
    else if (rates->trial_steps == 1 && has_rebuilt)
        rest(rates, rates->pause_next, 2 * rates->pause_next);
    else if (has_rebuilt) /* the rates say so, and are measured */
        rest(rates, REBUILD_PAUSE_MIN, REBUILD_PAUSE_MIN);
    else if (rates->trial_steps == 0 && rates->was_asked)
        begin_trial(rates);
    rates->was_asked = false;
}

/* ---- what follows ---- */

double rebuild_rates_bytes_per_second(const struct rebuild_rates *rates) {
    const double seconds = rate_value(&rates->link);
    return seconds > 0 ? 1 / seconds : 0;
}

double rebuild_rates_seconds_per_token(const struct rebuild_rates *rates) {
    return rate_value(&rates->computing);
}

double rebuild_rates_seconds_per_read(const struct rebuild_rates *rates) {
    return rate_value(&rates->reading);
}

double rebuild_rates_seconds_besides(const struct rebuild_rates *rates) {
    return rate_value(&rates->besides[REBUILD_STEP]);
}

uint64_t rebuild_rates_choose(struct rebuild_rates *rates, struct split_question *question,
                              enum rebuild_kind kind) {
    const uint64_t tile = question->tile_tokens, most = question->tokens_max / tile * tile,
                   trial = REBUILD_TRIAL_TOKENS / tile * tile;
    const double link = rate_value(&rates->link), besides = rate_value(&rates->besides[kind]);
    rates->was_asked = true;
    question->seconds_per_token = rate_value(&rates->computing);
    question->seconds_per_read = rate_value(&rates->reading);
    if (link > 0 && question->seconds_per_token > 0) {
        question->bytes_per_second = 1 / link;
        const struct split split = split_choose(question);
        const double beside =
            besides > split.seconds_without ? besides : split.seconds_without; /* prefetched */
        if (split.tokens > 0 && split.seconds + besides < GAIN_MIN * beside) return split.tokens;
    }
    if (rates->trial_steps == 0 || rates->computing.now.amount > 0) return 0;
    const uint64_t tokens = trial > tile ? trial : tile;
    return tokens < most ? tokens : most;
}
