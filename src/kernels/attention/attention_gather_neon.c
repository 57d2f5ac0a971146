#include "kernels/attention/gather_floats.h"

void attention_gather_neon_install(struct attention_kernels *kernels) {
    kernels->gather = gather_floats;
    kernels->gather_scratch_bytes = gather_scratch_bytes;
}
