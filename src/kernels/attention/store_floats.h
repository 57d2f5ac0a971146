/* store: rows of K and V as halves, 8 at a time over `floats`; included by attention_store_avx2.c and _neon.c.  The
 * reference does it in integers, one element after the other: 3% of a prompt of 512 tokens of a model of 135M. */
#include "kernels/attention/attention_internal.h"
#include "kernels/floats.h"

static void store_halves(uint8_t *row, size_t dimension, const float *x) {
    for (size_t d = 0; d < dimension; d += FLOATS) floats_store_half(row + d * sizeof(uint16_t), floats_load(x + d));
}

static void store_floats(const struct kv_layout *layout, void *chunk, size_t token, const float *k, const float *v) {
    if (layout->k_type != KV_F16 || layout->v_type != KV_F16) {
        attention_store_ref(layout, chunk, token, k, v);
        return;
    }
    store_halves((uint8_t *)kv_k_row(layout, chunk, token), layout->k_dimension, k);
    store_halves((uint8_t *)kv_v_row(layout, chunk, token), layout->v_dimension, v);
}

FLOATS_INSTALL(attention, attention_store) { kernels->store = store_floats; }
