/* Weights: repacked by all threads into pinned memory, part by part, and copied to the card behind; or left there. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/weight_layout.h"

enum { PLANES = 4, PLANE_ALIGN = 256, PART_BYTES = 4 << 20 };

struct plane_sizes {
    size_t row[PLANES], offset[PLANES]; /* bytes; of the first row, from the weight's beginning */
    size_t row_all, total;              /* of a row in all planes; of the weight */
};

static struct plane_sizes sizes_of(const struct matrix *matrix) {
    const struct weight_plane_bytes row = weight_plane_row(matrix->type, matrix->columns);
    struct plane_sizes sizes = {.row = {row.codes, row.high, row.scales, row.supers}};
    for (size_t i = 0; i < PLANES; i++) {
        sizes.offset[i] = sizes.total;
        sizes.row_all += sizes.row[i];
        sizes.total += align_up(sizes.row[i] * matrix->rows, PLANE_ALIGN);
    }
    return sizes;
}

enum tensor_type cuda_weight_type(const struct weight *weight) { return weight_plane_type(weight->matrix.type); }

size_t cuda_planes_bytes(const struct weight *weight) { return sizes_of(&weight->matrix).total; }

struct weight_planes cuda_planes_at(const struct weight *weight, uint64_t first) {
    const struct plane_sizes sizes = sizes_of(&weight->matrix);
    return (struct weight_planes){first + sizes.offset[0], first + sizes.offset[1], first + sizes.offset[2],
                                  first + sizes.offset[3]};
}

struct weight_planes cuda_planes_behind(const struct weight *weight, size_t row) {
    const struct plane_sizes sizes = sizes_of(&weight->matrix);
    const struct weight_planes first = cuda_planes(weight);
    return (struct weight_planes){first.codes + row * sizes.row[0], first.high + row * sizes.row[1],
                                  first.scales + row * sizes.row[2], first.supers + row * sizes.row[3]};
}

struct weight_planes cuda_planes(const struct weight *weight) {
    return cuda_planes_at(weight, weight->memory.address);
}

struct repack_run {
    const struct matrix *matrix;
    const float *scales; /* NULL: 1 */
    size_t scaled_rows;  /* of each */
    const struct plane_sizes *sizes;
    size_t row_begin, row_count;
    uint8_t *planes[PLANES];
};

static void repack_task(void *context, const struct pool_worker *worker) {
    const struct repack_run *run = context;
    const struct range rows = pool_range(worker, run->row_count, 1);
    uint8_t *at[PLANES];
    if (rows.begin == rows.end) return;
    for (size_t row = run->row_begin + rows.begin, end; row < run->row_begin + rows.end; row = end) {
        const float scale = run->scales != NULL ? run->scales[row / run->scaled_rows] : 1;
        end = min_size((row / run->scaled_rows + 1) * run->scaled_rows, run->row_begin + rows.end);
        for (size_t i = 0; i < PLANES; i++) at[i] = run->planes[i] + (row - run->row_begin) * run->sizes->row[i];
        weight_repack(run->matrix, scale, row, end, &(struct weight_planes_host){at[0], at[1], at[2], at[3]});
    }
}

static struct repack_run repack_of(const struct weight *weight, const struct plane_sizes *sizes) {
    const size_t scales = max_size(weight->scale_count, 1);
    return (struct repack_run){.matrix = &weight->matrix,
                               .scales = weight->scale,
                               .scaled_rows = max_size(weight->matrix.rows / scales, 1),
                               .sizes = sizes,
                               .row_count = weight->matrix.rows};
}

static void part_load(struct stream *stream, const struct weight *weight, const struct plane_sizes *sizes,
                      size_t row_begin, size_t row_count) {
    struct staged staged;
    struct repack_run run = repack_of(weight, sizes);
    size_t offset[PLANES], total = 0;
    run.row_begin = row_begin;
    run.row_count = row_count;
    for (size_t i = 0; i < PLANES; i++) {
        offset[i] = total;
        total += align_up(sizes->row[i] * row_count, PLANE_ALIGN);
    }
    if (!staging_take(stream, total, false, &staged)) return;
    for (size_t i = 0; i < PLANES; i++) run.planes[i] = staged.host + offset[i];
    pool_run(stream->device->pool, repack_task, &run);
    for (size_t i = 0; i < PLANES; i++)
        cuda_stream_copy(&stream->queue, weight->memory.address + sizes->offset[i] + row_begin * sizes->row[i],
                         staged.pinned + offset[i], sizes->row[i] * row_count);
}

/* It stays in the host's memory, where the card reads it. */
static void repack_in_place(struct cuda_device *device, const struct weight *weight, const struct plane_sizes *sizes) {
    struct repack_run run = repack_of(weight, sizes);
    for (size_t i = 0; i < PLANES; i++) run.planes[i] = (uint8_t *)weight->memory.host + sizes->offset[i];
    pool_run(device->pool, repack_task, &run);
}

/* The kernels of its type are compiled now, not in the middle of the first prompt. */
static enum status kernels_prepare(struct cuda_device *device, enum tensor_type type, struct error *error) {
    char name[CUDA_KERNEL_NAME_MAX];
    for (unsigned inputs = 1; inputs <= CUDA_MATVEC_ROWS; inputs *= 2) {
        cuda_kernel_name(name, "matvec", type, inputs);
        if (cuda_device_kernel(device, name, 0) == NULL) return cuda_context_status(&device->context, error);
    }
    cuda_kernel_name(name, "matmul", type, 0); /* whose image has the experts' too */
    if (cuda_device_kernel(device, name, MATMUL_SHARED) == NULL) return cuda_context_status(&device->context, error);
    for (unsigned rows = 128; rows <= 256 && cuda_has_wgmma(device); rows += 128) {
        cuda_kernel_name(name, "matmul_wgmma", type, rows);
        if (cuda_device_kernel(device, name, matmul_wgmma_shared(rows)) == NULL)
            return cuda_context_status(&device->context, error);
    }
    return STATUS_OK;
}

static enum status weight_check(const struct matrix *matrix, struct error *error) {
    const struct tensor_type_info *info = tensor_type_info(matrix->type);
    const size_t unit = info->block_elements == 1 ? 8 : 32;
    if (weight_plane_row(matrix->type, unit * 256).codes == 0)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: no kernel multiplies weights of type %s: try --device cpu",
                         info->name);
    if (matrix->columns % unit != 0 || matrix->columns > UINT32_MAX / 4 || matrix->rows > UINT32_MAX / 4)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cuda: a weight of %zu x %zu in %s, expected a multiple of %zu columns", matrix->rows,
                         matrix->columns, info->name, unit);
    return STATUS_OK;
}

enum status cuda_weight_load(struct device *base, struct weight *weight, struct error *error) {
    struct cuda_device *device = (struct cuda_device *)base;
    struct stream *stream = device->loading;
    const struct matrix *matrix = &weight->matrix;
    TRY(weight_check(matrix, error));
    if (weight->scale != NULL && weight_plane_type(matrix->type) == matrix->type)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: weights of type %s with a scale of their own",
                         tensor_type_info(matrix->type)->name);
    cuda_device_enter(device);
    TRY(kernels_prepare(device, cuda_weight_type(weight), error));
    const struct plane_sizes sizes = sizes_of(matrix);
    enum status status = cuda_allocate(base, weight->kind, sizes.total, &weight->memory, error);
    if (status != STATUS_OK) {
        if (error != NULL) error_prefix(error, "weights");
        return status;
    }
    if (weight->kind == MEMORY_SHARED) {
        repack_in_place(device, weight, &sizes);
        return STATUS_OK;
    }
    const size_t rows = max_size((PART_BYTES - PLANES * PLANE_ALIGN) / sizes.row_all, 1);
    for (size_t row = 0; row < matrix->rows; row += rows)
        part_load(stream, weight, &sizes, row, min_size(rows, matrix->rows - row));
    status = cuda_work_synchronize(stream, error); /* other streams use it */
    if (status != STATUS_OK) cuda_release(base, &weight->memory);
    return status;
}

void cuda_weight_release(struct device *base, struct weight *weight) { cuda_release(base, &weight->memory); }
