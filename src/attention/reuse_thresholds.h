/* reuse_thresholds: how alike each KV head's queries must be for it to reuse its list, so that all heads together lose
 * least.
 *
 * Eq. 7 to 9 of [clo] say it by how important a head's far context is.  That is not what reuse loses: a head of little
 * importance whose list is never chosen anew loses more per list than an important one whose queries hardly turn
 * (decision 0028).  Here the loss itself is measured: `loam-lab calibrate` follows each head through decode and notes,
 * for some thresholds, how many lists are reused and how far the layer's output is off by it
 * (lab/calibrate/reuse_study.h).  For a wanted fraction of reused lists the thresholds are those of the lowest sum of
 * losses: over all heads a reused list more costs as much. */
#pragma once

#include <stddef.h>

enum { REUSE_CURVE_POINTS = 12 };
/* Those that are measured; the last one is met by nothing. */
extern const double reuse_curve_thresholds[REUSE_CURVE_POINTS];

/* Of a KV head held to a threshold. */
struct reuse_point {
    float threshold, hits, loss; /* hits: of its lookups; loss: mean over all steps, 0 without reuse */
};

/* curves: [count][REUSE_CURVE_POINTS], in the order of rising thresholds.  thresholds: [count]; together they reuse at
 * least the wanted fraction of lists, or as many as the curves have.  Returns the fraction that they are expected to
 * reuse. */
double reuse_thresholds_divide(double *thresholds, const struct reuse_point *curves, size_t count, double wanted);
