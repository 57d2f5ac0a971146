#include "kernels/activation/activation_internal.h"

void activation_kernels_init(struct activation_kernels *kernels, cpu_mask mask) {
    activation_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) activation_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) activation_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) activation_neon_install(kernels);
#endif
    (void)mask;
}
