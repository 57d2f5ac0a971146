/* convert: rows of every element type as floats: y[i] = the value of element i. */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"
#include "tensor/type.h"

enum { CONVERT_TYPES = TENSOR_TYPES }; /* indexed by enum tensor_type; NULL where there is no such type */

struct convert_kernels {
    /* source: one row of `count` elements of the type; count a multiple of the type's block */
    void (*dequantize[CONVERT_TYPES])(const void *source, float *target, size_t count);
};

KERNELS(convert);
