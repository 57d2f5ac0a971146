#define LOAM_SIMDE
#define matmul_int8_avx512_install emulated_int8_avx512_install
#include "kernels/matmul/matmul_int8_avx512.c"
#include "matmul_emulated.h"
