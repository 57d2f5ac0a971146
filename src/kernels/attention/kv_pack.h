/* kv_pack: rows of a chunk as registers of eight floats. */
#pragma once

#include "kernels/attention/kv_layout.h"
#include "kernels/floats.h"
#include "tensor/half.h"

/* Elements d .. d + 7 of a row. */
FLOATS_INLINE floats8 element_load8(enum kv_type type, const uint8_t *row, const uint16_t *scales, size_t d) {
    if (type == KV_F16) return floats8_load_half(row + 2 * d);
    return floats8_scale(floats8_load_int8(row + d), half_to_float(scales[d / KV_SCALE_GROUP]));
}
