#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "bench.h"
#include "kernels/matvec/matvec.h"
#include "kernels/weights.h"
#include "machine.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { SAMPLES_MAX = 4000 };

/* Weights are cycled through this much, so that no cache holds them from one pass to the next. */
static size_t buffer_bytes = (size_t)512 << 20;

static const struct {
    size_t rows, columns;
} shapes[] = {{2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}};

static const enum tensor_type types[] = {
    TENSOR_Q8_0,    TENSOR_Q4_0,   TENSOR_Q4_K,   TENSOR_Q6_K,    TENSOR_F16,   TENSOR_BF16,
    TENSOR_F32,     TENSOR_Q5_K,   TENSOR_Q4_1,   TENSOR_Q5_0,    TENSOR_Q5_1,  TENSOR_Q2_K,
    TENSOR_Q3_K,    TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4,   TENSOR_NVFP4, TENSOR_IQ3_S,
    TENSOR_IQ3_XXS, TENSOR_IQ2_S,  TENSOR_IQ2_XS, TENSOR_IQ2_XXS, TENSOR_IQ1_S, TENSOR_IQ1_M,
};

struct matvec_run {
    const struct matvec_kernels *kernels;
    struct matvec_args args;
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    return count ? values[count / 2] : 0;
}

static void matvec_task(void *context, const struct pool_worker *worker) {
    const struct matvec_run *run = context;
    struct range share = pool_range(worker, run->args.weight->rows, 8);
    struct matvec_args args = run->args;
    args.row_begin = share.begin, args.row_end = share.end;
    run->kernels->run[args.weight->type](&args);
}

struct figures {
    double kernel, kernel_high, read, read_high; /* bytes per second: medians and 95th percentiles */
};

/* Passes over one matrix after another in the buffer, alternating with plain reads of as much. */
static struct figures measure(const struct bench_options *options, struct pool *pool, struct matvec_run *run,
                              struct matrix *weight, const char *buffer) {
    static double kernel[SAMPLES_MAX], read[SAMPLES_MAX];
    size_t bytes = weight->rows * weight->row_bytes, stride = align_up(bytes, 4096);
    size_t copies = max_size(buffer_bytes / stride, 1), count = 0,
           batch = max_size(((size_t)4 << 20) / stride, 1);
    double end = clock_seconds() + options->seconds;
    for (size_t at = 0; count < SAMPLES_MAX && (count < 3 || clock_seconds() < end); count++) {
        double begin = clock_seconds();
        for (size_t i = 0; i < batch; i++, at++) {
            weight->data = buffer + at % copies * stride;
            pool_run(pool, matvec_task, run);
        }
        kernel[count] = (double)(bytes * batch) / (clock_seconds() - begin);
        size_t from = at % copies * stride, length = min_size(batch, copies) * stride;
        if (from + length > copies * stride) from = 0;
        read[count] = machine_read_bandwidth(pool, buffer + from, length);
        at += batch;
    }
    struct figures figures = {.kernel = median(kernel, count), .read = median(read, count)};
    figures.kernel_high = kernel[count - 1 - count / 20], figures.read_high = read[count - 1 - count / 20];
    return figures;
}

static void print_row(const struct bench_options *options, const struct matrix *weight, size_t threads,
                      const struct figures *f) {
    const char *name = tensor_type_info(weight->type)->name;
    double operations =
        f->kernel / (double)weight->row_bytes * (double)weight->columns * 2 * (double)options->inputs;
    double ratio = f->kernel / f->read, ratio_high = f->kernel_high / f->read_high, g = 1e-9;
    if (options->csv)
        printf("matvec,%s,%zu,%zu,%zu,%zu,%.2f,%.2f,%.3f,%.2f,%.2f,%.3f,%.1f\n", name, weight->rows,
               weight->columns, options->inputs, threads, f->kernel * g, f->read * g, ratio,
               f->kernel_high * g, f->read_high * g, ratio_high, operations * g);
    else
        printf("matvec %-7s %6zu x %-5zu inputs %zu threads %zu: %6.2f GB/s of %6.2f, ratio %.3f; at best "
               "%6.2f of %6.2f, "
               "%.3f; %.1f GFLOP/s\n",
               name, weight->rows, weight->columns, options->inputs, threads, f->kernel * g, f->read * g,
               ratio, f->kernel_high * g, f->read_high * g, ratio_high, operations * g);
    fflush(stdout);
}

static void bench_shape(const struct bench_options *options, const struct matvec_kernels *kernels,
                        struct pool *pool, enum tensor_type type, size_t rows, size_t columns, char *buffer) {
    struct random random;
    random_init(&random, 1);
    uint64_t row_bytes;
    if (!tensor_row_bytes(type, columns, &row_bytes)) return;
    struct matrix weight = {type, buffer, rows, columns, row_bytes};
    if (rows * row_bytes > buffer_bytes) return;
    size_t part = align_up(rows * row_bytes, 4096);
    size_t filled =
        min_size(rows, max_size(((size_t)1 << 20) / row_bytes, 1)); /* random rows, then repeated */
    weight_fill(&random, type, WEIGHT_RANDOM, buffer, filled * columns);
    for (size_t row = filled; row < rows; row++)
        memcpy(buffer + row * row_bytes, buffer + row % filled * row_bytes, row_bytes);
    for (size_t at = part; at + part <= buffer_bytes; at += part)
        memcpy(buffer + at, buffer, rows * row_bytes);
    size_t input_bytes = kernels->input_bytes(kernels->form[type], columns);
    char *inputs = aligned_alloc(64, input_bytes * options->inputs);
    float *x = malloc(columns * sizeof *x),
          *y = aligned_alloc(64, align_up(rows * options->inputs * sizeof *y, 64));
    for (size_t i = 0; i < options->inputs; i++) {
        for (size_t c = 0; c < columns; c++) x[c] = (float)random_normal(&random);
        kernels->prepare[kernels->form[type]](x, columns, inputs + i * input_bytes);
    }
    struct matvec_run run = {kernels, {&weight, options->inputs, inputs, y, rows, 0, rows}};
    struct figures figures = measure(options, pool, &run, &weight, buffer);
    print_row(options, &weight, pool_thread_count(pool), &figures);
    free(y), free(x), free(inputs);
}

struct matvec_bench {
    struct matvec_kernels kernels;
    char *buffer;
};

static void bench_types(const struct bench_options *options, struct pool *pool, void *context) {
    struct matvec_bench *bench = context;
    double peak = machine_multiply_add_peak(pool) * 1e-9;
    if (options->csv)
        printf("machine,fma,,,,%zu,,,,,,,%.1f\n", pool_thread_count(pool), peak);
    else
        printf("threads %zu: fused multiply-add %.1f GFLOP/s\n", pool_thread_count(pool), peak);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        if (options->type && strcasecmp(options->type, tensor_type_info(types[t])->name) != 0) continue;
        for (size_t s = 0; s < (options->rows ? 1 : sizeof shapes / sizeof shapes[0]); s++)
            bench_shape(options, &bench->kernels, pool, types[t],
                        options->rows ? options->rows : shapes[s].rows,
                        options->rows ? options->columns : shapes[s].columns, bench->buffer);
    }
}

int bench_matvec(const struct bench_options *options) {
    if (options->inputs < 1 || options->inputs > MATVEC_INPUTS_MAX) return 2;
    if (options->buffer_mib) buffer_bytes = options->buffer_mib << 20;
    struct matvec_bench bench;
    matvec_kernels_init(&bench.kernels, options->mask);
    bench.buffer = mmap(NULL, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench.buffer == MAP_FAILED) return 5;
    if (options->csv)
        printf("op,type,rows,columns,inputs,threads,gb_s,read_gb_s,ratio,gb_s_best,read_gb_s_best,ratio_best,"
               "gflop_s\n");
    int code = bench_pools(options, bench_types, &bench);
    munmap(bench.buffer, buffer_bytes);
    return code;
}
