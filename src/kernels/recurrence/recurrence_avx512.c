#define FLOATS_512
#include "kernels/recurrence/recurrence_floats.h"

void recurrence_avx512_install(struct recurrence_kernels *kernels) { install(kernels); }
