/* reuse: selections that are kept from step to step while a head's queries stay alike (CLO section 3; when that is:
 * reuse_options.h).
 *
 * Per sequence, layer and KV head: the label (the queries of the group), the list that was chosen by it, and where.  A
 * hit takes the list without scoring.  A miss chooses, and replaces list and label; a label is not touched by a hit, so
 * that what a head attends to drifts no further from it than the threshold says.
 *
 *   1  A step that misses everywhere is the step without reuse, bit for bit.
 *   2  A list is of the tokens that are there: it is forgotten when its sequence is cut or is another one
 *      (kv_sequence_answer), when a position was skipped (a prompt came in between), when the rule is another, and
 *      with the selection (attention_set_select).
 *   3  What is hit depends on the sequence's own rows alone, in their order: not on the batch, on threads, on what is
 *      in memory or on time.  So a step that failed and is done again finds the lists of its first try: a head that
 *      missed hits by its own label now, and takes the list that it had chosen.
 *   4  A list with its grown window is at most options.age longer than what was chosen.
 *
 * Labels, lists and what is known of them lie in the device's memory, where the verdict falls.  In a step that is a
 * graph (attention.h) the host does not ask for it: lists have the lengths that the device gives them, and hits are
 * counted there.  In others it waits, once a layer, where a list may be taken.  Thread: the engine's.
 */
#pragma once

#include "attention/reuse_options.h"
#include "attention/select.h"

struct kv_sequence;
struct reuse;

struct reuse_shape {
    struct device *device;                                      /* borrowed */
    size_t layer_count, head_count, kv_head_count, k_dimension; /* the last two: the most of any layer */
    const struct kv_groups *groups;                             /* borrowed; NULL: all layers are alike */
    size_t sequence_capacity, row_capacity;                     /* rows that choose together */
    uint64_t list_rows; /* of a KV head's list, at most; 0: they grow as they come to need */
};
/* What it holds of RAM, at most; list_rows must be given. */
uint64_t reuse_bytes(const struct reuse_shape *shape);
/* importance: [layer_count][head_count], 0..1, copied; NULL: every head is as important as can be.  thresholds: [lane]
 * (cache/kv_groups.h), copied; NULL: they follow from importance (reuse_threshold). */
enum status reuse_create(struct reuse **reuse, const struct reuse_shape *shape, const struct reuse_options *options,
                         const float *importance, const double *thresholds, struct error *error) STATUS_CHECKED;
void reuse_destroy(struct reuse *reuse); /* NULL allowed */
/* [lane]: what the similarity of each KV head's group must reach. */
const double *reuse_thresholds(const struct reuse *reuse);
/* Rows look up, choose and label by the queries that the layer before expected. */
bool reuse_speculates(const struct reuse *reuse);
/* heads: [lane], copied: those choose anew in every row from now on, and by the layer's own
 * queries (CLO, 4.2: heads that persist). */
void reuse_choose_anew(struct reuse *reuse, const bool *heads);
/* The queries of such heads of a layer, into those that were expected of it, of the same rows. */
void reuse_put_own_queries(const struct reuse *reuse, struct stream *stream, size_t layer_index,
                           const struct attend_operation *own, const struct attend_operation *expected);

/* Fills the choice as select_choose does, by lists that are kept and by lists that are chosen now.  The query names
 * its items' sequences, one row each, and none twice. */
enum status reuse_choose(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) STATUS_CHECKED;
/* ---- steps that are graphs */

/* Whether they may be: by labels of the layer's own queries. */
bool reuse_fits_graphs(const struct reuse *reuse);
/* In front of such a step: what was planned of a layer (select_limits) also says which labels are compared, and lists
 * have room for what is planned.  *moves: how often their memory has been another one.  Until reuse_note_step nothing
 * of it holds.  STATUS_MEMORY */
enum status reuse_limits(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                         const struct choice *choice, struct step_list *limits, uint64_t *moves, struct error *error)
    STATUS_CHECKED;
/* In place of reuse_choose while the step is captured. */
enum status reuse_capture(struct reuse *reuse, const struct select *select, struct stream *stream,
                          const struct choice_query *query, struct choice *choice, struct error *error) STATUS_CHECKED;
/* The same in place of reuse_expect: limits become those of what is expected, told apart from the layer's own. */
enum status reuse_capture_expected(struct reuse *reuse, const struct select *select, struct stream *stream,
                                   const struct choice_query *query, struct choice *choice, struct error *error)
    STATUS_CHECKED;
/* The step is on the stream: that layer's rows have looked, as the limits of reuse_limits say. */
void reuse_note_step(struct reuse *reuse, const struct choice_query *query, const struct step_list *limits);
/* Behind its last layer: what was counted on the device is on its way to the host. */
void reuse_read_counts(struct reuse *reuse, struct stream *stream, size_t row_count);
/* The stream is synchronised: what steps as graphs have counted since the last reset, in place of what their limits
 * said. */
void reuse_add_counts(const struct reuse *reuse, const struct select *select, struct select_statistics *statistics);
void reuse_reset_counts(struct reuse *reuse);

/* ---- */

/* What a step's heads took and chose, for its timeline; ends the step.  bytes: K and V of the rows of hits. */
struct reuse_step {
    uint64_t hits, misses, bytes, age_sum, age_max;
};
struct reuse_step reuse_end_step(struct reuse *reuse);
/* What a layer is expected to choose, by queries that are expected of it: heads that would take their list have no
 * picks, since what it lies in is in memory.  Decides nothing. */
enum status reuse_expect(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) STATUS_CHECKED;
