/* cuda_rows_attend: how rows are attended to by ranges, for cuda_attend.c and cuda_select.c. */
#pragma once

#include "device/cuda/cuda_device_internal.h"

enum { PARTIAL_BYTES = 32 << 20 /* of the partials of as many rows as are attended to at once */ };

/* Pieces of a row, heads of a group at once, and how often. */
struct attend_kernel {
    char name[CUDA_KERNEL_NAME_MAX];
    uint32_t lanes, heads, passes;
};
/* what: "decode" or "list"; types: of the cache, "f16" or "any", of lists also "q4". */
struct attend_kernel attend_kernel_of(const char *what, const char *types, const struct kv_layout *layout,
                                      uint32_t group);
const char *attend_types(const struct kv_layout *layout);
struct cuda_shape attend_shape(const struct attend_kernel *kernel, uint32_t kv_head_count, uint32_t rows);
/* Of a row. */
size_t attend_partial_bytes(const struct kv_layout *layout, size_t head_count);
