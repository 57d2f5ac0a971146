#include "kernels/matvec/matvec.h"

#include <string.h>

#include "kernels/matvec/matvec_internal.h"

void matvec_kernels_init(struct matvec_kernels *kernels, cpu_mask mask) {
    memset(kernels, 0, sizeof *kernels);
    matvec_init_ref(kernels);
#if defined(__x86_64__)
    if (mask & CPU_AVX2) {
        matvec_init_prepare_avx2(kernels);
        matvec_init_plain_avx2(kernels);
        matvec_init_q8_32_avx2(kernels);
        matvec_init_q8_256_avx2(kernels);
        matvec_init_grid_avx2(kernels);
    }
    if (mask & CPU_AVX512) {
        matvec_init_q8_32_avx512(kernels);
        matvec_init_q45_k_avx512(kernels);
        matvec_init_q6_k_avx512(kernels);
    }
#elif defined(__aarch64__)
    if (mask & CPU_NEON) {
        matvec_init_plain_neon(kernels);
        matvec_init_q8_neon(kernels);
    }
    if (mask & CPU_DOTPROD) matvec_init_q8_dotprod(kernels);
#else
    (void)mask;
#endif
}
