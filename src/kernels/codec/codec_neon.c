#include <math.h>

#include "kernels/codec/codec_floats.h"

void codec_neon_install(struct codec_kernels *kernels) {
    kernels->q4_encode = q4_encode;
    kernels->q4_decode = q4_decode;
}
