#include "plan/quantized_pages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_tier.h"
#include "kernels/attention/attention.h"
#include "kernels/codec/codec.h"
#include "plan/compression.h"
#include "platform/clock.h"

enum { CHUNKS = 32, ROUNDS = 5 };
/* 1 / SAMPLE_FRACTION of the document is written to be read again, for the measurement. */
enum { SAMPLE_FRACTION = 128, SAMPLE_PAGES_MIN = 16, SAMPLE_BYTES_MAX = 4 << 20 };

/* ---- attention ---- */

struct bench {
    struct attention_kernels attention;
    struct codec_kernels codec;
    const struct kv_layout *kv;
    uint8_t *rows, *quantized; /* owned; [CHUNKS] */
    const void *chunks[CHUNKS], *forms[CHUNKS];
    uint32_t chosen[CHUNKS * KV_CHUNK_TOKENS];
    float *q, *partial; /* owned; [group][k_dimension]; [group][2 + v_dimension] */
    void *scratch;      /* owned */
};

/* Only halves are quantized to 4 bits. */
static bool has_q4(const struct kv_layout *kv) { return kv->k_type == KV_F16 && kv->v_type == KV_F16; }

static enum status bench_init(struct bench *bench, const struct kv_layout *kv, size_t group, struct error *error) {
    attention_kernels_init(&bench->attention, cpu_features());
    codec_kernels_init(&bench->codec, cpu_features());
    bench->kv = kv;
    const size_t q4_bytes = has_q4(kv) ? kv_q4_chunk_bytes(kv) : 0;
    bench->rows = calloc(CHUNKS, kv->chunk_bytes);
    bench->quantized = calloc(CHUNKS, max_size(q4_bytes, 1));
    bench->q = calloc(group * kv->k_dimension, sizeof *bench->q);
    bench->partial = calloc(group * (2 + kv->v_dimension), sizeof *bench->partial);
    bench->scratch = calloc(1, max_size(bench->attention.gather_scratch_bytes(group, kv),
                                        has_q4(kv) ? bench->attention.gather_q4_scratch_bytes(group, kv) : 0));
    float *row = calloc(kv->k_dimension + kv->v_dimension, sizeof *row);
    if (bench->rows == NULL || bench->quantized == NULL || bench->q == NULL || bench->partial == NULL ||
        bench->scratch == NULL || row == NULL) {
        free(row);
        return error_set(error, STATUS_MEMORY, "measuring attention: out of memory");
    }
    struct random random;
    random_init(&random, 1);
    for (size_t i = 0; i < group * kv->k_dimension; i++) bench->q[i] = (float)random_double(&random) - 0.5F;
    for (size_t i = 0; i < CHUNKS * KV_CHUNK_TOKENS; i++) {
        bench->chosen[i] = (uint32_t)i;
        for (size_t d = 0; d < kv->k_dimension + kv->v_dimension; d++) row[d] = (float)random_double(&random) - 0.5F;
        bench->attention.store(kv, bench->rows + i / KV_CHUNK_TOKENS * kv->chunk_bytes, i % KV_CHUNK_TOKENS, row,
                               row + kv->k_dimension);
    }
    for (size_t i = 0; i < CHUNKS; i++) {
        bench->chunks[i] = bench->rows + i * kv->chunk_bytes;
        bench->forms[i] = bench->quantized + i * q4_bytes;
        if (has_q4(kv)) bench->codec.q4_encode(kv, bench->chunks[i], bench->quantized + i * q4_bytes);
    }
    free(row);
    return STATUS_OK;
}

static void bench_deinit(struct bench *bench) {
    free(bench->rows);
    free(bench->quantized);
    free(bench->q);
    free(bench->partial);
    free(bench->scratch);
}

static void bench_attend(struct bench *bench, size_t group, bool quantized) {
    (quantized ? bench->attention.gather_q4 : bench->attention.gather)(
        &(struct attention_gather_args){.layout = bench->kv,
                                        .chunks = quantized ? bench->forms : bench->chunks,
                                        .rows = bench->chosen,
                                        .row_count = CHUNKS * KV_CHUNK_TOKENS,
                                        .q = bench->q,
                                        .q_stride = bench->kv->k_dimension,
                                        .group = group,
                                        .scale = 0.1F,
                                        .m = bench->partial,
                                        .s = bench->partial + group,
                                        .o = bench->partial + 2 * group,
                                        .o_stride = bench->kv->v_dimension,
                                        .scratch = bench->scratch});
}

/* The minimum of several rounds, in turns. */
static void bench_run(struct bench *bench, size_t group, struct page_costs *costs) {
    double *const found[] = {&costs->rows_attend, &costs->quantized_attend, &costs->decode};
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < (has_q4(bench->kv) ? 3 : 1); i++) {
            uint64_t began = clock_ns();
            if (i < 2) bench_attend(bench, group, i == 1);
            for (size_t c = 0; i == 2 && c < CHUNKS; c++) /* into the same bits again */
                bench->codec.q4_decode(bench->kv, bench->forms[c], bench->rows + c * bench->kv->chunk_bytes);
            double seconds = (double)(clock_ns() - began) * 1e-9 / CHUNKS;
            if (round == 0 || seconds < *found[i]) *found[i] = seconds;
        }
}

enum status quantized_pages_measure(struct page_costs *costs, const struct page_sample *sample, struct error *error) {
    *costs = (struct page_costs){0};
    TRY(store_measure(sample->store, sample->layout, sample->token_capacity, sample->bytes, &costs->disk, error));
    return quantized_pages_measure_attention(costs, sample->kv, sample->group, error);
}

enum status quantized_pages_measure_attention(struct page_costs *costs, const struct kv_layout *kv, size_t group,
                                              struct error *error) {
    struct bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL) return error_set(error, STATUS_MEMORY, "measuring attention: out of memory");
    enum status status = bench_init(bench, kv, group, error);
    if (status == STATUS_OK) bench_run(bench, group, costs);
    bench_deinit(bench);
    free(bench);
    return status;
}

/* ---- the balance ---- */

enum { STEPS = 256 };

/* A layer's costs with a fraction x in 4 bits.  RAM holds more chunks when they are smaller, so a step also misses
 * fewer of them as x grows; the paper's D is constant. */
static struct compression_costs costs_of(const struct page_costs *costs, const struct page_work *work, bool dense,
                                         double x) {
    const double threads = (double)work->thread_count, rows_bytes = (double)work->rows_bytes;
    const double chunks = (double)((dense ? work->chunks : work->kept) * work->kv_head_count);
    const double slot = 1 - x + x * (double)work->quantized_bytes / rows_bytes;
    const double missed = chunks * (1 - fmin(work->held / slot, 1));
    const double bytes = fmax(missed * rows_bytes, 1e-3); /* not nothing, or R would be no number */
    /* What 4 bits add to computing, if all chunks have them: rows are made by the engine's thread; attended to as they
     * are, any form may be the quicker one. */
    const double added =
        chunks * (dense ? costs->decode : fmax(costs->quantized_attend - costs->rows_attend, 0) / threads);
    return (struct compression_costs){.bytes = bytes,
                                      .read_rate = rows_bytes / costs->disk.tail_seconds,
                                      .decode_rate = added > 0 ? bytes / added : INFINITY,
                                      .ratio = costs->disk.page_seconds / costs->disk.tail_seconds,
                                      .compute_seconds = chunks * costs->rows_attend / threads + costs->layer,
                                      .other_seconds = missed > 0 ? costs->disk.alone_seconds : 0};
}

double quantized_pages_fraction(const struct page_costs *costs, const struct page_work *work, size_t layer_index) {
    const bool dense = layer_index < work->dense_layers || work->kept >= work->chunks;
    double best = 0, seconds_min = INFINITY;
    for (int step = 0; step <= STEPS; step++) { /* of equals the smallest: what hides anyway stays exact */
        double x = (double)step / STEPS;
        const struct compression_costs layer = costs_of(costs, work, dense, x);
        double seconds = compression_layer_seconds(&layer, x);
        if (seconds >= seconds_min * (1 - 1e-9)) continue;
        seconds_min = seconds;
        best = x;
    }
    return best;
}

void quantized_pages_choose(const struct page_costs *costs, const struct page_work *work,
                            struct page_fractions *fractions) {
    double layers[PAGE_FRACTIONS_LAYERS_MAX];
    ASSERT(work->layer_count <= PAGE_FRACTIONS_LAYERS_MAX);
    for (size_t i = 0; i < work->layer_count; i++) layers[i] = quantized_pages_fraction(costs, work, i);
    *fractions = (struct page_fractions){.layer_count = (uint16_t)work->layer_count};
    compression_spread(layers, work->sensitivity, work->layer_count, fractions->sixteenths);
}

/* ---- the document ---- */

static struct page_work work_of(const struct page_question *question) {
    const struct kv_cache_config *cache = question->cache;
    const uint64_t chunks = kv_chunks_of(question->token_count);
    const size_t rows_bytes = question->rows->chunk_bytes;
    double all = (double)(cache->layer_count * cache->kv_head_count * chunks * rows_bytes);
    double spare = (double)(cache->host_bytes - kv_tier_bytes_min(cache)); /* beyond what any step needs */
    return (struct page_work){.layer_count = cache->layer_count,
                              .dense_layers = question->dense_layers,
                              .kv_head_count = cache->kv_head_count,
                              .thread_count = question->thread_count,
                              .rows_bytes = rows_bytes,
                              .quantized_bytes = kv_q4_chunk_bytes(question->rows),
                              .chunks = chunks,
                              .kept = kv_chunks_of(question->kept_tokens),
                              .held = spare < all ? spare / all : 1,
                              .sensitivity = question->sensitivity};
}

/* false: too little to measure, or the disk fails. */
static bool measure_costs(struct page_costs *costs, const struct page_question *question,
                          const struct page_work *work) {
    struct page_sample sample = {.store = question->store,
                                 .layout = question->layout,
                                 .token_capacity = question->token_capacity,
                                 .bytes = work->chunks * work->layer_count * work->kv_head_count * work->rows_bytes /
                                          SAMPLE_FRACTION,
                                 .kv = question->rows,
                                 .group = question->group};
    if (sample.bytes > SAMPLE_BYTES_MAX) sample.bytes = SAMPLE_BYTES_MAX;
    if (sample.bytes < SAMPLE_PAGES_MIN * store_tail_bytes(question->layout)) return false;
    if (quantized_pages_measure(costs, &sample, NULL) != STATUS_OK) return false;
    return true;
}

bool quantized_pages_plan(struct page_costs *costs, bool *has_costs, const struct page_question *question,
                          struct page_fractions *fractions) {
    const struct page_work work = work_of(question);
    *fractions = (struct page_fractions){.layer_count = (uint16_t)work.layer_count};
    if (work.held >= 1) return true; /* nothing will be read */
    memset(fractions->sixteenths, PAGE_FRACTION_WHOLE, work.layer_count);
    if (!*has_costs) *has_costs = measure_costs(costs, question, &work);
    costs->layer = question->layer_seconds;
    if (*has_costs) quantized_pages_choose(costs, &work, fractions);
    page_fractions_keep_first(fractions);
    return *has_costs;
}

/* ---- a document that grows ---- */

/* Sixteenths of the new pages, with which all chunk_end have `wanted`; in whole segments, which chunk_first is.  That
 * a head's first page is rows is not made up for: a span for the sake of one page would be one too many. */
static uint8_t sixteenths_behind(const struct page_fractions *fractions, size_t layer, unsigned wanted,
                                 uint64_t chunk_first, uint64_t chunk_end) {
    const double have = (double)(page_fractions_before(fractions, layer, 0, 1, chunk_first) +
                                 page_fractions_kept(fractions, layer, 1, 1)),
                 want = (double)wanted / PAGE_FRACTION_WHOLE * (double)chunk_end,
                 found = PAGE_FRACTION_WHOLE * (want - have) / (double)(chunk_end - chunk_first);
    return (uint8_t)fmin(fmax(round(found), 0), PAGE_FRACTION_WHOLE);
}

static uint64_t segment_behind(uint64_t chunk_count) {
    return (chunk_count + PAGE_FRACTION_WHOLE - 1) / PAGE_FRACTION_WHOLE * PAGE_FRACTION_WHOLE;
}

bool quantized_pages_grows(uint64_t chunk_count, uint64_t chunk_end) {
    enum { GROWS_BY = 4 }; /* a quarter, or a document of many turns would use up its spans */
    return chunk_count > 0 && chunk_end >= segment_behind(chunk_count) + PAGE_FRACTION_WHOLE &&
           (chunk_end - chunk_count) * GROWS_BY >= chunk_count;
}

bool quantized_pages_continue(struct page_fractions *fractions, const struct page_fractions *wanted,
                              uint64_t chunk_count, uint64_t chunk_end) {
    const uint64_t first = segment_behind(chunk_count);
    struct page_fractions next = *fractions;
    struct page_span span = {.chunk_first = (uint32_t)first};
    unsigned changed = 0;
    ASSERT(fractions->layer_count == wanted->layer_count);
    if (!quantized_pages_grows(chunk_count, chunk_end)) return false;
    while (next.later_count > 0 && next.later[next.later_count - 1].chunk_first >= first) next.later_count--;
    if (next.later_count == PAGE_SPANS_MAX - 1) return false;
    for (size_t i = 0; i < next.layer_count; i++) {
        const unsigned before = page_fractions_at(fractions, i, first);
        span.sixteenths[i] = sixteenths_behind(&next, i, wanted->sixteenths[i], first, chunk_end);
        changed += before > span.sixteenths[i] ? before - span.sixteenths[i] : span.sixteenths[i] - before;
    }
    if (changed < next.layer_count) return false;
    next.later[next.later_count++] = span;
    *fractions = next;
    return true;
}
