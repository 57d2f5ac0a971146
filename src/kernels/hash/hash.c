#include "kernels/hash/hash_internal.h"

void hash_kernels_init(struct hash_kernels *kernels, cpu_mask mask) {
    hash_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) hash_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) hash_avx512_install(kernels);
    if ((mask & CPU_AVX512) != 0 && (mask & CPU_VPOPCNTDQ) != 0) hash_avx512popcnt_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) hash_neon_install(kernels);
#endif
    (void)mask;
}
