#define LOAM_SIMDE
#define group_avx512_install emulated_group_avx512_install
#include "kernels/group/group_avx512.c"
#include "selection_emulated.h"
