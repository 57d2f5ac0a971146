/* codec: every variant's bits are the reference's; and, of each, the error bound, the ranges, and what encoding twice
 * gives.
 *
 * A level is off from low + c (high - low) / 15 by less than 2^-21 of the range (the step is rounded up by 2^-22 of it,
 * the fma by 2^-24 of the larger of the two ends) and then rounded to a half; the code is the nearest but for
 * roundings of 2^-22 of the range. */
#include "check.h"

#include "kernels/abstract/abstract.h"
#include "selection_emulated.h"
#include "tensor/half.h"

CHECK_LEVELS_WITH(codec, emulated_codec_avx512_install)

enum kind { NORMAL, OFFSET, NEIGHBOURS, ANY_HALF, SUBNORMAL, CONSTANT, HUGE_AND_TINY, BROKEN, KINDS };

/* A half of a channel (K) or token (V) whose own character is `seed`. */
static uint16_t half_of(enum kind kind, struct random *random, uint64_t seed) {
    uint16_t base = (uint16_t)(seed * 0x9e3779b97f4a7c15u >> 48), sign = base & 0x8000u;
    switch (kind) {
    case NORMAL: return float_to_half((float)random_normal(random));
    case OFFSET: /* as keys with a bias have them */
        return float_to_half((float)(random_normal(random) + half_to_float(base % 0x5800 | sign)));
    case NEIGHBOURS: { /* few units wide: the levels are about as far apart as the halves */
        uint16_t first = base & 0x7fffu, largest = 0x7bffu;
        uint16_t x = (uint16_t)(first % 0x7b00 + random_below(random, 1 + seed % 70));
        return (uint16_t)((x > largest ? largest : x) | sign);
    }
    case ANY_HALF:
        for (;;) {
            uint16_t x = (uint16_t)random_next(random);
            if ((x & 0x7c00) != 0x7c00) return x;
        }
    case SUBNORMAL: return (uint16_t)(random_below(random, 1 + seed % 1024) | (random_next(random) & 0x8000));
    case CONSTANT: return (base & 0x7c00) == 0x7c00 ? 0x3c00 : base == 0x8000 ? 0 : base;
    case HUGE_AND_TINY: return random_below(random, 2) ? (uint16_t)(0xfbff - seed % 3) : (uint16_t)(seed % 5);
    case BROKEN:
        return random_below(random, 200) ? 0x3c00 + (uint16_t)random_below(random, 300)
               : random_below(random, 2) ? 0x7c00 | sign
                                         : 0x7e01 | sign;
    case KINDS: break;
    }
    return 0;
}

static uint16_t *k_row(const struct kv_layout *kv, const void *chunk, size_t t) {
    return (uint16_t *)(uintptr_t)kv_k_row(kv, chunk, t);
}
static uint16_t *v_row(const struct kv_layout *kv, const void *chunk, size_t t) {
    return (uint16_t *)(uintptr_t)kv_v_row(kv, chunk, t);
}

static void chunk_fill(const struct kv_layout *kv, void *chunk, struct random *random) {
    memset(chunk, 0, kv->chunk_bytes);
    uint64_t seed = random_next(random) >> 20;
    for (size_t t = 0; t < 64; t++) {
        for (size_t d = 0; d < kv->k_dimension; d++)
            k_row(kv, chunk, t)[d] = half_of((enum kind)(d % KINDS), random, seed + d);
        for (size_t d = 0; d < kv->v_dimension; d++)
            v_row(kv, chunk, t)[d] =
                half_of((enum kind)((t + d / 32) % KINDS), random, seed + t * 8 + d / 32);
    }
}

/* count elements, [i / row_count] rows apart: their range from first principles, and the bound for each. */
struct group {
    double low, high;
    bool broken;
};

static void group_add(struct group *group, uint16_t half) {
    double x = (double)half_to_float(half);
    if (!isfinite(x)) group->broken = true;
    group->low = fmin(group->low, x);
    group->high = fmax(group->high, x);
}

static void element_check(const struct group *group, uint16_t before, uint16_t after, const char *text) {
    double x = (double)half_to_float(before), y = (double)half_to_float(after),
           range = group->high - group->low;
    if (group->broken) {
        if (!isnan(y)) fail_msg("%s: %g of a broken group", text, y);
        return;
    }
    double unit = fmax(ldexp(1.0, ilogb(fmax(fabs(y), 0x1p-14)) - 10), 0x1p-24);
    check_near(y, x, range == 0 ? 0 : range / 30 * (1 + 0x1p-15) + unit / 2, "%s in %g..%g", text, group->low,
               group->high);
    assert_true(y >= group->low && y <= group->high);
}

static void errors_check(const struct kv_layout *kv, const void *before, const void *after,
                         const char *name) {
    char text[128];
    for (size_t d = 0; d < kv->k_dimension; d++) {
        struct group group = {INFINITY, -INFINITY, false};
        for (size_t t = 0; t < 64; t++) group_add(&group, k_row(kv, before, t)[d]);
        snprintf(text, sizeof text, "%s: K channel %zu of %zu", name, d, kv->k_dimension);
        for (size_t t = 0; t < 64; t++)
            element_check(&group, k_row(kv, before, t)[d], k_row(kv, after, t)[d], text);
    }
    for (size_t t = 0; t < 64; t++)
        for (size_t first = 0; first < kv->v_dimension; first += 32) {
            struct group group = {INFINITY, -INFINITY, false};
            size_t end = first + 32 < kv->v_dimension ? first + 32 : kv->v_dimension;
            for (size_t d = first; d < end; d++) group_add(&group, v_row(kv, before, t)[d]);
            snprintf(text, sizeof text, "%s: V token %zu channel %zu of %zu", name, t, first,
                     kv->v_dimension);
            for (size_t d = first; d < end; d++)
                element_check(&group, v_row(kv, before, t)[d], v_row(kv, after, t)[d], text);
        }
}

/* The K ranges are the abstract of the chunk, before and after (zeros have no sign, broken channels are NaN). */
static void abstract_check(const struct kv_layout *kv, const void *chunk, const void *q4) {
    struct abstract_layout layout;
    abstract_layout_init(&layout, 64, kv->k_dimension, true, false);
    struct abstract_kernels kernels;
    abstract_kernels_init(&kernels, 0);
    uint16_t *abstract = calloc(1, layout.bytes);
    assert_non_null(abstract);
    kernels.build(&(struct abstract_build_args){&layout, kv, chunk, 0, 64, abstract});
    const uint16_t *ranges = q4;
    for (size_t i = 0; i < 2 * kv->k_dimension; i++) {
        float want = half_to_float(abstract[i]), got = half_to_float(ranges[i]);
        assert_true(got == want || (isnan(got) && !isfinite(want)) ||
                    (isnan(got) && i % kv->k_dimension % KINDS == BROKEN));
    }
    free(abstract);
}

struct buffers {
    struct guarded chunk, q4, decoded, again;
};

static void level_check(const struct level *level, const struct kv_layout *kv, struct buffers *b,
                        const void *q4_wanted, const void *decoded_wanted) {
    memset(b->q4.data, 0xa5, b->q4.bytes);
    memset(b->again.data, 0xa5, b->again.bytes);
    memset(b->decoded.data, 0, b->decoded.bytes);
    level->kernels.q4_encode(kv, b->chunk.data, b->q4.data);
    if (memcmp(b->q4.data, q4_wanted, b->q4.bytes) != 0) fail_msg("%s: other bits than ref", level->name);
    level->kernels.q4_decode(kv, b->q4.data, b->decoded.data);
    if (memcmp(b->decoded.data, decoded_wanted, b->decoded.bytes) != 0)
        fail_msg("%s: decodes to other bits than ref", level->name);
    level->kernels.q4_encode(kv, b->decoded.data, b->again.data);
    if (memcmp(b->again.data, b->q4.data, b->q4.bytes) != 0)
        fail_msg("%s: encoded twice is not encoded once", level->name);
}

static void chunks_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(41));
    static const size_t dimensions[] = {8, 16, 24, 32, 40, 56, 64, 80, 96, 112, 128, 256};
    for (size_t round = 0; round < 12 * 12; round++) {
        struct kv_layout kv;
        kv_layout_init(&kv, KV_F16, KV_F16, dimensions[round % 12], dimensions[(round + round / 12) % 12]);
        size_t bytes = kv_q4_chunk_bytes(&kv);
        struct buffers b = {guarded_create(kv.chunk_bytes), guarded_create(bytes),
                            guarded_create(kv.chunk_bytes), guarded_create(bytes)};
        uint8_t *q4 = calloc(1, bytes), *decoded = calloc(1, kv.chunk_bytes);
        assert_true(q4 != NULL && decoded != NULL);
        chunk_fill(&kv, b.chunk.data, &random);
        memset(q4, 0x5a, bytes);
        levels[0].kernels.q4_encode(&kv, b.chunk.data, q4);
        levels[0].kernels.q4_decode(&kv, q4, decoded);
        errors_check(&kv, b.chunk.data, decoded, levels[0].name);
        abstract_check(&kv, b.chunk.data, q4);
        abstract_check(&kv, decoded, q4);
        for (size_t i = 0; i < level_count; i++) level_check(&levels[i], &kv, &b, q4, decoded);
        free(q4);
        free(decoded);
        guarded_destroy(&b.chunk);
        guarded_destroy(&b.q4);
        guarded_destroy(&b.decoded);
        guarded_destroy(&b.again);
    }
}

/* Each binade, each width up to 80 units, and ends of either sign: where levels and halves are equally far apart,
 * a code that is not the nearest to its own level would move. */
static void narrow_ranges_are_stable(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(42));
    struct kv_layout kv;
    kv_layout_init(&kv, KV_F16, KV_F16, 128, 128);
    size_t bytes = kv_q4_chunk_bytes(&kv);
    struct buffers b = {guarded_create(kv.chunk_bytes), guarded_create(bytes), guarded_create(kv.chunk_bytes),
                        guarded_create(bytes)};
    uint8_t *q4 = malloc(bytes), *decoded = calloc(1, kv.chunk_bytes);
    assert_true(q4 != NULL && decoded != NULL);
    memset(b.chunk.data, 0, b.chunk.bytes);
    for (int32_t end = -0x7bff; end < 0x7bff; end += 97) {
        for (size_t d = 0; d < 128; d++)
            for (size_t t = 0; t < 64; t++) {
                int32_t width = (int32_t)d * 5 / 8 + 1,
                        at = end + (int32_t)random_below(&random, (uint64_t)width);
                if (t == 0) at = end;
                uint16_t half = (uint16_t)(at < 0 ? 0x8000 | -at : at > 0x7bff ? 0x7bff : at);
                k_row(&kv, b.chunk.data, t)[d] = half;
                v_row(&kv, b.chunk.data, t)[d] = half;
            }
        levels[0].kernels.q4_encode(&kv, b.chunk.data, q4);
        levels[0].kernels.q4_decode(&kv, q4, decoded);
        for (size_t i = 0; i < level_count; i++) level_check(&levels[i], &kv, &b, q4, decoded);
    }
    free(q4);
    free(decoded);
    guarded_destroy(&b.chunk);
    guarded_destroy(&b.q4);
    guarded_destroy(&b.decoded);
    guarded_destroy(&b.again);
}

static void bytes_are_as_documented(void **state) {
    (void)state;
    struct kv_layout kv;
    kv_layout_init(&kv, KV_F16, KV_F16, 64, 64);
    assert_int_equal(kv_q4_chunk_bytes(&kv), 4864);
    kv_layout_init(&kv, KV_F16, KV_F16, 128, 128);
    assert_int_equal(kv_q4_chunk_bytes(&kv), 9728);
    kv_layout_init(&kv, KV_F16, KV_F16, 24, 40);
    assert_int_equal(kv_q4_chunk_bytes(&kv), 2 * 2 * 24 + 2 * 2 * 64 * 2 + 32 * 24 + 32 * 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_match),
        cmocka_unit_test(narrow_ranges_are_stable),
        cmocka_unit_test(bytes_are_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
