#define LOAM_SIMDE
#define abstract_avx512_install emulated_abstract_avx512_install
#define score_avx512_install    emulated_score_avx512_install
#include "selection_emulated.h"

#include "kernels/abstract/abstract_avx512.c"
#include "kernels/score/score_avx512.c"
