/* select: which tokens of the context a decode step attends to, per KV head.
 *
 * A method ranks the tokens of the middle of a context by the key index beside each chunk (cache/kv_cache.h), which is
 * much smaller than the keys.  A KV head attends to the window (the first `sinks` and the last `recent` tokens),
 * always, and to the best of the middle, as many as --keep leaves.  All query heads of a group share the choice.  A
 * step of a layer builds the key index of the new rows (select_append), scores and takes the best (select_choose), and
 * attends to the chosen rows (select_attend_chosen); attention.h calls them.
 *
 *   1  Selecting 100% equals the dense path: bit for bit, because the dense path is taken, and, with gather_all or in a
 *      graph, because the same rows go through the same ranges in the same order (device.h, attend_rows).
 *   2  The key index depends on the stored KV only (h2o's mass apart), so building it again changes nothing: after
 *      truncation, in any blocks, when the method is changed.
 *   3  Prompts are dense; layers below dense_layers are dense always, and sliding-window layers.
 *   4  At most keep tokens are attended, unless the window alone is more, or units_min asks for more: by every KV
 *      head, or on average over the heads and layers that choose where keep is divided by importance.
 *
 * A method is a table of functions, one file each (select_hash.c ...); nothing else knows one method from
 * another.  Saving and sizing need no method: a key index is bytes beside the chunk.  Thread: the engine's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/choice.h"
#include "attention/reuse_options.h"
#include "base/status.h"
#include "cache/kv_windows.h"
#include "device/device.h"

struct reuse_point;
struct select;
struct select_options;
struct kv_sequence;

/* Of a model, or of one of its layers, then without groups. */
struct select_shape {
    size_t layer_count, head_count;
    size_t kv_head_count, k_dimension, v_dimension; /* the most of any layer */
    const struct kv_groups *groups;                 /* borrowed; NULL: all layers are alike */
    const struct kv_windows *windows;               /* borrowed; of layers that slide, and never choose; NULL: none */
};

/* What was learned from a model (docs/formats.md): matrices in host memory, each of a layer's [kv_head_count]
 * [k_dimension][columns] halves. */
struct select_calibration {
    const char *path; /* the file, or where it would be: for messages; never NULL */
    /* kind "hash" or "skew"; *columns: how many are wanted (hash: exactly, skew: at least), then how many each row
     * has.  NULL: there is none; the function may be NULL, too. */
    const uint16_t *(*find)(void *context, const char *kind, size_t layer_index, size_t *columns);
    void *context;
    const float *head_importance; /* [layer_count][head_count], 0..1; NULL: there is none */
    /* [lane][REUSE_CURVE_POINTS], cache/kv_groups.h: what reuse loses; NULL: there is none */
    const struct reuse_point *reuse_curves;
};

struct select_method {
    const char *name; /* on the command line */
    const char *summary;
    /* Fills layout (zeroed before; KEY_INDEX_NONE and one token per score unless changed). */
    enum status (*layout)(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error);
    /* Fills a layer's weights, [kv_head_count][k_dimension][columns of the layout], called for the layers from
     * dense_layers on in order; NULL: it has none.  shape: the layer's.  alike: the weights of an earlier layer of the
     * same shape; NULL: it is the first.  *fallback: set to a sentence for the user when something else than the
     * calibration was taken. */
    enum status (*weights)(uint16_t *weights, size_t layer_index, const uint16_t *alike,
                           const struct select_shape *shape, const struct select_options *options,
                           const struct select_calibration *calibration, const char **fallback, struct error *error);
    /* In place of the device's attend_rows: attends and sums up, times weight, what listed rows received.  rows: with
     * sums.  scores: the method's, grows with the longest list.  Such rows go one by one.  NULL: attend_rows it is. */
    enum status (*attend)(struct device *device, struct stream *stream, struct attend_rows_operation *rows,
                          float weight, struct buffer *scores, struct error *error);
    double recent_fraction; /* of keep that goes to the most recent tokens, if that is more than `recent` */
    bool watches_prefill;   /* the key index needs the queries of the prompt */
    bool reads_keys;        /* choosing reads all keys, as halves */
    bool needs_key_index;   /* of all chunks before, in memory: that of a chunk is built of theirs */
    bool finds_few_chunks;  /* what it picks lies in so few chunks that slots hold them (list_buffer.h) */
    /* How its choices lie on text, for plan/cost.h: among so many tokens are (tokens / unit)^scatter places, and each
     * is chosen from or not, whatever becomes of the others.  0: one run; 1: each unit by itself.  As steps over
     * recorded rows were counted (docs/planner.md, "What is assumed"), or 0.5. */
    double scatter;
    size_t own_page; /* tokens that are picked together unless options say; 0: single ones */
};

/* loam's own.  A program that has more adds them before main (src/lab/methods). */
extern const struct select_method select_all, select_window, select_meanstd, select_hash, select_tree;
enum { SELECT_METHODS_MAX = 16 };
extern const struct select_method *select_methods[SELECT_METHODS_MAX]; /* in the order of help */
extern size_t select_method_count;
void select_method_add(const struct select_method *method);
const struct select_method *select_method_find(const char *name);   /* NULL: none */
const char *select_method_names(char *buffer, size_t buffer_bytes); /* "all, window, ..."; returns buffer */

/* How much a step attends to, window included: a number of tokens, or a share of what is there. */
struct select_keep {
    double ratio;    /* 0: tokens counts */
    uint64_t tokens; /* UINT64_MAX: all */
};
static inline struct select_keep select_keep_all(void) { return (struct select_keep){.tokens = UINT64_MAX}; }
/* "2048", "8K", "10%", "0.1", "100%".  STATUS_USAGE */
enum status select_keep_parse(struct select_keep *keep, const char *text, struct error *error) STATUS_CHECKED;
const char *select_keep_text(struct select_keep keep, char *buffer, size_t buffer_bytes);

/* How keep is divided among the KV heads of all layers that choose: evenly, or as a program adds it before main
 * (lab/methods/head_budgets.h). */
enum select_heads { SELECT_HEADS_EVEN, SELECT_HEADS_IMPORTANCE };
struct select_division {
    /* *budgets: newly allocated, [lane] (cache/kv_groups.h), of keep, 1 on average over layers from layer_first on; or
     * left NULL: all alike, and *fallback says why. */
    enum status (*load)(double **budgets, const struct select_shape *shape, size_t layer_first,
                        const struct select_calibration *calibration, const char **fallback, struct error *error);
    /* Tokens, of visible ones, that a head with this budget keeps where an even division gives `keep` to each. */
    uint64_t (*keep)(uint64_t keep, uint64_t visible, double budget);
    double budget_max;
};
extern const struct select_division *select_division; /* NULL: SELECT_HEADS_EVEN alone */

/* How the scores of a group's query heads, who share one choice, become one: score.h. */
enum select_group { SELECT_GROUP_OWN, SELECT_GROUP_MAX, SELECT_GROUP_SUM, SELECT_GROUP_SOFTMAX };

/* Codes of keys: signs of learned or random projections, against those of queries (HATA), or levels of the coordinates
 * of a rotated key, against the rotated query: hash.h. */
enum select_code { SELECT_CODE_OWN, SELECT_CODE_SIGN, SELECT_CODE_LEVEL };

/* Defaults: select_options_default.  On the command line all but method and keep are --set NAME=NUMBER. */
struct select_options {
    const struct select_method *method;
    struct select_keep keep;
    size_t sinks, recent; /* the window */
    size_t dense_layers;  /* so many of the layers without windows, the first ones, attend to everything */
    /* A keep that is a fraction takes at least so many units (tokens, pages, leaves, clusters) beside the window: the
     * same fraction of a short context is few pieces, and a head needs some places (docs/evaluation_studies.md). */
    size_t units_min;
    /* A row that sees fewer tokens attends to all of them: of short contexts that is quicker (plan/choose.h). */
    size_t exact_below;
    size_t page;         /* tokens of a page; 0: 16 (quest, meanstd), single tokens (hash, lowrank, exact) */
    size_t bits;         /* of a code; 0: hash 128, pq 6 */
    size_t planes;       /* hash: bits of each coordinate of a key, at least, in place of `bits`; 0: by `bits` */
    size_t partitions;   /* pq: of a key, each with codes of its own */
    size_t codebook;     /* pq: tokens whose centroids a code may name */
    size_t candidates;   /* nested: chunks that hold so many times what is picked are looked into; 0: all */
    bool stays;          /* nested: chunks of the last list are, too */
    double listed;       /* nested: the factor on scores of units that one of the last 8 lists had */
    size_t columns;      /* lowrank: of a partial key; 0: a fifth of the head, as published */
    size_t leaf;         /* tree: tokens of a leaf */
    size_t take;         /* of pages and leaves: tokens kept together, by their best page or leaf; 0: each alone */
    enum tree_rank rank; /* tree: what leaves are ranked by */
    bool estimate;       /* cluster: the rest is attended to as centroids and mean values */
    enum select_heads heads;
    /* SELECT_GROUP_OWN: what loses least with the method (docs/evaluation_studies.md) */
    enum select_group group;
    enum select_code code; /* hash; SELECT_CODE_OWN: levels where the bits are a multiple of the dimension */
    bool norms;            /* hash: scores times |k| */
    /* quest, meanstd, tree: of each step and query head it is found out what share of the attention was certainly
     * caught, by minima and maxima of the keys, which are then kept whatever ranks.  What is chosen is the same. */
    bool mass_bound;
    /* Of each step and query head it is estimated what share of the attention was left out, from so many keys of each
     * chunk, which are kept beside it whatever ranks (receipt.h, device/key_sample.h).  What is chosen is the same. */
    bool receipt;
    size_t sampled_keys;
    /* Of keep that goes to the most recent tokens, if it is more than the method's own. */
    double recent_fraction;
    /* Above 0: what each KV head may leave out; how much it picks follows (dial.h), up to keep.  Needs estimates,
     * as receipt has them. */
    double loss;
    /* Where KV is on disk (tiered.h): importance is evaluated with the KV, as systems without abstracts do, so all of
     * it is read in every step.  What is chosen is the same.  For comparisons. */
    bool scan;
    /* Above 0 (InfiniGen): keep is the most that a row takes; of that as many as score within alpha of the best, on
     * average over the KV heads: whose weight in the softmax is at least e^-alpha of the largest. */
    double alpha;
    struct reuse_options reuse; /* of lists from step to step: reuse.h */
    bool list_buffers;          /* where KV is on disk: rows of a head's last list are kept (list_buffer.h) */
    bool gather_all;            /* no short cut where everything is kept: for tests of 1 */
};
struct select_options select_options_default(void);
/* Sets the number NAME ("sinks", "bits" ...).  false: no such name. */
bool select_option_set(struct select_options *options, const char *name, uint64_t value);
/* Such a name takes 0 or 1. */
bool select_setting_is_flag(const char *name);
/* The same for numbers with a fraction, "eta" and "power".  false: no such name, or not within bounds; *bounds: what it
 * takes, NULL: no such name. */
bool select_option_set_real(struct select_options *options, const char *name, double value, const char **bounds);
/* The same for those whose values are words, "rank", "heads" ...  false: no such name, or no such word; *words: those
 * it takes, NULL: no such name. */
bool select_option_set_word(struct select_options *options, const char *name, const char *word, const char **words);
/* The names that those two take, from 0 on, NULL behind the last; *words: "bound or meanstd", NULL for a number. */
const char *select_setting_name(size_t index, const char **words);

/* What one sequence wants of the engine's method.  `dense` ignores the rest. */
struct select_rule {
    bool dense;
    bool window_only; /* keep is spent on the most recent tokens: the method window over any key index */
    struct select_keep keep;
};
struct select_rule select_rule_of(const struct select_options *options);

struct select_setup {
    const struct select_shape *shape;
    const struct select_options *options;
    const struct select_calibration *calibration; /* needed for methods with weights, else not looked at */
    size_t row_capacity;                          /* rows that choose together */
    size_t sequence_capacity;                     /* sequences that choose */
};
enum status select_create(struct select **select, struct device *device, const struct select_setup *setup,
                          struct error *error) STATUS_CHECKED;
void select_destroy(struct select *select); /* NULL allowed */
/* The first layer that chooses, of those with K and V. */
size_t select_layer_first(const struct select_options *options, const struct select_shape *shape);
/* As they were given, but for dense_layers, which is select_layer_first. */
const struct select_options *select_get_options(const struct select *select);
/* Of the blocks beside the chunks, for the cache: as large as the largest of any layer; 0: the method keeps nothing. */
size_t select_key_index_bytes(const struct select *select);
/* What the key index depends on beside the keys, as a word for a saved document's layout (cache/store/store.h):
 * method, parameters, a digest of the weights. */
enum { SELECT_KIND_BYTES = 48 };
void select_key_index_kind(const struct select *select, char kind[SELECT_KIND_BYTES]);
/* The same before there is a select.  STATUS_USAGE: a parameter of the method is out of bounds. */
enum status select_options_key_index_bytes(const struct select_options *options, const struct select_shape *shape,
                                           size_t *bytes, struct error *error) STATUS_CHECKED;
/* STATUS_UNSUPPORTED: the device does not choose by the method's key index, or not at all.  device NULL: any. */
enum status select_options_run_on(const struct select_options *options, const struct select_shape *shape,
                                  const struct device *device, struct error *error) STATUS_CHECKED;
/* Tokens that are chosen together. */
enum status select_options_unit(const struct select_options *options, const struct select_shape *shape, uint64_t *unit,
                                struct error *error) STATUS_CHECKED;
/* No row of a context so long attends to more than *kept by these options, unless it attends to everything. */
enum status select_options_kept_max(const struct select_options *options, const struct select_shape *shape,
                                    uint64_t context_size, uint64_t *kept, struct error *error) STATUS_CHECKED;
/* [layer_count][head_count], 0..1, where options.reuse wants it and there is a calibration; else NULL. */
const float *select_head_importance(const struct select *select);
/* [lane] (cache/kv_groups.h): what a head must be alike by, where options.reuse.reused is given; else NULL. */
const double *select_reuse_thresholds(const struct select *select);
/* A sentence for the user when a calibration was missing and something else was taken; NULL: not so. */
const char *select_fallback(const struct select *select);

/* Key index of the items' new rows, whose K is stored already.  step: as in attend_operation. */
void select_append(struct select *select, struct stream *stream, size_t layer_index, const struct attend_item *items,
                   size_t item_count, struct span step);

/* Whose choice is wanted, and of what. */
struct choice_query {
    size_t layer_index;
    const struct attend_operation *operation; /* an item of several rows is taken row by row */
    const struct select_rule *const *rules;   /* [operation->item_count] */
    struct kv_sequence *const *sequences;     /* [operation->item_count]; NULL: all keep what their rules say */
    size_t kv_head_first;                     /* of the layer: the operation's head 0 */
    bool attends_next;                        /* all chunks are in memory, and what is chosen is attended to at once */
};

/* Chooses what each row attends to, by the key index alone.  The key index of all rows is built already, and what a row
 * chooses from ends before its window, so each row sees what it would see in a step of its own.  The lists are filled
 * when the stream has come so far.  STATUS_MEMORY: longer lists than the choice has memory for. */
enum status select_choose(const struct select *select, struct stream *stream, const struct choice_query *query,
                          struct choice *choice, struct error *error) STATUS_CHECKED;
/* The two halves of it: who chooses, and how many (choice->picks); and the lists, with the window alone for a KV head
 * whose picks have been set to 0 in between. */
void select_plan(const struct select *select, const struct choice_query *query, struct choice *choice);
enum status select_pick(const struct select *select, struct stream *stream, const struct choice_query *query,
                        struct choice *choice, struct error *error) STATUS_CHECKED;
/* Attention of the rows that chose, at once. */
enum status select_attend_chosen(struct select *select, struct stream *stream, const struct attend_operation *operation,
                                 struct choice *choice, struct error *error) STATUS_CHECKED;
/* Copies of the rows of some heads' lists: [kv_head_count][chunk_stride] chunks, and the lists' rows in them. */
struct select_rows_source {
    struct kv_view view;          /* of rows */
    const struct row_list *lists; /* [kv_head_count]; none has a row above the item's position */
};
/* Some KV heads of choice->chosen[index]. */
struct chosen_heads {
    size_t index, kv_head_first, kv_head_count;
    const struct select_rows_source *source; /* NULL: the rows are where the view shows them */
};
/* The same of some KV heads: bit for bit what all of them at once give. */
enum status select_attend_heads(struct select *select, struct stream *stream, const struct attend_operation *operation,
                                struct choice *choice, const struct chosen_heads *part,
                                struct error *error) STATUS_CHECKED;
/* [rows][head_count]: a lower bound of the mass that each head of the rows that attended last has caught; NULL:
 * options.mass_bound is off. */
const double *select_mass_bounds(const struct select *select);
/* [rows][head_count]: of the rows that attended last, what each head left out; NULL: options.receipt is off. */
const struct mass_estimate *select_mass_estimates(const struct select *select);

/* Choosing needs all chunks in memory, or selection reads every key for comparison: tiered.h then goes head by head. */
bool select_scans(const struct select *select);
/* What a row attends to changes what the next one of its sequence chooses (sums of mass, the dial), so its rows cannot
 * choose together. */
bool select_goes_row_by_row(const struct select *select);
/* Layers whose trees are searched; 0: no tree. */
size_t select_tree_layers(const struct select *select);
/* Whether steps that choose may be graphs (device.h): nothing of a choice is the host's, and a step changes nothing but
 * KV and its key index. */
bool select_fits_graphs(const struct select *select);
/* Of a KV head of a row that chooses. */
struct step_list select_item_limits(const struct select_item *item, size_t kv_head);
/* select_choose, as far as the host's part goes: what is counted is counted, and each row that chooses has the
 * limits of its lists in limits[row][kv head], of all the operation's rows.  true: some of them look into few chunks
 * (device.h, key_index_looks). */
bool select_limits(const struct select *select, const struct choice_query *query, struct choice *choice,
                   struct step_list *limits);
/* Tokens that are chosen together, and that one score is of. */
size_t select_unit_tokens(const struct select *select);
size_t select_scored_tokens(const struct select *select);
/* The layer's rows may choose; in the others everything is attended to. */
bool select_layer_chooses(const struct select *select, size_t layer_index);

/* The method wants select_watch_prefill with every row of a prompt. */
bool select_watches_prefill(const struct select *select);
/* Tokens that a KV head of a row at position attends to in a layer that selects, by the options; where keep is divided
 * by importance, what it would be evenly, which is at least their mean. */
uint64_t select_kept_tokens(const struct select *select, uint64_t position);
uint64_t select_rule_kept_tokens(const struct select *select, const struct select_rule *rule, uint64_t position);
/* A row at position chooses nothing, in no layer: it attends to all tokens, as a row of a prompt does. */
bool select_row_sees_all(const struct select *select, const struct select_rule *rule, uint64_t position);

/* For methods that watch prompts: called with the dense operation of a prefill block, all rows' q at hand. */
enum status select_watch_prefill(struct select *select, struct stream *stream, size_t layer_index,
                                 const struct attend_operation *operation, struct choice *choice, struct error *error)
    STATUS_CHECKED;
