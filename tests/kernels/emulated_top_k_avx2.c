#define LOAM_SIMDE
#define top_k_avx512_install emulated_top_k_avx512_install
#include "kernels/top_k/top_k_avx512.c"
#include "selection_emulated.h"
