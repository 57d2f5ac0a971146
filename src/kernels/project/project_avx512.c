#define FLOATS_512
#include "kernels/project/project_rows.h"

static void rows(const struct project_args *args) {
    if (args->columns % FLOATS == 0)
        project_rows(args);
    else
        project_rows_avx2(args);
}

void project_avx512_install(struct project_kernels *kernels) { kernels->rows = rows; }
