/* kld_table: what plans lose on one model: their KL divergence from full attention, at some lengths.
 *
 * The file is the JSON of `loam-lab eval kl --json FILE` (docs/planner.md); beside a model it is called MODEL.kld.json.
 * It belongs to the model file whose fingerprint it has.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { KLD_ROWS_MAX = 512, KLD_LABEL_BYTES = 96 };

struct kld_row {
    char label[KLD_LABEL_BYTES]; /* of `loam-lab eval kl --preset`: "quest:select=meanstd" */
    uint64_t length;             /* tokens */
    double kld, error;           /* nats: the mean and its standard error */
};

struct kld_table {
    struct kld_row rows[KLD_ROWS_MAX];
    size_t row_count;
};

/* fingerprint: the model's (model/calibration.h).  STATUS_IO: it cannot be read; STATUS_USAGE: one line with file,
 * field, found and expected. */
enum status kld_table_load(struct kld_table *table, const char *path, const char *fingerprint, struct error *error)
    STATUS_CHECKED;

/* The KLD of a plan ("quest select=meanstd") at a depth, with its standard error added: the larger of those of the two
 * measured lengths around it.  NaN: the plan was not measured, or only at less than half or more than twice the depth.
 */
double kld_table_at(const struct kld_table *table, const char *plan, uint64_t depth);
