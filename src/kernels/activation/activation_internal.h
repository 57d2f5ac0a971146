#pragma once

#include "kernels/activation/activation.h"

/* Of swiglu_clamped. */
#define SWIGLU_LIMIT 7.0
#define SWIGLU_SLOPE 1.702

/* Each overwrites the entries that it improves. */
void activation_ref_install(struct activation_kernels *kernels);
void activation_avx512_install(struct activation_kernels *kernels);
void activation_avx2_install(struct activation_kernels *kernels);
void activation_neon_install(struct activation_kernels *kernels);
