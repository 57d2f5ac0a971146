#define LOAM_SIMDE
#define attention_gather_q4_avx512_install emulated_gather_q4_avx512_install
#include "kernels/attention/attention_gather_q4_avx512.c"
#include "selection_emulated.h"
