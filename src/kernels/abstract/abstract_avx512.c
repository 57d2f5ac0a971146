#include "kernels/abstract/abstract_internal.h"
#include "kernels/score/score.h"

static void score(const struct abstract_score_args *args) {
    struct score_kernels kernels;
    score_avx512_install(&kernels);
    abstract_score_over(&kernels, args);
}

void abstract_avx512_install(struct abstract_kernels *kernels) { kernels->score = score; }
