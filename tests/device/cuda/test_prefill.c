/* Attention of prompts: several items, causal, windows, groups, soft caps, all widths and types, against the
 * definition; by wgmma those of heads of at most 128 without a soft cap. */
#include "device/cuda/kernels_sm90a.h"
#include "kv_rig.h"

static const double eps = 0x1p-24, half_eps = 0x1p-11;

struct prefill_case {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension, kv_heads, group;
    uint64_t window;
    float softcap;
    uint64_t first[2], count[2];
};

/* Scores: query and key are halves, of which only the query is rounded, times a factor that rounds: half_eps;
 * sums may cut.  Weights are rounded to halves, with what is below 2^-25 lost, but their sum is not: half_eps
 * of each, and 2^-25 of as many values as there are keys.  Values in 8 bits and the products scale * code are
 * rounded to halves.  */
static void item_check(const struct prefill_case *test, const struct kv_rig *rig, size_t item,
                       size_t row_first, const float *q, const float *y, size_t y_stride) {
    const size_t heads = test->kv_heads * test->group;
    const bool rounds_k = test->k_type == KV_Q8, rounds_v = test->v_type == KV_Q8;
    for (uint64_t i = 0; i < test->count[item];
         i += i < 2 || i + 3 > test->count[item] || i % 64 > 61 ? 1 : 13)
        for (size_t h = 0; h < heads; h++) {
            double out[512], bound[512];
            const uint64_t position = test->first[item] + i;
            const size_t row = row_first + i;
            kv_rig_attend(rig, item, h / test->group, q + (row * heads + h) * test->k_dimension, position,
                          test->window, NULL, 0.125, (double)test->softcap, -INFINITY,
                          (rounds_k ? 2 : 1) * 1.01 * half_eps + 2 * (double)test->k_dimension * eps,
                          (rounds_v ? 2 : 1) * half_eps + (double)(position + 1) * 0x1p-24, out, bound);
            for (size_t d = 0; d < test->v_dimension; d++)
                check_near(y[row * y_stride + h * test->v_dimension + d], out[d],
                           bound[d] + (double)(position + 1) * 0x1p-25 * 4,
                           "%zu x %zu: item %zu, row %llu, head %zu, %zu", test->k_dimension,
                           test->v_dimension, item, (unsigned long long)i, h, d);
        }
}

/* Chunks in front of what an item's first row sees are nowhere. */
static void unseen_drop(const struct prefill_case *test, struct kv_rig *rig, size_t item) {
    const uint64_t first = test->first[item], begin = first + 1 > test->window ? first + 1 - test->window : 0;
    for (size_t h = 0; h < test->kv_heads; h++)
        for (uint64_t c = 0; c < begin / 64 && test->window > 0; c++)
            rig->pages[item][(KV_RIG_LAYER * rig->kv_heads + h) * rig->chunk_stride + c] = 0;
}

static void prefill_run(const struct prefill_case *test, bool wgmma, struct random *random, uint64_t seed) {
    static struct kv_rig rig;
    const uint64_t lengths[2] = {test->first[0] + test->count[0], test->first[1] + test->count[1]};
    const size_t heads = test->kv_heads * test->group, rows = 1 + test->count[0] + test->count[1];
    kv_rig_init(&rig, random, test->k_type, test->v_type, test->k_dimension, test->v_dimension,
                test->kv_heads, lengths, 2);
    kv_rig_fill(&rig);
    for (size_t i = 0; i < 2; i++) unseen_drop(test, &rig, i);
    uint32_t row_first = 1; /* a row of something else comes first */
    for (size_t i = 0; i < 2; i++) {
        rig.items[i].position_first = test->first[i];
        rig.items[i].row_first = row_first;
        rig.items[i].row_count = (uint32_t)test->count[i];
        row_first += rig.items[i].row_count;
    }
    const size_t y_stride = heads * test->v_dimension + 2;
    struct guarded q = device_memory(rows * heads * test->k_dimension * 4),
                   y = device_memory(rows * y_stride * 4);
    fill_normal(random, q.data, rows * heads * test->k_dimension, 2.0);
    fill_nan(y.data, rows * y_stride);
    struct step_head head = {(uint32_t)rows, 2};
    struct cuda_prefill_args args = {.step = address_of(&head),
                                     .items = address_of(rig.items),
                                     .pools = address_of(&rig.pools),
                                     .q = address_of(q.data),
                                     .y = address_of(y.data),
                                     .layer_pages = kv_rig_layer_pages(&rig),
                                     .shape = rig.shape,
                                     .item_count = 3,
                                     .q_stride = (uint32_t)(heads * test->k_dimension),
                                     .y_stride = (uint32_t)y_stride,
                                     .group = (uint32_t)test->group,
                                     .window = (uint32_t)test->window,
                                     .scale = 0.125f,
                                     .softcap = test->softcap};
    const size_t widest = test->k_dimension > test->v_dimension ? test->k_dimension : test->v_dimension;
    const uint32_t width = widest <= 64 ? 64 : widest <= 128 ? 128 : widest <= 256 ? 256 : 512;
    const uint32_t most = (uint32_t)(test->count[0] > test->count[1] ? test->count[0] : test->count[1]),
                   blocks = most / prefill_queries(width) + 2; /* more than there are */
    const bool f16 = test->k_type == KV_F16 && test->v_type == KV_F16 && test->softcap == 0;
    char name[64];
    const uint32_t threads = wgmma ? PREFILL_WGMMA_THREADS : 128,
                   shared = wgmma ? prefill_wgmma_shared(width) : prefill_shared(width);
    snprintf(name, sizeof name, wgmma ? "attention_prefill_wgmma_%u" : "attention_prefill_%u_%s", width,
             f16 ? "f16" : "any");
    launch(name, (uint32_t)heads, blocks, 3, threads, shared, &args, seed);
    for (size_t i = 0; i < 2; i++)
        item_check(test, &rig, i, rig.items[i].row_first, q.data, y.data, y_stride);
    for (size_t r = 0; r < rows; r++) /* and nothing else */
        for (size_t d = r == 0 ? 0 : y_stride - 2; d < y_stride; d++)
            assert_true(isnan(((float *)y.data)[r * y_stride + d]));
    /* In two parts that begin elsewhere: the same bits. */
    struct guarded again = device_memory(rows * y_stride * 4);
    fill_nan(again.data, rows * y_stride);
    const uint32_t cut = (uint32_t)test->count[0] / 3;
    rig.items[1] = rig.items[0];
    rig.items[0].row_count = cut;
    rig.items[1].row_first += cut, rig.items[1].row_count -= cut, rig.items[1].position_first += cut;
    args.y = address_of(again.data);
    launch(name, (uint32_t)heads, blocks, 2, threads, shared, &args, seed + 1);
    for (size_t r = 1; r <= test->count[0]; r++)
        assert_memory_equal((float *)again.data + r * y_stride, (float *)y.data + r * y_stride,
                            (y_stride - 2) * 4);
    guarded_destroy(&q), guarded_destroy(&y), guarded_destroy(&again);
    kv_rig_deinit(&rig);
}

/* By wgmma the two longest go round in shared memory; heads above 128 are never by wgmma. */
static void prefills_run(bool wgmma) {
    static const struct prefill_case cases[] = {
        {KV_F16, KV_F16, 64, 64, 1, 2, 0, 0, {0, 130}, {131, 5}},
        {KV_F16, KV_F16, 128, 128, 1, 1, 0, 0, {60, 0}, {70, 64}},
        {KV_F16, KV_F16, 80, 72, 2, 1, 40, 0, {3, 100}, {129, 9}},
        {KV_Q8, KV_Q8, 64, 32, 1, 2, 0, 0, {10, 64}, {30, 65}},
        {KV_F16, KV_Q8, 96, 128, 1, 1, 150, 30.0f, {270, 1}, {20, 62}},
        {KV_F16, KV_F16, 64, 64, 1, 1, 0, 0, {2300, 200}, {20, 5}},
        {KV_Q8, KV_F16, 128, 128, 1, 1, 900, 0, {1400, 0}, {70, 9}},
        {KV_F16, KV_F16, 256, 256, 1, 1, 0, 0, {0, 60}, {70, 9}},
        {KV_Q8, KV_F16, 160, 256, 1, 1, 40, 0, {60, 0}, {20, 3}},
        {KV_F16, KV_F16, 512, 512, 1, 1, 30, 0, {60, 1}, {40, 3}},
        {KV_F16, KV_Q8, 320, 512, 1, 1, 0, 30.0f, {30, 0}, {5, 33}},
    };
    struct random random;
    random_init(&random, test_seed(501));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct prefill_case test = cases[i];
        if (wgmma && (test.k_dimension > 128 || test.v_dimension > 128)) continue;
        if (wgmma) test.softcap = 0;
        prefill_run(&test, wgmma, &random, test_seed(501) + i);
    }
}

static void prefill_matches(void **state) { (void)state, prefills_run(false); }
static void prefill_by_wgmma_matches(void **state) { (void)state, prefills_run(true); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(prefill_matches),
                                       cmocka_unit_test(prefill_by_wgmma_matches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
