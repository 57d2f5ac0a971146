#include "kernels/recurrence/recurrence_floats.h"

void recurrence_avx2_install(struct recurrence_kernels *kernels) { install(kernels); }
