#include "kernels/score/score_internal.h"

void score_kernels_init(struct score_kernels *kernels, cpu_mask mask) {
    score_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) score_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) score_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) score_neon_install(kernels);
#endif
    (void)mask;
}
