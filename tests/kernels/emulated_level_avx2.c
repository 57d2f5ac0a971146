#define LOAM_SIMDE
#define level_avx512_install emulated_level_avx512_install
#include "kernels/level/level_avx512.c"
#include "selection_emulated.h"
