/* codec on AVX-512: dimensions that are multiples of 16, as those of models are; others as on AVX2. */
#define FLOATS_512
#include <math.h>

#include "kernels/codec/codec_floats.h"

static void encode_any(const struct kv_layout *layout, const void *chunk, void *q4) {
    if (layout->k_dimension % FLOATS == 0 && layout->v_dimension % FLOATS == 0) {
        q4_encode(layout, chunk, q4);
        return;
    }
    struct codec_kernels kernels;
    codec_avx2_install(&kernels);
    kernels.q4_encode(layout, chunk, q4);
}

static void decode_any(const struct kv_layout *layout, const void *q4, void *chunk) {
    if (layout->k_dimension % FLOATS == 0 && layout->v_dimension % FLOATS == 0) {
        q4_decode(layout, q4, chunk);
        return;
    }
    struct codec_kernels kernels;
    codec_avx2_install(&kernels);
    kernels.q4_decode(layout, q4, chunk);
}

void codec_avx512_install(struct codec_kernels *kernels) {
    kernels->q4_encode = encode_any;
    kernels->q4_decode = decode_any;
}
