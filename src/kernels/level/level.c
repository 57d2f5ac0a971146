#include "kernels/level/level_internal.h"

void level_kernels_init(struct level_kernels *kernels, cpu_mask mask) {
    level_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) level_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) level_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) level_neon_install(kernels);
#endif
    (void)mask;
}
