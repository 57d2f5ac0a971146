/* convolve, delta and gate: layers that keep a state. */
#include "base/assert.h"
#include "device/cuda/cuda_device_internal.h"
#include "kernels/recurrence/recurrence.h"

_Static_assert((int)DELTA_WIDEST == (int)DELTA_DIMENSION_MAX, "the widest head");

/* The items on the card; how many of them may go at once: all, or one after another where a state is handed on. */
static bool items_stage(struct stream *stream, const struct recurrence_item *items, size_t count, struct staged *staged,
                        uint32_t *step) {
    if (count == 0 || !staging_take(stream, count * sizeof(struct cuda_recurrence_item), true, staged)) return false;
    struct cuda_recurrence_item *own = (struct cuda_recurrence_item *)(void *)staged->host;
    *step = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        own[i] = (struct cuda_recurrence_item){.from = cuda_address(items[i].from),
                                               .to = cuda_address(items[i].to),
                                               .row_first = (uint32_t)items[i].row_first,
                                               .row_count = (uint32_t)items[i].row_count};
        for (size_t before = 0; before < i; before++)
            if (own[before].to == own[i].from || own[before].to == own[i].to || own[before].from == own[i].to)
                *step = 1;
    }
    staging_send(stream, staged);
    return true;
}

void cuda_convolve(struct stream *stream, const struct convolve_operation *operation) {
    struct staged staged;
    uint32_t step;
    cuda_device_enter(stream->device);
    ASSERT(operation->taps >= 2 && operation->taps <= CONVOLVE_TAPS_MAX);
    if (!items_stage(stream, operation->items, operation->item_count, &staged, &step)) return;
    const struct cuda_convolve_args args = {.items = staged.card,
                                            .x = cuda_address(operation->x),
                                            .in_gate = cuda_address(operation->in_gate),
                                            .out_gate = cuda_address(operation->out_gate),
                                            .w = cuda_address(operation->w),
                                            .y = cuda_address(operation->y),
                                            .item_count = (uint32_t)operation->item_count,
                                            .item_step = step,
                                            .x_stride = (uint32_t)operation->x_stride,
                                            .y_stride = (uint32_t)operation->y_stride,
                                            .channel_count = (uint32_t)operation->channel_count,
                                            .taps = (uint32_t)operation->taps,
                                            .silu = operation->silu};
    cuda_work_launch(stream, "convolve", (struct cuda_shape){(args.channel_count + 127) / 128, step, 1, 128, 0}, &args);
    cuda_work_done(stream);
}

void cuda_delta(struct stream *stream, const struct delta_operation *operation) {
    struct staged staged;
    uint32_t step;
    cuda_device_enter(stream->device);
    ASSERT(operation->k_dimension <= DELTA_DIMENSION_MAX && operation->v_dimension <= DELTA_DIMENSION_MAX);
    if (!items_stage(stream, operation->items, operation->item_count, &staged, &step)) return;
    const uint32_t group = (uint32_t)(operation->value_heads / operation->key_heads);
    const struct cuda_delta_args args = {.items = staged.card,
                                         .x = cuda_address(operation->x),
                                         .alpha = cuda_address(operation->alpha),
                                         .beta = cuda_address(operation->beta),
                                         .decay = cuda_address(operation->decay),
                                         .bias = cuda_address(operation->bias),
                                         .z = cuda_address(operation->z),
                                         .norm = cuda_address(operation->norm),
                                         .y = cuda_address(operation->y),
                                         .state_first = operation->state_first,
                                         .item_count = (uint32_t)operation->item_count,
                                         .item_step = step,
                                         .x_stride = (uint32_t)operation->x_stride,
                                         .key_heads = (uint32_t)operation->key_heads,
                                         .value_heads = (uint32_t)operation->value_heads,
                                         .group = operation->is_grouped ? group : 0,
                                         .k_dimension = (uint32_t)operation->k_dimension,
                                         .v_dimension = (uint32_t)operation->v_dimension,
                                         .epsilon = operation->epsilon};
    cuda_work_launch(stream, "delta",
                     (struct cuda_shape){args.value_heads, step, 1, DELTA_THREADS, sizeof(struct delta_shared)}, &args);
    cuda_work_done(stream);
}

void cuda_gate(struct stream *stream, const struct gate_operation *operation) {
    cuda_device_enter(stream->device);
    const struct cuda_gate_args args = {.gates = cuda_address(operation->gates),
                                        .y = cuda_address(operation->y),
                                        .head_size = (uint32_t)operation->head_size,
                                        .count = (uint32_t)(operation->head_count * operation->head_size),
                                        .row_count = (uint32_t)operation->row_count};
    cuda_work_launch(stream, "gate", (struct cuda_shape){args.row_count, (args.count + 1023) / 1024, 1, 256, 0}, &args);
    cuda_work_done(stream);
}
