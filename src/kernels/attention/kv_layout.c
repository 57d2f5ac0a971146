#include "kernels/attention/kv_layout.h"

#include "base/assert.h"
#include "base/checked.h"

static size_t row_bytes(enum kv_type type, size_t dimension) {
    ASSERT(dimension > 0 && dimension % (type == KV_Q8 ? KV_SCALE_GROUP : 8) == 0);
    return type == KV_Q8 ? dimension : dimension * sizeof(uint16_t);
}

static size_t scale_bytes(enum kv_type type, size_t dimension) {
    return type == KV_Q8 ? KV_BLOCK_TOKENS * (dimension / KV_SCALE_GROUP) * sizeof(uint16_t) : 0;
}

void kv_layout_init(struct kv_layout *layout, enum kv_type k_type, enum kv_type v_type, size_t k_dimension,
                    size_t v_dimension) {
    layout->k_type = k_type;
    layout->v_type = v_type;
    layout->k_dimension = k_dimension;
    layout->v_dimension = v_dimension;
    layout->k_row_bytes = row_bytes(k_type, k_dimension);
    layout->v_row_bytes = row_bytes(v_type, v_dimension);
    layout->k_scales_offset = KV_BLOCK_TOKENS * layout->k_row_bytes;
    layout->v_offset = layout->k_scales_offset + scale_bytes(k_type, k_dimension);
    layout->v_scales_offset = layout->v_offset + KV_BLOCK_TOKENS * layout->v_row_bytes;
    layout->block_bytes = align_up(layout->v_scales_offset + scale_bytes(v_type, v_dimension), 64);
    layout->chunk_bytes = KV_CHUNK_BLOCKS * layout->block_bytes;
}
