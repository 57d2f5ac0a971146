/* rope: angles against exact argument reduction in integers, rotations against double. */
#include "check.h"

#include "kernels/rope/rope.h"

static const double eps = 0x1p-24;

__extension__ typedef unsigned __int128 wide;

CHECK_LEVELS_OF(rope)

/* cos and sin of position * frequency, reduced without libm's help: the product is an exact integer times
 * a power of two, and its remainder by 2 pi is found in turns with 1 / (2 pi) to 192 bits. */
static void exact_angle(uint64_t position, float frequency, double *cosine, double *sine) {
    /* 1 / (2 pi) = 0.28BE60DB 9391054A 7F09D5F4 7D4D3770 36D8A566 4F10E410 (hexadecimal) */
    static const uint32_t turn[6] = {0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410};
    int exponent;
    uint32_t mantissa = (uint32_t)ldexpf(frexpf(frequency, &exponent), 24);
    int shift = 24 - exponent; /* frequency = mantissa / 2^shift */
    wide product = (wide)position * mantissa;
    /* turns = product * (turn / 2^192) / 2^shift: only the fraction counts; long multiplication. */
    uint32_t words[12] = {0}; /* most significant first; product * turn, point after word 5 */
    for (int i = 5; i >= 0; i--) {
        uint64_t carry = 0;
        for (int k = 3; k >= 0; k--) {
            uint32_t part = (uint32_t)(product >> (32 * (3 - k)));
            uint64_t sum = (uint64_t)part * turn[i] + words[i + k + 1] + carry;
            words[i + k + 1] = (uint32_t)sum;
            carry = sum >> 32;
        }
        words[i] += (uint32_t)carry;
    }
    /* words 0..3 are whole units of 2^0 and up (128 bits), words 4..9 the fraction, before the shift. */
    double turns = 0;
    for (int i = 0; i < 10; i++) {
        int weight = 32 * (4 - i) - shift; /* of the word's top end */
        uint64_t word = words[i];
        if (weight - 32 >= 0) continue; /* whole turns */
        if (weight > 0) word &= ((uint64_t)1 << (32 - weight)) - 1;
        turns += ldexp((double)word, weight - 32);
    }
    turns -= floor(turns);
    const double two_pi = 6.283185307179586;
    *cosine = cos(turns * two_pi);
    *sine = sin(turns * two_pi);
}

static void angles_are_exact(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_known(levels);
    float frequency[64];
    for (size_t j = 0; j < 64; j++) frequency[j] = (float)pow(500000.0, -(double)j / 64);
    uint64_t positions[] = {0,        1,          2,          1000,       131071,     1000003,
                            16777217, 4294967295, 4294967297, 8589934591, 1ull << 40, (1ull << 52) + 12345};
    for (size_t l = 0; l < level_count; l++)
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
            struct guarded table = guarded_create(128 * sizeof(float));
            levels[l].kernels.angles(positions[p], frequency, 64, 1.25f, table.data);
            for (size_t j = 0; j < 64; j++) {
                double cosine, sine;
                exact_angle(positions[p], frequency[j], &cosine, &sine);
                const float *got = (float *)table.data + 2 * j;
                /* one rounding to float; the test's own arithmetic is good to 1e-12 */
                check_near(got[0], 1.25 * cosine, 1.25 * eps + 1e-11, "%s cos pair %zu position %llu",
                           levels[l].name, j, (unsigned long long)positions[p]);
                check_near(got[1], 1.25 * sine, 1.25 * eps + 1e-11, "%s sin pair %zu position %llu",
                           levels[l].name, j, (unsigned long long)positions[p]);
            }
            guarded_destroy(&table);
        }
}

/* Two products and a sum: 2 eps (|a| + |b|) with cosine and sine at most 1. */
static void rotations_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_known(levels);
    struct random random;
    random_init(&random, test_seed(31));
    size_t pairs[] = {1, 3, 4, 8, 12, 20, 32, 40, 64, 128};
    for (size_t l = 0; l < level_count; l++)
        for (size_t n = 0; n < 10; n++)
            for (int order = 0; order < 2; order++) {
                size_t heads = 3, extra = 5, stride = 2 * pairs[n] + extra; /* the extra ones must stay */
                struct guarded x = guarded_create(heads * stride * sizeof(float));
                struct guarded table = guarded_create(2 * pairs[n] * sizeof(float));
                float *before = malloc(x.bytes), *after = x.data, *turn = table.data;
                assert_non_null(before);
                fill_normal(&random, after, heads * stride, 1.0);
                memcpy(before, after, x.bytes);
                for (size_t j = 0; j < pairs[n]; j++) {
                    double angle = random_double(&random) * 7;
                    turn[2 * j] = (float)cos(angle), turn[2 * j + 1] = (float)sin(angle);
                }
                levels[l].kernels.apply(after, heads, stride, pairs[n], order ? ROPE_SPLIT : ROPE_ADJACENT,
                                        turn);
                for (size_t head = 0; head < heads; head++) {
                    for (size_t j = 0; j < pairs[n]; j++) {
                        size_t i = head * stride + (order ? j : 2 * j), k = order ? i + pairs[n] : i + 1;
                        double a = (double)before[i], b = (double)before[k];
                        double cosine = (double)turn[2 * j], sine = (double)turn[2 * j + 1];
                        double bound = 2 * eps * (fabs(a) + fabs(b));
                        check_near(after[i], a * cosine - b * sine, bound,
                                   "%s first of pair %zu of %zu order %d", levels[l].name, j, pairs[n],
                                   order);
                        check_near(after[k], a * sine + b * cosine, bound,
                                   "%s second of pair %zu of %zu order %d", levels[l].name, j, pairs[n],
                                   order);
                    }
                    for (size_t i = 2 * pairs[n]; i < stride; i++)
                        assert_true(after[head * stride + i] == before[head * stride + i]);
                }
                free(before);
                guarded_destroy(&x);
                guarded_destroy(&table);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(angles_are_exact),
        cmocka_unit_test(rotations_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
