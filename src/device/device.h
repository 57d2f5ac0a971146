/* device: what a processor with memory can do.  Nothing above this folder knows which one it is.
 *
 * Work is put on a stream and runs in order; the call returns at once on a device with a queue and
 * after the work on one without (cpu).  Launching cannot fail halfway: a device that breaks remembers its
 * first error, which stream_synchronize returns.
 *
 * Operations name places in the device's buffers (buffer.h).  Small arrays of the host are given by ordinary pointers.
 * Those that an operation reads (items, picks, lists, deltas) are read before the call returns, so the caller may
 * change them then; a device with a queue stages them per launch.  Those that it writes have their results after the
 * next stream_synchronize, and must last until then.
 * Thread: one engine thread calls.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/counter.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/look.h"
#include "device/place.h"
#include "device/step.h"
#include "kernels/abstract/abstract.h"
#include "kernels/attention/kv_layout.h"
#include "kernels/hash/hash.h"
#include "kernels/label/label.h"
#include "kernels/level/level.h"
#include "kernels/rope/rope.h"
#include "kernels/tree/tree.h"
#include "platform/cpu.h"
#include "tensor/type.h"

struct graph;
struct stream;
/* What was put on a stream up to a point of it.  {NULL}: nothing. */
struct ticket {
    struct stream *stream;
    uint64_t value; /* rises along the stream */
};

enum { DEVICE_GROUP_MAX = 4, DEVICE_BATCH_MAX = 4096 };
enum { EXPERT_GROUP_MAX = 2, ROUTE_USED_MAX = 64, ROUTE_GROUPS_MAX = 64 };

/* A matrix that operations multiply with. */
struct weight {
    struct matrix matrix; /* as the model file has it; data NULL: there is none */
    /* Where weight_load puts it.  MEMORY_SHARED: operations read it over the device's bus.  The cpu has one memory. */
    enum memory_kind kind;
    struct buffer memory; /* as the device has it, in a form of its own; the cpu's is the file's */
    /* Borrowed, host memory: products are multiplied by it, of a stack by that of the expert; NULL: they are not.
     * NVFP4 has it. */
    const float *scale;
    size_t scale_count; /* of a stack: its experts; 0: one */
};

/* y_j = x * w_j^T (+ bias_j) for the matrices that share one input: q, k and v; gate and up. */
struct matmul_operation {
    struct span x; /* float [row_count][x_stride] */
    size_t x_stride;
    size_t row_count;
    size_t weight_count; /* 1..DEVICE_GROUP_MAX */
    const struct weight *weights[DEVICE_GROUP_MAX];
    struct span biases[DEVICE_GROUP_MAX]; /* float [rows], or none */
    struct span y[DEVICE_GROUP_MAX];      /* float [row_count][y_stride[j]] */
    size_t y_stride[DEVICE_GROUP_MAX];
    bool accumulate; /* y += instead of y =: the residual connection */
};

/* y[i] = row step[i].token of table (+ row step[i].position + position_offset of a second table). */
struct embed_operation {
    const struct weight *table;
    const struct weight *position_table; /* NULL: none (OPT has one) */
    struct span step;                    /* struct step_row [row_count] */
    uint64_t position_offset;
    size_t row_count;
    struct span y; /* float [row_count][column_count, or columns of the table] */
    float scale;   /* of the first table's rows; 0: 1 */
    /* Of a table alone: columns from column_first on, whole blocks before and in them; column_count 0: all. */
    size_t column_first, column_count;
};

enum norm_kind { NORM_RMS, NORM_LAYER };

struct norm_operation {
    enum norm_kind kind;
    struct span x; /* float [row_count][x_stride]; each row holds segment_count segments */
    size_t x_stride, row_count;
    size_t segment_count; /* 1, or heads for the per-head norm of qwen3 */
    size_t segment_size;  /* elements of a segment, = length of w */
    struct span w, b;     /* float; b only for NORM_LAYER */
    float epsilon;
    struct span y; /* float [row_count][y_stride]; may be x */
    size_t y_stride;
    bool adds;   /* to y, which is not x then; x is lost */
    float scale; /* of y, where it adds: y = (y + norm(x)) scale; 0: 1 */
};

/* The rotation angles of a step's rows, computed once per step: cosine_sine[row][2 * pair_count]. */
struct rope_angles_operation {
    struct span step; /* struct step_row [row_count] */
    size_t row_count;
    struct span frequency; /* float [pair_count] */
    size_t pair_count;
    float factor;
    struct span cosine_sine; /* float */
};

struct rope_operation {
    struct span x; /* float [row_count][x_stride]: head_count heads of head_stride elements */
    size_t x_stride, row_count, head_count, head_stride, pair_count;
    enum rope_order order;
    struct span cosine_sine;
};

/* SWIGLU_CLAMPED is of gpt-oss's experts (kernels/activation); SOFTCAP of logits: cap tanh(gate / cap). */
enum activation_kind {
    ACTIVATION_SILU_MULTIPLY,
    ACTIVATION_RELU,
    ACTIVATION_GELU_MULTIPLY,
    ACTIVATION_SWIGLU_CLAMPED,
    ACTIVATION_SOFTCAP
};

struct activation_operation {
    enum activation_kind kind;
    struct span gate, up; /* float [row_count][stride]; up only for the gated kinds */
    size_t stride, row_count, count;
    float cap;     /* ACTIVATION_SOFTCAP */
    struct span y; /* may be gate */
};

/* The KV rows of one sequence in one layer, as attention sees them.  Its tables are page tables (uint32_t) in the
 * device's memory, as the stream has them when the operation runs (update_places).  The view is passed by value. */
struct kv_view {
    const struct kv_layout *layout;
    /* Host memory, in which the places of all tables are looked up; lasts until the operations that were given the view
     * are over. */
    const struct kv_pools *pools;
    /* [kv_head_count][chunk_stride]: row r of head h is token r % 64 of the chunk at chunks[h * chunk_stride + r / 64]
     */
    struct span chunks;
    /* [kv_head_count][chunk_stride]: the chunk in 4 bits (kernels/codec), to which attend_rows then attends instead of
     * its rows; an entry PLACE_NOWHERE: the chunk has rows.  None: all chunks have. */
    struct span quantized;
    size_t chunk_stride;
    /* [kv_head_count][chunk_stride]: each chunk's block of the key index; or there is none */
    struct span key_index;
};

/* The tables from a KV head on. */
static inline struct kv_view kv_view_heads(const struct kv_view *view, size_t head_first) {
    struct kv_view heads = *view;
    const size_t bytes = head_first * view->chunk_stride * sizeof(uint32_t);
    heads.chunks = span_behind(view->chunks, bytes);
    if (span_exists(view->quantized)) heads.quantized = span_behind(view->quantized, bytes);
    if (span_exists(view->key_index)) heads.key_index = span_behind(view->key_index, bytes);
    return heads;
}

/* Every head's rows from a chunk on. */
static inline struct kv_view kv_view_chunks(const struct kv_view *view, uint64_t chunk_first) {
    struct kv_view rows = *view;
    rows.chunks = span_behind(view->chunks, (size_t)chunk_first * sizeof(uint32_t));
    return rows;
}

/* Changes some places of a page table. */
struct place_delta {
    uint32_t index, place;
};
struct update_places_operation {
    struct span table;                /* uint32_t */
    const struct place_delta *deltas; /* [count], host memory; no index twice */
    size_t count;
    /* Or, in a graph, with no deltas of its own: those that MEMORY_SHARED has when the operation runs (host_turn), at
     * most `count`.  struct place_delta [1 + count], of which the first one's index says how many follow it. */
    struct span written;
};

/* In a graph alone: the host's turn.  When all operations in front of it are done, and before any behind it begins,
 * `take` is called, once for each launch, by the thread that waits for the stream: in stream_synchronize, ticket_wait
 * or whatever else waits for all that is on it.  MEMORY_SHARED and what lists need are then the host's, as after a
 * synchronisation, and what it writes to MEMORY_SHARED is what operations behind it read.  take puts nothing on that
 * stream and waits for nothing of it, and allocates and releases no memory of the device; it may copy on another
 * stream.  It always returns: what fails is its caller's to remember.  A device that breaks does not call it again. */
struct host_turn_operation {
    void (*take)(void *context, size_t number);
    void *context;
    size_t number;
};

/* One sequence's rows of a step: rows [row_first, row_first + row_count) of q, k, v and out are at
 * positions position_first, position_first + 1, ... */
struct attend_item {
    struct kv_view view;
    size_t row_first, row_count;
    uint64_t position_first;
};

struct append_operation { /* stores K and V of a step's rows into their chunks */
    struct span k, v;     /* float [rows][k_stride]: kv_head_count heads each */
    size_t k_stride, v_stride;
    size_t kv_head_count;
    const struct attend_item *items;
    size_t item_count;
    struct span step; /* as in attend_operation; of one item alone there may be several rows */
};

/* Of an item (one row, no window): ranges [first, end) of those that it attends in (range_form), by themselves. */
struct attend_ranges {
    bool makes; /* only these are attended to, and left here; else they are taken from here and merged */
    uint64_t first, end;
    /* Of all ranges: float [kv_head_count][group * range_form.count_max * (range_form.partial_floats + v_dimension)] */
    struct span partials;
};

struct attend_operation { /* dense causal attention over everything stored so far, own rows included */
    struct span q;        /* float [rows][q_stride]: head_count heads of k_dimension */
    size_t q_stride;
    struct span out; /* float [rows][out_stride]: head_count heads of v_dimension */
    size_t out_stride;
    size_t head_count, kv_head_count;
    float scale, softcap;
    uint64_t window; /* 0: full */
    /* float [head_count], or none: a score beside those of the rows, without a value.  Merged last. */
    struct span sinks;
    const struct attend_item *items;
    size_t item_count;
    /* [item_count], which all make or all merge, partials one behind the other; NULL: all are attended to here.  The
     * cpu takes one item. */
    const struct attend_ranges *ranges;
    /* struct step_row [rows of q], or none.  In a graph, where each item has one row: a launch takes the rows'
     * positions from there, in place of the items'. */
    struct span step;
};

/* What is stored next to a chunk of one KV head, for selection to read in place of the chunk's keys. */
enum key_index_kind {
    KEY_INDEX_NONE,
    KEY_INDEX_ABSTRACT, /* of pages of 8 to 64 tokens: kernels/abstract */
    KEY_INDEX_HASH,     /* a code and a norm per token: kernels/hash */
    KEY_INDEX_LEVEL,    /* a rotated key's levels and a factor per token, a mean per chunk: kernels/level */
    KEY_INDEX_PARTIAL,  /* k . A per token, [64][columns] halves: kernels/project, kernels/score */
    KEY_INDEX_MASS,     /* [64] floats: the attention a token has received, summed over steps: kernels/mass */
    KEY_INDEX_TREE,     /* boxes around the keys of nodes of 8 to 64 tokens, and of runs of chunks: kernels/tree */
    KEY_INDEX_KEYS,     /* nothing: the keys themselves are scored (f16 only), so all chunks must be in memory */
    /* Clusters of a full chunk's keys: their centroids, sizes and mean values, and each token's cluster, whose score it
     * has (lab/methods/cluster.h).  Tokens of a chunk that is not full have none. */
    KEY_INDEX_CLUSTER,
    /* Product codes of a full chunk's keys, and centroids that it adds to the codebook (lab/methods/product_codes.h).
     * Tokens of a chunk that is not full have none. */
    KEY_INDEX_PRODUCT,
    KEY_INDEX_NESTED, /* as _LEVEL, with a mean and deviation of the chunk's keys, and when units were listed last */
};

struct product_layout {
    size_t partitions; /* of a key; k_dimension / partitions is a multiple of 8 */
    size_t centroids;  /* that a chunk adds to the codebook of a partition */
    size_t codebook_chunks;
};

/* lab/methods/nested.c; 0, false, 1: as _LEVEL. */
struct nested_layout {
    size_t candidates; /* times what is picked, in chunks that are looked into; 0: all */
    bool stays;        /* chunks of the last list are candidates */
    float listed;      /* factor on the score of units that were listed lately */
    size_t stamps_offset;
};

struct key_index_layout {
    enum key_index_kind kind;
    size_t bytes; /* of a chunk's block, a multiple of 64; 0 for KEY_INDEX_NONE */
    /* Tokens that are chosen together: 1, or a page.  If fewer are scored together (key_index_scored_tokens), a page
     * has the best of its scores. */
    size_t unit_tokens;
    struct abstract_layout abstract;
    enum abstract_kind abstract_kind; /* that scores */
    struct hash_layout hash;
    struct level_layout level;
    struct tree_layout tree; /* unit_tokens are those of a leaf */
    /* Whether the block has minima and maxima of the keys that are scored together, [64 / scored
     * tokens][2][k_dimension] halves from bounds_offset on (abstract.h, ABSTRACT_MIN_MAX).  They do not rank. */
    bool has_bounds, bounds_apart;
    size_t bounds_offset;
    bool use_norms; /* KEY_INDEX_HASH */
    size_t columns; /* KEY_INDEX_PARTIAL, a multiple of 8 */
    struct product_layout product;
    struct nested_layout nested;
    size_t cluster_count; /* KEY_INDEX_CLUSTER: of a chunk */
    bool estimates_rest;  /* KEY_INDEX_CLUSTER: attend_rest follows attend_rows */
    /* The number of randomly drawn keys of each chunk in the block, from sample_offset (a multiple of 16) on, for
     * sample_mass (key_sample.h).  0: none. */
    size_t sample_count, sample_offset;
    /* Over the heads of a group.  KEY_INDEX_HASH, _LEVEL, _PRODUCT: SCORE_SUM or _SOFTMAX; KEY_INDEX_MASS has none. */
    enum score_aggregate aggregate;
};

/* Whether each token has a score of its own, whatever is chosen together. */
static inline bool key_index_scores_tokens(const struct key_index_layout *layout) {
    return layout->kind == KEY_INDEX_HASH || layout->kind == KEY_INDEX_LEVEL || layout->kind == KEY_INDEX_PARTIAL ||
           layout->kind == KEY_INDEX_MASS || layout->kind == KEY_INDEX_KEYS || layout->kind == KEY_INDEX_CLUSTER ||
           layout->kind == KEY_INDEX_PRODUCT;
}

/* Whether tokens of a chunk that is not full yet cannot be scored. */
static inline bool key_index_needs_full_chunks(const struct key_index_layout *layout) {
    return layout->kind == KEY_INDEX_LEVEL || layout->kind == KEY_INDEX_CLUSTER || layout->kind == KEY_INDEX_PRODUCT ||
           layout->kind == KEY_INDEX_NESTED;
}

/* Tokens that one score is of. */
static inline size_t key_index_scored_tokens(const struct key_index_layout *layout) {
    if (key_index_scores_tokens(layout)) return 1;
    return layout->kind == KEY_INDEX_ABSTRACT ? layout->abstract.page_tokens : layout->unit_tokens;
}

/* Columns of a KV head's weights; 0: it has none. */
static inline size_t key_index_weight_columns(const struct key_index_layout *layout, size_t k_dimension) {
    if (layout->kind == KEY_INDEX_HASH) return layout->hash.bits;
    if (layout->kind == KEY_INDEX_LEVEL || layout->kind == KEY_INDEX_NESTED) return k_dimension; /* a rotation */
    return layout->kind == KEY_INDEX_PARTIAL ? layout->columns : 0;
}

/* Builds the key index of each item's rows [position_first, position_first + row_count) from the stored keys, so that
 * building it again gives the same; KEY_INDEX_MASS starts at 0.  KEY_INDEX_TREE: a run's node is built with its last
 * token, from the blocks of its other chunks. */
struct key_index_build_operation {
    const struct key_index_layout *layout;
    /* [kv_head_count][k_dimension][key_index_weight_columns] halves, device memory; KEY_INDEX_HASH, _LEVEL, _PARTIAL */
    struct span weights;
    size_t layer_index, kv_head_count;
    const struct attend_item *items; /* row_first is not used, but to find a row of the step */
    size_t item_count;
    struct span step; /* as in attend_operation */
};

/* Rows of a context that one KV head of a row attends to: ascending, none above the row's position. */
struct row_list {
    struct span rows; /* uint32_t [count] */
    size_t count;
};

/* The rows of a list in MEMORY_SHARED, for the host. */
static inline uint32_t *row_list_host(const struct row_list *list) { return span_host(list->rows); }

/* What a KV head keeps of its list from row to row (CLO): the list without its window. */
struct kept_list {
    struct span rows; /* uint32_t; room for what the head chooses; none: the head keeps nothing */
    /* It attends to these rows once more, `count` of them, and to [window_begin, position].  Else what it chooses now,
     * but for [candidate_end, position], is left there; without picks, nothing is. */
    bool is_taken;
    uint64_t count, window_begin;
};

/* A row of a step (a query) that chooses.  All its KV heads attend to [0, candidate_begin) and [candidate_end,
 * position].  Each also attends to the rows of [candidate_begin, candidate_end) with the highest scores, `picks` of
 * them. */
struct select_item {
    struct kv_view view;
    size_t row; /* of q */
    uint64_t position;
    /* Multiples of the layout's unit_tokens where rows are scored (0 < picks < their number).  KEY_INDEX_LEVEL: the
     * candidates' chunks are complete. */
    uint64_t candidate_begin, candidate_end;
    const uint64_t *picks;        /* [kv_head_count], multiples of unit_tokens, host memory; NULL: none */
    const struct kept_list *kept; /* [kv_head_count], host memory; a list that is taken has no picks; NULL: none */
};

static inline uint64_t select_item_picks(const struct select_item *item, size_t kv_head) {
    return item->picks != NULL ? item->picks[kv_head] : 0;
}

static inline uint64_t select_item_kept(const struct select_item *item, size_t kv_head) {
    if (item->kept != NULL && item->kept[kv_head].is_taken)
        return item->kept[kv_head].count + item->position + 1 - item->kept[kv_head].window_begin;
    return item->position + 1 - (item->candidate_end - item->candidate_begin) + select_item_picks(item, kv_head);
}

static inline uint64_t select_item_kept_max(const struct select_item *item, size_t kv_head_count) {
    uint64_t kept_max = 0;
    for (size_t head = 0; head < kv_head_count; head++) {
        uint64_t kept = select_item_kept(item, head);
        if (kept > kept_max) kept_max = kept;
    }
    return kept_max;
}

/* Times of the parts of a selection, summed. */
struct select_times {
    uint64_t score_ns, top_k_ns, attend_ns;
};

/* In a graph, of rows each the only one of its item: what differs from launch to launch is in the device's memory, and
 * what the items say of it is not used.  None: as the items say. */
struct step_lists {
    struct span step;   /* struct step_row [rows of q] */
    struct span limits; /* struct step_list [item_count][kv_head_count] */
    uint64_t tokens;    /* no sequence has more in any launch; 0: as many as its view has room for */
    bool looks;         /* a list may look into few chunks (key_index_looks); false: none does in any launch */
};

/* Scores candidates by their key index and takes the best.  The query heads of a group share one choice.  No row of K
 * or V is read, so view.chunks may name none (except with KEY_INDEX_KEYS, which reads the keys). */
struct choose_operation {
    struct span q; /* float [rows][q_stride]: head_count heads of k_dimension */
    size_t q_stride;
    size_t head_count, kv_head_count;
    float scale; /* the factor of a query times a key, as in attention: for SCORE_SOFTMAX */
    const struct key_index_layout *layout;
    struct span weights; /* as in key_index_operation */
    /* KEY_INDEX_TREE: the level at which the search starts, at least the leaves'.  The choice does not depend on it.
     * With SCORE_SOFTMAX every leaf is scored, whatever the level.  tree_counts: host memory, added to; may be NULL.
     */
    enum tree_level tree_start;
    struct tree_counts *tree_counts;
    /* Above 0: no more units than have a score within alpha of the greatest, as attention has its scores, on average
     * over the row's KV heads that choose; at least 1 (InfiniGen).  Products of query and key, by SCORE_MAX or
     * _SOFTMAX, only.  The counts of the lists then come with the stream, too: operations that follow on it may be
     * given the lists before.  list_rows: the sum of the counts is added there, host memory; NULL without alpha. */
    float alpha;
    uint64_t *list_rows;
    const struct select_item *items;
    size_t item_count;
    /* attend_rows of this choice follows next and all its chunks are in memory: the device may prefetch them. */
    bool attends_next;
    /* Out.  rows: the lists one after another, select_item_kept entries for each KV head of each item, written by the
     * stream.  lists: [item_count][kv_head_count], host memory, written when the call returns. */
    struct span rows;   /* uint32_t */
    size_t list_stride; /* rows that each list has room for; 0: as many as it has */
    struct row_list *lists;
    struct select_times *times; /* score_ns and top_k_ns are added to; may be NULL */
    struct step_lists at;
};

/* Whole chunks of so many candidates that a KV head looks into (look.h); 0: all. */
static inline size_t key_index_looks(const struct key_index_layout *layout, uint64_t candidates, uint64_t picks) {
    if (layout->kind != KEY_INDEX_LEVEL || layout->level.spread_offset == 0) return 0;
    if (candidates <= LOOK_FROM * picks) return 0;
    return (size_t)((LOOK_TIMES * picks + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS);
}
static inline size_t choose_looks(const struct choose_operation *operation, const struct select_item *item,
                                  size_t kv_head) {
    const uint64_t candidates = item->candidate_end - item->candidate_begin;
    if (operation->alpha != 0) return 0;
    return key_index_looks(operation->layout, candidates, select_item_picks(item, kv_head));
}

/* Where each list of a choice lies, and how long it is by what its item says. */
static inline void choose_place_lists(const struct choose_operation *operation) {
    struct span rows = operation->rows;
    struct row_list *list = operation->lists;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t head = 0; head < operation->kv_head_count; head++, list++) {
            *list = (struct row_list){rows, (size_t)select_item_kept(&operation->items[i], head)};
            const size_t room = operation->list_stride != 0 ? operation->list_stride : list->count;
            rows = span_behind(rows, room * sizeof(uint32_t));
        }
}

struct label_item {
    size_t row;        /* of q */
    uint64_t position; /* where `at` has no step */
    struct span label; /* float [head_count][k_dimension] */
    struct span kept;  /* struct step_kept [kv_head_count] */
};

/* Whether each KV head that is compared takes its list once more: it has one, which is not too old, and its queries are
 * like its label's: label_similarity reaches its threshold.  The limits of such a head become those of that list, with
 * no picks.  One that chooses anew has another label, and will have chosen what its limits say. */
struct compare_labels_operation {
    struct span q; /* float [rows][q_stride]: head_count heads of k_dimension */
    size_t q_stride;
    size_t head_count, kv_head_count, k_dimension;
    enum label_aggregate aggregate;
    const float *importance;  /* [head_count], host memory */
    const double *thresholds; /* [kv_head_count], host memory */
    uint64_t age_max; /* above 0: of a list that is taken; its window then reaches back to where it was chosen */
    const struct label_item *items;
    size_t item_count;
    /* Labels, what is kept and counts stay as they are.  A head that would take its list then chooses nothing: its
     * limits have no picks, and nothing that is kept. */
    bool only_says;
    struct step_lists at; /* in and out, with limits */
    /* MEMORY_SHARED, struct step_list [item_count][kv_head_count], or none: the limits come from here, in place of
     * those of `at`, and what they become is left in both. */
    struct span told;
    struct span counts; /* struct step_reuse [item_count][kv_head_count], added to; or none */
};

/* A row of a step that attends to lists. */
struct rows_item {
    struct kv_view view;
    size_t row; /* of q and out */
    uint64_t position;
    const struct row_list *lists; /* [kv_head_count], host memory, none empty */
};

/* Slots of the device's memory for units (KV_BLOCK_TOKENS tokens) of one sequence's KV in one layer, whose chunks
 * are in the host's. Each KV head has its own, of which there may be more than of another's, or none. Empty: tables and
 * owners are ones, the rest zeros.  Of chunks in 4 bits, whose ranges of K are the chunk's, a unit is the chunk. */
struct unit_slots {
    size_t unit_stride;       /* units that the sequence may have */
    struct span firsts;       /* uint32_t [kv_head_count + 1]: a head's first slot; its last is before the next one's */
    struct span tables;       /* int32_t [kv_head_count][unit_stride]: a unit's slot, from its head's first on, or -1 */
    struct span owners;       /* uint32_t [slots]: a slot's unit, or UINT32_MAX */
    struct span stamps, used; /* of CLOCK: uint32_t and uint8_t [slots], */
    struct span hands;        /* and uint32_t [kv_head_count] */
    struct span memory;       /* [slots][kv_layout.block_bytes], or [slots][kv_q4_chunk_bytes] */
};

struct fetch_counts { /* units; absent: of chunks that are nowhere.  chunk: in 4 bits, each once a list */
    uint64_t hits, misses, direct, absent;
    uint64_t chunk_hits, chunk_misses, chunk_direct;
};
extern const struct counter_table fetch_counters;

/* Brings what lists name into slots, and tells attend_rows where each unit of them lies. One that is in a slot is a
 * hit; a miss gets a slot that CLOCK gives, and is there when the attend_rows that is given the places is done: a
 * device may bring it while that attends to others. So it follows on the stream, with the same items, and where it does
 * not come to its end, the slots of their sequences are emptied. Read where they lie (direct) are units of chunks that
 * are not complete, of chunks in the device's memory, and misses for which this step's units leave no slot. The rows
 * are the only ones of their sequences. Lists are whole units, but for the last, and ascend. What a slot has is never
 * the only copy, but its chunk may be nowhere once it is there; slots are emptied when their sequence is cut back. A
 * chunk that is there in 4 bits is brought whole, into a slot of q4_slots. One that is complete keeps its form: where
 * it is kept in 4 bits it has been in no slot as rows. */
struct fetch_operation {
    const struct rows_item *items;
    size_t item_count, kv_head_count;
    const struct unit_slots *slots;    /* [item_count], host memory */
    const struct unit_slots *q4_slots; /* the same for chunks in 4 bits; NULL: no view has any */
    struct span counts;                /* struct fetch_counts [kv_head_count], added to */
    struct span places;  /* out: uint64_t [item_count][kv_head_count][place_stride], as attend_rows takes them */
    size_t place_stride; /* at least the units of the longest list */
    /* MEMORY_SHARED, uint8_t [item_count][kv_head_count][place_stride], or none.  Out, in place of all the above: 1 for
     * each unit that a fetch would read where its chunk lies in the host's memory, or find nowhere; 0: it would not. */
    struct span missing;
    struct step_lists at;
};

/* The sum of a query head's softmax over its list, before the division. */
struct softmax_sum {
    float largest, sum; /* the largest score; the sum of exp(score - largest) */
};

/* Attends with each KV head to the rows of its list alone, so all other chunks may be nowhere.  An item may be one KV
 * head of a row: kv_head_count is 1, head_count the group, q and out are [rows * KV heads][group heads], and
 * view.chunks (quantized, key index) begin at head * chunk_stride.  A row's heads may come in any order, in any number
 * of operations, and give the same bits; a list of all that the row sees, in its order, gives those of attend, where no
 * scores are wanted and no chunk is in 4 bits. */
struct attend_rows_operation {
    struct span q; /* float [rows][q_stride]: head_count heads of k_dimension */
    size_t q_stride;
    /* float [rows][out_stride]: head_count heads of v_dimension; none: only scores and sums are wanted */
    struct span out;
    size_t out_stride;
    size_t head_count, kv_head_count;
    float scale, softcap;
    struct span sinks; /* as in attend_operation; sums have them */
    const struct rows_item *items;
    size_t item_count;
    /* Where the units of the lists lie, as fetch left it; none: where the views say. */
    struct span places;
    size_t place_stride;
    /* Out, or none: for the operations below, which follow on the stream and show this one. */
    struct span sums;           /* struct softmax_sum [item_count][head_count] */
    struct span scores;         /* float [item_count][head_count][scores_stride], in the order of the list */
    size_t scores_stride;       /* at least the longest list */
    struct select_times *times; /* attend_ns is added to; or NULL */
    struct step_lists at;
};

/* KEY_INDEX_MASS: adds to the mass of each listed row the attention that it received, summed over the heads of a
 * group, times weight. */
struct add_mass_operation {
    const struct attend_rows_operation *rows; /* with sums and scores */
    float weight;
};

/* For a layout with bounds: a lower bound of the fraction of each query head's attention (over all that its row sees)
 * that the listed rows have; 1: all of it.  It follows from the bounds of the other rows, and holds whether these are
 * stored as they were or in 4 bits. */
struct mass_bound_operation {
    const struct attend_rows_operation *rows; /* with sums */
    const struct key_index_layout *layout;
    double *mass_bounds; /* out, host memory, [item_count][head_count]; 0 if a bound is not a number */
};

/* What a query head left out of the attention over all that its row sees: the share, estimated from the sample, and its
 * standard error.  Averaged over heads, left_out underestimates and upper (which may be above 1) overestimates; the gap
 * closes where many keys were left out.  1 where a share is not a number. */
struct mass_estimate {
    double left_out, upper, error;
};

/* A layout with samples: an estimate of the share that the listed rows do not have, for each query head.  Of a
 * context's chunks one in n is looked at, so that no more than key_max keys of a KV head are, and by the row's position
 * in turn. */
struct sample_mass_operation {
    const struct attend_rows_operation *rows; /* with sums */
    const struct key_index_layout *layout;
    size_t key_max;                  /* at least the layout's sample_count, at most MASS_SAMPLE_MAX */
    struct mass_estimate *estimates; /* out, host memory, [item_count][head_count] */
};
enum { MASS_SAMPLE_MAX = 1024 };

/* KEY_INDEX_CLUSTER: what attend_rows gave, with an estimate of the rows that were not listed: each is taken as its
 * cluster's centroid and mean value.  Where all of a chunk's rows are listed it adds nothing, to the bit. */
struct attend_rest_operation {
    const struct attend_rows_operation *rows; /* with sums */
    const struct key_index_layout *layout;
};

/* How the scores of a router become the weights of experts: by softmax over all, by sigmoid, by softmax over those
 * that are chosen. */
enum router { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_SOFTMAX_OF_CHOSEN };

/* For each row the experts that it picks, best first (of equals the one of the lower number), and their weights. */
struct route_operation {
    enum router router;
    struct span scores; /* float [row_count][expert_count] */
    struct span bias;   /* float [expert_count], added to what is chosen by and not to the weights; or none */
    size_t row_count, expert_count;
    size_t used; /* 1..expert_count, at most ROUTE_USED_MAX */
    /* The experts of a row are of the groups_used best of so many groups of equal size, a group being worth its two
     * best (DeepSeek-V3); 0 or 1: no groups.  At most ROUTE_GROUPS_MAX. */
    size_t group_count, groups_used;
    bool normalises;     /* weights are divided by their sum */
    float scale;         /* they are multiplied by it */
    struct span scales;  /* and by these: float [expert_count], an expert's own; or none */
    struct span picks;   /* uint32_t [row_count][used] */
    struct span weights; /* float [row_count][used] */
};

/* Products with the matrices of the experts that rows have picked.  A row's results have the same bits whatever the
 * other rows are. */
struct matmul_experts_operation {
    struct span x; /* float, x_stride apart: [row_count], or per_pick [row_count * used] */
    size_t x_stride;
    bool per_pick;
    size_t row_count, expert_count, used;
    struct span picks;                              /* uint32_t [row_count][used], below expert_count */
    size_t weight_count;                            /* 1..EXPERT_GROUP_MAX; 1 with mix */
    const struct weight *weights[EXPERT_GROUP_MAX]; /* stacks, [expert_count * rows][columns] */
    /* Of a stack whose experts do not all lie behind each other: host memory, [expert_count] addresses; picks of
     * experts that have none are left out.  NULL: they do.  Of the cpu device alone. */
    const void *const *places[EXPERT_GROUP_MAX];
    struct span biases[EXPERT_GROUP_MAX]; /* float [expert_count][rows], or none */
    struct span y[EXPERT_GROUP_MAX];      /* float [row_count * used][y_stride[j]] */
    size_t y_stride[EXPERT_GROUP_MAX];
    /* float [row_count][used], or none.  Then y is [row_count][y_stride], and to each row of it its picks' products are
     * added, each times its number here; replaces: to zero in its place.  The cpu device adds one after another, by the
     * number of the expert, so that what is left out may be added later. */
    struct span mix;
    bool replaces;
};

/* Rows of one sequence in a layer that keeps a state (kernels/recurrence), and where that is before and behind them. */
struct recurrence_item {
    size_t row_first, row_count;
    struct span from, to; /* floats; from none: zeros.  They may be the same */
};

/* convolve_args of all channels.  Items go in their order where one's `to` is another's `from`. */
struct convolve_operation {
    struct span x;                 /* float [rows][x_stride]; */
    struct span in_gate, out_gate; /* the same, or none */
    size_t x_stride, channel_count;
    struct span w; /* float [channel_count][taps] */
    size_t taps;
    bool silu;
    const struct recurrence_item *items; /* [item_count]; a state is [taps - 1][channel_count] */
    size_t item_count;
    struct span y; /* float [rows][y_stride] */
    size_t y_stride;
};

/* delta_args of all heads; value head h has the q and k of key head h mod key_heads.  is_grouped: value heads of a key
 * head lie together, and rows of alpha and beta are [key_heads][2][value_heads / key_heads], from where each begins. */
struct delta_operation {
    struct span x; /* float [rows][x_stride]: q and k [key_heads][k_dimension] each, v [value_heads][v_dimension] */
    size_t x_stride, key_heads, value_heads, k_dimension, v_dimension;
    bool is_grouped;
    struct span alpha, beta; /* float [rows][value_heads] */
    struct span decay, bias; /* float [value_heads] */
    struct span z, norm;     /* float [rows][value_heads * v_dimension]; [v_dimension] */
    float epsilon;
    const struct recurrence_item *items; /* [item_count] */
    size_t item_count, state_first; /* floats into their states, where [value_heads][k_dimension][v_dimension] begin */
    struct span y;                  /* float [rows][value_heads * v_dimension] */
};

/* y *= sigmoid(gate), where the gates of a head lie behind its queries: float [row_count][head_count][2][head_size]. */
struct gate_operation {
    struct span gates;
    size_t row_count, head_count, head_size;
    struct span y; /* float [row_count][head_count][head_size] */
};

struct gather_operation { /* y[i] = x[indices[i]] */
    struct span x;
    size_t x_stride;
    const uint32_t *indices; /* [row_count], host memory */
    size_t row_count, count;
    struct span y;
    size_t y_stride;
};

/* Rows in the form that products of many rows multiply on a card: halves, each row times a power of two. */
struct keep_rows_operation {
    bool restores; /* x of halves and scales, such that they would be made of it again; else these of x */
    struct span x; /* float [row_count][x_stride] */
    size_t x_stride, row_count, columns; /* columns: a multiple of 8 */
    struct span halves, scales;          /* uint16_t [row_count][columns], float [row_count] */
};

/* In a graph operations between BEGIN and END may run beside those between END and JOIN, which comes next: neither
 * writes what the other names. */
enum beside_mark { BESIDE_BEGIN, BESIDE_END, BESIDE_JOIN };
struct beside_operation {
    enum beside_mark mark;
};

/* What a device was asked to do since it was made: kernels, of recorded steps too; recorded steps; bytes that were
 * copied, over the bus and within its memory. */
struct device_counts {
    uint64_t launches, captures, changes, replays, copied_bytes, products, tuned_products;
};
extern const struct counter_table device_counters;

struct device_operations {
    void (*destroy)(struct device *device);
    struct pool *(*pool)(struct device *device);
    enum status (*set_threads)(struct device *device, size_t thread_count, struct error *error);

    /* Zeroed; aligned to 64 bytes or more, MEMORY_SHARED to pages.  On the cpu device large areas take real memory only
     * where they are touched, on which the KV slab of a long context relies (kv_cache.h).  A device without this must
     * be given a context that fits.  release takes what allocate has made, or nothing, and leaves nothing. */
    enum status (*allocate)(struct device *device, enum memory_kind kind, size_t size_bytes, struct buffer *buffer,
                            struct error *error);
    void (*release)(struct device *device, struct buffer *buffer);
    /* Bytes of MEMORY_DEVICE that are free.  NULL: the host's memory, which the system divides. */
    uint64_t (*memory_free)(struct device *device);
    /* The error that broke it, which all later work has; NULL: it does not break. */
    enum status (*state)(const struct device *device, struct error *error);
    /* NULL: it does not count. */
    struct device_counts (*counts)(const struct device *device);
    /* Makes a weight of the model file, weight->matrix, usable by operations; the cpu uses it in place. */
    enum status (*weight_load)(struct device *device, struct weight *weight, struct error *error);
    void (*weight_release)(struct device *device, struct weight *weight);

    enum status (*stream_create)(struct device *device, struct stream **stream, struct error *error);
    void (*stream_destroy)(struct stream *stream);
    enum status (*stream_synchronize)(struct stream *stream, struct error *error);
    /* All that is on the stream now; {NULL} where it is done already, as ever on a device without a queue. */
    struct ticket (*ticket)(struct stream *stream);
    bool (*ticket_done)(struct ticket ticket);
    /* The host waits for it.  MEMORY_SHARED is then the host's again as after a stream_synchronize, results in host
     * arrays are not there yet. */
    enum status (*ticket_wait)(struct ticket ticket, struct error *error);
    /* Host work of the calling thread (disk reads to submit), done once while the next launched operation runs, or at
     * the next stream_synchronize.  It launches nothing but copies, on another stream.  One at a time. */
    void (*overlap)(struct stream *stream, void (*work)(void *context), void *context);
    /* A graph: operations that are captured once and launched on that stream as often as wanted. Between begin and
     * end the stream keeps what it is given instead of running it: embed, matmul, norm, rope_angles, rope, activation,
     * route, matmul_experts, convolve, delta, gate, gather, keep_rows, update_places, append, attend, key_index_build,
     * compare_labels, choose, fetch, attend_rows, beside, host_turn, nothing else; choose, fetch and attend_rows
     * without results for the host but the places of lists. What they name in the host's memory is as it was then; what
     * differs from launch to launch is in the rows of the step and the limits of its lists. Spans of theirs are the
     * same or share nothing, but for parts of rows of one that convolve and delta read. After a launch, and in the
     * host's turns, KV, states, MEMORY_SHARED, and what lists that are kept need have what was written; of other memory
     * that they write it may be anything, since a device may run several operations as one. graph_end: *graph is NULL,
     * or one of the stream whose memory and nodes the new one may take over, of which no launch is under way, and which
     * is gone afterwards; NULL unless STATUS_OK. graph_destroy: no launch is under way; NULL is allowed. */
    enum status (*graph_begin)(struct stream *stream, struct error *error);
    enum status (*graph_end)(struct stream *stream, struct graph **graph, struct error *error);
    void (*graph_launch)(struct stream *stream, struct graph *graph);
    void (*graph_destroy)(struct graph *graph);
    void (*copy)(struct stream *stream, struct span target, struct span source, size_t size_bytes);
    /* From host memory, which is read before the call returns, and to it: there after the next stream_synchronize. */
    void (*upload)(struct stream *stream, struct span target, const void *source, size_t size_bytes);
    void (*download)(struct stream *stream, void *target, struct span source, size_t size_bytes);

    void (*embed)(struct stream *stream, const struct embed_operation *operation);
    void (*matmul)(struct stream *stream, const struct matmul_operation *operation);
    void (*norm)(struct stream *stream, const struct norm_operation *operation);
    void (*rope_angles)(struct stream *stream, const struct rope_angles_operation *operation);
    void (*rope)(struct stream *stream, const struct rope_operation *operation);
    void (*activation)(struct stream *stream, const struct activation_operation *operation);
    void (*route)(struct stream *stream, const struct route_operation *operation);
    void (*matmul_experts)(struct stream *stream, const struct matmul_experts_operation *operation);
    /* Layers that keep a state; NULL: the device has none, and models with such layers do not load on it. */
    void (*convolve)(struct stream *stream, const struct convolve_operation *operation);
    void (*delta)(struct stream *stream, const struct delta_operation *operation);
    void (*gate)(struct stream *stream, const struct gate_operation *operation);
    void (*update_places)(struct stream *stream, const struct update_places_operation *operation);
    void (*append)(struct stream *stream, const struct append_operation *operation);
    void (*attend)(struct stream *stream, const struct attend_operation *operation);
    void (*gather)(struct stream *stream, const struct gather_operation *operation);
    /* Both NULL where K and V in RAM are not behind a bus. beside: one runs after the other outside of graphs. */
    void (*keep_rows)(struct stream *stream, const struct keep_rows_operation *operation);
    void (*beside)(struct stream *stream, const struct beside_operation *operation);
    /* Not between BEGIN and JOIN of beside.  NULL: nothing on its streams can wait for the host. */
    void (*host_turn)(struct stream *stream, const struct host_turn_operation *operation);
    void (*key_index_build)(struct stream *stream, const struct key_index_build_operation *operation);
    void (*compare_labels)(struct stream *stream, const struct compare_labels_operation *operation);
    void (*choose)(struct stream *stream, const struct choose_operation *operation);
    void (*fetch)(struct stream *stream, const struct fetch_operation *operation);
    void (*attend_rows)(struct stream *stream, const struct attend_rows_operation *operation);
    void (*sample_mass)(struct stream *stream, const struct sample_mass_operation *operation);
    /* What methods of the lab ask for, where its program has added it (cpu/cpu_device_internal.h); else NULL. */
    void (*add_mass)(struct stream *stream, const struct add_mass_operation *operation);
    void (*mass_bound)(struct stream *stream, const struct mass_bound_operation *operation);
    void (*attend_rest)(struct stream *stream, const struct attend_rest_operation *operation);
};

/* The ranges that attend computes a row alone in. */
struct range_form {
    uint64_t (*rows)(uint64_t row_count); /* of each range, whole chunks, of a row that sees so many */
    size_t count_max;                     /* of a row */
    size_t partial_floats;                /* of a query head's partial, beside its v_dimension */
};

struct device {
    const struct device_operations *operations;
    const char *name;  /* "cpu" */
    const char *model; /* the processor's or the card's own name */
    /* 1 << kind for every kind of key index that it builds and chooses by; KEY_INDEX_NONE: it attends to lists.  What
     * choosing needs of operations may be NULL where it has none; all others every device has. */
    uint32_t key_indexes;
    /* What to try where it cannot with this layout of such a kind, and alpha of choose_operation; "": it can.  NULL: it
     * can with any. */
    const char *(*chooses_by)(const struct key_index_layout *layout, float alpha);
    size_t buffer_max; /* bytes that it allocates at once, at most; 0: as many as there are */
    size_t head_max;   /* elements of a head's K and V, at most; 0: any. Models with more do not load on it */
    /* Up to so many rows have the bits that each has alone, and other ones among more; 0: always the same ones. */
    size_t rows_few;
    const struct range_form *range_form; /* NULL: that of kernels/attention/attention.h */
    bool scores_leaves; /* choose scores every leaf of a tree: there is no search to begin or to count */
    bool lacks_tokens;  /* choose and attend_rows of lists that are not whole units, but for their end */
    bool shares_memory; /* its memory is the host's: what it reads there it need not fetch */
};

struct device_options {
    size_t thread_count; /* 0: one per processor */
    cpu_mask mask;       /* kernels that the cpu may use; cpu_features() for all */
};

enum status device_cpu_create(struct device **device, const struct device_options *options, struct error *error)
    STATUS_CHECKED;
/* Another number of threads, before anything holds the device's pool or is under way.  STATUS_MEMORY: it has as many as
 * before.  A device without a pool stays as it is. */
enum status device_set_threads(struct device *device, size_t thread_count, struct error *error) STATUS_CHECKED;
void device_destroy(struct device *device); /* NULL allowed */

struct range_form device_range_form(const struct device *device); /* NULL: the cpu device's */

/* Copies to the host's memory; waits for the copy and for all that was put on the stream before. */
enum status device_read(struct device *device, struct stream *stream, void *target, struct span source,
                        size_t size_bytes, struct error *error) STATUS_CHECKED;
/* Copies the rows of a chunk to the host's memory, layout->chunk_bytes; waits, twice. */
enum status device_read_chunk(struct device *device, struct stream *stream, const struct kv_view *view, size_t kv_head,
                              uint64_t chunk, void *target, struct error *error) STATUS_CHECKED;

/* Beside the weights, for the least of KV and activations. */
enum { DEVICE_BESIDE_WEIGHTS_BYTES = 256 << 20 };
/* Bytes of MEMORY_DEVICE that are free; UINT64_MAX: it is the host's memory. */
uint64_t device_memory_free(struct device *device);
/* Of a device that broke its first error; it does not work again.  STATUS_OK: it works. */
enum status device_state(const struct device *device, struct error *error) STATUS_CHECKED;
/* Zeros where it does not count. */
struct device_counts device_counts(const struct device *device);

/* The cpu device's threads, for code that is host work by nature (sampling over 64 rows, quantising a file).  NULL
 * for a device without a pool. */
struct pool *device_pool(struct device *device);
