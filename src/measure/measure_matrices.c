/* How fast rows and blocks of rows go through matrices of each type, from memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/random.h"
#include "measure/measure_internal.h"
#include "platform/clock.h"

enum { MATRIX_COUNT = 6, BLOCK_MATRIX_ROWS = 1024, BLOCK_MATRIX_ROWS_TEST = 64 };
/* Bytes of all matrices: far more than a cache holds, at most. */
static const size_t BYTES = (size_t)192 << 20, BYTES_SHORT = (size_t)24 << 20, BYTES_TEST = (size_t)4 << 20;

struct products {
    struct measurement *measurement;
    struct stream *stream;
    uint8_t *weights; /* owned; [bytes] in small pages, as a mapped file is */
    size_t bytes;
    /* Owned MEMORY_DEVICE; float [MACHINE_BLOCK_ROWS][MACHINE_WIDE], [MACHINE_BLOCK_ROWS][rows] */
    struct buffer x, y;
    size_t x_bytes, y_bytes;
};

/* Every row of MACHINE_WIDE columns is the same random row; cut to fewer columns it is several.  The bytes of a row are
 * 0x20 to 0x3f: whatever the type takes for a scale or a value is small and no subnormal.  false: the type has no such
 * rows. */
static bool fill_rows(struct products *products, enum tensor_type type) {
    struct random random;
    uint64_t row_bytes;
    if (!tensor_row_bytes(type, MACHINE_WIDE, &row_bytes)) return false;
    random_init(&random, 1);
    for (size_t i = 0; i < row_bytes; i++) products->weights[i] = (uint8_t)(0x20 + random_below(&random, 0x20));
    for (size_t row = 1; row < products->bytes / row_bytes; row++)
        memcpy(products->weights + row * row_bytes, products->weights, row_bytes);
    return true;
}

/* Matrices of one shape, one behind the other. */
struct matrices {
    struct weight list[MATRIX_COUNT];
    size_t count; /* that the device has */
};

static void release_matrices(struct products *products, struct matrices *matrices) {
    struct device *device = products->measurement->device;
    while (matrices->count > 0) device->operations->weight_release(device, &matrices->list[--matrices->count]);
}

static enum status load_matrices(struct products *products, const struct matrix *shape, size_t count,
                                 struct matrices *matrices, struct error *error) {
    struct device *device = products->measurement->device;
    for (matrices->count = 0; matrices->count < count; matrices->count++) {
        struct weight *weight = &matrices->list[matrices->count];
        *weight = (struct weight){.matrix = *shape};
        weight->matrix.data = products->weights + matrices->count * shape->rows * shape->row_bytes;
        const enum status status = device->operations->weight_load(device, weight, error);
        if (status == STATUS_OK) continue;
        release_matrices(products, matrices);
        return status;
    }
    return STATUS_OK;
}

/* The quickest seconds of x times each matrix, one after the other. */
static enum status multiply(struct products *products, const struct matrices *matrices, size_t row_count,
                            double *seconds, struct error *error) {
    const struct device_operations *operations = products->measurement->device->operations;
    struct quickest pass = {0};
    while (quickest_is_open(&pass, products->measurement)) {
        const uint64_t began = clock_ns();
        for (size_t i = 0; i < matrices->count; i++) {
            const struct weight *weight = &matrices->list[i];
            operations->matmul(products->stream, &(struct matmul_operation){.x = span_of(&products->x, 0),
                                                                            .x_stride = weight->matrix.columns,
                                                                            .row_count = row_count,
                                                                            .weight_count = 1,
                                                                            .weights = {weight},
                                                                            .y = {span_of(&products->y, 0)},
                                                                            .y_stride = {weight->matrix.rows}});
        }
        TRY(operations->stream_synchronize(products->stream, error));
        quickest_add(&pass, (double)(clock_ns() - began) * 1e-9);
    }
    *seconds = pass.seconds;
    return STATUS_OK;
}

static enum status seconds_of(struct products *products, const struct matrix *shape, size_t count, size_t row_count,
                              double *seconds, struct error *error) {
    struct matrices matrices;
    TRY(load_matrices(products, shape, count, &matrices, error));
    const enum status status = multiply(products, &matrices, row_count, seconds, error);
    release_matrices(products, &matrices);
    return status;
}

static enum status row_rate(struct products *products, enum tensor_type type, size_t wide_bytes, size_t columns,
                            double *rate, struct error *error) {
    const size_t row_bytes = wide_bytes / (MACHINE_WIDE / columns);
    const struct matrix shape = {.type = type,
                                 .rows = products->bytes / MATRIX_COUNT / row_bytes / 64 * 64,
                                 .columns = columns,
                                 .row_bytes = row_bytes};
    double seconds;
    TRY(seconds_of(products, &shape, MATRIX_COUNT, 1, &seconds, error));
    *rate = (double)(MATRIX_COUNT * shape.rows * row_bytes) / seconds;
    return STATUS_OK;
}

static enum status block_rate(struct products *products, enum tensor_type type, size_t wide_bytes, double *rate,
                              struct error *error) {
    const struct matrix shape = {.type = type,
                                 .rows = products->measurement->options->is_short ? BLOCK_MATRIX_ROWS_TEST
                                                                                  : BLOCK_MATRIX_ROWS,
                                 .columns = MACHINE_WIDE,
                                 .row_bytes = wide_bytes};
    double seconds;
    TRY(seconds_of(products, &shape, 1, MACHINE_BLOCK_ROWS, &seconds, error));
    *rate = (double)MACHINE_BLOCK_ROWS * (double)(shape.rows * shape.columns) / seconds;
    return STATUS_OK;
}

static enum status type_rates(struct products *products, enum tensor_type type, struct error *error) {
    struct machine_matrix *matrix = &products->measurement->machine->matrices[type];
    uint64_t wide_bytes;
    if (!tensor_row_bytes(type, MACHINE_WIDE, &wide_bytes)) return STATUS_OK;
    TRY(row_rate(products, type, (size_t)wide_bytes, MACHINE_NARROW, &matrix->narrow, error));
    TRY(row_rate(products, type, (size_t)wide_bytes, MACHINE_WIDE, &matrix->wide, error));
    return block_rate(products, type, (size_t)wide_bytes, &matrix->block, error);
}

static enum status rates_of_count(void *context, struct thread_numbers *numbers, struct error *error) {
    (void)numbers;
    return type_rates(context, measure_threads_type, error);
}

/* Behind the first a type can wait: until then it has the numbers of the one with the nearest bytes per element. */
static enum status measure_types(struct products *products, struct error *error) {
    struct measurement *measurement = products->measurement;
    bool can_wait = measurement->adds;
    for (uint32_t type = 0; type < MACHINE_TYPES; type++) {
        const bool is_used = (measurement->use.types >> type & 1) != 0,
                   is_compared = type == measure_threads_type && measurement->threads != NULL;
        if ((!is_used && !is_compared) || (can_wait && measure_is_late(measurement))) continue;
        TRY(measure_part(measurement, tensor_type_find(type)->name, error));
        if (!fill_rows(products, (enum tensor_type)type)) continue;
        const enum status status = is_used ? type_rates(products, (enum tensor_type)type, error) : STATUS_OK;
        if (status == STATUS_UNSUPPORTED) continue; /* the device has no kernel */
        TRY(status);
        can_wait = true;
        if (is_compared) TRY(measure_each_count(measurement, rates_of_count, products, error));
    }
    return STATUS_OK;
}

static enum status open_products(struct products *products, struct error *error) {
    struct device *device = products->measurement->device;
    float *values = calloc(1, products->x_bytes);
    void *weights = mmap(NULL, products->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (values == NULL || weights == MAP_FAILED) {
        free(values);
        return error_set(error, STATUS_MEMORY, "measuring matrices: out of memory");
    }
    products->weights = weights;
    (void)madvise(weights, products->bytes, MADV_NOHUGEPAGE); /* a hint */
    for (size_t i = 0; i < products->x_bytes / sizeof *values; i++) values[i] = (float)(i % 17) - 8;
    enum status status = device->operations->stream_create(device, &products->stream, error);
    if (status == STATUS_OK)
        status = device->operations->allocate(device, MEMORY_DEVICE, products->x_bytes, &products->x, error);
    if (status == STATUS_OK)
        status = device->operations->allocate(device, MEMORY_DEVICE, products->y_bytes, &products->y, error);
    if (status == STATUS_OK) {
        device->operations->upload(products->stream, span_of(&products->x, 0), values, products->x_bytes);
        status = device->operations->stream_synchronize(products->stream, error);
    }
    free(values);
    return status;
}

enum status measure_matrices(struct measurement *measurement, struct error *error) {
    struct device *device = measurement->device;
    const size_t bytes = measurement->options->is_short ? BYTES_TEST
                         : measurement->is_short        ? BYTES_SHORT
                                                        : bandwidth_beyond_caches(3, BYTES);
    struct products products = {
        .measurement = measurement,
        .bytes = bytes,
        .x_bytes = MACHINE_BLOCK_ROWS * MACHINE_WIDE * sizeof(float),
        /* a block, or one row of the longest matrix: of the fewest bytes a row */
        .y_bytes =
            max_size((size_t)MACHINE_BLOCK_ROWS * BLOCK_MATRIX_ROWS, bytes / MATRIX_COUNT / 128) * sizeof(float)};
    enum status status = open_products(&products, error);
    if (status == STATUS_OK) status = measure_types(&products, error);
    if (products.stream != NULL) device->operations->stream_destroy(products.stream);
    device->operations->release(device, &products.x);
    device->operations->release(device, &products.y);
    if (products.weights != NULL) munmap(products.weights, products.bytes);
    return status;
}
