/* quantizers: rows within their bounds of what they are made of. */
#include "lab/quantize/quantizers.h"

#include "kernels/check.h"
#include "kernels/convert/convert.h"

struct quality {
    enum tensor_type type;
    double rmse_max; /* relative to the deviation of normal values */
};

/* Root mean square error on normal values; the bounds are what was measured plus 3%; another draw gives 0.5% more
 * or less. */
static const struct quality qualities[] = {
    {TENSOR_F32, 0},       {TENSOR_F16, 3e-4},      {TENSOR_BF16, 3e-3},     {TENSOR_Q8_0, 0.0055},
    {TENSOR_Q4_0, 0.0833}, {TENSOR_Q4_1, 0.0735},   {TENSOR_Q5_0, 0.0412},   {TENSOR_Q5_1, 0.0358},
    {TENSOR_Q2_K, 0.269},  {TENSOR_Q3_K, 0.148},    {TENSOR_Q4_K, 0.0731},   {TENSOR_Q5_K, 0.0361},
    {TENSOR_Q6_K, 0.017},  {TENSOR_IQ4_NL, 0.0755}, {TENSOR_IQ4_XS, 0.0762},
};

static void quantisers_are_close(void **state) {
    (void)state;
    enum { COUNT = 256 * 1024 };
    static float x[COUNT], y[COUNT];
    struct random random;
    random_init(&random, test_seed(7));
    fill_normal(&random, x, COUNT, 1);
    struct convert_kernels kernels;
    convert_kernels_init(&kernels, cpu_features());
    for (size_t t = 0; t < sizeof qualities / sizeof qualities[0]; t++) {
        const struct tensor_type_info *info = tensor_type_info(qualities[t].type);
        struct guarded blocks = guarded_create(COUNT / info->block_elements * info->block_bytes);
        row_quantizer_of(qualities[t].type)(x, blocks.data, COUNT);
        kernels.dequantize[qualities[t].type](blocks.data, y, COUNT);
        double error = 0;
        for (size_t i = 0; i < COUNT; i++) error += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        error = sqrt(error / COUNT);
        print_message("%-7s rmse %.5f\n", info->name, error);
        check_near(error, 0, qualities[t].rmse_max, "%s rmse", info->name);
        guarded_destroy(&blocks);
    }
}

/* Zeros, one value alone, equal values, tiny and huge ones: what breaks quantisers. */
static void quantisers_survive_extremes(void **state) {
    (void)state;
    enum { COUNT = 512 };
    float x[COUNT], y[COUNT];
    struct convert_kernels kernels;
    convert_kernels_init(&kernels, cpu_features());
    for (size_t t = 0; t < sizeof qualities / sizeof qualities[0]; t++)
        for (int kind = 0; kind < 6; kind++) {
            const struct tensor_type_info *info = tensor_type_info(qualities[t].type);
            double max = 0;
            for (size_t i = 0; i < COUNT; i++) {
                const float values[] = {0, i == 300 ? -3.5f : 0, 2.5f, -2.5f, 1e-38f, i % 2 ? 3e4f : -3e4f};
                x[i] = values[kind];
                max = fmax(max, fabs((double)x[i]));
            }
            struct guarded blocks = guarded_create(COUNT / info->block_elements * info->block_bytes);
            fill_nan(y, COUNT);
            row_quantizer_of(qualities[t].type)(x, blocks.data, COUNT);
            kernels.dequantize[qualities[t].type](blocks.data, y, COUNT);
            /* No type is worse than a few levels of a 2-bit grid on these. */
            for (size_t i = 0; i < COUNT; i++)
                check_near(y[i], x[i], max * 0.2 + 1e-30, "%s kind %d element %zu", info->name, kind, i);
            guarded_destroy(&blocks);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantisers_are_close),
        cmocka_unit_test(quantisers_survive_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
