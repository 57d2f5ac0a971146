/* matmul: preparing the inputs and multiplying, as prefill does it, beside the float multiply-add peak of the
 * same threads, measured in turns with the kernel.  Operations are 2 x inputs x rows x columns, whatever
 * the arithmetic: integer kernels may exceed the float peak. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/checked.h"
#include "bench.h"
#include "kernels/matmul/matmul.h"
#include "kernels/weights.h"
#include "machine.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { SAMPLES_MAX = 1000 };

static const struct { size_t rows, columns; } shapes[] = {{2048, 2048}, {8192, 2048}, {2048, 8192}};

static const size_t input_counts[] = {8, 32, 512, 2048};

static const enum tensor_type types[] = {
    TENSOR_Q8_0,    TENSOR_Q4_0,   TENSOR_Q4_K,   TENSOR_Q6_K,    TENSOR_F16,   TENSOR_BF16,
    TENSOR_F32,     TENSOR_Q5_K,   TENSOR_Q4_1,   TENSOR_Q5_0,    TENSOR_Q5_1,  TENSOR_Q2_K,
    TENSOR_Q3_K,    TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4,   TENSOR_NVFP4, TENSOR_IQ3_S,
    TENSOR_IQ3_XXS, TENSOR_IQ2_S,  TENSOR_IQ2_XS, TENSOR_IQ2_XXS, TENSOR_IQ1_S, TENSOR_IQ1_M,
};

struct matmul_run {
    const struct matmul_method *method;
    struct matmul_args args;
    const float *x; /* [input_count][columns] */
    void *prepared;
    char *scratch; /* one after the other, by thread */
    size_t scratch_bytes;
};

static void matmul_task(void *context, const struct pool_worker *worker) {
    const struct matmul_run *run = context;
    struct matmul_args args = run->args;
    size_t columns = args.weight->columns;
    struct range inputs = pool_range(worker, args.input_count, run->method->input_granule);
    if (inputs.begin < inputs.end)
        run->method->prepare(run->x, columns, args.input_count, columns, inputs.begin, inputs.end,
                             run->prepared);
    pool_barrier(worker);
    struct range rows = pool_range(worker, args.weight->rows, run->method->row_granule);
    args.row_begin = rows.begin, args.row_end = rows.end;
    args.scratch = run->scratch + worker->index * run->scratch_bytes;
    if (rows.begin < rows.end) run->method->run(&args);
}

static void measure(const struct bench_options *options, struct pool *pool, struct matmul_run *run) {
    static double kernel[SAMPLES_MAX], peak[SAMPLES_MAX];
    const struct matrix *weight = run->args.weight;
    double operations = 2.0 * (double)run->args.input_count * (double)weight->rows * (double)weight->columns;
    double end = clock_seconds() + options->seconds;
    size_t count = 0;
    while (count < SAMPLES_MAX && (count < 3 || clock_seconds() < end)) {
        double begin = clock_seconds();
        pool_run(pool, matmul_task, run);
        kernel[count] = operations / (clock_seconds() - begin) * 1e-9;
        peak[count++] = machine_multiply_add_peak(pool) * 1e-9;
    }
    double middle = median(kernel, count), peak_middle = median(peak, count);
    double high = kernel[count - 1], peak_high = peak[count - 1];
    const char *name = tensor_type_info(weight->type)->name;
    if (options->csv)
        printf("matmul,%s,%zu,%zu,%zu,%zu,%.1f,%.1f,%.3f,%.1f,%.1f,%.3f\n", name, weight->rows,
               weight->columns, run->args.input_count, pool_thread_count(pool), middle, peak_middle,
               middle / peak_middle, high, peak_high, high / peak_high);
    else
        printf(
            "matmul %-7s %6zu x %-5zu inputs %4zu threads %zu: %6.1f GOP/s, %.2f of float peak %.1f; at best "
            "%.1f, %.2f of %.1f\n",
            name, weight->rows, weight->columns, run->args.input_count, pool_thread_count(pool), middle,
            middle / peak_middle, peak_middle, high, high / peak_high, peak_high);
    fflush(stdout);
}

static void bench_case(const struct bench_options *options, const struct matmul_kernels *kernels,
                       struct pool *pool, enum tensor_type type, size_t rows, size_t columns,
                       size_t input_count) {
    uint64_t row_bytes;
    if (!tensor_row_bytes(type, columns, &row_bytes)) return;
    struct random random;
    random_init(&random, 1);
    void *data = aligned_alloc(64, align_up(rows * row_bytes, 64));
    weight_fill(&random, type, WEIGHT_RANDOM, data, rows * columns);
    struct matrix weight = {type, data, rows, columns, row_bytes};
    const struct matmul_method *method = &kernels->method[type];
    float *x = malloc(input_count * columns * sizeof *x);
    for (size_t i = 0; i < input_count * columns; i++) x[i] = (float)(random_double(&random) * 2 - 1);
    struct matmul_run run = {
        .method = method, .x = x, .scratch_bytes = align_up(method->scratch_bytes(columns), 4096)};
    run.prepared = aligned_alloc(64, align_up(method->prepared_bytes(input_count, columns), 64));
    run.scratch = aligned_alloc(4096, run.scratch_bytes * pool_thread_count(pool));
    run.args =
        (struct matmul_args){.weight = &weight,
                             .input_count = input_count,
                             .prepared = run.prepared,
                             .outputs = aligned_alloc(64, align_up(input_count * rows * sizeof(float), 64)),
                             .output_stride = rows};
    measure(options, pool, &run);
    free(run.args.outputs), free(run.scratch), free(run.prepared), free(x), free(data);
}

static void bench_type(const struct bench_options *options, const struct matmul_kernels *kernels,
                       struct pool *pool, enum tensor_type type) {
    bool is_one_count = options->inputs > 1;
    for (size_t s = 0; s < (options->rows ? 1 : sizeof shapes / sizeof shapes[0]); s++)
        for (size_t n = 0; n < (is_one_count ? 1 : sizeof input_counts / sizeof input_counts[0]); n++)
            bench_case(options, kernels, pool, type, options->rows ? options->rows : shapes[s].rows,
                       options->rows ? options->columns : shapes[s].columns,
                       is_one_count ? options->inputs : input_counts[n]);
}

static void bench_types(const struct bench_options *options, struct pool *pool, void *context) {
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        if (options->type == NULL || strcasecmp(options->type, tensor_type_info(types[t])->name) == 0)
            bench_type(options, context, pool, types[t]);
}

int bench_matmul(const struct bench_options *options) {
    static struct matmul_kernels kernels;
    matmul_kernels_init(&kernels, options->mask);
    if (options->csv)
        printf("op,type,rows,columns,inputs,threads,gop_s,float_peak,ratio,gop_s_best,float_peak_best,ratio_"
               "best\n");
    return bench_pools(options, bench_types, &kernels);
}
