/* kv_layout: where the rows of a chunk are.
 *
 * A chunk is 64 consecutive tokens of one KV head of one layer: 8 blocks, each 8 tokens' K rows, then
 * their V rows (at head_dim 128 in f16 a block is exactly 4 KiB, the smallest unit read from
 * disk).  The same bytes lie in GPU memory, RAM and on disk, so that a read lands where attention
 * reads it.  Row t of a chunk: block t / 8, row t % 8 in it.
 *
 *   F16  a row is dimension halves
 *   Q8   a row is dimension int8, and the block's rows are followed by their scales: one half per
 *        32 elements, [8][dimension / 32]; value = scale * q
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_CHUNK_TOKENS = 64, KV_BLOCK_TOKENS = 8, KV_CHUNK_BLOCKS = 8, KV_SCALE_GROUP = 32 };

enum kv_type { KV_F16, KV_Q8 };

struct kv_layout {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension;                   /* elements of a row; multiples of 32 for Q8, of 8 for F16 */
    size_t k_row_bytes, v_row_bytes;                   /* without scales */
    size_t k_scales_offset, v_offset, v_scales_offset; /* from the start of a block; K rows are at 0 */
    size_t block_bytes;                                /* a multiple of 64 */
    size_t chunk_bytes;                                /* 8 blocks */
};

void kv_layout_init(struct kv_layout *layout, enum kv_type k_type, enum kv_type v_type, size_t k_dimension,
                    size_t v_dimension);

/* Rows of K and V are multiples of so many elements. */
static inline bool kv_rows_fill(const struct kv_layout *layout, size_t elements) {
    return layout->k_dimension % elements == 0 && layout->v_dimension % elements == 0;
}
static inline const uint8_t *kv_block(const struct kv_layout *layout, const void *chunk, size_t token) {
    return (const uint8_t *)chunk + token / KV_BLOCK_TOKENS * layout->block_bytes;
}
static inline const uint8_t *kv_k_row(const struct kv_layout *layout, const void *chunk, size_t token) {
    return kv_block(layout, chunk, token) + token % KV_BLOCK_TOKENS * layout->k_row_bytes;
}
static inline const uint8_t *kv_v_row(const struct kv_layout *layout, const void *chunk, size_t token) {
    return kv_block(layout, chunk, token) + layout->v_offset + token % KV_BLOCK_TOKENS * layout->v_row_bytes;
}
