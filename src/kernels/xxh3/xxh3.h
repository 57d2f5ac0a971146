/* xxh3: checksums by XXH3 of the xxhash header, compiled here for each instruction set: the library's own code is for
 * the least processor of its kind, and takes two to three times as long.  All variants give the same sums. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct xxh3 {
    /* In canonical byte order. */
    void (*sum_128)(const void *bytes, size_t count, uint8_t sum[16]);
    void (*sum_64)(const void *bytes, size_t count, uint8_t sum[8]);
};

extern const struct xxh3 xxh3_ref; /* SSE2 or NEON, which every processor of its kind has */
extern const struct xxh3 xxh3_avx2;
const struct xxh3 *xxh3_best(void); /* of this processor */
