#include "kernels/matvec/q8_neon.h"

void matvec_init_q8_neon(struct matvec_kernels *kernels) { q8_install(kernels); }
