/* forward_internal: the parts of a family's layer function.
 *
 * forward_create allocates every buffer once; a layer only launches device operations.  After the last layer only the
 * rows whose logits are wanted are needed.  So the last pass may be `narrowed`: K and V of all rows are stored, and
 * everything after that works on the wanted rows.
 */
#ifndef LOAM_MODEL_FORWARD_INTERNAL_H
#define LOAM_MODEL_FORWARD_INTERNAL_H

#include "model/model.h"

struct forward {
    struct model *model;
    struct stream *stream;
    size_t row_capacity, block_capacity, logit_row_capacity;
    void *memory; /* owned device memory that holds all but logits */
    size_t memory_bytes;
    float *hidden;         /* [row_capacity][hidden_size], the residual stream */
    float *normed;         /* [block_capacity][hidden_size] */
    float *q;              /* [block_capacity][head_count][k_dimension] */
    float *k, *v;          /* [block_capacity][kv_head_count][k_dimension or v_dimension] */
    float *attended;       /* [block_capacity][head_count][v_dimension] */
    float *gate, *up;      /* [block_capacity][ffn_size]; gate only for gated families */
    float *angles;         /* [row_capacity][rope_dimension] cosine, sine pairs */
    float *narrow_hidden;  /* [logit_row_capacity][hidden_size]: the rows whose logits are wanted */
    float *narrow_normed;  /* [logit_row_capacity][hidden_size] */
    float *logits;         /* owned MEMORY_HOST, [logit_row_capacity][vocabulary_size] */
    float *logits_written; /* logits, or owned MEMORY_DEVICE if operations cannot write host memory */
    size_t logits_bytes;
    struct attend_item *items;        /* owned, [block_capacity]: the block's, with this layer's views */
    struct attend_item *narrow_items; /* owned, [logit_row_capacity]: one row each */
    size_t *narrow_sequences;         /* owned, [logit_row_capacity]: index of the item a row belongs to */
    struct kv_sequence **narrow_kv;   /* owned, [logit_row_capacity]: the sequence */
    uint64_t *narrow_positions;       /* owned, [logit_row_capacity] */
    uint32_t *narrow_rows;            /* owned, [logit_row_capacity]: counted from the row's block */
    size_t kept_row_count;            /* rows of hidden available to forward_logits; 0: none */
    forward_observer *observer;
    void *observer_context;
    float *observed; /* owned host copy for the observer, [block_capacity][hidden_size]; NULL without one */
    struct attention *attention;    /* borrowed */
    /* The next layer's expected queries: [block_capacity][hidden_size], [block_capacity][head_count][k_dimension] */
    float *next_normed, *next_q;
    struct attend_item *next_items; /* owned, [block_capacity] */
    attention_observer *attention_observer;
    void *attention_context;
    float *attention_copy; /* owned host copies of q, k, v and attended for it; NULL without one */
    struct trace *trace;   /* borrowed; NULL: none */
    const struct forward_replay *replay; /* borrowed; NULL: none */
};

/* One layer of one block of a batch. */
struct layer_pass {
    struct forward *forward;
    const struct forward_batch *batch; /* the block as a batch */
    const struct layer_weights *weights;
    size_t layer_index;
    bool narrow;                /* after K and V only batch->logit_rows are computed */
    size_t narrow_first;        /* the block's first row in narrow_hidden, _items, _sequences, _positions */
    float *angles;              /* [rows of the block][rope_dimension] */
    float *residual;            /* in hidden, or in narrow_hidden once narrowed: [row_count][hidden_size] */
    float *normed;              /* the same for the norm's output */
    size_t row_count;           /* of residual */
    struct attention_rows rows; /* the block's new rows */
};

/* Begins a phase of the pass's layer in the timeline. */
static inline void layer_phase(const struct layer_pass *pass, const char *name) {
    if (pass->forward->trace != NULL) trace_phase(pass->forward->trace, name, (uint32_t)pass->layer_index);
}

/* normed = norm(residual): RMSNorm or LayerNorm, by the family. */
void layer_norm(struct layer_pass *pass, const float *weight, const float *bias);

/* Appends K and V of all rows, then residual += output(attention(normed)).  Narrows the pass if pass->narrow is set.
 * false: no row is left. */
bool layer_attention(struct layer_pass *pass);

/* One layer of each family, on the residual stream. */
void llama_layer(struct layer_pass *pass); /* llama, mistral, qwen2, qwen3 */
void opt_layer(struct layer_pass *pass);

#endif
