#include "kernels/matmul/matmul.h"

#include <string.h>

#include "kernels/matmul/matmul_internal.h"

void matmul_kernels_init(struct matmul_kernels *kernels, cpu_mask mask) {
    memset(kernels, 0, sizeof *kernels);
    matmul_reference_init(kernels);
    (void)mask;
}
