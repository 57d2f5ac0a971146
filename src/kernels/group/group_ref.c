/* The definition: sums in double. */
#include <math.h>

#include "kernels/group/group_internal.h"

/* The share that a score has of its head. */
static double share_of(float score, float largest, float scale, double sum) {
    return exp((double)scale * ((double)score - (double)largest)) / sum;
}

static void softmax(const struct group_softmax_args *args) {
    for (size_t head = 0; head < args->heads; head++) {
        const float *scores = args->scores + head * args->stride;
        float largest = -INFINITY;
        double sum = 0;
        for (size_t i = 0; i < args->count; i++)
            if (scores[i] > largest) largest = scores[i];
        for (size_t i = 0; i < args->count; i++) {
            double share = share_of(scores[i], largest, args->scales[head], 1);
            if (!isnan(share)) sum += share;
        }
        for (size_t i = 0; i < args->count; i++) {
            double share = share_of(scores[i], largest, args->scales[head], sum);
            args->scores[i] = head == 0 ? (float)share : (float)((double)args->scores[i] + share);
        }
    }
}

void group_ref_install(struct group_kernels *kernels) {
    *kernels = (struct group_kernels){.softmax = softmax, .best = group_best_of_each};
}
