#include "kernels/rope/rope_internal.h"

void rope_kernels_init(struct rope_kernels *kernels, cpu_mask mask) {
    rope_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) rope_avx2_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) rope_neon_install(kernels);
#endif
    (void)mask;
}
