#include "kernels/top_k/top_k_internal.h"

void top_k_kernels_init(struct top_k_kernels *kernels, cpu_mask mask) {
    top_k_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) top_k_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) top_k_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) top_k_neon_install(kernels);
#endif
    (void)mask;
}
