/* check: what every kernel test uses.
 *
 * guarded_create gives a buffer whose end touches a page that may not be read or written (and whose
 * beginning follows one, a page earlier), so that a kernel that steps over its data dies here and not in
 * production.  Outputs start as NaN; comparisons take NaN for an error. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/random.h"
#include "platform/cpu.h"
#include "seed.h"
#include "testing.h"

struct guarded {
    void *data; /* [bytes], ending at a guard page */
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
};

/* The buffer ends exactly at the guard page, so data is only as aligned as `bytes` is.  Filled with 0xa5. */
static inline struct guarded guarded_create(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    struct guarded guarded = {.bytes = bytes, .mapping_bytes = body + 2 * page};
    guarded.mapping = mmap(NULL, guarded.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guarded.mapping == MAP_FAILED) fail_msg("mmap of %zu bytes failed", guarded.mapping_bytes);
    char *begin = (char *)guarded.mapping + page;
    if (body > 0 && mprotect(begin, body, PROT_READ | PROT_WRITE) != 0) fail_msg("mprotect failed");
    guarded.data = begin + body - bytes;
    memset(guarded.data, 0xa5, bytes);
    return guarded;
}

/* The same, with the beginning aligned to a page and the bytes after the end writable up to the next one. */
static inline struct guarded guarded_create_aligned(size_t bytes) {
    struct guarded guarded = guarded_create(bytes);
    guarded.data = (char *)guarded.mapping + sysconf(_SC_PAGESIZE);
    return guarded;
}

static inline void guarded_destroy(struct guarded *guarded) {
    munmap(guarded->mapping, guarded->mapping_bytes);
    guarded->data = NULL;
}

static inline void fill_nan(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = NAN;
}

static inline void fill_normal(struct random *random, float *x, size_t count, double deviation) {
    for (size_t i = 0; i < count; i++) x[i] = (float)(random_normal(random) * deviation);
}

static inline void fill_bytes(struct random *random, void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = (uint8_t)random_next(random);
}

/* True when |got - want| <= bound; false for a NaN anywhere, and for an infinity that is not wanted. */
static inline bool near_enough(double got, double want, double bound) {
    if (got == want) return true; /* equal infinities too */
    return fabs(got - want) <= bound;
}

/* Fails the test with the index and both values. */
#define check_near(got, want, bound, ...)                                                                   \
    do {                                                                                                    \
        double check_got = (double)(got), check_want = (double)(want), check_bound = (double)(bound);       \
        if (!near_enough(check_got, check_want, check_bound)) {                                             \
            char check_text[256];                                                                           \
            snprintf(check_text, sizeof check_text, __VA_ARGS__);                                           \
            fail_msg("%s: got %.9g, want %.9g, off by %.3g, bound %.3g", check_text, check_got, check_want, \
                     fabs(check_got - check_want), check_bound);                                            \
        }                                                                                                   \
    } while (0)

/* The masks worth testing here: the reference alone, then every level that the processor adds. */
struct check_level {
    const char *name;
    cpu_mask mask;
};

static inline size_t check_levels(struct check_level levels[6]) {
    cpu_mask have = cpu_features();
    size_t count = 0;
    levels[count++] = (struct check_level){"ref", 0};
    if (have & CPU_AVX2) levels[count++] = (struct check_level){"avx2", have & CPU_AVX2};
    if (have & CPU_AVX512) levels[count++] = (struct check_level){"avx512", have & (CPU_AVX2 | CPU_AVX512)};
    if (have & CPU_AVX512_BF16)
        levels[count++] =
            (struct check_level){"avx512bf16", have & (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16)};
    if (have & CPU_AMX) levels[count++] = (struct check_level){"amx", have};
    if (have & CPU_NEON) levels[count++] = (struct check_level){"neon", have & CPU_NEON};
    if (have & CPU_DOTPROD) levels[count++] = (struct check_level){"dotprod", have};
    return count;
}

enum { CHECK_LEVELS_MAX = 8 };

/* struct level, the table of an operation's kernels at a level, and levels_known, which fills those of this processor;
 * a test may add emulated ones. */
#define CHECK_LEVELS_OF(operation)                                       \
    struct level {                                                       \
        const char *name;                                                \
        struct operation##_kernels kernels;                              \
    };                                                                   \
    static size_t levels_known(struct level levels[CHECK_LEVELS_MAX]) {  \
        struct check_level known[6];                                     \
        size_t count = check_levels(known);                              \
        for (size_t i = 0; i < count; i++) {                             \
            levels[i].name = known[i].name;                              \
            operation##_kernels_init(&levels[i].kernels, known[i].mask); \
        }                                                                \
        return count;                                                    \
    }

/* The same and levels_init, which adds what `install` puts over AVX2: the AVX-512 sources compiled on SIMDe. */
#if defined(LOAM_EMULATED)
#define CHECK_LEVELS_EMULATED(operation, install, levels, count)    \
    if ((cpu_features() & CPU_AVX2) != 0) {                         \
        levels[count].name = "avx512 emulated";                     \
        operation##_kernels_init(&levels[count].kernels, CPU_AVX2); \
        install(&levels[count++].kernels);                          \
    }
#else
#define CHECK_LEVELS_EMULATED(operation, install, levels, count)
#endif
#define CHECK_LEVELS_WITH(operation, install)                          \
    CHECK_LEVELS_OF(operation)                                         \
    static size_t levels_init(struct level levels[CHECK_LEVELS_MAX]) { \
        size_t count = levels_known(levels);                           \
        CHECK_LEVELS_EMULATED(operation, install, levels, count)       \
        return count;                                                  \
    }
