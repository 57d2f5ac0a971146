#include "kernels/matvec/q8_neon.h"

void matvec_q8_neon_install(struct matvec_kernels *kernels) { q8_install(kernels); }
