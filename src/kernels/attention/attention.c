#include "kernels/attention/attention_internal.h"

void attention_kernels_init(struct attention_kernels *kernels, cpu_mask mask) {
    attention_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) {
        attention_store_avx2_install(kernels);
        attention_decode_avx2_install(kernels);
        attention_prefill_avx2_install(kernels);
        attention_gather_avx2_install(kernels);
        attention_gather_q4_avx2_install(kernels);
    }
    if ((mask & CPU_AVX512) != 0) {
        attention_decode_avx512_install(kernels);
        attention_prefill_avx512_install(kernels);
        attention_gather_avx512_install(kernels);
        attention_gather_q4_avx512_install(kernels);
    }
    if ((mask & CPU_AMX) != 0) attention_prefill_amx_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) {
        attention_store_neon_install(kernels);
        attention_decode_neon_install(kernels);
        attention_prefill_neon_install(kernels);
        attention_gather_neon_install(kernels);
        attention_gather_q4_neon_install(kernels);
    }
#endif
    (void)mask;
}
