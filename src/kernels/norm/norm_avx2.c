#include "kernels/norm/norm_floats.h"

void norm_avx2_install(struct norm_kernels *kernels) {
    kernels->rms = rms;
    kernels->layer = layer;
}
