/* matvec_emulated: the AVX-512 sources of matvec compiled on SIMDe, for machines without AVX-512. */
#pragma once

#include "kernels/matvec/matvec.h"

void emulated_q8_32_avx512_install(struct matvec_kernels *kernels);
void emulated_q45_k_avx512_install(struct matvec_kernels *kernels);
void emulated_q6_k_avx512_install(struct matvec_kernels *kernels);
