/* The operations that go row by row.  Indices are staged. */
#include "base/assert.h"
#include "device/cuda/cuda_device_internal.h"

static uint32_t blocks_of(size_t count, size_t each) { return (uint32_t)((count + each - 1) / each); }

void cuda_embed(struct stream *stream, const struct embed_operation *operation) {
    cuda_device_enter(stream->device);
    const struct weight *table = operation->table, *positions = operation->position_table;
    const size_t columns = operation->column_count != 0 ? operation->column_count : table->matrix.columns;
    ASSERT(columns % 4 == 0);
    struct cuda_embed_args args = {.table = cuda_planes(table),
                                   .rows = cuda_address(operation->step),
                                   .y = cuda_address(operation->y),
                                   .table_type = (uint32_t)cuda_weight_type(table),
                                   .positions_type = NO_WEIGHT,
                                   .row_count = (uint32_t)operation->row_count,
                                   .columns = (uint32_t)columns,
                                   .table_columns = (uint32_t)table->matrix.columns,
                                   .column_first = (uint32_t)operation->column_first,
                                   .position_offset = operation->position_offset,
                                   .scale = operation->scale != 0 ? operation->scale : 1};
    if (positions != NULL) {
        ASSERT(positions->matrix.columns == columns);
        args.positions = cuda_planes(positions);
        args.positions_type = (uint32_t)cuda_weight_type(positions);
    }
    cuda_work_launch(stream, "embed", (struct cuda_shape){args.row_count, 1, 1, 256, 0}, &args);
    cuda_work_done(stream);
}

void cuda_norm(struct stream *stream, const struct norm_operation *operation) {
    cuda_device_enter(stream->device);
    const struct cuda_norm_args args = {
        .x = cuda_address(operation->x),
        .w = cuda_address(operation->w),
        .b = operation->kind == NORM_LAYER ? cuda_address(operation->b) : 0,
        .y = cuda_address(operation->y),
        .row_count = (uint32_t)operation->row_count,
        .x_stride = (uint32_t)operation->x_stride,
        .y_stride = (uint32_t)operation->y_stride,
        .segment_count = (uint32_t)operation->segment_count,
        .segment_size = (uint32_t)operation->segment_size,
        .epsilon = operation->epsilon,
        .adds = operation->adds,
        .scale = operation->scale,
    };
    ASSERT(operation->kind == NORM_RMS || args.b != 0);
    ASSERT(!operation->adds || operation->segment_count == 1);
    if (args.segment_count > 1 && args.segment_size <= NORM_HEAD_MAX)
        cuda_work_launch(stream, "norm_heads",
                         (struct cuda_shape){args.row_count, blocks_of(args.segment_count, 8), 1, 256, 0}, &args);
    else
        cuda_work_launch(stream, "norm_rows",
                         (struct cuda_shape){args.row_count, args.segment_count, 1, 256, sizeof(struct norm_shared)},
                         &args);
    cuda_work_done(stream);
}

void cuda_rope_angles(struct stream *stream, const struct rope_angles_operation *operation) {
    cuda_device_enter(stream->device);
    const struct cuda_rope_angles_args args = {.rows = cuda_address(operation->step),
                                               .frequency = cuda_address(operation->frequency),
                                               .cosine_sine = cuda_address(operation->cosine_sine),
                                               .row_count = (uint32_t)operation->row_count,
                                               .pair_count = (uint32_t)operation->pair_count,
                                               .factor = operation->factor};
    cuda_work_launch(stream, "rope_angles", (struct cuda_shape){args.row_count, 1, 1, 128, 0}, &args);
    cuda_work_done(stream);
}

void cuda_rope(struct stream *stream, const struct rope_operation *operation) {
    cuda_device_enter(stream->device);
    const struct cuda_rope_args args = {.x = cuda_address(operation->x),
                                        .cosine_sine = cuda_address(operation->cosine_sine),
                                        .row_count = (uint32_t)operation->row_count,
                                        .x_stride = (uint32_t)operation->x_stride,
                                        .head_count = (uint32_t)operation->head_count,
                                        .head_stride = (uint32_t)operation->head_stride,
                                        .pair_count = (uint32_t)operation->pair_count,
                                        .split = operation->order == ROPE_SPLIT};
    const uint32_t blocks = blocks_of(operation->head_count * operation->pair_count, 256);
    cuda_work_launch(stream, "rope", (struct cuda_shape){args.row_count, blocks, 1, 256, 0}, &args);
    cuda_work_done(stream);
}

void cuda_activation(struct stream *stream, const struct activation_operation *operation) {
    cuda_device_enter(stream->device);
    const struct cuda_activation_args args = {.gate = cuda_address(operation->gate),
                                              .up = cuda_address(operation->up),
                                              .y = cuda_address(operation->y),
                                              .row_count = (uint32_t)operation->row_count,
                                              .stride = (uint32_t)operation->stride,
                                              .count = (uint32_t)operation->count,
                                              .kind = (uint32_t)operation->kind,
                                              .cap = operation->cap};
    cuda_work_launch(stream, "activation",
                     (struct cuda_shape){args.row_count, blocks_of(operation->count, 1024), 1, 256, 0}, &args);
    cuda_work_done(stream);
}

void cuda_gather(struct stream *stream, const struct gather_operation *operation) {
    struct staged staged;
    cuda_device_enter(stream->device);
    if (!staging_take(stream, operation->row_count * sizeof(uint32_t), true, &staged)) return;
    uint32_t *indices = (uint32_t *)(void *)staged.host;
    for (size_t i = 0; i < operation->row_count; i++) indices[i] = operation->indices[i];
    staging_send(stream, &staged);
    const struct cuda_gather_args args = {.x = cuda_address(operation->x),
                                          .indices = staged.card,
                                          .y = cuda_address(operation->y),
                                          .row_count = (uint32_t)operation->row_count,
                                          .x_stride = (uint32_t)operation->x_stride,
                                          .y_stride = (uint32_t)operation->y_stride,
                                          .count = (uint32_t)operation->count};
    cuda_work_launch(stream, "gather",
                     (struct cuda_shape){args.row_count, blocks_of(operation->count, 1024), 1, 256, 0}, &args);
    cuda_work_done(stream);
}

void cuda_keep_rows(struct stream *stream, const struct keep_rows_operation *operation) {
    ASSERT(operation->columns % 8 == 0);
    cuda_device_enter(stream->device);
    const uint64_t x = cuda_address(operation->x), halves = cuda_address(operation->halves);
    const struct cuda_halve_args args = {.x = operation->restores ? halves : x,
                                         .y = operation->restores ? x : halves,
                                         .scales = cuda_address(operation->scales),
                                         .row_count = (uint32_t)operation->row_count,
                                         .x_stride = (uint32_t)operation->x_stride,
                                         .columns = (uint32_t)operation->columns};
    if (operation->restores)
        cuda_work_launch(stream, "restore_rows", (struct cuda_shape){args.row_count, 1, 1, 256, 0}, &args);
    else
        cuda_work_launch(stream, "halve_rows",
                         (struct cuda_shape){args.row_count, 1, 1, 256, sizeof(struct norm_shared)}, &args);
    cuda_work_done(stream);
}
