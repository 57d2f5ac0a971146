#include "kernels/project/project_rows.h"

void project_rows_avx2(const struct project_args *args) { project_rows(args); }

void project_avx2_install(struct project_kernels *kernels) { kernels->rows = project_rows; }
