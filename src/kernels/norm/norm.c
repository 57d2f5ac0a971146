#include "kernels/norm/norm_internal.h"

void norm_kernels_init(struct norm_kernels *kernels, cpu_mask mask) {
    norm_ref_install(kernels);
    (void)mask;
}
