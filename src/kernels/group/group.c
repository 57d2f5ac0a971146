#include "kernels/group/group_internal.h"

void group_kernels_init(struct group_kernels *kernels, cpu_mask mask) {
    group_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) group_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) group_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) group_neon_install(kernels);
#endif
    (void)mask;
}
