/* choice: what the rows of a step attend to in one layer, as a value.
 *
 * A row either sees everything, or each of its KV heads has a list of rows (device.h, row_list).  The caller supplies
 * the choice to fill: what a layer attends to and what the next one is expected to want are two values that know
 * nothing of each other.  A choice owns the memory that its lists lie in, and sums up what was counted while it was
 * filled, over all the times that it was.
 *
 * The lists stay on the device, and nobody waits for them: an observer asks for them (choice_read).  Only where KV is
 * in tiers they lie in MEMORY_SHARED, since the host fetches what they name.
 *
 * It is filled by select_choose (select.h) and valid until it is filled again.  Thread: the engine's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/receipt.h"
#include "attention/tree_density.h"
#include "base/counter.h"
#include "base/status.h"
#include "device/device.h"

struct reuse_counts { /* KV heads of rows that chose, layer by layer */
    uint64_t hits, misses;
    uint64_t rows;             /* of the lists of hits: K and V that a fast tier has already */
    uint64_t age_sum, age_max; /* of the lists of hits, in tokens */
    /* Query heads whose lists were hits, where the receipt estimates what is left out: how many, the sum of it, and the
     * largest. */
    uint64_t estimated;
    double left_out;
    struct mass_estimate worst;
};
struct hit_estimates {
    const struct mass_estimate *estimates; /* [row_count][kv_head_count][group] */
    const bool *hits;                      /* [row_count] of hit_stride, the first of each kv_head_count */
    size_t hit_stride, row_count, kv_head_count, group;
};
void reuse_counts_add_estimates(struct reuse_counts *counts, const struct hit_estimates *more);

struct mass_bounds { /* of all rows and query heads that chose (device.h, mass_bound) */
    uint64_t count;  /* 0: no bounds were computed, and the rest is not set */
    double sum, min; /* 0 to 1 */
};

struct select_statistics { /* since the last reset */
    /* (token, KV head, layer) triples attended to, and that there were; dense layers in */
    uint64_t kept, visible;
    struct select_times times;
    uint64_t evaluated;            /* importances that were computed: of tokens, pages or nodes */
    struct tree_counts tree;       /* select=tree: what its searches evaluated */
    struct mass_bounds mass_bound; /* of rows that chose */
    struct mass_receipt receipt;   /* of rows that chose */
    struct reuse_counts reuse;     /* zeros: nothing is reused */
    /* By the host, which waits for them: lists, where somebody observes or KV is in tiers; and whether a KV head takes
     * its list once more. */
    uint64_t lists_read, verdicts_read;
    uint64_t dense_ns; /* attention of layers and rows that took the dense path */
};

extern const struct counter_table
    select_counters; /* of its numbers; tree, bounds, receipt and reuse are reported apart */
void select_statistics_add(struct select_statistics *sum, const struct select_statistics *more);

/* The searches of a layer's tree. */
struct tree_layer {
    struct tree_density density;
    /* Of the last step that chose: the stream adds to them.  When that step is over they are the density's. */
    struct tree_counts counts;
    enum tree_level leaf, start;
    uint64_t step;
};

/* A list in the host's memory. */
struct host_list {
    const uint32_t *rows; /* [count] */
    size_t count;
};

struct choice {
    bool everything; /* no row chooses in this layer: attention is dense, and the rest is not set */
    size_t dense_count, chosen_count;
    struct attend_item *dense;                        /* [dense_count], one row each: these see everything */
    struct rows_item *chosen;                         /* [chosen_count]: these have lists */
    size_t *dense_items, *chosen_items;               /* the operation's item that each is of */
    struct row_list *lists;                           /* [chosen_count][kv_head_count]: what `chosen` shows */
    size_t layer_index, kv_head_first, kv_head_count; /* as the query had them */
    /* Where the lists' units lie (device.h, fetch), until it is filled again; none: where the views say. */
    struct span places;
    size_t place_stride;
    /* While a step is captured: its rows, and the limits of a layer's lists, [layer][row][kv head] (device.h,
     * step_lists); a layer has room for the limits of kv_heads_max heads, and every list for list_stride rows.  None: a
     * step that is run. */
    struct step_lists captured;
    struct span
        told; /* the same of lists that are kept, where the host has turns (device.h, compare_labels); or none */
    size_t list_stride;
    bool lists_everything; /* of such a step: rows that see everything are chosen ones, without candidates */
    size_t *slots;         /* [chosen_count]: of their sequences (dial.h), where has_slots */
    bool has_slots;
    struct select_statistics statistics;
    /* The workspace; all owned. */
    size_t row_capacity, kv_heads_max; /* kv_head_count is at most that */
    struct select_item *candidates;    /* [row_capacity]: what each of `chosen` chooses from */
    uint64_t *picks;                   /* [row_capacity][kv_head_count] */
    struct kept_list *kept;            /* [row_capacity][kv_head_count]: shown where lists are kept (reuse.h) */
    bool *hits;                        /* [row_capacity][kv_head_count]: lists that were kept from a step before */
    struct device *device;             /* borrowed; whose memory the lists are in */
    bool host_reads;                   /* the lists are in MEMORY_SHARED */
    struct buffer *rows;               /* uint32_t [rows_capacity]: of the lists */
    size_t rows_capacity, rows_max;    /* rows_max: what it may grow to */
    uint32_t *read_rows;               /* [read_capacity]: what choice_read has read */
    size_t read_capacity;
    struct host_list *read_lists; /* [kv_heads_max] */
    struct tree_layer *trees;     /* [tree_layers]; NULL: no tree is searched */
    size_t tree_layers;
    uint64_t step; /* steps that are over */
};

struct choice_options {
    size_t row_capacity, kv_head_count; /* of any layer, at most */
    /* Of all lists of a choice together, at most: allocated at once; 0: as they come to need */
    uint64_t list_rows;
    size_t tree_layers; /* layers whose trees are searched; 0: none */
    bool host_reads;    /* the host reads every list: KV is in tiers */
};
enum status choice_init(struct choice *choice, struct device *device, const struct choice_options *options,
                        struct error *error) STATUS_CHECKED;
void choice_deinit(struct choice *choice); /* zeroed is allowed */

/* Of the layer that chooses. */
struct step_lists choice_step_lists(const struct choice *choice);
struct span choice_told(const struct choice *choice);
/* Memory for lists of so many rows together; waits for the stream where there is not enough.  STATUS_MEMORY */
enum status choice_reserve(struct choice *choice, struct stream *stream, size_t rows, struct error *error)
    STATUS_CHECKED;
/* The lists of chosen[index], [kv_head_count] heads, for an observer: valid until the next call.  Waits for the stream.
 * STATUS_MEMORY */
enum status choice_read(struct choice *choice, struct stream *stream, size_t index, size_t kv_head_count,
                        const struct host_list **lists, struct error *error) STATUS_CHECKED;

/* The searches that the stream counted for a layer, when it has: their levels and sums are known from now on. */
void choice_collect_tree(struct choice *choice, size_t layer_index);
/* The step is over: before the next one the stream is synchronised. */
void choice_end_step(struct choice *choice);
/* Between two steps: what was counted, and to count from 0 on. */
struct select_statistics choice_statistics(const struct choice *choice);
void choice_reset_statistics(struct choice *choice);
