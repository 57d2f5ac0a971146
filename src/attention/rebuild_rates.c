#include "attention/rebuild_rates.h"

static const double CHANGE_MIN = 1.25;

/* ---- a step ---- */

void rebuild_rates_init(struct rebuild_rates *rates) {
    *rates = (struct rebuild_rates){
        .trial_steps = REBUILD_TRIAL_STEPS, .pause = REBUILD_PAUSE_MIN, .pause_next = REBUILD_PAUSE_MIN};
}

void rebuild_rates_add_link(struct rebuild_rates *rates, double bytes, double seconds, bool is_bound) {
    if (bytes > 0 && (is_bound || seconds < bytes * rate_seconds(&rates->link))) rate_add(&rates->link, bytes, seconds);
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
    for (size_t kind = 0; kind < 2; kind++) rates->besides_then[kind] = rate_seconds(&rates->besides[kind]);
}

static void begin_trial(struct rebuild_rates *rates) {
    const bool changed =
        rate_has_changed(&rates->besides[REBUILD_STEP], rates->besides_then[REBUILD_STEP], CHANGE_MIN) ||
        rate_has_changed(&rates->besides[REBUILD_PROMPT], rates->besides_then[REBUILD_PROMPT], CHANGE_MIN);
    if (changed) rates->pause_next = REBUILD_PAUSE_MIN;
    if (changed || --rates->pause == 0) rates->trial_steps = REBUILD_TRIAL_STEPS;
}

void rebuild_rates_end_step(struct rebuild_rates *rates) {
    const bool has_rebuilt = rates->computing.amount > 0;
    rate_end_sample(&rates->link);
    rate_end_sample(&rates->computing);
    rate_end_sample(&rates->reading);
    rate_end_sample(&rates->besides[REBUILD_STEP]);
    rate_end_sample(&rates->besides[REBUILD_PROMPT]);
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

uint64_t rebuild_rates_choose(struct rebuild_rates *rates, struct split_question *question, enum rebuild_kind kind) {
    const uint64_t tile = question->tile_tokens, most = question->tokens_max / tile * tile,
                   trial = REBUILD_TRIAL_TOKENS / tile * tile;
    const double link = rate_seconds(&rates->link), besides = rate_seconds(&rates->besides[kind]);
    rates->was_asked = true;
    question->seconds_per_token = rate_seconds(&rates->computing);
    question->seconds_per_read = rate_seconds(&rates->reading);
    if (link > 0 && question->seconds_per_token > 0) {
        question->bytes_per_second = 1 / link;
        const struct split split = split_choose(question);
        const double beside = besides > split.seconds_without ? besides : split.seconds_without; /* prefetched */
        if (split.tokens > 0 && split.seconds + besides < SPLIT_GAIN_MIN * beside) return split.tokens;
    }
    if (rates->trial_steps == 0 || rates->computing.amount > 0) return 0;
    const uint64_t tokens = trial > tile ? trial : tile;
    return tokens < most ? tokens : most;
}
