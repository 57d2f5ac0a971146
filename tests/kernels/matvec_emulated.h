/* matvec_emulated: the AVX-512 sources of matvec compiled on SIMDe, for machines without AVX-512. */
#pragma once

#include "kernels/matvec/matvec.h"

void emulated_matvec_init_q8_32_avx512(struct matvec_kernels *kernels);
void emulated_matvec_init_q45_k_avx512(struct matvec_kernels *kernels);
void emulated_matvec_init_q6_k_avx512(struct matvec_kernels *kernels);
