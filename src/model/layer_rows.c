/* layer_rows: what a layer computes row by row, for its own rows and for those that are computed again: norms, q, k and
 * v, rotations. */
#include <math.h>

#include "model/forward_internal.h"

void forward_upload_step(struct forward *forward, struct span step, size_t row_count) {
    forward->model->device->operations->upload(forward->stream, step, forward->step_rows,
                                               row_count * sizeof *forward->step_rows);
}

void layer_norm_into(const struct layer_pass *pass, struct span weight, struct span bias, struct span y) {
    const struct model *model = pass->forward->model;
    model->device->operations->norm(pass->forward->stream,
                                    &(struct norm_operation){.kind = span_exists(bias) ? NORM_LAYER : NORM_RMS,
                                                             .x = pass->residual,
                                                             .x_stride = model->config.hidden_size,
                                                             .row_count = pass->row_count,
                                                             .segment_count = 1,
                                                             .segment_size = model->config.hidden_size,
                                                             .w = weight,
                                                             .b = bias,
                                                             .epsilon = model->config.norm_epsilon,
                                                             .y = y,
                                                             .y_stride = model->config.hidden_size});
}

void layer_norm(struct layer_pass *pass, struct span weight, struct span bias) {
    if (!span_exists(weight)) return;
    layer_norm_into(pass, weight, bias, pass->normed);
}

/* Of each head, or of all as one. */
void layer_head_norm(const struct layer_pass *pass, const struct layer_config *layer, struct span x, size_t row_count,
                     size_t heads, struct span weight) {
    const struct model *model = pass->forward->model;
    const size_t size = heads * layer->kv.k_dimension;
    if (!span_exists(weight)) return;
    const size_t segment_count = model->config.norms_rows ? 1 : heads;
    model->device->operations->norm(pass->forward->stream,
                                    &(struct norm_operation){.kind = NORM_RMS,
                                                             .x = x,
                                                             .x_stride = size,
                                                             .row_count = row_count,
                                                             .segment_count = segment_count,
                                                             .segment_size = size / segment_count,
                                                             .w = weight,
                                                             .epsilon = model->config.norm_epsilon,
                                                             .y = x,
                                                             .y_stride = size});
}

/* The factor of cosines and sines.  A rotation is linear, so its factor is that of the whole head. */
static float factor_at(const struct model_config *config, size_t rope, uint64_t position) {
    if (rope == ROPE_SLIDING && config->sliding_is_unscaled) return 1;
    if (rope != ROPE_QUERIES) return config->rope_attention_factor;
    const double contexts = (double)(position / config->rope_original_context);
    return (float)((double)config->rope_attention_factor * (1 + (double)config->temperature * log1p(contexts)));
}

/* An operation for each run of rows of one factor. */
void forward_angles(const struct forward *forward, size_t rope, const uint64_t *positions, struct span step,
                    size_t row_count, struct span angles) {
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    if (!config->has_rope || rope == ROPE_NONE) return;
    const size_t dimension = rope_dimension_of(config, rope);
    for (size_t first = 0, count; first < row_count; first += count) {
        const float factor = factor_at(config, rope, rope == ROPE_QUERIES ? positions[first] : 0);
        for (count = 1; first + count < row_count; count++)
            if (rope == ROPE_QUERIES && factor_at(config, rope, positions[first + count]) != factor) break;
        model->device->operations->rope_angles(
            forward->stream, &(struct rope_angles_operation){.step = span_behind(step, first * sizeof(struct step_row)),
                                                             .row_count = count,
                                                             .frequency = model->rope_frequency[rope],
                                                             .pair_count = dimension / 2,
                                                             .factor = factor,
                                                             .cosine_sine = span_floats(angles, first * dimension)});
    }
}

void layer_rotate(const struct layer_pass *pass, const struct layer_config *layer, struct span x, size_t row_count,
                  size_t heads, struct span angles) {
    const struct model *model = pass->forward->model;
    const struct model_config *config = &model->config;
    if (!config->has_rope || layer->rope == ROPE_NONE) return;
    model->device->operations->rope(pass->forward->stream,
                                    &(struct rope_operation){.x = x,
                                                             .x_stride = heads * layer->kv.k_dimension,
                                                             .row_count = row_count,
                                                             .head_count = heads,
                                                             .head_stride = layer->kv.k_dimension,
                                                             .pair_count = rope_dimension_of(config, layer->rope) / 2,
                                                             .order = config->rope_order,
                                                             .cosine_sine = angles});
}

void layer_take_queries(const struct forward *forward, size_t row_count, size_t dimension, struct span q) {
    forward->model->device->operations->gather(
        forward->stream, &(struct gather_operation){.x = forward->gated,
                                                    .x_stride = dimension,
                                                    .indices = forward->gated_rows,
                                                    .row_count = row_count * forward->model->config.head_count,
                                                    .count = dimension,
                                                    .y = q,
                                                    .y_stride = dimension});
}

/* In one operation: they share the rows. */
void layer_project(const struct layer_pass *pass, struct span x, size_t row_count, struct span k, struct span v,
                   struct span q) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct layer_weights *weights = pass->weights;
    const struct kv_geometry kv = layer_config_of(pass)->kv;
    const bool has_gates = config->has_gates && span_exists(q), stores = layer_stores(pass);
    const struct {
        bool is_wanted;
        const struct weight *weight;
        struct span bias, y;
        size_t y_stride;
    } products[] = {
        {stores, &weights->k, weights->k_bias, k, kv.kv_head_count * kv.k_dimension},
        {stores && weights->v.matrix.data != NULL, &weights->v, weights->v_bias, v, kv.kv_head_count * kv.v_dimension},
        {span_exists(q), &weights->q, weights->q_bias, has_gates ? forward->gated : q,
         config->head_count * kv.k_dimension * (has_gates ? 2 : 1)},
    };
    struct matmul_operation operation = {.x = x, .x_stride = config->hidden_size, .row_count = row_count};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        if (!products[i].is_wanted) continue;
        const size_t at = operation.weight_count++;
        operation.weights[at] = products[i].weight;
        operation.biases[at] = products[i].bias;
        operation.y[at] = products[i].y;
        operation.y_stride[at] = products[i].y_stride;
    }
    if (operation.weight_count == 0) return;
    forward->model->device->operations->matmul(forward->stream, &operation);
    if (has_gates) layer_take_queries(forward, row_count, kv.k_dimension, forward->q);
}

/* Values first: where a layer has none of their own, they are what k is before its norm. */
void layer_finish_kv(const struct layer_pass *pass, size_t row_count, struct span k, struct span v,
                     struct span angles) {
    const struct model *model = pass->forward->model;
    const struct layer_config *layer = layer_config_of(pass);
    const struct layer_weights *weights = pass->weights;
    const size_t heads = layer->kv.kv_head_count, size = heads * layer->kv.v_dimension;
    if (span_exists(weights->v_norm))
        model->device->operations->norm(pass->forward->stream,
                                        &(struct norm_operation){.kind = NORM_RMS,
                                                                 .x = weights->v.matrix.data != NULL ? v : k,
                                                                 .x_stride = size,
                                                                 .row_count = row_count,
                                                                 .segment_count = heads,
                                                                 .segment_size = layer->kv.v_dimension,
                                                                 .w = weights->v_norm,
                                                                 .epsilon = model->config.norm_epsilon,
                                                                 .y = v,
                                                                 .y_stride = size});
    layer_head_norm(pass, layer, k, row_count, heads, weights->k_norm);
    layer_rotate(pass, layer, k, row_count, heads, angles);
}

void layer_norm_rows(const struct layer_pass *pass, struct span x, struct span weight, struct span y, bool adds,
                     float scale) {
    const struct model *model = pass->forward->model;
    const size_t hidden = model->config.hidden_size;
    const struct norm_operation norm = {.kind = NORM_RMS,
                                        .x = x,
                                        .x_stride = hidden,
                                        .row_count = pass->row_count,
                                        .segment_count = 1,
                                        .segment_size = hidden,
                                        .w = weight,
                                        .epsilon = model->config.norm_epsilon,
                                        .y = y,
                                        .y_stride = hidden,
                                        .adds = adds,
                                        .scale = scale};
    model->device->operations->norm(pass->forward->stream, &norm);
}

void layer_multiply(const struct layer_pass *pass, struct span x, const struct weight *weight, struct span bias,
                    struct span y) {
    const struct matmul_operation product = {.x = x,
                                             .x_stride = weight->matrix.columns,
                                             .row_count = pass->row_count,
                                             .weight_count = 1,
                                             .weights = {weight},
                                             .biases = {bias},
                                             .y = {y},
                                             .y_stride = {weight->matrix.rows}};
    pass->forward->model->device->operations->matmul(pass->forward->stream, &product);
}

void layer_add(struct layer_pass *pass, const struct matmul_operation *given, struct span norm, float scale) {
    struct forward *forward = pass->forward;
    const bool is_normed = span_exists(norm);
    struct matmul_operation product = *given;
    product.row_count = pass->row_count;
    product.weight_count = 1;
    product.y[0] = is_normed ? pass->normed : pass->residual;
    product.y_stride[0] = forward->model->config.hidden_size;
    product.accumulate = !is_normed;
    forward->model->device->operations->matmul(forward->stream, &product);
    if (is_normed) layer_norm_rows(pass, pass->normed, norm, pass->residual, true, scale);
}

void layer_activation(const struct layer_pass *pass, enum activation_kind kind, size_t size) {
    struct forward *forward = pass->forward;
    forward->model->device->operations->activation(forward->stream,
                                                   &(struct activation_operation){.kind = kind,
                                                                                  .gate = forward->gate,
                                                                                  .up = forward->up,
                                                                                  .stride = size,
                                                                                  .row_count = pass->row_count,
                                                                                  .count = size,
                                                                                  .y = forward->gate});
}

struct matmul_operation layer_gated(struct layer_pass *pass, enum activation_kind activation, const struct weight *gate,
                                    const struct weight *up, const struct weight *down, size_t size) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const size_t hidden = forward->model->config.hidden_size;
    operations->matmul(forward->stream, &(struct matmul_operation){.x = layer_input(pass),
                                                                   .x_stride = hidden,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 2,
                                                                   .weights = {gate, up},
                                                                   .y = {forward->gate, forward->up},
                                                                   .y_stride = {size, size}});
    layer_activation(pass, activation, size);
    return (struct matmul_operation){.x = forward->gate, .x_stride = size, .weights = {down}};
}
