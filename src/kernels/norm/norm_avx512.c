#define FLOATS_512
#include "kernels/norm/norm_floats.h"

void norm_avx512_install(struct norm_kernels *kernels) {
    kernels->rms = rms;
    kernels->layer = layer;
}
