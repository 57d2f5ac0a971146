#pragma once

#include "kernels/rope/rope.h"

/* Each overwrites the entries that it improves. */
void rope_ref_install(struct rope_kernels *kernels);
void rope_avx2_install(struct rope_kernels *kernels);
void rope_neon_install(struct rope_kernels *kernels);
