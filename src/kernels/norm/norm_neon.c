#include "kernels/norm/norm_floats.h"

void norm_neon_install(struct norm_kernels *kernels) {
    kernels->rms = rms;
    kernels->layer = layer;
}
