#include "kernels/norm/norm_internal.h"

void norm_kernels_init(struct norm_kernels *kernels, cpu_mask mask) {
    norm_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) norm_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) norm_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) norm_neon_install(kernels);
#endif
    (void)mask;
}
