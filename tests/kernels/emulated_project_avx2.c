#define LOAM_SIMDE
#define project_avx512_install emulated_project_avx512_install
#include "kernels/project/project_avx512.c"
#include "selection_emulated.h"
