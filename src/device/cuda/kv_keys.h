/* kv_keys: stored keys as floats, for key indexes. */
#pragma once

#include "device/cuda/kv_places.h"

/* Element i of the key of a token of a block of 8. */
DEVICE float key_element(const struct kv_shape &shape, const char *block, uint32_t in_block, uint32_t i) {
    const char *row = block + in_block * shape.k_row_bytes;
    if (shape.k_type == KV_F16) return half_value(((const uint16_t *)(const void *)row)[i]);
    const uint16_t *scales = (const uint16_t *)(const void *)(block + shape.k_scales_offset);
    return half_value(scales[in_block * (shape.k_dimension / 32) + i / 32]) * (float)((const int8_t *)row)[i];
}
