/* mixer: layers that keep a state in place of K and V.
 *
 * A batch goes through such a layer as through any other, in blocks.  Its rows read the state that the sequence has
 * behind its length and write others (cache/kv_state.h): at the end of the batch, and at positions where a snapshot is
 * to be.  Rows are cut there; the sequential rule of the kernels gives them the same bits. */
#include "base/assert.h"
#include "model/forward_internal.h"

/* The block's rows, cut where their states go to different places. */
static size_t items_of(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct forward_batch *batch = pass->batch;
    const size_t first = layer_config_of(pass)->state_first;
    size_t count = 0;
    for (size_t i = 0; i < batch->item_count; i++) {
        const struct attend_item *item = &batch->items[i];
        const uint64_t begin = item->position_first, end = begin + item->row_count;
        for (uint64_t at = begin; at < end;) {
            const struct kv_state_part part = kv_state_part(kv_sequence_state(batch->sequences[i]), at, end);
            ASSERT(count < forward->block_capacity); /* a row at least is in each */
            forward->mixed.items[count++] = (struct recurrence_item){
                .row_first = item->row_first + (size_t)(at - begin),
                .row_count = (size_t)(part.end - at),
                .from = span_exists(part.from) ? span_floats(part.from, first) : part.from,
                .to = span_floats(part.to, first)};
            at = part.end;
        }
    }
    return count;
}

/* Gated short convolution (LFM2): in = [B, C, x], out = C * convolution(B * x). */
static void convolve(const struct layer_pass *pass, size_t item_count) {
    struct forward *forward = pass->forward;
    const struct state_config *state = &forward->model->config.state;
    forward->model->device->operations->convolve(
        forward->stream, &(struct convolve_operation){.x = span_floats(forward->mixed.in, 2 * state->channels),
                                                      .in_gate = forward->mixed.in,
                                                      .out_gate = span_floats(forward->mixed.in, state->channels),
                                                      .x_stride = 3 * state->channels,
                                                      .channel_count = state->channels,
                                                      .w = pass->weights->state.taps,
                                                      .taps = state->taps,
                                                      .items = forward->mixed.items,
                                                      .item_count = item_count,
                                                      .y = forward->mixed.out,
                                                      .y_stride = state->channels});
}

static void multiply(const struct layer_pass *pass, const struct weight *weight, struct span y, size_t width) {
    const struct forward *forward = pass->forward;
    const struct model *model = forward->model;
    model->device->operations->matmul(forward->stream,
                                      &(struct matmul_operation){.x = pass->normed,
                                                                 .x_stride = model->config.hidden_size,
                                                                 .row_count = pass->row_count,
                                                                 .weight_count = 1,
                                                                 .weights = {weight},
                                                                 .y = {y},
                                                                 .y_stride = {width}});
}

/* Gated delta net (Qwen3-Next, Qwen3.5): in = [q, k, v], convolved, then by the rule; z gates its normed output. */
static void mix_by_delta(const struct layer_pass *pass, size_t item_count) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct device_operations *operations = forward->model->device->operations;
    const struct state_config *state = &config->state;
    const struct state_weights *weights = &pass->weights->state;
    const struct mixed_rows *mixed = &forward->mixed;
    multiply(pass, &weights->gate, mixed->z, state->out_width);
    struct span alpha = mixed->alpha, beta = mixed->beta;
    if (state->is_grouped) {
        beta = mixed->alpha; /* one row has both, twice as long */
        alpha = span_floats(beta, state->value_heads / state->key_heads);
        multiply(pass, &weights->beta, beta, 2 * state->value_heads);
    } else {
        multiply(pass, &weights->alpha, alpha, state->value_heads);
        multiply(pass, &weights->beta, beta, state->value_heads);
    }
    operations->convolve(forward->stream, &(struct convolve_operation){.x = mixed->in,
                                                                       .x_stride = state->channels,
                                                                       .channel_count = state->channels,
                                                                       .w = weights->taps,
                                                                       .taps = state->taps,
                                                                       .silu = true,
                                                                       .items = mixed->items,
                                                                       .item_count = item_count,
                                                                       .y = mixed->convolved,
                                                                       .y_stride = state->channels});
    operations->delta(forward->stream,
                      &(struct delta_operation){.x = mixed->convolved,
                                                .x_stride = state->channels,
                                                .key_heads = state->key_heads,
                                                .value_heads = state->value_heads,
                                                .k_dimension = state->k_dimension,
                                                .v_dimension = state->v_dimension,
                                                .is_grouped = state->is_grouped,
                                                .alpha = alpha,
                                                .beta = beta,
                                                .decay = weights->decay,
                                                .bias = weights->bias,
                                                .z = mixed->z,
                                                .norm = weights->norm,
                                                .epsilon = config->norm_epsilon,
                                                .items = mixed->items,
                                                .item_count = item_count,
                                                .state_first = (state->taps - 1) * state->channels,
                                                .y = mixed->out});
}

bool layer_mixer(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct state_weights *weights = &pass->weights->state;
    layer_expect(pass);
    multiply(pass, &weights->in, forward->mixed.in, config->state.in_width);
    (layer_config_of(pass)->mixer == MIXER_DELTA ? mix_by_delta : convolve)(pass, items_of(pass));
    if (pass->narrow && pass->batch->logit_row_count == 0) return false; /* what is left is the states */
    layer_add(pass,
              &(struct matmul_operation){
                  .x = forward->mixed.out, .x_stride = config->state.out_width, .weights = {&weights->out}},
              (struct span){.buffer = NULL});
    if (pass->narrow) layer_narrow(pass);
    return true;
}
