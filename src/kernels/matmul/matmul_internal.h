/* What the variants of matmul share. */
#ifndef LOAM_KERNELS_MATMUL_INTERNAL_H
#define LOAM_KERNELS_MATMUL_INTERNAL_H

#include "kernels/matmul/matmul.h"

/* The forms of a prepared input; a number is never used for two layouts. */
enum matmul_form {
    MATMUL_FORM_F32, /* the reference: rows of floats as they came */
};

/* Each fills the methods that it has and leaves the others alone. */
void matmul_reference_init(struct matmul_kernels *kernels);

#endif
