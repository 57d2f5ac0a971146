/* matmul: the reference against plain sums, every variant against the reference.
 *
 * A variant multiplies rounded inputs; the rule of each form is restated here (input_round), and the
 * reference is given the rounded inputs.  What is left for the integer forms is float rounding, because
 * their integer sums are exact: at most four float operations per block of 32 or group of 16 and a few at
 * the ends, each off by 2^-24 of a partial sum that is below sum |t|.  A term t is at most the largest value
 * that a code of the block can have, times 3 for the offsets and minima that are handled apart, times |x|:
 *     |got - want| <= (4 * columns / 16 + 16) * 2^-24 * 3 * sum_c magnitude[c] * |x[c]|.
 * Float forms add columns / 32 * 32 products one by one: columns * 2^-24 * sum |w x|.
 * Forms that also round the weights (bf16) add 2^-8 * sum |w x| (2^-14 when both are split in two). */
#include "kernels/matmul/matmul.h"

#include "base/checked.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matvec/matvec.h"
#include "kernels/multiply.h"
#include "tensor/half.h"
#if defined(LOAM_EMULATED)
#include "kernels/matmul_emulated.h"
#endif

/* A set of variants to test: what a mask gives here, then what is emulated. */
struct variant {
    const char *name;
    struct matmul_kernels kernels;
};
enum { VARIANTS_MAX = 10 };

static size_t variants_create(struct variant variants[VARIANTS_MAX]) {
    struct check_level levels[6];
    size_t count = check_levels(levels);
    for (size_t v = 0; v < count; v++) {
        variants[v].name = levels[v].name;
        matmul_kernels_init(&variants[v].kernels, levels[v].mask);
    }
#if defined(LOAM_EMULATED)
    if ((cpu_features() & CPU_AVX2) != 0) {
        variants[count].name = "avx512 (emulated)";
        matmul_kernels_init(&variants[count].kernels, CPU_AVX2);
        emulated_int8_avx512_install(&variants[count].kernels);
        emulated_float_avx512_install(&variants[count++].kernels);
        variants[count].name = "amx (emulated)";
        matmul_kernels_init(&variants[count].kernels, CPU_AVX2);
        emulated_amx_install(&variants[count++].kernels);
    }
#endif
    return count;
}

struct fixture {
    struct variant variants[VARIANTS_MAX]; /* the first is the reference */
    size_t variant_count;
    struct convert_kernels convert;
    struct random random;
    uint64_t seed, case_count;
};

/* What a form keeps of x. */
enum rounding { ROUNDING_NONE, ROUNDING_BF16, ROUNDING_CODES, ROUNDINGS };
static enum rounding rounding_of(int form) {
    const bool codes = form == MATMUL_FORM_I8_PAIRS || form == MATMUL_FORM_I8_TOTALS || form == MATMUL_FORM_I16;
    return form == MATMUL_FORM_BF16 ? ROUNDING_BF16 : codes ? ROUNDING_CODES : ROUNDING_NONE;
}

static void input_round(enum rounding rounding, const float *x, size_t columns, float *rounded) {
    if (rounding == ROUNDING_BF16) {
        for (size_t c = 0; c < columns; c++) rounded[c] = bfloat_to_float(float_to_bfloat(x[c]));
        return;
    }
    if (rounding == ROUNDING_NONE) {
        memcpy(rounded, x, columns * sizeof *x);
        return;
    }
    for (size_t b = 0; b < columns; b += 32) {
        float max = 0;
        for (size_t c = b; c < b + 32; c++) max = fmaxf(max, fabsf(x[c]));
        float inverse = max > 0 ? 127.0f / max : 0, scale = round_to_half_precision(max / 127.0f);
        for (size_t c = b; c < b + 32; c++) {
            rounded[c] = scale * nearbyintf(x[c] * inverse);
            /* The bound that the int8 forms promise: half a step, and what 11 bits of the scale make of 127 steps. */
            assert_true(fabsf(rounded[c] - x[c]) <= scale * (0.5001f + 127 * 0x1p-11f));
        }
    }
}

static double error_bound(const struct test_case *test, int form, const float *magnitude, const float *x) {
    double sum = 0;
    for (size_t c = 0; c < test->columns; c++) sum += (double)magnitude[c] * fabs((double)x[c]);
    double additions = block_layout_find(test->type) ? 4 * (double)test->columns / 16 : (double)test->columns;
    double relative = (additions + 16) * 0x1.0p-24;
    if (form == MATMUL_FORM_BF16) relative += 0x1.0p-8;
    if (form == MATMUL_FORM_BF16_TWICE) relative += 0x1.0p-14;
    return relative * sum + 1e-37;
}

static void *prepared_create(const struct matmul_method *method, const float *x, size_t columns,
                             size_t input_count, struct guarded *guarded) {
    size_t bytes = method->prepared_bytes(input_count, columns);
    assert_int_equal(bytes % 64, 0);
    *guarded = guarded_create(bytes); /* a multiple of 64, so aligned to 64 */
    method->prepare(x, columns, input_count, columns, 0, input_count, guarded->data);
    return guarded->data;
}

static void run(const struct matmul_method *method, const struct test_case *test, const struct matrix *weight,
                const float *x, float *outputs, size_t stride) {
    struct guarded prepared, scratch = guarded_create(method->scratch_bytes(test->columns));
    assert_int_equal(scratch.bytes % 64, 0);
    struct matmul_args args = {weight,
                               test->input_count,
                               prepared_create(method, x, test->columns, test->input_count, &prepared),
                               outputs,
                               stride,
                               test->row_begin,
                               test->row_end,
                               scratch.data};
    method->run(&args);
    guarded_destroy(&prepared);
    guarded_destroy(&scratch);
}

/* What the reference makes of rounded inputs, once for all variants that round alike. */
struct wanted {
    float *rounded;         /* owned: [input_count][columns]; NULL: not yet */
    struct guarded outputs; /* owned */
};

static size_t outputs_stride(const struct test_case *test) { return test->rows + 3; }
static size_t outputs_count(const struct test_case *test) {
    return (test->input_count - 1) * outputs_stride(test) + test->rows;
}

static void wanted_make(struct wanted *wanted, enum rounding rounding, const struct fixture *fixture,
                        const struct test_case *test, const struct matrix *weight, const float *x) {
    if (wanted->rounded != NULL) return;
    wanted->rounded = malloc(test->input_count * test->columns * sizeof *x);
    wanted->outputs = guarded_create(outputs_count(test) * sizeof *x);
    for (size_t i = 0; i < test->input_count; i++)
        input_round(rounding, x + i * test->columns, test->columns, wanted->rounded + i * test->columns);
    fill_nan(wanted->outputs.data, outputs_count(test));
    run(&fixture->variants[0].kernels.method[test->type], test, weight, wanted->rounded, wanted->outputs.data,
        outputs_stride(test));
}

static void compare(const struct fixture *fixture, const struct variant *variant, const struct test_case *test,
                    const struct matrix *weight, const float *x, const struct wanted *wanted) {
    const struct matmul_method *method = &variant->kernels.method[test->type];
    size_t stride = outputs_stride(test);
    struct guarded got = guarded_create(outputs_count(test) * sizeof(float));
    fill_nan(got.data, outputs_count(test));
    run(method, test, weight, x, got.data, stride);
    const float *g = got.data, *w = wanted->outputs.data, *rounded = wanted->rounded;
    float *magnitude = malloc(test->columns * sizeof *magnitude);
    for (size_t row = 0; row < test->rows; row++) {
        const char *name = tensor_type_info(test->type)->name;
        bool is_wanted = row >= test->row_begin && row < test->row_end;
        const uint8_t *data = (const uint8_t *)weight->data + row * weight->row_bytes;
        if (is_wanted) row_magnitudes(&fixture->convert, test->type, data, test->columns, magnitude);
        for (size_t i = 0; i < test->input_count; i++) {
            float value = g[i * stride + row];
            if (!is_wanted && !isnan(value)) fail_msg("%s %s: wrote row %zu", variant->name, name, row);
            if (!is_wanted) continue;
            double bound = error_bound(test, method->form, magnitude, rounded + i * test->columns);
            check_near(value, w[i * stride + row], bound,
                       "%s %s: rows %zu columns %zu inputs %zu kinds %d %d: input %zu row %zu", variant->name,
                       name, test->rows, test->columns, test->input_count, test->weight, test->input, i, row);
        }
    }
    free(magnitude);
    for (size_t i = 0; i + 1 < test->input_count; i++) /* between the rows of the outputs */
        for (size_t row = test->rows; row < stride; row++) assert_true(isnan(g[i * stride + row]));
    guarded_destroy(&got);
}

static void run_case(struct fixture *fixture, const struct test_case *test) {
    uint64_t row_bytes;
    if (!test_takes(fixture->seed, fixture->case_count++)) return;
    assert_true(tensor_row_bytes(test->type, test->columns, &row_bytes));
    struct guarded data = guarded_create(test->rows * row_bytes);
    weight_fill(&fixture->random, test->type, test->weight, data.data, test->rows * test->columns);
    struct matrix weight = {test->type, data.data, test->rows, test->columns, row_bytes};
    struct guarded x = guarded_create(test->input_count * test->columns * sizeof(float));
    fill_input(&fixture->random, test->input, x.data, test->input_count * test->columns);
    struct wanted wanted[ROUNDINGS] = {{.rounded = NULL}};
    for (size_t v = 1; v < fixture->variant_count; v++) {
        const struct variant *variant = &fixture->variants[v];
        const enum rounding rounding = rounding_of(variant->kernels.method[test->type].form);
        wanted_make(&wanted[rounding], rounding, fixture, test, &weight, x.data);
        compare(fixture, variant, test, &weight, x.data, &wanted[rounding]);
    }
    for (size_t i = 0; i < ROUNDINGS; i++) {
        if (wanted[i].rounded != NULL) guarded_destroy(&wanted[i].outputs);
        free(wanted[i].rounded);
    }
    guarded_destroy(&x);
    guarded_destroy(&data);
}

static int setup(void **state) {
    static struct fixture fixture;
    fixture.variant_count = variants_create(fixture.variants);
    convert_kernels_init(&fixture.convert, 0);
    fixture.seed = test_seed(20261121);
    random_init(&fixture.random, fixture.seed);
    *state = &fixture;
    return 0;
}

/* The reference itself, against a sum over dequantised rows. */
static void test_reference(void **state) {
    struct fixture *fixture = *state;
    for (size_t t = 0; t < WEIGHT_TYPES; t++) {
        enum { ROWS = 3, COLUMNS = 512, INPUTS = 2 };
        struct test_case test = {weight_types[t], ROWS,        COLUMNS, INPUTS, 0, ROWS,
                                 WEIGHT_RANDOM,   INPUT_NORMAL};
        uint64_t row_bytes;
        assert_true(tensor_row_bytes(test.type, COLUMNS, &row_bytes));
        uint8_t *data = malloc(ROWS * row_bytes);
        weight_fill(&fixture->random, test.type, WEIGHT_RANDOM, data, ROWS * COLUMNS);
        struct matrix weight = {test.type, data, ROWS, COLUMNS, row_bytes};
        static float x[INPUTS * COLUMNS], y[INPUTS * ROWS], row[COLUMNS];
        fill_input(&fixture->random, INPUT_NORMAL, x, INPUTS * COLUMNS);
        fill_nan(y, INPUTS * ROWS);
        run(&fixture->variants[0].kernels.method[test.type], &test, &weight, x, y, ROWS);
        for (size_t r = 0; r < ROWS; r++) {
            fixture->convert.dequantize[test.type](data + r * row_bytes, row, COLUMNS);
            for (size_t i = 0; i < INPUTS; i++) {
                double sum = 0, magnitude = 0;
                for (size_t c = 0; c < COLUMNS; c++) {
                    sum += (double)row[c] * (double)x[i * COLUMNS + c];
                    magnitude += fabs((double)row[c] * (double)x[i * COLUMNS + c]);
                }
                check_near(y[i * ROWS + r], sum, magnitude * 0x1.0p-22, "type %d", (int)test.type);
            }
        }
        free(data);
    }
}

static void test_input_counts(void **state) {
    static const size_t counts[] = {1, 2, 3, 5, 6, 7, 8, 9, 16, 17, 33, 64, 100};
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
            run_case(*state, &(struct test_case){weight_types[t], 21, 256, counts[n], 0, 21, WEIGHT_RANDOM,
                                                 (enum input_kind)(n % INPUT_KINDS)});
}

/* Every tail of rows, and parts of the rows as threads take them. */
static void test_rows(void **state) {
    static const size_t rows[] = {1, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 81, 130};
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
            run_case(*state, &(struct test_case){weight_types[t], rows[n], 256, 7, 0, rows[n], WEIGHT_RANDOM,
                                                 INPUT_NORMAL});
            if (rows[n] <= 32) continue;
            run_case(*state, &(struct test_case){weight_types[t], rows[n], 256, 7, 32, rows[n], WEIGHT_RANDOM,
                                                 INPUT_NORMAL});
            run_case(*state, &(struct test_case){weight_types[t], rows[n], 256, 7, 0, 32, WEIGHT_RANDOM,
                                                 INPUT_NORMAL});
        }
}

/* One block, the edges of the stretches that are unpacked at a time, and long rows. */
static void test_columns(void **state) {
    static const size_t blocks[] = {1, 2, 3, 15, 16, 17, 33, 64, 129};
    for (size_t t = 0; t < WEIGHT_TYPES; t++) {
        size_t unit = tensor_type_info(weight_types[t])->block_elements;
        bool is_plain = unit == 1;
        for (size_t n = 0; n < sizeof blocks / sizeof blocks[0]; n++) {
            size_t columns = is_plain ? blocks[n] * 32 + n % 3 : blocks[n] * unit;
            if (columns > 8448) columns = 8448;
            run_case(*state, &(struct test_case){weight_types[t], 18, columns, 8, 0, 18, WEIGHT_RANDOM,
                                                 INPUT_NORMAL});
        }
        if (is_plain)
            for (size_t columns = 1; columns < 40; columns += 3)
                run_case(*state, &(struct test_case){weight_types[t], 5, columns, 7, 0, 5, WEIGHT_RANDOM,
                                                     INPUT_NORMAL});
    }
}

/* Codes and scales at their ends: what would overflow 16-bit sums. */
static void test_extremes(void **state) {
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (enum weight_kind weight = 0; weight < WEIGHT_KINDS; weight++)
            for (enum input_kind input = 0; input < INPUT_KINDS; input++)
                for (size_t repeat = 0; repeat < 3; repeat++)
                    run_case(*state, &(struct test_case){weight_types[t], 35, 512, 13, 0, 35, weight, input});
}

/* Threads prepare parts of the inputs: the bytes are those of one call. */
static void test_prepare_parts(void **state) {
    struct fixture *fixture = *state;
    for (size_t v = 0; v < fixture->variant_count; v++)
        for (size_t t = 0; t < WEIGHT_TYPES; t++) {
            enum { COLUMNS = 512, INPUTS = 45, STRIDE = COLUMNS + 5 };
            const struct matmul_method *method = &fixture->variants[v].kernels.method[weight_types[t]];
            static float x[INPUTS * STRIDE];
            fill_input(&fixture->random, INPUT_NORMAL, x, INPUTS * STRIDE);
            struct guarded whole = guarded_create(method->prepared_bytes(INPUTS, COLUMNS));
            struct guarded parts = guarded_create(method->prepared_bytes(INPUTS, COLUMNS));
            memset(parts.data, 0x5a, parts.bytes);
            method->prepare(x, STRIDE, INPUTS, COLUMNS, 0, INPUTS, whole.data);
            size_t step = align_up(7, method->input_granule), last = INPUTS / step * step;
            for (size_t begin = last + step; begin > 0; begin -= step) /* backwards: order must not matter */
                method->prepare(x, STRIDE, INPUTS, COLUMNS, begin - step, min_size(begin, INPUTS),
                                parts.data);
            assert_memory_equal(whole.data, parts.data, whole.bytes);
            guarded_destroy(&whole);
            guarded_destroy(&parts);
        }
}

/* A NaN or an infinity in one input must be seen in its outputs, and in no other's. */
static void test_not_finite(void **state) {
    struct fixture *fixture = *state;
    for (size_t v = 0; v < fixture->variant_count; v++)
        for (size_t t = 0; t < WEIGHT_TYPES; t++)
            for (int is_nan = 0; is_nan < 2; is_nan++) {
                enum { ROWS = 17, COLUMNS = 256, INPUTS = 9, BAD = 4 };
                struct test_case test = {weight_types[t], ROWS,        COLUMNS, INPUTS, 0, ROWS,
                                         WEIGHT_RANDOM,   INPUT_NORMAL};
                uint64_t row_bytes;
                assert_true(tensor_row_bytes(test.type, COLUMNS, &row_bytes));
                uint8_t *data = malloc(ROWS * row_bytes);
                weight_fill(&fixture->random, test.type, WEIGHT_RANDOM, data, ROWS * COLUMNS);
                struct matrix weight = {test.type, data, ROWS, COLUMNS, row_bytes};
                static float x[INPUTS * COLUMNS], y[INPUTS * ROWS];
                fill_input(&fixture->random, INPUT_NORMAL, x, INPUTS * COLUMNS);
                x[BAD * COLUMNS + 77] = is_nan ? NAN : INFINITY;
                memset(y, 0, sizeof y);
                run(&fixture->variants[v].kernels.method[test.type], &test, &weight, x, y, ROWS);
                for (size_t i = 0; i < INPUTS * ROWS; i++)
                    if (isfinite(y[i]) == (i / ROWS == BAD))
                        fail_msg("%s type %d: input %zu row %zu is %g", fixture->variants[v].name,
                                 (int)test.type, i / ROWS, i % ROWS, (double)y[i]);
                free(data);
            }
}

/* A scale that is no number shows in its row and in no other. */
static void test_broken_scales(void **state) {
    struct fixture *fixture = *state;
    enum { ROWS = 37, BAD = 11, COLUMNS_MAX = 544, INPUTS = 9 };
    static const float bad[] = {INFINITY, NAN};
    static const size_t columns[] = {32, 96, 256, 288, 300, 480, 544};
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            static float x[INPUTS * COLUMNS_MAX], want[INPUTS * ROWS], got[INPUTS * ROWS];
            static _Alignas(64) char data[ROWS * COLUMNS_MAX * 4];
            enum tensor_type type = weight_types[t];
            const struct test_case test = {type, ROWS, columns[i],    INPUTS,
                                           0,    ROWS, WEIGHT_RANDOM, INPUT_NORMAL};
            struct matrix weight = {type, data, ROWS, columns[i], 0};
            if (weight_is_finite(type) || !tensor_row_bytes(type, weight.columns, &weight.row_bytes))
                continue;
            weight_fill(&fixture->random, type, WEIGHT_RANDOM, data, ROWS * weight.columns);
            fill_input(&fixture->random, INPUT_NORMAL, x, INPUTS * weight.columns);
            uint8_t before[COLUMNS_MAX * 4];
            memcpy(before, data + BAD * weight.row_bytes, weight.row_bytes);
            for (size_t v = 0; v < fixture->variant_count; v++) {
                const struct matmul_method *method = &fixture->variants[v].kernels.method[type];
                run(method, &test, &weight, x, want, ROWS);
                weight_spoil(type, data + BAD * weight.row_bytes, bad[i % 2], i % 3 == 2);
                run(method, &test, &weight, x, got, ROWS);
                memcpy(data + BAD * weight.row_bytes, before, weight.row_bytes);
                for (size_t n = 0; n < (size_t)INPUTS * ROWS; n++)
                    if (n % ROWS == BAD ? isfinite(got[n]) : memcmp(got + n, want + n, sizeof *got) != 0)
                        fail_msg("%s %s columns %zu: row %zu is %g beside a scale of %g in row %d",
                                 fixture->variants[v].name, tensor_type_info(type)->name,
                                 (size_t)weight.columns, n % ROWS, (double)got[n], (double)bad[i % 2], BAD);
            }
        }
}

/* matvec's outputs, [input_count][rows]. */
static void matvec_run(const struct matvec_kernels *kernels, const struct matrix *weight, const float *x,
                       size_t input_count, float *y) {
    enum matvec_form form = kernels->form[weight->type];
    struct guarded input = guarded_create(kernels->input_bytes(form, weight->columns));
    for (size_t i = 0; i < input_count; i++) {
        kernels->prepare[form](x + i * weight->columns, weight->columns, input.data);
        kernels->run[weight->type](&(struct matvec_args){weight, 1, input.data, y + i * weight->rows,
                                                         weight->rows, 0, weight->rows});
    }
    guarded_destroy(&input);
}

/* Bit for bit, for any number of inputs: the order of kernels/span.h. */
static void matvec_is_equal(struct fixture *fixture, const struct matvec_kernels *kernels,
                            const struct test_case *test) {
    uint64_t row_bytes;
    if (!test_takes_next() || !tensor_row_bytes(test->type, test->columns, &row_bytes)) return;
    struct guarded data = guarded_create(test->rows * row_bytes);
    weight_fill(&fixture->random, test->type, test->weight, data.data, test->rows * test->columns);
    struct matrix weight = {test->type, data.data, test->rows, test->columns, row_bytes};
    struct guarded x = guarded_create(test->input_count * test->columns * sizeof(float));
    fill_input(&fixture->random, test->input, x.data, test->input_count * test->columns);
    size_t count = test->input_count * test->rows;
    float *want = malloc(count * sizeof *want), *got = malloc(count * sizeof *got);
    matvec_run(kernels, &weight, x.data, test->input_count, want);
    for (size_t v = 1; v < fixture->variant_count; v++) {
        const struct matmul_method *method = &fixture->variants[v].kernels.method[test->type];
        if (method->form == MATMUL_FORM_BF16 || method->form == MATMUL_FORM_BF16_TWICE) continue;
        run(method, test, &weight, x.data, got, test->rows);
        for (size_t i = 0; i < count; i++)
            if (memcmp(got + i, want + i, sizeof *got) != 0)
                fail_msg("%s %s columns %zu kinds %d %d: input %zu of %zu row %zu is %.9g, matvec's %.9g",
                         fixture->variants[v].name, tensor_type_info(test->type)->name, test->columns,
                         test->weight, test->input, i / test->rows, test->input_count, i % test->rows,
                         (double)got[i], (double)want[i]);
    }
    free(got);
    free(want);
    guarded_destroy(&x);
    guarded_destroy(&data);
}

/* matmul of every variant against matvec on AVX2, whose order all of them have. */
static void test_matvec_is_equal(void **state) {
    static const size_t columns[] = {32, 40, 96, 100, 256, 512, 576, 1000, 1024, 1056, 1280, 2304, 5376};
    static const size_t counts[] = {1, 4, 7, 13, 40};
    if ((cpu_features() & CPU_AVX2) == 0) skip(); /* NEON's matmul multiplies floats */
    struct matvec_kernels kernels;
    matvec_kernels_init(&kernels, CPU_AVX2);
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            for (int kind = 0; kind < WEIGHT_KINDS * INPUT_KINDS; kind++) {
                if (kind % WEIGHT_KINDS == WEIGHT_LARGEST && kind / WEIGHT_KINDS == INPUT_LARGEST) continue;
                size_t inputs = counts[(c + (size_t)kind) % 5];
                matvec_is_equal(*state, &kernels,
                                &(struct test_case){weight_types[t], 33, columns[c], inputs, 0, 33,
                                                    (enum weight_kind)(kind % WEIGHT_KINDS),
                                                    (enum input_kind)(kind / WEIGHT_KINDS)});
            }
}

/* With AMX a few inputs multiply as without it. */
static void test_few(void **state) {
    (void)state;
#if !defined(__x86_64__)
    skip();
#endif
    static const cpu_mask without = CPU_AVX2 | CPU_AVX512;
    struct matmul_kernels plain, tiles;
    matmul_kernels_init(&plain, without);
    matmul_kernels_init(&tiles, without | CPU_AMX);
    for (size_t t = 0; t < WEIGHT_TYPES; t++) {
        const enum tensor_type type = weight_types[t];
        assert_true(plain.few[type].run == NULL);
        assert_true(tiles.few[type].run == plain.method[type].run);
        assert_true(tiles.few[type].run != tiles.method[type].run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_input_counts),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_prepare_parts),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_broken_scales),
        cmocka_unit_test(test_matvec_is_equal),
        cmocka_unit_test(test_few),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
