#include "kernels/mass/mass_internal.h"

void mass_kernels_init(struct mass_kernels *kernels, cpu_mask mask) {
    mass_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) mass_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) mass_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) mass_neon_install(kernels);
#endif
    (void)mask;
}
