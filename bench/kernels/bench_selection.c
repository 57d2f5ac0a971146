/* Selection: what one KV head costs per decode step, at 32K and 128K tokens, beside the read bandwidth of the
 * same threads.  The benchmark walks through as many KV heads as the buffer holds, so that their key index comes
 * from memory; bandwidth and kernel alternate, and the ratio of medians is what counts on a noisy machine.  GB/s
 * count what the kernel must read: key index, selected rows, or (top-k) scores, which lie in L2 as scoring leaves
 * them.  With --buffer 1 one head of 16K tokens is walked through again and again instead: from the caches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/random.h"
#include "bench.h"
#include "kernels/kernels.h"
#include "machine.h"
#include "platform/clock.h"
#include "platform/pool.h"
#include "tensor/half.h"

enum {
    SAMPLES_MAX = 50,
    GROUP_MAX = 8,
    DIMENSION_MAX = 128,
    KEEP = 2048,
    KEEP_FEW = 128 /* a thread's share */,
    SCORE_SETS = 4
};

enum method {
    HASH,
    LEVEL,
    HASH_TOP_K,
    TOP_K,
    MIN_MAX,
    MEAN_DEVIATION,
    PARTIAL_SUM,
    PARTIAL_MAX,
    GATHER,
    GATHER_FEW,
    GATHER_ALL,
    GATHER_CHUNKS,
    GATHER_Q4,
    DECODE,
    MASS
};

struct selection_case {
    const char *name;
    enum method method;
    size_t bits, page_tokens, columns; /* hash, or a coordinate's of level; abstracts; partial keys */
    enum kv_type type;                 /* of KV rows */
    size_t dimension, group;
};

static const struct selection_case cases[] = {
    {"hash 128", HASH, 128, 0, 0, 0, 128, 4},
    {"hash 128 group 1", HASH, 128, 0, 0, 0, 128, 1},
    {"hash 128 group 2", HASH, 128, 0, 0, 0, 128, 2},
    {"hash 256", HASH, 256, 0, 0, 0, 128, 4},
    {"hash 256 group 1", HASH, 256, 0, 0, 0, 128, 1},
    {"hash 256 group 2", HASH, 256, 0, 0, 0, 128, 2},
    {"level 2 bits d 64 group 3", LEVEL, 2, 0, 0, 0, 64, 3},
    {"level 2 bits d 64 group 4", LEVEL, 2, 0, 0, 0, 64, 4},
    {"level 2 bits d 64 group 1", LEVEL, 2, 0, 0, 0, 64, 1},
    {"level 3 bits d 64 group 4", LEVEL, 3, 0, 0, 0, 64, 4},
    {"level 1 bit d 128 group 4", LEVEL, 1, 0, 0, 0, 128, 4},
    {"level 2 bits d 128 group 4", LEVEL, 2, 0, 0, 0, 128, 4},
    {"level 2 bits d 128 group 8", LEVEL, 2, 0, 0, 0, 128, 8},
    {"hash 128 + top-k", HASH_TOP_K, 128, 0, 0, 0, 128, 4},
    {"top-k", TOP_K, 0, 0, 0, 0, 0, 1},
    {"min-max page 16 d 64", MIN_MAX, 0, 16, 0, 0, 64, 4},
    {"min-max page 16 d 128", MIN_MAX, 0, 16, 0, 0, 128, 4},
    {"mean-dev page 16 d 128", MEAN_DEVIATION, 0, 16, 0, 0, 128, 4},
    {"partial 32 sum", PARTIAL_SUM, 0, 0, 32, 0, 128, 4},
    {"partial 32 max", PARTIAL_MAX, 0, 0, 32, 0, 128, 4},
    {"gather 2048 f16 d 64", GATHER, 0, 0, 0, KV_F16, 64, 4},
    {"gather 2048 f16 d 128", GATHER, 0, 0, 0, KV_F16, 128, 4},
    {"gather 2048 q8 d 64", GATHER, 0, 0, 0, KV_Q8, 64, 4},
    {"gather 2048 q8 d 128", GATHER, 0, 0, 0, KV_Q8, 128, 4},
    {"gather 2048 f16 d 64 group 1", GATHER, 0, 0, 0, KV_F16, 64, 1},
    {"gather 128 f16 d 64", GATHER_FEW, 0, 0, 0, KV_F16, 64, 4},
    {"gather all f16 d 64", GATHER_ALL, 0, 0, 0, KV_F16, 64, 4},
    {"gather 32 chunks f16 d 64", GATHER_CHUNKS, 0, 0, 0, KV_F16, 64, 4},
    {"gather 32 chunks q4 d 64", GATHER_Q4, 0, 0, 0, KV_F16, 64, 4},
    {"gather 32 chunks f16 d 128", GATHER_CHUNKS, 0, 0, 0, KV_F16, 128, 4},
    {"gather 32 chunks q4 d 128", GATHER_Q4, 0, 0, 0, KV_F16, 128, 4},
    {"decode all f16 d 64", DECODE, 0, 0, 0, KV_F16, 64, 4},
    {"gather all f16 d 128", GATHER_ALL, 0, 0, 0, KV_F16, 128, 4},
    {"decode all f16 d 128", DECODE, 0, 0, 0, KV_F16, 128, 4},
    {"gather all q8 d 128", GATHER_ALL, 0, 0, 0, KV_Q8, 128, 4},
    {"decode all q8 d 128", DECODE, 0, 0, 0, KV_Q8, 128, 4},
    {"mass 2048", MASS, 0, 0, 0, 0, 0, 4},
};

struct selection_run {
    const struct kernels *kernels;
    const struct selection_case *c;
    size_t tokens, heads;
    const void **chunks; /* [heads][tokens / 64] of key index, or of KV */
    struct kv_layout kv;
    struct hash_layout hash;
    struct level_layout level;
    struct abstract_layout abstract;
    float *q;       /* [GROUP_MAX][2 * DIMENSION_MAX] */
    uint8_t *codes; /* [GROUP_MAX][32] */
    float *scores;  /* [SCORE_SETS][tokens]: what top-k gets */
    uint32_t *
        rows; /* [tokens]: every one; [KEEP] before them: evenly spread at random; [KEEP] behind: whole chunks */
};

/* What one thread writes. */
struct selection_output {
    float *scores;     /* [GROUP_MAX][tokens] */
    uint32_t *indices; /* [KEEP] */
    float *o, m[GROUP_MAX], s[GROUP_MAX];
    void *scratch;
};

static size_t kept(const struct selection_case *c) { return c->method == GATHER_FEW ? KEEP_FEW : KEEP; }

static bool by_chunks(const struct selection_case *c) {
    return c->method == GATHER_CHUNKS || c->method == GATHER_Q4;
}

static const uint32_t *rows_of(const struct selection_run *run) {
    return run->rows + (run->c->method == GATHER_ALL ? KEEP : by_chunks(run->c) ? KEEP + run->tokens : 0);
}

static void attention_run_head(const struct selection_run *run, const void **chunks,
                               struct selection_output *out) {
    const struct selection_case *c = run->c;
    struct attention_decode_args decode = {.layout = &run->kv,
                                           .chunks = chunks,
                                           .row_end = run->tokens,
                                           .q = run->q,
                                           .q_stride = c->dimension,
                                           .group = c->group,
                                           .scale = 0.1f,
                                           .m = out->m,
                                           .s = out->s,
                                           .o = out->o,
                                           .o_stride = c->dimension,
                                           .scratch = out->scratch};
    struct attention_gather_args gather = {.layout = &run->kv,
                                           .chunks = chunks,
                                           .rows = rows_of(run),
                                           .row_count = c->method == GATHER_ALL ? run->tokens : kept(c),
                                           .q = run->q,
                                           .q_stride = c->dimension,
                                           .group = c->group,
                                           .scale = 0.1f,
                                           .m = out->m,
                                           .s = out->s,
                                           .o = out->o,
                                           .o_stride = c->dimension,
                                           .scratch = out->scratch};
    if (c->method == DECODE)
        run->kernels->attention.decode(&decode);
    else if (c->method == GATHER_Q4)
        run->kernels->attention.gather_q4(&gather);
    else
        run->kernels->attention.gather(&gather);
}

static void score_run_head(const struct selection_run *run, const void **chunks,
                           struct selection_output *out) {
    const struct selection_case *c = run->c;
    struct hash_score_args hash = {&run->hash, chunks, 0,           run->tokens,  run->codes,
                                   c->group,   true,   out->scores, out->scratch, NULL};
    struct level_score_args level = {.layout = &run->level,
                                     .blocks = chunks,
                                     .token_end = run->tokens,
                                     .queries = out->scratch,
                                     .heads = c->group,
                                     .scores = out->scores,
                                     .stride = run->tokens};
    struct abstract_score_args pages = {.layout = &run->abstract,
                                        .kind =
                                            c->method == MIN_MAX ? ABSTRACT_MIN_MAX : ABSTRACT_MEAN_DEVIATION,
                                        .aggregate = SCORE_MAX,
                                        .abstracts = chunks,
                                        .page_end = run->tokens / max_size(c->page_tokens, 1),
                                        .q = run->q,
                                        .q_stride = c->dimension,
                                        .group = c->group,
                                        .scores = out->scores,
                                        .scratch = out->scratch};
    struct score_args rows = {.blocks = chunks,
                              .block_rows = KV_CHUNK_TOKENS,
                              .columns = c->columns,
                              .row_end = run->tokens,
                              .q = run->q,
                              .q_stride = c->dimension,
                              .heads = c->group,
                              .aggregate = c->method == PARTIAL_SUM ? SCORE_SUM : SCORE_MAX,
                              .scores = out->scores,
                              .scratch = out->scratch};
    if (c->method == HASH || c->method == HASH_TOP_K) run->kernels->hash.score(&hash);
    for (size_t i = 0; c->method == LEVEL && i < c->group; i++)
        level_prepare(&run->level, run->q + i * c->dimension,
                      (char *)out->scratch + i * level_query_bytes(&run->level));
    if (c->method == LEVEL) run->kernels->level.score(&level);
    if (c->method == MIN_MAX || c->method == MEAN_DEVIATION) run->kernels->abstract.score(&pages);
    if (c->method == PARTIAL_SUM || c->method == PARTIAL_MAX) run->kernels->score.rows(&rows);
}

static void head_run(const struct selection_run *run, size_t head, struct selection_output *out) {
    const struct selection_case *c = run->c;
    const void **chunks = run->chunks + head * (run->tokens / KV_CHUNK_TOKENS);
    struct top_k_args top = {.scores = c->method == TOP_K ? run->scores + head % SCORE_SETS * run->tokens
                                                          : out->scores,
                             .count = run->tokens,
                             .k = KEEP,
                             .indices = out->indices,
                             .scratch = out->scratch};
    struct mass_add_args mass = {.scores = run->scores,
                                 .scores_stride = KEEP,
                                 .group = c->group,
                                 .m = out->m,
                                 .s = out->s,
                                 .rows = run->rows,
                                 .row_count = KEEP,
                                 .mass = out->scores};
    switch (c->method) {
    case HASH:
    case LEVEL:
    case MIN_MAX:
    case MEAN_DEVIATION:
    case PARTIAL_SUM:
    case PARTIAL_MAX: score_run_head(run, chunks, out); break;
    case HASH_TOP_K:
        score_run_head(run, chunks, out);
        run->kernels->top_k.select(&top);
        break;
    case TOP_K: run->kernels->top_k.select(&top); break;
    case GATHER:
    case GATHER_FEW:
    case GATHER_ALL:
    case GATHER_CHUNKS:
    case GATHER_Q4:
    case DECODE: attention_run_head(run, chunks, out); break;
    case MASS: run->kernels->mass.add(&mass); break;
    }
}

/* Each thread takes its share of the heads. */
static void selection_task(void *context, const struct pool_worker *worker) {
    const struct selection_run *run = context;
    struct range share = pool_range(worker, run->heads, 1);
    struct selection_output out = {.scores = calloc(GROUP_MAX * run->tokens, sizeof(float)),
                                   .indices = malloc(KEEP * sizeof(uint32_t)),
                                   .o = malloc(GROUP_MAX * DIMENSION_MAX * sizeof(float))};
    size_t bytes = max_size(run->kernels->top_k.scratch_bytes(run->tokens, KEEP), (size_t)1 << 20);
    out.scratch = aligned_alloc(64, align_up(bytes, 64));
    if (out.scores == NULL || out.indices == NULL || out.o == NULL || out.scratch == NULL) abort();
    for (size_t head = 0; head < GROUP_MAX; head++) out.m[head] = 5, out.s[head] = 100;
    for (size_t head = share.begin; head < share.end; head++) head_run(run, head, &out);
    free(out.scores);
    free(out.indices);
    free(out.o);
    free(out.scratch);
}

/* Bytes of a chunk in memory, and bytes that one head reads. */
static size_t chunk_bytes(struct selection_run *run, double *head_bytes) {
    const struct selection_case *c = run->c;
    size_t bytes = 64;
    switch (c->method) {
    case HASH:
    case HASH_TOP_K:
        hash_layout_init(&run->hash, c->bits);
        bytes = run->hash.bytes;
        break;
    case LEVEL:
        level_layout_init(&run->level, c->dimension, c->bits, false);
        bytes = align_up(run->level.bytes, 64);
        break;
    case MIN_MAX:
    case MEAN_DEVIATION:
        abstract_layout_init(&run->abstract, c->page_tokens, c->dimension, c->method == MIN_MAX,
                             c->method != MIN_MAX);
        bytes = run->abstract.bytes;
        break;
    case PARTIAL_SUM:
    case PARTIAL_MAX: bytes = c->columns * 2 * KV_CHUNK_TOKENS; break;
    case GATHER:
    case GATHER_FEW:
    case GATHER_ALL:
    case GATHER_CHUNKS:
    case GATHER_Q4:
    case DECODE:
        kv_layout_init(&run->kv, c->type, c->type, c->dimension, c->dimension);
        bytes = c->method == GATHER_Q4 ? kv_q4_chunk_bytes(&run->kv) : run->kv.chunk_bytes;
        break;
    case TOP_K:
    case MASS: break;
    }
    *head_bytes = (double)(run->tokens / KV_CHUNK_TOKENS * bytes);
    if (c->method == TOP_K) *head_bytes = (double)(run->tokens * sizeof(float));
    if (c->method == GATHER || c->method == GATHER_FEW || by_chunks(c))
        *head_bytes = (double)(kept(c) * bytes / KV_CHUNK_TOKENS);
    if (c->method == MASS) *head_bytes = (double)(KEEP * sizeof(float) * (c->group + 2));
    return bytes;
}

static const size_t lengths[] = {32768, 131072}, cached_tokens = 16384;

static void measure(const struct bench_options *options, struct pool *pool, struct selection_run *run,
                    const char *buffer, size_t buffer_bytes) {
    double kernel[SAMPLES_MAX], limit[SAMPLES_MAX], seconds[SAMPLES_MAX], head_bytes;
    size_t bytes = chunk_bytes(run, &head_bytes), chunk_count = run->tokens / KV_CHUNK_TOKENS, count = 0;
    run->heads = buffer_bytes / (bytes * chunk_count);
    const bool cached = run->tokens == cached_tokens;
    if (run->heads > 128 || cached) run->heads = 128; /* 8 KV heads of 16 layers */
    run->heads =
        max_size(run->heads / pool_thread_count(pool) * pool_thread_count(pool), pool_thread_count(pool));
    for (size_t i = 0; i < run->heads * chunk_count; i++)
        run->chunks[i] = buffer + (cached ? i % chunk_count : i) * bytes % (buffer_bytes - bytes + 1);
    for (double end = clock_seconds() + options->seconds;
         count < SAMPLES_MAX && (count < 3 || clock_seconds() < end); count++) {
        double begin = clock_seconds();
        pool_run(pool, selection_task, run);
        seconds[count] = clock_seconds() - begin;
        kernel[count] = head_bytes * (double)run->heads / seconds[count];
        limit[count] = machine_read_bandwidth(pool, buffer, buffer_bytes);
    }
    double got = median(kernel, count) * 1e-9, peak = median(limit, count) * 1e-9;
    double each = median(seconds, count) * 1e6 / (double)run->heads * (double)pool_thread_count(pool);
    printf(options->csv ? "%s,%zu,%zu,%.2f,%.2f,%.3f,%.1f\n"
                        : "%-30s tokens %6zu  threads %zu  %6.2f of %6.2f GB/s  %.2f  %8.1f us per head\n",
           run->c->name, run->tokens, pool_thread_count(pool), got, peak, got / peak, each);
    fflush(stdout);
}

/* Normal halves: as codes random bits, as rows, abstracts and scales numbers. */
static void inputs_fill(struct selection_run *run, uint16_t *buffer, size_t bytes) {
    struct random random;
    random_init(&random, 1);
    size_t pattern = min_size(bytes / sizeof *buffer, 1 << 18);
    for (size_t i = 0; i < pattern; i++) buffer[i] = float_to_half((float)random_normal(&random));
    for (size_t at = pattern; at < bytes / sizeof *buffer; at += pattern)
        memcpy(buffer + at, buffer, min_size(pattern, bytes / sizeof *buffer - at) * sizeof *buffer);
    for (size_t i = 0; i < GROUP_MAX * 2 * DIMENSION_MAX; i++) run->q[i] = (float)random_normal(&random);
    for (size_t i = 0; i < GROUP_MAX * 32; i++) run->codes[i] = (uint8_t)random_next(&random);
    for (size_t i = 0; i < SCORE_SETS * run->tokens; i++) run->scores[i] = (float)random_normal(&random);
    for (size_t i = 0; i < KEEP; i++)
        run->rows[i] = (uint32_t)(i * (run->tokens / KEEP) + random_below(&random, run->tokens / KEEP));
    for (size_t i = 0; i < run->tokens; i++) run->rows[KEEP + i] = (uint32_t)i;
    const size_t apart = run->tokens / KEEP; /* chunks from one to the next, on average */
    for (size_t i = 0; i < KEEP / KV_CHUNK_TOKENS; i++) {
        size_t chunk = i * apart + random_below(&random, apart);
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++)
            run->rows[KEEP + run->tokens + i * KV_CHUNK_TOKENS + t] = (uint32_t)(chunk * KV_CHUNK_TOKENS + t);
    }
}

struct selection_bench {
    struct selection_run run;
    char *buffer;
    size_t bytes;
};

static void bench_cases(const struct bench_options *options, struct pool *pool, void *context) {
    struct selection_bench *bench = context;
    const bool cached = options->buffer_mib == 1;
    for (size_t n = 0; n < (cached ? 1 : sizeof lengths / sizeof lengths[0]); n++) {
        bench->run.tokens = cached ? cached_tokens : lengths[n];
        inputs_fill(&bench->run, (uint16_t *)(void *)bench->buffer, bench->bytes);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            if (options->type != NULL && strncmp(cases[i].name, options->type, strlen(options->type)) != 0)
                continue;
            bench->run.c = &cases[i];
            measure(options, pool, &bench->run, bench->buffer, bench->bytes);
        }
    }
}

int bench_selection(const struct bench_options *options) {
    size_t tokens_max = lengths[1];
    struct kernels kernels;
    kernels_init(&kernels, options->mask);
    struct selection_bench bench = {.bytes = (options->buffer_mib ? options->buffer_mib : 256) << 20};
    struct selection_run *run = &bench.run;
    run->kernels = &kernels;
    run->chunks = malloc(128 * (tokens_max / 64) * sizeof(void *));
    bench.buffer = aligned_alloc((size_t)2 << 20, bench.bytes);
    run->q = malloc(GROUP_MAX * 2 * DIMENSION_MAX * sizeof(float));
    run->codes = malloc(GROUP_MAX * 32);
    run->scores = malloc(SCORE_SETS * tokens_max * sizeof(float));
    run->rows = malloc((2 * KEEP + tokens_max) * sizeof(uint32_t));
    if (bench.buffer == NULL || run->chunks == NULL || !run->q || !run->codes || !run->scores || !run->rows)
        return 5;
    (void)madvise(bench.buffer, bench.bytes, MADV_HUGEPAGE); /* as the engine's KV memory */
    int code = bench_pools(options, bench_cases, &bench);
    free(run->chunks);
    free(run->q);
    free(run->codes);
    free(run->scores);
    free(run->rows);
    free(bench.buffer);
    return code;
}
