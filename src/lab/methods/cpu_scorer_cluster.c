/* Scores of tokens by the centroids of their clusters (lab/methods/cluster.h).
 *
 * Spherical k-means as RetroInfer has it: of keys without their mean, from tokens at even distances on, by inner
 * product with centroids of length 1, ROUNDS times; what is kept are the means of the keys as they are.  A chunk is
 * clustered when its last key is there, by its own keys alone, so that building again gives the same. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"
#include "lab/methods/cluster.h"
#include "tensor/half.h"

enum { ROUNDS = 10, DIMENSION_MAX = 1024 };

/* ---- build ---- */

/* keys: [KV_CHUNK_TOKENS][dimension], their mean taken off in place. */
static void take_off_mean(float *keys, size_t dimension) {
    for (size_t d = 0; d < dimension; d++) {
        float sum = 0;
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) sum += keys[t * dimension + d];
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) keys[t * dimension + d] -= sum / KV_CHUNK_TOKENS;
    }
}

static void add_rows(float *sums, size_t *sizes, const float *rows, size_t dimension, const uint8_t *of_tokens,
                     size_t cluster_count) {
    memset(sums, 0, cluster_count * dimension * sizeof *sums);
    memset(sizes, 0, cluster_count * sizeof *sizes);
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        float *sum = sums + of_tokens[t] * dimension;
        sizes[of_tokens[t]]++;
        for (size_t d = 0; d < dimension; d++) sum[d] += rows[t * dimension + d];
    }
}

/* Each token to the centroid of the largest product; a NaN never is one. */
static void assign(uint8_t *of_tokens, const float *keys, const float *centroids, size_t dimension,
                   size_t cluster_count) {
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        float best = -INFINITY;
        of_tokens[t] = 0;
        for (size_t i = 0; i < cluster_count; i++) {
            float product = 0;
            for (size_t d = 0; d < dimension; d++) product += keys[t * dimension + d] * centroids[i * dimension + d];
            if (product > best) {
                best = product;
                of_tokens[t] = (uint8_t)i;
            }
        }
    }
}

/* A cluster without tokens keeps its centroid. */
static void move_centroids(float *centroids, const float *sums, const size_t *sizes, size_t dimension,
                           size_t cluster_count) {
    for (size_t i = 0; i < cluster_count; i++) {
        float square = 0;
        for (size_t d = 0; d < dimension; d++) square += sums[i * dimension + d] * sums[i * dimension + d];
        for (size_t d = 0; d < dimension && sizes[i] > 0 && square > 0; d++)
            centroids[i * dimension + d] = sums[i * dimension + d] / sqrtf(square);
    }
}

/* Means of the rows of each cluster, as halves. */
static void store_means(uint16_t *means, const float *sums, const size_t *sizes, size_t dimension,
                        size_t cluster_count) {
    for (size_t i = 0; i < cluster_count; i++)
        for (size_t d = 0; d < dimension; d++)
            means[i * dimension + d] = sizes[i] > 0 ? float_to_half(sums[i * dimension + d] / (float)sizes[i]) : 0;
}

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const size_t dimension = unit->kv->k_dimension, v_dimension = unit->kv->v_dimension;
    const size_t count = operation->layout->cluster_count;
    const struct cluster_block block = cluster_block_of(unit->block, count, dimension, v_dimension);
    float centroids[CLUSTERS_MAX * DIMENSION_MAX], sums[CLUSTERS_MAX * DIMENSION_MAX];
    size_t sizes[CLUSTERS_MAX] = {0};
    struct build_unit whole = *unit;
    if (unit->token_end < KV_CHUNK_TOKENS) return;
    ASSERT(count <= CLUSTERS_MAX && dimension <= DIMENSION_MAX && v_dimension <= DIMENSION_MAX);
    whole.token_begin = 0;
    cpu_load_keys(device, &whole, scratch);
    take_off_mean(scratch->keys, dimension);
    for (size_t i = 0; i < count; i++)
        memcpy(centroids + i * dimension, scratch->keys + i * (KV_CHUNK_TOKENS / count) * dimension,
               dimension * sizeof *centroids);
    for (size_t round = 0; round < ROUNDS; round++) {
        assign(block.of_tokens, scratch->keys, centroids, dimension, count);
        add_rows(sums, sizes, scratch->keys, dimension, block.of_tokens, count);
        move_centroids(centroids, sums, sizes, dimension, count);
    }
    cpu_load_keys(device, &whole, scratch);
    add_rows(sums, sizes, scratch->keys, dimension, block.of_tokens, count);
    store_means(block.centroids, sums, sizes, dimension, count);
    memset(sums, 0, sizeof sums);
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        float *sum = sums + block.of_tokens[t] * v_dimension;
        device->kernels.attention.load(unit->kv, unit->chunk, t, scratch->keys, scratch->value);
        for (size_t d = 0; d < v_dimension; d++) sum[d] += scratch->value[d];
    }
    store_means(block.values, sums, sizes, v_dimension, count);
    for (size_t i = 0; i < count; i++) block.sizes[i] = (uint8_t)sizes[i];
}

/* ---- score ---- */

static size_t kernel_scratch(const struct select_run *run) {
    return align_up(run->device->kernels.score.scratch_bytes(run->kv->k_dimension), 64);
}

static size_t scratch_bytes(const struct select_run *run) {
    return kernel_scratch(run) +
           (SCORE_TOKENS / KV_CHUNK_TOKENS + 2) * run->operation->layout->cluster_count * sizeof(float);
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct key_index_layout *layout = run->operation->layout;
    const size_t count = layout->cluster_count;
    const uint64_t first = range->begin / KV_CHUNK_TOKENS, end = (range->end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    float *of_clusters = (float *)(void *)(scratch + kernel_scratch(run));
    run->device->kernels.score.rows(&(struct score_args){.blocks = range->blocks,
                                                         .block_rows = count,
                                                         .columns = run->kv->k_dimension,
                                                         .row_begin = first * count,
                                                         .row_end = end * count,
                                                         .q = range_query(range),
                                                         .q_stride = run->kv->k_dimension,
                                                         .heads = range->head_count,
                                                         .aggregate = layout->aggregate,
                                                         .then = range->then,
                                                         .scores = of_clusters,
                                                         .scratch = scratch});
    for (uint64_t chunk = first; chunk < end; chunk++) {
        const struct cluster_block block =
            cluster_block_of(range->blocks[chunk], count, run->kv->k_dimension, run->kv->v_dimension);
        const float *of_chunk = of_clusters + (chunk - first) * count;
        const uint64_t token_first = chunk * KV_CHUNK_TOKENS;
        const uint64_t begin = token_first > range->begin ? token_first : range->begin;
        const uint64_t until = token_first + KV_CHUNK_TOKENS < range->end ? token_first + KV_CHUNK_TOKENS : range->end;
        for (uint64_t token = begin; token < until; token++) { /* saved blocks may come from elsewhere */
            const size_t cluster = block.of_tokens[token - token_first];
            scores[token - range->begin] = of_chunk[cluster < count ? cluster : 0];
        }
    }
}

static const struct cpu_scorer scorer = {.build = build, .score = score, .scratch_bytes = scratch_bytes};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_CLUSTER, &scorer); }
