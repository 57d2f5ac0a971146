/* quantizers: rows of floats in an element type, the nearest representable, by the rounding rules of the GGUF types
 * (error bounds in tests/lab/quantize/test_quantizers.c). */
#pragma once

#include <stddef.h>

#include "tensor/type.h"

/* target: one row of `count` elements of the type; count a multiple of the type's block */
typedef void row_quantizer(const float *source, void *target, size_t count);

/* NULL: a type that is only read. */
row_quantizer *row_quantizer_of(enum tensor_type type);
/* ... of those with blocks of 256 values. */
row_quantizer *row_quantizer_of_256(enum tensor_type type);
