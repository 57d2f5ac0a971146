/* tiny_model: GGUF files of small random models, for tests, and a plain forward pass to compare with. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "model/model.h"

struct tiny_model {
    const char *family; /* general.architecture */
    size_t layer_count, hidden_size, head_count, kv_head_count, head_dimension, ffn_size, vocabulary_size;
    size_t expert_count, expert_used, expert_size; /* of families with experts */
    size_t shared_size, dense_layers;              /* qwen2moe, glm4moe */
    bool tied;
    const int32_t
        *kv_heads;       /* [layer_count]: each layer's own, in place of kv_head_count; NULL: all have that */
    size_t taps;             /* lfm2: layers with 0 KV heads convolve over so many rows; qwen35 too, and: */
    size_t attention_interval, key_heads, value_heads, delta_k, delta_v; /* all but every so manieth are delta nets */
    const char *scaling; /* rope.scaling.type; NULL: none. "tensor": llama3 factors in rope_freqs.weight */
    float factor;
    uint32_t original_context;
    uint32_t window, window_period; /* sliding layers; period 0: all */
    const int32_t *slides;          /* [layer_count]: which do, in place of the period; NULL: by it */
    size_t sliding_dimension;       /* of the heads of sliding layers; 0: head_dimension */
    size_t shared_layers;           /* so many, the last ones, attend to the KV of earlier ones */
    size_t input_size;              /* gemma4: of what tokens give each layer */
    enum tensor_type type;          /* of the matrices */
    enum tensor_type vector_type;   /* of norms and biases */
    bool adds_nothing;              /* layers leave the residual stream as it is: each has the same input */
    uint64_t seed;
    /* Damage, for the tests of errors: */
    const char *omit;    /* this tensor or key is left out */
    const char *reshape; /* this tensor's last dimension is one more */
    const char *poison;  /* this vector holds a NaN */
    const char *retype;  /* this tensor becomes I32 */
    const char *extra;   /* a tensor of this name is added */
    const char *key;     /* this key (without family) is set to: */
    float value;         /* as a float when it has a fraction, else as an integer */
    const char *text;    /* or this text, true and false as a bool */
};

/* Every family, llama first; the tests of all of them walk it. */
enum { TINY_FAMILIES = 22 };
extern const char *const tiny_families[TINY_FAMILIES];

/* Those with layers that keep a state; first and last. */
enum { TINY_STATE_FAMILIES = 5 };
extern const char *const tiny_state_families[TINY_STATE_FAMILIES];

/* Sensible sizes for a family: GQA for llama, qwen2 and qwen3, MHA for opt. */
struct tiny_model tiny_model_default(const char *family);

/* A llama of seven layers with 1, 2 and 4 KV heads, of 32 and of 64 dimensions, the second and the fourth one with a
 * window.  shares: the last one attends to the KV of the one before it. */
struct tiny_model tiny_model_of_groups(bool shares);
/* A layer of a loaded model that slides attends to everything, so that layers of its dimensions choose too. */
void tiny_model_unslide(struct model *model, size_t layer);

/* One of the families, with random layers and windows; what q8 needs holds. */
struct tiny_model tiny_model_random(struct random *random, const char *const *families, size_t family_count);
size_t random_between(struct random *random, size_t min, size_t max); /* both may come */

/* Writes the file; fails the test when that is not possible. */
void tiny_model_write(const struct tiny_model *tiny, const char *path);

/* A path in the build folder for this test program. */
const char *tiny_model_path(const char *name, char *buffer, size_t buffer_bytes);

/* A device, and on it the model, whose file is gone again; name: of the test program's file.  Fails the test. */
void tiny_model_load(const struct tiny_model *tiny, const char *name, const struct device_options *options,
                     struct device **device, struct model **model);
/* On a device that is there. */
void tiny_model_load_on(const struct tiny_model *tiny, const char *name, struct device *device,
                        struct model **model);
/* Tokens of its vocabulary. */
void tiny_model_tokens(const struct tiny_model *tiny, struct random *random, int32_t *tokens, size_t count);

/* Logits of every token by the formulas, in double, without cache or blocks: [count][vocabulary_size].
 * The model's matrices must be F32 or BF16.  rounds_kv: K and V to halves, as a cache of KV_F16 has them.  hidden, when
 * not NULL: the residual stream after every layer, [layer_count][count][hidden_size]. */
void plain_forward(const struct model *model, const int32_t *tokens, size_t count, bool rounds_kv, double *logits,
                   double *hidden);
