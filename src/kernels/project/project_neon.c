#include "kernels/project/project_rows.h"

void project_neon_install(struct project_kernels *kernels) { kernels->rows = project_rows; }
