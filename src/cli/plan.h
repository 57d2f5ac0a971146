/* plan: the options about the context's memory and about what a token reads of it, checked and resolved.
 *
 * --preset gives the axes, --set changes one (or a number of the select axis), --keep how much is read. */
#ifndef LOAM_CLI_PLAN_H
#define LOAM_CLI_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "cli/kv_disk.h"
#include "cli/option.h"
#include "engine/engine.h"
#include "kernels/attention/kv_layout.h"
#include "model/model.h"
#include "plan/axes.h"

struct plan {
    const char *preset;
    const char *methods[AXIS_COUNT]; /* words of axis_table: they end at '|' or the end; see plan_method */
    enum kv_type k_type, v_type;
    bool q4_pages, mixes_pages; /* on disk: all in 4 bits, or with mixes_pages a share of them */
    size_t resident_layers;
    struct select_options select;
    bool has_budget;
    uint64_t budget_bytes; /* of KV, device and host together: one memory on a CPU */
    struct kv_disk disk;   /* of --kv-disk; directory NULL: all KV lies in RAM */
};

enum status plan_read(struct plan *plan, const struct options *options, struct error *error) STATUS_CHECKED;
/* --kv-device, --kv-host and --kv-disk alone; to be read before the axes. */
enum status plan_read_budgets(struct plan *plan, const struct options *options, struct error *error)
    STATUS_CHECKED;
void plan_deinit(struct plan *plan); /* safe on a zeroed one */
/* The same from texts: preset NULL is full; set and keep NULL: not given. */
enum status plan_read_axes(struct plan *plan, const char *preset, const char *set, const char *keep,
                           struct error *error) STATUS_CHECKED;
/* "hata", or what makes it different: "hata keep 512", "quest select=meanstd". */
const char *plan_text(const struct plan *plan, char *buffer, size_t buffer_bytes);

/* Tokens per sequence: what -c asks for if the budget holds it for sequence_count sequences (else
 * STATUS_MEMORY, with what would fit), or without -c the model's context, cut to the budget. */
enum status plan_context(const struct plan *plan, const struct options *options,
                         const struct model_config *config, size_t sequence_count, uint64_t *context_size,
                         struct error *error) STATUS_CHECKED;

/* With --kv-disk: the engine's budget in RAM (without --kv-host half of what the system has to give, or all that the
 * context needs) and its directory; name is what a saved document is called.  Borrowed from the plan. */
enum status plan_tiers(const struct plan *plan, const struct model *model, const char *name,
                       struct engine_options *engine_options, struct error *error) STATUS_CHECKED;

/* STATUS_MEMORY when the KV of so many tokens is more than the system has to give now: said before the work,
 * not by the kernel in the middle of it. */
enum status plan_check_memory(const struct plan *plan, const struct model_config *config,
                              uint64_t token_count, struct error *error) STATUS_CHECKED;

/* Axes and methods, for --json. */
json_t *plan_json(const struct plan *plan);
/* What the searches of select=tree evaluated, beside what others would have; NULL: there were none. */
json_t *tree_counts_json(const struct tree_counts *counts);
/* What was certainly caught with certify=1; NULL: nothing was certified. */
json_t *certificates_json(const struct certificates *certificates);

enum kv_type kv_type_of_choice(uint64_t choice); /* of "f16|q8_0" */
const char *kv_type_name(enum kv_type type);

#endif
