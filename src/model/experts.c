/* experts: the feed-forward part of a layer that is a mixture of experts: a router, and for each row the experts that
 * it picks, each a gated feed-forward of its own (Shazeer et al. 2017).  All rows may share one more.  Where a sigmoid
 * of the row weighs that one, it is a mixture of a single expert, which every row picks. */
#include "model/forward_internal.h"

/* Experts, and how rows pick them. */
struct mixture {
    size_t size; /* of an expert */
    const struct weight *router, *gate, *up, *down;
    struct span router_bias, gate_bias, up_bias, down_bias; /* none: none */
    enum activation_kind activation;
    struct route_operation route; /* but for what all mixtures have alike */
};

static void route(const struct layer_pass *pass, const struct mixture *mixture) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    struct route_operation route = mixture->route;
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->normed,
                                                                   .x_stride = forward->model->config.hidden_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {mixture->router},
                                                                   .biases = {mixture->router_bias},
                                                                   .y = {forward->routes.scores},
                                                                   .y_stride = {route.expert_count}});
    route.scores = forward->routes.scores;
    route.row_count = pass->row_count;
    route.picks = forward->routes.picks;
    route.weights = forward->routes.weights;
    operations->route(forward->stream, &route);
}

static void mix(struct layer_pass *pass, const struct mixture *mixture) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const size_t hidden = forward->model->config.hidden_size, size = mixture->size;
    struct matmul_experts_operation products = {.x = pass->normed,
                                                .x_stride = hidden,
                                                .row_count = pass->row_count,
                                                .expert_count = mixture->route.expert_count,
                                                .used = mixture->route.used,
                                                .picks = forward->routes.picks,
                                                .weight_count = 2,
                                                .weights = {mixture->gate, mixture->up},
                                                .biases = {mixture->gate_bias, mixture->up_bias},
                                                .y = {forward->gate, forward->up},
                                                .y_stride = {size, size}};
    route(pass, mixture);
    operations->matmul_experts(forward->stream, &products);
    operations->activation(forward->stream,
                           &(struct activation_operation){.kind = mixture->activation,
                                                          .gate = forward->gate,
                                                          .up = forward->up,
                                                          .stride = size,
                                                          .row_count = pass->row_count * products.used,
                                                          .count = size,
                                                          .y = forward->gate});
    products.x = forward->gate;
    products.x_stride = size;
    products.per_pick = true;
    products.weight_count = 1;
    products.weights[0] = mixture->down;
    products.biases[0] = mixture->down_bias;
    products.y[0] = pass->residual;
    products.y_stride[0] = hidden;
    products.mix = forward->routes.weights;
    operations->matmul_experts(forward->stream, &products);
}

void layer_experts(struct layer_pass *pass) {
    const struct experts_config *experts = &pass->forward->model->config.experts;
    const struct layer_weights *weights = pass->weights;
    const struct shared_weights *shared = &weights->mixture.shared;
    /* The shared one first: tests read the picks of the others after the layer. */
    if (experts->shared == SHARED_EXPERT_PLAIN)
        layer_gated(pass, ACTIVATION_SILU_MULTIPLY, &shared->gate, &shared->up, &shared->down, experts->shared_size);
    if (experts->shared == SHARED_EXPERT_GATED)
        mix(pass, &(struct mixture){
                      .size = experts->shared_size,
                      .router = &shared->router,
                      .gate = &shared->gate,
                      .up = &shared->up,
                      .down = &shared->down,
                      .route = {.router = ROUTER_SIGMOID, .expert_count = 1, .used = 1, .scale = 1}});
    mix(pass, &(struct mixture){.size = experts->size,
                                .router = &weights->mixture.router,
                                .gate = &weights->gate,
                                .up = &weights->up,
                                .down = &weights->down,
                                .router_bias = weights->mixture.router_bias,
                                .gate_bias = weights->mixture.gate_bias,
                                .up_bias = weights->up_bias,
                                .down_bias = weights->down_bias,
                                .activation = experts->activation,
                                .route = {.router = experts->router,
                                          .bias = weights->mixture.choice_bias,
                                          .expert_count = experts->count,
                                          .used = experts->used,
                                          .group_count = experts->group_count,
                                          .groups_used = experts->groups_used,
                                          .normalises = experts->normalises,
                                          .scale = experts->scale}});
}
