/* project_internal: what the variants of project share. */
#pragma once

#include "kernels/project/project.h"

/* Each overwrites the entries that it improves. */
void project_ref_install(struct project_kernels *kernels);
void project_avx2_install(struct project_kernels *kernels);
void project_avx512_install(struct project_kernels *kernels);
void project_neon_install(struct project_kernels *kernels);

/* The fallback of the wider variant, for columns that are not multiples of its registers. */
void project_rows_avx2(const struct project_args *args);
