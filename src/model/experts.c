/* experts: the feed-forward part of a layer that is a mixture of experts: a router, and for each row the experts that
 * it picks, each a gated feed-forward of its own (Shazeer et al. 2017). */
#include "model/forward_internal.h"

static void route(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const struct model_config *config = &forward->model->config;
    const struct experts_config *experts = &config->experts;
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->normed,
                                                                   .x_stride = config->hidden_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&pass->weights->router},
                                                                   .y = {forward->routes.scores},
                                                                   .y_stride = {experts->count}});
    operations->route(forward->stream, &(struct route_operation){.router = experts->router,
                                                                 .scores = forward->routes.scores,
                                                                 .row_count = pass->row_count,
                                                                 .expert_count = experts->count,
                                                                 .used = experts->used,
                                                                 .normalises = experts->normalises,
                                                                 .scale = experts->scale,
                                                                 .picks = forward->routes.picks,
                                                                 .weights = forward->routes.weights});
}

void layer_experts(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const struct model_config *config = &forward->model->config;
    const struct experts_config *experts = &config->experts;
    const struct layer_weights *weights = pass->weights;
    struct matmul_experts_operation products = {.x = pass->normed,
                                                .x_stride = config->hidden_size,
                                                .row_count = pass->row_count,
                                                .expert_count = experts->count,
                                                .used = experts->used,
                                                .picks = forward->routes.picks,
                                                .weight_count = 2,
                                                .weights = {&weights->gate, &weights->up},
                                                .y = {forward->gate, forward->up},
                                                .y_stride = {experts->size, experts->size}};
    route(pass);
    operations->matmul_experts(forward->stream, &products);
    operations->activation(forward->stream,
                           &(struct activation_operation){.kind = ACTIVATION_SILU_MULTIPLY,
                                                          .gate = forward->gate,
                                                          .up = forward->up,
                                                          .stride = experts->size,
                                                          .row_count = pass->row_count * experts->used,
                                                          .count = experts->size,
                                                          .y = forward->gate});
    products.x = forward->gate;
    products.x_stride = experts->size;
    products.per_pick = true;
    products.weight_count = 1;
    products.weights[0] = &weights->down;
    products.y[0] = pass->residual;
    products.y_stride[0] = config->hidden_size;
    products.mix = forward->routes.weights;
    operations->matmul_experts(forward->stream, &products);
}
