#include "kernels/top_k/top_k_internal.h"

void top_k_kernels_init(struct top_k_kernels *kernels, cpu_mask mask) {
    top_k_ref_install(kernels);
    (void)mask;
}
