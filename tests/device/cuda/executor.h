/* executor: runs the kernels of src/device/cuda on the host, where a debugger, a sanitizer and a seed can
 * reach them.
 *
 * The same source that clang makes PTX of is compiled by the host's compiler against executor_dialect.h.  The
 * threads of a block are fibres of one thread of the host; which one runs next, and which block, the seed
 * decides.  What a warp does together happens when all 32 lanes have come to the same line.  A block's shared
 * memory is filled with NaN before it and followed by a page that may not be touched; a copy_async lands
 * anywhere between its issue and its wait, and so do the bytes of a tile, and what wgmma reads, which sees the stores
 * of a thread behind its async_fence alone.  Under ThreadSanitizer each fibre counts as a thread of its own: a race
 * within a block is named by its line.
 *
 * What ends the program with one line on stderr: lanes of a warp that diverge, threads that wait for each
 * other for ever, a shared struct larger than the launch gave, a barrier or a product that is used against its rules,
 * kernel_fault. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct executor_kernel {
    const char *name;
    void (*run)(const void *args); /* of one thread */
    size_t args_bytes;
    uint32_t threads; /* of a block, at most: its launch bound */
};

/* NULL: there is no such kernel. */
const struct executor_kernel *executor_find(const char *name);
/* In the order of their names; NULL behind the last. */
const struct executor_kernel *executor_kernel_at(size_t index);

/* Runs the whole grid; returns when it is done.  Launches from several threads of the host may go on side by side. */
void executor_launch(const struct executor_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                     size_t shared_bytes, const void *args, uint64_t seed);

/* A kernel that is launched as a programmatic dependent may be under way before what precedes it is complete:
 * the next launch of this thread runs `work` when no thread of its first block can go on without it, or at its
 * end. */
void executor_precede(void (*work)(void *context), void *context);

/* What a tensor map is here, in place of the driver's 128 bytes that nobody else knows: of two dimensions. */
struct executor_tensor {
    uint64_t mark, address, columns, rows, stride_bytes;
    uint32_t box_columns, box_rows, element_bytes, swizzle_bytes; /* 0: none */
};
#define EXECUTOR_TENSOR_MARK 0x7465736e6f72306dull

/* As cuda_tensor_map (buffer.h): 128 bytes at a multiple of 64. */
void executor_tensor_map(void *map, const void *halves, uint32_t columns, uint32_t rows, uint32_t box_rows);

#ifdef __cplusplus
}
#endif
