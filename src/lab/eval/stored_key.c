#include "lab/eval/stored_key.h"

#include <string.h>

#include "tensor/half.h"

void stored_key_read(const struct kv_layout *layout, const void *chunk, size_t token, float *key) {
    const uint8_t *row = kv_k_row(layout, chunk, token);
    if (layout->k_type == KV_F16) {
        for (size_t i = 0; i < layout->k_dimension; i++) {
            uint16_t half;
            memcpy(&half, row + 2 * i, sizeof half);
            key[i] = half_to_float(half);
        }
        return;
    }
    const uint8_t *scales = kv_block(layout, chunk, token) + layout->k_scales_offset +
                            token % KV_BLOCK_TOKENS * (layout->k_dimension / KV_SCALE_GROUP) * sizeof(uint16_t);
    for (size_t i = 0; i < layout->k_dimension; i++) {
        uint16_t half;
        memcpy(&half, scales + i / KV_SCALE_GROUP * sizeof half, sizeof half);
        key[i] = half_to_float(half) * (float)(int8_t)row[i];
    }
}
