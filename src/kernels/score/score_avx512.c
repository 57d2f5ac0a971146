#define FLOATS_512
#include "kernels/score/score_floats.h"

static void rows(const struct score_args *args) {
    if (args->columns % FLOATS == 0)
        score_rows(args);
    else
        score_rows_avx2(args);
}

void score_avx512_install(struct score_kernels *kernels) { kernels->rows = rows; }
