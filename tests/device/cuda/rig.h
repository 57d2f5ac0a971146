/* rig: what the tests of kernels share: launches, guarded device memory, repacked weights. */
#pragma once

#include "../../kernels/check.h"
#include "../../kernels/weights.h"

#include "device/cuda/executor.h"
#include "device/cuda/kernels.h"
#include "device/cuda/weight_layout.h"
#include "kernels/convert/convert.h"

static const enum tensor_type weight_types[15] = {
    TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,   TENSOR_Q5_1,  TENSOR_Q8_0,
    TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

static inline uint64_t address_of(const void *p) { return (uintptr_t)p; }

static inline void launch(const char *name, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                          size_t shared, const void *args, uint64_t seed) {
    const struct executor_kernel *kernel = executor_find(name);
    if (kernel == NULL) fail_msg("no kernel %s", name);
    const uint32_t grid[3] = {x, y, z}, block[3] = {threads, 1, 1};
    executor_launch(kernel, grid, block, shared, args, seed);
}

/* Memory of the device whose end, up to 15 bytes, is at a page that faults. */
static inline struct guarded device_memory(size_t bytes) { return guarded_create((bytes + 15) / 16 * 16); }

/* A matrix as the file has it, and its planes. */
struct rig_matrix {
    struct matrix matrix;
    struct weight_planes planes;
    struct guarded plane[4];
    float *values; /* [rows][columns] */
};

static inline void rig_matrix_init(struct rig_matrix *rig, struct random *random, enum tensor_type type,
                                   enum weight_kind kind, size_t rows, size_t columns) {
    const struct tensor_type_info *info = tensor_type_info(type);
    const size_t row_bytes = columns / info->block_elements * info->block_bytes;
    uint8_t *data = malloc(rows * row_bytes);
    assert_non_null(data);
    weight_fill(random, type, kind, data, rows * columns);
    rig->matrix = (struct matrix){type, data, rows, columns, row_bytes};
    const struct weight_plane_bytes bytes = weight_plane_row(type, columns);
    const size_t each[4] = {bytes.codes, bytes.high, bytes.scales, bytes.supers};
    for (size_t i = 0; i < 4; i++) rig->plane[i] = device_memory(each[i] * rows);
    const struct weight_planes_host planes = {rig->plane[0].data, rig->plane[1].data, rig->plane[2].data,
                                              rig->plane[3].data};
    weight_repack(&rig->matrix, 1, 0, rows, &planes);
    rig->planes = (struct weight_planes){address_of(planes.codes), address_of(planes.high),
                                         address_of(planes.scales), address_of(planes.supers)};
    struct convert_kernels convert;
    convert_kernels_init(&convert, 0);
    rig->values = malloc(rows * columns * sizeof(float));
    assert_non_null(rig->values);
    for (size_t r = 0; r < rows; r++)
        convert.dequantize[type](data + r * row_bytes, rig->values + r * columns, columns);
}

static inline void rig_matrix_deinit(struct rig_matrix *rig) {
    free((void *)(uintptr_t)rig->matrix.data);
    free(rig->values);
    for (size_t i = 0; i < 4; i++) guarded_destroy(&rig->plane[i]);
}
