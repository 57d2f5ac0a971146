/* plan: a struct plan from the command line's options, and as JSON. */
#pragma once

#include <jansson.h>

#include "cli/option.h"
#include "plan/plan.h"

struct session;

/* The types of K and V, the budgets and the axes. */
enum status plan_read(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* One of --preset: NAME, or NAME:KEEP:SETTING=VALUE, whose parts are as for --keep and --set and go before these.
 * is_compared: with others, where full is what they are compared with: it has no --keep, --set and --loss. */
enum status plan_read_preset(struct plan *plan, const struct options *options, const char *label, bool is_compared,
                             struct error *error) STATUS_CHECKED;
/* --preset, --set, --keep, --loss, --kld; the budgets come before them. */
enum status plan_read_axes(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* --preset auto with --loss and --kld, for plan_take_auto or plan_choose. */
enum status plan_read_auto(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* What --preset auto stands for with so many tokens, and a line about it on standard error.  The session gets the
 * threads and the weights that were chosen: before its engine.  *sequences go through a pass together; 0: that is
 * chosen, too, and set; NULL: one. */
enum status plan_take_auto(struct plan *plan, const struct options *options, struct session *session, uint64_t depth,
                           size_t *sequences, struct error *error) STATUS_CHECKED;
/* --kv-device, --kv-host and --kv-disk alone; to be read before the axes. */
enum status plan_read_budgets(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* --kv-disk alone. */
enum status plan_read_disk(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* Tokens of a prefill block: the smaller of -b and -ub. */
size_t plan_read_batch_size(const struct options *options);
/* -b, -ub, --segment, --suffix. */
void plan_read_sizes(struct plan *plan, const struct options *options);

/* Axes and methods, for --json. */
json_t *plan_json(const struct plan *plan);
/* What the searches of select=tree evaluated, and what other searches would have; NULL: there were none. */
json_t *tree_counts_json(const struct tree_counts *counts);
/* Mean and least of the mass bounds, and of how many heads; NULL: there were none. */
json_t *mass_bounds_json(const struct mass_bounds *bounds);
/* What --receipt estimates was left out; zeros: nothing was. */
json_t *receipt_json(const struct mass_receipt *receipt);
/* The same for people, without a full stop.  Returns buffer. */
enum { RECEIPT_TEXT_BYTES = 200 };
const char *receipt_text(const struct select_statistics *statistics, char *buffer, size_t buffer_bytes);

/* What reuse=similarity took from steps before; hit_ratio is null where no head looked. */
json_t *reuse_json(const struct reuse_counts *counts, uint64_t row_bytes);

enum kv_type kv_type_of_choice(uint64_t choice); /* of "f16|q8_0" */
const char *kv_type_name(enum kv_type type);
