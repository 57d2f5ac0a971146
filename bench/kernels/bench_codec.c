/* The 4-bit codec of chunks: f16 bytes that come out of a decode, or go into an encode, per second, and the same in
 * 4-bit bytes, beside the read bandwidth of the same threads.  The whole buffer is walked through, so that chunks come
 * from memory and go there; bandwidth and kernels alternate, and the medians count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/random.h"
#include "bench.h"
#include "kernels/codec/codec.h"
#include "machine.h"
#include "platform/clock.h"
#include "platform/pool.h"
#include "tensor/half.h"

enum { CODEC_SAMPLES_MAX = 200 };

struct codec_bench {
    struct codec_kernels kernels;
    struct kv_layout kv;
    size_t chunk_count, q4_bytes;
    uint8_t *chunks, *q4; /* [buffer_bytes] each */
    size_t buffer_bytes;
    bool decode;
};

static void codec_task(void *context, const struct pool_worker *worker) {
    const struct codec_bench *bench = context;
    struct range share = pool_range(worker, bench->chunk_count, 1);
    for (size_t i = share.begin; i < share.end; i++) {
        uint8_t *chunk = bench->chunks + i * bench->kv.chunk_bytes, *q4 = bench->q4 + i * bench->q4_bytes;
        if (bench->decode)
            bench->kernels.q4_decode(&bench->kv, q4, chunk);
        else
            bench->kernels.q4_encode(&bench->kv, chunk, q4);
    }
}

static double rate(struct pool *pool, struct codec_bench *bench, bool decode) {
    bench->decode = decode;
    double begin = clock_seconds();
    pool_run(pool, codec_task, bench);
    return (double)(bench->chunk_count * bench->kv.chunk_bytes) / (clock_seconds() - begin);
}

static void measure(const struct bench_options *options, struct pool *pool, struct codec_bench *bench,
                    size_t dimension) {
    static double encode[CODEC_SAMPLES_MAX], decode[CODEC_SAMPLES_MAX], read[CODEC_SAMPLES_MAX];
    kv_layout_init(&bench->kv, KV_F16, KV_F16, dimension, dimension);
    bench->q4_bytes = kv_q4_chunk_bytes(&bench->kv);
    bench->chunk_count = bench->buffer_bytes / bench->kv.chunk_bytes;
    size_t count = 0;
    for (double end = clock_seconds() + options->seconds;
         count < CODEC_SAMPLES_MAX && (count < 3 || clock_seconds() < end); count++) {
        encode[count] = rate(pool, bench, false) * 1e-9;
        decode[count] = rate(pool, bench, true) * 1e-9;
        read[count] = machine_read_bandwidth(pool, bench->chunks, bench->buffer_bytes) * 1e-9;
    }
    double ratio = (double)bench->q4_bytes / (double)bench->kv.chunk_bytes, peak = median(read, count),
           out = median(decode, count), in = median(encode, count);
    printf(options->csv ? "q4 d %zu,%zu,%zu,%.2f,%.2f,%.2f,%.2f\n"
                        : "q4 d %-4zu %5zu bytes  threads %zu  decode %6.2f GB/s of f16 (%5.2f of q4)  "
                          "encode %6.2f GB/s of f16  read %6.2f GB/s\n",
           dimension, bench->q4_bytes, pool_thread_count(pool), out, out * ratio, in, peak);
    fflush(stdout);
}

static void bench_dimensions(const struct bench_options *options, struct pool *pool, void *context) {
    static const size_t dimensions[] = {64, 96, 128};
    for (size_t i = 0; i < sizeof dimensions / sizeof dimensions[0]; i++)
        measure(options, pool, context, dimensions[i]);
}

int bench_codec(const struct bench_options *options) {
    struct codec_bench bench = {.buffer_bytes = (options->buffer_mib ? options->buffer_mib : 128) << 20};
    struct random random;
    codec_kernels_init(&bench.kernels, options->mask);
    bench.chunks = aligned_alloc((size_t)2 << 20, bench.buffer_bytes);
    bench.q4 = aligned_alloc((size_t)2 << 20, bench.buffer_bytes);
    if (bench.chunks == NULL || bench.q4 == NULL) return 5;
    (void)madvise(bench.chunks, bench.buffer_bytes, MADV_HUGEPAGE); /* as the engine's KV memory */
    (void)madvise(bench.q4, bench.buffer_bytes, MADV_HUGEPAGE);
    random_init(&random, 1);
    uint16_t *halves = (uint16_t *)(void *)bench.chunks;
    for (size_t i = 0; i < bench.buffer_bytes / sizeof *halves; i++)
        halves[i] = i < 1 << 18 ? float_to_half((float)random_normal(&random)) : halves[i - (1 << 18)];
    int code = bench_pools(options, bench_dimensions, &bench);
    free(bench.chunks);
    free(bench.q4);
    return code;
}
