/* reuse_options: when a KV head attends once more to what it has chosen before (CLO section 3), as numbers alone.
 *
 * A head keeps the queries of its group that its list was chosen by, its label.  While the queries of a step are alike
 * enough the list is taken as it is.  How much is enough follows from how important the head's far context is:
 *
 *   theta* = arccos eta,  lambda = s^p,  tau = cos(lambda theta* + (1 - lambda) pi)                    Eq. 7 to 9
 *
 * An important head is held to eta, one without importance takes whatever it has.  s is that of the most important
 * query head of the group.  How alike the group is as a whole: kernels/label/label.h (Eq. 10).
 *
 * An eta above 1 is met by nothing, and then no query is speculated either: the step is the one without reuse. */
#pragma once

#include <stddef.h>

#include "kernels/label/label.h"

enum reuse_kind { REUSE_NONE, REUSE_SIMILARITY };
enum reuse_labels {
    REUSE_SPECULATED, /* as published: lookup, label and choice are by the queries that the layer before expected */
    REUSE_EXACT,      /* by the layer's own queries */
};

struct reuse_options {
    enum reuse_kind kind;
    double eta, power; /* power 0: every head is held to eta, CLO's ablation without Eq. 8 */
    /* Above 0: thresholds are instead those by which the calibration reused this fraction of the lists and lost least
     * (reuse_thresholds.h); without such a calibration there is no selection, unless eta is above 1. */
    double reused;
    double epsilon; /* of how hard a head is to reuse (plan/persistent_heads.h) */
    enum label_aggregate aggregate;
    enum reuse_labels labels;
    /* A list is chosen anew once so many tokens have come since.  Until then the window reaches back to where the list
     * was chosen, so that every token is in one of the two.  0, as published: lists have no age and the window does not
     * grow.  A token that has left the window since the list was chosen is then never attended to. */
    size_t age;
};
struct reuse_options reuse_options_default(void); /* kind NONE, the rest as published but for age 64 */

/* importance: 0..1. */
double reuse_threshold(const struct reuse_options *options, double importance);
