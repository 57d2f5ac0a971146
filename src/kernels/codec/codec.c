#include "kernels/codec/codec_internal.h"

size_t kv_q4_chunk_bytes(const struct kv_layout *layout) { return q4_parts_of(layout).bytes; }

void codec_kernels_init(struct codec_kernels *kernels, cpu_mask mask) {
    codec_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) codec_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) codec_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) codec_neon_install(kernels);
#endif
    (void)mask;
}
