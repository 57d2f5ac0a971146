/* The operations that go row by row.  A unit is a row, or a fixed piece of one; each costs at most a few
 * microseconds, so units are shared out evenly and no tickets are drawn.
 *
 * The *_ALONE limits are about 5 us of work: a second thread would save half of it, and a fork-join costs
 * 0.6 us when the threads still spin, more on a machine with other work.  Measured on one Zen 3 core with
 * the AVX2 kernels, ns per element: RMSNorm 0.18, rope 0.16 (split 0.33), silu 1.07, angles 29 per pair. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

enum {
    EMBED_ELEMENTS_ALONE = 16384,
    NORM_ELEMENTS_ALONE = 32768,
    ANGLES_ALONE = 160,
    ROPE_ELEMENTS_ALONE = 32768,
    ACTIVATION_ELEMENTS_ALONE = 4096,
    GATHER_ELEMENTS_ALONE = 65536,
    /* Rows of activations are cut here, whatever the thread count, so that the ends that a vector
     * kernel finishes one by one are always the same elements. */
    ACTIVATION_PIECE = 1024,
};

struct embed_run {
    const struct cpu_device *device;
    const struct embed_operation *operation;
    uint8_t *scratch; /* [threads][row_bytes], for the position's row */
    size_t row_bytes;
};

/* Of a row, columns [first, first + count). */
static void dequantize_row(const struct cpu_device *device, const struct weight *weight, uint64_t row, size_t first,
                           size_t count, float *y) {
    const struct matrix table = cpu_matrix(weight);
    const struct tensor_type_info *info = tensor_type_info(table.type);
    ASSERT(row < table.rows);
    device->kernels.convert.dequantize[table.type]((const uint8_t *)table.data + row * table.row_bytes +
                                                       first / info->block_elements * info->block_bytes,
                                                   y, count);
}

static size_t columns_of(const struct embed_operation *operation) {
    return operation->column_count != 0 ? operation->column_count : operation->table->matrix.columns;
}

static void embed_task(void *context, const struct pool_worker *worker) {
    const struct embed_run *run = context;
    const struct embed_operation *operation = run->operation;
    const size_t columns = columns_of(operation);
    struct range rows = pool_range(worker, operation->row_count, 1);
    for (size_t row = rows.begin; row < rows.end; row++) {
        const struct step_row *step = cpu_step(operation->step) + row;
        float *y = cpu_floats(operation->y) + row * columns;
        dequantize_row(run->device, operation->table, step->token, operation->column_first, columns, y);
        if (operation->scale != 0)
            for (size_t i = 0; i < columns; i++) y[i] *= operation->scale;
        if (operation->position_table == NULL) continue;
        float *position = (float *)(void *)(run->scratch + worker->index * run->row_bytes);
        dequantize_row(run->device, operation->position_table, step->position + operation->position_offset, 0, columns,
                       position);
        run->device->kernels.activation.add(y, position, columns, y);
    }
}

void cpu_embed(struct stream *stream, const struct embed_operation *operation) {
    struct cpu_device *device = stream->device;
    const size_t columns = columns_of(operation);
    struct embed_run run = {device, operation, NULL, align_up(columns * sizeof(float), 64)};
    if (operation->position_table != NULL) {
        ASSERT(operation->position_table->matrix.columns == columns);
        run.scratch = cpu_scratch_reserve(device, device->thread_count * run.row_bytes);
        if (run.scratch == NULL) return;
    }
    cpu_run(device, operation->row_count * columns <= EMBED_ELEMENTS_ALONE, embed_task, &run);
}

static void norm_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct norm_operation *operation = run->operation;
    size_t segments = operation->segment_count, size = operation->segment_size;
    struct range units = pool_range(worker, operation->row_count * segments, 1);
    for (size_t unit = units.begin; unit < units.end; unit++) {
        size_t row = unit / segments, first = unit % segments * size;
        float *x = cpu_floats(operation->x) + row * operation->x_stride + first;
        float *sum = cpu_floats(operation->y) + row * operation->y_stride + first, *y = operation->adds ? x : sum;
        if (operation->kind == NORM_RMS)
            run->kernels->norm.rms(x, cpu_floats(operation->w), operation->epsilon, size, y);
        else
            run->kernels->norm.layer(x, cpu_floats(operation->w), cpu_floats(operation->b), operation->epsilon, size,
                                     y);
        if (operation->adds) run->kernels->activation.add(sum, y, size, sum);
        for (size_t i = 0; operation->adds && operation->scale != 0 && i < size; i++) sum[i] *= operation->scale;
    }
}

void cpu_norm(struct stream *stream, const struct norm_operation *operation) {
    size_t elements = operation->row_count * operation->segment_count * operation->segment_size;
    cpu_run_operation(stream, operation, elements <= NORM_ELEMENTS_ALONE, norm_task);
}

static void rope_angles_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct rope_angles_operation *angles = run->operation;
    struct range rows = pool_range(worker, angles->row_count, 1);
    for (size_t row = rows.begin; row < rows.end; row++)
        run->kernels->rope.angles(cpu_step(angles->step)[row].position, cpu_floats(angles->frequency),
                                  angles->pair_count, angles->factor,
                                  cpu_floats(angles->cosine_sine) + row * 2 * angles->pair_count);
}

void cpu_rope_angles(struct stream *stream, const struct rope_angles_operation *operation) {
    const size_t pairs = operation->row_count * operation->pair_count;
    cpu_run_operation(stream, operation, pairs <= ANGLES_ALONE, rope_angles_task);
}

static void rope_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct rope_operation *operation = run->operation;
    struct range rows = pool_range(worker, operation->row_count, 1);
    for (size_t row = rows.begin; row < rows.end; row++)
        run->kernels->rope.apply(cpu_floats(operation->x) + row * operation->x_stride, operation->head_count,
                                 operation->head_stride, operation->pair_count, operation->order,
                                 cpu_floats(operation->cosine_sine) + row * 2 * operation->pair_count);
}

void cpu_rope(struct stream *stream, const struct rope_operation *operation) {
    size_t elements = operation->row_count * operation->head_count * operation->pair_count * 2;
    cpu_run_operation(stream, operation, operation->row_count < 2 || elements <= ROPE_ELEMENTS_ALONE, rope_task);
}

static void activation_task(void *context, const struct pool_worker *worker) {
    const struct operation_run *run = context;
    const struct activation_operation *operation = run->operation;
    const struct activation_kernels *kernels = &run->kernels->activation;
    size_t pieces = (operation->count + ACTIVATION_PIECE - 1) / ACTIVATION_PIECE;
    struct range units = pool_range(worker, operation->row_count * pieces, 1);
    for (size_t unit = units.begin; unit < units.end; unit++) {
        size_t column = unit % pieces * ACTIVATION_PIECE;
        size_t first = unit / pieces * operation->stride + column;
        size_t count = min_size(ACTIVATION_PIECE, operation->count - column);
        const float *gate = cpu_floats(operation->gate) + first, *up = cpu_floats(span_floats(operation->up, first));
        float *y = cpu_floats(operation->y) + first;
        switch (operation->kind) {
        case ACTIVATION_SILU_MULTIPLY: kernels->silu_multiply(gate, up, count, y); break;
        case ACTIVATION_SWIGLU_CLAMPED: kernels->swiglu_clamped(gate, up, count, y); break;
        case ACTIVATION_GELU_MULTIPLY: kernels->gelu_multiply(gate, up, count, y); break;
        case ACTIVATION_RELU: kernels->relu(gate, count, y); break;
        case ACTIVATION_SOFTCAP: kernels->softcap(gate, operation->cap, count, y); break;
        }
    }
}

void cpu_activation(struct stream *stream, const struct activation_operation *operation) {
    const size_t elements = operation->row_count * operation->count;
    cpu_run_operation(stream, operation, elements <= ACTIVATION_ELEMENTS_ALONE, activation_task);
}

static void gather_task(void *context, const struct pool_worker *worker) {
    const struct gather_operation *operation = context;
    struct range rows = pool_range(worker, operation->row_count, 1);
    for (size_t row = rows.begin; row < rows.end; row++)
        memcpy(cpu_floats(operation->y) + row * operation->y_stride,
               cpu_floats(operation->x) + operation->indices[row] * operation->x_stride,
               operation->count * sizeof(float));
}

void cpu_gather(struct stream *stream, const struct gather_operation *operation) {
    struct gather_operation run = *operation;
    cpu_run(stream->device, operation->row_count * operation->count <= GATHER_ELEMENTS_ALONE, gather_task, &run);
}
