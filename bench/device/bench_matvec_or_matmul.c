/* From how many inputs on is matmul faster than matvec, for a weight type, and with AMX its tiles faster than matmul
 * without them ("few")?  All ways through the cpu device, on a weight larger than the last-level cache; what it finds
 * belongs into MATVEC_INPUTS and FEW_INPUTS_AMX in src/device/cpu/cpu_matmul.c.
 *
 *     bench_matvec_or_matmul [--threads N] [--cpu-mask LEVEL] [TYPE...] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "device/cpu/cpu_device_internal.h"
#include "lab/quantize/quantizers.h"
#include "platform/clock.h"

enum { COLUMNS = 2048, WEIGHT_BYTES = 48 << 20, MODEL_ROWS = 32, REPEATS_MAX = 15, INPUTS_MAX = 64 };

static const size_t INPUT_COUNTS[] = {1, 2, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64};
static const enum tensor_type TYPES[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0,   TENSOR_Q4_1,
                                         TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q2_K,   TENSOR_Q3_K,
                                         TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

static void fail(const char *what) {
    fprintf(stderr, "bench_matvec_or_matmul: %s\n", what);
    exit(1);
}

/* Random rows, repeated: the values do not matter to the time, the addresses do. */
static struct matrix weight_create(enum tensor_type type) {
    struct random random;
    random_init(&random, 1);
    uint64_t row_bytes;
    if (!tensor_row_bytes(type, COLUMNS, &row_bytes)) fail("row");
    struct matrix weight = {type, NULL, WEIGHT_BYTES / row_bytes / 16 * 16, COLUMNS, (size_t)row_bytes};
    uint8_t *data = aligned_alloc(64, align_up(weight.rows * weight.row_bytes, 64));
    float *row = malloc(COLUMNS * sizeof *row);
    if (data == NULL || row == NULL) fail("out of memory");
    for (size_t r = 0; r < MODEL_ROWS; r++) {
        for (size_t c = 0; c < COLUMNS; c++) row[c] = (float)random_normal(&random) * 0.05f;
        row_quantizer_of(type)(row, data + r * weight.row_bytes, COLUMNS);
    }
    for (size_t r = MODEL_ROWS; r < weight.rows; r++)
        memcpy(data + r * weight.row_bytes, data + r % MODEL_ROWS * weight.row_bytes, weight.row_bytes);
    free(row);
    weight.data = data;
    return weight;
}

static double seconds_of(struct stream *stream, const struct matmul_operation *operation) {
    double start = clock_seconds();
    stream->device->device.operations->matmul(stream, operation);
    return clock_seconds() - start;
}

/* Seconds of each way; INFINITY: there is none. */
struct ways {
    double matvec, few, matmul;
};

/* The best of several runs each, taken in turns, because other work on the machine only ever adds time. */
static struct ways measure(struct stream *stream, const struct matmul_operation *operation) {
    const enum tensor_type type = operation->weights[0]->matrix.type;
    struct cpu_device *device = stream->device;
    const bool has_few = device->kernels.matmul.few[type].run != NULL;
    struct ways best = {INFINITY, INFINITY, INFINITY};
    double begin = clock_seconds();
    for (size_t i = 0; i < REPEATS_MAX && (i < 3 || clock_seconds() < begin + 1); i++) {
        device->matvec_inputs[type] = UINT16_MAX;
        best.matvec = fmin(best.matvec, seconds_of(stream, operation));
        device->matvec_inputs[type] = device->few_inputs[type] = 0;
        best.matmul = fmin(best.matmul, seconds_of(stream, operation));
        device->few_inputs[type] = UINT16_MAX;
        if (has_few) best.few = fmin(best.few, seconds_of(stream, operation));
    }
    return best;
}

static void bench_type(struct cpu_device *device, struct stream *stream, enum tensor_type type) {
    const struct device_operations *operations = device->device.operations;
    const struct matrix matrix = weight_create(type);
    struct weight weight = {.matrix = matrix};
    struct buffer inputs_memory, y;
    if (operations->weight_load(&device->device, &weight, NULL) != STATUS_OK ||
        operations->allocate(&device->device, MEMORY_SHARED, INPUTS_MAX * COLUMNS * sizeof(float),
                             &inputs_memory, NULL) != STATUS_OK ||
        operations->allocate(&device->device, MEMORY_DEVICE, INPUTS_MAX * matrix.rows * sizeof(float), &y,
                             NULL) != STATUS_OK)
        fail("out of memory");
    float *x = inputs_memory.host;
    struct random random;
    random_init(&random, 2);
    for (size_t i = 0; i < INPUTS_MAX * COLUMNS; i++) x[i] = (float)random_normal(&random);
    printf("%s\n  inputs  matvec ms    GB/s     few ms  matmul ms  GFLOP/s  matvec/matmul\n",
           tensor_type_info(type)->name);
    for (size_t i = 0; i < sizeof INPUT_COUNTS / sizeof *INPUT_COUNTS; i++) {
        size_t inputs = INPUT_COUNTS[i];
        const struct matmul_operation operation = {.x = span_of(&inputs_memory, 0),
                                                   .x_stride = COLUMNS,
                                                   .row_count = inputs,
                                                   .weight_count = 1,
                                                   .weights = {&weight},
                                                   .y = {span_of(&y, 0)},
                                                   .y_stride = {matrix.rows}};
        const struct ways best = measure(stream, &operation);
        printf("  %6zu %10.2f %7.1f %10.2f %10.2f %8.1f %14.2f\n", inputs, best.matvec * 1e3,
               (double)(matrix.rows * matrix.row_bytes) / best.matvec * 1e-9, best.few * 1e3,
               best.matmul * 1e3, 2.0 * (double)matrix.rows * COLUMNS * (double)inputs / best.matmul * 1e-9,
               best.matvec / best.matmul);
        fflush(stdout);
    }
    free((void *)(uintptr_t)matrix.data);
    operations->release(&device->device, &inputs_memory);
    operations->release(&device->device, &y);
}

int main(int argc, char **argv) {
    struct device_options options = {.mask = cpu_features()};
    struct error error;
    int next = 1;
    for (; next + 1 < argc && strncmp(argv[next], "--", 2) == 0; next += 2) {
        if (strcmp(argv[next], "--threads") == 0)
            options.thread_count = strtoul(argv[next + 1], NULL, 10);
        else if (strcmp(argv[next], "--cpu-mask") != 0 ||
                 cpu_mask_parse(argv[next + 1], &options.mask, &error) != STATUS_OK)
            fail("usage: [--threads N] [--cpu-mask LEVEL] [TYPE...]");
    }
    struct device *device;
    struct stream *stream;
    if (device_cpu_create(&device, &options, &error) != STATUS_OK ||
        device->operations->stream_create(device, &stream, &error) != STATUS_OK)
        fail(error.message);
    char text[128];
    printf("%s, %zu threads, %s, %d columns\n", cpu_model_name(), pool_thread_count(device_pool(device)),
           cpu_mask_text(options.mask, text, sizeof text), COLUMNS);
    for (size_t i = 0; next == argc && i < sizeof TYPES / sizeof *TYPES; i++)
        bench_type((struct cpu_device *)device, stream, TYPES[i]);
    for (; next < argc; next++) {
        enum tensor_type type;
        if (!tensor_type_parse(argv[next], &type)) fail("unknown type");
        bench_type((struct cpu_device *)device, stream, type);
    }
    device->operations->stream_destroy(stream);
    device_destroy(device);
    return 0;
}
