/* twin: a cuda device over the fake driver and the cpu device with its reference kernels, and memory that both have. */
#pragma once

#include "../../kernels/check.h"
#include "../../kernels/weights.h"

#include "device/cuda/card.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/weight_layout.h"
#include "kernels/convert/convert.h"
#include "lab/quantize/quantizers.h"

enum { TWIN_CPU, TWIN_CUDA, TWINS };

struct twin {
    struct random random;
    struct device *device[TWINS];
    struct stream *stream[TWINS];
};

static inline const struct device_operations *twin_operations(const struct twin *twin, size_t on) {
    return twin->device[on]->operations;
}

/* settings: FAKE_CUDA's.  wait_limit_ns: as in struct cuda_device_options. */
static inline void twin_open(struct twin *twin, const char *library, const char *settings, uint64_t seed) {
    struct error error;
    const struct cuda_device_options cuda = {.driver_file = card_driver(library), .thread_count = 2};
    random_init(&twin->random, seed);
    (void)setenv("FAKE_CUDA", settings, 1);
    assert_ok(device_cpu_create(&twin->device[TWIN_CPU], &(struct device_options){.thread_count = 1}, &error),
              error);
    assert_ok(device_cuda_create(&twin->device[TWIN_CUDA], &cuda, &error), error);
    for (size_t on = 0; on < TWINS; on++)
        assert_ok(twin_operations(twin, on)->stream_create(twin->device[on], &twin->stream[on], &error),
                  error);
}

static inline void twin_close(struct twin *twin) {
    for (size_t on = 0; on < TWINS; on++) {
        twin_operations(twin, on)->stream_destroy(twin->stream[on]);
        device_destroy(twin->device[on]);
    }
}

static inline void twin_synchronize(const struct twin *twin) {
    struct error error;
    for (size_t on = 0; on < TWINS; on++)
        assert_ok(twin_operations(twin, on)->stream_synchronize(twin->stream[on], &error), error);
}

/* The same bytes in both devices' memory. */
static inline void twin_upload(struct twin *twin, struct buffer memory[TWINS], const void *source,
                               size_t bytes) {
    struct error error;
    for (size_t on = 0; on < TWINS; on++) {
        assert_ok(
            twin_operations(twin, on)->allocate(twin->device[on], MEMORY_DEVICE, bytes, &memory[on], &error),
            error);
        twin_operations(twin, on)->upload(twin->stream[on], span_of(&memory[on], 0), source, bytes);
    }
}
static inline void twin_release(struct twin *twin, struct buffer memory[TWINS]) {
    for (size_t on = 0; on < TWINS; on++) twin_operations(twin, on)->release(twin->device[on], &memory[on]);
}

/* The same floats on both, and what both have made of them. */
struct twin_floats {
    size_t count;
    float *before;
    struct buffer on[TWINS];
    float *after[TWINS];
};

static inline void twin_floats_make(struct twin *twin, struct twin_floats *floats, enum memory_kind kind,
                                    size_t count, double deviation) {
    struct error error;
    *floats = (struct twin_floats){.count = count, .before = malloc(count * sizeof(float))};
    fill_normal(&twin->random, floats->before, count, deviation);
    for (size_t on = 0; on < TWINS; on++) {
        floats->after[on] = malloc(count * sizeof(float));
        assert_ok(twin_operations(twin, on)->allocate(twin->device[on], kind, count * sizeof(float),
                                                      &floats->on[on], &error),
                  error);
        twin_operations(twin, on)->upload(twin->stream[on], span_of(&floats->on[on], 0), floats->before,
                                          count * sizeof(float));
    }
}

static inline struct span twin_span(const struct twin_floats *floats, size_t on) {
    return span_of(&floats->on[on], 0);
}

static inline void twin_floats_read(struct twin *twin, struct twin_floats *floats) {
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->download(twin->stream[on], floats->after[on], twin_span(floats, on),
                                            floats->count * sizeof(float));
    twin_synchronize(twin);
}

static inline void twin_floats_free(struct twin *twin, struct twin_floats *floats) {
    for (size_t on = 0; on < TWINS; on++) {
        twin_operations(twin, on)->release(twin->device[on], &floats->on[on]);
        free(floats->after[on]);
    }
    free(floats->before);
}

/* A weight on both, and its values; a stack of matrices has that many scales. */
enum { TWIN_STACK_MAX = 12 };
struct twin_weight {
    struct weight on[TWINS];
    float *values;                /* [rows][columns] */
    float scales[TWIN_STACK_MAX]; /* of NVFP4 */
};

static inline void twin_stack_make(struct twin *twin, struct twin_weight *weight, enum tensor_type type,
                                   size_t count, size_t rows, size_t columns) {
    struct convert_kernels convert;
    struct error error;
    uint64_t row_bytes;
    const enum memory_kind kind = random_below(&twin->random, 2) ? MEMORY_DEVICE : MEMORY_SHARED;
    convert_kernels_init(&convert, 0);
    assert_true(tensor_row_bytes(type, columns, &row_bytes));
    assert_true(count <= TWIN_STACK_MAX && rows % count == 0);
    for (size_t i = 0; i < count; i++) weight->scales[i] = (float)(3 + random_double(&twin->random));
    uint8_t *data = malloc(rows * (size_t)row_bytes);
    weight->values = malloc(rows * columns * sizeof(float));
    for (size_t r = 0; r < rows; r++) {
        float *row = weight->values + r * columns;
        fill_normal(&twin->random, row, columns, 0.1);
        if (weight_plane_type(type) == type)
            row_quantizer_of(type)(row, data + r * row_bytes, columns);
        else
            weight_fill(&twin->random, type, WEIGHT_RANDOM, data + r * row_bytes, columns);
        convert.dequantize[type](data + r * row_bytes, row, columns);
        for (size_t c = 0; c < columns && type == TENSOR_NVFP4; c++)
            row[c] *= weight->scales[r / (rows / count)];
    }
    for (size_t on = 0; on < TWINS; on++) {
        weight->on[on] =
            (struct weight){.matrix = {type, data, rows, columns, (size_t)row_bytes}, .kind = kind};
        if (type == TENSOR_NVFP4) weight->on[on].scale = weight->scales, weight->on[on].scale_count = count;
        assert_ok(twin_operations(twin, on)->weight_load(twin->device[on], &weight->on[on], &error), error);
    }
}

static inline void twin_weight_make(struct twin *twin, struct twin_weight *weight, enum tensor_type type,
                                    size_t rows, size_t columns) {
    twin_stack_make(twin, weight, type, 1, rows, columns);
}

static inline void twin_weight_free(struct twin *twin, struct twin_weight *weight) {
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->weight_release(twin->device[on], &weight->on[on]);
    free((void *)(uintptr_t)weight->on[0].matrix.data);
    free(weight->values);
}
