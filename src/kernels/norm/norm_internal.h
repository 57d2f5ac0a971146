#pragma once

#include "kernels/norm/norm.h"

/* Each overwrites the entries that it improves. */
void norm_ref_install(struct norm_kernels *kernels);
void norm_avx512_install(struct norm_kernels *kernels);
void norm_avx2_install(struct norm_kernels *kernels);
void norm_neon_install(struct norm_kernels *kernels);
