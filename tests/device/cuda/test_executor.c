/* The executor: a right kernel is right for every seed, and every planted bug shows for every seed. */
#include "planted_runs.h"

#include <math.h>

#include "base/random.h"
#include "device/cuda/kernels_sm90a.h"
#include "device/cuda/planted.h"
#include "kernels/attention/kv_layout.h"
#include "tensor/half.h"

struct product {
    _Alignas(16) uint16_t a[16 * PLANTED_K], b[16 * PLANTED_K];
    float d[16 * 16], sums[16], input;
    float want_d[16 * 16], want_sums[16];
};

static void product_init(struct product *p, uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    for (size_t i = 0; i < 16 * PLANTED_K; i++) {
        p->a[i] = float_to_half((float)random_normal(&random));
        p->b[i] = float_to_half((float)random_normal(&random));
    }
    p->input = 3;
    for (size_t r = 0; r < 16; r++) {
        p->want_sums[r] = p->input;
        for (size_t c = 0; c < 16; c++) {
            double sum = 0;
            for (size_t k = 0; k < PLANTED_K; k++)
                sum += (double)half_to_float(p->a[r * PLANTED_K + k]) *
                       (double)half_to_float(p->b[c * PLANTED_K + k]);
            p->want_d[r * 16 + c] = (float)sum;
            p->want_sums[r] += (float)sum;
        }
    }
}

static void input_late(void *context) { ((struct product *)context)->input = 3; }

static void product_run(struct product *p, enum planted_bug bug, uint64_t seed) {
    for (size_t i = 0; i < 16 * 16; i++) p->d[i] = NAN;
    for (size_t i = 0; i < 16; i++) p->sums[i] = NAN;
    struct planted_args args = {
        (uintptr_t)p->a, (uintptr_t)p->b, (uintptr_t)p->d, (uintptr_t)p->sums, (uintptr_t)&p->input, bug, 0};
    p->input = -100; /* until what precedes has run */
    executor_precede(input_late, p);
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {PLANTED_THREADS, 1, 1};
    executor_launch(executor_find("planted_product"), grid, block, 2304, &args, seed);
}

/* Sums of 64 products of ordinary size, 64 roundings of each. */
static bool product_is_right(const struct product *p) {
    for (size_t i = 0; i < 16 * 16; i++)
        if (!(fabsf(p->d[i] - p->want_d[i]) < 1e-3f)) return false;
    for (size_t i = 0; i < 16; i++)
        if (!(fabsf(p->sums[i] - p->want_sums[i]) < 1e-2f)) return false;
    return true;
}

static void right_for_every_seed(void **state) {
    (void)state;
    static struct product p;
    const uint64_t seed = test_seed(1);
    product_init(&p, seed);
    for (uint64_t i = 0; i < SEEDS; i++) {
        product_run(&p, PLANTED_NONE, seed + i);
        if (!product_is_right(&p)) fail_msg("seed %llu", (unsigned long long)(seed + i));
    }
}

static void bugs_give_wrong_values(void **state) {
    (void)state;
    static struct product p;
    const uint64_t seed = test_seed(1);
    product_init(&p, seed);
    for (int bug = PLANTED_NONE + 1; bug < PLANTED_WRONG_VALUES; bug++)
        for (uint64_t i = 0; i < SEEDS; i++) {
            product_run(&p, (enum planted_bug)bug, seed + i);
            if (product_is_right(&p))
                fail_msg("bug %d is not seen with seed %llu", bug, (unsigned long long)(seed + i));
        }
}

static struct product ending;
static int product_ends(int bug, uint64_t seed) {
    product_run(&ending, (enum planted_bug)bug, seed);
    return 0;
}

/* The program ends with 99 and a line that says where. */
static void bugs_end_the_program(void **state) {
    (void)state;
    static const char *const lines[] = {"its warp diverges", "waits for threads that do not come",
                                        "ends while its copies are under way"};
    const uint64_t seed = test_seed(1);
    char text[4096];
    product_init(&ending, seed);
    for (int bug = PLANTED_WRONG_VALUES; bug < PLANTED_END; bug++)
        for (uint64_t i = 0; i < SEEDS; i++) {
            const int result = run_apart(product_ends, bug, seed + i, text, sizeof text);
            if (result != 99 || strstr(text, lines[bug - PLANTED_WRONG_VALUES]) == NULL)
                fail_msg("bug %d with seed %llu: %d, %s", bug, (unsigned long long)(seed + i), result, text);
        }
}

/* ---- tiles and products of warpgroups ---- */

static _Alignas(16) uint16_t tiles_x[TILES_ROWS * TILES_K], tiles_turned[TILES_ROWS * TILES_K];
static _Alignas(16) uint16_t tiles_w[TILES_OUTPUTS * TILES_K];
static float tiles_want[TILES_ROWS * TILES_OUTPUTS], tiles_d[TILES_ROWS * TILES_OUTPUTS];

static void tiles_init(uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    for (size_t i = 0; i < TILES_ROWS * TILES_K; i++)
        tiles_turned[i % TILES_K * TILES_ROWS + i / TILES_K] = tiles_x[i] =
            float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < TILES_OUTPUTS * TILES_K; i++)
        tiles_w[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < TILES_ROWS * TILES_OUTPUTS; i++) {
        double sum = 0;
        for (size_t k = 0; k < TILES_K; k++)
            sum += (double)half_to_float(tiles_x[i / TILES_OUTPUTS * TILES_K + k]) *
                   (double)half_to_float(tiles_w[i % TILES_OUTPUTS * TILES_K + k]);
        tiles_want[i] = (float)sum;
    }
}

/* Sums of 512 products of ordinary size: a rounding is 2^-24 of some 100 at most. */
static int planted_is_wrong(const char *name, uint32_t threads, size_t shared_bytes, int bug, uint64_t seed) {
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {threads, 1, 1};
    struct planted_tiles_args args = {.x_turned = (uintptr_t)tiles_turned,
                                      .w = (uintptr_t)tiles_w,
                                      .d = (uintptr_t)tiles_d,
                                      .bug = (uint32_t)bug};
    executor_tensor_map(&args.x, tiles_x, TILES_K, TILES_ROWS, TILES_ROWS);
    if (bug == TILES_SWIZZLE)
        memset((char *)&args.x + offsetof(struct executor_tensor, swizzle_bytes), 0, sizeof(uint32_t));
    for (uint64_t order = 0; order < (bug == TILES_RIGHT ? 1 : 4); order++) { /* who is slow all the time hides bugs */
        for (size_t i = 0; i < TILES_ROWS * TILES_OUTPUTS; i++) tiles_d[i] = NAN;
        executor_launch(executor_find(name), grid, block, shared_bytes, &args, seed + order * SEEDS);
        for (size_t i = 0; i < TILES_ROWS * TILES_OUTPUTS; i++)
            if (!(fabsf(tiles_d[i] - tiles_want[i]) < 4e-3f)) return 1;
    }
    return 0;
}

static int tiles_are_wrong(int bug, uint64_t seed) {
    return planted_is_wrong("planted_tiles", TILES_THREADS, TILES_SHARED, bug, seed);
}
static int turned_is_wrong(int bug, uint64_t seed) {
    return planted_is_wrong("planted_turned", TURNED_THREADS, TURNED_SHARED, bug, seed);
}

static void tiles_are_right_for_every_seed(void **state) {
    (void)state;
    const uint64_t seed = test_seed(3);
    tiles_init(seed);
    for (uint64_t i = 0; i < SEEDS; i++)
        if (tiles_are_wrong(TILES_RIGHT, seed + i) || turned_is_wrong(TILES_RIGHT, seed + i))
            fail_msg("seed %llu", (unsigned long long)(seed + i));
}

/* Wrong values (1), or the end of the program with a line (99), for every seed. */
static void bugs_of_tiles_are_seen(void **state) {
    (void)state;
    static const char *const lines[TILES_END] = {[TILES_UNPUBLISHED] =
                                                     "a barrier without mbarriers_publish",
                                                 [TILES_KIND] = "a descriptor of another kind",
                                                 [TILES_UNORDERED] = "a product without wgmma_fence",
                                                 [TILES_UNCOMMITTED] = "was never waited for",
                                                 [TILES_RESULTS] = "ends while its products are under way",
                                                 [TILES_MANY_BYTES] = "waits for threads that do not come",
                                                 [TILES_REGISTERS] = "its warpgroup diverges"};
    const uint64_t seed = test_seed(3);
    char text[4096];
    tiles_init(seed);
    for (int bug = TILES_RIGHT + 1; bug < TILES_END; bug++)
        for (uint64_t i = 0; i < SEEDS; i++) {
            const int result = run_apart(bug < TILES_TURNED ? tiles_are_wrong : turned_is_wrong, bug, seed + i, text,
                                         sizeof text);
            if ((result != 1 && result != 99) || (lines[bug] != NULL && strstr(text, lines[bug]) == NULL))
                fail_msg("bug %d with seed %llu: %d, %s", bug, (unsigned long long)(seed + i), result, text);
        }
}

/* ---- products of experts by wgmma, with bugs in their own text (plant.py) ---- */

enum {
    EXPERTS_COLUMNS = 512, /* stages go round */
    EXPERTS_OUTPUTS = 128,
    EXPERTS_FIRST = 3, /* place of the tile's first row, and behind its last: */
    EXPERTS_LAST = EXPERTS_FIRST + 65,
    EXPERTS_USED = 2,
    EXPERTS_PICKS = 84
};

static struct {
    _Alignas(16) uint16_t x[EXPERTS_PICKS * EXPERTS_COLUMNS], w[2 * EXPERTS_OUTPUTS * EXPERTS_COLUMNS];
    float scales[EXPERTS_PICKS], bias[2 * EXPERTS_OUTPUTS];
    uint32_t places[EXPERTS_LAST];
    struct expert_tile tile;
    float want[EXPERTS_PICKS * EXPERTS_OUTPUTS], y[EXPERTS_PICKS * EXPERTS_OUTPUTS];
} experts;

/* A tile of the second expert's rows, some of all picks; what is not of it stays NaN. */
static void experts_init(uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    for (size_t i = 0; i < sizeof experts.x / 2; i++) experts.x[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < sizeof experts.w / 2; i++) experts.w[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < 2 * EXPERTS_OUTPUTS; i++) experts.bias[i] = (float)random_normal(&random);
    for (size_t i = 0; i < EXPERTS_PICKS; i++) experts.scales[i] = i % 2 ? 1 : 0.5F;
    for (size_t i = 0; i < EXPERTS_PICKS * EXPERTS_OUTPUTS; i++) experts.want[i] = NAN;
    experts.tile = (struct expert_tile){.expert = 1, .first = EXPERTS_FIRST, .end = EXPERTS_LAST};
    for (uint32_t place = 0; place < EXPERTS_LAST; place++) {
        const uint32_t pick = experts.places[place] = place + place / 5, input = pick / EXPERTS_USED;
        for (size_t n = 0; n < EXPERTS_OUTPUTS && place >= EXPERTS_FIRST; n++) {
            double sum = 0;
            for (size_t k = 0; k < EXPERTS_COLUMNS; k++)
                sum += (double)half_to_float(experts.x[input * EXPERTS_COLUMNS + k]) *
                       (double)half_to_float(experts.w[(EXPERTS_OUTPUTS + n) * EXPERTS_COLUMNS + k]);
            experts.want[pick * EXPERTS_OUTPUTS + n] =
                (float)(sum * (double)experts.scales[input] + (double)experts.bias[EXPERTS_OUTPUTS + n]);
        }
    }
}

/* As near as tiles are. */
static int experts_are_wrong(int bug, uint64_t seed) {
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {MATMUL_WGMMA_THREADS, 1, 1};
    const struct cuda_matmul_experts_args args = {.matmul = {.part = {{.weight = {.codes = (uintptr_t)experts.w},
                                                                       .bias = (uintptr_t)experts.bias,
                                                                       .y = (uintptr_t)experts.y,
                                                                       .rows = EXPERTS_OUTPUTS,
                                                                       .y_stride = EXPERTS_OUTPUTS}},
                                                             .x = (uintptr_t)experts.x,
                                                             .scales = (uintptr_t)experts.scales,
                                                             .columns = EXPERTS_COLUMNS},
                                                  .places = (uintptr_t)experts.places,
                                                  .tiles = (uintptr_t)&experts.tile,
                                                  .used = EXPERTS_USED,
                                                  .expert_rows = EXPERTS_OUTPUTS};
    planted_bug = (uint32_t)bug;
    for (uint64_t order = 0; order < (bug == TEXT_RIGHT ? 1 : ORDERS); order++) {
        for (size_t i = 0; i < EXPERTS_PICKS * EXPERTS_OUTPUTS; i++) experts.y[i] = NAN;
        executor_launch(executor_find("planted_experts"), grid, block, matmul_wgmma_experts_shared(), &args,
                        seed + order * SEEDS);
        for (size_t i = 0; i < EXPERTS_PICKS * EXPERTS_OUTPUTS; i++)
            if (isnan(experts.want[i]) != isnan(experts.y[i]) || fabsf(experts.y[i] - experts.want[i]) >= 4e-3f)
                return 1;
    }
    return 0;
}

static void bugs_of_experts_are_seen(void **state) {
    (void)state;
    const uint64_t seed = test_seed(5);
    experts_init(seed);
    bugs_of_text_are_seen(experts_are_wrong, EXPERTS_BEGIN, EXPERTS_END, seed);
}

/* ---- the same of dense products, of the tiles above, which are scaled and added: stages go round ---- */

static float dense_scale(size_t row) { return row % 3 ? 1 : 0.5F; }
static float dense_before(size_t place) { return (float)(place % 61) / 8; }

static int dense_is_wrong(int bug, uint64_t seed) {
    static float scales[TILES_ROWS];
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {MATMUL_WGMMA_THREADS, 1, 1};
    struct cuda_matmul_wgmma_args args = {.matmul = {.part = {{.weight = {.codes = (uintptr_t)tiles_w},
                                                               .y = (uintptr_t)tiles_d,
                                                               .rows = TILES_OUTPUTS,
                                                               .y_stride = TILES_OUTPUTS}},
                                                     .scales = (uintptr_t)scales,
                                                     .columns = TILES_K,
                                                     .row_count = TILES_ROWS,
                                                     .accumulate = true}};
    executor_tensor_map(&args.x, tiles_x, TILES_K, TILES_ROWS, TILES_ROWS);
    planted_bug = (uint32_t)bug;
    for (size_t i = 0; i < TILES_ROWS; i++) scales[i] = dense_scale(i);
    for (uint64_t order = 0; order < (bug == TEXT_RIGHT ? 1 : ORDERS); order++) {
        for (size_t i = 0; i < TILES_ROWS * TILES_OUTPUTS; i++) tiles_d[i] = dense_before(i);
        executor_launch(executor_find("planted_dense"), grid, block, matmul_wgmma_shared(MATMUL_ROWS), &args,
                        seed + order * SEEDS);
        for (size_t i = 0; i < TILES_ROWS * TILES_OUTPUTS; i++) {
            const float want = tiles_want[i] * dense_scale(i / TILES_OUTPUTS) + dense_before(i);
            if (!(fabsf(tiles_d[i] - want) < 4e-3f)) return 1;
        }
    }
    return 0;
}

static void bugs_of_dense_products_are_seen(void **state) {
    (void)state;
    const uint64_t seed = test_seed(7);
    tiles_init(seed);
    bugs_of_text_are_seen(dense_is_wrong, DENSE_BEGIN, DENSE_END, seed);
}

/* ---- and of attention: 128 queries of a head behind 256 keys, whose tiles go round ---- */

enum { PROMPT_WIDTH = 128, PROMPT_FIRST = 256, PROMPT_ROWS = 128, PROMPT_CHUNKS = (PROMPT_FIRST + PROMPT_ROWS) / 64 };

static struct {
    _Alignas(16) uint16_t kv[PROMPT_CHUNKS * 64 * 2 * PROMPT_WIDTH]; /* a chunk: 8 blocks of 8 keys and their values */
    _Alignas(16) float q[PROMPT_ROWS * PROMPT_WIDTH];
    float want[PROMPT_ROWS * PROMPT_WIDTH], y[PROMPT_ROWS * PROMPT_WIDTH];
    struct cuda_pools pools;
    uint32_t pages[PROMPT_CHUNKS];
} prompt;

static const struct kv_shape prompt_shape = {.k_type = KV_F16,
                                             .v_type = KV_F16,
                                             .k_dimension = PROMPT_WIDTH,
                                             .v_dimension = PROMPT_WIDTH,
                                             .k_row_bytes = PROMPT_WIDTH * 2,
                                             .v_row_bytes = PROMPT_WIDTH * 2,
                                             .v_offset = 8 * PROMPT_WIDTH * 2,
                                             .block_bytes = 16 * PROMPT_WIDTH * 2};

static void prompt_run(uint64_t seed) {
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {PREFILL_WGMMA_THREADS, 1, 1};
    const struct step_head head = {PROMPT_ROWS, 1};
    const struct step_item item = {.pages = (uintptr_t)prompt.pages,
                                   .position_first = PROMPT_FIRST,
                                   .row_count = PROMPT_ROWS,
                                   .chunk_stride = PROMPT_CHUNKS};
    const struct cuda_prefill_args args = {.step = (uintptr_t)&head,
                                           .items = (uintptr_t)&item,
                                           .pools = (uintptr_t)&prompt.pools,
                                           .q = (uintptr_t)prompt.q,
                                           .y = (uintptr_t)prompt.y,
                                           .shape = prompt_shape,
                                           .item_count = 1,
                                           .q_stride = PROMPT_WIDTH,
                                           .y_stride = PROMPT_WIDTH,
                                           .group = 1,
                                           .scale = 0.125f};
    for (size_t i = 0; i < PROMPT_ROWS * PROMPT_WIDTH; i++) prompt.y[i] = NAN;
    executor_launch(executor_find("planted_prefill"), grid, block, prefill_wgmma_shared(PROMPT_WIDTH), &args, seed);
}

/* Its last row alone, to ranges 1 to 3 of 6; partials are left in y. */
static void decode_run(uint64_t seed) {
    const uint32_t grid[3] = {PROMPT_CHUNKS, 1, 1}, block[3] = {128, 1, 1};
    const struct step_row row = {.position = PROMPT_FIRST + PROMPT_ROWS - 1};
    const struct step_item item = {
        .pages = (uintptr_t)prompt.pages, .chunk_stride = PROMPT_CHUNKS, .range_first = 1, .range_end = 4};
    const struct cuda_attention_args args = {.rows = (uintptr_t)&row,
                                             .items = (uintptr_t)&item,
                                             .pools = (uintptr_t)&prompt.pools,
                                             .q = (uintptr_t)prompt.q,
                                             .partials = (uintptr_t)prompt.y,
                                             .shape = prompt_shape,
                                             .row_count = 1,
                                             .q_stride = PROMPT_WIDTH,
                                             .kv_head_count = 1,
                                             .group = 1,
                                             .partial_stride = attention_partial_stride(PROMPT_WIDTH),
                                             .scale = 0.125f,
                                             .ranges = RANGES_OF_ITEM};
    for (size_t i = 0; i < PROMPT_ROWS * PROMPT_WIDTH; i++) prompt.y[i] = NAN;
    executor_launch(executor_find("planted_decode"), grid, block, attention_decode_shared(16, 1), &args, seed);
}

/* What it gives without a bug others compare with the definition: test_prefill.c, test_attention.c. */
static void prompt_init(void (*run)(uint64_t seed), uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    for (size_t i = 0; i < sizeof prompt.kv / 2; i++) prompt.kv[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < PROMPT_ROWS * PROMPT_WIDTH; i++) prompt.q[i] = (float)random_normal(&random);
    prompt.pools.pool[0] = (struct cuda_pool){
        .base = {(uintptr_t)prompt.kv}, .slots_per_buffer = 8, .slot_bytes = sizeof prompt.kv / PROMPT_CHUNKS};
    for (uint32_t i = 0; i < PROMPT_CHUNKS; i++) prompt.pages[i] = UINT32_C(1) << 30 | i;
    planted_bug = TEXT_RIGHT;
    run(seed);
    memcpy(prompt.want, prompt.y, sizeof prompt.y);
}

static int run_is_wrong(void (*run)(uint64_t seed), int bug, uint64_t seed) {
    planted_bug = (uint32_t)bug;
    for (uint64_t order = 0; order < (bug == TEXT_RIGHT ? 1 : ORDERS); order++) {
        run(seed + order * SEEDS);
        if (memcmp(prompt.want, prompt.y, sizeof prompt.y) != 0) return 1;
    }
    return 0;
}
static int prompt_is_wrong(int bug, uint64_t seed) { return run_is_wrong(prompt_run, bug, seed); }
static int decode_is_wrong(int bug, uint64_t seed) { return run_is_wrong(decode_run, bug, seed); }

static void bugs_of_prompts_are_seen(void **state) {
    (void)state;
    const uint64_t seed = test_seed(9);
    prompt_init(prompt_run, seed);
    bugs_of_text_are_seen(prompt_is_wrong, PREFILL_BEGIN, PREFILL_END, seed);
    prompt_init(decode_run, seed);
    bugs_of_text_are_seen(decode_is_wrong, DECODE_BEGIN, DECODE_END, seed);
}

static void kernels_are_found(void **state) {
    (void)state;
    assert_null(executor_find("planted"));
    assert_string_equal(executor_find("planted_product")->name, "planted_product");
    static const char *const names[] = {"planted_decode",  "planted_dense",   "planted_experts", "planted_matmul",
                                        "planted_prefill", "planted_product", "planted_tiles",   "planted_turned"};
    for (size_t i = 0; i < 8; i++) assert_ptr_equal(executor_kernel_at(i), executor_find(names[i]));
    assert_null(executor_kernel_at(8));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_for_every_seed),   cmocka_unit_test(bugs_give_wrong_values),
        cmocka_unit_test(bugs_end_the_program),   cmocka_unit_test(tiles_are_right_for_every_seed),
        cmocka_unit_test(bugs_of_tiles_are_seen), cmocka_unit_test(bugs_of_experts_are_seen),
        cmocka_unit_test(bugs_of_dense_products_are_seen), cmocka_unit_test(bugs_of_prompts_are_seen),
        cmocka_unit_test(kernels_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
