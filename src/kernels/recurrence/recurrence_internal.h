#pragma once

#include "kernels/recurrence/recurrence.h"

void recurrence_ref_install(struct recurrence_kernels *kernels);
void recurrence_avx2_install(struct recurrence_kernels *kernels);
void recurrence_avx512_install(struct recurrence_kernels *kernels);
