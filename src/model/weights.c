/* weights: finds every tensor that the family needs, by name, and checks its shape against the configuration.
 *
 * Matrices stay in the mapped file; the device adopts them.  Vectors (norms, biases, the rope table) are small and
 * become floats in one allocation of device memory.  A tensor that the family does not use is rejected: the file then
 * needs a computation that loam does not have.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "model/model_internal.h"
#include "model/model_size.h"
#include "model/rope_scaling.h"
#include "tensor/half.h"

enum { NAME_BYTES = 64, VECTOR_ALIGNMENT = 64 };

struct loader {
    struct model *model;
    struct error *error;
    bool *used;                     /* [tensor_count] */
    uint8_t *staging;               /* [vectors_bytes], the host's copy of model->vectors */
    size_t vectors_used;            /* bytes */
    char name[NAME_BYTES];          /* of the tensor in work */
    size_t layer;                   /* names are made for this layer */
    enum memory_kind kind;          /* of matrices */
    uint64_t free_bytes;            /* of the device, before the first matrix */
    const struct model_load_options *options;
    uint64_t done, total;           /* bytes of matrices */
    struct span ones;               /* float [v_dimension], where values are normed */
    struct span zeros;              /* float [hidden_size], the biases of norms that subtract means */
    struct matrix input_projection; /* of all layers (layer_input_size) */
    struct span input_norm;
};

static const char *layer_tensor(struct loader *loader, const char *suffix) {
    snprintf(loader->name, sizeof loader->name, "blk.%zu.%s", loader->layer, suffix);
    return loader->name;
}

/* "[64, 32, 2]": the row length is first, as in GGUF files. */
static const char *shape_text(const struct gguf_tensor *tensor, char *buffer, size_t buffer_bytes) {
    int used = snprintf(buffer, buffer_bytes, "[");
    for (uint32_t i = 0; i < tensor->dimension_count && used > 0 && (size_t)used < buffer_bytes; i++)
        used += snprintf(buffer + used, buffer_bytes - (size_t)used, "%s%llu", i == 0 ? "" : ", ",
                         (unsigned long long)tensor->dimensions[i]);
    if (used > 0 && (size_t)used < buffer_bytes) snprintf(buffer + used, buffer_bytes - (size_t)used, "]");
    return buffer;
}

static const struct gguf_tensor *tensor_find(struct loader *loader, const char *name) {
    const struct gguf *gguf = &loader->model->gguf;
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    if (tensor != NULL) loader->used[tensor - gguf->tensors] = true;
    return tensor;
}

static enum status missing(struct loader *loader, const char *name, const char *expected) {
    return error_set(loader->error, STATUS_MODEL, "%s: tensor %s: missing, family %s needs it with shape %s",
                     loader->model->gguf.path, name, family_name(loader->model->config.family), expected);
}

static enum status mismatch(struct loader *loader, const char *name, const char *what, const char *found,
                            const char *expected) {
    return error_set(loader->error, STATUS_MODEL, "%s: tensor %s: %s: found %s, expected %s", loader->model->gguf.path,
                     name, what, found, expected);
}

static float vector_element(const struct gguf_tensor *tensor, size_t index) {
    uint16_t half;
    float value;
    switch (tensor->type) {
    case TENSOR_F16: memcpy(&half, tensor->data + index * 2, 2); return half_to_float(half);
    case TENSOR_BF16: memcpy(&half, tensor->data + index * 2, 2); return bfloat_to_float(half);
    default: memcpy(&value, tensor->data + index * 4, 4); return value;
    }
}

/* A scale of the matrix NAME.weight, or of each expert: NAME.scale.  NAME.input_scale would be for activations in 4
 * bits. */
static enum status load_scale(struct loader *loader, const char *matrix, size_t count, struct weight *weight) {
    char name[NAME_BYTES + sizeof "input_scale"], found[96], expected[48];
    const int stem = (int)(strlen(matrix) - strlen("weight"));
    snprintf(name, sizeof name, "%.*sinput_scale", stem, matrix);
    (void)tensor_find(loader, name);
    snprintf(name, sizeof name, "%.*sscale", stem, matrix);
    const struct gguf *gguf = &loader->model->gguf;
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    /* used: gemma4's ffn_gate_inp.scale is a norm, its ffn_down_exps.scale the router's */
    if (tensor == NULL || loader->used[tensor - gguf->tensors]) return STATUS_OK;
    loader->used[tensor - gguf->tensors] = true;
    snprintf(expected, sizeof expected, "[%zu] in F32", count);
    if (tensor->type != TENSOR_F32 || tensor->dimensions[0] != count || tensor->size_bytes != count * sizeof(float))
        return mismatch(loader, name, "shape", shape_text(tensor, found, sizeof found), expected);
    float *scale = arena_array(&loader->model->arena, count, sizeof *scale);
    if (scale == NULL) return error_set(loader->error, STATUS_MEMORY, "no memory for the scales");
    for (size_t i = 0; i < count; i++) {
        scale[i] = vector_element(tensor, i);
        if (!isfinite(scale[i])) return mismatch(loader, name, "value", "no number", "finite numbers");
    }
    weight->scale = scale;
    weight->scale_count = count;
    return STATUS_OK;
}

/* Behind the error of a device without memory. */
static enum status say_what_fits(struct loader *loader) {
    const struct model_config *config = &loader->model->config;
    const struct weight_sizes sizes = weight_sizes_on_card(&loader->model->gguf, config);
    const size_t layers = weight_sizes_device_layers(&sizes, loader->free_bytes);
    if (loader->error == NULL || loader->free_bytes == UINT64_MAX || layers >= config->layer_count)
        return STATUS_MEMORY;
    const struct error first = *loader->error;
    return error_set(loader->error, STATUS_MEMORY, "%.350s; of %zu layers it has room for %zu: -ngl %zu", first.message,
                     config->layer_count, layers, layers);
}

/* What a tensor has whose shape is right, of `rows` rows in all. */
static enum status matrix_of(struct loader *loader, const char *name, const struct gguf_tensor *tensor, size_t rows,
                             struct matrix *matrix) {
    const size_t columns = (size_t)tensor->dimensions[0];
    loader->used[tensor - loader->model->gguf.tensors] = true;
    const struct tensor_type_info *info = tensor_type_info(tensor->type);
    if (!info->is_weight)
        return mismatch(loader, name, "type", info->name, "a type that weights can have (F32, F16, Q8_0, ...)");
    uint64_t row_bytes, bytes;
    if (!tensor_row_bytes(tensor->type, columns, &row_bytes) || !checked_multiply(row_bytes, rows, &bytes) ||
        bytes != tensor->size_bytes)
        return mismatch(loader, name, "bytes", "another number", "rows of whole blocks");
    *matrix = (struct matrix){tensor->type, tensor->data, rows, columns, row_bytes};
    return STATUS_OK;
}

/* Where the layer's weights go. */
static enum status put_weight(struct loader *loader, struct weight *weight) {
    struct model *model = loader->model;
    weight->kind = loader->kind;
    if (loader->kind == MEMORY_SHARED && weight != &model->token_embedding && weight != &model->input_table)
        model->bus_bytes += weight->matrix.rows * weight->matrix.row_bytes;
    const enum status status = model->device->operations->weight_load(model->device, weight, loader->error);
    if (status == STATUS_MEMORY && loader->kind == MEMORY_DEVICE) return say_what_fits(loader);
    TRY(status);
    const struct model_load_options *options = loader->options;
    loader->done += weight->matrix.rows * weight->matrix.row_bytes;
    if (options->progress != NULL && options->progress(options->progress_context, loader->done, loader->total))
        return error_set(loader->error, STATUS_INTERRUPTED, "interrupted");
    return STATUS_OK;
}

/* The weight of a tensor whose shape is right, of `rows` rows in all; it may have so many scales. */
static enum status adopt_matrix(struct loader *loader, const char *name, const struct gguf_tensor *tensor, size_t rows,
                                size_t scale_count, struct weight *weight) {
    TRY(matrix_of(loader, name, tensor, rows, &weight->matrix));
    if (strncmp(name, "blk.", 4) == 0 || strcmp(name, "output.weight") == 0) /* not a table of rows */
        TRY(load_scale(loader, name, scale_count, weight));
    return put_weight(loader, weight);
}

/* The tensor of w[rows][columns]; absent is an error. */
static enum status find_matrix(struct loader *loader, const char *name, size_t rows, size_t columns,
                               const struct gguf_tensor **tensor) {
    char expected[64], found[96];
    snprintf(expected, sizeof expected, "[%zu, %zu]", columns, rows);
    *tensor = tensor_find(loader, name);
    if (*tensor == NULL) return missing(loader, name, expected);
    const uint64_t *have = (*tensor)->dimensions;
    if (have[0] != columns || have[1] != rows || have[2] * have[3] != 1)
        return mismatch(loader, name, "shape", shape_text(*tensor, found, sizeof found), expected);
    return STATUS_OK;
}

static enum status load_matrix(struct loader *loader, const char *name, size_t rows, size_t columns,
                               struct weight *weight) {
    const struct gguf_tensor *tensor;
    TRY(find_matrix(loader, name, rows, columns, &tensor));
    return adopt_matrix(loader, name, tensor, rows, 1, weight);
}

/* The rows of one tensor as `count` matrices, one after the other; absent is an error. */
static enum status load_fused(struct loader *loader, const char *name, size_t columns, struct weight *const *parts,
                              const size_t *rows, size_t count) {
    const struct gguf_tensor *tensor;
    struct weight all = {.kind = loader->kind};
    size_t row_count = 0;
    for (size_t i = 0; i < count; i++) row_count += rows[i];
    TRY(find_matrix(loader, name, row_count, columns, &tensor));
    TRY(matrix_of(loader, name, tensor, row_count, &all.matrix));
    TRY(load_scale(loader, name, 1, &all));
    for (size_t i = 0; i < count; i++) {
        *parts[i] = all;
        parts[i]->matrix.rows = rows[i];
        all.matrix.data = (const uint8_t *)all.matrix.data + rows[i] * all.matrix.row_bytes;
        TRY(put_weight(loader, parts[i]));
    }
    return STATUS_OK;
}

/* Takes count floats of the device's vectors.  The host fills *staging before vectors_flush. */
static struct span vector_take(struct loader *loader, size_t count, float **staging) {
    size_t bytes = align_up(count * sizeof(float), VECTOR_ALIGNMENT), at = loader->vectors_used;
    ASSERT(bytes <= loader->model->vectors.bytes - at); /* vectors_reserve counted it */
    loader->vectors_used += bytes;
    *staging = (float *)(void *)(loader->staging + at);
    return span_of(&loader->model->vectors, at);
}

/* rows vectors of count elements, one after the other, as floats. */
static enum status take_vectors(struct loader *loader, const char *name, const struct gguf_tensor *tensor, size_t count,
                                size_t rows, struct span *vector) {
    char expected[64], found[96];
    snprintf(expected, sizeof expected, rows == 1 ? "[%zu]" : "[%zu, %zu]", count, rows);
    if (tensor == NULL) return missing(loader, name, expected);
    if (tensor->dimensions[0] != count || tensor->dimensions[1] != rows ||
        tensor->dimensions[2] * tensor->dimensions[3] != 1)
        return mismatch(loader, name, "shape", shape_text(tensor, found, sizeof found), expected);
    count *= rows;
    if (tensor->type != TENSOR_F32 && tensor->type != TENSOR_F16 && tensor->type != TENSOR_BF16)
        return mismatch(loader, name, "type", tensor_type_info(tensor->type)->name, "F32, F16 or BF16");
    float *values;
    *vector = vector_take(loader, count, &values);
    for (size_t i = 0; i < count; i++) {
        values[i] = vector_element(tensor, i);
        if (isfinite(values[i])) continue;
        snprintf(found, sizeof found, "%g at element %zu", (double)values[i], i);
        return mismatch(loader, name, "value", found, "finite numbers");
    }
    return STATUS_OK;
}

/* A vector of count elements.  If it is absent and not required, *vector is none. */
static enum status load_vector(struct loader *loader, const char *name, size_t count, bool required,
                               struct span *vector) {
    const struct gguf_tensor *tensor = tensor_find(loader, name);
    return tensor == NULL && !required ? STATUS_OK : take_vectors(loader, name, tensor, count, 1, vector);
}

/* The same, each element times a factor. */
static enum status load_scaled(struct loader *loader, const char *name, size_t count, float factor,
                               struct span *vector) {
    TRY(load_vector(loader, name, count, true, vector));
    float *values = (float *)(void *)(loader->staging + vector->offset);
    for (size_t i = 0; i < count; i++) values[i] *= factor;
    return STATUS_OK;
}

/* w[rows][taps] of a convolution as a vector of the device. */
static enum status load_taps(struct loader *loader, const char *name, size_t rows, size_t taps, struct span *vector) {
    return take_vectors(loader, name, tensor_find(loader, name), taps, rows, vector);
}

static enum status load_delta(struct loader *loader, struct state_weights *weights) {
    const struct state_config *state = &loader->model->config.state;
    const size_t hidden = loader->model->config.hidden_size, heads = state->value_heads;
    TRY(load_matrix(loader, layer_tensor(loader, "attn_qkv.weight"), state->in_width, hidden, &weights->in));
    TRY(load_matrix(loader, layer_tensor(loader, "attn_gate.weight"), state->out_width, hidden, &weights->gate));
    TRY(load_taps(loader, layer_tensor(loader, "ssm_conv1d.weight"), state->channels, state->taps, &weights->taps));
    if (state->is_grouped) {
        TRY(load_matrix(loader, layer_tensor(loader, "ssm_ba.weight"), 2 * heads, hidden, &weights->beta));
    } else {
        TRY(load_matrix(loader, layer_tensor(loader, "ssm_alpha.weight"), heads, hidden, &weights->alpha));
        TRY(load_matrix(loader, layer_tensor(loader, "ssm_beta.weight"), heads, hidden, &weights->beta));
    }
    TRY(load_vector(loader, layer_tensor(loader, "ssm_dt.bias"), heads, true, &weights->bias));
    TRY(load_vector(loader, layer_tensor(loader, "ssm_a"), heads, true, &weights->decay));
    TRY(load_vector(loader, layer_tensor(loader, "ssm_norm.weight"), state->v_dimension, true, &weights->norm));
    return load_matrix(loader, layer_tensor(loader, "ssm_out.weight"), hidden, state->out_width, &weights->out);
}

/* A layer that keeps a state. */
static enum status load_mixer(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    const struct state_config *state = &config->state;
    const struct device *device = loader->model->device;
    const size_t hidden = config->hidden_size, channels = state->channels;
    if (device->operations->convolve == NULL)
        return error_set(loader->error, STATUS_UNSUPPORTED,
                         "%s: the device %s does not compute layers that keep a state (family %s), expected cpu",
                         loader->model->gguf.path, device->name, family_name(config->family));
    TRY(load_vector(loader, layer_tensor(loader, "attn_norm.weight"), hidden, true, &layer->attention_norm));
    if (state->value_heads > 0) return load_delta(loader, &layer->state);
    TRY(load_matrix(loader, layer_tensor(loader, "shortconv.in_proj.weight"), state->in_width, hidden,
                    &layer->state.in));
    TRY(load_matrix(loader, layer_tensor(loader, "shortconv.out_proj.weight"), hidden, state->out_width,
                    &layer->state.out));
    return load_taps(loader, layer_tensor(loader, "shortconv.conv.weight"), channels, state->taps, &layer->state.taps);
}

static enum status load_sinks(struct loader *loader, struct layer_weights *layer) {
    return load_vector(loader, layer_tensor(loader, "attn_sinks.weight"), loader->model->config.head_count, true,
                       &layer->sinks);
}

/* The norms of a part of a layer, of those around it that the family has. */
static enum status load_norms(struct loader *loader, const char *before_name, const char *behind_name,
                              struct span *before, struct span *behind) {
    const struct model_config *config = &loader->model->config;
    const size_t hidden = config->hidden_size;
    if (config->norms != NORMS_BEHIND)
        TRY(load_vector(loader, layer_tensor(loader, before_name), hidden, true, before));
    if (config->norms == NORMS_BEFORE) return STATUS_OK;
    return load_vector(loader, layer_tensor(loader, behind_name), hidden, true, behind);
}

/* q, and, where the layer stores them, k and v; one tensor has the rows of all three, or each its own. */
static enum status load_queries(struct loader *loader, struct layer_weights *layer, size_t q_size, size_t k_size,
                                size_t v_size) {
    const struct model_config *config = &loader->model->config;
    const struct layer_config *own = &config->layers[loader->layer];
    const size_t hidden = config->hidden_size;
    const struct gguf *gguf = &loader->model->gguf;
    const bool stores = own->kv_layer == loader->layer;
    const bool is_fused = gguf_find_tensor(gguf, layer_tensor(loader, "attn_q.weight")) == NULL;
    if (stores && is_fused && gguf_find_tensor(gguf, layer_tensor(loader, "attn_qkv.weight")) != NULL)
        return load_fused(loader, loader->name, hidden, (struct weight *[]){&layer->q, &layer->k, &layer->v},
                          (size_t[]){q_size, k_size, v_size}, 3);
    TRY(load_matrix(loader, layer_tensor(loader, "attn_q.weight"), q_size, hidden, &layer->q));
    if (!stores) return STATUS_OK;
    TRY(load_matrix(loader, layer_tensor(loader, "attn_k.weight"), k_size, hidden, &layer->k));
    const bool has_v = !family_find(config->family)->norms.of_values || own->kv.k_dimension != own->kv.v_dimension ||
                       gguf_find_tensor(gguf, layer_tensor(loader, "attn_v.weight")) != NULL;
    return has_v ? load_matrix(loader, layer_tensor(loader, "attn_v.weight"), v_size, hidden, &layer->v) : STATUS_OK;
}

static enum status load_attention(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    const struct layer_config *own = &config->layers[loader->layer];
    if (own->mixer != MIXER_ATTENTION) return load_mixer(loader, layer);
    const struct kv_geometry kv = own->kv;
    const struct device *device = loader->model->device;
    const size_t widest = max_size(kv.k_dimension, kv.v_dimension);
    if (device->head_max != 0 && widest > device->head_max)
        return error_set(loader->error, STATUS_UNSUPPORTED,
                         "%s: layer %zu has heads of %zu elements, the %s device takes at most %zu: try --device cpu",
                         loader->model->gguf.path, loader->layer, widest, device->name, device->head_max);
    const bool stores = own->kv_layer == loader->layer;
    size_t hidden = config->hidden_size, q_size = config->head_count * kv.k_dimension;
    size_t k_size = kv.kv_head_count * kv.k_dimension;
    size_t v_size = kv.kv_head_count * kv.v_dimension;
    size_t out_size = config->head_count * kv.v_dimension;
    const struct family *family = family_find(config->family);
    bool opt = config->family == FAMILY_OPT, biased = family->has_biases;
    TRY(load_norms(loader, "attn_norm.weight", "post_attention_norm.weight", &layer->attention_norm,
                   &layer->attention_norm_behind));
    if (opt)
        TRY(load_vector(loader, layer_tensor(loader, "attn_norm.bias"), hidden, true, &layer->attention_norm_bias));
    if (family->norms.subtract_means) layer->attention_norm_bias = loader->zeros;
    TRY(load_queries(loader, layer, config->has_gates ? 2 * q_size : q_size, k_size, v_size));
    if (stores) layer->v_norm = loader->ones;
    TRY(load_matrix(loader, layer_tensor(loader, "attn_output.weight"), hidden, out_size, &layer->output));
    TRY(load_vector(loader, layer_tensor(loader, "attn_q.bias"), q_size, biased, &layer->q_bias));
    if (stores) TRY(load_vector(loader, layer_tensor(loader, "attn_k.bias"), k_size, biased, &layer->k_bias));
    if (stores) TRY(load_vector(loader, layer_tensor(loader, "attn_v.bias"), v_size, biased, &layer->v_bias));
    TRY(load_vector(loader, layer_tensor(loader, "attn_output.bias"), hidden, family->has_output_bias,
                    &layer->output_bias));
    if (family->has_sinks) TRY(load_sinks(loader, layer));
    if (!family->norms.of_heads && !family->norms.may_be_of_heads) return STATUS_OK;
    const bool rows = family->norms.of_rows;
    TRY(load_vector(loader, layer_tensor(loader, "attn_q_norm.weight"), rows ? q_size : kv.k_dimension,
                    family->norms.of_heads, &layer->q_norm));
    if (!stores) return STATUS_OK;
    return load_vector(loader, layer_tensor(loader, "attn_k_norm.weight"), rows ? k_size : kv.k_dimension,
                       family->norms.of_heads || span_exists(layer->q_norm), &layer->k_norm);
}

/* The same matrix of every expert, one after the other: [columns, rows, experts]. */
static enum status load_stack(struct loader *loader, const char *suffix, size_t rows, size_t columns,
                              struct weight *weight) {
    const size_t experts = loader->model->config.experts.count;
    const char *name = layer_tensor(loader, suffix);
    const struct gguf_tensor *tensor = gguf_find_tensor(&loader->model->gguf, name);
    char expected[64], found[96];
    snprintf(expected, sizeof expected, "[%zu, %zu, %zu]", columns, rows, experts);
    if (tensor == NULL) return missing(loader, name, expected);
    if (tensor->dimensions[0] != columns || tensor->dimensions[1] != rows || tensor->dimensions[2] != experts ||
        tensor->dimensions[3] != 1)
        return mismatch(loader, name, "shape", shape_text(tensor, found, sizeof found), expected);
    return adopt_matrix(loader, name, tensor, experts * rows, experts, weight);
}

static enum status load_shared(struct loader *loader, struct shared_weights *shared) {
    const struct model_config *config = &loader->model->config;
    const size_t hidden = config->hidden_size, size = config->experts.shared_size;
    if (config->experts.shared == SHARED_EXPERT_NONE) return STATUS_OK;
    const bool beside = config->experts.shared == SHARED_EXPERT_BESIDE; /* it has the names of a dense one */
    TRY(load_matrix(loader, layer_tensor(loader, beside ? "ffn_gate.weight" : "ffn_gate_shexp.weight"), size, hidden,
                    &shared->gate));
    TRY(load_matrix(loader, layer_tensor(loader, beside ? "ffn_up.weight" : "ffn_up_shexp.weight"), size, hidden,
                    &shared->up));
    TRY(load_matrix(loader, layer_tensor(loader, beside ? "ffn_down.weight" : "ffn_down_shexp.weight"), hidden, size,
                    &shared->down));
    if (config->experts.shared != SHARED_EXPERT_GATED) return STATUS_OK;
    return load_matrix(loader, layer_tensor(loader, "ffn_gate_inp_shexp.weight"), 1, hidden, &shared->router);
}

/* Of SHARED_EXPERT_BESIDE.  The router's norm is by ffn_gate_inp.scale over the root of hidden_size. */
static enum status load_mixture_vectors(struct loader *loader, struct mixture_weights *mixture) {
    const size_t hidden = loader->model->config.hidden_size;
    TRY(load_scaled(loader, layer_tensor(loader, "ffn_gate_inp.scale"), hidden, 1 / sqrtf((float)hidden),
                    &mixture->router_norm));
    TRY(load_vector(loader, layer_tensor(loader, "ffn_down_exps.scale"), loader->model->config.experts.count, false,
                    &mixture->scales));
    TRY(load_vector(loader, layer_tensor(loader, "pre_ffw_norm_2.weight"), hidden, true, &mixture->norm));
    TRY(load_vector(loader, layer_tensor(loader, "post_ffw_norm_1.weight"), hidden, true,
                    &mixture->shared_norm_behind));
    return load_vector(loader, layer_tensor(loader, "post_ffw_norm_2.weight"), hidden, true, &mixture->norm_behind);
}

/* Stacks of gate and up, or of both in one. */
static enum status load_gates(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    const size_t hidden = config->hidden_size, size = config->experts.size;
    if (config->experts.is_fused) return load_stack(loader, "ffn_gate_up_exps.weight", 2 * size, hidden, &layer->gate);
    TRY(load_stack(loader, "ffn_gate_exps.weight", size, hidden, &layer->gate));
    return load_stack(loader, "ffn_up_exps.weight", size, hidden, &layer->up);
}

static enum status load_expert_biases(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    const size_t count = config->experts.count, size = config->experts.size, hidden = config->hidden_size;
    const struct {
        const char *suffix;
        size_t size;
        struct span *bias;
    } biases[] = {{"ffn_gate_exps.bias", size, &layer->mixture.gate_bias},
                  {"ffn_up_exps.bias", size, &layer->up_bias},
                  {"ffn_down_exps.bias", hidden, &layer->down_bias}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        const char *name = layer_tensor(loader, biases[i].suffix);
        TRY(take_vectors(loader, name, tensor_find(loader, name), biases[i].size, count, biases[i].bias));
    }
    return load_vector(loader, layer_tensor(loader, "ffn_gate_inp.bias"), count, true, &layer->mixture.router_bias);
}

static enum status load_experts(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    const size_t hidden = config->hidden_size, size = config->experts.size;
    if (config->experts.shared == SHARED_EXPERT_BESIDE) TRY(load_mixture_vectors(loader, &layer->mixture));
    TRY(load_matrix(loader, layer_tensor(loader, "ffn_gate_inp.weight"), config->experts.count, hidden,
                    &layer->mixture.router));
    TRY(load_gates(loader, layer));
    TRY(load_stack(loader, "ffn_down_exps.weight", hidden, size, &layer->down));
    if (config->experts.has_biases) TRY(load_expert_biases(loader, layer));
    if (config->experts.has_choice_bias)
        TRY(load_vector(loader, layer_tensor(loader, "exp_probs_b.bias"), config->experts.count, true,
                        &layer->mixture.choice_bias));
    return load_shared(loader, &layer->mixture.shared);
}

/* The projection: the layer's rows of that of all layers. */
static enum status load_input(struct loader *loader, struct layer_input_weights *input) {
    const struct model_config *config = &loader->model->config;
    const size_t hidden = config->hidden_size, size = config->layer_input_size;
    struct matrix *projection = &input->projection.matrix;
    if (size == 0) return STATUS_OK;
    *projection = loader->input_projection;
    projection->data = (const uint8_t *)projection->data + loader->layer * size * projection->row_bytes;
    projection->rows = size;
    TRY(put_weight(loader, &input->projection));
    input->norm = loader->input_norm;
    TRY(load_matrix(loader, layer_tensor(loader, "inp_gate.weight"), size, hidden, &input->gate));
    TRY(load_matrix(loader, layer_tensor(loader, "proj.weight"), hidden, size, &input->output));
    return load_vector(loader, layer_tensor(loader, "post_norm.weight"), hidden, true, &input->norm_behind);
}

/* The tensors of which each layer has a part. */
static enum status load_inputs(struct loader *loader) {
    struct model *model = loader->model;
    const struct model_config *config = &model->config;
    const size_t size = config->layer_input_size, all = config->layer_count * size;
    static const char table[] = "per_layer_token_embd.weight", projection[] = "per_layer_model_proj.weight";
    const struct gguf_tensor *tensor;
    uint64_t bytes;
    if (size == 0) return STATUS_OK;
    TRY(find_matrix(loader, table, config->vocabulary_size, all, &tensor));
    if (!tensor_row_bytes(tensor->type, size, &bytes))
        return mismatch(loader, table, "type", tensor_type_info(tensor->type)->name,
                        "one whose blocks end where layers do");
    loader->kind = MEMORY_SHARED;
    TRY(adopt_matrix(loader, table, tensor, config->vocabulary_size, 1, &model->input_table));
    loader->kind = MEMORY_DEVICE;
    TRY(find_matrix(loader, projection, all, config->hidden_size, &tensor));
    TRY(matrix_of(loader, projection, tensor, all, &loader->input_projection));
    return load_scaled(loader, "per_layer_proj_norm.weight", size, sqrtf(0.5F), &loader->input_norm);
}

static enum status load_output_scale(struct loader *loader, struct layer_weights *layer) {
    struct span scale = {.buffer = NULL};
    if (loader->model->config.norms == NORMS_BEFORE) return STATUS_OK; /* no norm adds, which it is a factor of */
    TRY(load_vector(loader, layer_tensor(loader, "layer_output_scale.weight"), 1, false, &scale));
    if (!span_exists(scale)) return STATUS_OK;
    memcpy(&layer->output_scale, loader->staging + scale.offset, sizeof layer->output_scale);
    if (layer->output_scale == 0) return mismatch(loader, loader->name, "value", "0", "another number");
    return STATUS_OK;
}

static enum status load_ffn(struct loader *loader, struct layer_weights *layer) {
    const struct model_config *config = &loader->model->config;
    size_t hidden = config->hidden_size, ffn = config->layers[loader->layer].ffn_size;
    bool opt = config->family == FAMILY_OPT;
    const struct family_norms *norms = &family_find(config->family)->norms;
    if (!norms->is_one)
        TRY(load_norms(loader, norms->before_ffn != NULL ? norms->before_ffn : "ffn_norm.weight",
                       "post_ffw_norm.weight", &layer->ffn_norm, &layer->ffn_norm_behind));
    if (model_layer_has_experts(config, loader->layer)) return load_experts(loader, layer);
    if (family_find(config->family)->has_fused_gates) {
        TRY(load_fused(loader, layer_tensor(loader, "ffn_up.weight"), hidden,
                       (struct weight *[]){&layer->gate, &layer->up}, (size_t[]){ffn, ffn}, 2));
    } else {
        if (!opt) TRY(load_matrix(loader, layer_tensor(loader, "ffn_gate.weight"), ffn, hidden, &layer->gate));
        TRY(load_matrix(loader, layer_tensor(loader, "ffn_up.weight"), ffn, hidden, &layer->up));
    }
    TRY(load_matrix(loader, layer_tensor(loader, "ffn_down.weight"), hidden, ffn, &layer->down));
    if (!opt) return STATUS_OK;
    TRY(load_vector(loader, layer_tensor(loader, "ffn_norm.bias"), hidden, true, &layer->ffn_norm_bias));
    TRY(load_vector(loader, layer_tensor(loader, "ffn_up.bias"), ffn, true, &layer->up_bias));
    return load_vector(loader, layer_tensor(loader, "ffn_down.bias"), hidden, true, &layer->down_bias);
}

/* What frequencies are divided by; *divisors: NULL where the file has none.  Of two tensors one is in use. */
static enum status load_divisors(struct loader *loader, size_t pairs, const float **divisors) {
    const struct model_config *config = &loader->model->config;
    const char *name = model_rope_divisors(config, &loader->model->gguf);
    struct span span;
    *divisors = NULL;
    (void)tensor_find(loader, ROPE_FACTORS_SHORT);
    (void)tensor_find(loader, ROPE_FACTORS_LONG);
    if (name == NULL) return STATUS_OK;
    TRY(load_vector(loader, name, pairs, true, &span));
    *divisors = (const float *)(const void *)(loader->staging + span.offset);
    for (size_t i = 0; i < pairs; i++)
        if (!((*divisors)[i] > 0)) return mismatch(loader, name, "value", "0 or less", "above 0");
    return STATUS_OK;
}

/* The frequencies, from the configuration and, where the file has it, a tensor. */
static enum status load_rope(struct loader *loader) {
    struct model *model = loader->model;
    size_t pairs = model->config.rope_dimension / 2;
    const float *host;
    TRY(load_divisors(loader, pairs, &host));
    float *frequency;
    model->rope_frequency[ROPE_FULL] = vector_take(loader, pairs, &frequency);
    rope_frequencies(&model->config, model->config.rope_dimension, host, frequency);
    model->rope_frequency[ROPE_QUERIES] = model->rope_frequency[ROPE_FULL];
    const size_t sliding = model->config.sliding_rope_dimension;
    if (sliding == 0) return STATUS_OK;
    model->rope_frequency[ROPE_SLIDING] = vector_take(loader, sliding / 2, &frequency);
    struct model_config own = model->config;
    own.rope_base = own.sliding_rope_base;
    if (own.sliding_is_unscaled) own.rope_scaling = ROPE_SCALING_NONE;
    rope_frequencies(&own, sliding, NULL, frequency);
    return STATUS_OK;
}

static enum status load_top(struct loader *loader) {
    struct model *model = loader->model;
    const struct model_config *config = &model->config;
    size_t hidden = config->hidden_size;
    const bool has_output = gguf_find_tensor(&model->gguf, "output.weight") != NULL;
    const bool is_split = model->device_layers < config->layer_count;
    loader->kind = is_split && has_output ? MEMORY_SHARED : MEMORY_DEVICE; /* of which a pass reads few rows */
    TRY(load_matrix(loader, "token_embd.weight", config->vocabulary_size, hidden, &model->token_embedding));
    loader->kind = MEMORY_DEVICE;
    if (config->family == FAMILY_OPT) {
        TRY(load_matrix(loader, "position_embd.weight", config->context_length + config->position_offset, hidden,
                        &model->position_embedding));
        TRY(load_vector(loader, "output_norm.bias", hidden, true, &model->output_norm_bias));
    }
    const char *norm = family_find(config->family)->norms.output;
    TRY(load_scaled(loader, norm != NULL ? norm : "output_norm.weight", hidden,
                    config->output_scale != 0 ? config->output_scale : 1, &model->output_norm));
    if (family_find(config->family)->norms.subtract_means) {
        float *zeros;
        loader->zeros = vector_take(loader, hidden, &zeros);
        memset(zeros, 0, hidden * sizeof *zeros);
        model->output_norm_bias = loader->zeros;
    }
    model->output = model->token_embedding; /* tied, unless the file has another */
    if (has_output) TRY(load_matrix(loader, "output.weight", config->vocabulary_size, hidden, &model->output));
    if (family_find(config->family)->norms.of_values) {
        float *ones;
        loader->ones = vector_take(loader, config->v_dimension, &ones);
        for (size_t i = 0; i < config->v_dimension; i++) ones[i] = 1;
    }
    TRY(load_inputs(loader));
    return config->has_rope ? load_rope(loader) : STATUS_OK;
}

static bool ends_with(const struct gguf_tensor *tensor, const char *suffix) {
    const size_t length = strlen(suffix);
    return tensor->name.length >= length &&
           memcmp(tensor->name.text + tensor->name.length - length, suffix, length) == 0;
}
/* Rows that become floats are biases of experts and the taps of convolutions. */
bool model_is_matrix(const struct gguf_tensor *tensor) {
    return tensor->dimensions[1] > 1 && !ends_with(tensor, ".bias") && !ends_with(tensor, ".ssm_conv1d.weight") &&
           !ends_with(tensor, ".shortconv.conv.weight");
}
/* Old converters wrote these; they repeat the configuration. */
static bool is_redundant(const struct gguf_tensor *tensor) { return ends_with(tensor, ".attn_rot_embd.weight"); }

static enum status refuse_unused(struct loader *loader) {
    const struct gguf *gguf = &loader->model->gguf;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        if (loader->used[i] || is_redundant(tensor) || model_leaves_out(&loader->model->config, tensor)) continue;
        return error_set(loader->error, STATUS_MODEL, "%s: tensor %.*s: not part of family %s with %zu layers",
                         gguf->path, (int)min_size(tensor->name.length, 64), tensor->name.text,
                         family_name(loader->model->config.family), loader->model->config.layer_count);
    }
    return STATUS_OK;
}

/* Elements for every one-dimensional tensor of the file, for others that become floats, and the rope tables: what the
 * configuration declares is compared with them later. */
static enum status vectors_reserve(struct loader *loader) {
    struct model *model = loader->model;
    uint64_t total = align_up(model->config.rope_dimension / 2 * sizeof(float), VECTOR_ALIGNMENT) +
                     align_up(model->config.sliding_rope_dimension / 2 * sizeof(float), VECTOR_ALIGNMENT) +
                     align_up(model->config.v_dimension * sizeof(float), VECTOR_ALIGNMENT) +
                     align_up(model->config.hidden_size * sizeof(float), VECTOR_ALIGNMENT);
    for (uint64_t i = 0; i < model->gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &model->gguf.tensors[i];
        uint64_t bytes;
        if (model_is_matrix(tensor)) loader->total += tensor->size_bytes;
        if (tensor->dimensions[2] * tensor->dimensions[3] != 1 || model_is_matrix(tensor)) continue;
        if (!checked_multiply(tensor->dimensions[0], sizeof(float), &bytes) ||
            !checked_multiply(tensor->dimensions[1], bytes, &bytes) ||
            !checked_align(bytes, VECTOR_ALIGNMENT, &bytes) || !checked_add(total, bytes, &total))
            return error_set(loader->error, STATUS_MEMORY, "%s: norms and biases do not fit", model->gguf.path);
    }
    total = max_size(total, VECTOR_ALIGNMENT);
    struct device *device = model->device;
    TRY(device->operations->allocate(device, MEMORY_DEVICE, total, &model->vectors, loader->error));
    loader->staging = calloc(1, total);
    loader->used = calloc(max_size(model->gguf.tensor_count, 1), sizeof *loader->used);
    if (loader->staging == NULL || loader->used == NULL)
        return error_set(loader->error, STATUS_MEMORY, "%s: no memory for the norms", model->gguf.path);
    return STATUS_OK;
}

static enum status vectors_flush(struct loader *loader) {
    struct device *device = loader->model->device;
    struct stream *stream;
    TRY(device->operations->stream_create(device, &stream, loader->error));
    device->operations->upload(stream, span_of(&loader->model->vectors, 0), loader->staging, loader->vectors_used);
    enum status status = device->operations->stream_synchronize(stream, loader->error);
    device->operations->stream_destroy(stream);
    return status;
}

static enum status load_all(struct loader *loader) {
    struct model *model = loader->model;
    TRY(vectors_reserve(loader));
    TRY(load_top(loader));
    model->layers = arena_array(&model->arena, model->config.layer_count, sizeof *model->layers);
    if (model->layers == NULL) return error_set(loader->error, STATUS_MEMORY, "no memory for the layers");
    for (loader->layer = 0; loader->layer < model->config.layer_count; loader->layer++) {
        const size_t behind = model->config.layer_count - loader->layer;
        loader->kind = behind > model->device_layers ? MEMORY_SHARED : MEMORY_DEVICE;
        TRY(load_attention(loader, &model->layers[loader->layer]));
        TRY(load_ffn(loader, &model->layers[loader->layer]));
        TRY(load_input(loader, &model->layers[loader->layer].input));
        TRY(load_output_scale(loader, &model->layers[loader->layer]));
    }
    TRY(refuse_unused(loader));
    return vectors_flush(loader);
}

enum status weights_load(struct model *model, const struct model_load_options *options, struct error *error) {
    struct loader loader = {
        .model = model, .error = error, .free_bytes = device_memory_free(model->device), .options = options};
    enum status status = load_all(&loader);
    free(loader.staging);
    free(loader.used);
    return status;
}

void layer_matrices(struct layer_weights *layer, struct weight *matrices[LAYER_MATRICES]) {
    struct state_weights *state = &layer->state;
    struct mixture_weights *mixture = &layer->mixture;
    struct shared_weights *shared = &mixture->shared;
    struct weight *const list[LAYER_MATRICES] = {
        &layer->q,          &layer->k,           &layer->v,     &layer->output, &layer->gate,  &layer->up,
        &layer->down,       &mixture->router,    &shared->gate, &shared->up,    &shared->down, &shared->router,
        &state->in,         &state->out,         &state->gate,  &state->alpha,  &state->beta,  &layer->input.projection,
        &layer->input.gate, &layer->input.output};
    memcpy(matrices, list, sizeof list);
}
