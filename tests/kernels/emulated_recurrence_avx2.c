#define LOAM_SIMDE
#define recurrence_avx512_install emulated_recurrence_avx512_install
#include "kernels/recurrence/recurrence.h"

void emulated_recurrence_avx512_install(struct recurrence_kernels *kernels);
#include "kernels/recurrence/recurrence_avx512.c"
