/* What the variants of matmul share. */
#pragma once

#include "kernels/matmul/matmul.h"

/* The forms of a prepared input.  A number always means the same layout. */
enum matmul_form {
    MATMUL_FORM_F32,       /* the reference: rows of floats, unchanged */
    MATMUL_FORM_F32_TILES, /* floats, the inputs of a tile side by side */
    MATMUL_FORM_I8_PAIRS,  /* struct code_input */
    MATMUL_FORM_I8_TOTALS, /* the same with totals for pairs */
    MATMUL_FORM_I16,       /* int16 values of a block of 32, the scales behind them */
    MATMUL_FORM_BF16,      /* tiles of 16 inputs, bf16 */
    MATMUL_FORM_BF16_TWICE /* the same, each value as the sum of two bf16 */
};

KERNEL_VARIANTS(matmul, matmul_float);
KERNEL_VARIANTS(matmul, matmul_int8);
void matmul_amx_install(struct matmul_kernels *kernels);
