#define LOAM_SIMDE
#define mass_avx512_install emulated_mass_avx512_install
#include "kernels/mass/mass_avx512.c"
#include "selection_emulated.h"
