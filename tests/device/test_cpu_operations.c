/* Every operation of the cpu device on random shapes: against direct calls of the same kernels or a plain
 * computation in double, and bit for bit the same on 1, 2, 3 and 7 threads. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "device/cpu/cpu_device_internal.h"
#include "host_span.h"
#include "kernels/weights.h"
#include "placed.h"
#include "seed.h"

enum { DEVICES = 4, ROUNDS = 8 };
static const size_t THREADS[DEVICES] = {1, 2, 3, 7};

struct fixture {
    struct device *devices[DEVICES];
    struct stream *streams[DEVICES];
    struct kernels kernels;
    struct random random;
    float tolerance; /* of attention, whose variants round to 16 bits */
};

static void fixture_init(struct fixture *fixture, cpu_mask mask) {
    random_init(&fixture->random, test_seed(20260102));
    printf("cpu mask %#x\n", mask);
    kernels_init(&fixture->kernels, mask);
    fixture->tolerance = mask == 0 ? 1e-4f : 0.03f;
    for (size_t i = 0; i < DEVICES; i++) {
        struct error error;
        const struct device_options options = {THREADS[i], mask};
        assert_ok(device_cpu_create(&fixture->devices[i], &options, &error), error);
        assert_ok(
            fixture->devices[i]->operations->stream_create(fixture->devices[i], &fixture->streams[i], &error),
            error);
    }
}

static void fixture_deinit(struct fixture *fixture) {
    for (size_t i = 0; i < DEVICES; i++) {
        struct error error;
        assert_ok(fixture->devices[i]->operations->stream_synchronize(fixture->streams[i], &error), error);
        fixture->devices[i]->operations->stream_destroy(fixture->streams[i]);
        device_destroy(fixture->devices[i]);
    }
}

/* Runs the test on the plain kernels and on the best that this processor has. */
static void with_masks(void (*test)(struct fixture *fixture)) {
    const cpu_mask masks[] = {0, cpu_features()};
    for (size_t i = 0; i < 2; i++) {
        struct fixture fixture;
        fixture_init(&fixture, masks[i]);
        test(&fixture);
        fixture_deinit(&fixture);
    }
}

static size_t between(struct fixture *fixture, size_t low, size_t high) {
    return low + (size_t)random_below(&fixture->random, high - low + 1);
}

static float *random_floats(struct fixture *fixture, size_t count) {
    float *values = malloc(max_size(count, 1) * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = (float)random_normal(&fixture->random);
    return values;
}

static float *copy_of(const float *values, size_t count) {
    float *copy = malloc(max_size(count, 1) * sizeof *copy);
    memcpy(copy, values, count * sizeof *copy);
    return copy;
}

static void assert_close(const float *found, const float *expected, size_t count, float tolerance) {
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(found[i] - expected[i]) <= tolerance * fmaxf(1, fabsf(expected[i]))))
            fail_msg("element %zu: found %g, expected %g", i, (double)found[i], (double)expected[i]);
}

static struct matrix random_matrix(struct fixture *fixture, enum tensor_type type, size_t rows,
                                   size_t columns) {
    struct matrix matrix = {.type = type, .rows = rows, .columns = columns};
    uint64_t row_bytes;
    assert_true(tensor_row_bytes(type, columns, &row_bytes));
    matrix.row_bytes = (size_t)row_bytes;
    uint8_t *data = malloc(rows * matrix.row_bytes);
    float *row = malloc(columns * sizeof *row);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) row[c] = (float)random_normal(&fixture->random) * 0.1f;
        weight_store(&fixture->random, type, row, data + r * matrix.row_bytes, columns);
    }
    free(row);
    matrix.data = data;
    return matrix;
}

static const enum tensor_type WEIGHT_TYPES[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16,
                                                TENSOR_Q4_0, TENSOR_Q8_0, TENSOR_Q5_1,
                                                TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q4_K};

/* One weight, all inputs, on this thread: what the device's schedule must not change. */
static void multiply_directly(struct fixture *fixture, const struct matrix *weight, const float *x,
                              size_t x_stride, size_t row_count, float *y /* [row_count][rows] */) {
    const struct cpu_device *device = (const struct cpu_device *)fixture->devices[0];
    const struct matmul_method *method = cpu_matmul_method(device, weight->type, row_count);
    if (method != NULL) {
        void *prepared = aligned_alloc(64, align_up(method->prepared_bytes(row_count, weight->columns), 64));
        void *scratch = aligned_alloc(64, align_up(method->scratch_bytes(weight->columns) + 1, 64));
        method->prepare(x, x_stride, row_count, weight->columns, 0, row_count, prepared);
        method->run(
            &(struct matmul_args){weight, row_count, prepared, y, weight->rows, 0, weight->rows, scratch});
        free(scratch);
        free(prepared);
        return;
    }
    enum matvec_form form = fixture->kernels.matvec.form[weight->type];
    size_t input_bytes = fixture->kernels.matvec.input_bytes(form, weight->columns);
    void *prepared = aligned_alloc(64, row_count * input_bytes);
    for (size_t row = 0; row < row_count; row++)
        fixture->kernels.matvec.prepare[form](x + row * x_stride, weight->columns,
                                              (char *)prepared + row * input_bytes);
    for (size_t row = 0; row < row_count; row += MATVEC_INPUTS_MAX)
        fixture->kernels.matvec.run[weight->type](&(struct matvec_args){
            weight, min_size(MATVEC_INPUTS_MAX, row_count - row), (char *)prepared + row * input_bytes,
            y + row * weight->rows, weight->rows, 0, weight->rows});
    free(prepared);
}

struct matmul_case {
    struct matmul_operation operation;
    struct weight weights[DEVICE_GROUP_MAX];
    float *x, *biases[DEVICE_GROUP_MAX], *before[DEVICE_GROUP_MAX], *expected[DEVICE_GROUP_MAX];
};

static void matmul_case_init(struct fixture *fixture, struct matmul_case *c, size_t round) {
    *c = (struct matmul_case){0};
    struct matmul_operation *operation = &c->operation;
    size_t columns = 256 * between(fixture, 1, 3);
    static const size_t row_counts[] = {1, 2, 8, 9, 40, 3};
    operation->row_count = row_counts[round % 6];
    operation->x_stride = columns + between(fixture, 0, 20);
    c->x = random_floats(fixture, operation->row_count * operation->x_stride);
    operation->x = host_span(c->x);
    operation->weight_count = between(fixture, 1, DEVICE_GROUP_MAX);
    operation->accumulate = round % 2 == 1;
    for (size_t j = 0; j < operation->weight_count; j++) {
        enum tensor_type type =
            WEIGHT_TYPES[between(fixture, 0, sizeof WEIGHT_TYPES / sizeof *WEIGHT_TYPES - 1)];
        size_t rows = between(fixture, 1, 300);
        c->weights[j] = host_weight(random_matrix(fixture, type, rows, columns));
        operation->weights[j] = &c->weights[j];
        operation->y_stride[j] = rows + between(fixture, 0, 5);
        size_t count = operation->row_count * operation->y_stride[j];
        c->before[j] = random_floats(fixture, count);
        c->expected[j] = copy_of(c->before[j], count);
        if (between(fixture, 0, 1) == 1) c->biases[j] = random_floats(fixture, rows);
        operation->biases[j] = host_span(c->biases[j]);
        float *direct = calloc(operation->row_count * rows, sizeof *direct);
        multiply_directly(fixture, &c->weights[j].matrix, c->x, operation->x_stride, operation->row_count,
                          direct);
        for (size_t i = 0; i < operation->row_count; i++)
            for (size_t r = 0; r < rows; r++) {
                float sum = direct[i * rows + r], *y = &c->expected[j][i * operation->y_stride[j] + r];
                if (c->biases[j] != NULL) sum += c->biases[j][r];
                *y = operation->accumulate ? *y + sum : sum;
            }
        free(direct);
    }
}

static void matmul_case_deinit(struct matmul_case *c) {
    free(c->x);
    for (size_t j = 0; j < c->operation.weight_count; j++) {
        free((void *)(uintptr_t)c->weights[j].matrix.data);
        free(c->biases[j]);
        free(c->before[j]);
        free(c->expected[j]);
    }
}

static void test_matmul(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct matmul_case c;
        matmul_case_init(fixture, &c, round);
        for (size_t d = 0; d < DEVICES; d++) {
            struct matmul_operation operation = c.operation;
            float *y[DEVICE_GROUP_MAX];
            for (size_t j = 0; j < operation.weight_count; j++) {
                y[j] = copy_of(c.before[j], operation.row_count * operation.y_stride[j]);
                operation.y[j] = host_span(y[j]);
            }
            fixture->devices[d]->operations->matmul(fixture->streams[d], &operation);
            for (size_t j = 0; j < operation.weight_count; j++) {
                size_t count = operation.row_count * operation.y_stride[j];
                if (memcmp(y[j], c.expected[j], count * sizeof(float)) != 0)
                    fail_msg("round %zu, %zu threads, weight %zu (%s, %zu inputs): not the direct result",
                             round, THREADS[d], j, tensor_type_info(c.weights[j].matrix.type)->name,
                             operation.row_count);
                free(y[j]);
            }
        }
        matmul_case_deinit(&c);
    }
}

static void matmul_is_the_kernels_result(void **state) {
    (void)state;
    with_masks(test_matmul);
}

/* What a step of a few sequences takes: tiles of AMX, which round otherwise, are for more. */
static void test_few_inputs(struct fixture *fixture) {
    static const size_t counts[] = {2, 4, 5, 8, 9, 16, 24};
    enum { COLUMNS = 512, ROWS = 70, INPUTS_MAX = 24 };
    struct stream *stream = fixture->streams[1];
    for (size_t t = 0; t < sizeof WEIGHT_TYPES / sizeof *WEIGHT_TYPES; t++) {
        if (fixture->kernels.matvec.form[WEIGHT_TYPES[t]] == MATVEC_FORM_F32) continue;
        struct weight weight = host_weight(random_matrix(fixture, WEIGHT_TYPES[t], ROWS, COLUMNS));
        float *x = random_floats(fixture, INPUTS_MAX * COLUMNS);
        static float alone[INPUTS_MAX * ROWS], together[INPUTS_MAX * ROWS];
        struct matmul_operation operation = {
            .x_stride = COLUMNS, .row_count = 1, .weight_count = 1, .weights = {&weight}, .y_stride = {ROWS}};
        for (size_t i = 0; i < INPUTS_MAX; i++) {
            operation.x = host_span(x + i * COLUMNS);
            operation.y[0] = host_span(alone + i * ROWS);
            fixture->devices[1]->operations->matmul(stream, &operation);
        }
        operation.x = host_span(x);
        operation.y[0] = host_span(together);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            operation.row_count = counts[i];
            fixture->devices[1]->operations->matmul(stream, &operation);
            if (memcmp(together, alone, counts[i] * ROWS * sizeof *alone) != 0)
                fail_msg("%s: %zu inputs are not multiplied as each alone",
                         tensor_type_info(WEIGHT_TYPES[t])->name, counts[i]);
        }
        free((void *)(uintptr_t)weight.matrix.data);
        free(x);
    }
}

static void few_inputs_multiply_as_each_alone(void **state) {
    (void)state;
    if ((cpu_features() & CPU_AVX2) == 0) skip(); /* NEON's matmul multiplies floats */
    with_masks(test_few_inputs);
}

/* The direct result itself is a product: F32 against sums in double. */
static void test_matmul_value(struct fixture *fixture) {
    for (size_t row_count = 1; row_count < 40; row_count += 12) {
        size_t rows = 70, columns = 256;
        struct weight weight = host_weight(random_matrix(fixture, TENSOR_F32, rows, columns));
        float *x = random_floats(fixture, row_count * columns), *y = random_floats(fixture, row_count * rows);
        struct matmul_operation operation = {.x = host_span(x),
                                             .x_stride = columns,
                                             .row_count = row_count,
                                             .weight_count = 1,
                                             .weights = {&weight},
                                             .y = {host_span(y)},
                                             .y_stride = {rows}};
        fixture->devices[2]->operations->matmul(fixture->streams[2], &operation);
        const float *w = weight.matrix.data;
        float magnitude = fixture->tolerance > 0.01f ? 0.05f : 1e-4f; /* some variants multiply in bf16 */
        for (size_t i = 0; i < row_count; i++)
            for (size_t r = 0; r < rows; r++) {
                double sum = 0;
                for (size_t c = 0; c < columns; c++)
                    sum += (double)w[r * columns + c] * (double)x[i * columns + c];
                assert_true(fabs((double)y[i * rows + r] - sum) < (double)magnitude);
            }
        free((void *)(uintptr_t)weight.matrix.data);
        free(x);
        free(y);
    }
}

/* Of a weight with a scale the products are that much larger; the bias and what they are added to are not. */
static void test_scale(struct fixture *fixture) {
    enum { ROWS = 37, COLUMNS = 64, INPUTS = 3 };
    struct weight weight = host_weight(random_matrix(fixture, TENSOR_F32, ROWS, COLUMNS));
    float *x = random_floats(fixture, INPUTS * COLUMNS), *bias = random_floats(fixture, ROWS);
    float plain[INPUTS * ROWS], scaled[INPUTS * ROWS];
    const float scale = 0.25F;
    for (int adds = 0; adds < 2; adds++) {
        struct matmul_operation operation = {.x = host_span(x),
                                             .x_stride = COLUMNS,
                                             .row_count = INPUTS,
                                             .weight_count = 1,
                                             .weights = {&weight},
                                             .y = {host_span(plain)},
                                             .y_stride = {ROWS}};
        weight.scale = NULL;
        fixture->devices[1]->operations->matmul(fixture->streams[1], &operation);
        for (size_t i = 0; i < INPUTS * ROWS; i++) scaled[i] = adds ? 8 : 0;
        operation.y[0] = host_span(scaled);
        operation.biases[0] = host_span(bias);
        operation.accumulate = adds == 1;
        weight.scale = &scale;
        fixture->devices[1]->operations->matmul(fixture->streams[1], &operation);
        for (size_t i = 0; i < INPUTS * ROWS; i++) {
            const float product = plain[i] * scale + bias[i % ROWS];
            assert_true(scaled[i] == (adds ? 8 + product : product));
        }
    }
    free((void *)(uintptr_t)weight.matrix.data);
    free(bias);
    free(x);
}

static void a_scale_multiplies_products_alone(void **state) {
    (void)state;
    with_masks(test_scale);
}

/* ---- mixtures of experts */

enum { EXPERTS = 12, ROUTE_ROWS = 40 };

/* The picks of one row by the words of route_operation; false: two are so alike that rounding decides. */
static bool route_plainly(const struct route_operation *route, const float *scores, const float *bias,
                          uint32_t *picks, double *weights) {
    double worth[EXPERTS], choice[EXPERTS], sum = 0;
    const size_t size = route->group_count > 1 ? EXPERTS / route->group_count : EXPERTS;
    for (size_t e = 0; e < EXPERTS; e++) sum += exp((double)scores[e]);
    for (size_t e = 0; e < EXPERTS; e++) {
        const double x = (double)scores[e];
        worth[e] = route->router == ROUTER_SOFTMAX   ? exp(x) / sum
                   : route->router == ROUTER_SIGMOID ? 1 / (1 + exp(-x))
                                                     : x;
        choice[e] = worth[e] + (bias != NULL ? (double)bias[e] : 0);
    }
    double group_worth[EXPERTS], sorted[EXPERTS];
    size_t above[EXPERTS] = {0};
    for (size_t g = 0; route->group_count > 1 && g < route->group_count; g++) {
        double best[2] = {-INFINITY, -INFINITY};
        for (size_t e = g * size; e < (g + 1) * size; e++)
            if (choice[e] > best[0])
                best[1] = best[0], best[0] = choice[e];
            else if (choice[e] > best[1])
                best[1] = choice[e];
        group_worth[g] = best[0] + best[1];
    }
    for (size_t g = 0; route->group_count > 1 && g < route->group_count; g++)
        for (size_t h = 0; h < route->group_count; h++) {
            above[g] += group_worth[h] > group_worth[g];
            if (h != g && fabs(group_worth[h] - group_worth[g]) < 1e-6) return false;
        }
    for (size_t e = 0; e < EXPERTS; e++)
        if (route->group_count > 1 && above[e / size] >= route->groups_used) choice[e] = -INFINITY;
    for (size_t j = 0; j < EXPERTS; j++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < EXPERTS; e++)
            if (choice[e] > choice[best]) best = e;
        sorted[j] = choice[best];
        if (j > 0 && j <= route->used && sorted[j - 1] - sorted[j] < 1e-6) return false;
        if (j < route->used) picks[j] = best, weights[j] = worth[best];
        choice[best] = -INFINITY;
    }
    double total = 0, all = 0;
    for (size_t j = 0; j < route->used; j++) all += exp(weights[j]);
    for (size_t j = 0; route->router == ROUTER_SOFTMAX_OF_CHOSEN && j < route->used; j++)
        weights[j] = exp(weights[j]) / all;
    for (size_t j = 0; j < route->used; j++) total += weights[j];
    for (size_t j = 0; j < route->used; j++)
        weights[j] *= (double)route->scale / (route->normalises ? total : 1) *
                      (span_exists(route->scales) ? (double)((float *)span_host(route->scales))[picks[j]] : 1);
    return true;
}

static void test_route(struct fixture *fixture) {
    size_t compared = 0;
    for (size_t round = 0; round < 24; round++) {
        float *scores = random_floats(fixture, ROUTE_ROWS * EXPERTS), *bias = random_floats(fixture, EXPERTS);
        const size_t used = between(fixture, 1, 5);
        uint32_t *picks = malloc(ROUTE_ROWS * used * sizeof *picks),
                 *first = malloc(ROUTE_ROWS * used * sizeof *first);
        float *weights = malloc(ROUTE_ROWS * used * sizeof *weights),
              *first_weights = copy_of(scores, ROUTE_ROWS * used);
        const bool has_bias = round % 2, has_groups = round % 4 > 1;
        struct route_operation operation = {.router = (enum router)(round % 3),
                                            .scores = host_span(scores),
                                            .row_count = ROUTE_ROWS,
                                            .expert_count = EXPERTS,
                                            .used = used,
                                            .group_count = has_groups ? 4 : 0,
                                            .groups_used = has_groups ? 2 : 0,
                                            .normalises = round % 5 > 1,
                                            .scale = round % 7 == 0 ? 2.5F : 1};
        if (has_bias) operation.bias = host_span(bias);
        if (round % 5 > 2) operation.scales = host_span(bias);
        for (size_t d = 0; d < DEVICES; d++) {
            operation.picks = host_span(d == 0 ? (void *)first : (void *)picks);
            operation.weights = host_span(d == 0 ? first_weights : weights);
            fixture->devices[d]->operations->route(fixture->streams[d], &operation);
            if (d == 0) continue;
            assert_memory_equal(picks, first, ROUTE_ROWS * used * sizeof *picks);
            assert_memory_equal(weights, first_weights, ROUTE_ROWS * used * sizeof *weights);
        }
        for (size_t row = 0; row < ROUTE_ROWS; row++) {
            uint32_t want[EXPERTS];
            double want_weights[EXPERTS];
            if (!route_plainly(&operation, scores + row * EXPERTS, has_bias ? bias : NULL, want,
                               want_weights))
                continue;
            compared++;
            for (size_t j = 0; j < used; j++) {
                assert_int_equal(first[row * used + j], want[j]);
                assert_true(fabs((double)first_weights[row * used + j] - want_weights[j]) < 1e-5);
            }
        }
        free(scores), free(bias), free(picks), free(first), free(weights), free(first_weights);
    }
    assert_true(compared > 24 * ROUTE_ROWS * 9 / 10);
}

static void rows_pick_their_best_experts(void **state) {
    (void)state;
    with_masks(test_route);
}

/* A score that is no number picks some expert, and its weight is none either; of equals the first are picked. */
static void test_route_oddities(struct fixture *fixture) {
    float scores[2][EXPERTS] = {{0}}, weights[2][3];
    uint32_t picks[2][3];
    scores[1][2] = NAN;
    const struct route_operation operation = {.router = ROUTER_SOFTMAX,
                                              .scores = host_span(scores),
                                              .row_count = 2,
                                              .expert_count = EXPERTS,
                                              .used = 3,
                                              .normalises = true,
                                              .scale = 1,
                                              .picks = host_span(picks),
                                              .weights = host_span(weights)};
    fixture->devices[1]->operations->route(fixture->streams[1], &operation);
    for (size_t j = 0; j < 3; j++) {
        assert_int_equal(picks[0][j], j);
        assert_true(picks[1][j] < EXPERTS && isnan(weights[1][j]));
    }
}

static void odd_scores_pick_experts_that_are_there(void **state) {
    (void)state;
    with_masks(test_route_oddities);
}

/* Each product has the bits of its expert's matrix times this row alone, whatever the others are; mixed, the bits of
 * their sum by the number of the expert, also where some experts are there at a time. */
static void test_experts(struct fixture *fixture) {
    static const enum tensor_type types[] = {TENSOR_F32,   TENSOR_Q8_0,  TENSOR_Q4_K,
                                             TENSOR_MXFP4, TENSOR_NVFP4, TENSOR_IQ2_XS};
    static const size_t row_counts[] = {1, 3, 50};
    enum { USED = 3, OUTPUTS = 70, COLUMNS = 256, ROWS_MAX = 50, PLACES = ROWS_MAX * USED };
    for (size_t round = 0; round < 2 * sizeof types / sizeof *types * 3; round++) {
        if (!test_takes_next()) continue;
        const size_t rows = row_counts[round % 3], places = rows * USED;
        const enum tensor_type type = types[round / 3 % (sizeof types / sizeof *types)];
        const bool per_pick = round % 2, mixed = round / 2 % 2, replaces = round / 4 % 2;
        struct weight stack = host_weight(random_matrix(fixture, type, EXPERTS * OUTPUTS, COLUMNS));
        float *x = random_floats(fixture, PLACES * COLUMNS),
              *bias = random_floats(fixture, EXPERTS * OUTPUTS);
        float *scale = random_floats(fixture, EXPERTS), *mix = random_floats(fixture, PLACES);
        float *want = calloc(PLACES * OUTPUTS, sizeof *want), *y = NULL,
              *products = calloc(PLACES * OUTPUTS, sizeof *products);
        uint32_t picks[PLACES];
        const bool crowd = round % 4 == 3; /* one expert has most rows: through matmul */
        for (size_t i = 0; i < places; i++)
            picks[i] = crowd && i % USED == 0 ? 5 : (uint32_t)between(fixture, 0, EXPERTS - 1);
        if (round % 5 == 0) stack.scale = scale;
        struct span biases = {.buffer = NULL};
        if (round % 3 == 0) biases = host_span(bias);
        for (size_t i = 0; i < places; i++) { /* alone, by matmul */
            float scaled[OUTPUTS];
            struct weight one = stack;
            one.matrix.rows = OUTPUTS;
            one.matrix.data = (const uint8_t *)stack.matrix.data + picks[i] * OUTPUTS * stack.matrix.row_bytes;
            one = host_weight(one.matrix);
            if (stack.scale != NULL) one.scale = stack.scale + picks[i];
            struct matmul_operation product = {.x = host_span(x + (per_pick ? i : i / USED) * COLUMNS),
                                               .x_stride = COLUMNS,
                                               .row_count = 1,
                                               .weight_count = 1,
                                               .weights = {&one},
                                               .y = {host_span(scaled)},
                                               .y_stride = {OUTPUTS}};
            if (span_exists(biases)) product.biases[0] = host_span(bias + picks[i] * OUTPUTS);
            fixture->devices[0]->operations->matmul(fixture->streams[0], &product);
            memcpy((mixed ? products : want) + i * OUTPUTS, scaled, sizeof scaled);
        }
        for (size_t i = 0; mixed && i < rows * OUTPUTS; i++) {
            want[i] = replaces ? 0 : 1;
            for (uint32_t e = 0; e < EXPERTS; e++)
                for (size_t p = i / OUTPUTS * USED; p < (i / OUTPUTS + 1) * USED; p++)
                    if (picks[p] == e) want[i] += mix[p] * products[p * OUTPUTS + i % OUTPUTS];
        }
        for (size_t d = 0; d < DEVICES; d++) {
            y = calloc(PLACES * OUTPUTS, sizeof *y);
            for (size_t i = 0; mixed && i < rows * OUTPUTS; i++) y[i] = 1;
            struct matmul_experts_operation operation = {.x = host_span(x),
                                                         .x_stride = COLUMNS,
                                                         .per_pick = per_pick,
                                                         .row_count = rows,
                                                         .expert_count = EXPERTS,
                                                         .used = USED,
                                                         .picks = host_span(picks),
                                                         .weight_count = 1,
                                                         .weights = {&stack},
                                                         .biases = {biases},
                                                         .y = {host_span(y)},
                                                         .y_stride = {OUTPUTS}};
            if (mixed) operation.mix = host_span(mix);
            const void *there[EXPERTS];
            const size_t turns = round % 5 == 0 || round % 2 == 0 ? 1 : 3, each = (EXPERTS + turns - 1) / turns;
            for (size_t turn = 0; turn < turns; turn++) {
                for (size_t e = 0; e < EXPERTS; e++) {
                    const uint8_t *own = (const uint8_t *)stack.matrix.data + e * OUTPUTS * stack.matrix.row_bytes;
                    there[e] = e / each == turn ? own : NULL;
                }
                if (turns > 1) operation.places[0] = there;
                operation.replaces = replaces && turn == 0;
                fixture->devices[d]->operations->matmul_experts(fixture->streams[d], &operation);
            }
            for (size_t i = 0; i < (mixed ? rows : places) * OUTPUTS; i++)
                if (memcmp(y + i, want + i, sizeof *y) != 0)
                    fail_msg("round %zu, %s, %zu rows, %zu threads: output %zu is %.9g, want %.9g", round,
                             tensor_type_info(type)->name, rows, THREADS[d], i, (double)y[i],
                             (double)want[i]);
            free(y);
        }
        free((void *)(uintptr_t)stack.matrix.data);
        free(x), free(bias), free(scale), free(mix), free(want), free(products);
    }
}

static void experts_multiply_each_row_as_if_alone(void **state) {
    (void)state;
    with_masks(test_experts);
}

static void matmul_of_f32_is_the_product(void **state) {
    (void)state;
    with_masks(test_matmul_value);
}

static void test_rows(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        size_t rows = between(fixture, 1, 90), segments = between(fixture, 1, 4),
               size = 8 * between(fixture, 1, 150);
        size_t stride = segments * size + between(fixture, 0, 9), count = rows * stride;
        float *x = random_floats(fixture, count), *w = random_floats(fixture, size);
        float *b = random_floats(fixture, size), *expected = copy_of(x, count), *y = NULL;
        float *sum = random_floats(fixture, count), *sums = copy_of(sum, count);
        enum norm_kind kind = round % 2 == 0 ? NORM_RMS : NORM_LAYER;
        const float scale = round % 3 == 0 ? 0 : 0.7f; /* 0: there is none */
        for (size_t i = 0; i < rows * segments; i++) {
            float *place = expected + i / segments * stride + i % segments * size;
            if (kind == NORM_RMS)
                fixture->kernels.norm.rms(place, w, 1e-5f, size, place);
            else
                fixture->kernels.norm.layer(place, w, b, 1e-5f, size, place);
            for (size_t j = 0; j < size; j++) {
                float *all = &sums[place - expected + (ptrdiff_t)j];
                *all += place[j];
                if (scale != 0) *all *= scale;
            }
        }
        for (size_t d = 0; d < DEVICES; d++) {
            y = copy_of(x, count);
            struct norm_operation operation = {kind,     host_span(y), stride,       rows,
                                               segments, size,         host_span(w), host_span(b),
                                               1e-5f,    host_span(y), stride,       false,        0};
            fixture->devices[d]->operations->norm(fixture->streams[d], &operation);
            assert_memory_equal(y, expected, count * sizeof(float));
            float *added = copy_of(sum, count);
            memcpy(y, x, count * sizeof *y);
            operation.y = host_span(added);
            operation.adds = true;
            operation.scale = scale;
            fixture->devices[d]->operations->norm(fixture->streams[d], &operation);
            assert_memory_equal(added, sums, count * sizeof(float));
            free(added);
            free(y);
        }
        free(sum);
        free(sums);
        free(x);
        free(w);
        free(b);
        free(expected);
    }
}

static void norm_of_segments_in_place(void **state) {
    (void)state;
    with_masks(test_rows);
}

static void test_rope(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        size_t rows = between(fixture, 1, 70), heads = between(fixture, 1, 6),
               pairs = 4 * between(fixture, 1, 16);
        size_t head_stride = 2 * pairs + 8 * between(fixture, 0, 2), stride = heads * head_stride + 3;
        struct step_row *step = calloc(rows, sizeof *step);
        for (size_t i = 0; i < rows; i++)
            step[i].position = random_below(&fixture->random, (uint64_t)1 << 33);
        float *frequency = random_floats(fixture, pairs), *x = random_floats(fixture, rows * stride);
        float *expected = copy_of(x, rows * stride), *angles = random_floats(fixture, 2 * pairs);
        enum rope_order order = round % 2 == 0 ? ROPE_ADJACENT : ROPE_SPLIT;
        for (size_t i = 0; i < rows; i++) {
            fixture->kernels.rope.angles(step[i].position, frequency, pairs, 1.25f, angles);
            fixture->kernels.rope.apply(expected + i * stride, heads, head_stride, pairs, order, angles);
        }
        for (size_t d = 0; d < DEVICES; d++) {
            float *y = copy_of(x, rows * stride), *table = random_floats(fixture, rows * 2 * pairs);
            const struct rope_angles_operation make = {host_span(step), rows,  host_span(frequency),
                                                       pairs,           1.25f, host_span(table)};
            const struct rope_operation apply = {host_span(y), stride, rows,  heads,
                                                 head_stride,  pairs,  order, host_span(table)};
            fixture->devices[d]->operations->rope_angles(fixture->streams[d], &make);
            fixture->devices[d]->operations->rope(fixture->streams[d], &apply);
            assert_memory_equal(y, expected, rows * stride * sizeof(float));
            free(y);
            free(table);
        }
        free(step);
        free(frequency);
        free(x);
        free(expected);
        free(angles);
    }
}

static void rope_of_any_rows(void **state) {
    (void)state;
    with_masks(test_rope);
}

#define CAP 3 /* of ACTIVATION_SOFTCAP */

static float activate(enum activation_kind kind, float gate, float up) {
    double x = (double)gate;
    if (kind == ACTIVATION_SILU_MULTIPLY) return (float)(x / (1 + exp(-x)) * (double)up);
    if (kind == ACTIVATION_RELU) return gate > 0 ? gate : 0;
    if (kind == ACTIVATION_SWIGLU_CLAMPED)
        return (float)(fmin(x, 7) / (1 + exp(-1.702 * fmin(x, 7))) * (fmax(-7, fmin((double)up, 7)) + 1));
    if (kind == ACTIVATION_SOFTCAP) return (float)(CAP * tanh(x / CAP));
    return (float)(0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * (double)up);
}

static void test_activation(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        size_t rows = between(fixture, 1, 12), count = between(fixture, 1, 3000),
               stride = count + between(fixture, 0, 9);
        float *gate = random_floats(fixture, rows * stride), *up = random_floats(fixture, rows * stride);
        enum activation_kind kind = (enum activation_kind)(round % (ACTIVATION_SOFTCAP + 1));
        float *expected = copy_of(gate, rows * stride), *first = NULL;
        for (size_t i = 0; i < rows * stride; i++)
            if (i % stride < count) expected[i] = activate(kind, gate[i], up[i]);
        for (size_t d = 0; d < DEVICES; d++) {
            float *y = copy_of(gate, rows * stride);
            const struct activation_operation operation = {kind, host_span(y), host_span(up), stride,
                                                           rows, count,        CAP, host_span(y)};
            fixture->devices[d]->operations->activation(fixture->streams[d], &operation);
            assert_close(y, expected, rows * stride, 2e-5f);
            if (d == 0) {
                first = y;
                continue;
            }
            assert_memory_equal(y, first, rows * stride * sizeof(float));
            free(y);
        }
        free(first);
        free(gate);
        free(up);
        free(expected);
    }
}

static void activation_of_pieces(void **state) {
    (void)state;
    with_masks(test_activation);
}

static void test_embed_and_gather(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        size_t rows = between(fixture, 1, 90), columns = 256 * between(fixture, 1, 2), table_rows = 20;
        const size_t first = round % 2 == 0 ? 0 : 256; /* of the table's columns */
        struct matrix table = random_matrix(fixture, WEIGHT_TYPES[round % 9], table_rows, first + columns);
        struct matrix positions_table = random_matrix(fixture, TENSOR_F16, 50, columns);
        const struct weight embedding = host_weight(table), position_embedding = host_weight(positions_table);
        const float scale = round % 3 == 0 ? 1.7F : 0;
        struct step_row *step = calloc(rows, sizeof *step);
        uint32_t *indices = malloc(rows * sizeof *indices);
        float *expected = malloc(rows * columns * sizeof *expected),
              *position = random_floats(fixture, columns);
        for (size_t i = 0; i < rows; i++) {
            step[i].token = (uint32_t)random_below(&fixture->random, table_rows);
            step[i].position = random_below(&fixture->random, 48);
            indices[i] = (uint32_t)random_below(&fixture->random, rows);
            const uint8_t *source = table.data, *more = positions_table.data;
            source += step[i].token * table.row_bytes + table.row_bytes * first / (first + columns);
            fixture->kernels.convert.dequantize[table.type](source, expected + i * columns, columns);
            fixture->kernels.convert.dequantize[TENSOR_F16](
                more + (step[i].position + 2) * positions_table.row_bytes, position, columns);
            for (size_t c = 0; c < columns && scale != 0; c++) expected[i * columns + c] *= scale;
            for (size_t c = 0; c < columns && round % 2 == 0; c++) expected[i * columns + c] += position[c];
        }
        for (size_t d = 0; d < DEVICES; d++) {
            float *y = random_floats(fixture, rows * columns),
                  *z = random_floats(fixture, rows * (columns + 1));
            const struct embed_operation embed = {
                &embedding,   round % 2 == 0 ? &position_embedding : NULL, host_span(step), 2, rows,
                host_span(y), scale, first, first > 0 ? columns : 0};
            fixture->devices[d]->operations->embed(fixture->streams[d], &embed);
            assert_memory_equal(y, expected, rows * columns * sizeof(float));
            const struct gather_operation gather = {host_span(y), columns,      indices,    rows,
                                                    columns,      host_span(z), columns + 1};
            fixture->devices[d]->operations->gather(fixture->streams[d], &gather);
            for (size_t i = 0; i < rows; i++)
                assert_memory_equal(z + i * (columns + 1), expected + indices[i] * columns,
                                    columns * sizeof(float));
            free(y);
            free(z);
        }
        free((void *)(uintptr_t)table.data), free((void *)(uintptr_t)positions_table.data);
        free(step), free(indices), free(expected), free(position);
    }
}

static void embed_and_gather_rows(void **state) {
    (void)state;
    with_masks(test_embed_and_gather);
}

enum { ITEMS_MAX = 4 };

struct attend_case {
    struct kv_layout layout;
    struct attend_operation operation;
    struct attend_item items[ITEMS_MAX];
    size_t rows;
    float *q, *k, *v;         /* [rows][...] */
    float *past_k[ITEMS_MAX]; /* [tokens][kv_heads][k_dimension], rounded as the cache rounds */
    float *past_v[ITEMS_MAX];
    void **chunks[ITEMS_MAX];
    struct placed placed[ITEMS_MAX];
    size_t chunk_stride[ITEMS_MAX];
};

static void attend_items_init(struct fixture *fixture, struct attend_case *c, size_t round) {
    c->operation.item_count = between(fixture, 1, ITEMS_MAX);
    for (size_t i = 0; i < c->operation.item_count; i++) {
        struct attend_item *item = &c->items[i];
        item->row_first = c->rows;
        item->row_count = between(fixture, 0, 1) == 0 ? 1 : between(fixture, 1, 70);
        item->position_first = round == 0 ? 0 : random_below(&fixture->random, round % 3 == 0 ? 1500 : 150);
        c->rows += item->row_count;
        uint64_t tokens = item->position_first + item->row_count;
        size_t stride = c->chunk_stride[i] = (size_t)(tokens + 63) / 64 + between(fixture, 0, 2);
        c->chunks[i] = calloc(stride * c->operation.kv_head_count, sizeof(void *));
        for (size_t j = 0; j < stride * c->operation.kv_head_count; j++) {
            /* Unwritten rows are NaN, so reading one shows. */
            c->chunks[i][j] = aligned_alloc(64, c->layout.chunk_bytes);
            memset(c->chunks[i][j], 0xff, c->layout.chunk_bytes);
        }
        const struct addresses addresses = {
            .chunks = c->chunks[i], .heads = c->operation.kv_head_count, .stride = stride};
        item->view = placed_view(&c->placed[i], &c->layout, &addresses);
    }
    c->operation.items = c->items;
}

static void attend_case_init(struct fixture *fixture, struct attend_case *c, size_t round) {
    *c = (struct attend_case){0};
    size_t group = between(fixture, 1, 4), heads = between(fixture, 1, 3);
    enum kv_type type = round % 2 == 0 ? KV_F16 : KV_Q8;
    kv_layout_init(&c->layout, type, between(fixture, 0, 1) == 0 ? KV_F16 : KV_Q8,
                   32 * between(fixture, 1, 3), 32 * between(fixture, 1, 3));
    c->operation.head_count = group * heads;
    c->operation.kv_head_count = heads;
    c->operation.scale = 0.3f;
    c->operation.softcap = round % 5 == 4 ? 4.0f : 0;
    c->operation.window = round % 4 == 1 ? between(fixture, 1, 400) : 0;
    attend_items_init(fixture, c, round);
    c->operation.q_stride = group * heads * c->layout.k_dimension + 5;
    c->operation.out_stride = group * heads * c->layout.v_dimension + 7;
    c->q = random_floats(fixture, c->rows * c->operation.q_stride);
    c->operation.q = host_span(c->q);
    c->k = random_floats(fixture, c->rows * heads * c->layout.k_dimension);
    c->v = random_floats(fixture, c->rows * heads * c->layout.v_dimension);
}

/* The rows before this step, stored by the kernel; kept as the cache rounds them. */
static void attend_past_init(struct fixture *fixture, struct attend_case *c) {
    size_t heads = c->operation.kv_head_count, dk = c->layout.k_dimension, dv = c->layout.v_dimension;
    for (size_t i = 0; i < c->operation.item_count; i++) {
        const struct attend_item *item = &c->items[i];
        size_t tokens = (size_t)item->position_first + item->row_count;
        c->past_k[i] = random_floats(fixture, tokens * heads * dk);
        c->past_v[i] = random_floats(fixture, tokens * heads * dv);
        for (size_t t = 0; t < item->position_first; t++)
            for (size_t h = 0; h < heads; h++)
                fixture->kernels.attention.store(&c->layout, c->chunks[i][h * c->chunk_stride[i] + t / 64],
                                                 t % 64, c->past_k[i] + (t * heads + h) * dk,
                                                 c->past_v[i] + (t * heads + h) * dv);
    }
}

static void append_rows(struct fixture *fixture, struct attend_case *c, size_t d) {
    size_t heads = c->operation.kv_head_count;
    const struct append_operation append = {.k = host_span(c->k),
                                            .v = host_span(c->v),
                                            .k_stride = heads * c->layout.k_dimension,
                                            .v_stride = heads * c->layout.v_dimension,
                                            .kv_head_count = heads,
                                            .items = c->items,
                                            .item_count = c->operation.item_count};
    fixture->devices[d]->operations->append(fixture->streams[d], &append);
}

/* Reads back everything stored and compares the new rows with those appended. */
static void load_rows(struct fixture *fixture, struct attend_case *c) {
    size_t heads = c->operation.kv_head_count, dk = c->layout.k_dimension, dv = c->layout.v_dimension;
    for (size_t i = 0; i < c->operation.item_count; i++) {
        const struct attend_item *item = &c->items[i];
        for (size_t t = 0; t < item->position_first + item->row_count; t++)
            for (size_t h = 0; h < heads; h++) {
                float *k = c->past_k[i] + (t * heads + h) * dk, *v = c->past_v[i] + (t * heads + h) * dv;
                fixture->kernels.attention.load(&c->layout, c->chunks[i][h * c->chunk_stride[i] + t / 64],
                                                t % 64, k, v);
                if (t < item->position_first) continue;
                size_t row = item->row_first + t - (size_t)item->position_first;
                assert_close(k, c->k + (row * heads + h) * dk, dk, 0.05f);
                assert_close(v, c->v + (row * heads + h) * dv, dv, 0.05f);
            }
    }
}

static void attend_row(const struct attend_case *c, size_t item_index, size_t index, size_t head,
                       float *out) {
    const struct attend_item *item = &c->items[item_index];
    size_t heads = c->operation.kv_head_count, dk = c->layout.k_dimension, dv = c->layout.v_dimension;
    size_t kv_head = head / (c->operation.head_count / heads);
    const float *q = c->q + (item->row_first + index) * c->operation.q_stride + head * dk;
    uint64_t position = item->position_first + index, first = 0;
    if (c->operation.window != 0 && position + 1 > c->operation.window)
        first = position + 1 - c->operation.window;
    double maximum = -INFINITY, total = 0, *sums = calloc(dv, sizeof *sums);
    double *scores = calloc((size_t)position + 1, sizeof *scores);
    for (size_t t = (size_t)first; t <= position; t++) {
        for (size_t j = 0; j < dk; j++)
            scores[t] += (double)q[j] * (double)c->past_k[item_index][(t * heads + kv_head) * dk + j];
        scores[t] *= (double)c->operation.scale;
        double softcap = (double)c->operation.softcap;
        if (softcap > 0) scores[t] = softcap * tanh(scores[t] / softcap);
        maximum = fmax(maximum, scores[t]);
    }
    for (size_t t = (size_t)first; t <= position; t++) {
        double weight = exp(scores[t] - maximum);
        total += weight;
        for (size_t j = 0; j < dv; j++)
            sums[j] += weight * (double)c->past_v[item_index][(t * heads + kv_head) * dv + j];
    }
    for (size_t j = 0; j < dv; j++) out[j] = (float)(sums[j] / total);
    free(sums);
    free(scores);
}

static void attend_case_deinit(struct attend_case *c) {
    for (size_t i = 0; i < c->operation.item_count; i++) {
        for (size_t j = 0; j < c->chunk_stride[i] * c->operation.kv_head_count; j++) free(c->chunks[i][j]);
        free(c->chunks[i]);
        placed_free(&c->placed[i]);
        free(c->past_k[i]);
        free(c->past_v[i]);
    }
    free(c->q);
    free(c->k);
    free(c->v);
}

/* Each item attended alone gives the bits that it gave in the batch. */
static void attend_alone(struct fixture *fixture, struct attend_case *c, const float *batch) {
    size_t count = c->rows * c->operation.out_stride;
    float *out = copy_of(batch, count);
    for (size_t i = 0; i < c->operation.item_count; i++) {
        struct attend_operation alone = c->operation;
        alone.items = &c->items[i];
        alone.item_count = 1;
        alone.out = host_span(out);
        for (size_t r = 0; r < c->items[i].row_count; r++)
            memset(out + (c->items[i].row_first + r) * alone.out_stride, 0,
                   alone.head_count * c->layout.v_dimension * sizeof(float));
        fixture->devices[i % DEVICES]->operations->attend(fixture->streams[i % DEVICES], &alone);
    }
    assert_memory_equal(out, batch, count * sizeof(float));
    free(out);
}

static void test_attend(struct fixture *fixture) {
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct attend_case c;
        attend_case_init(fixture, &c, round);
        attend_past_init(fixture, &c);
        append_rows(fixture, &c, round % DEVICES);
        load_rows(fixture, &c);
        size_t count = c.rows * c.operation.out_stride, dv = c.layout.v_dimension;
        float *before = random_floats(fixture, count), *expected = copy_of(before, count), *first = NULL;
        for (size_t i = 0; i < c.operation.item_count; i++)
            for (size_t r = 0; r < c.items[i].row_count; r++)
                for (size_t h = 0; h < c.operation.head_count; h++)
                    attend_row(&c, i, r, h,
                               expected + (c.items[i].row_first + r) * c.operation.out_stride + h * dv);
        for (size_t d = 0; d < DEVICES; d++) {
            float *out = copy_of(before, count);
            c.operation.out = host_span(out);
            fixture->devices[d]->operations->attend(fixture->streams[d], &c.operation);
            if (d == 0) {
                first = out;
                assert_close(out, expected, count, fixture->tolerance);
                continue;
            }
            assert_memory_equal(out, first, count * sizeof(float));
            free(out);
        }
        attend_alone(fixture, &c, first);
        free(first);
        free(before);
        free(expected);
        attend_case_deinit(&c);
    }
}

static void attend_is_softmax_over_what_is_stored(void **state) {
    (void)state;
    with_masks(test_attend);
}

/* After the largest shapes have been seen, a step of operations grows no scratch. */
static void test_no_growth(struct fixture *fixture) {
    for (size_t d = 0; d < DEVICES; d++) {
        struct cpu_device *device = (struct cpu_device *)fixture->devices[d];
        uint64_t growths = 0;
        for (int step = 0; step < 3; step++) {
            struct matmul_case c;
            matmul_case_init(fixture, &c, 4); /* 40 rows */
            c.operation.accumulate = true;
            for (size_t j = 0; j < c.operation.weight_count; j++) c.operation.y[j] = host_span(c.before[j]);
            for (size_t rows = 40; rows > 13; rows -= 13) {
                c.operation.row_count = rows;
                fixture->devices[d]->operations->matmul(fixture->streams[d], &c.operation);
            }
            if (step == 0) growths = device->scratch_growths;
            matmul_case_deinit(&c);
        }
        assert_true(growths > 0);
        assert_int_equal(device->scratch_growths, growths);
    }
}

static void scratch_stays_after_the_largest_shapes(void **state) {
    (void)state;
    test_skip_part();
    with_masks(test_no_growth);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_is_the_kernels_result),
        cmocka_unit_test(few_inputs_multiply_as_each_alone),
        cmocka_unit_test(matmul_of_f32_is_the_product),
        cmocka_unit_test(a_scale_multiplies_products_alone),
        cmocka_unit_test(rows_pick_their_best_experts),
        cmocka_unit_test(odd_scores_pick_experts_that_are_there),
        cmocka_unit_test(experts_multiply_each_row_as_if_alone),
        cmocka_unit_test(norm_of_segments_in_place),
        cmocka_unit_test(rope_of_any_rows),
        cmocka_unit_test(activation_of_pieces),
        cmocka_unit_test(embed_and_gather_rows),
        cmocka_unit_test(attend_is_softmax_over_what_is_stored),
        cmocka_unit_test(scratch_stays_after_the_largest_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
