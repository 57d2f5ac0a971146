#include "kernels/attention/gather_q4_floats.h"

void attention_gather_q4_avx2(const struct attention_gather_args *args) { gather_q4_floats(args); }

void attention_gather_q4_avx2_install(struct attention_kernels *kernels) {
    kernels->gather_q4 = gather_q4_floats;
    kernels->gather_q4_scratch_bytes = gather_q4_scratch_bytes;
}
