/* What only the files of src/model share. */
#pragma once

#include "model/model.h"

/* Bounds on what a file may declare: far above any model of these families, and small enough that no product of two
 * overflows.  KV layouts need rows of a multiple of 8 halves, and attention takes at most 64 query heads per KV head.
 */
enum {
    LAYERS_MAX = 1024,
    HEADS_MAX = 4096,
    HEAD_DIMENSION_MAX = 1024,
    HEAD_DIMENSION_GRANULE = 8,
    GROUP_MAX = 64,
    HIDDEN_MAX = 1 << 18,
    FFN_MAX = 1 << 22,
    VOCABULARY_MAX = 1 << 24,
    EXPERTS_MAX = 1 << 12,
};

#define CONTEXT_MAX ((uint64_t)1 << 40)

/* What sets a family apart, as data. */
struct family {
    const char *name; /* general.architecture, also the prefix of the keys */
    enum model_family family;
    enum rope_order rope_order;
    const char *epsilon_key;
    bool has_biases;      /* of q, k and v */
    bool has_output_bias; /* of attention's output */
    bool has_sinks;
    struct family_windows {
        size_t period;     /* the last of each so many layers has none, where a file does not say */
        bool are_needed;   /* without attention.sliding_window a file is of another model */
        size_t tokens;     /* of one, where a file does not say; 0: then there are none */
        bool rotate_alone; /* where some layers have one, the others rotate nothing */
        bool are_unscaled; /* layers with one rotate without rope.scaling, */
        float rope_base;   /* and by this base, where a file does not say; 0: by that of the others */
    } windows;
    bool yarn_is_exact; /* as in model_config */
    struct family_norms {
        enum norm_place place;
        bool of_heads, may_be_of_heads; /* of q and k; */
        bool of_rows;                   /* those are of all heads at once */
        /* Of values, without a weight.  A layer without attn_v has attn_k's products as values, before their norm. */
        bool of_values;
        bool subtract_means; /* LayerNorm, without biases */
        /* The feed-forward takes what attention takes, a norm of the layer's input, to which both add. */
        bool is_one;
        const char *before_ffn; /* the tensor of the norm before the feed-forward; NULL: ffn_norm.weight */
        const char *output;     /* of that behind the last layer; NULL: output_norm.weight */
    } norms;
    enum activation_kind activation;
    struct family_scales {
        bool embedding;                     /* by the root of embedding_length */
        bool are_given;                     /* embedding_scale, residual_scale and logit_scale may be in a file */
        bool logits_are_multiplied;         /* by logit_scale; else they are divided by it */
        float attention;                    /* where a file does not say; 0: 1 / sqrt(k_dimension) */
        size_t wide_layers;                 /* of so many layers, that of embedding_length / head_count elements */
        float score_softcap, logit_softcap; /* where a file does not say; no score_softcap: it may not say any */
    } scales;
    bool has_temperature; /* of queries at positions beyond the original context */
    /* Of layers without KV heads: attention.head_count_kv has a number for each layer.  MIXER_ATTENTION: all have. */
    enum mixer mixer;
    bool delta_is_grouped; /* delta_operation */
    bool has_gates;        /* struct model_config */
    bool has_fused_gates;  /* ffn_up has the rows of gate, then those of up */
    size_t plain_period;   /* the last of each so many layers rotates nothing; 0: all rotate */
    bool has_nextn;        /* a file may have model_config.nextn_layers */
    /* A mixture of experts where count is not 0; router and normalises: what a file does not say; dense_layers: a file
     * may have some.  Families with shared experts may, too; with SHARED_EXPERT_BESIDE a file may have no experts.
     * size: feed_forward_length is that of each expert, not of all that a row uses. */
    struct experts_config experts;
};
const struct family *family_find(enum model_family family);
/* "llama, qwen2, ...": the names of all. */
const char *family_names(char *buffer, size_t buffer_bytes);

/* The value of general.architecture for a family: "llama". */
const char *family_name(enum model_family family);

/* The tensor of what frequencies are divided by; NULL: a file has none.  LongRoPE (Ding et al. 2024) has two; the
 * context of the model decides between them, not a prompt's length, nor, as in llama.cpp and vLLM, that of a run. */
#define ROPE_FACTORS_SHORT "rope_factors_short.weight"
#define ROPE_FACTORS_LONG "rope_factors_long.weight"
const char *model_rope_divisors(const struct model_config *config, const struct gguf *gguf);

/* The matrices of a layer, q first, then k, v and the output; those that it lacks have no data. */
enum { LAYER_MATRICES = 20 };
void layer_matrices(struct layer_weights *layer, struct weight *matrices[LAYER_MATRICES]);

/* Fills the model's weights from model->gguf, as model->config requires. */
enum status weights_load(struct model *model, const struct model_load_options *options,
                         struct error *error) STATUS_CHECKED;
