/* append, decode attention and merge, over page tables and pools, against the definitions. */
#include "kv_rig.h"

static const double eps = 0x1p-24;

/* What the kernel stores is what the cpu's definition stores, to the bit, and nothing beside it. */
static void append_is_exact(void **state) {
    (void)state;
    static struct kv_rig rig;
    struct random random;
    random_init(&random, test_seed(301));
    for (int types = 0; types < 4; types++) {
        const uint64_t lengths[2] = {130, 64};
        const size_t k = types & 1 ? 64 : 80, v = types & 2 ? 96 : 72;
        kv_rig_init(&rig, &random, types & 1 ? KV_Q8 : KV_F16, types & 2 ? KV_Q8 : KV_F16, k, v, 3, lengths,
                    2);
        rig.k[0][126 * 3 * k + 5] = INFINITY, rig.v[0][127 * 3 * v + 7] = NAN;
        rig.k[1][62 * 3 * k + 40] = 70000, rig.v[1][62 * 3 * v + 3] = -70000;
        for (size_t i = 0; i < 32; i++) rig.k[1][61 * 3 * k + i] = 0;
        enum { ROWS = 10 };
        struct step_row rows[ROWS + 2];
        float ks[ROWS + 2][3 * 80 + 8], vs[ROWS + 2][3 * 96 + 8];
        for (size_t r = 0; r < ROWS; r++) {
            rows[r] = (struct step_row){r < 6 ? 124 + r : r == 6 ? 0 : 54 + r, 0, r < 6 ? 0 : 1};
            memcpy(ks[r], rig.k[rows[r].item] + rows[r].position * 3 * k, 3 * k * sizeof(float));
            memcpy(vs[r], rig.v[rows[r].item] + rows[r].position * 3 * v, 3 * v * sizeof(float));
            for (size_t h = 0; h < 3; h++)
                rig.attention.store(&rig.layout,
                                    rig.chunks[rows[r].item][h * rig.chunk_stride + rows[r].position / 64],
                                    rows[r].position % 64, ks[r] + h * k, vs[r] + h * v);
        }
        rows[ROWS] = rows[ROWS + 1] = (struct step_row){3, 0, 0}; /* of which this step has none */
        struct step_head head = {ROWS, 2};
        struct cuda_append_args args = {.step = address_of(&head),
                                        .rows = address_of(rows),
                                        .items = address_of(rig.items),
                                        .pools = address_of(&rig.pools),
                                        .k = address_of(ks),
                                        .v = address_of(vs),
                                        .layer_pages = kv_rig_layer_pages(&rig),
                                        .shape = rig.shape,
                                        .row_count = ROWS + 2,
                                        .k_stride = 3 * 80 + 8,
                                        .v_stride = 3 * 96 + 8};
        launch("append", ROWS + 2, 3, 1, 128, 0, &args, (uint64_t)types);
        for (size_t i = 0; i < 2; i++)
            for (size_t h = 0; h < 3; h++)
                for (size_t c = 0; c < (lengths[i] + 63) / 64; c++)
                    for (size_t b = 0; b < rig.layout.chunk_bytes; b++) {
                        const uint8_t got = ((uint8_t *)kv_rig_chunk(&rig, i, KV_RIG_LAYER, h, c))[b];
                        const uint8_t want = ((uint8_t *)rig.chunks[i][h * rig.chunk_stride + c])[b];
                        /* a NaN has no one form: that chunk's values are compared below */
                        if (got != want && !(i == 0 && c == 1))
                            fail_msg("types %d item %zu: byte %zu", types, i, b);
                    }
        for (size_t h = 0; h < 3; h++)
            for (size_t t = 0; t < 64; t++) {
                float got[2][96], want[2][96];
                rig.attention.load(&rig.layout, kv_rig_chunk(&rig, 0, KV_RIG_LAYER, h, 1), t, got[0], got[1]);
                rig.attention.load(&rig.layout, rig.chunks[0][h * rig.chunk_stride + 1], t, want[0], want[1]);
                for (size_t i = 0; i < k + v; i++) {
                    const float a = got[i >= k][i >= k ? i - k : i], b = want[i >= k][i >= k ? i - k : i];
                    if (!(a == b) && !(isnan(a) && isnan(b)))
                        fail_msg("types %d token %zu, %zu", types, t, i);
                }
            }
        kv_rig_deinit(&rig);
    }
}

struct decode_case {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension, kv_heads, group;
    uint64_t window;
    float softcap;
    uint64_t positions[3];
};

static void decode_check(const struct decode_case *test, const struct kv_rig *rig,
                         const struct step_row *rows, const float *q, const float *y) {
    const size_t heads = test->kv_heads * test->group;
    for (size_t r = 0; r < 3; r++)
        for (size_t h = 0; h < heads; h++) {
            double out[512], bound[512];
            const float scale = 0.125f;
            /* dot products: chains of 8, then 5 levels, and two factors; weights: exp2 twice to 2^-22, chains of
             * sums over the rows of a range, and what the parts are merged with */
            kv_rig_attend(rig, rows[r].item, h / test->group, q + (r * heads + h) * test->k_dimension,
                          rows[r].position, test->window, NULL, (double)scale, (double)test->softcap,
                          -INFINITY, 16 * eps, 16 * 0x1p-22 + (double)(rows[r].position / 8 + 100) * eps, out,
                          bound);
            for (size_t d = 0; d < test->v_dimension; d++)
                check_near(y[(r * heads + h) * test->v_dimension + d], out[d], bound[d] + 1e-30,
                           "%zu x %zu, group %zu, window %llu: row %zu head %zu element %zu",
                           test->k_dimension, test->v_dimension, test->group,
                           (unsigned long long)test->window, r, h, d);
        }
}

static void decode_run(const struct decode_case *test, struct random *random, uint64_t seed) {
    static struct kv_rig rig;
    const uint64_t lengths[3] = {test->positions[0] + 1, test->positions[1] + 1, test->positions[2] + 1};
    const size_t heads = test->kv_heads * test->group;
    kv_rig_init(&rig, random, test->k_type, test->v_type, test->k_dimension, test->v_dimension,
                test->kv_heads, lengths, 3);
    kv_rig_fill(&rig);
    struct step_row rows[3];
    for (uint32_t i = 0; i < 3; i++) rows[i] = (struct step_row){test->positions[i], 0, i};
    const uint32_t stride = attention_partial_stride((uint32_t)test->v_dimension);
    const uint32_t columns = (uint32_t)(heads * test->v_dimension);
    struct guarded q = device_memory(3 * heads * test->k_dimension * 4), y = device_memory(3 * columns * 4),
                   partials = device_memory(3 * heads * ATTENTION_RANGES_MAX * stride * 4),
                   input = device_memory(3 * input_row_bytes(columns)), want = device_memory(input.bytes);
    fill_normal(random, q.data, 3 * heads * test->k_dimension, 2.0);
    fill_nan(partials.data, partials.bytes / 4);
    fill_nan(y.data, 3 * columns);
    struct cuda_attention_args args = {.rows = address_of(rows),
                                       .items = address_of(rig.items),
                                       .pools = address_of(&rig.pools),
                                       .q = address_of(q.data),
                                       .partials = address_of(partials.data),
                                       .layer_pages = kv_rig_layer_pages(&rig),
                                       .shape = rig.shape,
                                       .row_count = 3,
                                       .q_stride = (uint32_t)(heads * test->k_dimension),
                                       .kv_head_count = (uint32_t)test->kv_heads,
                                       .group = (uint32_t)test->group,
                                       .window = (uint32_t)test->window,
                                       .partial_stride = stride,
                                       .scale = 0.125f,
                                       .softcap = test->softcap};
    const size_t widest = test->k_dimension > test->v_dimension ? test->k_dimension : test->v_dimension;
    const uint32_t lanes = widest <= 64 ? 8 : widest <= 128 ? 16 : widest <= 256 ? 32 : 64;
    const uint32_t at_once = test->group == 1 ? 1 : test->group <= 4 || lanes == 64 ? 4 : 8;
    const uint32_t passes = ((uint32_t)test->group + at_once - 1) / at_once;
    const bool f16 = test->k_type == KV_F16 && test->v_type == KV_F16;
    char name[64];
    snprintf(name, sizeof name, "attention_decode_%u_%u_%s", lanes, at_once, f16 ? "f16" : "any");
    launch(name, ATTENTION_RANGES_MAX, args.kv_head_count * passes, 3, 128,
           attention_decode_shared(lanes, at_once), &args, seed);
    struct cuda_merge_args merge = {.rows = address_of(rows),
                                    .partials = address_of(partials.data),
                                    .y = address_of(y.data),
                                    .input = test->v_dimension % 32 == 0 ? address_of(input.data) : 0,
                                    .row_count = 3,
                                    .y_stride = columns,
                                    .head_count = (uint32_t)heads,
                                    .v_dimension = (uint32_t)test->v_dimension,
                                    .window = (uint32_t)test->window,
                                    .partial_stride = stride};
    launch("attention_merge", (uint32_t)heads, 3, 1, 512, sizeof(struct merge_shared), &merge, seed);
    decode_check(test, &rig, rows, q.data, y.data);
    if (merge.input != 0) { /* and quantised as anything is */
        struct cuda_quantize_args quantize = {.x = address_of(y.data),
                                              .y = address_of(want.data),
                                              .row_count = 3,
                                              .x_stride = columns,
                                              .columns = columns};
        launch("quantize_rows", 3, 1, 1, 256, sizeof(struct norm_shared), &quantize, seed);
        for (size_t r = 0; r < 3; r++)
            assert_memory_equal((char *)input.data + r * input_row_bytes(columns),
                                (char *)want.data + r * input_row_bytes(columns), columns / 32 * 40);
    }
    guarded_destroy(&q), guarded_destroy(&y), guarded_destroy(&partials), guarded_destroy(&input);
    guarded_destroy(&want);
    kv_rig_deinit(&rig);
}

static void decode_matches(void **state) {
    (void)state;
    static const struct decode_case cases[] = {
        {KV_F16, KV_F16, 64, 64, 3, 3, 0, 0, {0, 63, 300}},
        {KV_F16, KV_F16, 128, 128, 2, 4, 0, 0, {64, 127, 517}},
        {KV_F16, KV_F16, 80, 80, 2, 1, 0, 0, {5, 65, 129}},
        {KV_F16, KV_F16, 256, 256, 1, 2, 0, 30.0f, {7, 100, 190}},
        {KV_F16, KV_F16, 512, 512, 1, 5, 0, 0, {7, 70, 33}},
        {KV_Q8, KV_F16, 320, 512, 1, 1, 60, 30.0f, {63, 64, 90}},
        {KV_F16, KV_F16, 128, 64, 1, 7, 100, 0, {31, 150, 263}},
        {KV_Q8, KV_Q8, 64, 64, 1, 8, 0, 0, {64, 1, 200}},
        {KV_Q8, KV_F16, 128, 128, 1, 12, 70, 0, {69, 70, 200}},
        {KV_F16, KV_Q8, 96, 96, 2, 4, 0, 50.0f, {33, 191, 192}},
        {KV_F16, KV_F16, 8, 8, 1, 1, 0, 0, {4500, 10, 8}}, /* ranges of more than a chunk */
    };
    struct random random;
    random_init(&random, test_seed(302));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        decode_run(&cases[i], &random, test_seed(302) + i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_is_exact),
        cmocka_unit_test(decode_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
