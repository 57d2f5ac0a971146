/* Layers that keep a state.  A unit is a piece of the state that no other one reads: some channels, or a head, with all
 * rows of all items in their order. */
#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

enum { CONVOLVE_ELEMENTS_ALONE = 4096, DELTA_ELEMENTS_ALONE = 4096, GATE_ELEMENTS_ALONE = 4096 };

static const float *behind(const float *x, size_t count) { return x != NULL ? x + count : NULL; }

static void convolve_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct convolve_operation *operation = run->operation;
    const size_t pieces = (operation->channel_count + CONVOLVE_CHANNELS - 1) / CONVOLVE_CHANNELS;
    const struct range units = pool_range(worker, pieces, 1);
    for (size_t unit = units.begin; unit < units.end; unit++) {
        const size_t first = unit * CONVOLVE_CHANNELS;
        struct convolve_args args = {.channel_count = min_size(CONVOLVE_CHANNELS, operation->channel_count - first),
                                     .x_stride = operation->x_stride,
                                     .w = cpu_floats(operation->w) + first * operation->taps,
                                     .taps = operation->taps,
                                     .silu = operation->silu,
                                     .state_stride = operation->channel_count,
                                     .y_stride = operation->y_stride};
        for (size_t i = 0; i < operation->item_count; i++) {
            const struct recurrence_item *item = &operation->items[i];
            const size_t at = item->row_first * operation->x_stride + first;
            args.row_count = item->row_count;
            args.x = cpu_floats(operation->x) + at;
            args.in_gate = behind(cpu_floats(operation->in_gate), at);
            args.out_gate = behind(cpu_floats(operation->out_gate), at);
            args.from = behind(cpu_floats(item->from), first);
            args.to = cpu_floats(item->to) + first;
            args.y = cpu_floats(operation->y) + item->row_first * operation->y_stride + first;
            run->kernels->recurrence.convolve(&args);
        }
    }
}

static size_t rows_of(const struct recurrence_item *items, size_t count) {
    size_t rows = 0;
    for (size_t i = 0; i < count; i++) rows += items[i].row_count;
    return rows;
}

void cpu_convolve(struct stream *stream, const struct convolve_operation *operation) {
    ASSERT(operation->taps >= 2 && operation->taps <= CONVOLVE_TAPS_MAX);
    const size_t rows = rows_of(operation->items, operation->item_count);
    cpu_run_operation(stream, operation, rows * operation->channel_count <= CONVOLVE_ELEMENTS_ALONE, convolve_task);
}

static void delta_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct delta_operation *operation = run->operation;
    const size_t k = operation->k_dimension, v = operation->v_dimension, keys = operation->key_heads * k,
                 width = operation->value_heads * v, group = operation->value_heads / operation->key_heads,
                 gates = operation->value_heads * (operation->is_grouped ? 2 : 1);
    const struct range heads = pool_range(worker, operation->value_heads, 1);
    for (size_t head = heads.begin; head < heads.end; head++) {
        const size_t state = operation->state_first + head * k * v;
        const size_t key = operation->is_grouped ? head / group : head % operation->key_heads;
        const size_t place = operation->is_grouped ? head + key * group : head; /* of its gates */
        struct delta_args args = {.k_dimension = k,
                                  .v_dimension = v,
                                  .stride = operation->x_stride,
                                  .gate_stride = gates,
                                  .decay = cpu_floats(operation->decay)[head],
                                  .bias = cpu_floats(operation->bias)[head],
                                  .norm = cpu_floats(operation->norm),
                                  .epsilon = operation->epsilon,
                                  .y_stride = width};
        for (size_t i = 0; i < operation->item_count; i++) {
            const struct recurrence_item *item = &operation->items[i];
            const float *x = cpu_floats(operation->x) + item->row_first * operation->x_stride;
            const size_t gate = item->row_first * gates + place;
            const size_t row = item->row_first * width + head * v;
            args.row_count = item->row_count;
            args.q = x + key * k;
            args.k = args.q + keys;
            args.v = x + 2 * keys + head * v;
            args.alpha = cpu_floats(operation->alpha) + gate;
            args.beta = cpu_floats(operation->beta) + gate;
            args.z = cpu_floats(operation->z) + row;
            args.y = cpu_floats(operation->y) + row;
            args.from = behind(cpu_floats(item->from), state);
            args.to = cpu_floats(item->to) + state;
            run->kernels->recurrence.delta(&args);
        }
    }
}

void cpu_delta(struct stream *stream, const struct delta_operation *operation) {
    ASSERT(operation->k_dimension <= DELTA_DIMENSION_MAX && operation->v_dimension <= DELTA_DIMENSION_MAX);
    const size_t rows = rows_of(operation->items, operation->item_count),
                 elements = operation->value_heads * operation->k_dimension * operation->v_dimension;
    cpu_run_operation(stream, operation, rows * elements <= DELTA_ELEMENTS_ALONE, delta_task);
}

static void gate_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct gate_operation *operation = run->operation;
    const size_t size = operation->head_size;
    const struct range heads = pool_range(worker, operation->row_count * operation->head_count, 1);
    for (size_t head = heads.begin; head < heads.end; head++)
        run->kernels->recurrence.gate(cpu_floats(operation->gates) + (2 * head + 1) * size, size,
                                      cpu_floats(operation->y) + head * size);
}

void cpu_gate(struct stream *stream, const struct gate_operation *operation) {
    const size_t elements = operation->row_count * operation->head_count * operation->head_size;
    cpu_run_operation(stream, operation, elements <= GATE_ELEMENTS_ALONE, gate_task);
}
