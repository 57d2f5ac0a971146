/* kernels_sm90a: the parameters of the kernels that an H100 or H200 alone has (kernels.h). */
#pragma once

#include "device/cuda/kernels.h"

/* A tensor as the card's engine for copies knows it (cuda_tensor_map). */
struct __attribute__((aligned(64))) tensor_map {
    uint64_t words[16];
};

/* matmul_wgmma_TYPE_ROWS: as matmul_TYPE, on cards of 9.0 alone, tiles of ROWS rows, 128 or 256.  Grid {as many blocks
 * as run at once, at most one a tile}, 384 threads; shared: matmul_wgmma_shared(ROWS).  x: the same memory as
 * matmul.x, [row_count][columns], boxes of MATMUL_COLUMNS x ROWS. */
struct cuda_matmul_wgmma_args {
    struct tensor_map x; /* first: the kernel finds it at the beginning of its arguments */
    struct cuda_matmul_args matmul;
};
enum { MATMUL_WGMMA_THREADS = 384 };
KERNELS_BOTH uint32_t matmul_wgmma_stages(uint32_t rows) { return rows == 256 ? 4 : 6; }
KERNELS_BOTH uint32_t matmul_wgmma_stage_bytes(uint32_t rows) { return (rows + MATMUL_OUTPUTS) * MATMUL_COLUMNS * 2; }
KERNELS_BOTH uint32_t matmul_wgmma_shared(uint32_t rows) { /* two barriers a stage */
    return matmul_wgmma_stages(rows) * (matmul_wgmma_stage_bytes(rows) + 2 * 8);
}

/* matmul_wgmma_experts_TYPE: as matmul_experts_TYPE, 384 threads, on cards of 9.0 alone. */
enum { MATMUL_EXPERT_ROWS_BYTES = MATMUL_ROWS * (int)sizeof(struct expert_row) };
KERNELS_BOTH uint32_t matmul_wgmma_experts_shared(void) {
    return matmul_wgmma_shared(MATMUL_ROWS) + MATMUL_EXPERT_ROWS_BYTES;
}

/* attention_prefill_wgmma_WIDTH: as attention_prefill, K and V of any type, without soft cap, on cards of 9.0 alone.
 * 384 threads; shared: prefill_wgmma_shared(WIDTH): queries, tiles of keys or values, two barriers a tile and one. */
enum { PREFILL_WGMMA_THREADS = 384, PREFILL_KEYS = PREFILL_QUERIES };
KERNELS_BOTH uint32_t prefill_wgmma_tiles(uint32_t width) { return 512 / width; }
KERNELS_BOTH uint32_t prefill_wgmma_shared(uint32_t width) {
    return (1 + prefill_wgmma_tiles(width)) * PREFILL_KEYS * width * 2 + (2 * prefill_wgmma_tiles(width) + 1) * 8;
}
