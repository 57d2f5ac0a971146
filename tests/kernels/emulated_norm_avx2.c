#define LOAM_SIMDE
#define norm_avx512_install emulated_norm_avx512_install
#include "kernels/norm/norm.h"

void emulated_norm_avx512_install(struct norm_kernels *kernels);
#include "kernels/norm/norm_avx512.c"
