/* recurrence: every variant against double, and rows that come in two calls against the same in one.
 *
 * eps = 2^-24.  Of delta the bound goes along: E is how far S may be off, from what a sum of n products, each of them
 * rounded, may be off (n eps of the sum of their magnitudes) and from what its operands were off before. */
#include "check.h"

#include "kernels/recurrence/recurrence.h"

static const double eps = 0x1p-24;

#if defined(LOAM_EMULATED)
void emulated_recurrence_avx512_install(struct recurrence_kernels *kernels);
#endif
CHECK_LEVELS_WITH(recurrence, emulated_recurrence_avx512_install)

enum { ROWS = 11 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static float *floats_of(struct guarded *buffers, size_t *count, size_t floats) {
    buffers[*count] = guarded_create(floats * sizeof(float));
    return buffers[(*count)++].data;
}

static float *normal(struct guarded *buffers, size_t *count, size_t floats, struct random *random,
                     double deviation) {
    float *x = floats_of(buffers, count, floats);
    fill_normal(random, x, floats, deviation);
    return x;
}

/* ---- convolve ---- */

/* Row -1 is the last one of the state. */
static double input_of(const struct convolve_args *args, long row, size_t c) {
    const size_t last = args->taps - 1;
    if (row < 0)
        return args->from != NULL ? (double)args->from[((size_t)row + last) * args->state_stride + c] : 0;
    const size_t at = (size_t)row * args->x_stride + c;
    return (double)args->x[at] * (args->in_gate != NULL ? (double)args->in_gate[at] : 1);
}

static void check_convolved(const char *name, const struct convolve_args *args) {
    for (size_t row = 0; row < args->row_count; row++)
        for (size_t c = 0; c < args->channel_count; c++) {
            double want = 0, size = 0;
            for (size_t j = 0; j < args->taps; j++) {
                const double part = (double)args->w[c * args->taps + j] *
                                    input_of(args, (long)row + (long)j - (long)args->taps + 1, c);
                want += part;
                size += fabs(part);
            }
            double bound = ((double)args->taps + 2) * eps * size;
            if (args->silu) {
                want *= sigmoid(want);
                bound = 1.1 * bound + 8 * eps * fabs(want); /* the slope of silu, and its own error */
            }
            if (args->out_gate != NULL) {
                const double out = (double)args->out_gate[row * args->x_stride + c];
                want *= out;
                bound = bound * fabs(out);
            }
            check_near(args->y[row * args->y_stride + c], want, bound + eps * fabs(want) + 1e-37,
                       "%s: row %zu, channel %zu of %zu", name, row, c, args->channel_count);
        }
    for (size_t j = 0; j + 1 < args->taps; j++)
        for (size_t c = 0; c < args->channel_count; c++) {
            const double want = input_of(args, (long)(args->row_count + j) - (long)args->taps + 1, c);
            check_near(args->to[j * args->state_stride + c], want, eps * fabs(want), "%s: state %zu", name,
                       j);
        }
}

/* The rows from `row` on, behind those before. */
static struct convolve_args rest_of_convolve(struct convolve_args args, size_t row) {
    args.row_count -= row;
    args.x += row * args.x_stride;
    if (args.in_gate != NULL) args.in_gate += row * args.x_stride;
    if (args.out_gate != NULL) args.out_gate += row * args.x_stride;
    args.y += row * args.y_stride;
    args.from = args.to;
    return args;
}

static void check_convolve(const struct level *level, size_t channels, size_t taps, size_t kind,
                           struct random *random) {
    struct guarded buffers[16];
    size_t count = 0;
    const size_t stride = channels + 3, x_count = (ROWS - 1) * stride + channels,
                 state = (taps - 1) * channels;
    struct convolve_args args = {
        .row_count = ROWS, .channel_count = channels, .x_stride = stride, .taps = taps};
    args.x = normal(buffers, &count, x_count, random, 1);
    if ((kind & 1) != 0) args.in_gate = normal(buffers, &count, x_count, random, 1);
    if ((kind & 1) != 0) args.out_gate = normal(buffers, &count, x_count, random, 1);
    args.w = normal(buffers, &count, channels * taps, random, 1);
    args.silu = (kind & 1) == 0;
    if ((kind & 2) != 0) args.from = normal(buffers, &count, state, random, 1);
    args.to = floats_of(buffers, &count, state);
    args.state_stride = args.y_stride = channels;
    args.y = floats_of(buffers, &count, ROWS * channels);
    level->kernels.convolve(&args);
    check_convolved(level->name, &args);
    struct convolve_args parts = args;
    parts.to = floats_of(buffers, &count, state);
    parts.y = floats_of(buffers, &count, ROWS * channels);
    const struct convolve_args rest = rest_of_convolve(parts, 3);
    parts.row_count = 3;
    level->kernels.convolve(&parts);
    level->kernels.convolve(&rest);
    assert_memory_equal(parts.y, args.y, ROWS * channels * sizeof(float));
    assert_memory_equal(parts.to, args.to, state * sizeof(float));
    for (size_t i = 0; i < count; i++) guarded_destroy(&buffers[i]);
}

static void convolutions_match(void **state) {
    (void)state;
    static const size_t channels[] = {1, 7, 8, 16, 31, 48, CONVOLVE_CHANNELS};
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(71));
    for (size_t l = 0; l < level_count; l++)
        for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
            for (size_t taps = 2; taps <= CONVOLVE_TAPS_MAX; taps++)
                for (size_t kind = 0; kind < 4; kind++)
                    check_convolve(&levels[l], channels[i], taps, kind, &random);
}

/* ---- delta ---- */

struct delta_want {
    double s[DELTA_DIMENSION_MAX * DELTA_DIMENSION_MAX], off[DELTA_DIMENSION_MAX * DELTA_DIMENSION_MAX];
    double q[DELTA_DIMENSION_MAX], k[DELTA_DIMENSION_MAX], o[DELTA_DIMENSION_MAX], o_off[DELTA_DIMENSION_MAX];
};

static void unit(const float *x, size_t count, double scale, double *y) {
    double square = 0;
    for (size_t i = 0; i < count; i++) square += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < count; i++) y[i] = (double)x[i] * scale / sqrt(square + 1e-6);
}

/* A column of S goes through a row. */
static void want_column(const struct delta_args *args, size_t row, size_t j, double decay, double beta,
                        struct delta_want *want) {
    const size_t width = args->v_dimension;
    const double n = (double)args->k_dimension + 8, v = (double)args->v[row * args->stride + j];
    double product = 0, size = 0, off = 0;
    for (size_t i = 0; i < args->k_dimension; i++) {
        product += want->s[i * width + j] * want->k[i];
        size += fabs(want->s[i * width + j] * want->k[i]);
        off += want->off[i * width + j] * fabs(want->k[i]);
    }
    const double change = beta * (v - decay * product),
                 change_off =
                     beta * (decay * (off + 2 * n * eps * size) + 6 * eps * (fabs(v) + decay * size));
    want->o[j] = want->o_off[j] = 0;
    for (size_t i = 0; i < args->k_dimension; i++) {
        double *s = &want->s[i * width + j], *s_off = &want->off[i * width + j];
        const double k = want->k[i];
        *s_off = decay * *s_off + fabs(k) * change_off + n * eps * fabs(k * change) +
                 4 * eps * (decay * fabs(*s) + fabs(k * change));
        *s = decay * *s + k * change;
        want->o[j] += *s * want->q[i];
        want->o_off[j] += *s_off * fabs(want->q[i]) + 2 * n * eps * fabs(*s * want->q[i]);
    }
}

static void check_delta_row(const char *name, const struct delta_args *args, size_t row,
                            struct delta_want *want) {
    const size_t width = args->v_dimension;
    const double alpha = (double)args->alpha[row * args->gate_stride], x = alpha + (double)args->bias;
    const double decay = exp((double)args->decay * log1p(exp(x))),
                 beta = sigmoid((double)args->beta[row * args->gate_stride]);
    double squares = 0, squares_off = 0;
    unit(args->q + row * args->stride, args->k_dimension, 1 / sqrt((double)args->k_dimension), want->q);
    unit(args->k + row * args->stride, args->k_dimension, 1, want->k);
    for (size_t j = 0; j < width; j++) {
        want_column(args, row, j, decay, beta, want);
        squares += want->o[j] * want->o[j];
        squares_off += (2 * fabs(want->o[j]) + want->o_off[j]) * want->o_off[j];
    }
    const double mean = squares / (double)width + (double)args->epsilon, scale = 1 / sqrt(mean),
                 scale_off = squares_off / (double)width / mean + ((double)width / 8 + 16) * eps;
    for (size_t j = 0; j < width; j++) {
        const double z = (double)args->z[row * args->y_stride + j];
        const double by = (double)args->norm[j] * scale * z * sigmoid(z);
        check_near(args->y[row * args->y_stride + j], want->o[j] * by,
                   fabs(by) * (want->o_off[j] * (1 + scale_off) + fabs(want->o[j]) * (scale_off + 12 * eps)) +
                       1e-37,
                   "%s: %zu x %zu, row %zu, column %zu", name, args->k_dimension, width, row, j);
    }
}

static void check_deltas(const char *name, const struct delta_args *args) {
    static struct delta_want want;
    const size_t size = args->k_dimension * args->v_dimension;
    for (size_t i = 0; i < size; i++) want.s[i] = args->from != NULL ? (double)args->from[i] : 0;
    for (size_t i = 0; i < size; i++) want.off[i] = 0;
    for (size_t row = 0; row < args->row_count; row++) check_delta_row(name, args, row, &want);
    for (size_t i = 0; i < size; i++)
        check_near(args->to[i], want.s[i], want.off[i], "%s: state %zu of %zu", name, i, size);
}

static struct delta_args rest_of_delta(struct delta_args args, size_t row) {
    args.row_count -= row;
    args.q += row * args.stride;
    args.k += row * args.stride;
    args.v += row * args.stride;
    args.alpha += row * args.gate_stride;
    args.beta += row * args.gate_stride;
    args.z += row * args.y_stride;
    args.y += row * args.y_stride;
    args.from = args.to;
    return args;
}

static void check_delta(const struct level *level, size_t k, size_t v, bool begins, struct random *random) {
    struct guarded buffers[16];
    size_t count = 0;
    const size_t stride = 2 * k + v + 5, size = k * v;
    struct delta_args args = {.row_count = ROWS, .k_dimension = k, .v_dimension = v, .stride = stride};
    float *x = normal(buffers, &count, (ROWS - 1) * stride + 2 * k + v, random, 1);
    args.q = x;
    args.k = x + k;
    args.v = x + 2 * k;
    args.gate_stride = 2;
    args.alpha = normal(buffers, &count, 2 * (ROWS - 1) + 1, random, 1);
    args.beta = normal(buffers, &count, 2 * (ROWS - 1) + 1, random, 1);
    args.decay = -0.4f;
    args.bias = 0.3f;
    args.y_stride = v;
    args.z = normal(buffers, &count, ROWS * v, random, 2);
    args.norm = normal(buffers, &count, v, random, 1);
    args.epsilon = 1e-6f;
    if (!begins) args.from = normal(buffers, &count, size, random, 1);
    args.to = floats_of(buffers, &count, size);
    args.y = floats_of(buffers, &count, ROWS * v);
    level->kernels.delta(&args);
    check_deltas(level->name, &args);
    struct delta_args parts = args;
    parts.to = floats_of(buffers, &count, size);
    parts.y = floats_of(buffers, &count, ROWS * v);
    const struct delta_args rest = rest_of_delta(parts, 3);
    parts.row_count = 3;
    level->kernels.delta(&parts);
    level->kernels.delta(&rest);
    assert_memory_equal(parts.y, args.y, ROWS * v * sizeof(float));
    assert_memory_equal(parts.to, args.to, size * sizeof(float));
    for (size_t i = 0; i < count; i++) guarded_destroy(&buffers[i]);
}

static void deltas_match(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{1, 1},   {8, 16},    {20, 24}, {24, 52},
                                      {64, 64}, {128, 128}, {40, 96}, {256, 200}};
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(72));
    for (size_t l = 0; l < level_count; l++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t begins = 0; begins < 2; begins++)
                check_delta(&levels[l], sizes[i][0], sizes[i][1], begins != 0, &random);
}

/* ---- gate ---- */

static void gates_match(void **state) {
    (void)state;
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(73));
    for (size_t l = 0; l < level_count; l++)
        for (size_t size = 0; size < 70; size++) {
            struct guarded buffers[2];
            size_t count = 0;
            const float *gate = normal(buffers, &count, size, &random, 4);
            float *y = normal(buffers, &count, size, &random, 1), before[70];
            if (size > 0) memcpy(before, y, size * sizeof *y);
            levels[l].kernels.gate(gate, size, y);
            for (size_t i = 0; i < size; i++) {
                const double want = (double)before[i] * sigmoid((double)gate[i]);
                check_near(y[i], want, 8 * eps * fabs(want), "%s: gate %zu of %zu", levels[l].name, i, size);
            }
            for (size_t i = 0; i < count; i++) guarded_destroy(&buffers[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_match),
        cmocka_unit_test(deltas_match),
        cmocka_unit_test(gates_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
