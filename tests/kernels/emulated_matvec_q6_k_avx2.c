#define LOAM_SIMDE
#define matvec_init_q6_k_avx512 emulated_matvec_init_q6_k_avx512
#include "kernels/matvec/matvec_q6_k_avx512.c"
#include "matvec_emulated.h"
