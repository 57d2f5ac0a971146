#define LOAM_SIMDE
#define matvec_init_q8_32_avx512 emulated_matvec_init_q8_32_avx512
#include "kernels/matvec/matvec_q8_32_avx512.c"
#include "matvec_emulated.h"
