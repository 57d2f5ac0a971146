/* mass over `floats`; included by mass_avx2.c, mass_avx512.c and mass_neon.c.
 *
 * Mapping: a register of rows at a time; each head's scores become probabilities, their sum over the group goes to
 * the rows' masses: in one store where rows are consecutive, one by one where they are listed.
 * Bytes: 4 * group + 4 read per row, 4 read and written.  Bound: the exponentials, group / FLOATS of one per row.
 * Reached: 3.9 ns per row at group 4, one core of an AMD EPYC (Zen 3), AVX2, 2026-11-21 (bench_selection.c).
 */
#include <string.h>

#include "kernels/floats.h"
#include "kernels/mass/mass.h"

/* The group's probabilities of rows i .. i + FLOATS - 1, `count` of which exist. */
FLOATS_INLINE floats mass_of(const struct mass_add_args *args, size_t i, size_t count) {
    floats sum = floats_set(0);
    for (size_t head = 0; head < args->group; head++) {
        if (args->s[head] == 0) continue;
        const float *scores = args->scores + head * args->scores_stride + i;
        float part[FLOATS] = {0};
        if (count < FLOATS) scores = memcpy(part, scores, count * sizeof *part);
        floats weight = floats_exp(floats_subtract(floats_load(scores), floats_set(args->m[head])));
        sum = floats_add(sum, floats_divide(weight, floats_set(args->s[head])));
    }
    return sum;
}

static void mass_add(const struct mass_add_args *args) {
    for (size_t i = 0; i < args->row_count; i += FLOATS) {
        size_t count = args->row_count - i < FLOATS ? args->row_count - i : FLOATS;
        floats sum = mass_of(args, i, count);
        float *mass = args->mass + args->row_first + i;
        if (args->rows == NULL && count == FLOATS) {
            floats_store(mass, floats_add(floats_load(mass), sum));
            continue;
        }
        float sums[FLOATS];
        floats_store(sums, sum);
        for (size_t n = 0; n < count; n++) {
            float *target = args->rows != NULL ? args->mass + args->rows[i + n] : mass + n;
            *target += sums[n];
        }
    }
}

FLOATS_INSTALL(mass, mass) { kernels->add = mass_add; }
