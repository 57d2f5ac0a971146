/* group_internal: what the variants of group share. */
#ifndef LOAM_KERNELS_GROUP_INTERNAL_H
#define LOAM_KERNELS_GROUP_INTERNAL_H

#include "kernels/group/group.h"

/* Each overwrites the entries that it improves. */
void group_ref_install(struct group_kernels *kernels);
void group_avx2_install(struct group_kernels *kernels);
void group_avx512_install(struct group_kernels *kernels);
void group_neon_install(struct group_kernels *kernels);

#endif
