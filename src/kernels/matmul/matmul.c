#include "kernels/matmul/matmul.h"

#include <string.h>

#include "kernels/matmul/matmul_internal.h"

void matmul_kernels_init(struct matmul_kernels *kernels, cpu_mask mask) {
    memset(kernels, 0, sizeof *kernels);
    matmul_reference_init(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) {
        matmul_int8_avx2_init(kernels);
        matmul_float_avx2_init(kernels);
    }
    if ((mask & CPU_AVX512) != 0) {
        matmul_int8_avx512_init(kernels);
        matmul_float_avx512_init(kernels);
    }
    if ((mask & CPU_AMX) != 0) {
        memcpy(kernels->few, kernels->method, sizeof kernels->few);
        matmul_amx_init(kernels);
    }
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) matmul_float_neon_init(kernels);
#else
    (void)mask;
#endif
}
