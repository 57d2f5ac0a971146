#include "machine.h"

#include <stdint.h>
#include <string.h>

#include "platform/clock.h"
#include "platform/cpu.h"

typedef uint64_t words __attribute__((vector_size(32), aligned(8), may_alias));
typedef float floats __attribute__((vector_size(32)));

struct read_context {
    const char *data;
    size_t bytes;
    uint64_t sums[256]; /* by thread; kept so that the reads are not dropped */
};

/* Two streams, and no prefetch: of the plain ways to read, the fastest on Zen 3 (bench/lab/matvec-streams.md). */
__attribute__((target_clones("avx2", "default"))) static uint64_t read_all(const char *data, size_t bytes) {
    words a = {0}, b = a, c = a, d = a;
    size_t half = bytes / 128 * 64;
    for (size_t i = 0; i < half; i += 64) {
        a ^= *(const words *)(data + i);
        b ^= *(const words *)(data + i + 32);
        c ^= *(const words *)(data + half + i);
        d ^= *(const words *)(data + half + i + 32);
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3];
}

static void read_task(void *context, const struct pool_worker *worker) {
    struct read_context *read = context;
    struct range share = pool_range(worker, read->bytes, 4096);
    read->sums[worker->index % 256] = read_all(read->data + share.begin, share.end - share.begin);
}

double machine_read_bandwidth(struct pool *pool, const void *data, size_t bytes) {
    static struct read_context read;
    read.data = data, read.bytes = bytes;
    double begin = clock_seconds();
    pool_run(pool, read_task, &read);
    return (double)bytes / (clock_seconds() - begin);
}

enum { PEAK_ROUNDS = 2000000, PEAK_CHAINS = 12 };

struct peak_context {
    float sums[256];
};

#if defined(__x86_64__)
#define PEAK_TARGET __attribute__((target("avx2,fma")))
#else
#define PEAK_TARGET
#endif

/* Contraction, which the compilers allow by default, makes each step one instruction. */
PEAK_TARGET static float multiply_add_chains(void) {
    floats acc[PEAK_CHAINS], factor, term;
    for (int i = 0; i < 8; i++) factor[i] = 0.5f, term[i] = (float)i;
    for (int c = 0; c < PEAK_CHAINS; c++) acc[c] = term;
    for (int round = 0; round < PEAK_ROUNDS; round++)
#if defined(__clang__)
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 12
#endif
        for (int c = 0; c < PEAK_CHAINS; c++) acc[c] = acc[c] * factor + term;
    floats sum = acc[0];
    for (int c = 1; c < PEAK_CHAINS; c++) sum += acc[c];
    return sum[0] + sum[7];
}

static void peak_task(void *context, const struct pool_worker *worker) {
    struct peak_context *peak = context;
    peak->sums[worker->index % 256] = multiply_add_chains();
}

double machine_multiply_add_peak(struct pool *pool) {
    static struct peak_context peak;
#if defined(__x86_64__)
    if (!(cpu_features() & CPU_AVX2)) return 0;
#endif
    double begin = clock_seconds();
    pool_run(pool, peak_task, &peak);
    return 2.0 * 8 * PEAK_CHAINS * PEAK_ROUNDS * (double)pool_thread_count(pool) / (clock_seconds() - begin);
}
