/* Operations on rows of floats: each against the definition in double, with a bound from its roundings. */
#include "rig.h"

#include "kernels/attention/attention.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

static const double eps = 0x1p-24;
enum { SEEDS = 3 };

static void embed_is_exact(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(101));
    for (size_t t = 0; t < 15; t++) {
        struct rig_matrix table, positions;
        const size_t columns = 512, rows = 5, places = 7;
        rig_matrix_init(&table, &random, weight_types[t], WEIGHT_RANDOM, rows, columns);
        rig_matrix_init(&positions, &random, TENSOR_F16, WEIGHT_RANDOM, places, columns);
        struct step_row step_rows[3] = {{4, 2, 0}, {0, 4, 0}, {1, 0, 0}};
        struct step_head head = {2, 1}; /* of a step that may hold 3 */
        struct guarded y = device_memory(3 * columns * sizeof(float));
        fill_nan(y.data, 3 * columns);
        struct cuda_embed_args args = {.table = table.planes,
                                       .positions = positions.planes,
                                       .step = address_of(&head),
                                       .rows = address_of(step_rows),
                                       .y = address_of(y.data),
                                       .table_type = weight_types[t],
                                       .positions_type = t % 2 ? TENSOR_F16 : NO_WEIGHT,
                                       .row_count = 3,
                                       .columns = (uint32_t)columns,
                                       .table_columns = (uint32_t)columns,
                                       .position_offset = 2,
                                       .scale = t % 3 ? 1 : 22.627417f};
        launch("embed", 3, 1, 1, 256, 0, &args, test_seed(101));
        for (size_t r = 0; r < 3; r++)
            for (size_t c = 0; c < columns; c++) {
                const float got = ((float *)y.data)[r * columns + c];
                float want = table.values[step_rows[r].token * columns + c] * args.scale;
                if (t % 2) want += positions.values[(step_rows[r].position + 2) * columns + c];
                if (r == 2)
                    assert_true(isnan(got)); /* no row of this step */
                else if (memcmp(&got, &want, sizeof got) != 0 && got != want)
                    fail_msg("type %d row %zu column %zu: %g, want %g", weight_types[t], r, c, (double)got,
                             (double)want);
            }
        guarded_destroy(&y);
        rig_matrix_deinit(&table);
        rig_matrix_deinit(&positions);
    }
}

/* |y| eps times: the roundings of the sums (threads' chains of count / 256, 5 of a warp, 8 of a block, halved
 * by the root), and six of the formula; a mean's own error moves x - mean. */
static void norm_check(const char *name, const float *x, const float *w, const float *b, size_t count,
                       float epsilon, const float *got, size_t chain) {
    double mean = 0, squares = 0, magnitude = 0;
    for (size_t i = 0; i < count; i++) mean += b != NULL ? (double)x[i] / (double)count : 0;
    for (size_t i = 0; i < count; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    for (size_t i = 0; i < count; i++) magnitude += fabs((double)x[i]) / (double)count;
    const double inverse = 1 / sqrt(squares / (double)count + (double)epsilon);
    const double mean_off = b != NULL ? (double)(chain + 14) * eps * magnitude : 0;
    for (size_t i = 0; i < count; i++) {
        const double plain = ((double)x[i] - mean) * inverse * (double)w[i];
        const double want = plain + (b != NULL ? (double)b[i] : 0);
        const double bound = ((double)(chain + 14) / 2 + 6) * eps * fabs(plain) +
                             2 * mean_off * inverse * fabs((double)w[i]) + eps * fabs(want);
        check_near(got[i], want, bound, "%s %zu of %zu", name, i, count);
    }
}

static void norms_match(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(102));
    const size_t cases[][3] = {{1, 576, 0}, {1, 4096, 0}, {3, 64, 1}, {9, 128, 1}, {2, 100, 1}, {2, 512, 1}};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++)
        for (int layer = 0; layer < 2; layer++) {
            const size_t segments = cases[n][0], size = cases[n][1], heads = cases[n][2], rows = 3;
            const size_t stride = segments * size + 4;
            float *x = malloc(rows * stride * 4), *w = malloc(size * 4), *b = malloc(size * 4);
            struct guarded y = device_memory(rows * stride * sizeof(float));
            fill_nan(y.data, rows * stride);
            fill_normal(&random, x, rows * stride, 1.0);
            for (size_t i = 0; i < rows * stride; i++) x[i] += layer ? 5 : 0;
            fill_normal(&random, w, size, 1.0);
            fill_normal(&random, b, size, 1.0);
            struct cuda_norm_args args = {.x = address_of(x),
                                          .w = address_of(w),
                                          .b = layer ? address_of(b) : 0,
                                          .y = address_of(y.data),
                                          .row_count = (uint32_t)rows,
                                          .x_stride = (uint32_t)stride,
                                          .y_stride = (uint32_t)stride,
                                          .segment_count = (uint32_t)segments,
                                          .segment_size = (uint32_t)size,
                                          .epsilon = 1e-5f};
            for (uint64_t s = 0; s < SEEDS; s++) {
                if (heads)
                    launch("norm_heads", (uint32_t)rows, (uint32_t)(segments + 7) / 8, 1, 256, 0, &args, s);
                else
                    launch("norm_rows", (uint32_t)rows, (uint32_t)segments, 1, 256,
                           sizeof(struct norm_shared), &args, s);
                for (size_t i = 0; i < rows * segments; i++) {
                    const size_t at = i / segments * stride + i % segments * size;
                    norm_check(heads ? "heads" : "rows", x + at, w, layer ? b : NULL, size, 1e-5f,
                               (float *)y.data + at, size / 32);
                }
            }
            for (int scaled = 0; !heads && scaled < 2; scaled++) { /* added to what is there, to the bit */
                float *normed = malloc(rows * stride * 4), *before = malloc(rows * stride * 4);
                args.adds = 0;
                launch("norm_rows", (uint32_t)rows, (uint32_t)segments, 1, 256, sizeof(struct norm_shared), &args, 0);
                memcpy(normed, y.data, rows * stride * 4);
                fill_normal(&random, before, rows * stride, 1.0);
                memcpy(y.data, before, rows * stride * 4);
                args.adds = 1;
                args.scale = scaled ? 0.7f : 0;
                launch("norm_rows", (uint32_t)rows, (uint32_t)segments, 1, 256, sizeof(struct norm_shared), &args, 0);
                for (size_t i = 0; i < rows * stride; i++) {
                    float want = i % stride < size ? before[i] + normed[i] : before[i];
                    if (scaled && i % stride < size) want *= 0.7f;
                    assert_true(((float *)y.data)[i] == want);
                }
                free(normed), free(before);
            }
            free(x), free(w), free(b);
            guarded_destroy(&y);
        }
}

/* Without a norm: the codes and scales of the cpu, to the bit. */
static void inputs_are_the_cpus(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(103));
    const uint32_t columns = 576, rows = 3;
    static float x[3 * 576];
    for (size_t i = 0; i < 3 * 576; i++)
        x[i] = (float)(random_normal(&random) * exp(8 * random_normal(&random)));
    for (size_t i = 32; i < 64; i++) x[i] = 0;
    for (size_t i = 64; i < 96; i++) x[i] = 1e-35f;
    for (size_t i = 96; i < 128; i++) x[i] = 127 * (1 + 0x1p-11f); /* its scale is a tie, and goes to 1 */
    x[576 + 70] = INFINITY;
    x[576 + 100] = NAN;
    struct guarded y = device_memory(rows * input_row_bytes(columns));
    struct cuda_quantize_args args = {.x = address_of(x),
                                      .y = address_of(y.data),
                                      .row_count = rows,
                                      .x_stride = columns,
                                      .columns = columns};
    launch("quantize_rows", rows, 1, 1, 256, sizeof(struct norm_shared), &args, test_seed(103));
    struct matvec_kernels matvec;
    matvec_kernels_init(&matvec, 0);
    struct input_q8_32 *groups = malloc(matvec.input_bytes(MATVEC_FORM_Q8_32, columns));
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *row = (const uint8_t *)y.data + r * input_row_bytes(columns);
        const struct input_numbers *numbers = (const void *)(row + columns);
        matvec.prepare[MATVEC_FORM_Q8_32](x + r * columns, columns, groups);
        for (uint32_t b = 0; b < columns / 32; b++) {
            const struct input_q8_32 *group = groups + b / 8;
            const int8_t *want = group->q + b % 8 * 32;
            const float scale = group->scale[input_block_place(b % 8)];
            int sums[2] = {0, 0};
            for (size_t i = 0; i < 32; i++) sums[i / 16] += want[i];
            if (numbers[b].scale != scale && !(isnan(scale) && isnan(numbers[b].scale)))
                fail_msg("row %u block %u: scale %g, want %g", r, b, (double)numbers[b].scale, (double)scale);
            assert_memory_equal(row + b * 16, want, 16);
            assert_memory_equal(row + columns / 2 + b * 16, want + 16, 16);
            assert_int_equal(numbers[b].sum[0], sums[0]);
            assert_int_equal(numbers[b].sum[1], sums[1]);
        }
    }
    free(groups);
    guarded_destroy(&y);
}

/* With a norm: the code of the normed value, or a neighbour where the value is nearly between two. */
static void normed_inputs_match(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(104));
    const uint32_t columns = 4352; /* more halves than threads */
    static float x[4352], w[4352], b[4352], want[4352];
    struct guarded y = device_memory(input_row_bytes(columns));
    struct norm_kernels norm;
    norm_kernels_init(&norm, 0);
    for (uint32_t layer = 0; layer < 2; layer++) {
        fill_normal(&random, x, columns, 3.0);
        fill_normal(&random, w, columns, 1.0);
        fill_normal(&random, b, columns, 1.0);
        if (layer)
            norm.layer(x, w, b, 1e-5f, columns, want);
        else
            norm.rms(x, w, 1e-5f, columns, want);
        struct cuda_quantize_args args = {.x = address_of(x),
                                          .w = address_of(w),
                                          .b = address_of(b),
                                          .y = address_of(y.data),
                                          .row_count = 1,
                                          .x_stride = columns,
                                          .columns = columns,
                                          .norm = layer ? QUANTIZE_LAYER : QUANTIZE_RMS,
                                          .epsilon = 1e-5f};
        launch("quantize_rows", 1, 1, 1, 256, sizeof(struct norm_shared), &args, test_seed(104) + layer);
        for (uint32_t c = 0; c < columns; c++) {
            const int8_t *codes = (const int8_t *)y.data + c % 32 / 16 * (columns / 2) + c / 32 * 16;
            const struct input_numbers *numbers = (const void *)((const uint8_t *)y.data + columns);
            const double scale = (double)numbers[c / 32].scale;
            check_near(scale * codes[c % 16], want[c], scale * 0.5 * 1.001 + scale * 127 * 0x1p-11,
                       "layer %u, %u", layer, c);
        }
    }
    guarded_destroy(&y);
}

static void rope_matches(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(105));
    struct rope_kernels rope;
    rope_kernels_init(&rope, 0);
    const uint64_t positions[] = {0, 1, 5, 131071, 16777217, 4294967297u, (1ull << 40) - 1};
    enum { ROWS = 7, PAIRS = 40, HEADS = 3, STRIDE = 90 };
    struct step_row rows[ROWS];
    float frequency[PAIRS];
    static float table[ROWS * 2 * PAIRS], want[2 * PAIRS], x[ROWS * HEADS * STRIDE],
        before[ROWS * HEADS * STRIDE];
    for (size_t i = 0; i < ROWS; i++) rows[i] = (struct step_row){positions[i], 0, 0};
    for (size_t j = 0; j < PAIRS; j++) frequency[j] = (float)pow(500000.0, -(double)j / PAIRS);
    struct cuda_rope_angles_args angles = {.rows = address_of(rows),
                                           .frequency = address_of(frequency),
                                           .cosine_sine = address_of(table),
                                           .row_count = ROWS,
                                           .pair_count = PAIRS,
                                           .factor = 1.25f};
    launch("rope_angles", ROWS, 1, 1, 128, 0, &angles, test_seed(105));
    for (size_t r = 0; r < ROWS; r++) {
        rope.angles(positions[r], frequency, PAIRS, 1.25f, want);
        for (size_t j = 0; j < 2 * PAIRS; j++) /* a rounding to float, and 2^-40 of the series */
            check_near(table[r * 2 * PAIRS + j], want[j], 2 * 1.25 * eps, "angle %zu at %llu", j,
                       (unsigned long long)positions[r]);
    }
    for (uint32_t split = 0; split < 2; split++) {
        fill_normal(&random, x, ROWS * HEADS * STRIDE, 1.0);
        memcpy(before, x, sizeof x);
        struct cuda_rope_args args = {.x = address_of(x),
                                      .cosine_sine = address_of(table),
                                      .row_count = ROWS,
                                      .x_stride = HEADS * STRIDE,
                                      .head_count = HEADS,
                                      .head_stride = STRIDE,
                                      .pair_count = PAIRS,
                                      .split = split};
        launch("rope", ROWS, (HEADS * PAIRS + 255) / 256, 1, 256, 0, &args, test_seed(105));
        for (size_t r = 0; r < ROWS; r++) {
            float *row = before + r * HEADS * STRIDE;
            rope.apply(row, HEADS, STRIDE, PAIRS, split ? ROPE_SPLIT : ROPE_ADJACENT, table + r * 2 * PAIRS);
            for (size_t i = 0; i < HEADS * STRIDE; i++) /* two products and a sum of values below 6 */
                check_near(x[r * HEADS * STRIDE + i], row[i], 3 * 1.25 * 12 * eps, "split %u row %zu, %zu",
                           split, r, i);
        }
    }
}

static void elementwise_matches(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(106));
    enum { ROWS = 3, COUNT = 1300, STRIDE = 1304 };
    static float gate[ROWS * STRIDE], up[ROWS * STRIDE], y[ROWS * STRIDE];
    for (size_t i = 0; i < ROWS * STRIDE; i++) {
        gate[i] = (float)(random_normal(&random) * (i % 3 ? 2 : 60));
        up[i] = (float)random_normal(&random);
    }
    for (uint32_t kind = 0; kind < 5; kind++) {
        if (kind == 3) continue; /* gpt-oss's */
        fill_nan(y, ROWS * STRIDE);
        struct cuda_activation_args args = {.gate = address_of(gate),
                                            .up = address_of(up),
                                            .y = address_of(y),
                                            .row_count = ROWS,
                                            .stride = STRIDE,
                                            .count = COUNT,
                                            .kind = kind,
                                            .cap = 30};
        launch("activation", ROWS, 2, 1, 256, 0, &args, test_seed(106));
        for (size_t i = 0; i < ROWS * STRIDE; i++) {
            const double x = (double)gate[i];
            if (i % STRIDE >= COUNT) {
                assert_true(isnan(y[i]));
                continue;
            }
            const double inner = 1.5957691216057308 * (x + 0.044715 * x * x * x);
            const double want = kind == 0   ? x / (1 + exp(-x)) * (double)up[i]
                                : kind == 1 ? (x < 0 ? 0 : x)
                                : kind == 4 ? 30 * tanh(x / 30)
                                            : x / (1 + exp(-inner)) * (double)up[i];
            /* exp2_near 4 eps, seven roundings; the exponent of gelu has three of its own, |inner| eps each; below
             * 2^-126 nothing is kept. */
            const double least = kind == 4 ? 4e-7 * 30 : 1e-36;
            const double bound = ((kind == 2 ? 4 * fabs(inner) : 0) + 13) * eps * fabs(want) + least;
            check_near(y[i], want, bound, "kind %u at %zu of %g", kind, i, x);
        }
    }
    const uint32_t indices[4] = {2, 0, 2, 1};
    static float picked[4 * COUNT];
    struct cuda_gather_args gather = {
        address_of(gate), address_of(indices), address_of(picked), 4, STRIDE, COUNT, COUNT};
    launch("gather", 4, 2, 1, 256, 0, &gather, test_seed(106));
    for (size_t i = 0; i < 4; i++)
        assert_memory_equal(picked + i * COUNT, gate + indices[i] * STRIDE, COUNT * 4);
    struct cuda_add_args add = {.x = address_of(gate),
                                .y = address_of(up),
                                .row_count = ROWS,
                                .x_stride = STRIDE,
                                .y_stride = STRIDE,
                                .count = COUNT};
    memcpy(y, up, sizeof y);
    launch("add", ROWS, 2, 1, 256, 0, &add, test_seed(106));
    for (size_t i = 0; i < ROWS * STRIDE; i++)
        assert_true(up[i] == (i % STRIDE < COUNT ? y[i] + gate[i] : y[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_is_exact),      cmocka_unit_test(norms_match),
        cmocka_unit_test(inputs_are_the_cpus), cmocka_unit_test(normed_inputs_match),
        cmocka_unit_test(rope_matches),        cmocka_unit_test(elementwise_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
