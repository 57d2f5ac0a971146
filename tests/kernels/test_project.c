/* project: every variant against sums in double; a float sum of n products is off by (n + 1) eps sum |x a|, a half by
 * 2^-11 of it and 2^-25 where subnormal. */
#include "check.h"

#include "selection_emulated.h"
#include "tensor/half.h"

static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(project, emulated_project_avx512_install)

static void products_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(29));
    static const size_t dimensions[] = {1, 8, 64, 80, 128, 256}, widths[] = {8, 16, 24, 32, 40, 64, 120, 128},
                        counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 13};
    for (size_t round = 0; round < 6 * 8 * 9; round++) {
        size_t dimension = dimensions[round % 6], columns = widths[round / 6 % 8], count = counts[round / 48];
        size_t x_stride = dimension + 3, out_stride = columns + 5, rows = count > 0 ? count - 1 : 0;
        bool halves = round % 2;
        struct guarded weights = guarded_create(dimension * columns * sizeof(uint16_t));
        struct guarded x = guarded_create((rows * x_stride + dimension) * sizeof(float));
        struct guarded out = guarded_create((rows * out_stride + columns) * (halves ? 2 : sizeof(float)));
        uint16_t *a = weights.data;
        for (size_t i = 0; i < dimension * columns; i++) a[i] = float_to_half((float)random_normal(&random));
        fill_normal(&random, x.data, x.bytes / sizeof(float), 1.0);
        for (size_t level = 0; level < level_count; level++) {
            memset(out.data, 0xff, out.bytes); /* NaN */
            struct project_args args = {.weights = a,
                                        .dimension = dimension,
                                        .columns = columns,
                                        .x = x.data,
                                        .x_stride = x_stride,
                                        .count = count,
                                        .out = halves ? NULL : out.data,
                                        .out_halves = halves ? out.data : NULL,
                                        .out_stride = out_stride};
            levels[level].kernels.rows(&args);
            for (size_t i = 0; i < count * columns; i++) {
                size_t row = i / columns, j = i % columns, at = row * out_stride + j;
                double sum = 0, size = 0;
                for (size_t d = 0; d < dimension; d++) {
                    double product = (double)((float *)x.data)[row * x_stride + d] *
                                     (double)half_to_float(a[d * columns + j]);
                    sum += product;
                    size += fabs(product);
                }
                float got = halves ? half_to_float(((uint16_t *)out.data)[at]) : ((float *)out.data)[at];
                double bound =
                    (double)(dimension + 1) * eps * size +
                    (halves ? 0x1p-11 * (fabs(sum) + (double)dimension * eps * size) + 0x1p-25 : 0);
                check_near(got, sum, bound, "%s: dimension %zu columns %zu row %zu of %zu column %zu",
                           levels[level].name, dimension, columns, row, count, j);
            }
        }
        guarded_destroy(&weights);
        guarded_destroy(&x);
        guarded_destroy(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
