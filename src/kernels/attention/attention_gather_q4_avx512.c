#define FLOATS_512
#include "kernels/attention/gather_q4_floats.h"

static void gather_q4(const struct attention_gather_args *args) {
    if (args->layout->k_dimension % FLOATS == 0 && args->layout->v_dimension % FLOATS == 0)
        gather_q4_floats(args);
    else
        attention_gather_q4_avx2(args);
}

void attention_gather_q4_avx512_install(struct attention_kernels *kernels) {
    kernels->gather_q4 = gather_q4;
    kernels->gather_q4_scratch_bytes = gather_q4_scratch_bytes;
}
