/* group over `floats`; included by group_avx2.c, group_avx512.c and group_neon.c.
 *
 * Mapping: per head three passes over its scores: the greatest; exponentials in place, and their sum in four registers;
 * shares added to the first row.  Bytes: 4 per score, read and written twice, out of L1 or L2.
 * Bound: the exponentials, one register of them per register of scores.
 * best: parts of whole registers, a greatest and a mark of NaN each; others one by one.
 */
#include <math.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/group/group_internal.h"

/* Up to FLOATS scores; missing ones are -infinity. */
FLOATS_INLINE floats scores_load(const float *scores, size_t count) {
    float part[FLOATS];
    if (count >= FLOATS) return floats_load(scores);
    floats_store(part, floats_set(-INFINITY));
    memcpy(part, scores, count * sizeof *part);
    return floats_load(part);
}

FLOATS_INLINE void scores_store(float *scores, floats values, size_t count) {
    float part[FLOATS];
    if (count >= FLOATS) {
        floats_store(scores, values);
        return;
    }
    floats_store(part, values);
    memcpy(scores, part, count * sizeof *part);
}

static float scores_largest(const float *scores, size_t count) {
    floats largest[2] = {floats_set(-INFINITY), floats_set(-INFINITY)};
    /* floats_max gives its second argument if the first is NaN */
    for (size_t i = 0; i < count; i += 2 * FLOATS) {
        largest[0] = floats_max(scores_load(scores + i, count - i), largest[0]);
        if (i + FLOATS < count)
            largest[1] = floats_max(scores_load(scores + i + FLOATS, count - i - FLOATS), largest[1]);
    }
    return floats_largest(floats_max(largest[0], largest[1]));
}

/* The scores become exp(scale (score - largest)).  Returns their sum, without NaN. */
static float scores_exponentials(float *scores, size_t count, float largest, float scale) {
    floats sum[2] = {floats_set(0), floats_set(0)};
    for (size_t i = 0; i < count; i += FLOATS) {
        floats x = floats_subtract(scores_load(scores + i, count - i), floats_set(largest));
        floats weight = floats_exp(floats_multiply(x, floats_set(scale)));
        scores_store(scores + i, weight, count - i);
        floats number = floats_if_less(weight, floats_set(INFINITY), weight, floats_set(0));
        if (count - i < FLOATS) { /* missing scores are exp(scale * -infinity), NaN where the scale is 0 */
            float part[FLOATS] = {0};
            scores_store(part, number, count - i);
            number = floats_load(part);
        }
        sum[i / FLOATS % 2] = floats_add(sum[i / FLOATS % 2], number);
    }
    return floats_sum(floats_add(sum[0], sum[1]));
}

static void group_softmax(const struct group_softmax_args *args) {
    for (size_t head = 0; head < args->heads; head++) {
        float *scores = args->scores + head * args->stride;
        const float largest = scores_largest(scores, args->count);
        const float sum = scores_exponentials(scores, args->count, largest, args->scales[head]);
        const floats inverse = floats_set(1 / sum);
        for (size_t i = 0; i < args->count; i += FLOATS) {
            floats share = floats_multiply(scores_load(scores + i, args->count - i), inverse);
            if (head > 0) share = floats_add(scores_load(args->scores + i, args->count - i), share);
            scores_store(args->scores + i, share, args->count - i);
        }
    }
}

static void group_best(const struct group_best_args *args) {
    enum { UNITS = 16 }; /* that share a mark */
    if (args->parts % FLOATS != 0) {
        group_best_of_each(args);
        return;
    }
    for (size_t first = 0; first < args->count; first += UNITS) {
        const size_t end = first + UNITS < args->count ? first + UNITS : args->count;
        floats odd = floats_set(0); /* above 0: a NaN, or infinity */
        for (size_t i = first; i < end; i++) {
            const float *scores = args->scores + i * args->parts;
            floats largest = floats_set(-INFINITY);
            for (size_t p = 0; p < args->parts; p += FLOATS) {
                const floats x = floats_load(scores + p);
                largest = floats_max(x, largest);
                odd = floats_if_less(x, floats_set(INFINITY), odd, floats_set(1));
            }
            args->best[i] = floats_largest(largest);
        }
        if (floats_any_greater(odd, floats_set(0)))
            group_best_of_each(&(struct group_best_args){.scores = args->scores + first * args->parts,
                                                         .count = end - first,
                                                         .parts = args->parts,
                                                         .best = args->best + first});
    }
}

FLOATS_INSTALL(group, group) { *kernels = (struct group_kernels){.softmax = group_softmax, .best = group_best}; }
