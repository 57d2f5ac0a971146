/* matvec: every variant against the reference on the same prepared inputs.
 *
 * The integer parts of a kernel are exact, so what may differ is float rounding: every float addition or
 * multiplication loses at most 2^-24 of its result.  A kernel adds at most one term per block of 32 (or, for
 * plain types, per 8 elements) to a lane, and a few more to fold lanes, so with the terms t
 *     |got - want| <= (additions + 16) * 2^-24 * sum |t|.
 * Terms are bounded by the largest value that the codes of a block can make with its scales, times 3 for the
 * kernels that subtract an offset (8 of Q4_0, 32 of Q6_K) apart from the rest. */
#include "kernels/matvec/matvec.h"

#include "kernels/matvec_emulated.h"
#include "kernels/multiply.h"

/* A table of kernels under test. */
struct variant {
    const char *name;
    struct matvec_kernels kernels;
};
enum { VARIANTS_MAX = 8 };

/* The reference first, then each level that this processor has, then AVX-512 emulated. */
static size_t variants_make(struct variant variants[VARIANTS_MAX]) {
    struct check_level levels[6];
    size_t count = check_levels(levels);
    for (size_t i = 0; i < count; i++) {
        variants[i].name = levels[i].name;
        matvec_kernels_init(&variants[i].kernels, levels[i].mask);
    }
#if defined(LOAM_EMULATED)
    if (cpu_features() & CPU_AVX2) { /* SIMDe is compiled down to it */
        variants[count].name = "avx512 emulated";
        matvec_kernels_init(&variants[count].kernels, CPU_AVX2);
        emulated_q8_32_avx512_install(&variants[count].kernels);
        emulated_q45_k_avx512_install(&variants[count].kernels);
        emulated_q6_k_avx512_install(&variants[count].kernels);
        count++;
    }
#endif
    return count;
}

struct fixture {
    struct variant variants[VARIANTS_MAX];
    size_t variant_count;
    struct matvec_kernels reference;
    struct convert_kernels convert;
    struct random random;
};

/* What the outputs should be, and by how much rounding may move them. */
struct expected {
    size_t stride, count; /* of the outputs */
    float *value;         /* [count] */
    double *bound;        /* [count] */
};

static void expected_bounds(const struct fixture *fixture, const struct test_case *test,
                            const struct matrix *weight, const float *x, struct expected *expected) {
    float *magnitude = malloc(test->columns * sizeof *magnitude);
    double additions = (double)test->columns / (tensor_type_info(test->type)->block_elements == 1 ? 8 : 32);
    for (size_t row = test->row_begin; row < test->row_end; row++) {
        const uint8_t *data = (const uint8_t *)weight->data + row * weight->row_bytes;
        row_magnitudes(&fixture->convert, test->type, data, test->columns, magnitude);
        for (size_t i = 0; i < test->input_count; i++) {
            const float *input = x + i * test->columns;
            float largest = 0;
            double sum = 0;
            for (size_t c = 0; c < test->columns; c++) largest = fmaxf(largest, fabsf(input[c]));
            for (size_t c = 0; c < test->columns; c++)
                sum += (double)magnitude[c] * (double)(fabsf(input[c]) + largest / 254);
            expected->bound[i * expected->stride + row] = (additions + 16) * 0x1.0p-24 * sum + 1e-37;
        }
    }
    free(magnitude);
}

static void compare(const struct variant *variant, const struct test_case *test, const struct matrix *weight,
                    const void *inputs, const struct expected *expected) {
    const char *name = tensor_type_info(test->type)->name;
    struct guarded got = guarded_create(expected->count * sizeof(float));
    float *y = got.data;
    fill_nan(y, expected->count);
    struct matvec_args args = {.weight = weight,
                               .input_count = test->input_count,
                               .inputs = inputs,
                               .outputs = y,
                               .output_stride = expected->stride,
                               .row_begin = test->row_begin,
                               .row_end = test->row_end};
    variant->kernels.run[test->type](&args);
    for (size_t i = 0; i < test->input_count; i++)
        for (size_t row = 0; row < test->rows; row++) {
            size_t at = i * expected->stride + row;
            if (row < test->row_begin || row >= test->row_end) {
                if (!isnan(y[at])) fail_msg("%s %s: wrote row %zu", variant->name, name, row);
                continue;
            }
            check_near(y[at], expected->value[at], expected->bound[at],
                       "%s %s: rows %zu columns %zu inputs %zu kinds %d %d: input %zu row %zu", variant->name,
                       name, test->rows, test->columns, test->input_count, test->weight, test->input, i, row);
        }
    guarded_destroy(&got);
}

static void run_case(struct fixture *fixture, const struct test_case *test) {
    if (!test_takes_next()) return;
    uint64_t row_bytes;
    assert_true(tensor_row_bytes(test->type, test->columns, &row_bytes));
    struct guarded data = guarded_create(test->rows * row_bytes);
    weight_fill(&fixture->random, test->type, test->weight, data.data, test->rows * test->columns);
    struct matrix weight = {test->type, data.data, test->rows, test->columns, row_bytes};
    enum matvec_form form = fixture->reference.form[test->type];
    size_t bytes = fixture->reference.input_bytes(form, test->columns);
    assert_int_equal(bytes % 64, 0);
    struct guarded inputs =
        guarded_create(bytes * test->input_count); /* a multiple of 64, so aligned to 64 */
    float *x = malloc(test->input_count * test->columns * sizeof *x);
    for (size_t i = 0; i < test->input_count; i++) {
        fill_input(&fixture->random, test->input, x + i * test->columns, test->columns);
        fixture->reference.prepare[form](x + i * test->columns, test->columns,
                                         (char *)inputs.data + i * bytes);
    }
    struct expected expected = {.stride = test->rows + 3};
    expected.count = (test->input_count - 1) * expected.stride + test->rows;
    expected.value = calloc(expected.count, sizeof *expected.value);
    expected.bound = calloc(expected.count, sizeof *expected.bound);
    struct matvec_args args = {&weight,         test->input_count, inputs.data,  expected.value,
                               expected.stride, test->row_begin,   test->row_end};
    fixture->reference.run[test->type](&args);
    expected_bounds(fixture, test, &weight, x, &expected);
    for (size_t v = 1; v < fixture->variant_count; v++)
        compare(&fixture->variants[v], test, &weight, inputs.data, &expected);
    free(expected.bound);
    free(expected.value);
    free(x);
    guarded_destroy(&inputs);
    guarded_destroy(&data);
}

static size_t column_choices(enum tensor_type type, size_t columns[12]) {
    static const size_t plain[] = {1, 2, 7, 8, 9, 31, 33, 64, 100, 1000, 2048, 8191};
    static const size_t small[] = {32, 64, 96, 160, 224, 256, 288, 512, 1056, 2048, 4128, 8192};
    static const size_t middle[] = {64, 128, 192, 256, 320, 512, 576, 2048, 4160, 8192};
    static const size_t large[] = {256, 512, 768, 1024, 1280, 2048, 2304, 4096, 5376, 8192};
    switch (tensor_type_info(type)->block_elements) {
    case 1: memcpy(columns, plain, sizeof plain); return 12;
    case 32: memcpy(columns, small, sizeof small); return 12;
    case 64: memcpy(columns, middle, sizeof middle); return 10;
    default: memcpy(columns, large, sizeof large); return 10;
    }
}

/* All column counts with all input counts, and rows around the numbers that kernels take at once. */
static void shapes_agree(void **state) {
    struct fixture *fixture = *state;
    for (size_t t = 0; t < WEIGHT_TYPES; t++) {
        size_t columns[12], column_count = column_choices(weight_types[t], columns);
        for (size_t c = 0; c < column_count; c++)
            for (size_t inputs = 1; inputs <= MATVEC_INPUTS_MAX; inputs++) {
                size_t rows = columns[c] > 2048 ? 1 + (c + inputs) % 5 : 1 + (c * 3 + inputs) % 11;
                struct test_case test = {weight_types[t], rows,        columns[c], inputs, 0, rows,
                                         WEIGHT_RANDOM,   INPUT_NORMAL};
                run_case(fixture, &test);
            }
    }
}

static void extremes_agree(void **state) {
    struct fixture *fixture = *state;
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (int weight = 0; weight < WEIGHT_KINDS; weight++)
            for (int input = 0; input < INPUT_KINDS; input++)
                for (size_t inputs = 1; inputs <= MATVEC_INPUTS_MAX; inputs += 3) {
                    struct test_case test = {
                        weight_types[t],       5, 1024, inputs, 0, 5, (enum weight_kind)weight,
                        (enum input_kind)input};
                    run_case(fixture, &test);
                }
}

/* Parts of the rows, as threads split them; nothing outside is touched. */
static void row_ranges_agree(void **state) {
    struct fixture *fixture = *state;
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t begin = 0; begin < 7; begin++)
            for (size_t end = begin; end <= 13; end += 3) {
                struct test_case test = {weight_types[t], 13,  512,           1 + (begin + end) % 3,
                                         begin,           end, WEIGHT_RANDOM, INPUT_NORMAL};
                run_case(fixture, &test);
            }
}

/* An input gets the same bits alone and with others, and a row in any range: a sequence's tokens depend neither on the
 * batch nor on the thread count. */
static void company_changes_nothing(void **state) {
    struct fixture *fixture = *state;
    enum { ROWS = 13 };
    static const size_t column_counts[] = {64, 256, 1000, 1056, 1280};
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t c = 0; c < sizeof column_counts / sizeof *column_counts; c++) {
            enum tensor_type type = weight_types[t];
            size_t columns = column_counts[c];
            uint64_t row_bytes;
            if (!tensor_row_bytes(type, columns, &row_bytes)) continue;
            static _Alignas(64) char data[ROWS * 1280 * 4], inputs[MATVEC_INPUTS_MAX * 8192];
            float x[1280], together[MATVEC_INPUTS_MAX * ROWS], alone[ROWS];
            weight_fill(&fixture->random, type, WEIGHT_RANDOM, data, ROWS * columns);
            const struct matrix weight = {type, data, ROWS, columns, row_bytes};
            for (size_t v = 0; v < fixture->variant_count; v++) {
                const struct matvec_kernels *kernels = &fixture->variants[v].kernels;
                enum matvec_form form = kernels->form[type];
                size_t bytes = kernels->input_bytes(form, columns);
                for (size_t i = 0; i < MATVEC_INPUTS_MAX; i++) {
                    fill_input(&fixture->random, INPUT_NORMAL, x, columns);
                    kernels->prepare[form](x, columns, inputs + i * bytes);
                }
                for (size_t count = 1; count <= MATVEC_INPUTS_MAX; count++) {
                    kernels->run[type](
                        &(struct matvec_args){&weight, count, inputs, together, ROWS, 0, ROWS});
                    size_t i = count - 1, cut = count % ROWS;
                    const void *input = inputs + i * bytes;
                    kernels->run[type](&(struct matvec_args){&weight, 1, input, alone, ROWS, 0, cut});
                    kernels->run[type](&(struct matvec_args){&weight, 1, input, alone, ROWS, cut, ROWS});
                    if (memcmp(alone, together + i * ROWS, sizeof alone) != 0)
                        fail_msg("%s %s columns %zu: input %zu differs among %zu", fixture->variants[v].name,
                                 tensor_type_info(type)->name, columns, i, count);
                }
            }
        }
}

/* The widths of x86 add in one order (kernels/span.h). */
static void widths_agree_bit_for_bit(void **state) {
#if defined(__x86_64__)
    struct fixture *fixture = *state;
    static const size_t columns[] = {32, 96, 100, 256, 512, 768, 1000, 1056, 1280, 2304};
    enum { ROWS = 9, INPUTS = 3, COLUMNS_MAX = 2304 };
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
            enum tensor_type type = weight_types[t];
            uint64_t row_bytes;
            if (!tensor_row_bytes(type, columns[c], &row_bytes)) continue;
            static _Alignas(64) char data[ROWS * COLUMNS_MAX * 4], inputs[INPUTS * 16384];
            float x[COLUMNS_MAX], want[INPUTS * ROWS], got[INPUTS * ROWS];
            weight_fill(&fixture->random, type, WEIGHT_RANDOM, data, ROWS * columns[c]);
            const struct matrix weight = {type, data, ROWS, columns[c], row_bytes};
            enum matvec_form form = fixture->reference.form[type];
            size_t bytes = fixture->reference.input_bytes(form, columns[c]);
            assert_true(bytes * INPUTS <= sizeof inputs);
            for (size_t i = 0; i < INPUTS; i++) {
                fill_input(&fixture->random, INPUT_NORMAL, x, columns[c]);
                fixture->reference.prepare[form](x, columns[c], inputs + i * bytes);
            }
            for (size_t v = 1; v < fixture->variant_count; v++) { /* the first is the reference */
                fixture->variants[v].kernels.run[type](
                    &(struct matvec_args){&weight, INPUTS, inputs, v == 1 ? want : got, ROWS, 0, ROWS});
                if (v > 1 && memcmp(got, want, sizeof got) != 0)
                    fail_msg("%s %s columns %zu: not as %s has it", fixture->variants[v].name,
                             tensor_type_info(type)->name, columns[c], fixture->variants[1].name);
            }
        }
#else
    (void)state;
    skip();
#endif
}

/* The reference itself, against sums of unquantised inputs: off by at most half a step per element. */
static void reference_is_the_product(void **state) {
    struct fixture *fixture = *state;
    enum { COLUMNS = 768, ROWS = 3 };
    for (size_t t = 0; t < WEIGHT_TYPES; t++) {
        enum tensor_type type = weight_types[t];
        uint64_t row_bytes;
        assert_true(tensor_row_bytes(type, COLUMNS, &row_bytes));
        struct guarded data = guarded_create(ROWS * row_bytes);
        weight_fill(&fixture->random, type, WEIGHT_RANDOM, data.data, ROWS * COLUMNS);
        struct matrix weight = {type, data.data, ROWS, COLUMNS, row_bytes};
        float x[COLUMNS], w[COLUMNS], y[ROWS];
        fill_input(&fixture->random, INPUT_NORMAL, x, COLUMNS);
        enum matvec_form form = fixture->reference.form[type];
        struct guarded input = guarded_create(fixture->reference.input_bytes(form, COLUMNS));
        fixture->reference.prepare[form](x, COLUMNS, input.data);
        struct matvec_args args = {&weight, 1, input.data, y, ROWS, 0, ROWS};
        fixture->reference.run[type](&args);
        size_t block = 32;
        for (size_t row = 0; row < ROWS; row++) {
            fixture->convert.dequantize[type]((const char *)data.data + row * row_bytes, w, COLUMNS);
            double sum = 0, bound = 1e-6;
            for (size_t c = 0; c < COLUMNS; c++) {
                double largest = 0;
                for (size_t i = c / block * block; i < (c / block + 1) * block; i++)
                    largest = fmax(largest, fabs((double)x[i]));
                sum += (double)w[c] * x[c];
                bound += fabs((double)w[c]) * (form == MATVEC_FORM_F32 ? 0 : largest * 1.0001 / 254);
            }
            check_near(y[row], sum, bound, "%s row %zu", tensor_type_info(type)->name, row);
        }
        guarded_destroy(&input);
        guarded_destroy(&data);
    }
}

/* Every variant prepares the very bytes of the reference, and reads no float past the last. */
static void prepared_inputs_are_equal(void **state) {
    struct fixture *fixture = *state;
    for (size_t columns = 1; columns < 1100; columns += columns < 40 ? 1 : 31)
        for (int kind = 0; kind < INPUT_KINDS; kind++) {
            if (!test_takes_next()) continue;
            struct guarded x = guarded_create(columns * sizeof(float));
            fill_input(&fixture->random, (enum input_kind)kind, x.data, columns);
            for (size_t v = 0; v < fixture->variant_count; v++)
                for (int form = 0; form < MATVEC_FORM_COUNT; form++) {
                    const struct matvec_kernels *kernels = &fixture->variants[v].kernels;
                    size_t bytes = kernels->input_bytes((enum matvec_form)form, columns);
                    struct guarded want = guarded_create(bytes), got = guarded_create(bytes);
                    fixture->reference.prepare[form](x.data, columns, want.data);
                    kernels->prepare[form](x.data, columns, got.data);
                    if (memcmp(got.data, want.data, bytes) != 0)
                        fail_msg("%s form %d columns %zu kind %d differs", fixture->variants[v].name, form,
                                 columns, kind);
                    guarded_destroy(&want);
                    guarded_destroy(&got);
                }
            guarded_destroy(&x);
        }
}

/* A NaN or an infinity in the input must not vanish in int8. */
static void not_finite_shows(void **state) {
    struct fixture *fixture = *state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t v = 0; v < fixture->variant_count; v++)
        for (size_t t = 0; t < WEIGHT_TYPES; t++)
            for (size_t b = 0; b < 4; b++) {
                enum tensor_type type = weight_types[t];
                const struct matvec_kernels *kernels = &fixture->variants[v].kernels;
                float x[512], y[1] = {0};
                static _Alignas(64) char input[8192], row[512 * 4];
                fill_input(&fixture->random, INPUT_NORMAL, x, 512);
                x[(t * 77 + b * 31) % 512] = bad[b];
                weight_fill(&fixture->random, type, WEIGHT_RANDOM, row, 512);
                kernels->prepare[kernels->form[type]](x, 512, input);
                struct matrix weight = {type, row, 1, 512, 0};
                struct matvec_args args = {&weight, 1, input, y, 1, 0, 1};
                kernels->run[type](&args);
                if (isfinite(y[0]))
                    fail_msg("%s %s: a NaN was lost", fixture->variants[v].name,
                             tensor_type_info(type)->name);
            }
}

/* A scale that is no number shows in its row and in no other: what lies behind a row's last group is the next row. */
static void broken_scales_stay_in_their_row(void **state) {
    struct fixture *fixture = *state;
    enum { ROWS = 13, SPOILS = 8, COLUMNS_MAX = 544 }; /* both values in both scales, in eight rows */
    static const float bad[] = {INFINITY, NAN};
    static const size_t columns[] = {32, 96, 256, 288, 300, 480, 544};
    static const size_t counts[] = {1, 2, 3, 4, 8};
    for (size_t t = 0; t < WEIGHT_TYPES; t++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns * 5; i++) {
            enum tensor_type type = weight_types[t];
            size_t count = counts[i % 5];
            static float x[MATVEC_INPUTS_MAX * COLUMNS_MAX], want[MATVEC_INPUTS_MAX * ROWS],
                got[MATVEC_INPUTS_MAX * ROWS];
            static _Alignas(64) char data[ROWS * COLUMNS_MAX * 4], inputs[MATVEC_INPUTS_MAX * 8192];
            struct matrix weight = {type, data, ROWS, columns[i / 5], 0};
            if (weight_is_finite(type) || !tensor_row_bytes(type, weight.columns, &weight.row_bytes))
                continue;
            weight_fill(&fixture->random, type, WEIGHT_RANDOM, data, ROWS * weight.columns);
            fill_input(&fixture->random, INPUT_NORMAL, x, count * weight.columns);
            uint8_t before[COLUMNS_MAX * 4];
            for (size_t v = 0; v < fixture->variant_count; v++) {
                const struct matvec_kernels *kernels = &fixture->variants[v].kernels;
                enum matvec_form form = kernels->form[type];
                size_t bytes = kernels->input_bytes(form, weight.columns);
                for (size_t n = 0; n < count; n++)
                    kernels->prepare[form](x + n * weight.columns, weight.columns, inputs + n * bytes);
                kernels->run[type](&(struct matvec_args){&weight, count, inputs, want, ROWS, 0, ROWS});
                for (size_t spoil = 0; spoil < SPOILS; spoil++) {
                    const size_t row = spoil * 5 % ROWS;
                    memcpy(before, data + row * weight.row_bytes, weight.row_bytes);
                    weight_spoil(type, data + row * weight.row_bytes, bad[spoil % 2], spoil / 2 % 2);
                    kernels->run[type](&(struct matvec_args){&weight, count, inputs, got, ROWS, 0, ROWS});
                    memcpy(data + row * weight.row_bytes, before, weight.row_bytes);
                    for (size_t n = 0; n < count * ROWS; n++)
                        if (n % ROWS == row ? isfinite(got[n]) : memcmp(got + n, want + n, sizeof *got) != 0)
                            fail_msg("%s %s columns %zu, %zu inputs: row %zu is %g beside a scale of %g in "
                                     "row %zu",
                                     fixture->variants[v].name, tensor_type_info(type)->name,
                                     (size_t)weight.columns, count, n % ROWS, (double)got[n],
                                     (double)bad[spoil % 2], row);
                }
            }
        }
}

static int setup(void **state) {
    static struct fixture fixture;
    matvec_kernels_init(&fixture.reference, 0);
    convert_kernels_init(&fixture.convert, 0);
    random_init(&fixture.random, test_seed(20261121));
    fixture.variant_count = variants_make(fixture.variants);
    *state = &fixture;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(reference_is_the_product, setup),
        cmocka_unit_test_setup(prepared_inputs_are_equal, setup),
        cmocka_unit_test_setup(not_finite_shows, setup),
        cmocka_unit_test_setup(broken_scales_stay_in_their_row, setup),
        cmocka_unit_test_setup(shapes_agree, setup),
        cmocka_unit_test_setup(extremes_agree, setup),
        cmocka_unit_test_setup(row_ranges_agree, setup),
        cmocka_unit_test_setup(company_changes_nothing, setup),
        cmocka_unit_test_setup(widths_agree_bit_for_bit, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
