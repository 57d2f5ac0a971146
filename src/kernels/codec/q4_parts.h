/* q4_parts: offsets of the parts of a chunk's 4-bit form (codec.h), for code that reads it without decoding it. */
#pragma once

#include "kernels/codec/codec.h"

#define Q4_FIFTEENTH 0x1.111114p-4f /* fma(15, (M - m) * this, m) >= M whatever was rounded */
enum { Q4_NAN = 0x7e00 };

/* Where the parts of a 4-bit chunk are. */
struct q4_parts {
    size_t k_dimension, v_dimension, groups; /* of a V row */
    size_t k_low, k_high, v_low, v_high;     /* bytes from the start: halves */
    size_t k_codes, v_codes, bytes;
};

static inline struct q4_parts q4_parts_of(const struct kv_layout *layout) {
    const size_t k = layout->k_dimension, v = layout->v_dimension;
    struct q4_parts parts = {.k_dimension = k, .v_dimension = v, .groups = (v + Q4_V_GROUP - 1) / Q4_V_GROUP};
    parts.k_high = k * sizeof(uint16_t);
    parts.v_low = parts.k_high + k * sizeof(uint16_t);
    parts.v_high = parts.v_low + KV_CHUNK_TOKENS * parts.groups * sizeof(uint16_t);
    parts.k_codes = parts.v_high + KV_CHUNK_TOKENS * parts.groups * sizeof(uint16_t);
    parts.v_codes = parts.k_codes + KV_CHUNK_TOKENS / 2 * k;
    parts.bytes = parts.v_codes + KV_CHUNK_TOKENS / 2 * v;
    return parts;
}
