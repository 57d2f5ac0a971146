/* forward_internal: the parts of a family's layer function.
 *
 * forward_create allocates every buffer once; a layer only launches device operations.  After the last layer only the
 * rows whose logits are wanted are needed.  So the last pass may be `narrowed`: K and V of all rows are stored, and
 * everything after that works on the wanted rows.
 */
#pragma once

#include "model/model.h"

/* The rows whose logits are wanted, [logit_row_capacity] each. */
struct narrow_rows {
    struct span hidden, normed; /* [hidden_size] a row */
    struct span step;           /* struct step_row a row */
    struct attend_item *items;  /* owned; one row each */
    size_t *sequences;          /* owned; index of the item that a row belongs to */
    struct kv_sequence **kv;    /* owned; the sequence */
    uint64_t *positions;        /* owned */
    uint32_t *rows;             /* owned; counted from the row's block */
};

/* The queries that the next layer is expected to have, for prefetch: [block_capacity] rows. */
struct next_rows {
    struct span normed, q;     /* a row: [hidden_size], [head_count][k_dimension] */
    struct attend_item *items; /* owned */
};

/* Inputs of layers, kept or computed from again: REBUILD_ROWS_MAX rows but for `host`. */
struct input_rows {
    float *host;              /* owned, [block_capacity][hidden_size]: of a block, to be kept; NULL: nothing is kept */
    struct span normed;       /* a row: [hidden_size], of the first layer */
    struct span k, v, angles; /* [kv_head_count][k_dimension or v_dimension]; [rotated dimension] */
    struct span step;         /* struct step_row */
};

/* The observers of a layer's output and of its attention. */
struct forward_watch {
    struct {
        forward_observer *observer; /* NULL: none */
        void *context;
        float *copy; /* owned host copy, [block_capacity][hidden_size]; NULL without an observer */
    } layer;
    struct {
        attention_observer *observer; /* NULL: none */
        void *context;
        float *copy; /* owned host copies of q, k, v and attended; NULL without an observer */
    } attention;
};

/* Steps as graphs (step_graph.c). */
enum { STEP_GRAPHS = 16 }; /* that are kept */
struct step_graph {
    struct step_kinds *kinds; /* owned */
    struct step_graph_counts counts;
};

/* A mixture of experts: [block_capacity] rows. */
struct route_rows {
    struct span scores;         /* [experts.count] a row */
    struct span picks, weights; /* uint32_t, float [experts.used] a row */
    uint32_t *host;             /* owned; the picks, where experts are read for them */
};

/* What rows of a batch of several blocks have in front of a layer's experts, where these are read (experts.c):
 * [row_capacity] rows, from the first such batch on. */
struct segment_rows {
    struct buffer memory;     /* owned */
    struct span normed;       /* [hidden_size] a row; SHARED_EXPERT_BESIDE: layer_pass.mixed in its place */
    struct route_rows routes; /* but for the scores */
};

/* Layers that keep a state: [block_capacity] rows. */
struct mixed_rows {
    struct span in, out; /* a row: [in_width], [out_width] */
    /* MIXER_DELTA: in, convolved; delta_operation's z, alpha and beta */
    struct span convolved, z, alpha, beta;
    struct recurrence_item *items; /* owned */
    /* Of a batch that is `ahead`: `in` and `alpha` of each layer, until its rows are kept or dropped; and where a
     * layer's state goes behind rows that may be dropped. */
    struct span ahead, dropped;
};

struct forward {
    struct model *model;
    struct stream *stream;
    struct attention *attention;         /* borrowed */
    struct trace *trace;                 /* borrowed; NULL: none */
    const struct forward_replay *replay; /* borrowed; NULL: none */
    size_t row_capacity, block_capacity, logit_row_capacity, beside_capacity;
    size_t kept_row_count; /* rows of hidden that forward_logits may use; 0: none */
    struct buffer memory;  /* owned MEMORY_DEVICE; everything but logits, all of it floats: */
    struct span hidden;    /* [row_capacity + beside_capacity][hidden_size], the residual stream */
    struct span normed;    /* [block_capacity][hidden_size] */
    struct span q;         /* [block_capacity][head_count][k_dimension] */
    struct span k, v;      /* [block_capacity][kv_head_count][k_dimension or v_dimension] */
    struct span attended;  /* [block_capacity][head_count][v_dimension] */
    /* [block_capacity][model_ffn_width], up behind gate; gate only for gated families.  Experts whose gate and up are
     * one product have both in each row. */
    struct span gate, up;
    struct span beside, mixed_sum; /* SHARED_EXPERT_BESIDE: [block_capacity][hidden_size], sums before their norm */
    struct route_rows routes, expected; /* expected: those of the next layer, by this layer's rows; scores are shared */
    struct segment_rows segment;
    struct mixed_rows mixed;
    struct span gated;    /* with has_gates: [block_capacity][head_count][2][k_dimension], queries and gates */
    uint32_t *gated_rows; /* owned; 0, 2, 4, ...: the queries among them */
    /* Of each rotation, [row_capacity + beside_capacity][its dimension] cosine, sine pairs */
    struct span angles[ROPES_MAX];
    struct span step;           /* struct step_row [row_capacity + beside_capacity] */
    struct step_row *step_rows; /* owned; on their way to the device, by forward_upload_step */
    struct step_graph graph;
    struct attend_item *items; /* owned, [block_capacity]: the block's, with this layer's views */
    struct narrow_rows narrow;
    struct next_rows next;
    struct input_rows inputs;
    bool rebuilds;
    struct buffer logits; /* owned MEMORY_SHARED; [logit_row_capacity][vocabulary_size] */
    struct forward_watch watch;
};

/* One layer of one block of a batch. */
struct layer_pass {
    struct forward *forward;
    const struct forward_batch *batch; /* the block as a batch */
    const struct layer_weights *weights;
    size_t layer_index;
    bool narrow;                         /* after K and V only batch->logit_rows are computed */
    bool is_last_block;                  /* of its layer */
    bool defers_experts;                 /* until all blocks of the batch have picked theirs */
    bool adds_experts;                   /* to what those that were read before gave */
    size_t narrow_first;                 /* the block's first row in forward->narrow */
    struct span angles[ROPES_MAX], step; /* [rows of the block][dimension]; struct step_row [the same] */
    struct span residual;                /* in hidden, or in narrow.hidden once narrowed: [row_count][hidden_size] */
    struct span normed;                  /* the same for the norm's output; each part's last product may overwrite it */
    struct span mixed;        /* SHARED_EXPERT_BESIDE: the same of what the experts give, before its norm; else none */
    struct route_rows routes; /* of a mixture of experts */
    size_t row_count;         /* of residual */
    struct attention_rows rows; /* the block's new rows */
};

static inline const struct layer_config *layer_config_of(const struct layer_pass *pass) {
    return &pass->forward->model->config.layers[pass->layer_index];
}

/* What attention and the feed-forward are given: normed, or the residual stream where norms stand behind them alone. */
static inline struct span layer_input(const struct layer_pass *pass) {
    return pass->forward->model->config.norms == NORMS_BEHIND ? pass->residual : pass->normed;
}

/* Elements of a head that a rotation turns; 0: no layer has it. */
static inline size_t rope_dimension_of(const struct model_config *config, size_t rope) {
    if (rope == ROPE_SLIDING) return config->sliding_rope_dimension;
    return rope == ROPE_FULL || config->temperature != 0 ? config->rope_dimension : 0;
}
/* Cosines and sines of a rotation for the rows of the pass; none of ROPE_NONE. */
static inline struct span angles_for(const struct layer_pass *pass, size_t rope) {
    return rope == ROPE_NONE ? (struct span){.buffer = NULL} : pass->angles[rope];
}
/* The layer attends to its own K and V. */
static inline bool layer_stores(const struct layer_pass *pass) {
    return layer_config_of(pass)->kv_layer == pass->layer_index;
}

/* Begins a phase of the current layer in the timeline. */
static inline void layer_phase(const struct layer_pass *pass, const char *name) {
    if (pass->forward->trace != NULL) trace_phase(pass->forward->trace, name, (uint32_t)pass->layer_index);
}

/* step_graph.c.  Whether a batch is a step that may be a graph: one row of each sequence, dense, watched by nobody but
 * the map. */
bool step_graph_takes(const struct forward *forward, const struct forward_batch *batch);
/* Runs such a step up to its logits: the first of its kind as it is, the second is captured, and launched as those
 * that follow are.  Of a kind are steps whose sequences have their page tables at the same places; one of another kind
 * and as many rows is launched at once, by a graph that is changed. */
typedef enum status step_run(struct forward *forward, const struct forward_batch *batch, struct error *error);
enum status step_graph_run(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error);
/* The stream is synchronised behind such a step. */
enum status step_graph_end(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error);
enum status step_graph_init(struct forward *forward, struct error *error);
void step_graph_deinit(struct forward *forward);

/* layer_rows.c.  The rows that were filled in, forward->step_rows, as an operation reads them. */
void forward_upload_step(struct forward *forward, struct span step, size_t row_count);
/* y = norm(residual): LayerNorm with a bias, else RMSNorm; layer_norm: into normed, unless there is no weight. */
void layer_norm_into(const struct layer_pass *pass, struct span weight, struct span bias, struct span y);
void layer_norm(struct layer_pass *pass, struct span weight, struct span bias);
/* k, v and, unless it is none, q of rows x; of a layer without K and V q alone. */
void layer_project(const struct layer_pass *pass, struct span x, size_t row_count, struct span k, struct span v,
                   struct span q);
/* With has_gates: q of so many rows of gated, of heads of so many dimensions. */
void layer_take_queries(const struct forward *forward, size_t row_count, size_t dimension, struct span q);
/* K and V as they are stored, of a layer that has its own: values normed where they are, k normed and rotated. */
void layer_finish_kv(const struct layer_pass *pass, size_t row_count, struct span k, struct span v, struct span angles);
/* In place, on any rows, as a layer has them: heads of its k_dimension.  angles: of its rotation. */
void layer_head_norm(const struct layer_pass *pass, const struct layer_config *layer, struct span x, size_t row_count,
                     size_t heads, struct span weight);
void layer_rotate(const struct layer_pass *pass, const struct layer_config *layer, struct span x, size_t row_count,
                  size_t heads, struct span angles);
/* Cosines and sines of a rotation, unless it is none, for so many rows of the step.  positions: theirs, for
 * ROPE_QUERIES. */
void forward_angles(const struct forward *forward, size_t rope, const uint64_t *positions, struct span step,
                    size_t row_count, struct span angles);

/* Appends K and V of all rows, then residual += output(attention(normed)).  Narrows the pass if pass->narrow is set.
 * false: no row is left. */
bool layer_attention(struct layer_pass *pass);

/* Of a layer that keeps a state: what the next one is expected to choose, by what this one is given. */
void layer_expect(struct layer_pass *pass);

/* layer_rows.c: y [row_count][rows of the weight] = x W + bias, x [row_count][its columns]. */
void layer_multiply(const struct layer_pass *pass, struct span x, const struct weight *weight, struct span bias,
                    struct span y);
/* layer_rows.c: residual += the product, which has x, its stride, a weight and perhaps a bias; norm: residual =
 * (residual + norm(product)) scale, and normed is lost.  scale 0: 1. */
void layer_add(struct layer_pass *pass, const struct matmul_operation *product, struct span norm, float scale);
/* y = norm(x), or += it, and times scale then; rows of hidden_size.  x is lost where it adds. */
void layer_norm_rows(const struct layer_pass *pass, struct span x, struct span weight, struct span y, bool adds,
                     float scale);

/* layer_rows.c: forward->gate = activation(gate, up), `size` of each row. */
void layer_activation(const struct layer_pass *pass, enum activation_kind kind, size_t size);
/* layer_rows.c: the product down(activation(gate(x), up(x))), x the layer's input, but for down, of `size` between. */
struct matmul_operation layer_gated(struct layer_pass *pass, enum activation_kind activation, const struct weight *gate,
                                    const struct weight *up, const struct weight *down, size_t size);

/* The factor of the residual stream behind the feed-forward: what follows has it where tokens give the layer more. */
static inline float layer_ffn_scale(const struct layer_pass *pass) {
    return pass->forward->model->config.layer_input_size > 0 ? 0 : pass->weights->output_scale;
}

/* The rows whose logits are wanted: the pass is of them from here on. */
void layer_narrow(struct layer_pass *pass);

/* mixer.c: residual += the mixer of normed, by the sequences' states and on to them.  false: no row is left. */
bool layer_mixer(struct layer_pass *pass);

/* experts.c: residual += the feed-forward of a mixture of experts of normed.  Fails where experts cannot be read. */
enum status layer_experts(struct layer_pass *pass, struct error *error) STATUS_CHECKED;
/* Those of a layer that its blocks have deferred, and what follows them, for all rows of the batch. */
enum status layer_deferred_experts(struct forward *forward, const struct forward_batch *batch, size_t layer,
                                   struct error *error) STATUS_CHECKED;
/* Room for that. */
enum status segment_rows_init(struct forward *forward, struct error *error) STATUS_CHECKED;

/* rebuild.c: layer_math.rebuild of a pass; and the inputs of its rows, to be kept where its sequences keep them. */
void layer_rebuild(void *pass, struct rebuild_rows *rows);
void layer_keep_inputs(const struct layer_pass *pass);

/* layer_inputs.c: residual = (residual + what the tokens give this layer) times its factor, with layer_input_size. */
void layer_add_inputs(struct layer_pass *pass);

/* One layer of each family, on the residual stream. */
enum status llama_layer(struct layer_pass *pass, struct error *error) STATUS_CHECKED; /* every family but opt */
void opt_layer(struct layer_pass *pass);
