#define FLOATS_512
#include "kernels/mass/mass_floats.h"

void mass_avx512_install(struct mass_kernels *kernels) { kernels->add = mass_add; }
