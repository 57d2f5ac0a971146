/* mixer: layers that keep a state in place of K and V.
 *
 * A batch goes through such a layer as through any other, in blocks.  Its rows read the state that the sequence has
 * behind its length and write others (cache/kv_state.h): at the end of the batch, and at positions where a snapshot is
 * to be.  Rows are cut there; the sequential rule of the kernels gives them the same bits.
 *
 * A batch that is `ahead` leaves the state behind its first row alone.  What the rule is given of the others stays, and
 * a row that is kept goes through it once more: no product is computed again, and rows that go leave nothing. */
#include "base/assert.h"
#include "model/forward_internal.h"

/* Those of a layer's rows. */
static struct mixed_rows rows_of(const struct forward *forward, bool ahead, size_t state_first) {
    const struct state_config *state = &forward->model->config.state;
    struct mixed_rows mixed = forward->mixed;
    if (!ahead) return mixed;
    const size_t width = model_ahead_width(&forward->model->config), layer = state_first / state->layer_floats;
    mixed.in = span_floats(mixed.ahead, layer * FORWARD_AHEAD_MAX * width);
    mixed.alpha = span_floats(mixed.in, FORWARD_AHEAD_MAX * state->in_width);
    mixed.beta = span_floats(mixed.alpha, FORWARD_AHEAD_MAX * state->value_heads);
    return mixed;
}

/* Rows [row, ...) of a sequence, from position `at` up to where the first ones' state goes. */
static struct recurrence_item item_of(struct kv_sequence *sequence, size_t row, uint64_t at, uint64_t end,
                                      size_t state_first) {
    const struct kv_state_part part = kv_state_part(kv_sequence_state(sequence), at, end);
    return (struct recurrence_item){.row_first = row,
                                    .row_count = (size_t)(part.end - at),
                                    .from = span_exists(part.from) ? span_floats(part.from, state_first) : part.from,
                                    .to = span_floats(part.to, state_first)};
}

/* The block's rows, cut where their states go to different places. */
static size_t items_of(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct forward_batch *batch = pass->batch;
    struct recurrence_item *items = forward->mixed.items;
    const size_t first = layer_config_of(pass)->state_first;
    size_t count = 0;
    for (size_t i = 0; i < batch->item_count; i++) {
        const struct attend_item *item = &batch->items[i];
        const uint64_t begin = item->position_first, end = begin + (batch->ahead ? 1 : item->row_count);
        for (uint64_t at = begin; at < end; at += items[count++].row_count) {
            ASSERT(count < forward->block_capacity); /* a row at least is in each */
            items[count] = item_of(batch->sequences[i], item->row_first + (size_t)(at - begin), at, end, first);
        }
    }
    if (batch->ahead)
        items[count++] = (struct recurrence_item){
            .row_first = 1, .row_count = batch->row_count - 1, .from = items[0].to, .to = forward->mixed.dropped};
    return count;
}

/* Gated short convolution (LFM2): in = [B, C, x], out = C * convolution(B * x). */
static void convolve(const struct forward *forward, const struct state_weights *weights, const struct mixed_rows *mixed,
                     size_t item_count) {
    const struct state_config *state = &forward->model->config.state;
    forward->model->device->operations->convolve(
        forward->stream, &(struct convolve_operation){.x = span_floats(mixed->in, 2 * state->channels),
                                                      .in_gate = mixed->in,
                                                      .out_gate = span_floats(mixed->in, state->channels),
                                                      .x_stride = 3 * state->channels,
                                                      .channel_count = state->channels,
                                                      .w = weights->taps,
                                                      .taps = state->taps,
                                                      .items = mixed->items,
                                                      .item_count = item_count,
                                                      .y = mixed->out,
                                                      .y_stride = state->channels});
}

static void multiply(const struct layer_pass *pass, const struct weight *weight, struct span y) {
    layer_multiply(pass, pass->normed, weight, (struct span){.buffer = NULL}, y);
}

/* Where a delta net's alpha and beta are: if grouped, one row has both, twice as long, and alpha's lie behind. */
static struct span alpha_of(const struct state_config *state, const struct mixed_rows *mixed) {
    return state->is_grouped ? span_floats(mixed->alpha, state->value_heads / state->key_heads) : mixed->alpha;
}
static struct span beta_of(const struct state_config *state, const struct mixed_rows *mixed) {
    return state->is_grouped ? mixed->alpha : mixed->beta;
}

static void multiply_gates(const struct layer_pass *pass, const struct mixed_rows *mixed) {
    const struct state_config *state = &pass->forward->model->config.state;
    const struct state_weights *weights = &pass->weights->state;
    multiply(pass, &weights->gate, mixed->z);
    if (!state->is_grouped) multiply(pass, &weights->alpha, mixed->alpha);
    multiply(pass, &weights->beta, beta_of(state, mixed));
}

/* Gated delta net (Qwen3-Next, Qwen3.5): in = [q, k, v], convolved, then by the rule; z gates its normed output. */
static void mix_by_delta(const struct forward *forward, const struct state_weights *weights,
                         const struct mixed_rows *mixed, size_t item_count) {
    const struct device_operations *operations = forward->model->device->operations;
    const struct state_config *state = &forward->model->config.state;
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
    operations->delta(forward->stream, &(struct delta_operation){.x = mixed->convolved,
                                                                 .x_stride = state->channels,
                                                                 .key_heads = state->key_heads,
                                                                 .value_heads = state->value_heads,
                                                                 .k_dimension = state->k_dimension,
                                                                 .v_dimension = state->v_dimension,
                                                                 .is_grouped = state->is_grouped,
                                                                 .alpha = alpha_of(state, mixed),
                                                                 .beta = beta_of(state, mixed),
                                                                 .decay = weights->decay,
                                                                 .bias = weights->bias,
                                                                 .z = mixed->z,
                                                                 .norm = weights->norm,
                                                                 .epsilon = forward->model->config.norm_epsilon,
                                                                 .items = mixed->items,
                                                                 .item_count = item_count,
                                                                 .state_first = (state->taps - 1) * state->channels,
                                                                 .y = mixed->out});
}

static void mix(const struct forward *forward, size_t layer, const struct mixed_rows *mixed, size_t item_count) {
    const struct model *model = forward->model;
    (model->config.layers[layer].mixer == MIXER_DELTA ? mix_by_delta : convolve)(forward, &model->layers[layer].state,
                                                                                 mixed, item_count);
}

bool layer_mixer(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct layer_config *layer = layer_config_of(pass);
    const struct state_weights *weights = &pass->weights->state;
    const struct mixed_rows mixed = rows_of(forward, pass->batch->ahead, layer->state_first);
    layer_expect(pass);
    multiply(pass, &weights->in, mixed.in);
    if (layer->mixer == MIXER_DELTA) multiply_gates(pass, &mixed);
    mix(forward, pass->layer_index, &mixed, items_of(pass));
    if (pass->narrow && pass->batch->logit_row_count == 0) return false; /* what is left is the states */
    layer_add(pass,
              &(struct matmul_operation){
                  .x = forward->mixed.out, .x_stride = config->state.out_width, .weights = {&weights->out}},
              (struct span){.buffer = NULL}, 0);
    if (pass->narrow) layer_narrow(pass);
    return true;
}

enum status forward_keep_row(struct forward *forward, struct kv_sequence *sequence, size_t row, struct error *error) {
    const struct model_config *config = &forward->model->config;
    const uint64_t position = kv_sequence_length(sequence);
    if (config->state.layer_count == 0 || row == 0) return STATUS_OK; /* the batch did it */
    kv_state_begin(kv_sequence_state(sequence), position + 1);
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        if (config->layers[layer].mixer == MIXER_ATTENTION) continue;
        const size_t first = config->layers[layer].state_first;
        const struct mixed_rows mixed = rows_of(forward, true, first);
        mixed.items[0] = item_of(sequence, row, position, position + 1, first);
        mix(forward, layer, &mixed, 1);
    }
    return forward->model->device->operations->stream_synchronize(forward->stream, error);
}
