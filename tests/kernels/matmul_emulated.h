/* matmul_emulated: the AVX-512 and AMX matmul sources, compiled on emulated instructions. */
#pragma once

#include "kernels/matmul/matmul.h"

void emulated_int8_avx512_install(struct matmul_kernels *kernels);
void emulated_float_avx512_install(struct matmul_kernels *kernels);
void emulated_amx_install(struct matmul_kernels *kernels);
