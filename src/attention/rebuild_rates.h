/* rebuild_rates: how fast this machine reads KV, computes it again and computes what else a layer needs, and how much
 * of a layer is worth computing again by that (KVPR; attention/split.h).
 *
 * What the layers of a step measure is one sample.  A rate is the median of the last RATE_SAMPLES samples: a step on
 * a busy machine changes nothing, and a change of the machine counts after three steps.
 *
 * Where nothing is computed again, what that would take is not measured either.  So it is tried, in one layer of a step
 * and for REBUILD_TRIAL_STEPS steps: at the start, after pauses that grow from REBUILD_PAUSE_MIN to REBUILD_PAUSE_MAX
 * steps, and as soon as what layers compute besides differs by a quarter from what it was at the last trial: so does
 * computing K and V then.  The link's rate is always measured, and counts without a trial.  Thus any change shows
 * within REBUILD_PAUSE_MAX + 2 * REBUILD_TRIAL_STEPS steps.  A prompt's block is a step too; what its many rows compute
 * besides is kept apart.
 *
 * Arithmetic only.  Thread: the owner's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "attention/split.h"
#include "rates/rates.h"

enum {
    REBUILD_TRIAL_STEPS = 3,    /* more than half of the samples: they decide the median */
    REBUILD_TRIAL_TOKENS = 256, /* computed again where no rate says so */
    REBUILD_PAUSE_MIN = 4,
    REBUILD_PAUSE_MAX = 16,
};

enum rebuild_kind { REBUILD_STEP, REBUILD_PROMPT }; /* of a step, of a prompt's block */

struct rebuild_rates {
    struct rate link, computing; /* bytes, tokens */
    struct rate reading;         /* tokens, of the thread that computes */
    struct rate besides[2];      /* layers of either rebuild_kind */
    unsigned trial_steps;        /* still to come of a trial; 0: none is under way */
    unsigned pause, pause_next;  /* steps until the next one, and after it */
    double besides_then[2];      /* at the last trial's end */
    bool was_asked;              /* in this step: chunks were missing */
};

void rebuild_rates_init(struct rebuild_rates *rates);

/* ---- what the layers of a step measure ---- */

/* is_bound: the link took all of these seconds for the bytes; else it is at least as fast. */
void rebuild_rates_add_link(struct rebuild_rates *rates, double bytes, double seconds, bool is_bound);
void rebuild_rates_add_computing(struct rebuild_rates *rates, double tokens, double seconds);
/* Of the thread that computes, for tokens whose KV came meanwhile. */
void rebuild_rates_add_reading(struct rebuild_rates *rates, double tokens, double seconds);
void rebuild_rates_add_besides(struct rebuild_rates *rates, enum rebuild_kind kind, double seconds);
void rebuild_rates_end_step(struct rebuild_rates *rates);

/* ---- what follows ---- */

/* How many tokens of the question, whose rates are filled in, are to be computed again. */
uint64_t rebuild_rates_choose(struct rebuild_rates *rates, struct split_question *question, enum rebuild_kind kind);
