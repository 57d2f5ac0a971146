#define LOAM_SIMDE
#define matvec_q8_32_avx512_install emulated_q8_32_avx512_install
#include "kernels/matvec/matvec_q8_32_avx512.c"
#include "matvec_emulated.h"
