/* score_internal: what the variants of score share. */
#ifndef LOAM_KERNELS_SCORE_INTERNAL_H
#define LOAM_KERNELS_SCORE_INTERNAL_H

#include "kernels/score/score.h"

/* Each overwrites the entries that it does better. */
void score_ref_install(struct score_kernels *kernels);
void score_avx2_install(struct score_kernels *kernels);
void score_avx512_install(struct score_kernels *kernels);
void score_neon_install(struct score_kernels *kernels);

/* What the wider variant falls back on where rows are no multiple of its registers. */
void score_rows_avx2(const struct score_args *args);

#endif
