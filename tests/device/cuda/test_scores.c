/* Scores of units and of chunks by the codes of their keys, and lists of the best of them, against the cpu's. */
#include "kv_rig.h"

#include "device/cuda/kernels_look.h"
#include "kernels/level/level_internal.h"

static const double eps = 0x1p-24;

enum { KV_HEADS = 2, WIDE = 512 };

/* Lists that look (look.h): chunks have the cpu's scores, the best are looked into, their units have the bits that they
 * have among all, and the list is of the best of these. */
enum { LOOK_BLOCKS = 22, LOOK_LISTS = 2 * KV_HEADS, LOOK_HEADS = 17, LOOK_UNITS = LOOK_BLOCKS * 8 };
enum { SCORE_BLOCKS = (LOOK_BLOCKS + 7) / 8 }; /* of a launch of level_score, 8 warps with a chunk each */

/* q: of heads, not rotated: [2][q_stride]. */
static void looks_check(struct cuda_level_score_args args, const struct level_layout *layout, const void *const *blocks,
                        const float *q, const char *kernel, uint64_t seed) {
    static float of_chunks[LOOK_LISTS * LOOK_HEADS][LOOK_BLOCKS], few[LOOK_LISTS * LOOK_HEADS * LOOK_UNITS];
    static uint32_t looked[LOOK_LISTS][LOOK_BLOCKS], ranks[LOOK_LISTS * LOOK_UNITS], chosen[LOOK_LISTS * LOOK_UNITS];
    static uint32_t tokens[LOOK_LISTS][LOOK_BLOCKS * 64];
    struct cuda_list *lists = (struct cuda_list *)(uintptr_t)args.lists;
    const float *all = (const float *)(uintptr_t)args.scores;
    const uint32_t unit = args.unit_tokens, in_chunk = 64 / unit;
    struct level_kernels level;
    level_kernels_init(&level, 0);
    struct cuda_chunks_score_args chunks = {.rows = args.rows,
                                            .items = args.items,
                                            .pools = args.pools,
                                            .queries = args.queries,
                                            .scores = address_of(of_chunks),
                                            .q = address_of(q),
                                            .lists = args.lists,
                                            .row_count = 2,
                                            .kv_head_count = KV_HEADS,
                                            .group = args.group,
                                            .query_bytes = args.query_bytes,
                                            .dimension = args.dimension,
                                            .q_stride = KV_HEADS * args.group * args.dimension,
                                            .center_offset = args.center_offset,
                                            .spread_offset = (uint32_t)layout->spread_offset,
                                            .chunk_stride = LOOK_BLOCKS,
                                            .scale = args.scale};
    struct cuda_choose_args choose = {.scores = chunks.scores,
                                      .keys = address_of(ranks),
                                      .chosen = address_of(looked),
                                      .lists = args.lists,
                                      .row_count = 2,
                                      .kv_head_count = KV_HEADS,
                                      .unit_stride = LOOK_BLOCKS,
                                      .group = args.group};
    fill_nan(of_chunks[0], LOOK_LISTS * LOOK_HEADS * LOOK_BLOCKS);
    launch("chunks_score", 1, KV_HEADS, 2, 256, 0, &chunks, seed);
    launch("chunks_choose", KV_HEADS, 2, 1, 1024, sizeof(struct choose_shared), &choose, seed);
    for (uint32_t k = 0; k < LOOK_LISTS; k++) lists[k].rows = address_of(tokens[k]);
    args.scores = address_of(few);
    fill_nan(few, sizeof few / sizeof *few);
    const struct cuda_look_score_args score = {args, address_of(looked), LOOK_BLOCKS, 0};
    const uint32_t launched_heads = KV_HEADS * ((args.group + LEVEL_SCORE_HEADS - 1) / LEVEL_SCORE_HEADS);
    launch(kernel, SCORE_BLOCKS, launched_heads, 2, 256, 0, &score, seed);
    const struct cuda_look_choose_args best = {{.scores = args.scores,
                                                .keys = address_of(ranks),
                                                .chosen = address_of(chosen),
                                                .lists = args.lists,
                                                .row_count = 2,
                                                .kv_head_count = KV_HEADS,
                                                .unit_tokens = unit,
                                                .unit_stride = args.unit_stride,
                                                .group = args.group},
                                               address_of(looked),
                                               LOOK_BLOCKS,
                                               0};
    launch("units_choose", KV_HEADS, 2, 1, 1024, sizeof(struct choose_shared), &best, seed);
    for (uint32_t k = 0; k < LOOK_LISTS; k++) {
        const struct cuda_list *list = &lists[k];
        const uint32_t first = (list->begin + 63) / 64, last = list->end / 64,
                       looks = (LOOK_TIMES * list->picks + 63) / 64;
        const char *queries = (const char *)(uintptr_t)args.queries + k * args.group * args.query_bytes;
        const float *of_list = q + k * args.group * args.dimension;
        float want[LOOK_HEADS * LOOK_BLOCKS];
        double of_chunk[LOOK_BLOCKS] = {0}, shares[LOOK_UNITS] = {0}, least = INFINITY, best_out = -INFINITY;
        uint32_t count = 0, picked = 0;
        bool looks_into[LOOK_BLOCKS] = {false}, is_listed[LOOK_UNITS] = {false};
        assert_true(list->end - list->begin > LOOK_FROM * list->picks);
        level.chunks(&(struct level_chunks_args){layout, blocks + k * LOOK_BLOCKS, LOOK_BLOCKS, queries, of_list,
                                                 args.dimension, args.group, want, LOOK_BLOCKS});
        for (size_t h = 0; h < args.group; h++) {
            double size = 0, most = -INFINITY, total = 0;
            for (size_t j = 0; j < args.dimension; j++) size += fabs((double)of_list[h * args.dimension + j]);
            for (uint32_t c = first; c < last; c++) { /* queries are rounded to halves; coordinates are below 5 */
                const double got = (double)of_chunks[k * args.group + h][c];
                check_near(got, 0.125 * log2(exp(1)) * (double)want[h * LOOK_BLOCKS + c], 0x1p-11 * 5 * size,
                           "list %u, head %zu, chunk %u", k, h, c);
                most = fmax(most, got);
            }
            for (uint32_t c = first; c < last; c++) total += exp2((double)of_chunks[k * args.group + h][c] - most);
            for (uint32_t c = first; c < last; c++)
                of_chunk[c] += exp2((double)of_chunks[k * args.group + h][c] - most) / total;
        }
        while (count < looks + (list->begin % 64 != 0) + (list->end % 64 != 0)) {
            assert_true(looked[k][count] < LOOK_BLOCKS && (count == 0 || looked[k][count] > looked[k][count - 1]));
            looks_into[looked[k][count++]] = true;
        }
        assert_true(looks_into[list->begin / 64] || list->begin % 64 == 0);
        assert_true(looks_into[last] || list->end % 64 == 0);
        for (uint32_t c = first; c < last; c++) {
            if (looks_into[c]) least = fmin(least, of_chunk[c]);
            if (!looks_into[c]) best_out = fmax(best_out, of_chunk[c]);
        }
        assert_true(best_out > 0 && best_out <= least * (1 + 1e-5));
        for (size_t h = 0; h < args.group; h++) {
            const float *own = few + (k * args.group + h) * args.unit_stride;
            double total = 0, most = -INFINITY;
            for (uint32_t u = list->begin % 64 / unit; u < count * in_chunk; u++) {
                const uint32_t at = looked[k][u / in_chunk] * in_chunk + u % in_chunk;
                if (at >= list->end / unit) continue;
                assert_memory_equal(&own[u], &all[(k * args.group + h) * args.unit_stride + at], sizeof *own);
                most = fmax(most, (double)own[u]);
            }
            for (int round = 0; round < 2; round++)
                for (uint32_t at = list->begin / unit; at < list->end / unit; at++) {
                    const double share = exp2((double)all[(k * args.group + h) * args.unit_stride + at] - most);
                    if (looks_into[at / in_chunk] && round == 0) total += share;
                    if (looks_into[at / in_chunk] && round == 1) shares[at] += share / total;
                }
        }
        for (uint32_t i = list->begin; i < list->begin + list->picks; i++) {
            assert_true(tokens[k][i] > tokens[k][i - 1] && tokens[k][i] % unit == i % unit);
            assert_true(tokens[k][i] >= list->begin && tokens[k][i] < list->end && looks_into[tokens[k][i] / 64]);
            is_listed[tokens[k][i] / unit] = true;
        }
        least = INFINITY, best_out = -INFINITY;
        for (uint32_t u = list->begin / unit; u < list->end / unit; u++) {
            picked += is_listed[u];
            if (is_listed[u]) least = fmin(least, shares[u]);
            if (!is_listed[u] && looks_into[u / in_chunk]) best_out = fmax(best_out, shares[u]);
        }
        assert_int_equal(picked, list->picks / unit);
        assert_true(best_out <= least * (1 + 1e-5));
    }
}

/* Of blocks with any codes, by shape: the words of a token fill no four of them, or many; groups have one head, fill a
 * launch's heads, or leave some over.  Two rows, whose items have the same blocks in another order. */
static void scores_are_the_cpus(void **state) {
    (void)state;
    enum { CHUNKS = LOOK_BLOCKS, TOKENS = CHUNKS * 64, MOST = LOOK_HEADS, ITEM_BLOCKS = KV_HEADS * CHUNKS };
    static const uint32_t shapes[][4] = {/* dimension, planes, group, tokens of a unit */
                                         {128, 1, 4, 8}, {32, 1, 1, 64}, {96, 1, 8, 16},   {160, 2, 5, 32},
                                         {512, 4, 3, 8}, {512, 1, 9, 8}, {64, 2, MOST, 64}};
    static float want[MOST * TOKENS], scores[2 * KV_HEADS * MOST * TOKENS / 8], q[2 * KV_HEADS * MOST * WIDE],
        rotated[WIDE];
    struct level_kernels level;
    struct random random;
    level_kernels_init(&level, 0);
    random_init(&random, test_seed(708));
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        const uint32_t dimension = shapes[n][0], group = shapes[n][2], unit = shapes[n][3], stride = TOKENS / unit,
                       begin = unit == 8 ? 72 : 64; /* or where a chunk begins */
        struct level_layout layout;
        level_layout_init(&layout, dimension, shapes[n][1], true);
        const size_t bytes = layout.bytes, query_bytes = level_query_bytes(&layout);
        struct guarded index = device_memory(ITEM_BLOCKS * bytes),
                       queries = device_memory(2 * KV_HEADS * group * query_bytes);
        uint32_t pages[2 * ITEM_BLOCKS];
        const void *blocks[2 * ITEM_BLOCKS];
        for (uint32_t i = 0; i < ITEM_BLOCKS; i++) {
            uint8_t *block = (uint8_t *)index.data + i * bytes;
            const size_t turned = 2 * ITEM_BLOCKS - 1 - i;
            blocks[i] = blocks[turned] = block, pages[i] = pages[turned] = 3u << 30 | i;
            for (size_t k = 0; k < layout.factors_offset; k++) block[k] = (uint8_t)random_below(&random, 256);
            for (size_t k = layout.factors_offset; k < layout.spread_offset; k += 2)
                *(uint16_t *)(void *)(block + k) = float_to_half((float)random_normal(&random));
            for (size_t k = layout.spread_offset; k < bytes; k++)
                block[k] = (uint8_t)(0x60 + random_below(&random, 0x20)); /* 1/64 to 1.9 */
        }
        for (size_t h = 0; h < 2 * KV_HEADS * group; h++) {
            float *own = q + h * dimension;
            double length = 0, own_length = 0;
            fill_normal(&random, own, dimension, 1);
            fill_normal(&random, rotated, dimension, 1); /* as long, as if it were turned */
            for (size_t j = 0; j < dimension; j++) {
                length += (double)rotated[j] * (double)rotated[j];
                own_length += (double)own[j] * (double)own[j];
            }
            for (size_t j = 0; j < dimension; j++) own[j] *= (float)sqrt(length / own_length);
            level_prepare(&layout, rotated, (char *)queries.data + h * query_bytes);
        }
        struct cuda_pools pools = {.pool[2] = {{address_of(index.data)}, ITEM_BLOCKS, 0, bytes}};
        struct step_item items[] = {{.index_pages = address_of(pages), .chunk_stride = CHUNKS},
                                    {.index_pages = address_of(pages + ITEM_BLOCKS), .chunk_stride = CHUNKS}};
        struct step_row rows[] = {{.item = 0}, {.item = 1}};
        struct cuda_list lists[2 * KV_HEADS];
        for (uint32_t i = 0; i < 2 * KV_HEADS; i++)
            lists[i] = (struct cuda_list){.count = TOKENS,
                                          .begin = begin,
                                          .end = TOKENS - 64 * i - (begin % 64) * (i % 2),
                                          .picks = unit < 16 ? 8 : unit};
        const struct cuda_look_score_args args = {
            {address_of(NULL), address_of(rows), address_of(items), address_of(&pools), address_of(queries.data),
             address_of(scores), address_of(lists), address_of(NULL), 2, KV_HEADS, group, (uint32_t)query_bytes,
             dimension, (uint32_t)layout.factors_offset, (uint32_t)layout.center_offset, stride, 0.125f, unit},
            address_of(NULL),
            0,
            0};
        char name[32];
        fill_nan(scores, 2 * KV_HEADS * group * stride);
        snprintf(name, sizeof name, "level_score_%zu", layout.planes);
        launch(name, SCORE_BLOCKS, KV_HEADS * ((group + LEVEL_SCORE_HEADS - 1) / LEVEL_SCORE_HEADS), 2, 256, 0, &args,
               test_seed(708) + n);
        for (size_t k = 0; k < 2 * KV_HEADS; k++) {
            level.score(&(struct level_score_args){&layout, blocks + k * CHUNKS, 0, TOKENS,
                                                   (char *)queries.data + k * group * query_bytes, group, want, TOKENS,
                                                   NULL});
            const size_t units = lists[k].end / unit;
            for (size_t i = 0; i < group * units; i++) {
                const size_t h = i / units, u = i % units;
                const double got = (double)scores[(k * group + h) * stride + u];
                double best = -INFINITY;
                for (size_t t = 0; t < unit; t++) best = fmax(best, (double)want[h * TOKENS + u * unit + t]);
                if (u < begin / unit)
                    assert_true(got < -1e29);
                else /* a sum of `dimension` products, 21 roundings; a few of the whole */
                    check_near(got, 0.125 * log2(exp(1)) * best, 8 * eps * (dimension + fabs(best)),
                               "shape %zu head %zu unit %zu", n, k * group + h, u);
            }
        }
        if (unit <= 16) looks_check(args.score, &layout, blocks, q, name, test_seed(708) + n);
        guarded_destroy(&index), guarded_destroy(&queries);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores_are_the_cpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
