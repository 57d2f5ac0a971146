/* attention: what the layers of a step attend to, and over which memory; the one door to this folder's rooms.
 *
 * A layer goes through it once:
 *
 *   attention_begin_layer   chunks for the layer's new rows
 *   attention_append        their K and V are stored, and what selection reads in place of keys is built
 *   attention_attend        each row attends: to everything, or to what it chooses; attention.c shows the whole way
 *   attention_end_layer     full chunks go to the disk behind the computation; what failed is said here
 *
 * and attention_end_step ends the step.  Layers that keep a state have attention_expect alone.  Everything is put on
 * the stream; the rows of a layer must stay until it ends.  The sequences' KV must have been reserved up to their last
 * new position; their lengths are the engine's to raise, after the last layer.  Thread: the engine's.
 */
#pragma once

#include "attention/list_buffer.h"
#include "attention/select.h"
#include "cache/kv_tier.h"
#include "platform/trace.h"

struct attention;

/* What is computed again instead of read: from disk (rebuild.h), or over a device's bus (bus_rebuild.h). */
struct rebuild_options {
    size_t chunks;      /* of a head: the workspace; 0: nothing is, and the rest has no meaning */
    size_t layer_first; /* over a bus: layers before it are read */
    size_t hidden_size, v_dimension, chunk_bytes; /* the last: of a head's chunk */
    bool shares_link;                             /* weights are read over it, too */
};

struct attention_options {
    size_t kv_head_count;                        /* the most of any layer */
    size_t layer_count, head_count, k_dimension; /* k_dimension, for labels: the same */
    const struct kv_groups *groups;              /* borrowed; NULL: all layers are alike */
    bool reuses;                                 /* KV in tiers: labels and lists count in its budget */
    bool dials;                                  /* the same for what each head picks (dial.h) */
    size_t sequence_capacity;                    /* sequences of a step */
    uint64_t context_size;                       /* tokens of one */
    uint64_t kept_max;                           /* that a row chooses; 0: none does (select_options_kept_max) */
    bool rounds;                                 /* full chunks are rounded (attention_rounds) */
    bool turns;      /* KV in tiers, below a device with memory of its own: its steps may be graphs (turns.h) */
    bool prefetches; /* the next layer's choice; a selection that scans: all of its chunks */
    struct rebuild_options rebuild;
    size_t list_layer_first; /* lists of layers before it stay where they are */
    /* KV in the host's memory, or above a disk: of the device's, for slots of units (cache/unit_cache.h); 0: units are
     * read where they lie.  q4_of_16: where some of the pages are in 4 bits, how many of 16, as far as it is known. */
    uint64_t unit_bytes;
    uint8_t q4_of_16;
    const struct kv_cache *far; /* borrowed; with unit_bytes: whose units they are */
    struct kv_cache *cache;     /* borrowed; whose chunks come and go.  NULL: all KV is in memory */
    struct trace *trace;        /* borrowed; shows choices and waits; NULL: none */
};
/* What attention over KV in tiers holds of RAM for its lists, at most: counted in the cache's budget. */
uint64_t attention_bytes(const struct attention_options *options);
enum status attention_create(struct attention **attention, struct device *device,
                             const struct attention_options *options, struct error *error) STATUS_CHECKED;
void attention_destroy(struct attention *attention); /* NULL allowed */
/* KV in tiers: so many bytes are for rows of lists (list_buffer.h), of heads that do not stay (kv_tier_staying).  Once,
 * before the first step; without it, or with 0, rows stay where they are. */
enum status attention_create_lists(struct attention *attention, uint64_t bytes, struct error *error) STATUS_CHECKED;
/* Who chooses, from now on; borrowed, NULL: everything is attended to.  The observer and the statistics start anew. */
enum status attention_set_select(struct attention *attention, struct select *select, struct error *error)
    STATUS_CHECKED;
void attention_drop_select(struct attention *attention); /* everything is attended to again */
/* Slots for the units that the present selection chooses, where it chooses whole ones: once, before the first step.
 * whole: lanes (cache/kv_groups.h) of layers that choose, whose units are all to stay once they were fetched, or as
 * many as may, the most important one first (cache/unit_cache.h). */
enum status attention_create_units(struct attention *attention, const uint32_t *whole, size_t whole_count,
                                   struct error *error) STATUS_CHECKED;
size_t attention_whole_heads(const struct attention *attention); /* those for which there was room */
/* reuse_thresholds of the present selection; NULL: it reuses nothing. */
const double *attention_reuse_thresholds(const struct attention *attention);
/* Until the next selection: heads that choose anew, by their own queries (reuse_choose_anew). */
void attention_choose_anew(struct attention *attention, const bool *heads);
/* Whether a row changes what the next one of its sequence chooses. */
bool attention_rows_depend(const struct attention *attention);
/* Somebody needs the queries of a prompt, in the last layer as well. */
bool attention_watches_prefill(const struct attention *attention);

/* ---- a layer ---- */

/* Its new rows. */
struct attention_rows {
    size_t layer_index, kv_head_count;
    /* None where the layer attends to another one's KV (cache/kv_groups.h); else
     * float [rows][k_stride], [rows][v_stride]: kv_head_count heads each, RoPE applied to K */
    struct span k, v;
    size_t k_stride, v_stride;
    struct kv_sequence *const *sequences; /* [item_count] */
    /* [item_count]; rows and positions given, views filled in by attention_append */
    struct attend_item *items;
    size_t item_count;
    struct span step; /* struct step_row [rows], where a step is captured (device.h) */
};

/* Rows of a layer whose K and V are computed again. */
enum { REBUILD_ROWS_MAX = 256 };
struct rebuild_rows {
    size_t layer_index;
    uint64_t position_first;
    size_t row_count;   /* at most REBUILD_ROWS_MAX */
    struct span inputs; /* float [row_count][hidden_size]: what W_K and W_V multiply */
    /* or [kept_count], one behind the other, without x, to be restored: row_count together */
    const struct keep_rows_operation *kept;
    size_t kept_count;
    struct span step;      /* with kept: struct step_row [row_count], with the positions */
    const int32_t *tokens; /* [row_count], of the first layer, instead of inputs */
    /* Set: float [row_count][stride], RoPE applied to K; the model's, until it is asked again. */
    struct span k, v;
    size_t k_stride, v_stride;
};

/* What attention asks of the model's arithmetic. */
struct layer_math {
    /* Speculation: the queries of the layer that follows, by what this one was given.  *next is the operation that it
     * is expected to be, of the same rows, with its items' views, valid until it is asked again.  Asked where rows
     * choose.  false: there is none. */
    bool (*queries)(void *context, size_t layer_index, struct attend_operation *next);
    /* K and V of rows of this layer, with the bits that they had in their own step.  NULL: it cannot say. */
    void (*rebuild)(void *context, struct rebuild_rows *rows);
    uint64_t next_window; /* of the layer that follows; 0: it is full */
    void *context;
};

struct attention_layer {
    size_t index;
    struct kv_sequence *const *sequences; /* [operation.item_count] */
    /* [operation.item_count]; NULL: everything is attended to (a prompt) */
    const struct select_rule *const *rules;
    struct attend_operation operation;
    struct layer_math math; /* queries NULL: nothing is expected */
};

enum status attention_begin_layer(struct attention *attention, const struct attention_rows *rows, struct error *error)
    STATUS_CHECKED;
void attention_append(struct attention *attention, struct stream *stream, const struct attention_rows *rows);
/* The inputs of the layer's rows, of which K and V are computed again where they lie behind a bus.  false: such are not
 * kept here. */
struct attention_inputs {
    size_t layer_index;
    struct kv_sequence *const *sequences; /* [item_count] */
    const struct attend_item *items;
    size_t item_count;
    struct span x;  /* float [rows][hidden_size] */
    bool come_back; /* the rows were multiplied as those are that are computed again */
};
bool attention_keep_inputs(struct attention *attention, struct stream *stream, const struct attention_inputs *inputs);
/* kv_sequence_set_length to fewer tokens: the inputs of the rows that stay are kept. */
void attention_truncate(struct attention *attention, struct kv_sequence *sequence, uint64_t token_count);
/* Whether a chunk that is full gets other bits: it is rounded to 4.  A row then attends to all chunks before its own
 * rounded, and to the exact rows of its own, wherever blocks, prompts and steps begin and end.  So rows go in pieces
 * that lie in one chunk: append, attend, attention_store. */
bool attention_rounds(const struct attention *attention);
/* A failure beside attention that ends the step: attention_end_layer returns the first one. */
void attention_fail(struct attention *attention, const struct error *error);
/* Rows that were appended, before those behind them attend.  false: it failed, which attention_end_layer returns. */
bool attention_store(struct attention *attention, struct stream *stream, const struct attention_rows *rows);
/* A failure (disk, checksum, no space) is returned by attention_end_layer; what was computed is not to be used. */
void attention_attend(struct attention *attention, struct stream *stream, const struct attention_layer *layer);
enum status attention_end_layer(struct attention *attention, struct stream *stream, const struct attention_rows *rows,
                                struct error *error) STATUS_CHECKED;
/* In place of all that, of a layer that keeps a state in place of K and V: what the one that follows is expected to
 * choose.  operation: its items alone. */
void attention_expect(struct attention *attention, struct stream *stream, const struct attention_layer *layer);
/* Between two layers: items leave the pass, or others join it.  What was planned, chosen or expected for the layers
 * that follow names items by their index, and is dropped. */
void attention_change_items(struct attention *attention);
/* No chunk is pinned afterwards: to be called when a step has failed or is over.  The stream is synchronised before the
 * next one, and before statistics are asked for. */
void attention_end_step(struct attention *attention);

/* ---- a step as a graph (device.h): its layers are captured as above, and launched without ---- */

/* Whether a layer's way is operations alone that a graph may have. */
bool attention_fits_graphs(const struct attention *attention);
/* A step of sequences, a row each. */
struct attention_step {
    size_t row_count;
    struct kv_sequence *const *sequences;   /* [row_count] */
    const struct select_rule *const *rules; /* [row_count]; NULL: everything is attended to */
    const struct attend_item *items;        /* [row_count]: positions, and a layer's views */
    const uint64_t *windows;                /* [layer_count]: of the layer's attention; 0: full */
};
/* What a captured step cannot differ in, beside its page tables. */
struct attention_shape {
    bool chooses;      /* some row does; those that see everything then have it as lists in the layers that choose */
    bool looks;        /* some list looks into few chunks (device.h, key_index_looks) */
    uint64_t lists[3]; /* where lists and their limits lie; how often kept ones have moved */
    uint64_t tokens;   /* of rows that choose, at most: the longest one's and what it may grow by */
};
/* In front of all that, where KV is in tiers: chunks for the step's new rows, in all layers.  Their page tables are to
 * be shown afterwards.  As attention_begin_layer. */
enum status attention_open_step(struct attention *attention, const struct attention_step *step, struct error *error)
    STATUS_CHECKED;
/* In front of a step's capture or launch: what its lists may hold is on its way to the device, and counted. places:
 * out, [row_count]: the slots of units, and of lists that are kept, that each sequence has; or what of it is computed
 * again.  *fits false: it cannot be a graph, as somebody watches what its rows choose, or as one that sees everything
 * beside others that choose has more of it in RAM than slots. STATUS_MEMORY */
enum status attention_prepare_step(struct attention *attention, struct stream *stream,
                                   const struct attention_step *step, struct attention_shape *kind, uint64_t *places,
                                   bool *fits, struct error *error) STATUS_CHECKED;
/* The step that was prepared last is run after all, and counts for itself. */
void attention_uncount_step(struct attention *attention);
/* The step that was prepared last is on the stream as a graph. */
void attention_note_step(struct attention *attention, struct stream *stream, const struct attention_step *step);
/* The stream is synchronised behind a pass.  is_lost: it failed, so that attention may not have brought all units that
 * were fetched: its sequences begin with empty slots. */
void attention_end_units(struct attention *attention, bool is_lost);
/* The stream is synchronised behind such a graph: where KV is in tiers, full chunks go to the disk, and what failed is
 * said here.  *again: RAM had no slots for all that a layer listed at once, so the step is to be run as it is. */
enum status attention_settle_step(struct attention *attention, const struct attention_step *step, bool *again,
                                  struct error *error) STATUS_CHECKED;
/* Around the capture of a prepared step. */
void attention_begin_capture(struct attention *attention);
void attention_end_capture(struct attention *attention);
/* The items' views, which are up to date for what follows on the stream: attention_append does it too. */
void attention_show_layer(struct stream *stream, const struct attention_rows *rows);
/* A layer of a launch: for those who watch the sequences. */
void attention_watch_layer(const struct attention_rows *rows, uint64_t window);

/* ---- what it did ---- */

struct select_statistics attention_statistics(const struct attention *attention);
struct rebuild_statistics {
    uint64_t layers;                            /* that lacked chunks in RAM whose inputs are kept */
    uint64_t missing_chunks;                    /* of those layers, each of all heads */
    uint64_t chunks;                            /* of them computed again */
    uint64_t kept_chunks;                       /* of those, that stayed in RAM */
    uint64_t refusals;                          /* inputs that could not be read */
    const char *refusal;                        /* why, the first time; NULL: never; the attention's */
    double bytes_per_second, seconds_per_token; /* measured; 0: not yet */
    double seconds_per_read;                    /* of a token that is read beside; 0: not yet */
    double seconds_besides;                     /* of a layer of a step; 0: not yet */
    uint64_t held_tokens;                       /* whose KV memory has room for meanwhile */
    double input_bytes, kv_bytes;               /* of a token and layer; 0: nothing was asked */
};
extern const struct counter_table rebuild_counters;
/* The rate at which KV is read, measured before the first step; nothing where nothing is computed again. */
void attention_set_link(struct attention *attention, double bytes_per_second);
/* For tests and benchmarks: so many chunks of a layer are computed again, whatever the rates say; 0: as they say. */
#define REBUILD_NOTHING (SIZE_MAX - 1)
void attention_force_rebuild(struct attention *attention, size_t chunks);
struct rebuild_statistics attention_rebuild_statistics(const struct attention *attention);
/* Units that were fetched into the device's slots since the selection was set; zeros: there are no slots. Waits for
 * the stream. */
enum status attention_fetch_counts(const struct attention *attention, struct stream *stream,
                                   struct fetch_counts *counts, struct error *error) STATUS_CHECKED;
uint64_t attention_unit_bytes(const struct attention *attention); /* of the device's memory, that its slots have */
struct list_buffer_counts attention_list_buffer_counts(const struct attention *attention);
void attention_reset_statistics(struct attention *attention);

/* What was chosen, for measuring: called after each row of each layer that chose, all KV in memory (the dense layers
 * not).  Everything is valid during the call and host memory, but for what the view shows, which is the device's
 * (device_read). */
struct select_event {
    size_t layer_index;
    size_t row; /* of the batch */
    uint64_t position;
    const float *q; /* [head_count][k_dimension], post-RoPE */
    struct kv_view view;
    struct device *device; /* that the view is of */
    struct stream *stream;
    const struct host_list *lists;        /* [kv_head_count]: the rows attended to */
    const double *mass_bound;             /* [head_count]: 0 to 1; NULL: options.mass_bound is off */
    const struct mass_estimate *left_out; /* [head_count]; NULL: options.receipt is off */
};
typedef void select_observer(void *context, const struct select_event *event);
void attention_set_observer(struct attention *attention, select_observer *observer, void *context); /* or NULL */
