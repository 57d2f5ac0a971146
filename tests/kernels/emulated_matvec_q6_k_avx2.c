#define LOAM_SIMDE
#define matvec_q6_k_avx512_install emulated_q6_k_avx512_install
#include "kernels/matvec/matvec_q6_k_avx512.c"
#include "matvec_emulated.h"
