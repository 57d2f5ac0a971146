/* label: how alike the queries of a group are to those that they are compared with, their label (CLO section 3).
 *
 * The group as a whole is as alike as the harmonic mean of its heads' cosines, weighted by importance:
 *
 *   sum s / sum (s / cosine)                                                                     Eq. 10 of [clo]
 *
 * Differs from [clo]: Eq. 10 has no meaning where a cosine is <= 0, and where every s is 0.  Such a group is as alike
 * as its least similar head: no more, or a threshold below zero would be reached by queries that have turned away.  A
 * cosine that is no number (a query of zeros, NaN) makes the group NaN, which reaches no threshold.
 *
 * Plain C alone: a step's queries are a few thousand numbers a layer. */
#pragma once

#include <stddef.h>

enum label_aggregate { LABEL_HARMONIC, LABEL_MINIMUM }; /* the minimum: CLO's ablation without Eq. 10 */

/* NaN where one of them is zero or not finite. */
double label_cosine(const float *a, const float *b, size_t dimension);
/* cosines, importance (0..1): [count], of the heads of a group. */
double label_similarity(enum label_aggregate aggregate, const double *cosines, const float *importance, size_t count);
