#define LOAM_SIMDE
#define activation_avx512_install emulated_activation_avx512_install
#include "kernels/activation/activation.h"

void emulated_activation_avx512_install(struct activation_kernels *kernels);
#include "kernels/activation/activation_avx512.c"
