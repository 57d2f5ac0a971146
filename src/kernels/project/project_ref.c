/* The definition: each sum in double. */
#include "kernels/project/project.h"
#include "tensor/half.h"

static void rows(const struct project_args *args) {
    for (size_t i = 0; i < args->count; i++)
        for (size_t j = 0; j < args->columns; j++) {
            double sum = 0;
            for (size_t d = 0; d < args->dimension; d++)
                sum += (double)args->x[i * args->x_stride + d] *
                       (double)half_to_float(args->weights[d * args->columns + j]);
            if (args->out != NULL)
                args->out[i * args->out_stride + j] = (float)sum;
            else
                args->out_halves[i * args->out_stride + j] = float_to_half((float)sum);
        }
}

void project_ref_install(struct project_kernels *kernels) { kernels->rows = rows; }
