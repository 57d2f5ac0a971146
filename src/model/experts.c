/* experts: the feed-forward part of a layer that is a mixture of experts: a router, and for each row the experts that
 * it picks, each a gated feed-forward of its own (Shazeer et al. 2017).  All rows may share one more.  Where a sigmoid
 * of the row weighs that one, it is a mixture of a single expert, which every row picks. */
#include <stdlib.h>

#include "base/assert.h"
#include "model/expert_pages.h"
#include "model/forward_internal.h"

/* Experts, and how rows pick them. */
struct mixture {
    size_t size; /* of an expert */
    const struct weight *router, *gate, *up, *down;
    struct span router_bias, gate_bias, up_bias, down_bias; /* none: none */
    enum activation_kind activation;
    bool is_fused;                /* gate has up's rows too */
    struct route_operation route; /* but for what all mixtures have alike */
};

static void route(const struct layer_pass *pass, const struct mixture *mixture, struct span x,
                  const struct route_rows *rows) {
    const struct forward *forward = pass->forward;
    struct route_operation route = mixture->route;
    layer_multiply(pass, x, mixture->router, mixture->router_bias, rows->scores);
    route.scores = rows->scores;
    route.row_count = pass->row_count;
    route.picks = rows->picks;
    route.weights = rows->weights;
    forward->model->device->operations->route(forward->stream, &route);
}

/* What experts are given of rows [first, first + row_count). */
static struct span experts_input(const struct layer_pass *pass, size_t first, size_t row_count) {
    const size_t hidden = pass->forward->model->config.hidden_size;
    if (!span_exists(pass->mixed)) return span_floats(pass->normed, first * hidden);
    struct layer_pass rows = *pass; /* by a norm of their own, of the residual stream, which is as it was */
    rows.residual = span_floats(pass->residual, first * hidden);
    rows.row_count = row_count;
    layer_norm_into(&rows, pass->weights->mixture.norm, (struct span){.buffer = NULL}, pass->forward->normed);
    return pass->forward->normed;
}

/* Of rows [first, first + row_count), whose experts lie in their stacks or at places. */
static void multiply(struct layer_pass *pass, const struct mixture *mixture, size_t first, size_t row_count,
                     const void *const *const places[EXPERT_PARTS]) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const struct model_config *config = &forward->model->config;
    const size_t hidden = config->hidden_size, size = mixture->size, used = mixture->route.used;
    const size_t stride = mixture->is_fused ? 2 * size : size;
    const bool is_beside = span_exists(pass->mixed);
    struct matmul_experts_operation products = {.x = experts_input(pass, first, row_count),
                                                .x_stride = hidden,
                                                .row_count = row_count,
                                                .expert_count = mixture->route.expert_count,
                                                .used = used,
                                                .picks =
                                                    span_behind(pass->routes.picks, first * used * sizeof(uint32_t)),
                                                .weight_count = mixture->is_fused ? 1 : 2,
                                                .weights = {mixture->gate, mixture->up},
                                                .places = {places[0], places[1]},
                                                .biases = {mixture->gate_bias, mixture->up_bias},
                                                .y = {forward->gate, forward->up},
                                                .y_stride = {stride, stride}};
    operations->matmul_experts(forward->stream, &products);
    operations->activation(
        forward->stream,
        &(struct activation_operation){.kind = mixture->activation,
                                       .gate = forward->gate,
                                       .up = mixture->is_fused ? span_floats(forward->gate, size) : forward->up,
                                       .stride = stride,
                                       .row_count = row_count * used,
                                       .count = size,
                                       .y = forward->gate});
    products.x = forward->gate;
    products.x_stride = stride;
    products.per_pick = true;
    products.weight_count = 1;
    products.weights[0] = mixture->down;
    products.places[0] = places[2];
    products.biases[0] = mixture->down_bias;
    products.y[0] = span_floats(is_beside ? pass->mixed : pass->residual, first * hidden);
    products.y_stride[0] = hidden;
    products.replaces = is_beside && !pass->adds_experts;
    products.mix = span_floats(pass->routes.weights, first * used);
    operations->matmul_experts(forward->stream, &products);
}

static struct mixture mixture_of(const struct model *model, size_t layer) {
    const struct experts_config *experts = &model->config.experts;
    const struct layer_weights *weights = &model->layers[layer];
    return (struct mixture){.size = experts->size,
                            .router = &weights->mixture.router,
                            .gate = &weights->gate,
                            .up = &weights->up,
                            .down = &weights->down,
                            .router_bias = weights->mixture.router_bias,
                            .gate_bias = weights->mixture.gate_bias,
                            .up_bias = weights->up_bias,
                            .down_bias = weights->down_bias,
                            .activation = experts->activation,
                            .is_fused = experts->is_fused,
                            .route = {.router = experts->router,
                                      .bias = weights->mixture.choice_bias,
                                      .scales = weights->mixture.scales,
                                      .expert_count = experts->count,
                                      .used = experts->used,
                                      .group_count = experts->group_count,
                                      .groups_used = experts->groups_used,
                                      .normalises = experts->normalises,
                                      .scale = experts->scale}};
}

/* What the router of a layer is given, by the rows as they are now: its norm of them, or the feed-forward's. */
static struct span router_input(const struct layer_pass *pass, size_t layer) {
    const struct layer_weights *weights = &pass->forward->model->layers[layer];
    const struct span own = weights->mixture.router_norm, y = pass->forward->next.normed;
    layer_norm_into(pass, span_exists(own) ? own : weights->ffn_norm, (struct span){.buffer = NULL}, y);
    return y;
}

/* ---- experts that are read ---- */

/* What rows pick, as the host reads it. */
static enum status picks_of(const struct layer_pass *pass, const struct route_rows *rows, size_t layer,
                            struct expert_picks *picks, struct error *error) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const size_t count = pass->row_count * forward->model->config.experts.used;
    operations->download(forward->stream, rows->host, rows->picks, count * sizeof *rows->host);
    *picks = (struct expert_picks){.layer = layer, .row_count = pass->row_count, .picks = rows->host};
    return operations->stream_synchronize(forward->stream, error);
}

/* The router of the next layer, by the last block's rows nearly as this layer's experts find them, which they change
 * little: what it picks is read while the last of these are multiplied with, and while the next layer attends. */
static enum status read_ahead(const struct layer_pass *all, struct expert_pages *pages, struct error *error) {
    struct forward *forward = all->forward;
    const struct model *model = forward->model;
    const size_t next = all->layer_index + 1, block = forward->block_capacity;
    struct expert_picks picks;
    if (next == model->config.layer_count || !all->is_last_block) return STATUS_OK;
    const struct mixture mixture = mixture_of(model, next);
    struct layer_pass pass = *all;
    const size_t first = (all->row_count - 1) / block * block;
    pass.residual = span_floats(all->residual, first * model->config.hidden_size);
    pass.row_count -= first;
    route(&pass, &mixture, router_input(&pass, next), &forward->expected);
    TRY(picks_of(&pass, &forward->expected, next, &picks, error));
    expert_pages_expect(pages, &picks);
    return STATUS_OK;
}

/* As many experts at a time as there is room for, each for all rows. */
static enum status multiply_read(struct layer_pass *pass, const struct mixture *mixture, struct expert_pages *pages,
                                 struct error *error) {
    const size_t block = pass->forward->block_capacity;
    struct expert_picks picks;
    TRY(picks_of(pass, &pass->routes, pass->layer_index, &picks, error));
    expert_pages_begin(pages, &picks);
    pass->adds_experts = false;
    for (size_t left = SIZE_MAX; left > 0; pass->adds_experts = true) {
        const void *const *places[EXPERT_PARTS];
        left = expert_pages_take(pages);
        if (left == 0) TRY(read_ahead(pass, pages, error));
        TRY(expert_pages_await(pages, places, error));
        for (size_t first = 0; first < pass->row_count; first += block)
            multiply(pass, mixture, first, min_size(block, pass->row_count - first), places);
        /* The next experts take the slots of these. */
        TRY(pass->forward->model->device->operations->stream_synchronize(pass->forward->stream, error));
    }
    return STATUS_OK;
}

/* SHARED_EXPERT_BESIDE: residual += norm(norm(shared) + norm(what the experts gave)) */
static void add_beside(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct layer_weights *weights = pass->weights;
    const struct shared_weights *shared = &weights->mixture.shared;
    layer_norm(pass, weights->ffn_norm, (struct span){.buffer = NULL});
    struct matmul_operation product =
        layer_gated(pass, config->activation, &shared->gate, &shared->up, &shared->down, config->experts.shared_size);
    product.row_count = pass->row_count;
    product.weight_count = 1;
    product.y[0] = pass->normed;
    product.y_stride[0] = config->hidden_size;
    forward->model->device->operations->matmul(forward->stream, &product);
    layer_norm_rows(pass, pass->normed, weights->mixture.shared_norm_behind, forward->beside, false, 0);
    layer_norm_rows(pass, pass->mixed, weights->mixture.norm_behind, forward->beside, true, 0);
    layer_norm_rows(pass, forward->beside, weights->ffn_norm_behind, pass->residual, true, layer_ffn_scale(pass));
}

enum status layer_experts(struct layer_pass *pass, struct error *error) {
    static const void *const *const in_stacks[EXPERT_PARTS];
    const struct model *model = pass->forward->model;
    const struct experts_config *experts = &model->config.experts;
    const struct shared_weights *shared = &pass->weights->mixture.shared;
    struct expert_pages *pages = weight_stream_experts(model->stream);
    const struct mixture mixture = mixture_of(model, pass->layer_index);
    const bool is_beside = experts->shared == SHARED_EXPERT_BESIDE;
    /* The shared one first: tests read the picks of the others after the layer. */
    if (experts->shared == SHARED_EXPERT_PLAIN) {
        const struct matmul_operation product = layer_gated(pass, ACTIVATION_SILU_MULTIPLY, &shared->gate, &shared->up,
                                                            &shared->down, experts->shared_size);
        layer_add(pass, &product, (struct span){.buffer = NULL}, 0);
    }
    if (experts->shared == SHARED_EXPERT_GATED) {
        const struct mixture one = {.size = experts->shared_size,
                                    .router = &shared->router,
                                    .gate = &shared->gate,
                                    .up = &shared->up,
                                    .down = &shared->down,
                                    .route = {.router = ROUTER_SIGMOID, .expert_count = 1, .used = 1, .scale = 1}};
        route(pass, &one, pass->normed, &pass->routes);
        multiply(pass, &one, 0, pass->row_count, in_stacks);
    }
    route(pass, &mixture, is_beside ? router_input(pass, pass->layer_index) : pass->normed, &pass->routes);
    if (pass->defers_experts) return STATUS_OK;
    if (pages == NULL)
        multiply(pass, &mixture, 0, pass->row_count, in_stacks);
    else
        TRY(multiply_read(pass, &mixture, pages, error));
    if (is_beside) add_beside(pass);
    return STATUS_OK;
}

enum status layer_deferred_experts(struct forward *forward, const struct forward_batch *batch, size_t layer,
                                   struct error *error) {
    const struct model_config *config = &forward->model->config;
    const struct mixture mixture = mixture_of(forward->model, layer);
    const bool is_beside = config->experts.shared == SHARED_EXPERT_BESIDE;
    struct layer_pass pass = {.forward = forward,
                              .batch = batch,
                              .weights = &forward->model->layers[layer],
                              .layer_index = layer,
                              .is_last_block = true,
                              .residual = forward->hidden,
                              .normed = forward->segment.normed,
                              .routes = forward->segment.routes,
                              .row_count = batch->row_count};
    if (is_beside) pass.mixed = pass.normed;
    ASSERT(!batch->beside);
    TRY(multiply_read(&pass, &mixture, weight_stream_experts(forward->model->stream), error));
    for (size_t first = 0; first < batch->row_count && is_beside; first += forward->block_capacity) {
        struct layer_pass block = pass;
        block.residual = span_floats(pass.residual, first * config->hidden_size);
        block.mixed = span_floats(pass.mixed, first * config->hidden_size);
        block.normed = forward->normed;
        block.step = span_behind(forward->step, first * sizeof(struct step_row));
        block.row_count = min_size(forward->block_capacity, batch->row_count - first);
        add_beside(&block);
        if (config->layer_input_size > 0) layer_add_inputs(&block);
    }
    return STATUS_OK;
}

enum status segment_rows_init(struct forward *forward, struct error *error) {
    struct segment_rows *segment = &forward->segment;
    struct device *device = forward->model->device;
    const size_t rows = forward->row_capacity, used = forward->model->config.experts.used,
                 hidden = forward->model->config.hidden_size;
    if (span_exists(segment->normed)) return STATUS_OK;
    if (segment->routes.host == NULL) segment->routes.host = calloc(rows * used, sizeof *segment->routes.host);
    if (segment->routes.host == NULL) return error_set(error, STATUS_MEMORY, "no memory for picks of %zu rows", rows);
    TRY(device->operations->allocate(device, MEMORY_DEVICE, rows * (hidden + 2 * used) * sizeof(float),
                                     &segment->memory, error));
    segment->normed = span_of(&segment->memory, 0);
    segment->routes.scores = forward->routes.scores;
    segment->routes.weights = span_floats(segment->normed, rows * hidden);
    segment->routes.picks = span_floats(segment->routes.weights, rows * used);
    return STATUS_OK;
}
