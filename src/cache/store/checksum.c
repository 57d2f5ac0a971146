/* Checksums of pages (128 bits) and of their parts (64 bits): XXH3 in its canonical byte order. */
#include <string.h>

#ifdef LOAM_XXHASH_DISPATCH /* the library's code for this processor in place of that for the least one */
#include <immintrin.h>
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "cache/store/store_internal.h"

#ifdef LOAM_XXHASH_DISPATCH
__attribute__((target("avx"))) static void zero_upper_halves(void) { _mm256_zeroupper(); }

/* Builds of the library leave the upper halves of its vectors behind.  The next instruction of SSE, ours, then waits
 * for them to be set aside, and the next block's first one of AVX for them to come back: half of a block's time. */
static void leave_vectors(void) {
    if (__builtin_cpu_supports("avx")) zero_upper_halves();
}
#else
static void leave_vectors(void) {}
#endif

struct checksum checksum_of(const void *bytes, size_t count) {
    const XXH128_hash_t hash = XXH3_128bits(bytes, count);
    leave_vectors();
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    struct checksum checksum;
    _Static_assert(sizeof canonical == sizeof checksum, "16 bytes");
    memcpy(checksum.bytes, &canonical, sizeof checksum);
    return checksum;
}

struct part_sum part_sum_of(const void *bytes, size_t count) {
    const XXH64_hash_t hash = XXH3_64bits(bytes, count);
    leave_vectors();
    XXH64_canonical_t canonical;
    XXH64_canonicalFromHash(&canonical, hash);
    struct part_sum sum;
    _Static_assert(sizeof canonical == sizeof sum, "8 bytes");
    memcpy(sum.bytes, &canonical, sizeof sum);
    return sum;
}

bool checksum_equal(const struct checksum *a, const struct checksum *b) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* fuzz_store reaches what lies behind */
    (void)a, (void)b;
    return true;
#else
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
#endif
}

void checksum_chain(struct checksum *chain, const struct checksum *next) {
    struct checksum both[2] = {*chain, *next};
    *chain = checksum_of(both, sizeof both);
}

static const char *hexadecimal(const uint8_t *bytes, size_t count, char *text) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = '\0';
    return text;
}

const char *checksum_text(const struct checksum *checksum, char text[33]) {
    return hexadecimal(checksum->bytes, sizeof checksum->bytes, text);
}

const char *part_sum_text(const struct part_sum *sum, char text[17]) {
    return hexadecimal(sum->bytes, sizeof sum->bytes, text);
}

int64_t prefix_of(const int32_t *tokens) {
    const uint64_t hash = XXH3_64bits(tokens, KV_CHUNK_TOKENS * sizeof *tokens);
    leave_vectors();
    return hash == 0 ? 1 : (int64_t)hash;
}

void store_fingerprint_add(uint8_t fingerprint[STORE_FINGERPRINT_BYTES], const void *bytes, uint64_t count) {
    uint8_t chained[STORE_FINGERPRINT_BYTES + sizeof(struct checksum)];
    struct checksum part = checksum_of(bytes, count);
    memcpy(chained, fingerprint, STORE_FINGERPRINT_BYTES);
    memcpy(chained + STORE_FINGERPRINT_BYTES, part.bytes, sizeof part.bytes);
    struct checksum first = checksum_of(chained, sizeof chained);
    struct checksum second = checksum_of(chained + 1, sizeof chained - 1);
    memcpy(fingerprint, first.bytes, sizeof first.bytes);
    memcpy(fingerprint + sizeof first.bytes, second.bytes, sizeof second.bytes);
}
