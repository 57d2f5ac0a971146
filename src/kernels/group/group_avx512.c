#define FLOATS_512
#include "kernels/group/group_floats.h"

void group_avx512_install(struct group_kernels *kernels) {
    *kernels = (struct group_kernels){.softmax = group_softmax, .best = group_best};
}
