
#include "base/assert.h"
#include "base/checked.h"
#include "kernels/abstract/abstract_internal.h"

void abstract_layout_init(struct abstract_layout *layout, size_t page_tokens, size_t dimension, bool min_max,
                          bool mean_deviation) {
    ASSERT(page_tokens == 8 || page_tokens == 16 || page_tokens == 32 || page_tokens == KV_CHUNK_TOKENS);
    ASSERT(dimension > 0 && dimension % 8 == 0 && (min_max || mean_deviation));
    *layout = (struct abstract_layout){
        .page_tokens = page_tokens, .chunk_pages = KV_CHUNK_TOKENS / page_tokens, .dimension = dimension};
    size_t kind_bytes = layout->chunk_pages * 2 * dimension * sizeof(uint16_t);
    layout->has[ABSTRACT_MIN_MAX] = min_max;
    layout->has[ABSTRACT_MEAN_DEVIATION] = mean_deviation;
    for (size_t kind = 0; kind < ABSTRACT_KIND_COUNT; kind++) {
        if (!layout->has[kind]) continue;
        layout->offset[kind] = layout->bytes;
        layout->bytes += align_up(kind_bytes, 64);
    }
}

static size_t score_scratch_bytes(const struct abstract_layout *layout, size_t group) {
    return (group + 1) * 2 * layout->dimension * sizeof(float);
}

void abstract_kernels_init(struct abstract_kernels *kernels, cpu_mask mask) {
    abstract_ref_install(kernels);
    kernels->score_scratch_bytes = score_scratch_bytes;
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) abstract_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) abstract_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) abstract_neon_install(kernels);
#endif
    (void)mask;
}
