#include "kernels/attention/gather_floats.h"

void attention_gather_avx2(const struct attention_gather_args *args) { gather_floats(args); }

void attention_gather_avx2_install(struct attention_kernels *kernels) {
    kernels->gather = gather_floats;
    kernels->gather_scratch_bytes = gather_scratch_bytes;
}
