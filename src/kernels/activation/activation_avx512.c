#define FLOATS_512
#include "kernels/activation/activation_floats.h"

void activation_avx512_install(struct activation_kernels *kernels) {
    kernels->silu_multiply = silu_multiply;
    kernels->swiglu_clamped = swiglu_clamped;
    kernels->relu = relu;
    kernels->gelu_multiply = gelu_multiply;
    kernels->softcap = softcap;
    kernels->add = add;
    kernels->softmax = softmax;
}
