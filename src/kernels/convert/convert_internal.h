/* The tables of convert, one filler per file.  Each overwrites the entries that it improves. */
#pragma once

#include "kernels/convert/convert.h"

void convert_init_dequantize_ref(struct convert_kernels *kernels);
void convert_init_avx2(struct convert_kernels *kernels);
