#define LOAM_SIMDE
#define matmul_int8_avx512_init emulated_int8_avx512_init
#include "kernels/matmul/matmul_int8_avx512.c"
#include "matmul_emulated.h"
