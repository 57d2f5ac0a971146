/* Attention: decode beside the read bandwidth of the same threads, prefill beside their FMA peak.  Limit and
 * kernel alternate, and the ratio of medians is what counts on a noisy machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "bench.h"
#include "kernels/attention/attention.h"
#include "machine.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { SAMPLES_MAX = 100, DIMENSION_MAX = 128, GROUP_MAX = 16, PREFILL_TOKENS = 16384 };

struct attention_run {
    const struct attention_kernels *kernels;
    struct kv_layout layout;
    const void **chunks;
    size_t chunk_count, group;
    size_t query_count; /* of a prefill block; 0: decode */
};

/* Each thread attends its own share of the chunks (decode), or all of them with its own queries. */
static void attention_task(void *context, const struct pool_worker *worker) {
    const struct attention_run *run = context;
    const struct attention_kernels *kernels = run->kernels;
    size_t dimension = run->layout.k_dimension, width = run->group * dimension;
    size_t rows = max_size(run->query_count, 1);
    float *q = calloc(rows * width, sizeof *q), *o = calloc(rows * width, sizeof *o), m[GROUP_MAX],
          s[GROUP_MAX];
    size_t scratch_bytes = max_size(kernels->decode_scratch_bytes(run->group, &run->layout),
                                    kernels->prefill_scratch_bytes(run->group, &run->layout));
    void *scratch = aligned_alloc(64, align_up(scratch_bytes, 64));
    if (q == NULL || o == NULL || scratch == NULL) abort();
    for (size_t i = 0; i < rows * width; i++) q[i] = (float)(i * 7919 % 1000) / 1000 - 0.5f;
    if (run->query_count == 0) {
        struct range share = pool_range(worker, run->chunk_count, 1);
        struct attention_decode_args args = {.layout = &run->layout,
                                             .chunks = run->chunks,
                                             .row_begin = share.begin * KV_CHUNK_TOKENS,
                                             .row_end = share.end * KV_CHUNK_TOKENS,
                                             .q = q,
                                             .q_stride = dimension,
                                             .group = run->group,
                                             .scale = 0.1f,
                                             .m = m,
                                             .s = s,
                                             .o = o,
                                             .o_stride = dimension,
                                             .scratch = scratch};
        kernels->decode(&args);
    } else {
        struct attention_prefill_args args = {.layout = &run->layout,
                                              .chunks = run->chunks,
                                              .position_first =
                                                  run->chunk_count * KV_CHUNK_TOKENS - run->query_count,
                                              .query_count = run->query_count,
                                              .q = q,
                                              .q_stride = width,
                                              .group = run->group,
                                              .scale = 0.1f,
                                              .out = o,
                                              .out_stride = width,
                                              .scratch = scratch};
        kernels->prefill(&args);
    }
    free(q);
    free(o);
    free(scratch);
}

static void measure(const struct bench_options *options, struct pool *pool, struct attention_run *run,
                    const char *buffer, size_t buffer_bytes, const char *type) {
    double kernel[SAMPLES_MAX], limit[SAMPLES_MAX], threads = (double)pool_thread_count(pool);
    double tokens = (double)(run->chunk_count * KV_CHUNK_TOKENS), queries = (double)run->query_count;
    int prefill = run->query_count > 0;
    double work = prefill ? threads * queries * (double)(run->group * run->layout.k_dimension) * 4 *
                                (tokens - queries / 2)
                          : (double)(run->chunk_count * run->layout.chunk_bytes);
    size_t count = 0;
    for (double end = clock_seconds() + options->seconds;
         count < SAMPLES_MAX && (count < 3 || clock_seconds() < end); count++) {
        double begin = clock_seconds();
        pool_run(pool, attention_task, run);
        kernel[count] = work / (clock_seconds() - begin);
        limit[count] =
            prefill ? machine_multiply_add_peak(pool) : machine_read_bandwidth(pool, buffer, buffer_bytes);
    }
    double got = median(kernel, count) * 1e-9, peak = median(limit, count) * 1e-9;
    printf(options->csv ? "%s,%s,%zu,%zu,%zu,%.2f,%.2f,%s,%.3f\n"
                        : "%-8s %-4s d %3zu  group %2zu  threads %zu  %8.2f of %8.2f %-7s  %.2f\n",
           prefill ? "prefill" : "decode", type, run->layout.k_dimension, run->group, pool_thread_count(pool),
           got, peak, prefill ? "GFLOP/s" : "GB/s", got / peak);
    fflush(stdout);
}

/* One stored chunk, copied over the buffer. */
static size_t chunks_fill(struct attention_run *run, char *buffer, size_t bytes) {
    float k[DIMENSION_MAX], v[DIMENSION_MAX];
    struct random random;
    random_init(&random, 1);
    size_t count = bytes / run->layout.chunk_bytes;
    for (size_t token = 0; token < KV_CHUNK_TOKENS; token++) {
        for (size_t d = 0; d < run->layout.k_dimension; d++)
            k[d] = (float)random_normal(&random), v[d] = (float)random_normal(&random);
        run->kernels->store(&run->layout, buffer, token, k, v);
    }
    for (size_t i = 0; i < count; i++) {
        run->chunks[i] = buffer + i * run->layout.chunk_bytes;
        if (i > 0) memcpy(buffer + i * run->layout.chunk_bytes, buffer, run->layout.chunk_bytes);
    }
    return count;
}

struct attention_bench {
    struct attention_kernels kernels;
    struct attention_run run;
    char *buffer;
    size_t bytes;
};

static void bench_shapes(const struct bench_options *options, struct pool *pool, void *context) {
    static const size_t dimensions[] = {64, 128}, groups[] = {1, 2, 4, 8};
    struct attention_bench *bench = context;
    struct attention_run *run = &bench->run;
    for (size_t c = 0; c < 16; c++) {
        enum kv_type type = c & 1 ? KV_Q8 : KV_F16;
        const char *name = c & 1 ? "q8" : "f16";
        if (options->type != NULL && strcmp(options->type, name) != 0) continue;
        kv_layout_init(&run->layout, type, type, dimensions[c >> 1 & 1], dimensions[c >> 1 & 1]);
        run->group = groups[c >> 2];
        run->query_count = 0;
        run->chunk_count = chunks_fill(run, bench->buffer, bench->bytes);
        measure(options, pool, run, bench->buffer, run->chunk_count * run->layout.chunk_bytes, name);
        run->query_count = bench->kernels.prefill_block_rows;
        run->chunk_count = min_size(run->chunk_count, PREFILL_TOKENS / KV_CHUNK_TOKENS);
        if (run->group == 1 || run->group == 4)
            measure(options, pool, run, bench->buffer, bench->bytes, name);
    }
}

int bench_attention(const struct bench_options *options) {
    struct attention_bench bench = {.bytes = (options->buffer_mib ? options->buffer_mib : 256) << 20};
    bench.buffer = aligned_alloc(4096, bench.bytes);
    bench.run.kernels = &bench.kernels;
    bench.run.chunks = malloc(bench.bytes / 1024 * sizeof *bench.run.chunks);
    if (bench.buffer == NULL || bench.run.chunks == NULL) return 5;
    attention_kernels_init(&bench.kernels, options->mask);
    int code = bench_pools(options, bench_shapes, &bench);
    free(bench.run.chunks);
    free(bench.buffer);
    return code;
}
