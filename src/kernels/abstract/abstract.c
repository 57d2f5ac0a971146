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
