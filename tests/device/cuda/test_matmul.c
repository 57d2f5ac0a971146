/* halve_rows, and matmul of every weight type: against sums in double, with a bound from what halves lose. */
#include "rig.h"

#include <ctype.h>

#include "device/cuda/kernels_sm90a.h"

static const double eps = 0x1p-24, half_eps = 0x1p-11;

static void halves_match(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(401));
    enum { ROWS = 4, COLUMNS = 584 };
    static float x[ROWS * COLUMNS], w[COLUMNS], b[COLUMNS];
    struct guarded y = device_memory(ROWS * COLUMNS * 2), scales = device_memory(ROWS * 4);
    for (int norm = 0; norm < 3; norm++) {
        fill_normal(&random, x, ROWS * COLUMNS, 1.0);
        fill_normal(&random, w, COLUMNS, 1.0);
        fill_normal(&random, b, COLUMNS, 1.0);
        for (size_t i = 0; i < COLUMNS; i++) x[COLUMNS + i] *= 1e6f, x[2 * COLUMNS + i] *= norm ? 1 : 1e-20f;
        for (size_t i = 0; i < COLUMNS && norm == 0; i++) x[3 * COLUMNS + i] = 0;
        x[7] = norm == 0 ? 0x1.ffffp3f : x[7]; /* the largest, a half of 2 */
        struct cuda_halve_args args = {.x = address_of(x),
                                       .w = norm ? address_of(w) : 0,
                                       .b = norm == 2 ? address_of(b) : 0,
                                       .y = address_of(y.data),
                                       .scales = address_of(scales.data),
                                       .row_count = ROWS,
                                       .x_stride = COLUMNS,
                                       .columns = COLUMNS,
                                       .epsilon = 1e-5f};
        launch("halve_rows", ROWS, 1, 1, 256, sizeof(struct norm_shared), &args, (uint64_t)norm);
        for (size_t r = 0; r < ROWS; r++) {
            double mean = 0, squares = 0, scale = (double)((float *)scales.data)[r];
            for (size_t c = 0; c < COLUMNS; c++) mean += norm == 2 ? (double)x[r * COLUMNS + c] / COLUMNS : 0;
            for (size_t c = 0; c < COLUMNS; c++) squares += pow((double)x[r * COLUMNS + c] - mean, 2);
            const double inverse = norm ? 1 / sqrt(squares / COLUMNS + 1e-5) : 1;
            for (size_t c = 0; c < COLUMNS; c++) {
                double want = (double)x[r * COLUMNS + c];
                if (norm) want = (want - mean) * inverse * (double)w[c] + (norm == 2 ? (double)b[c] : 0);
                const double got = scale * (double)half_to_float(((uint16_t *)y.data)[r * COLUMNS + c]);
                const double bound = 1.01 * half_eps * fabs(want) + scale * 0x1p-25 + (norm ? 1e-5 : 0);
                check_near(got, want, bound, "norm %d row %zu column %zu", norm, r, c);
            }
        }
        /* Of what comes back the same halves are made, also where the largest was rounded up to a power of two. */
        static uint8_t halves[ROWS * COLUMNS * 2], powers[ROWS * 4];
        struct cuda_halve_args back = {.x = address_of(y.data),
                                       .y = address_of(x),
                                       .scales = address_of(scales.data),
                                       .x_stride = COLUMNS,
                                       .columns = COLUMNS};
        memcpy(halves, y.data, sizeof halves), memcpy(powers, scales.data, sizeof powers);
        launch("restore_rows", ROWS, 1, 1, 256, 0, &back, (uint64_t)norm);
        args.w = args.b = 0;
        launch("halve_rows", ROWS, 1, 1, 256, sizeof(struct norm_shared), &args, (uint64_t)norm);
        assert_memory_equal(y.data, halves, sizeof halves);
        assert_memory_equal(scales.data, powers, sizeof powers);
    }
    x[5] = INFINITY;
    struct cuda_halve_args args = {.x = address_of(x),
                                   .y = address_of(y.data),
                                   .scales = address_of(scales.data),
                                   .row_count = 1,
                                   .x_stride = COLUMNS,
                                   .columns = COLUMNS};
    launch("halve_rows", 1, 1, 1, 256, sizeof(struct norm_shared), &args, 7);
    assert_true(isnan(((float *)scales.data)[0]));
    guarded_destroy(&y), guarded_destroy(&scales);
}

enum { ROWS = 131, PARTS = 2 };
static const uint32_t part_rows[PARTS] = {141, 33};

struct product {
    struct rig_matrix parts[PARTS];
    struct guarded x, scales, y[PARTS], bias;
    uint32_t columns;
};

/* wgmma: rows of a tile; 0: by mma.sync. */
static void product_run(const struct product *p, uint32_t wgmma, bool accumulate, uint64_t seed) {
    struct step_head head = {ROWS, 1};
    struct cuda_matmul_wgmma_args both;
    struct cuda_matmul_args args = {.step = address_of(&head),
                                    .x = address_of(p->x.data),
                                    .scales = address_of(p->scales.data),
                                    .columns = p->columns,
                                    .row_count = 300,
                                    .accumulate = accumulate};
    for (size_t i = 0; i < PARTS; i++)
        args.part[i] = (struct matvec_part){p->parts[i].planes, i == 1 ? address_of(p->bias.data) : 0,
                                            address_of(p->y[i].data), part_rows[i], part_rows[i] + 1};
    const uint32_t tiles = matmul_tiles(part_rows[0]) + matmul_tiles(part_rows[1]);
    const char *type = tensor_type_info(p->parts[0].matrix.type)->name;
    char name[64];
    snprintf(name, sizeof name, wgmma ? "matmul_wgmma_%s_%u" : "matmul_%s", type, wgmma);
    for (char *c = name; *c; c++) *c = (char)tolower(*c);
    if (wgmma) { /* one block has two tiles or more */
        both.matmul = args;
        executor_tensor_map(&both.x, p->x.data, p->columns, ROWS, wgmma);
        launch(name, tiles - 1, 1, 1, MATMUL_WGMMA_THREADS, matmul_wgmma_shared(wgmma), &both, seed);
    } else {
        launch(name, 3, tiles, 1, 256, MATMUL_SHARED, &args, seed);
    }
}

/* What an output at `place` is added to: another one in every row and column around it. */
static double before_of(size_t place) { return (double)(place % 61) / 4; }

/* x is what it is, in halves.  A weight is a scale, a code and a minimum, of which scale and minimum are
 * rounded to halves, and the result is: 3 half_eps of twice the largest value of its block of 32, which bounds
 * both parts; below 2^-14 a half's places are 2^-24 apart, for the scale as for the weight, and a code is at
 * most 128.  Sums in float, whose roundings may cut: 2 eps each. */
static void product_check(const struct product *p, bool adds) {
    for (size_t i = 0; i < PARTS; i++) {
        const struct rig_matrix *w = &p->parts[i];
        for (size_t n = 0; n < part_rows[i]; n++)
            for (size_t r = 0; r < ROWS; r += r < 2 || r > 125 ? 1 : 31) {
                const double scale = (double)((float *)p->scales.data)[r];
                double sum = 0, bound = 0, largest = 0;
                for (size_t c = 0; c < p->columns; c++) {
                    const float *values = w->values + n * p->columns;
                    const double x =
                        scale * (double)half_to_float(((uint16_t *)p->x.data)[r * p->columns + c]);
                    if (c % 32 == 0) {
                        largest = 0;
                        for (size_t k = c; k < c + 32 && k < p->columns; k++)
                            largest = fabs((double)values[k]) > largest ? fabs((double)values[k]) : largest;
                    }
                    sum += (double)values[c] * x;
                    bound +=
                        (6 * half_eps * largest + 129 * 0x1p-25 + 2 * (double)p->columns * eps * largest) *
                        fabs(x);
                }
                const size_t at = r * (part_rows[i] + 1) + n;
                const double bias = i == 1 ? (double)((float *)p->bias.data)[n] : 0, before = adds ? before_of(at) : 0;
                check_near(((float *)p->y[i].data)[at], sum + bias + before, bound + 4 * eps * (fabs(bias) + before),
                           "%s, %u columns, part %zu: %zu, %zu", tensor_type_info(w->matrix.type)->name,
                           p->columns, i, r, n);
            }
    }
}

/* What is not an output stays as it is. */
static void beside_check(const struct product *p) {
    for (size_t i = 0; i < PARTS; i++) {
        const float *y = p->y[i].data;
        for (size_t r = 0; r <= ROWS; r++) assert_true(isnan(y[r * (part_rows[i] + 1) + part_rows[i]]));
        for (size_t n = 0; n < part_rows[i]; n++) assert_true(isnan(y[ROWS * (part_rows[i] + 1) + n]));
    }
}

static void products_fill(struct product *p, bool adds) {
    for (size_t i = 0; i < PARTS; i++)
        for (size_t k = 0; k < (ROWS + 1) * (part_rows[i] + 1); k++)
            ((float *)p->y[i].data)[k] = adds ? (float)before_of(k) : NAN;
}

/* Wide tiles give the bits of narrow ones. */
static void wide_check(struct product *p, uint64_t seed) {
    void *narrow[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        const size_t bytes = ROWS * (part_rows[i] + 1) * sizeof(float);
        narrow[i] = malloc(bytes);
        assert_non_null(narrow[i]);
        memcpy(narrow[i], p->y[i].data, bytes);
    }
    products_fill(p, false);
    product_run(p, 256, false, seed);
    beside_check(p);
    for (size_t i = 0; i < PARTS; i++) {
        assert_memory_equal(narrow[i], p->y[i].data, ROWS * (part_rows[i] + 1) * sizeof(float));
        free(narrow[i]);
    }
}

/* Columns: of wgmma so many that its stages go round. */
static void products_of(bool wgmma) {
    struct random random;
    random_init(&random, test_seed(402));
    for (size_t t = 0; t < 15; t++) {
        const size_t block = tensor_type_info(weight_types[t])->block_elements;
        struct product p = {.columns = block == 256 ? 256 : block == 1 ? 168 : 160}; /* 168: no whole pieces */
        if (wgmma && t < 5) p.columns += 320;
        p.x = device_memory(ROWS * p.columns * 2);
        p.scales = device_memory(ROWS * 4);
        p.bias = device_memory(part_rows[1] * 4);
        fill_normal(&random, p.bias.data, part_rows[1], 1.0);
        for (size_t i = 0; i < ROWS * p.columns; i++)
            ((uint16_t *)p.x.data)[i] = float_to_half((float)(random_double(&random) * 4 - 2));
        for (size_t i = 0; i < ROWS; i++)
            ((float *)p.scales.data)[i] = ldexpf(1, (int)random_below(&random, 9) - 4);
        for (size_t i = 0; i < PARTS; i++) {
            rig_matrix_init(&p.parts[i], &random, weight_types[t], t % 2 ? WEIGHT_ZERO : WEIGHT_RANDOM,
                            part_rows[i], p.columns);
            p.y[i] = device_memory((ROWS + 1) * (part_rows[i] + 1) * 4);
        }
        products_fill(&p, false);
        product_run(&p, wgmma ? 128 : 0, false, t);
        product_check(&p, false);
        beside_check(&p);
        if (wgmma) wide_check(&p, t);
        if (t % 4 == 3) {
            products_fill(&p, true);
            product_run(&p, !wgmma ? 0 : t == 3 ? 256 : 128, true, t + 100);
            product_check(&p, true);
        }
        for (size_t i = 0; i < PARTS; i++) rig_matrix_deinit(&p.parts[i]), guarded_destroy(&p.y[i]);
        guarded_destroy(&p.x), guarded_destroy(&p.scales), guarded_destroy(&p.bias);
    }
}

static void products_match(void **state) {
    (void)state;
    products_of(false);
}

static void products_by_wgmma_match(void **state) {
    (void)state;
    products_of(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_match),
        cmocka_unit_test(products_match),
        cmocka_unit_test(products_by_wgmma_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
