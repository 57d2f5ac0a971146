/* variants: how the table of an operation is filled: with its definition (NAME_ref.c), and over it with what each
 * instruction set does better.  kernels.c says which of them have what. */
#pragma once

#include "platform/cpu.h"

/* Who overwrites the entries of an operation that a part of it improves.  Not every part has all of them. */
#define KERNEL_VARIANTS(operation, part)                             \
    void part##_avx2_install(struct operation##_kernels *kernels);   \
    void part##_avx512_install(struct operation##_kernels *kernels); \
    void part##_neon_install(struct operation##_kernels *kernels)

/* An operation: NAME_kernels_init fills its table for the processors of a mask. */
#define KERNELS(operation)                                                             \
    void operation##_kernels_init(struct operation##_kernels *kernels, cpu_mask mask); \
    void operation##_ref_install(struct operation##_kernels *kernels);                 \
    KERNEL_VARIANTS(operation, operation)
