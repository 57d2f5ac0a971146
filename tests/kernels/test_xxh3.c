/* Checksums of every variant are those of the xxhash library: each length up to more than a stripe's block, and random
 * ones, from any address on. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/random.h"
#include "kernels/xxh3/xxh3.h"
#include "platform/cpu.h"
#include "seed.h"

enum { EVERY = 2200, RANDOM = 200, BYTES_MAX = 1 << 17 };

static void check_sums(const struct xxh3 *variant, const uint8_t *bytes, size_t count) {
    uint8_t sum_128[16], sum_64[8];
    XXH128_canonical_t expected_128;
    XXH64_canonical_t expected_64;
    XXH128_canonicalFromHash(&expected_128, XXH3_128bits(bytes, count));
    XXH64_canonicalFromHash(&expected_64, XXH3_64bits(bytes, count));
    variant->sum_128(bytes, count, sum_128);
    variant->sum_64(bytes, count, sum_64);
    if (memcmp(sum_128, &expected_128, sizeof sum_128) != 0 || memcmp(sum_64, &expected_64, sizeof sum_64) != 0)
        fail_msg("another sum of %zu bytes", count);
}

static void check_variant(const struct xxh3 *variant) {
    struct random random;
    uint8_t *bytes = malloc(BYTES_MAX);
    assert_non_null(bytes);
    random_init(&random, test_seed(20261129));
    for (size_t i = 0; i < BYTES_MAX; i++) bytes[i] = (uint8_t)random_next(&random);
    for (size_t count = 0; count < EVERY; count++) check_sums(variant, bytes + count % 8, count);
    for (size_t i = 0; i < RANDOM; i++) {
        const size_t first = (size_t)random_below(&random, BYTES_MAX);
        check_sums(variant, bytes + first, (size_t)random_below(&random, BYTES_MAX - first + 1));
    }
    free(bytes);
}

static void sums_are_the_librarys(void **state) {
    (void)state;
    check_variant(&xxh3_ref);
    check_variant(xxh3_best());
#if defined(__x86_64__)
    assert_ptr_equal(xxh3_best(), (cpu_features() & CPU_AVX2) != 0 ? &xxh3_avx2 : &xxh3_ref);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_the_librarys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
