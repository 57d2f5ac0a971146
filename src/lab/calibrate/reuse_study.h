/* reuse_study: what a KV head loses by attending once more to what it chose before (attention/reuse.h), by threshold.
 *
 * Runs of adjacent positions are followed as decode would (samples.h).  Each step chooses the tokens of the largest sum
 * of the group's softmaxes, or takes an earlier step's list while the group's queries are alike enough and the list
 * is not older than REUSE_STUDY_AGE; its window reaches back to where the list was chosen.
 *
 *   hits   the fraction of steps that take an earlier list
 *   loss   mean over all steps of |W_O (o - o_full)|^2, o by the list that is taken, less the same by the step's own
 *          list, divided by the layer's mean |W_O o_full|^2
 */
#pragma once

#include "attention/reuse_thresholds.h"
#include "kernels/kernels.h"
#include "lab/calibrate/samples.h"
#include "platform/pool.h"

enum { REUSE_STUDY_AGE = 64 };

struct reuse_study;

struct reuse_study_options {
    double keep; /* of a position's tokens, sinks and recent ones among them */
    size_t sinks, recent;
};

enum status reuse_study_create(struct reuse_study **study, const struct samples *samples, const struct kernels *kernels,
                               struct pool *pool, const struct reuse_study_options *options, struct error *error)
    STATUS_CHECKED;
void reuse_study_destroy(struct reuse_study *study); /* NULL allowed */
/* curves: [kv_head_count][REUSE_CURVE_POINTS].  importance: [head_count], of the layer. */
enum status reuse_study_run(struct reuse_study *study, size_t layer, const float *importance,
                            struct reuse_point *curves, struct error *error) STATUS_CHECKED;
