/* matvec of every weight type: against sums in double of the values and inputs that the cpu defines; the same
 * bits for an input whatever its company; the nodes of a decode step against their parts. */
#include "rig.h"

#include <ctype.h>

#include "kernels/matvec/matvec_internal.h"

static const double eps = 0x1p-24;
enum { INPUTS = 8, COLUMNS_MAX = 2304 };

static bool is_plain(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

static const char *kernel_of(const char *what, enum tensor_type type, size_t inputs) {
    static char name[64];
    int length = snprintf(name, sizeof name, "%s_%s", what, tensor_type_info(type)->name);
    if (inputs > 0) snprintf(name + length, sizeof name - (size_t)length, "_%zu", inputs);
    for (char *c = name; *c; c++) *c = (char)tolower(*c);
    return name;
}

/* Inputs as floats, as the device has them, and their values. */
struct inputs {
    struct guarded floats, bytes;
    uint32_t columns;
    double values[INPUTS][COLUMNS_MAX];
};

static void inputs_values(struct inputs *in, size_t i) {
    const uint8_t *row = (const uint8_t *)in->bytes.data + i * input_row_bytes(in->columns);
    const struct input_numbers *numbers = (const void *)(row + in->columns);
    for (uint32_t c = 0; c < in->columns; c++)
        in->values[i][c] = (double)numbers[c / 32].scale *
                           ((const int8_t *)row)[c % 32 / 16 * (in->columns / 2) + c / 32 * 16 + c % 16];
}

static void inputs_init(struct inputs *in, struct random *random, uint32_t columns) {
    in->columns = columns;
    in->floats = device_memory(INPUTS * columns * sizeof(float));
    in->bytes = device_memory(INPUTS * input_row_bytes(columns));
    fill_normal(random, in->floats.data, INPUTS * columns, 2.0);
    struct cuda_quantize_args args = {.x = address_of(in->floats.data),
                                      .y = address_of(in->bytes.data),
                                      .row_count = INPUTS,
                                      .x_stride = columns,
                                      .columns = columns};
    launch("quantize_rows", INPUTS, 1, 1, 256, sizeof(struct norm_shared), &args, 1);
    for (size_t i = 0; i < INPUTS; i++) inputs_values(in, i);
}

static void inputs_plain(struct inputs *in) {
    for (size_t i = 0; i < INPUTS * in->columns; i++)
        in->values[i / in->columns][i % in->columns] = (double)((float *)in->floats.data)[i];
}

static void inputs_deinit(struct inputs *in) {
    guarded_destroy(&in->floats);
    guarded_destroy(&in->bytes);
}

/* The sum of a row, and of its terms' magnitudes, by which roundings are bounded.  Per piece of 32 columns:
 * the scales' products round (3 eps), so do conversion and fused addition; a lane has blocks / 32 pieces in a
 * chain, of up to four additions, and 5 levels of a warp.  Of plain weights 8 additions a piece.  An offset or
 * a minimum is a term by itself: up to |q| <= 63 against the code that is left, so magnitudes count code and
 * offset apart, by twice the largest value of the block. */
static double dot(const struct rig_matrix *w, size_t row, const double *x, double *magnitude) {
    const size_t columns = w->matrix.columns;
    double sum = 0, largest = 0;
    *magnitude = 0;
    for (size_t c = 0; c < columns; c++) {
        const double value = (double)w->values[row * columns + c];
        sum += value * x[c];
        if (is_plain(w->matrix.type)) {
            *magnitude += fabs(value * x[c]);
            continue;
        }
        if (c % 32 == 0) {
            largest = 0;
            for (size_t k = 0; k < 32; k++)
                if (fabs((double)w->values[row * columns + c + k]) > largest)
                    largest = fabs((double)w->values[row * columns + c + k]);
        }
        *magnitude += 2 * largest * fabs(x[c]);
    }
    return sum;
}

static double chain(enum tensor_type type, size_t columns) {
    const size_t pieces = is_plain(type) ? columns / 8 : columns / 32;
    return (double)((pieces + 31) / 32 * (is_plain(type) ? 8 : 4) + 5 + 6);
}

struct product {
    struct rig_matrix parts[3];
    struct guarded y[3], bias;
};

static const uint32_t part_rows[3] = {70, 7, 33};

static void product_run(struct product *p, const struct inputs *in, enum tensor_type type,
                        size_t kernel_inputs, size_t input_first, size_t input_count, bool accumulate,
                        uint32_t grid, uint64_t seed) {
    const bool plain = is_plain(type);
    const uint32_t stride = plain ? in->columns * 4 : input_row_bytes(in->columns);
    struct cuda_matvec_args args = {.input = address_of(plain ? in->floats.data : in->bytes.data) +
                                             input_first * stride,
                                    .columns = in->columns,
                                    .input_count = (uint32_t)input_count,
                                    .input_stride = stride,
                                    .accumulate = accumulate};
    for (size_t i = 0; i < 3; i++)
        args.part[i] = (struct matvec_part){p->parts[i].planes, i == 1 ? address_of(p->bias.data) : 0,
                                            address_of(p->y[i].data), part_rows[i], part_rows[i] + 3};
    launch(kernel_of("matvec", type, kernel_inputs), grid, 1, 1, 256, 0, &args, seed);
}

static void product_check(const struct product *p, const struct inputs *in, size_t input_first,
                          size_t input_count, float before, const char *what) {
    const enum tensor_type type = p->parts[0].matrix.type;
    for (size_t i = 0; i < 3; i++)
        for (size_t n = 0; n < input_count; n++)
            for (size_t r = 0; r < part_rows[i]; r++) {
                double magnitude, want = dot(&p->parts[i], r, in->values[input_first + n], &magnitude);
                const double bias = i == 1 ? (double)((float *)p->bias.data)[r] : 0;
                want += bias + (double)before;
                check_near(((float *)p->y[i].data)[n * (part_rows[i] + 3) + r], want,
                           chain(type, in->columns) * eps * magnitude +
                               3 * eps * (fabs(bias) + fabs((double)before)),
                           "%s: %s, %u columns, part %zu, input %zu of %zu, row %zu", what,
                           tensor_type_info(type)->name, in->columns, i, n, input_count, r);
            }
}

static void outputs_fill(struct product *p, float value) {
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < INPUTS * (part_rows[i] + 3); k++) ((float *)p->y[i].data)[k] = value;
}

static void product_init(struct product *p, struct random *random, enum tensor_type type,
                         enum weight_kind kind, size_t columns) {
    for (size_t i = 0; i < 3; i++) {
        rig_matrix_init(&p->parts[i], random, type, kind, part_rows[i], columns);
        p->y[i] = device_memory(INPUTS * (part_rows[i] + 3) * sizeof(float));
    }
    p->bias = device_memory(part_rows[1] * sizeof(float));
    fill_normal(random, p->bias.data, part_rows[1], 1.0);
}

static void product_deinit(struct product *p) {
    for (size_t i = 0; i < 3; i++) {
        rig_matrix_deinit(&p->parts[i]);
        guarded_destroy(&p->y[i]);
    }
    guarded_destroy(&p->bias);
}

static void products_match(void **state) {
    (void)state;
    static struct inputs in;
    static struct product p;
    struct random random;
    random_init(&random, test_seed(201));
    const uint32_t columns[] = {256, 2304};
    for (size_t t = 0; t < 15; t++)
        for (size_t n = 0; n < 2; n++) {
            const enum tensor_type type = weight_types[t];
            inputs_init(&in, &random, columns[n]);
            if (is_plain(type)) inputs_plain(&in);
            product_init(&p, &random, type, n == 0 ? WEIGHT_LARGEST : WEIGHT_RANDOM, columns[n]);
            static const size_t counts[5][2] = {{1, 1}, {2, 2}, {4, 3}, {8, 8}, {8, 5}};
            float *alone[INPUTS];
            for (size_t i = 0; i < INPUTS; i++) {
                outputs_fill(&p, NAN);
                product_run(&p, &in, type, 1, i, 1, false, i % 2 ? 2 : 5, i);
                if (i < 2) product_check(&p, &in, i, 1, 0, "alone");
                alone[i] = malloc(p.y[0].bytes);
                memcpy(alone[i], p.y[0].data, p.y[0].bytes);
            }
            for (size_t k = 1; k < 5; k++) {
                outputs_fill(&p, NAN);
                product_run(&p, &in, type, counts[k][0], 0, counts[k][1], false, 3, k);
                for (size_t i = 0; i < counts[k][1]; i++) /* the same bits as alone */
                    if (memcmp((float *)p.y[0].data + i * (part_rows[0] + 3), alone[i], part_rows[0] * 4) !=
                        0)
                        fail_msg("%s: input %zu of %zu has other bits", tensor_type_info(type)->name, i,
                                 counts[k][1]);
                assert_true(isnan(((float *)p.y[0].data)[part_rows[0]]));
            }
            outputs_fill(&p, 0.5f);
            product_run(&p, &in, type, 4, 4, 4, true, 1, 9);
            product_check(&p, &in, 4, 4, 0.5f, "added");
            for (size_t i = 0; i < INPUTS; i++) free(alone[i]);
            product_deinit(&p);
            inputs_deinit(&in);
        }
}

/* The norm inside: the bits of quantize_rows and then matvec.  Gate and up: those of three steps. */
static void decode_nodes_match(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(202));
    enum { COLUMNS = 768, OUTPUTS = 96 };
    static float x[COLUMNS], w[COLUMNS], b[COLUMNS], y[2][OUTPUTS], fused[OUTPUTS], gated[OUTPUTS];
    struct guarded input = device_memory(input_row_bytes(COLUMNS)),
                   out = device_memory(input_row_bytes(OUTPUTS)),
                   want_out = device_memory(input_row_bytes(OUTPUTS));
    for (size_t t = 3; t < 15; t++) {
        const enum tensor_type type = weight_types[t];
        struct rig_matrix part[2];
        for (size_t i = 0; i < 2; i++)
            rig_matrix_init(&part[i], &random, type, WEIGHT_RANDOM, OUTPUTS, COLUMNS);
        fill_normal(&random, x, COLUMNS, 1.0);
        fill_normal(&random, w, COLUMNS, 1.0);
        fill_normal(&random, b, COLUMNS, 1.0);
        const uint64_t beta = t % 2 ? address_of(b) : 0;
        struct cuda_quantize_args quantize = {.x = address_of(x),
                                              .w = address_of(w),
                                              .b = beta,
                                              .y = address_of(input.data),
                                              .row_count = 1,
                                              .x_stride = COLUMNS,
                                              .columns = COLUMNS,
                                              .norm = beta ? QUANTIZE_LAYER : QUANTIZE_RMS,
                                              .epsilon = 1e-5f};
        launch("quantize_rows", 1, 1, 1, 256, sizeof(struct norm_shared), &quantize, t);
        struct cuda_matvec_args matvec = {
            .input = address_of(input.data), .columns = COLUMNS, .input_count = 1, .input_stride = 0};
        for (size_t i = 0; i < 2; i++)
            matvec.part[i] = (struct matvec_part){part[i].planes, 0, address_of(y[i]), OUTPUTS, OUTPUTS};
        launch(kernel_of("matvec", type, 1), 4, 1, 1, 256, 0, &matvec, t);

        struct cuda_decode_matvec_args decode = {
            .matvec = matvec, .norm_w = address_of(w), .norm_b = beta, .epsilon = 1e-5f};
        decode.matvec.input = address_of(x);
        decode.matvec.part[1].rows = 0;
        decode.matvec.part[0].y = address_of(fused);
        fill_nan(fused, OUTPUTS);
        launch(kernel_of("decode_norm", type, 0), 2, 1, 1, 256, decode_matvec_shared(COLUMNS), &decode,
               t + 1);
        assert_memory_equal(fused, y[0], sizeof fused);

        decode.matvec.part[1].rows = OUTPUTS;
        decode.input_out = address_of(out.data);
        decode.y = address_of(gated);
        fill_nan(gated, OUTPUTS);
        launch(kernel_of("decode_gate", type, 0), 2, 1, 1, 256, decode_matvec_shared(COLUMNS), &decode,
               t + 2);
        for (size_t i = 0; i < OUTPUTS; i++) {
            const double gate = (double)y[0][i], want = gate / (1 + exp(-gate)) * (double)y[1][i];
            /* below e^-87 a sigmoid is 0 */
            const double bound = 16 * eps * fabs(want) + 2e-38 * fabs(gate * (double)y[1][i]);
            check_near(gated[i], want, bound, "gated %zu", i);
        }
        struct cuda_quantize_args again = {.x = address_of(gated),
                                           .y = address_of(want_out.data),
                                           .row_count = 1,
                                           .x_stride = OUTPUTS,
                                           .columns = OUTPUTS};
        launch("quantize_rows", 1, 1, 1, 256, sizeof(struct norm_shared), &again, t);
        assert_memory_equal(out.data, want_out.data, OUTPUTS / 32 * 40);
        for (size_t i = 0; i < 2; i++) rig_matrix_deinit(&part[i]);
    }
    guarded_destroy(&input), guarded_destroy(&out), guarded_destroy(&want_out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match),
        cmocka_unit_test(decode_nodes_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
