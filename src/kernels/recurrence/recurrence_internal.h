#ifndef LOAM_KERNELS_RECURRENCE_INTERNAL_H
#define LOAM_KERNELS_RECURRENCE_INTERNAL_H

#include "kernels/recurrence/recurrence.h"

void recurrence_ref_install(struct recurrence_kernels *kernels);
void recurrence_avx2_install(struct recurrence_kernels *kernels);
void recurrence_avx512_install(struct recurrence_kernels *kernels);

#endif
