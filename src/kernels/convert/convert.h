/* convert: rows between float and every element type.
 *
 * dequantize: y[i] = the value of element i.  quantize: the nearest representable row, by
 * the rounding rules of the GGUF types (error bounds in tests/kernels/test_convert.c).
 */
#ifndef LOAM_KERNELS_CONVERT_H
#define LOAM_KERNELS_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "platform/cpu.h"
#include "tensor/type.h"

enum { CONVERT_TYPES = TENSOR_TYPES }; /* indexed by enum tensor_type; NULL where there is no such type */

struct convert_kernels {
    /* source: one row of `count` elements of the type; count a multiple of the type's block */
    void (*dequantize[CONVERT_TYPES])(const void *source, float *target, size_t count);
    void (*quantize[CONVERT_TYPES])(const float *source, void *target, size_t count);
};

void convert_kernels_init(struct convert_kernels *kernels, cpu_mask mask);

#endif
