#ifndef LOAM_KERNELS_ACTIVATION_INTERNAL_H
#define LOAM_KERNELS_ACTIVATION_INTERNAL_H

#include "kernels/activation/activation.h"

/* Each overwrites the entries that it improves. */
void activation_ref_install(struct activation_kernels *kernels);
void activation_avx512_install(struct activation_kernels *kernels);
void activation_avx2_install(struct activation_kernels *kernels);
void activation_neon_install(struct activation_kernels *kernels);

#endif
