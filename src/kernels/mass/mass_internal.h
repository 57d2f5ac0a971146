/* mass_internal: what the variants of mass share. */
#pragma once

#include "kernels/mass/mass.h"

/* Each overwrites the entries that it improves. */
void mass_ref_install(struct mass_kernels *kernels);
void mass_avx2_install(struct mass_kernels *kernels);
void mass_avx512_install(struct mass_kernels *kernels);
void mass_neon_install(struct mass_kernels *kernels);
