#include "kernels/attention/decode_floats.h"

void attention_decode_avx2(const struct attention_decode_args *args) { decode_floats(args); }

void attention_decode_avx2_install(struct attention_kernels *kernels) {
    kernels->decode = decode_floats;
    kernels->decode_scratch_bytes = decode_scratch_bytes;
    kernels->merge = merge_floats;
}
