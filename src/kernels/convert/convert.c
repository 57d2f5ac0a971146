#include "kernels/convert/convert.h"

#include <string.h>

#include "kernels/convert/convert_internal.h"

void convert_kernels_init(struct convert_kernels *kernels, cpu_mask mask) {
    memset(kernels, 0, sizeof *kernels);
    convert_init_dequantize_ref(kernels);
#if defined(__x86_64__)
    if (mask & CPU_AVX2) convert_init_avx2(kernels);
#else
    (void)mask;
#endif
}
