/* The body of a variant (xxh3.h): XXH3_VARIANT is its name, XXH3_LEAVE() what it does last. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/xxh3/xxh3.h"

static void sum_128(const void *bytes, size_t count, uint8_t sum[16]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, count));
    _Static_assert(sizeof canonical == 16, "16 bytes");
    memcpy(sum, &canonical, sizeof canonical);
    XXH3_LEAVE();
}

static void sum_64(const void *bytes, size_t count, uint8_t sum[8]) {
    XXH64_canonical_t canonical;
    XXH64_canonicalFromHash(&canonical, XXH3_64bits(bytes, count));
    _Static_assert(sizeof canonical == 8, "8 bytes");
    memcpy(sum, &canonical, sizeof canonical);
    XXH3_LEAVE();
}

const struct xxh3 XXH3_VARIANT = {sum_128, sum_64};
