/* model: a model file's configuration and weights, and its forward pass.
 *
 * model_load checks that every tensor the family needs is there with the shape the
 * configuration implies, and reports the first that is not by name.  Weights stay in the mapped file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/status.h"
#include "cache/kv_cache.h"
#include "device/device.h"
#include "format/gguf.h"
#include "platform/trace.h"

enum model_family {
    FAMILY_LLAMA,
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    FAMILY_OPT,
    FAMILY_QWEN3MOE,
    FAMILY_SMOLLM3,
    FAMILY_SEED_OSS,
    FAMILY_MISTRAL3,
    FAMILY_QWEN2MOE,
    FAMILY_GLM4MOE,
    FAMILY_LFM2,
    FAMILY_QWEN35,
    FAMILY_GPT_OSS,
    FAMILY_QWEN35MOE,
    FAMILY_LFM2MOE,
    FAMILY_QWEN3NEXT,
    FAMILY_GEMMA3,
    FAMILY_OLMO2,
    FAMILY_EXAONE4,
    FAMILY_GEMMA4,
    FAMILY_MINIMAX_M2,
    FAMILY_GEMMA2,
    FAMILY_PHI3,
    FAMILY_GLM4,
    FAMILY_GRANITE,
    FAMILY_GRANITEMOE,
    FAMILY_COHERE2,
};

/* Where norms stand: before attention and the feed-forward, before and behind them, or behind them alone. */
enum norm_place { NORMS_BEFORE, NORMS_AROUND, NORMS_BEHIND };

/* What a layer mixes rows by.  All but attention keep a state of fixed size in place of K and V. */
enum mixer { MIXER_ATTENTION, MIXER_SHORT_CONVOLUTION, MIXER_DELTA };

enum attention_kind { ATTENTION_FULL, ATTENTION_SLIDING };

/* Rotations that layers may have: that of full layers, that of sliding ones where theirs is another, that of queries
 * where these have a temperature, or none (NoPE). */
enum { ROPE_FULL, ROPE_SLIDING, ROPE_QUERIES, ROPES_MAX, ROPE_NONE = ROPES_MAX };

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LLAMA3 };

struct layer_config {
    enum mixer mixer;
    size_t state_first; /* where its state begins in a sequence's (struct state_config), without attention */
    enum attention_kind attention;
    uint64_t window; /* tokens, for ATTENTION_SLIDING */
    size_t head_count;
    struct kv_geometry kv; /* of its K and V; no heads: it keeps a state */
    /* Whose K and V it attends to: its own, or, in the last layers, those of an earlier one, of the same kind. */
    size_t kv_layer;
    size_t rope;       /* ROPE_FULL, ROPE_SLIDING or ROPE_NONE */
    size_t query_rope; /* of its queries: the same, or ROPE_QUERIES */
    float scale;       /* of its attention: 1 / sqrt(k_dimension) unless the family or the file says otherwise */
    size_t ffn_size;   /* without experts */
};

/* Whether all rows go through one more feed-forward beside the experts that they pick, and whether a sigmoid of the row
 * weighs it.  BESIDE (gemma4): the router, the experts and that one have norms of their own, before and behind. */
enum shared_experts { SHARED_EXPERT_NONE, SHARED_EXPERT_PLAIN, SHARED_EXPERT_GATED, SHARED_EXPERT_BESIDE };

/* Of a mixture of experts, in every layer but the first dense_layers ones. */
struct experts_config {
    size_t count; /* 0: none; the model is dense */
    size_t used;  /* of them by a row */
    size_t size;  /* of an expert's feed-forward */
    enum router router;
    bool normalises; /* the weights of a row's experts are divided by their sum, */
    float scale;     /* and multiplied by this */
    enum activation_kind activation;
    bool is_fused;                   /* gate and up are rows of one stack */
    bool has_biases;                 /* of all their products, the router's too */
    bool has_choice_bias;            /* route_operation.bias */
    size_t group_count, groups_used; /* as in route_operation */
    size_t dense_layers;
    enum shared_experts shared;
    size_t shared_size; /* of that feed-forward; 0: there is none */
};

/* Of the layers that keep a state, which are all alike. */
struct state_config {
    size_t layer_count, layer_floats; /* 0: there are none */
    size_t taps, channels;            /* of a convolution; its state is [taps - 1][channels], behind which lies: */
    /* MIXER_DELTA: [value_heads][k_dimension][v_dimension] */
    size_t key_heads, value_heads, k_dimension, v_dimension;
    bool is_grouped;            /* delta_operation */
    size_t in_width, out_width; /* floats of a row: of what `in` gives, and of what `out` takes */
};

struct model_config {
    enum model_family family;
    const char *name; /* general.name or the file's name */
    size_t layer_count, hidden_size;
    size_t ffn_size;         /* the most of any layer */
    size_t layer_input_size; /* of what each token gives each layer (gemma4's per-layer embeddings); 0: nothing */
    size_t nextn_layers;     /* behind them in the file: they predict tokens beyond the next one, and are not used */
    struct experts_config experts;
    struct state_config state;
    bool has_gates; /* of attention: a head's queries are followed by as many gates of its output */
    enum norm_place norms;
    bool norms_rows;                 /* the norms of q and k are of all heads at once, not of each */
    enum activation_kind activation; /* of a dense feed-forward that has gates */
    float embedding_scale;           /* 0: 1 */
    float output_scale;              /* of the norm behind the last layer; 0: 1 */
    /* Scores of attention, scaled, and logits become softcap * tanh(x / softcap); 0: they stay. */
    float score_softcap, logit_softcap;
    /* The most of any layer, for buffers; each layer's are in layers. */
    size_t head_count, kv_head_count, k_dimension, v_dimension;
    size_t vocabulary_size;
    uint64_t context_length; /* trained, or stretched to */
    uint64_t stretched_from; /* trained (model_config_read_stretched); 0: as the file says */
    float norm_epsilon;
    bool has_rope;
    enum rope_order rope_order;
    size_t rope_dimension;         /* elements of a head that are rotated, */
    size_t sliding_rope_dimension; /* and of layers with ROPE_SLIDING; 0: there are none */
    float rope_base, sliding_rope_base;
    bool sliding_is_unscaled; /* ROPE_SLIDING has no part in rope_scaling */
    enum rope_scaling rope_scaling;
    float rope_factor, rope_attention_factor; /* the second one scales cos and sin (YaRN; otherwise 1) */
    uint64_t rope_original_context;
    float yarn_extrapolation, yarn_beta_fast, yarn_beta_slow;
    bool yarn_is_exact; /* the pairs between which it interpolates are no whole numbers */
    /* For ROPE_SCALING_LLAMA3 by keys; 0: the tensor rope_freqs has it. */
    float llama3_low_factor, llama3_high_factor;
    /* Queries at position p are multiplied by 1 + temperature ln(1 + floor(p / rope_original_context)); 0: by 1. */
    float temperature;
    uint64_t position_offset;            /* of the learned positions (OPT: 2) */
    float attention_scale;               /* of layers that are all alike */
    const struct layer_config *layers;   /* [layer_count] */
    const struct kv_groups *kv_groups;   /* layers of equal kv; NULL: all are, and each has its own */
    const struct kv_windows *kv_windows; /* of layers that slide; NULL: none does */
};

/* Layers that attend; the others keep a state. */
static inline size_t model_attention_layers(const struct model_config *config) {
    return config->layer_count - config->state.layer_count;
}

/* Floats of a sequence's state: of all layers that keep one. */
static inline size_t model_state_floats(const struct model_config *config) {
    return config->state.layer_count * config->state.layer_floats;
}

/* Floats of a row that a layer with a state computes with, and of queries with their gates. */
static inline size_t model_mixed_width(const struct model_config *config) {
    const struct state_config *state = &config->state;
    const size_t delta = state->value_heads > 0 ? state->channels + state->out_width + 2 * state->value_heads : 0;
    const size_t gates = config->has_gates ? 2 * config->head_count * config->k_dimension : 0;
    return state->in_width + state->out_width + delta + gates;
}

/* Floats of a row from which a layer's state goes on. */
static inline size_t model_ahead_width(const struct model_config *config) {
    return config->state.in_width + 2 * config->state.value_heads;
}

/* Floats that the feed-forward part has between its two products, of a row. */
static inline size_t model_ffn_width(const struct model_config *config) {
    const struct experts_config *experts = &config->experts;
    if (experts->count == 0) return max_size(config->ffn_size, config->layer_input_size);
    const size_t beside = max_size(experts->shared_size, experts->dense_layers > 0 ? config->ffn_size : 0);
    return max_size(max_size(experts->used * experts->size, beside), config->layer_input_size);
}

static inline bool model_layer_has_experts(const struct model_config *config, size_t layer) {
    return config->experts.count > 0 && layer >= config->experts.dense_layers;
}

/* Of a layer that keeps a state. */
struct state_weights {
    struct weight in, out;
    struct span taps;                /* float [channels][taps] */
    struct weight gate, alpha, beta; /* MIXER_DELTA: delta_operation's z, alpha and beta, if grouped both in beta; */
    struct span decay, bias, norm;   /* and the same */
};

struct layer_weights {
    /* Attention; no k and v where it attends to those of another layer, no v where k's products are the values too. */
    struct weight q, k, v, output;
    struct span q_bias, k_bias, v_bias, output_bias; /* none where the family has none */
    struct span attention_norm, attention_norm_bias;
    struct span q_norm, k_norm;   /* RMSNorm of each head, or of all (norms_rows) */
    struct span v_norm;           /* of each head, by ones */
    struct weight gate, up, down; /* OPT has no gate; with experts stacks of theirs */
    struct span sinks;            /* [head_count]: as in attend_operation */
    struct mixture_weights {
        struct weight router;
        struct span router_bias, choice_bias, gate_bias; /* none where the family has none */
        struct span scales;                              /* of what experts give; or none */
        /* The feed-forward that all rows share; router: the row whose product is its weight's sigmoid. */
        struct shared_weights {
            struct weight gate, up, down, router;
        } shared;
        /* SHARED_EXPERT_BESIDE: before the router and before the experts, and behind these and the shared one. */
        struct span router_norm, norm, norm_behind, shared_norm_behind;
    } mixture; /* with experts; of stacks of gate and up in one, [expert][gate rows, then up rows], up has no data */
    /* With layer_input_size: what a token gives the layer is (its columns of input_table[token] + norm(projection * its
     * embedding)) times factors, and residual += norm_behind(output * (gelu(gate * residual) * that)). */
    struct layer_input_weights {
        struct weight projection, gate, output;
        struct span norm, norm_behind;
    } input;
    float output_scale; /* of the residual stream behind the layer; 0: 1 */
    struct state_weights state;
    struct span up_bias, down_bias;
    struct span ffn_norm, ffn_norm_bias;
    struct span attention_norm_behind, ffn_norm_behind;
};

struct model {
    struct model_config config;
    struct gguf gguf;      /* the mapped file */
    struct device *device; /* borrowed */
    size_t device_layers;  /* at least layer_count: all weights are in its memory */
    uint64_t bus_bytes;    /* of the layers' weights that are not: read over the bus for each pass */
    struct weight token_embedding, position_embedding, output;
    struct weight input_table; /* [vocabulary][layer_count * layer_input_size], in RAM: a pass reads few rows of it */
    struct span output_norm, output_norm_bias;
    struct span rope_frequency[ROPES_MAX]; /* [dimension / 2], scaling applied */
    struct layer_weights *layers;          /* [layer_count] */
    /* Owned; reads layers while others compute (weight_stream.h); NULL: all are mapped */
    struct weight_stream *stream;
    struct buffer vectors; /* owned MEMORY_DEVICE: every norm, bias and the rope table, as floats */
    struct arena arena;
};

/* STATUS_MODEL: the message names the file, the tensor or key, what was found and what was expected. */
enum status model_load(struct model **model, const char *path, struct device *device, struct error *error)
    STATUS_CHECKED;
struct model_load_options {
    /* The weights of the last layers, so many, and the output matrix are in the device's memory.  Those of the layers
     * before, and an embedding that is not the output matrix too, are in RAM, and the device reads them over its bus in
     * each pass.  SIZE_MAX: all are on the device. */
    size_t device_layers;
    uint64_t stretched; /* model_config_read_stretched */
    /* Behind each matrix that the device has taken: bytes of matrices so far, of all.  true: loading ends with
     * STATUS_INTERRUPTED.  May be NULL. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
};
/* STATUS_MEMORY: the device is too small; the message says how many layers it has room for. */
enum status model_load_with(struct model **model, const char *path, struct device *device,
                            const struct model_load_options *options, struct error *error) STATUS_CHECKED;
void model_destroy(struct model *model); /* NULL allowed */
/* Keeps at most host_bytes of weights in memory and reads the others from the file for each pass (weight_stream.h).
 * Call before the first pass.  faults: tests; NULL: none. */
struct io_faults;
enum status model_limit_weights(struct model *model, uint64_t host_bytes, const struct io_faults *faults,
                                struct error *error) STATUS_CHECKED;
/* STATUS_MODEL names the first tensor with a weight that is NaN or infinite.  Reads the whole file. */
enum status model_check_numbers(const struct model *model, struct error *error) STATUS_CHECKED;

/* Reads and checks the configuration only, for inspect and quantize.  layers and name live in arena. */
enum status model_config_read(struct model_config *config, const struct gguf *gguf, struct arena *arena,
                              struct error *error) STATUS_CHECKED;
/* With positions that YaRN stretches so that the context has so many tokens (Peng et al. 2023), as if the file said it;
 * 0: as it is.  STATUS_USAGE: the file has a scaling already, or no positions to scale, or as large a context. */
enum status model_config_read_stretched(struct model_config *config, const struct gguf *gguf, struct arena *arena,
                                        uint64_t tokens, struct error *error) STATUS_CHECKED;

/* The tensor is of a layer behind the last one (nextn_layers). */
bool model_leaves_out(const struct model_config *config, const struct gguf_tensor *tensor);
/* The tensor is multiplied with as it is stored; others become floats when they are loaded. */
bool model_is_matrix(const struct gguf_tensor *tensor);

/* Layers that have K and V of their own: the first ones. */
static inline size_t model_stored_layers(const struct model_config *config) {
    return config->kv_groups != NULL ? config->kv_groups->stored_count : config->layer_count;
}
/* Whether all layers have K and V of one geometry, and of their own.  STATUS_UNSUPPORTED: no, and `what` needs it. */
enum status model_config_check_alike(const struct model_config *config, const char *what, struct error *error)
    STATUS_CHECKED;

struct forward;
struct forward_options {
    struct attention *attention; /* borrowed; used by every layer */
    /* Sequences may keep the inputs of their layers, and K and V are computed from them (attention/rebuild.h). */
    bool rebuilds;
    struct trace *trace; /* borrowed; records steps, layers and their phases (platform/trace.h); NULL: none */
    /* A batch has up to row_capacity rows; up to block_capacity of them go through a layer at a time.  Batches of up to
     * beside_capacity rows may run while another one has paused. */
    size_t row_capacity, block_capacity, logit_row_capacity, beside_capacity;
};
/* Allocates the buffers of a forward pass once.  Only the residual stream and the rope angles have row_capacity rows;
 * their memory becomes resident as it is used. */
enum status forward_create(struct forward **forward, struct model *model, const struct forward_options *options,
                           struct error *error) STATUS_CHECKED;
void forward_destroy(struct forward *forward);
/* Of the device's memory, that forward_create allocates. */
uint64_t forward_bytes(const struct model_config *config, const struct forward_options *options);

/* Called after each block of each layer, except the last block of the last layer.  done and total are rows times
 * layers.  true: the run ends with STATUS_INTERRUPTED.  Rows it stored do not count, since the engine has not raised
 * the sequences' lengths. */
typedef bool forward_progress(void *context, uint64_t done, uint64_t total);

/* Where a batch has paused: the next block's layer and first row. */
struct forward_cursor {
    size_t layer, row_first;
};

/* Items that may leave a batch of one block between two layers, and go on as batches of their own. */
struct forward_leave {
    /* Asked after each layer but the last one, with the layers that are done. */
    bool (*asks)(void *context, size_t done, size_t layer_count);
    void *context;
    size_t stays; /* of the items, the first ones: they go on; 0: the run ends with *logits NULL */
    float *rows;  /* [rows of the others][hidden_size], host memory: their residual stream */
    size_t layer; /* at which they go on (forward_restore_rows); 0: they have not left */
};

enum { FORWARD_AHEAD_MAX = 8 };
struct forward_batch {
    const int32_t *tokens;     /* [row_count] */
    const uint64_t *positions; /* [row_count] */
    size_t row_count;
    /* The batch passes through a layer in blocks of this many rows, then through the next layer: one layer's K and V at
     * a time (decision 0009).  The result has the bits of running the blocks as batches, in order.  0: one block;
     * else item_count must be 1. */
    size_t block_rows;
    struct kv_sequence *const *sequences; /* [item_count] */
    const struct attend_item *items;      /* [item_count]: rows and positions; forward sets the views per layer */
    size_t item_count;
    const uint32_t *logit_rows; /* [logit_row_count] rows whose logits are wanted, ascending */
    size_t logit_row_count;
    /* forward_logits will be called for more rows, so the last layer is not narrowed to logit_rows. */
    bool keep_rows;
    /* [item_count]: how each sequence's rows select; NULL: full attention (prefill). */
    const struct select_rule *const *rules;
    forward_progress *progress; /* may be NULL */
    void *progress_context;
    /* Asked after each block of each layer but the last one.  true: the run ends with STATUS_OK and *logits NULL, and
     * the same batch goes on with the cursor as it was left; zeros begin.  NULL: no pause.  Until it is over, only
     * batches `beside` it may run, unless its rows are saved. */
    bool (*pauses)(void *context);
    void *pauses_context;
    struct forward_cursor *cursor;
    bool beside;
    /* Rows behind the first one may be dropped, and forward_keep_row says which are not: at most FORWARD_AHEAD_MAX rows
     * of one sequence, in one block. */
    bool ahead;
    struct forward_leave *leave; /* NULL: all items stay; not with weights that are read for each pass */
};

/* For tests: the observer sees the residual stream after every layer, block by block. */
typedef void forward_observer(void *context, size_t layer_index, const float *hidden /* [row_count][hidden_size] */,
                              size_t row_count);
void forward_set_observer(struct forward *forward, forward_observer *observer, void *context);

/* Inputs and outputs of a layer's attention, post-RoPE, for all rows of the batch.  For calibration.  Host memory,
 * valid during the call.  While an observer is set no pass is narrowed.  For selected rows see attention_set_observer.
 */
struct attention_event {
    size_t layer_index, row_count;
    const float *q;                       /* [row_count][head_count][k_dimension] */
    const float *k;                       /* [row_count][kv_head_count][k_dimension] */
    const float *v;                       /* [row_count][kv_head_count][v_dimension] */
    const float *attended;                /* [row_count][head_count][v_dimension], before the output projection */
    const uint64_t *positions;            /* [row_count] */
    const struct attend_item *items;      /* [item_count], with this layer's views of all rows stored so far */
    struct kv_sequence *const *sequences; /* [item_count] */
    size_t item_count;
};
typedef void attention_observer(void *context, const struct attention_event *event);
void forward_set_attention_observer(struct forward *forward, attention_observer *observer, void *context);

/* For benchmarks (engine/engine.h): rows that replace the computed ones.  Host memory, valid while it is set.  There
 * is no prefetch for the next layer then: the residual stream does not predict recorded queries. */
struct forward_replay {
    size_t row_count;       /* of every pass */
    const float *q, *k, *v; /* [layer_count][row_count][head_count or kv_head_count][dimension] */
};
void forward_set_replay(struct forward *forward, const struct forward_replay *replay); /* NULL: none */

/* Runs all layers; KV must be reserved.  *logits: [logit_row_count][vocabulary_size], in host memory, valid until the
 * next call. */
enum status forward_run(struct forward *forward, const struct forward_batch *batch, const float **logits,
                        struct error *error) STATUS_CHECKED;
/* Behind the last batch that was `ahead`: its sequence, whose length is the position of this row, is about to keep it.
 * States go on from row to row, by what the batch computed of it; nothing where no layer keeps one. */
enum status forward_keep_row(struct forward *forward, struct kv_sequence *sequence, size_t row, struct error *error)
    STATUS_CHECKED;
/* Steps that ran as a graph of the device (device.h).  changes: of graphs, for other sequences than they were of. */
struct step_graph_counts {
    uint64_t captures, changes, launches;
    uint64_t again; /* of the launches: steps that were run as they are after all (attention_settle_step) */
};
struct step_graph_counts forward_graph_counts(const struct forward *forward);
/* Before memory goes that graphs may name: of the KV cache's slots. */
void forward_forget_graph(struct forward *forward);
/* The residual stream of a paused batch, [row_count][hidden_size] in host memory, so that another one may run; and back
 * for the run that goes on. */
enum status forward_save_rows(struct forward *forward, size_t row_count, float *rows, struct error *error)
    STATUS_CHECKED;
enum status forward_restore_rows(struct forward *forward, const struct forward_batch *batch, const float *rows,
                                 struct error *error) STATUS_CHECKED;
/* After a forward_run with keep_rows: computes the logits of other rows of that batch, at most logit_row_capacity. */
enum status forward_logits(struct forward *forward, const uint32_t *rows, size_t row_count, const float **logits,
                           struct error *error) STATUS_CHECKED;
