#define FLOATS_512
#include "kernels/attention/gather_floats.h"

static void gather(const struct attention_gather_args *args) {
    if (args->layout->k_dimension % FLOATS == 0 && args->layout->v_dimension % FLOATS == 0)
        gather_floats(args);
    else
        attention_gather_avx2(args);
}

void attention_gather_avx512_install(struct attention_kernels *kernels) {
    kernels->gather = gather;
    kernels->gather_scratch_bytes = gather_scratch_bytes;
}
