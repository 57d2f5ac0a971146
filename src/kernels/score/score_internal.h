/* score_internal: what the variants of score share. */
#pragma once

#include "kernels/score/score.h"

/* Each overwrites the entries that it improves. */
void score_ref_install(struct score_kernels *kernels);
void score_avx2_install(struct score_kernels *kernels);
void score_avx512_install(struct score_kernels *kernels);
void score_neon_install(struct score_kernels *kernels);

/* The fallback of the wider variant, for rows that are not multiples of its registers. */
void score_rows_avx2(const struct score_args *args);
