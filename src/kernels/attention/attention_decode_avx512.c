#define FLOATS_512
#include "kernels/attention/decode_floats.h"

static void decode(const struct attention_decode_args *args) {
    if (args->layout->k_dimension % FLOATS == 0 && args->layout->v_dimension % FLOATS == 0)
        decode_floats(args);
    else
        attention_decode_avx2(args);
}

void attention_decode_avx512_install(struct attention_kernels *kernels) {
    kernels->decode = decode;
    kernels->decode_scratch_bytes = decode_scratch_bytes;
    kernels->merge = merge_floats;
}
