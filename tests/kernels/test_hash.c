/* hash: codes against projections in double, scores against a count bit by bit.
 *
 * A bit may differ from that of the exact projection only where that is within the rounding of a float sum of
 * `dimension` terms, (dimension + 1) eps sum |x w|; scores are exact at any number of bits that is a power of two. */
#include "check.h"

#include "selection_emulated.h"
#include "tensor/half.h"

static const double eps = 0x1p-24;

CHECK_LEVELS_OF(hash)

#if defined(LOAM_EMULATED)
static void emulated_popcnt_install(struct hash_kernels *kernels) {
    emulated_hash_avx512_install(kernels);
    emulated_hash_avx512popcnt_install(kernels);
}
#endif

/* Those of every operation, and the counting of bits, emulated and by the processor. */
static size_t levels_init(struct level levels[CHECK_LEVELS_MAX]) {
    size_t count = levels_known(levels);
    const cpu_mask counts = CPU_AVX2 | CPU_AVX512 | CPU_VPOPCNTDQ;
    CHECK_LEVELS_EMULATED(hash, emulated_hash_avx512_install, levels, count)
    CHECK_LEVELS_EMULATED(hash, emulated_popcnt_install, levels, count)
    if ((cpu_features() & counts) == counts) {
        levels[count].name = "avx512popcnt";
        hash_kernels_init(&levels[count++].kernels, counts);
    }
    return count;
}

static void codes_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(23));
    static const size_t dimensions[] = {1, 8, 64, 72, 128, 256}, bits[] = {32, 64, 96, 128, 256, 512},
                        counts[] = {1, 2, 3, 4, 5, 8, 11};
    for (size_t round = 0; round < 6 * 6 * 7; round++) {
        if (!test_takes_next()) continue;
        size_t dimension = dimensions[round % 6], bit_count = bits[round / 6 % 6], count = counts[round / 36];
        size_t x_stride = dimension + 3, code_bytes = bit_count / 8;
        struct guarded weights = guarded_create(dimension * bit_count * sizeof(uint16_t));
        struct guarded x = guarded_create(((count - 1) * x_stride + dimension) * sizeof(float));
        struct guarded codes = guarded_create(count * code_bytes),
                       norms = guarded_create(count * sizeof(float));
        uint16_t *halves = weights.data;
        for (size_t i = 0; i < dimension * bit_count; i++)
            halves[i] = float_to_half((float)random_normal(&random));
        fill_normal(&random, x.data, x.bytes / sizeof(float), 3.0);
        for (size_t level = 0; level < level_count; level++) {
            memset(codes.data, 0xa5, codes.bytes);
            fill_nan(norms.data, count);
            struct hash_encode_args args = {.weights = halves,
                                            .dimension = dimension,
                                            .bits = bit_count,
                                            .x = x.data,
                                            .x_stride = x_stride,
                                            .count = count,
                                            .codes = codes.data,
                                            .norms = round % 3 == 2 ? NULL : norms.data};
            levels[level].kernels.encode(&args);
            for (size_t i = 0; i < count; i++) {
                const float *row = (float *)x.data + i * x_stride;
                double squares = 0;
                for (size_t d = 0; d < dimension; d++) squares += (double)row[d] * (double)row[d];
                if (args.norms != NULL)
                    check_near(args.norms[i], sqrt(squares), (double)(dimension + 4) * eps * sqrt(squares),
                               "%s: norm", levels[level].name);
                for (size_t j = 0; j < bit_count; j++) {
                    double sum = 0, size = 0;
                    for (size_t d = 0; d < dimension; d++) {
                        double product = (double)row[d] * (double)half_to_float(halves[d * bit_count + j]);
                        sum += product;
                        size += fabs(product);
                    }
                    int bit = args.codes[i * code_bytes + j / 8] >> j % 8 & 1;
                    if (fabs(sum) > (double)(dimension + 1) * eps * size && bit != (sum > 0))
                        fail_msg("%s: dimension %zu bits %zu count %zu: bit %zu of %zu is %d at %g",
                                 levels[level].name, dimension, bit_count, count, j, i, bit, sum);
                }
            }
        }
        guarded_destroy(&weights);
        guarded_destroy(&x);
        guarded_destroy(&codes);
        guarded_destroy(&norms);
    }
}

static void codes_come_back(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(24));
    for (size_t bits = 32; bits <= HASH_BITS_MAX; bits += 32) {
        struct hash_layout layout;
        hash_layout_init(&layout, bits);
        assert_true(layout.bytes == 64 * (bits / 8 + 2));
        struct guarded block = guarded_create(layout.bytes);
        uint8_t codes[64][HASH_CODE_BYTES_MAX], code[HASH_CODE_BYTES_MAX];
        for (size_t token = 0; token < 64; token++) {
            fill_bytes(&random, codes[token], layout.code_bytes);
            hash_store(&layout, block.data, token, codes[token], token == 5 ? 1e6f : (float)token * 0.5f);
        }
        for (size_t token = 0; token < 64; token++) {
            float norm;
            hash_load(&layout, block.data, token, code, &norm);
            assert_memory_equal(code, codes[token], layout.code_bytes);
            assert_true(norm == (token == 5 ? 65504.0f : (float)token * 0.5f));
        }
        guarded_destroy(&block);
    }
}

enum { BLOCKS_MAX = 12, GROUP_MAX = 64 };

struct score_case {
    size_t bits, group;
    uint64_t begin, end;
    bool use_norms, extreme; /* codes all ones or zeros: the largest and smallest distances */
};

static void score_check(const struct level *levels, size_t level_count, const struct score_case *c,
                        struct random *random) {
    struct hash_layout layout;
    hash_layout_init(&layout, c->bits);
    struct guarded blocks[BLOCKS_MAX];
    const void *pointers[BLOCKS_MAX];
    static uint8_t keys[BLOCKS_MAX * 64][HASH_CODE_BYTES_MAX], codes[GROUP_MAX * HASH_CODE_BYTES_MAX];
    static float norms[BLOCKS_MAX * 64];
    size_t block_count = (size_t)(c->end + 63) / 64;
    for (size_t t = 0; t < block_count * 64; t++) {
        if (t % 64 == 0) {
            blocks[t / 64] = guarded_create(layout.bytes);
            pointers[t / 64] = blocks[t / 64].data;
        }
        fill_bytes(random, keys[t], layout.code_bytes);
        if (c->extreme) memset(keys[t], t % 3 == 0 ? 0xff : 0, layout.code_bytes);
        norms[t] = half_to_float(float_to_half((float)fabs(random_normal(random)) + 0.1f));
        if (t >= c->begin && t < c->end) /* the others stay 0xa5 */
            hash_store(&layout, blocks[t / 64].data, t % 64, keys[t], norms[t]);
    }
    fill_bytes(random, codes, c->group * layout.code_bytes);
    if (c->extreme) memset(codes, 0, c->group * layout.code_bytes);
    size_t count = (size_t)(c->end - c->begin);
    struct guarded scores = guarded_create(count * sizeof(float));
    for (size_t i = 0; i < level_count; i++) {
        size_t scratch_bytes = levels[i].kernels.score_scratch_bytes(&layout, c->group);
        struct guarded scratch = guarded_create((scratch_bytes + 63) / 64 * 64);
        fill_nan(scores.data, count);
        struct hash_score_args args = {.layout = &layout,
                                       .blocks = pointers,
                                       .token_begin = c->begin,
                                       .token_end = c->end,
                                       .codes = codes,
                                       .group = c->group,
                                       .use_norms = c->use_norms,
                                       .scores = scores.data,
                                       .scratch = scratch.data};
        levels[i].kernels.score(&args);
        for (uint64_t t = c->begin; t < c->end; t++) {
            int differ = 0;
            for (size_t head = 0; head < c->group; head++)
                for (size_t j = 0; j < c->bits; j++)
                    differ += (codes[head * layout.code_bytes + j / 8] >> j % 8 & 1) !=
                              (keys[t][j / 8] >> j % 8 & 1);
            double agreement = (double)c->group - 2 * (double)differ / (double)c->bits;
            double want = c->use_norms ? agreement * (double)norms[t] : -(double)differ;
            bool exact = (c->bits & (c->bits - 1)) == 0;
            check_near(((float *)scores.data)[t - c->begin], want, fabs(want) * eps * (exact ? 1 : 3),
                       "%s: bits %zu group %zu token %zu of %zu..%zu norms %d", levels[i].name, c->bits,
                       c->group, (size_t)t, (size_t)c->begin, (size_t)c->end, c->use_norms);
        }
        guarded_destroy(&scratch);
    }
    guarded_destroy(&scores);
    for (size_t b = 0; b < block_count; b++) guarded_destroy(&blocks[b]);
}

static void scores_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(25));
    static const size_t bits[] = {32, 96, 128, 256, 512},
                        groups[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 64};
    static const uint64_t ranges[][2] = {{0, 64},  {0, 0},    {17, 18},  {63, 65},
                                         {5, 192}, {64, 700}, {100, 127}};
    for (size_t b = 0; b < 5; b++)
        for (size_t g = 0; g < 13; g++)
            for (size_t r = 0; r < 7; r++) {
                if (!test_takes_next()) continue;
                struct score_case c = {bits[b],      groups[g],        ranges[r][0],
                                       ranges[r][1], (g + r) % 3 != 2, (b + g + r) % 4 == 0};
                score_check(levels, level_count, &c, &random);
            }
}

static void nan_norm_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct hash_layout layout;
    hash_layout_init(&layout, 128);
    _Alignas(64) uint8_t block[64 * 18] = {0}, scratch[1 << 16];
    uint8_t code[16] = {0};
    const void *pointer = block;
    hash_store(&layout, block, 9, code, NAN);
    float scores[64];
    for (size_t i = 0; i < level_count; i++) {
        assert_true(levels[i].kernels.score_scratch_bytes(&layout, 1) <= sizeof scratch);
        struct hash_score_args args = {&layout, &pointer, 0, 64, code, 1, true, scores, scratch, &pointer};
        levels[i].kernels.score(&args);
        for (size_t t = 0; t < 64; t++) assert_true(isnan(scores[t]) == (t == 9));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_come_back),
        cmocka_unit_test(codes_match),
        cmocka_unit_test(scores_match),
        cmocka_unit_test(nan_norm_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
