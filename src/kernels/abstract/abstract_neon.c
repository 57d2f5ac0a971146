/* abstract on NEON: scores by the rows of score.  Pages are built by the reference: a page once per page_tokens tokens,
 * and NEON rounds to halves in one direction only. */
#include "kernels/abstract/abstract_internal.h"
#include "kernels/score/score.h"

static void score(const struct abstract_score_args *args) {
    struct score_kernels kernels;
    score_ref_install(&kernels);
    score_neon_install(&kernels);
    abstract_score_over(&kernels, args);
}

void abstract_neon_install(struct abstract_kernels *kernels) { kernels->score = score; }
