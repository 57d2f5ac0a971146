#define LOAM_SIMDE
#define score_avx512_install emulated_score_avx512_install
#include "kernels/score/score_avx512.c"
#include "selection_emulated.h"
