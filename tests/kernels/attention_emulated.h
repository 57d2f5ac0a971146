/* attention_emulated: the AVX-512 attention sources compiled on SIMDe, and the AMX one on
 * amx_emulation.h, for machines without them. */
#pragma once

#include "kernels/attention/attention.h"

void emulated_decode_avx512_install(struct attention_kernels *kernels);
void emulated_prefill_avx512_install(struct attention_kernels *kernels);
void emulated_prefill_amx_install(struct attention_kernels *kernels);
