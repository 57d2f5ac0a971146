#include "kernels/recurrence/recurrence_internal.h"

void recurrence_kernels_init(struct recurrence_kernels *kernels, cpu_mask mask) {
    recurrence_ref_install(kernels);
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) recurrence_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) recurrence_avx512_install(kernels);
#endif
    (void)mask;
}
