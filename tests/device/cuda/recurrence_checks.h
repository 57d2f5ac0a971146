/* recurrence_checks: layers that keep a state, on both devices of a twin: the card computes in floats what the
 * definition computes in double; a state is of floats on both. */
#pragma once

#include "twin.h"

#define FLOAT_EPS 0x1p-24

static inline size_t between(struct twin *twin, size_t low, size_t high) {
    return low + (size_t)random_below(&twin->random, high - low + 1);
}

/* Three runs of rows, of which the second hands its state on to the third. */
enum { RUNS = 3, RUN_ROWS = 7 };
static inline void runs_make(struct recurrence_item items[RUNS], struct twin_floats *states, size_t on, size_t state,
                      const size_t counts[RUNS]) {
    const struct span memory = twin_span(states, on);
    for (size_t i = 0, row = 0; i < RUNS; row += counts[i++])
        items[i] = (struct recurrence_item){.row_first = row,
                                            .row_count = counts[i],
                                            .from = i == 1 ? (struct span){.buffer = NULL}
                                                           : span_floats(memory, (i == 0 ? 0 : 2) * state),
                                            .to = span_floats(memory, (i == 0 ? 1 : i == 1 ? 2 : 3) * state)};
}

static inline void floats_near(const struct twin_floats *floats, double share, const char *what) {
    for (size_t i = 0; i < floats->count; i++) {
        const double want = (double)floats->after[TWIN_CPU][i];
        check_near(floats->after[TWIN_CUDA][i], want, share * (1 + fabs(want)), "%s %zu", what, i);
    }
}

static inline void convolve_check(struct twin *twin) {
    const size_t channels = between(twin, 1, 300), taps = between(twin, 2, 8), state = (taps - 1) * channels;
    const size_t counts[RUNS] = {between(twin, 1, RUN_ROWS), between(twin, 1, RUN_ROWS), between(twin, 1, RUN_ROWS)},
                 rows = counts[0] + counts[1] + counts[2], stride = 3 * channels + 1;
    const bool gates = random_below(&twin->random, 2), silu = random_below(&twin->random, 2);
    struct twin_floats x, w, states, y;
    twin_floats_make(twin, &x, MEMORY_DEVICE, rows * stride, 1);
    twin_floats_make(twin, &w, MEMORY_DEVICE, channels * taps, 1);
    twin_floats_make(twin, &states, MEMORY_DEVICE, 4 * state, 1);
    twin_floats_make(twin, &y, MEMORY_DEVICE, rows * channels, 1);
    for (size_t on = 0; on < TWINS; on++) {
        struct recurrence_item items[RUNS];
        const struct span in = twin_span(&x, on), none = {.buffer = NULL};
        runs_make(items, &states, on, state, counts);
        twin_operations(twin, on)->convolve(
            twin->stream[on], &(struct convolve_operation){.x = in,
                                                           .in_gate = gates ? span_floats(in, channels) : none,
                                                           .out_gate = gates ? span_floats(in, 2 * channels) : none,
                                                           .x_stride = stride,
                                                           .channel_count = channels,
                                                           .w = twin_span(&w, on),
                                                           .taps = taps,
                                                           .silu = silu,
                                                           .items = items,
                                                           .item_count = RUNS,
                                                           .y = twin_span(&y, on),
                                                           .y_stride = channels});
    }
    twin_floats_read(twin, &y), twin_floats_read(twin, &states);
    floats_near(&y, 400 * FLOAT_EPS, "convolution");
    floats_near(&states, FLOAT_EPS, "its state");
    twin_floats_free(twin, &x), twin_floats_free(twin, &w);
    twin_floats_free(twin, &states), twin_floats_free(twin, &y);
}

/* The card computes in floats, the definition in double; states are floats on both. */
static inline void delta_check(struct twin *twin) {
    const bool is_grouped = between(twin, 0, 1) == 1;
    const size_t key_heads = between(twin, 1, 2), value_heads = key_heads * between(twin, 1, 2),
                 gates = is_grouped ? 2 * value_heads : value_heads,
                 k = 16 * between(twin, 1, 5), v = 16 * between(twin, 1, 16), first = 3,
                 state = first + value_heads * k * v, stride = 2 * key_heads * k + value_heads * v;
    const size_t counts[RUNS] = {between(twin, 1, RUN_ROWS), between(twin, 1, RUN_ROWS), between(twin, 1, RUN_ROWS)},
                 rows = counts[0] + counts[1] + counts[2];
    struct twin_floats x, alpha, beta, heads, z, norm, states, y;
    twin_floats_make(twin, &x, MEMORY_DEVICE, rows * stride, 1);
    twin_floats_make(twin, &alpha, MEMORY_DEVICE, rows * gates, 4);
    twin_floats_make(twin, &beta, MEMORY_DEVICE, rows * gates, 2);
    twin_floats_make(twin, &heads, MEMORY_DEVICE, 2 * value_heads, 1);
    for (size_t i = 0; i < value_heads; i++) heads.before[i] = -fabsf(heads.before[i]) * 0.2f; /* states shrink */
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->upload(twin->stream[on], twin_span(&heads, on), heads.before,
                                          2 * value_heads * sizeof(float));
    twin_floats_make(twin, &z, MEMORY_DEVICE, rows * value_heads * v, 1);
    twin_floats_make(twin, &norm, MEMORY_DEVICE, v, 1);
    twin_floats_make(twin, &states, MEMORY_DEVICE, 4 * state, 0.3);
    twin_floats_make(twin, &y, MEMORY_DEVICE, rows * value_heads * v, 1);
    for (size_t on = 0; on < TWINS; on++) {
        struct recurrence_item items[RUNS];
        const struct span decay = twin_span(&heads, on);
        runs_make(items, &states, on, state, counts);
        twin_operations(twin, on)->delta(twin->stream[on],
                                         &(struct delta_operation){.x = twin_span(&x, on),
                                                                   .x_stride = stride,
                                                                   .key_heads = key_heads,
                                                                   .value_heads = value_heads,
                                                                   .is_grouped = is_grouped,
                                                                   .k_dimension = k,
                                                                   .v_dimension = v,
                                                                   .alpha = twin_span(&alpha, on),
                                                                   .beta = twin_span(&beta, on),
                                                                   .decay = decay,
                                                                   .bias = span_floats(decay, value_heads),
                                                                   .z = twin_span(&z, on),
                                                                   .norm = twin_span(&norm, on),
                                                                   .epsilon = 1e-5f,
                                                                   .items = items,
                                                                   .item_count = RUNS,
                                                                   .state_first = first,
                                                                   .y = twin_span(&y, on)});
    }
    twin_floats_read(twin, &y), twin_floats_read(twin, &states);
    floats_near(&y, 4000 * FLOAT_EPS, "delta");
    floats_near(&states, 1000 * FLOAT_EPS, "its state");
    struct twin_floats *const all[] = {&x, &alpha, &beta, &heads, &z, &norm, &states, &y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) twin_floats_free(twin, all[i]);
}

static inline void gate_check(struct twin *twin) {
    const size_t rows = between(twin, 1, 4), heads = between(twin, 1, 5), size = between(twin, 1, 400);
    struct twin_floats gates, y;
    twin_floats_make(twin, &gates, MEMORY_DEVICE, rows * heads * 2 * size, 3);
    twin_floats_make(twin, &y, MEMORY_DEVICE, rows * heads * size, 1);
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->gate(twin->stream[on], &(struct gate_operation){twin_span(&gates, on), rows, heads,
                                                                                   size, twin_span(&y, on)});
    twin_floats_read(twin, &y);
    floats_near(&y, 100 * FLOAT_EPS, "gate");
    twin_floats_free(twin, &gates), twin_floats_free(twin, &y);
}
