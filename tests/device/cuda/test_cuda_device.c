/* Every operation of the cuda device, over the fake driver in legal orders that seeds draw, against the cpu device with
 * its reference kernels: the same bits where nothing rounds differently, else within a bound from what each rounds. */
#include "../host_span.h"
#include "recurrence_checks.h"
#include "stream_checks.h"

#include "base/checked.h"
#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/images.h"
#include "kernels/activation/activation_internal.h"
#include "kernels/attention/attention.h"

static const double EPS = 0x1p-24, HALF_EPS = 0x1p-11;
enum { SEEDS = 3 };

enum { TYPES_ALL = 24 };
/* Behind the first 15 those that the card has as halves; the last one has a scale, which no table of tokens has. */
static const enum tensor_type TYPES[TYPES_ALL] = {
    TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,   TENSOR_Q5_1,  TENSOR_Q8_0,
    TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS,
    TENSOR_MXFP4, TENSOR_IQ1_S, TENSOR_IQ1_M, TENSOR_IQ2_XXS, TENSOR_IQ2_XS, TENSOR_IQ2_S, TENSOR_IQ3_XXS,
    TENSOR_IQ3_S, TENSOR_NVFP4};

static bool is_plain(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

static void check_same(const struct twin_floats *y, const char *what) {
    if (memcmp(y->after[TWIN_CUDA], y->after[TWIN_CPU], y->count * sizeof(float)) != 0)
        fail_msg("%s: other bits than the cpu device's", what);
}

/* ---- rows ---- */

static void embed_check(struct twin *twin) {
    const size_t all = 256 * between(twin, 1, 2), rows = between(twin, 1, 20);
    const bool has_positions = random_below(&twin->random, 2) == 1, is_part = !has_positions && all > 256;
    const size_t columns = is_part ? all - 256 : all;
    struct twin_weight table, positions;
    struct twin_floats y;
    twin_weight_make(twin, &table, TYPES[between(twin, 0, TYPES_ALL - 2)], 30, all);
    twin_weight_make(twin, &positions, TENSOR_F16, 40, columns);
    twin_floats_make(twin, &y, MEMORY_DEVICE, rows * columns, 1);
    struct step_row step[20];
    struct buffer memory[TWINS];
    for (size_t i = 0; i < rows; i++)
        step[i] = (struct step_row){.position = random_below(&twin->random, 38),
                                    .token = (uint32_t)random_below(&twin->random, 30)};
    twin_upload(twin, memory, step, sizeof step);
    memset(step, 0x7f, sizeof step); /* they have been read */
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->embed(
            twin->stream[on],
            &(struct embed_operation){.table = &table.on[on],
                                      .position_table = has_positions ? &positions.on[on] : NULL,
                                      .step = span_of(&memory[on], 0),
                                      .position_offset = 2,
                                      .row_count = rows,
                                      .y = twin_span(&y, on),
                                      .column_first = is_part ? 256 : 0,
                                      .column_count = is_part ? columns : 0});
    twin_floats_read(twin, &y);
    const bool is_rounded = weight_plane_type(table.on[0].matrix.type) != table.on[0].matrix.type;
    for (size_t i = 0; i < y.count && is_rounded; i++)
        check_near(y.after[TWIN_CUDA][i], y.after[TWIN_CPU][i],
                   HALF_EPS * (fabs((double)y.after[TWIN_CPU][i]) + 1), "embed of %s: %zu",
                   tensor_type_info(table.on[0].matrix.type)->name, i);
    if (!is_rounded) check_same(&y, "embed");
    twin_release(twin, memory);
    twin_floats_free(twin, &y);
    twin_weight_free(twin, &table), twin_weight_free(twin, &positions);
}

static void gather_check(struct twin *twin) {
    const size_t rows = between(twin, 1, 9), count = between(twin, 1, 1500), stride = count + 5;
    struct twin_floats x, y;
    uint32_t indices[9];
    twin_floats_make(twin, &x, MEMORY_DEVICE, 12 * stride, 1);
    twin_floats_make(twin, &y, MEMORY_SHARED, rows * stride, 1);
    for (size_t i = 0; i < rows; i++) indices[i] = (uint32_t)random_below(&twin->random, 12);
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->gather(twin->stream[on], &(struct gather_operation){.x = twin_span(&x, on),
                                                                                       .x_stride = stride,
                                                                                       .indices = indices,
                                                                                       .row_count = rows,
                                                                                       .count = count,
                                                                                       .y = twin_span(&y, on),
                                                                                       .y_stride = stride});
    memset(indices, 0x7f, sizeof indices);
    twin_floats_read(twin, &y);
    check_same(&y, "gather");
    twin_floats_free(twin, &x), twin_floats_free(twin, &y);
}

/* Sums of `size` terms go through chains of at most size / 8 and a tree. */
static void segment_check(const float *x, const float *w, const float *b, size_t size,
                          const float *const y[TWINS]) {
    const double chain = (double)size / 8 + 16;
    double mean = 0, magnitude = 0, squares = 0;
    for (size_t i = 0; i < size && b != NULL; i++)
        mean += (double)x[i] / (double)size, magnitude += fabs((double)x[i]) / (double)size;
    for (size_t i = 0; i < size; i++) squares += pow((double)x[i] - mean, 2) / (double)size;
    const double inverse = 1 / sqrt(squares + 1e-5);
    const double shift = b != NULL ? chain * EPS * magnitude : 0; /* of the mean */
    for (size_t i = 0; i < size; i++) {
        const double normed = ((double)x[i] - mean) * inverse, offset = b != NULL ? (double)b[i] : 0;
        const double want = normed * (double)w[i] + offset;
        const double bound = fabs((double)w[i]) * inverse * (shift + 2 * EPS * fabs((double)x[i])) +
                             fabs(normed * (double)w[i]) * (chain * EPS + 2 * shift * inverse + 8 * EPS) +
                             2 * EPS * (fabs(offset) + fabs(want));
        for (size_t on = 0; on < TWINS; on++)
            check_near(y[on][i], want, bound, "norm of %zu on %zu: %zu", size, on, i);
    }
}

static void norm_check(struct twin *twin) {
    const size_t rows = between(twin, 1, 6), segments = between(twin, 1, 12);
    const size_t size = segments == 1 ? 8 * between(twin, 1, 150) : 8 * between(twin, 1, 80);
    const size_t stride = segments * size + between(twin, 0, 9);
    const enum norm_kind kind = random_below(&twin->random, 2) ? NORM_RMS : NORM_LAYER;
    struct twin_floats x, w, b;
    twin_floats_make(twin, &x, MEMORY_DEVICE, rows * stride, 2);
    twin_floats_make(twin, &w, MEMORY_DEVICE, size, 1);
    twin_floats_make(twin, &b, MEMORY_DEVICE, size, 1);
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->norm(
            twin->stream[on],
            &(struct norm_operation){kind, twin_span(&x, on), stride, rows, segments, size, twin_span(&w, on),
                                     twin_span(&b, on), 1e-5f, twin_span(&x, on), stride, false, 0});
    twin_floats_read(twin, &x);
    for (size_t i = 0; i < rows * segments; i++) {
        const size_t at = i / segments * stride + i % segments * size;
        segment_check(x.before + at, w.before, kind == NORM_LAYER ? b.before : NULL, size,
                      (const float *const[]){x.after[0] + at, x.after[1] + at});
    }
    for (size_t i = 0; i < rows * stride; i++)
        if (i % stride >= segments * size) assert_true(x.after[TWIN_CUDA][i] == x.before[i]);
    twin_floats_free(twin, &x), twin_floats_free(twin, &w), twin_floats_free(twin, &b);
}

static void rope_check(struct twin *twin) {
    const size_t rows = between(twin, 1, 7), heads = between(twin, 1, 6), pairs = 4 * between(twin, 1, 40);
    const size_t head_stride = 2 * pairs + 8 * between(twin, 0, 2), stride = heads * head_stride + 4;
    const enum rope_order order = random_below(&twin->random, 2) ? ROPE_ADJACENT : ROPE_SPLIT;
    struct step_row step[7] = {{.item = 0}};
    struct buffer memory[TWINS];
    struct twin_floats frequency, angles, x;
    twin_floats_make(twin, &frequency, MEMORY_DEVICE, pairs, 1);
    twin_floats_make(twin, &angles, MEMORY_DEVICE, rows * 2 * pairs, 1);
    twin_floats_make(twin, &x, MEMORY_DEVICE, rows * stride, 1);
    for (size_t i = 0; i < rows; i++) step[i].position = random_below(&twin->random, 1 << 20);
    twin_upload(twin, memory, step, sizeof step);
    for (size_t on = 0; on < TWINS; on++) {
        twin_operations(twin, on)->rope_angles(
            twin->stream[on], &(struct rope_angles_operation){span_of(&memory[on], 0), rows,
                                                              twin_span(&frequency, on), pairs, 1.25f,
                                                              twin_span(&angles, on)});
        twin_operations(twin, on)->rope(
            twin->stream[on], &(struct rope_operation){twin_span(&x, on), stride, rows, heads, head_stride,
                                                       pairs, order, twin_span(&angles, on)});
    }
    twin_floats_read(twin, &angles), twin_floats_read(twin, &x);
    const double angle_bound = 1.25 * 2 * EPS; /* both are roundings of the same */
    for (size_t i = 0; i < rows * 2 * pairs; i++)
        check_near(angles.after[1][i], angles.after[0][i], angle_bound, "angle %zu", i);
    for (size_t i = 0; i < rows * stride;
         i++) { /* two products and a sum, of angles that are that much apart */
        double bound = 0;
        if (i % stride < heads * head_stride) bound = 12 * (angle_bound + 3 * EPS * 1.25);
        check_near(x.after[1][i], x.after[0][i], bound, "rope %zu", i); /* |x| < 6 */
    }
    twin_release(twin, memory);
    twin_floats_free(twin, &frequency), twin_floats_free(twin, &angles), twin_floats_free(twin, &x);
}

/* exp of z is off by |z| roundings; of both devices. */
static void activation_check(struct twin *twin) {
    const size_t rows = between(twin, 1, 5), count = between(twin, 1, 2500),
                 stride = count + between(twin, 0, 9);
    const enum activation_kind kind = (enum activation_kind)random_below(&twin->random, ACTIVATION_SOFTCAP + 1);
    struct twin_floats gate, up;
    twin_floats_make(twin, &gate, MEMORY_DEVICE, rows * stride, 3);
    twin_floats_make(twin, &up, MEMORY_DEVICE, rows * stride, 3);
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->activation(
            twin->stream[on], &(struct activation_operation){kind, twin_span(&gate, on), twin_span(&up, on),
                                                             stride, rows, count, 3, twin_span(&gate, on)});
    twin_floats_read(twin, &gate);
    for (size_t i = 0; i < rows * stride; i++) {
        const bool clamps = kind == ACTIVATION_SWIGLU_CLAMPED;
        const double x = (double)gate.before[i], u = (double)up.before[i], g = clamps ? fmin(x, SWIGLU_LIMIT) : x;
        const double z = kind == ACTIVATION_GELU_MULTIPLY ? 1.5957691216057308 * (x + 0.044715 * x * x * x)
                         : clamps                         ? SWIGLU_SLOPE * g
                                                          : x;
        const double factor = clamps ? fmax(fmin(u, SWIGLU_LIMIT), -SWIGLU_LIMIT) + 1 : u;
        double want = kind == ACTIVATION_RELU ? fmax(x, 0) : g / (1 + exp(-z)) * factor;
        double bound = kind == ACTIVATION_RELU ? 0 : (8 * fabs(z) + 24) * EPS * fabs(want) + 1e-36 * fabs(x);
        if (kind == ACTIVATION_GELU_MULTIPLY) bound += 8 * EPS * fabs(x * u); /* the cpu's tanh form cancels */
        if (kind == ACTIVATION_SOFTCAP) want = 3 * tanh(x / 3), bound = 3 * 4e-7;
        if (i % stride >= count) want = x, bound = 0;
        for (size_t on = 0; on < TWINS; on++)
            check_near(gate.after[on][i], want, bound, "activation %d on %zu: %zu of %g", (int)kind, on, i,
                       x);
    }
    twin_floats_free(twin, &gate), twin_floats_free(twin, &up);
}

static void rows_match(struct twin *twin) {
    for (int round = 0; round < 4; round++) {
        embed_check(twin);
        gather_check(twin);
        norm_check(twin);
        rope_check(twin);
        activation_check(twin);
        convolve_check(twin);
        gate_check(twin);
    }
    delta_check(twin);
}

/* ---- products ---- */

/* What a device may make of an output: inputs become codes of at most half a step of 1/127 of the largest of 32
 * columns, with scales that are rounded to halves; many rows become halves on the cuda device, and so do its weights,
 * in three roundings of at most twice the largest of 32.  Sums round less than either, but where nothing else does. */
static double product_bound(const float *x, const float *w, size_t columns, bool plain, bool many) {
    double bound = 0;
    for (size_t c = 0; c < columns; c += 32) {
        double x_largest = 0, w_largest = 0;
        for (size_t i = c; i < c + 32; i++) {
            x_largest = fmax(x_largest, fabs((double)x[i]));
            w_largest = fmax(w_largest, fabs((double)w[i]));
        }
        for (size_t i = c; i < c + 32; i++) {
            const double product = fabs((double)x[i] * (double)w[i]);
            if (!plain) bound += 2 * fabs((double)w[i]) * x_largest * (0.5 / 127 * 1.01 + HALF_EPS);
            if (many) bound += 1.01 * HALF_EPS * product + 6 * HALF_EPS * w_largest * fabs((double)x[i]);
            bound += (double)columns / 8 * EPS * product;
        }
    }
    return bound;
}

struct product_rig {
    struct twin_weight weights[DEVICE_GROUP_MAX];
    struct twin_floats x, y[DEVICE_GROUP_MAX], biases[DEVICE_GROUP_MAX];
    size_t columns, rows, count, stride[DEVICE_GROUP_MAX];
    bool accumulates;
};

static void product_make(struct twin *twin, struct product_rig *rig, size_t rows) {
    rig->columns = 256 * between(twin, 1, 2);
    rig->rows = rows;
    rig->count = between(twin, 1, 3);
    rig->accumulates = random_below(&twin->random, 3) == 0;
    twin_floats_make(twin, &rig->x, MEMORY_DEVICE, rows * (rig->columns + 4), 1);
    static size_t turn; /* all types, whatever is drawn */
    const enum tensor_type type = TYPES[TYPES_ALL - 1 - turn++ % TYPES_ALL];
    for (size_t j = 0; j < rig->count; j++) {
        const size_t outputs = between(twin, 1, 140);
        const bool is_other = random_below(&twin->random, 3) == 0;
        twin_weight_make(twin, &rig->weights[j], is_other ? TYPES[between(twin, 0, TYPES_ALL - 1)] : type, outputs,
                         rig->columns);
        rig->stride[j] = outputs + (random_below(&twin->random, 2) ? 0 : 3);
        twin_floats_make(twin, &rig->y[j], random_below(&twin->random, 2) ? MEMORY_DEVICE : MEMORY_SHARED,
                         rows * rig->stride[j], 1);
        twin_floats_make(twin, &rig->biases[j], MEMORY_DEVICE, outputs, 1);
    }
}

static void product_run(struct twin *twin, struct product_rig *rig) {
    for (size_t on = 0; on < TWINS; on++) {
        struct matmul_operation operation = {.x = twin_span(&rig->x, on),
                                             .x_stride = rig->columns + 4,
                                             .row_count = rig->rows,
                                             .weight_count = rig->count,
                                             .accumulate = rig->accumulates};
        for (size_t j = 0; j < rig->count; j++) {
            operation.weights[j] = &rig->weights[j].on[on];
            if (j != 1) operation.biases[j] = twin_span(&rig->biases[j], on);
            operation.y[j] = twin_span(&rig->y[j], on);
            operation.y_stride[j] = rig->stride[j];
        }
        twin_operations(twin, on)->matmul(twin->stream[on], &operation);
    }
    for (size_t j = 0; j < rig->count; j++) twin_floats_read(twin, &rig->y[j]);
}

static void product_check(const struct product_rig *rig) {
    for (size_t j = 0; j < rig->count; j++) {
        const struct matrix *matrix = &rig->weights[j].on[0].matrix;
        const struct twin_floats *y = &rig->y[j];
        const bool plain = is_plain(matrix->type);
        for (size_t i = 0; i < rig->rows * rig->stride[j]; i++) {
            const size_t row = i / rig->stride[j], output = i % rig->stride[j];
            double bound = 0;
            if (output < matrix->rows)
                bound = product_bound(rig->x.before + row * (rig->columns + 4),
                                      rig->weights[j].values + output * rig->columns, rig->columns, plain,
                                      rig->rows > CUDA_MATVEC_ROWS) +
                        4 * EPS * (8 + fabs((double)y->before[i]));
            check_near(y->after[TWIN_CUDA][i], y->after[TWIN_CPU][i], bound,
                       "%s, %zu rows, %zu weights: row %zu, output %zu", tensor_type_info(matrix->type)->name,
                       rig->rows, rig->count, row, output);
        }
    }
}

/* A row alone has the bits that it has among up to CUDA_MATVEC_ROWS, rows in the midst of 9 those among any more. */
static void product_alone(struct twin *twin, const struct product_rig *rig) {
    for (size_t j = 0; j < rig->count && !rig->accumulates; j++) {
        const struct twin_floats *all = &rig->y[j];
        struct twin_floats y;
        const size_t count = rig->rows <= CUDA_MATVEC_ROWS ? 1 : CUDA_MATVEC_ROWS + 1;
        const size_t row = random_below(&twin->random, rig->rows - count + 1),
                     outputs = rig->weights[j].on[0].matrix.rows;
        twin_floats_make(twin, &y, MEMORY_SHARED, count * outputs, 1);
        struct matmul_operation operation = {
            .x = span_floats(twin_span(&rig->x, TWIN_CUDA), row * (rig->columns + 4)),
            .x_stride = rig->columns + 4,
            .row_count = count,
            .weight_count = 1,
            .weights = {&rig->weights[j].on[TWIN_CUDA]},
            .y = {twin_span(&y, TWIN_CUDA)},
            .y_stride = {outputs}};
        if (j != 1) operation.biases[0] = twin_span(&rig->biases[j], TWIN_CUDA);
        twin_operations(twin, TWIN_CUDA)->matmul(twin->stream[TWIN_CUDA], &operation);
        twin_floats_read(twin, &y);
        for (size_t i = 0; i < count; i++)
            assert_memory_equal(y.after[TWIN_CUDA] + i * outputs,
                                all->after[TWIN_CUDA] + (row + i) * rig->stride[j], outputs * sizeof(float));
        twin_floats_free(twin, &y);
    }
}

/* Of many rows, and all or none by wgmma. */
static void products_counted(const struct twin *twin) {
    const struct cuda_device *device = (const struct cuda_device *)twin->device[TWIN_CUDA];
    const struct cuda_counts *counts = &device->context.counts;
    assert_true(counts->products > 0);
    assert_int_equal(counts->wgmma_products, device->context.properties.capability == 90 ? counts->products : 0);
}

static void products_match(struct twin *twin) {
    static const size_t rows[] = {1, 2, 3, 8, 9, 140};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct product_rig rig;
        product_make(twin, &rig, rows[i]);
        product_run(twin, &rig);
        product_check(&rig);
        product_alone(twin, &rig);
        for (size_t j = 0; j < rig.count; j++) {
            twin_weight_free(twin, &rig.weights[j]);
            twin_floats_free(twin, &rig.y[j]), twin_floats_free(twin, &rig.biases[j]);
        }
        twin_floats_free(twin, &rig.x);
    }
    products_counted(twin);
}

/* ---- mixtures of experts ---- */

enum { ROUTED_ROWS = 20, ROUTED_EXPERTS = 80, ROUTED_MAX = 10 };

/* The same experts in the same order; weights are roundings of nearly the same numbers in double.  Of equal scores the
 * first are picked, and a score that is no number picks experts that are there, with weights that are none. */
static void route_check(struct twin *twin) {
    const size_t groups = between(twin, 1, 4), size = between(twin, 1, ROUTED_EXPERTS / groups),
                 experts = groups * size, kept = between(twin, 1, groups), rows = between(twin, 3, ROUTED_ROWS);
    const size_t used = between(twin, 1, min_size(kept * size, ROUTED_MAX));
    struct twin_floats scores, bias, picks, weights;
    twin_floats_make(twin, &scores, MEMORY_SHARED, rows * experts, 3);
    twin_floats_make(twin, &bias, MEMORY_DEVICE, experts, 0.3);
    twin_floats_make(twin, &picks, MEMORY_SHARED, rows * used, 1);
    twin_floats_make(twin, &weights, MEMORY_SHARED, rows * used, 1);
    struct route_operation operation = {.router = (enum router)random_below(&twin->random, 3),
                                        .row_count = rows,
                                        .expert_count = experts,
                                        .used = used,
                                        .group_count = groups,
                                        .groups_used = kept,
                                        .normalises = random_below(&twin->random, 2) == 0,
                                        .scale = random_below(&twin->random, 2) ? 1.0f : 2.5f};
    const bool has_bias = random_below(&twin->random, 2) == 0, has_scales = random_below(&twin->random, 2) == 0;
    twin_synchronize(twin);
    for (size_t on = 0; on < TWINS; on++) {
        float *host = span_host(twin_span(&scores, on));
        for (size_t i = 0; i < experts; i++) host[experts + i] = 0.5f;
        host[2 * experts + experts / 2] = NAN;
        operation.scores = twin_span(&scores, on);
        if (has_bias) operation.bias = twin_span(&bias, on);
        if (has_scales) operation.scales = twin_span(&bias, on);
        operation.picks = twin_span(&picks, on);
        operation.weights = twin_span(&weights, on);
        twin_operations(twin, on)->route(twin->stream[on], &operation);
    }
    twin_floats_read(twin, &picks), twin_floats_read(twin, &weights);
    for (size_t i = 0; i < rows * used; i++) {
        const float found = weights.after[TWIN_CUDA][i], want = weights.after[TWIN_CPU][i];
        uint32_t pick[TWINS];
        for (size_t on = 0; on < TWINS; on++) memcpy(&pick[on], &picks.after[on][i], sizeof pick[on]);
        assert_true(pick[TWIN_CUDA] < experts);
        if (i / used == 2) {
            assert_true(operation.router != ROUTER_SOFTMAX || isnan(found));
            continue;
        }
        if (pick[TWIN_CUDA] != pick[TWIN_CPU])
            fail_msg("router %d, %zu experts in %zu groups: row %zu picks %u, the cpu %u", (int)operation.router,
                     experts, groups, i / used, pick[TWIN_CUDA], pick[TWIN_CPU]);
        check_near(found, want, 2 * EPS * fabs((double)want), "router %d: weight %zu", (int)operation.router, i);
    }
    twin_floats_free(twin, &scores), twin_floats_free(twin, &bias);
    twin_floats_free(twin, &picks), twin_floats_free(twin, &weights);
}

struct experts_rig {
    struct twin_weight stacks[EXPERT_GROUP_MAX];
    struct twin_floats x, y[EXPERT_GROUP_MAX], biases[EXPERT_GROUP_MAX], mix;
    struct buffer picks[TWINS];
    uint32_t *pick;
    size_t columns, outputs, experts, used, count;
    bool per_pick, is_mixed, replaces;
};

static void experts_make(struct twin *twin, struct experts_rig *rig, size_t rows) {
    static size_t turns[2]; /* all types both ways, whatever is drawn */
    const bool is_many = rows > CUDA_MATVEC_ROWS;
    const enum tensor_type type = TYPES[turns[is_many]++ % TYPES_ALL];
    const size_t block = tensor_type_info(type)->block_elements;
    rig->columns = block > 64 ? block : 64;
    if (is_many && turns[true] % 4 == 0) rig->columns = block > 64 ? 512 : 448; /* stages go round */
    rig->experts = between(twin, 2, is_many ? 5 : TWIN_STACK_MAX);
    rig->used = between(twin, 1, 4);
    rig->outputs = turns[is_many] % 8 == 0 ? between(twin, 129, 140) : between(twin, 1, 40);
    rig->is_mixed = random_below(&twin->random, 2) == 0;
    rig->replaces = random_below(&twin->random, 2) == 0;
    rig->per_pick = random_below(&twin->random, 2) == 0;
    rig->count = rig->is_mixed ? 1 : between(twin, 1, 2);
    const size_t picks = rows * rig->used;
    const bool is_crowded = random_below(&twin->random, 3) == 0; /* one expert has nearly all */
    rig->pick = malloc(picks * sizeof *rig->pick);
    for (size_t i = 0; i < picks; i++)
        rig->pick[i] = is_crowded && i % 11 != 0 ? 1 : (uint32_t)random_below(&twin->random, rig->experts);
    twin_upload(twin, rig->picks, rig->pick, picks * sizeof *rig->pick);
    twin_floats_make(twin, &rig->x, MEMORY_DEVICE, picks * (rig->columns + 4), 1);
    twin_floats_make(twin, &rig->mix, MEMORY_DEVICE, picks, 1);
    for (size_t j = 0; j < rig->count; j++) {
        const bool is_other = j > 0 && random_below(&twin->random, 3) == 0;
        twin_stack_make(twin, &rig->stacks[j], is_other ? TENSOR_F16 : type, rig->experts,
                        rig->experts * rig->outputs, rig->columns);
        twin_floats_make(twin, &rig->y[j], MEMORY_DEVICE, picks * (rig->outputs + j), 1);
        twin_floats_make(twin, &rig->biases[j], MEMORY_DEVICE, rig->experts * rig->outputs, 1);
    }
}

static void experts_free(struct twin *twin, struct experts_rig *rig) {
    for (size_t j = 0; j < rig->count; j++) {
        twin_weight_free(twin, &rig->stacks[j]);
        twin_floats_free(twin, &rig->y[j]), twin_floats_free(twin, &rig->biases[j]);
    }
    twin_floats_free(twin, &rig->x), twin_floats_free(twin, &rig->mix);
    twin_release(twin, rig->picks);
    free(rig->pick);
}

/* Of rows from `first` on, into y from its beginning on. */
static void experts_put(struct twin *twin, struct experts_rig *rig, size_t on, size_t first, size_t rows) {
    const size_t x_first = rig->per_pick ? first * rig->used : first;
    struct matmul_experts_operation operation = {
        .x = span_floats(twin_span(&rig->x, on), x_first * (rig->columns + 4)),
        .x_stride = rig->columns + 4,
        .per_pick = rig->per_pick,
        .row_count = rows,
        .expert_count = rig->experts,
        .used = rig->used,
        .picks = span_of(&rig->picks[on], first * rig->used * sizeof(uint32_t)),
        .weight_count = rig->count,
        .replaces = rig->replaces};
    if (rig->is_mixed) operation.mix = span_floats(twin_span(&rig->mix, on), first * rig->used);
    for (size_t j = 0; j < rig->count; j++) {
        operation.weights[j] = &rig->stacks[j].on[on];
        if (j != 1) operation.biases[j] = twin_span(&rig->biases[j], on);
        operation.y[j] = twin_span(&rig->y[j], on);
        operation.y_stride[j] = rig->outputs + j;
    }
    twin_operations(twin, on)->matmul_experts(twin->stream[on], &operation);
}

static void experts_compare(const struct experts_rig *rig, size_t rows) {
    const size_t each = rig->is_mixed ? rig->used : 1; /* products of an output */
    for (size_t j = 0; j < rig->count; j++) {
        const struct twin_floats *y = &rig->y[j];
        const struct matrix *matrix = &rig->stacks[j].on[0].matrix;
        const size_t stride = rig->outputs + j, y_rows = rows * rig->used / each;
        for (size_t i = 0; i < y->count; i++) {
            const size_t row = i / stride, output = i % stride;
            double bound = 4 * EPS * (8 + fabs((double)y->before[i])) * (double)each;
            if (row >= y_rows || output >= rig->outputs) { /* nothing else is written */
                assert_true(y->after[TWIN_CUDA][i] == y->before[i]);
                continue;
            }
            for (size_t p = row * each; p < (row + 1) * each; p++) {
                const size_t input = rig->per_pick ? p : p / rig->used;
                const double share = rig->is_mixed ? fabs((double)rig->mix.before[p]) : 1;
                bound += share * product_bound(rig->x.before + input * (rig->columns + 4),
                                               rig->stacks[j].values +
                                                   (rig->pick[p] * rig->outputs + output) * rig->columns,
                                               rig->columns, is_plain(matrix->type), rows > CUDA_MATVEC_ROWS);
                bound += share * 8 * EPS * 8;
            }
            check_near(y->after[TWIN_CUDA][i], y->after[TWIN_CPU][i], bound,
                       "%s, %zu rows, %zu of %zu experts%s%s: row %zu, output %zu",
                       tensor_type_info(matrix->type)->name, rows, rig->used, rig->experts,
                       rig->per_pick ? ", an input a pick" : "",
                       !rig->is_mixed ? "" : rig->replaces ? ", mixed alone" : ", mixed", row, output);
        }
    }
}

/* Fewer rows, as long as they go the same way, have the bits that they had among all. */
static void experts_cut(struct twin *twin, struct experts_rig *rig, size_t rows) {
    const size_t first = rows > CUDA_MATVEC_ROWS ? random_below(&twin->random, rows - CUDA_MATVEC_ROWS)
                                                 : random_below(&twin->random, rows);
    const size_t y_first = rig->is_mixed ? first : first * rig->used;
    const size_t y_rows = rig->is_mixed ? rows - first : (rows - first) * rig->used;
    for (size_t j = 0; j < rig->count; j++) {
        const size_t stride = rig->outputs + j;
        /* what was there before, for sums to be added to */
        twin_operations(twin, TWIN_CUDA)
            ->upload(twin->stream[TWIN_CUDA], twin_span(&rig->y[j], TWIN_CUDA),
                     rig->y[j].before + y_first * stride, y_rows * stride * sizeof(float));
    }
    experts_put(twin, rig, TWIN_CUDA, first, rows - first);
    for (size_t j = 0; j < rig->count; j++) {
        const size_t stride = rig->outputs + j;
        float *cut = malloc(y_rows * stride * sizeof *cut);
        twin_operations(twin, TWIN_CUDA)
            ->download(twin->stream[TWIN_CUDA], cut, twin_span(&rig->y[j], TWIN_CUDA),
                       y_rows * stride * sizeof *cut);
        twin_synchronize(twin);
        assert_memory_equal(cut, rig->y[j].after[TWIN_CUDA] + y_first * stride, y_rows * stride * sizeof *cut);
        free(cut);
    }
}

static void experts_match(struct twin *twin) {
    static const size_t rows[] = {1, 9, 3, 60, 8, 11, 2, 30, 4, 150, 1, 20, 5, 10, 7, 45};
    for (size_t i = 0; i < 8; i++) route_check(twin);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct experts_rig rig;
        experts_make(twin, &rig, rows[i]);
        for (size_t on = 0; on < TWINS; on++) experts_put(twin, &rig, on, 0, rows[i]);
        for (size_t j = 0; j < rig.count; j++) twin_floats_read(twin, &rig.y[j]);
        experts_compare(&rig, rows[i]);
        experts_cut(twin, &rig, rows[i]);
        experts_free(twin, &rig);
    }
    products_counted(twin);
}

/* ---- attention ---- */

enum { ITEMS = 3, CHUNKS = 6 };

struct kv_rig {
    struct kv_layout layout;
    size_t kv_heads, group, rows, k_stride, v_stride;
    struct buffer memory[TWINS][2];
    struct kv_pools pools[TWINS][ITEMS];
    struct buffer tables[TWINS]; /* uint32_t [ITEMS][kv head][CHUNKS] */
    uint32_t places[ITEMS * 8 * CHUNKS];
    struct attend_item items[TWINS][ITEMS];
    uint64_t lengths[ITEMS];
    bool swapped[ITEMS]; /* the pools */
    struct twin_floats k, v, q, out, sinks;
};

static size_t chunk_total(const struct kv_rig *rig) { return ITEMS * rig->kv_heads * CHUNKS; }

/* A pool is in one memory or the other, and not in the same one for all items. */
static enum place_pool pool_in(const struct kv_rig *rig, size_t item, size_t memory) {
    return (memory == 0) != rig->swapped[item] ? POOL_ROWS : POOL_OTHER;
}

/* Slots in an order that is drawn.  Page tables come by deltas, in two parts. */
static void chunks_place(struct twin *twin, struct kv_rig *rig) {
    size_t order[ITEMS * 8 * CHUNKS];
    struct place_delta deltas[ITEMS * 8 * CHUNKS];
    const size_t total = chunk_total(rig), bytes = rig->layout.chunk_bytes;
    struct error error;
    for (size_t i = 0; i < total; i++) order[i] = i;
    for (size_t i = total; i-- > 1;) {
        const size_t other = (size_t)random_below(&twin->random, i + 1), kept = order[i];
        order[i] = order[other], order[other] = kept;
    }
    for (size_t i = 0; i < total; i++) {
        rig->places[i] = place_make(pool_in(rig, i / (rig->kv_heads * CHUNKS), order[i] % 2), order[i]);
        deltas[i] = (struct place_delta){(uint32_t)i, rig->places[i]};
    }
    for (size_t on = 0; on < TWINS; on++) {
        const struct device_operations *operations = twin_operations(twin, on);
        for (size_t m = 0; m < 2; m++) {
            assert_ok(operations->allocate(twin->device[on], m == 0 ? MEMORY_DEVICE : MEMORY_SHARED,
                                           total * bytes, &rig->memory[on][m], &error),
                      error);
            for (size_t item = 0; item < ITEMS; item++)
                rig->pools[on][item].list[pool_in(rig, item, m)] =
                    (struct kv_pool){.buffers = &rig->memory[on][m],
                                     .buffer_count = 1,
                                     .buffer_shift = POOL_ONE_BUFFER,
                                     .slot_bytes = bytes};
        }
        assert_ok(operations->allocate(twin->device[on], MEMORY_DEVICE, total * sizeof(uint32_t),
                                       &rig->tables[on], &error),
                  error);
        for (size_t part = 0; part < 2; part++)
            operations->update_places(
                twin->stream[on], &(struct update_places_operation){
                                      .table = span_of(&rig->tables[on], 0),
                                      .deltas = &deltas[part * (total / 2)],
                                      .count = part == 0 ? total / 2 : total - total / 2});
    }
}

static void kv_rig_make(struct twin *twin, struct kv_rig *rig) {
    static const size_t groups[] = {1, 2, 4, 7, 8, 12};
    const enum kv_type k_type = random_below(&twin->random, 2) ? KV_F16 : KV_Q8,
                       v_type = random_below(&twin->random, 2) ? k_type : KV_F16;
    const size_t dimension = 32 * between(twin, 1, 5);
    *rig = (struct kv_rig){.kv_heads = between(twin, 1, 3), .group = groups[between(twin, 0, 5)]};
    kv_layout_init(&rig->layout, k_type, v_type, dimension, random_below(&twin->random, 3) ? dimension : 64);
    for (size_t i = 0; i < ITEMS; i++) rig->swapped[i] = random_below(&twin->random, 2);
    chunks_place(twin, rig);
    for (size_t i = 0; i < ITEMS; i++) {
        rig->lengths[i] = between(twin, 1, CHUNKS * KV_CHUNK_TOKENS);
        rig->rows += (size_t)rig->lengths[i];
    }
    rig->k_stride = rig->kv_heads * rig->layout.k_dimension + 8;
    rig->v_stride = rig->kv_heads * rig->layout.v_dimension;
    twin_floats_make(twin, &rig->k, MEMORY_DEVICE, rig->rows * rig->k_stride, 1);
    twin_floats_make(twin, &rig->v, MEMORY_DEVICE, rig->rows * rig->v_stride, 1);
}

static void kv_rig_free(struct twin *twin, struct kv_rig *rig) {
    for (size_t on = 0; on < TWINS; on++)
        for (size_t m = 0; m < 2; m++)
            twin_operations(twin, on)->release(twin->device[on], &rig->memory[on][m]);
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->release(twin->device[on], &rig->tables[on]);
    twin_floats_free(twin, &rig->k), twin_floats_free(twin, &rig->v);
}

/* Items [row_first, ...) of `count` rows each (0: all), at the end of their sequences. */
static void items_make(struct kv_rig *rig, const size_t counts[ITEMS], const size_t row_firsts[ITEMS]) {
    for (size_t on = 0; on < TWINS; on++)
        for (size_t i = 0; i < ITEMS; i++)
            rig->items[on][i] = (struct attend_item){
                .view = {.layout = &rig->layout,
                         .pools = &rig->pools[on][i],
                         .chunks = span_of(&rig->tables[on], i * rig->kv_heads * CHUNKS * sizeof(uint32_t)),
                         .chunk_stride = CHUNKS},
                .row_first = row_firsts[i],
                .row_count = counts[i],
                .position_first = rig->lengths[i] - counts[i]};
}

static uint32_t place_of(const struct kv_rig *rig, size_t item, size_t head, uint64_t chunk) {
    return rig->places[(item * rig->kv_heads + head) * CHUNKS + chunk];
}

/* A chunk of both devices, to the bit: nothing is computed but halves and codes of single numbers. */
static void chunk_check(struct twin *twin, const struct kv_rig *rig, size_t item, size_t head,
                        uint64_t chunk) {
    uint8_t *bytes[TWINS];
    struct error error;
    for (size_t on = 0; on < TWINS; on++) {
        bytes[on] = malloc(rig->layout.chunk_bytes);
        assert_ok(device_read(twin->device[on], twin->stream[on], bytes[on],
                              kv_pools_chunk(&rig->pools[on][item], place_of(rig, item, head, chunk)),
                              rig->layout.chunk_bytes, &error),
                  error);
    }
    assert_memory_equal(bytes[TWIN_CUDA], bytes[TWIN_CPU], rig->layout.chunk_bytes);
    free(bytes[0]), free(bytes[1]);
}

static void append_check(struct twin *twin, struct kv_rig *rig) {
    /* the first item's rows are behind the others': kernels are given runs of rows */
    const size_t counts[ITEMS] = {rig->lengths[0], rig->lengths[1], rig->lengths[2]};
    items_make(rig, counts, (const size_t[]){counts[1] + counts[2], 0, counts[1]});
    for (size_t on = 0; on < TWINS; on++)
        twin_operations(twin, on)->append(twin->stream[on],
                                          &(struct append_operation){.k = twin_span(&rig->k, on),
                                                                     .v = twin_span(&rig->v, on),
                                                                     .k_stride = rig->k_stride,
                                                                     .v_stride = rig->v_stride,
                                                                     .kv_head_count = rig->kv_heads,
                                                                     .items = rig->items[on],
                                                                     .item_count = ITEMS});
    memset(rig->items, 0x7f, sizeof rig->items);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t h = 0; h < rig->kv_heads; h++)
            for (uint64_t c = 0; c < (rig->lengths[i] + 63) / 64; c++) chunk_check(twin, rig, i, h, c);
}

/* Scores are off by their roundings, weights by as much of themselves; sums are chains.  Of a prompt, queries, weights
 * and what is stored in 8 bits become halves, and weights below 2^-25 are lost. */
static void head_check(const struct kv_rig *rig, const struct attend_operation *operation, size_t item,
                       uint64_t position, size_t row, size_t head) {
    const bool is_prompt = operation->items[item].row_count > 1;
    const double score_eps = is_prompt ? 2 * 1.01 * HALF_EPS + 40 * EPS : 40 * EPS;
    const struct kv_layout *layout = &rig->layout;
    struct attention_kernels kernels;
    const float *q = rig->q.before + row * operation->q_stride + head * layout->k_dimension;
    const uint64_t begin =
        operation->window == 0 || position + 1 <= operation->window ? 0 : position + 1 - operation->window;
    float k[256], v[256];
    double *scores = malloc((position + 1) * sizeof *scores), largest = -INFINITY, off = 0, sum = 0;
    const double sink = span_exists(operation->sinks) ? (double)rig->sinks.before[head] : -INFINITY;
    double want[256] = {0}, magnitudes[256] = {0};
    attention_kernels_init(&kernels, 0);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) largest = fmax(largest, sink), sum = exp(sink - largest);
        for (uint64_t r = begin; r <= position; r++) {
            const void *chunk = span_memory(
                kv_pools_chunk(&rig->pools[TWIN_CPU][item], place_of(rig, item, head / rig->group, r / 64)));
            kernels.load(layout, chunk, r % 64, k, v);
            if (pass == 1) {
                const double weight = exp(scores[r] - largest);
                sum += weight;
                for (size_t d = 0; d < layout->v_dimension; d++) {
                    want[d] += weight * (double)v[d];
                    magnitudes[d] += weight * fabs((double)v[d]);
                }
                continue;
            }
            double score = 0, magnitude = 0;
            for (size_t d = 0; d < layout->k_dimension; d++) {
                score += (double)q[d] * (double)k[d];
                magnitude += fabs((double)q[d] * (double)k[d]);
            }
            score *= (double)operation->scale;
            const double softcap = (double)operation->softcap;
            if (softcap != 0) score = softcap * tanh(score / softcap);
            off = fmax(off, score_eps * magnitude * (double)operation->scale + softcap * 0x1p-19 +
                                8 * EPS * fabs(score));
            scores[r] = score;
            largest = fmax(largest, score);
        }
    }
    const double lost = is_prompt ? (double)(position + 1) * 0x1p-25 * 8 : 0;
    const double weights = 32 * 0x1p-22 + (double)(position / 8 + 100) * EPS +
                           exp(-23) * (double)(position + 1) + (is_prompt ? 2 * HALF_EPS : 0);
    for (size_t d = 0; d < layout->v_dimension; d++)
        for (size_t on = 0; on < TWINS; on++)
            check_near(rig->out.after[on][row * operation->out_stride + head * layout->v_dimension + d],
                       want[d] / sum, magnitudes[d] / sum * 2 * (off + weights) + lost + 1e-30,
                       "attention on %zu: item %zu, position %llu, head %zu, element %zu", on, item,
                       (unsigned long long)position, head, d);
    free(scores);
}

static void attend_check(struct twin *twin, struct kv_rig *rig, bool is_step) {
    const size_t heads = rig->kv_heads * rig->group;
    size_t counts[ITEMS], total = 0;
    for (size_t i = 0; i < ITEMS; i++) {
        counts[i] = is_step || random_below(&twin->random, 4) == 0
                        ? 1
                        : min_size(between(twin, 1, 70), (size_t)rig->lengths[i]);
        total += counts[i];
    }
    struct attend_operation operation = {.q_stride = heads * rig->layout.k_dimension,
                                         .out_stride = heads * rig->layout.v_dimension + 4,
                                         .head_count = heads,
                                         .kv_head_count = rig->kv_heads,
                                         .scale = 0.125f,
                                         .softcap = random_below(&twin->random, 3) == 0 ? 20.0f : 0,
                                         .window = random_below(&twin->random, 2) ? 0 : between(twin, 1, 100),
                                         .item_count = ITEMS};
    const bool has_sinks = random_below(&twin->random, 2);
    twin_floats_make(twin, &rig->sinks, MEMORY_DEVICE, heads, 4);
    twin_floats_make(twin, &rig->q, MEMORY_DEVICE, total * operation.q_stride, 2);
    twin_floats_make(twin, &rig->out, MEMORY_DEVICE, total * operation.out_stride, 1);
    items_make(rig, counts, (const size_t[]){counts[1] + counts[2], 0, counts[1]});
    const struct cuda_device *device = (const struct cuda_device *)twin->device[TWIN_CUDA];
    const struct cuda_counts *counted = &device->context.counts, before = *counted;
    for (size_t on = 0; on < TWINS; on++) {
        operation.q = twin_span(&rig->q, on);
        operation.out = twin_span(&rig->out, on);
        operation.sinks = has_sinks ? twin_span(&rig->sinks, on) : (struct span){.buffer = NULL};
        operation.items = rig->items[on];
        twin_operations(twin, on)->attend(twin->stream[on], &operation);
    }
    const bool by_wgmma = device->context.properties.capability == 90 && operation.softcap == 0 &&
                          rig->layout.k_dimension <= 128 && rig->layout.v_dimension <= 128;
    if (is_step) assert_int_equal(counted->products, before.products);
    assert_int_equal(counted->wgmma_products - before.wgmma_products,
                     by_wgmma ? counted->products - before.products : 0);
    twin_floats_read(twin, &rig->out);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t r = 0; r < counts[i]; r += 1 + counts[i] / 4)
            for (size_t h = 0; h < heads; h++)
                head_check(rig, &operation, i, rig->items[0][i].position_first + r,
                           rig->items[0][i].row_first + r, h);
    twin_floats_free(twin, &rig->q), twin_floats_free(twin, &rig->out), twin_floats_free(twin, &rig->sinks);
}

/* One sequence's places on the card, of chunks [begin, end) or of all others. */
static void places_show(struct twin *twin, struct kv_rig *rig, size_t item, uint64_t begin, uint64_t end,
                        bool others) {
    uint32_t places[8 * CHUNKS];
    for (size_t head = 0; head < rig->kv_heads; head++)
        for (uint64_t chunk = 0; chunk < CHUNKS; chunk++)
            places[head * CHUNKS + chunk] =
                (chunk >= begin && chunk < end) != others ? place_of(rig, item, head, chunk) : PLACE_NOWHERE;
    twin_operations(twin, TWIN_CUDA)
        ->upload(twin->stream[TWIN_CUDA],
                 span_of(&rig->tables[TWIN_CUDA], item * rig->kv_heads * CHUNKS * sizeof *places), places,
                 rig->kv_heads * CHUNKS * sizeof *places);
}

/* Of each item ranges that attend by themselves, or none, and those of the others merged with them: the bits of all at
 * once.  The card has no chunk then but those that each is to read. */
static void ranges_check(struct twin *twin, struct kv_rig *rig) {
    const struct device_operations *operations = twin_operations(twin, TWIN_CUDA);
    struct device *device = twin->device[TWIN_CUDA];
    struct stream *stream = twin->stream[TWIN_CUDA];
    const struct range_form form = device_range_form(device);
    const size_t heads = rig->kv_heads * rig->group, outputs = heads * rig->layout.v_dimension,
                 floats = heads * form.count_max * (form.partial_floats + rig->layout.v_dimension);
    uint64_t each[ITEMS];
    struct attend_ranges ranges[ITEMS];
    struct error error;
    struct buffer partials;
    struct twin_floats q, out;
    items_make(rig, (const size_t[]){1, 1, 1}, (const size_t[]){0, 1, 2});
    twin_floats_make(twin, &q, MEMORY_DEVICE, ITEMS * heads * rig->layout.k_dimension, 2);
    twin_floats_make(twin, &out, MEMORY_DEVICE, 2 * ITEMS * outputs, 1);
    assert_ok(operations->allocate(device, MEMORY_DEVICE, ITEMS * floats * sizeof(float), &partials, &error), error);
    for (size_t i = 0; i < ITEMS; i++) {
        const uint64_t chunks = rig->lengths[i] / KV_CHUNK_TOKENS;
        each[i] = form.rows(rig->lengths[i]) / KV_CHUNK_TOKENS;
        ranges[i] = (struct attend_ranges){.partials = span_floats(span_of(&partials, 0), i * floats)};
        if (chunks < 2 * each[i]) continue;
        ranges[i].first = between(twin, 0, chunks / each[i] - 2);
        ranges[i].end = between(twin, ranges[i].first + 1, chunks / each[i] - 1);
    }
    struct attend_operation operation = {.q = twin_span(&q, TWIN_CUDA),
                                         .q_stride = heads * rig->layout.k_dimension,
                                         .out = twin_span(&out, TWIN_CUDA),
                                         .out_stride = outputs,
                                         .head_count = heads,
                                         .kv_head_count = rig->kv_heads,
                                         .scale = 0.125f,
                                         .items = rig->items[TWIN_CUDA],
                                         .item_count = ITEMS};
    operations->attend(stream, &operation);
    operation.out = span_floats(operation.out, ITEMS * outputs);
    operation.ranges = ranges;
    for (int made = 0; made < 2; made++) {
        for (size_t i = 0; i < ITEMS; i++) {
            ranges[i].makes = !made;
            places_show(twin, rig, i, ranges[i].first * each[i], ranges[i].end * each[i], made);
        }
        operations->attend(stream, &operation);
    }
    for (size_t i = 0; i < ITEMS; i++) places_show(twin, rig, i, 0, CHUNKS, false);
    twin_floats_read(twin, &out);
    assert_memory_equal(out.after[TWIN_CUDA] + ITEMS * outputs, out.after[TWIN_CUDA], ITEMS * outputs * sizeof(float));
    operations->release(device, &partials);
    twin_floats_free(twin, &q), twin_floats_free(twin, &out);
}

static void attention_matches(struct twin *twin) {
    for (int round = 0; round < 3; round++) {
        static struct kv_rig rig;
        kv_rig_make(twin, &rig);
        append_check(twin, &rig);
        attend_check(twin, &rig, true);
        attend_check(twin, &rig, round == 0);
        ranges_check(twin, &rig);
        kv_rig_free(twin, &rig);
    }
}

static void with_seeds(void (*test)(struct twin *twin)) {
    const uint64_t first = test_seed(1);
    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        struct twin twin;
        char settings[60];
        /* a card that starts kernels early, and one that cannot use the host's own memory */
        snprintf(settings, sizeof settings, "seed=%llu,capability=%d,register=%d", (unsigned long long)seed,
                 seed % 2 ? 90 : 86, (int)(seed % 3));
        twin_open(&twin, FAKE_LIBRARY, settings, seed);
        test(&twin);
        assert_true(device_cuda_counts(twin.device[TWIN_CUDA]).copies > 0);
        twin_close(&twin);
    }
}

static void test_rows(void **state) { (void)state, with_seeds(rows_match); }
static void test_products(void **state) { (void)state, with_seeds(products_match); }
static void test_experts(void **state) { (void)state, with_seeds(experts_match); }
static void test_attention(void **state) { (void)state, with_seeds(attention_matches); }
static void test_streams(void **state) { (void)state, with_seeds(streams_work); }

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_attention), cmocka_unit_test(test_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
