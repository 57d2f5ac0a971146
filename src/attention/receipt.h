/* receipt: how much of the attention was left out, over all rows that chose, by samples of the keys (device.h,
 * sample_mass).
 *
 *   mean, error   of all query heads in all rows, and how far off it may be: its standard error, and how much more the
 *                 mean of `upper` is, which is large where few keys hold what was left out (a window alone)
 *   worst         the largest of a query head in a row, with that one's own standard error; and the largest of a row's
 *                 means
 *
 * The heads of a group share a sample, and so, in part, do the rows of a sequence: error takes both to err alike, and
 * layers and KV heads, whose samples are drawn apart, not. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

struct mass_receipt {
    uint64_t count;              /* query heads of rows that chose; 0: nothing was estimated, and the rest is not set */
    double sum, upper, variance; /* of left_out and upper */
    struct mass_estimate worst;
    uint64_t steps;
    double step_worst;
    uint64_t time_ns; /* that estimating took */
    /* The step that is under way. */
    double step_sum;
    uint64_t step_count;
};

/* estimates: [count], groups of `group` heads, which share a KV head, one behind the other. */
void mass_receipt_add(struct mass_receipt *receipt, const struct mass_estimate *estimates, size_t count, size_t group);
void mass_receipt_end_step(struct mass_receipt *receipt);
void mass_receipt_merge(struct mass_receipt *sum, const struct mass_receipt *more);
/* The mean and its error; zeros: nothing was estimated. */
struct mass_estimate mass_receipt_mean(const struct mass_receipt *receipt);
