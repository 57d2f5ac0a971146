/* codec_internal: what the variants of codec share. */
#pragma once

#include "base/assert.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/q4_parts.h"

/* Rows are f16 where these are used. */
static inline const uint16_t *q4_k_row(const struct kv_layout *layout, const void *chunk, size_t token) {
    return (const uint16_t *)(const void *)kv_k_row(layout, chunk, token);
}
static inline const uint16_t *q4_v_row(const struct kv_layout *layout, const void *chunk, size_t token) {
    return (const uint16_t *)(const void *)kv_v_row(layout, chunk, token);
}
