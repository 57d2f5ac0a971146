/* The definition: the group's sum in double. */
#include <math.h>

#include "kernels/mass/mass.h"

static void add(const struct mass_add_args *args) {
    for (size_t i = 0; i < args->row_count; i++) {
        double sum = 0;
        for (size_t head = 0; head < args->group; head++)
            if (args->s[head] != 0)
                sum += exp((double)args->scores[head * args->scores_stride + i] - (double)args->m[head]) /
                       (double)args->s[head];
        float *mass = args->mass + (args->rows != NULL ? args->rows[i] : args->row_first + i);
        *mass = (float)((double)*mass + sum);
    }
}

void mass_ref_install(struct mass_kernels *kernels) { kernels->add = add; }
