#include "kernels/project/project_internal.h"

void project_kernels_init(struct project_kernels *kernels, cpu_mask mask) {
    project_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) project_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) project_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) project_neon_install(kernels);
#endif
    (void)mask;
}
