#define LOAM_SIMDE
#define matmul_float_avx512_install emulated_float_avx512_install
#include "kernels/matmul/matmul_float_avx512.c"
#include "matmul_emulated.h"
