/* Scores of tokens by product codes of their keys (lab/methods/product_codes.h).
 *
 * A chunk's centroids come from k-means by Euclidean distance, as PQCache has it: from tokens at even distances on,
 * ROUNDS times.  The centroids that are there already keep the tokens that are nearer to them, and stay where they
 * are.  Building again gives the same, on any kernels: distances are sums in one order. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"
#include "lab/methods/product_codes.h"
#include "tensor/half.h"

enum { ROUNDS = 10, DIMENSION_MAX = 1024, CENTROIDS_MAX = 1 << PRODUCT_BITS_MAX };

/* ---- build ---- */

enum { LANES = 8 }; /* centroids at a time */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

/* A partition of a chunk that is being built. */
struct fitting {
    const struct cpu_device *device;
    const struct product_layout *layout;
    const struct build_unit *unit;
    size_t partition, columns;
    const float *keys; /* of the partition: [KV_CHUNK_TOKENS][k_dimension] */
    size_t count_old;  /* centroids of the codebook that are of chunks before */
};

struct nearest {
    float distances[KV_CHUNK_TOKENS];
    size_t indices[KV_CHUNK_TOKENS]; /* of the codebook; behind it: none is nearer than infinity */
};

static const uint16_t *centroid_of(const struct fitting *f, size_t index) {
    const uint64_t first = product_codebook_first(f->layout, f->unit->chunk_index);
    const void *block = f->unit->blocks[first - f->unit->block_first + index / f->layout->centroids];
    return product_centroids(f->layout, block, f->unit->kv->k_dimension, f->partition) +
           index % f->layout->centroids * f->columns;
}

/* Tokens that are nearer to one of `count` centroids, [count][columns] from index `first` on, take it. */
static void take_nearer(const struct fitting *f, const float *centroids, size_t first, size_t count,
                        struct nearest *nearest) {
    lanes tile[DIMENSION_MAX];
    for (size_t d = 0; d < f->columns; d++)
        for (size_t i = 0; i < LANES; i++) tile[d][i] = i < count ? centroids[i * f->columns + d] : 0;
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        const float *key = f->keys + t * f->unit->kv->k_dimension;
        lanes sums = {0};
        for (size_t d = 0; d < f->columns; d++) {
            const lanes apart = tile[d] - key[d];
            sums += apart * apart;
        }
        for (size_t i = 0; i < count; i++)
            if (sums[i] < nearest->distances[t]) {
                nearest->distances[t] = sums[i];
                nearest->indices[t] = first + i;
            }
    }
}

/* The same of the codebook's centroids [first, end) as they are stored. */
static void take_stored(const struct fitting *f, size_t first, size_t end, struct nearest *nearest) {
    float centroids[LANES * DIMENSION_MAX];
    for (; first < end; first += LANES) {
        const size_t count = min_size(LANES, end - first);
        for (size_t i = 0; i < count; i++)
            f->device->kernels.convert.dequantize[TENSOR_F16](centroid_of(f, first + i), centroids + i * f->columns,
                                                              f->columns);
        take_nearer(f, centroids, first, count, nearest);
    }
}

/* The means of the tokens of each new centroid; one without tokens stays. */
static void move_centroids(const struct fitting *f, const struct nearest *nearest, float *centroids) {
    float sums[DIMENSION_MAX];
    for (size_t i = 0; i < f->layout->centroids; i++) {
        size_t size = 0;
        memset(sums, 0, f->columns * sizeof *sums);
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
            if (nearest->indices[t] != f->count_old + i) continue;
            size++;
            for (size_t d = 0; d < f->columns; d++) sums[d] += f->keys[t * f->unit->kv->k_dimension + d];
        }
        for (size_t d = 0; size > 0 && d < f->columns; d++) centroids[i * f->columns + d] = sums[d] / (float)size;
    }
}

static void fit(const struct fitting *f, float *centroids) {
    const size_t count = f->layout->centroids;
    struct nearest old, nearest;
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        old.distances[t] = INFINITY;
        old.indices[t] = f->count_old + count - 1; /* what is not a number is the last one's */
    }
    take_stored(f, 0, f->count_old, &old);
    for (size_t i = 0; i < count; i++)
        memcpy(centroids + i * f->columns, f->keys + i * (KV_CHUNK_TOKENS / count) * f->unit->kv->k_dimension,
               f->columns * sizeof *centroids);
    for (size_t round = 0; round < ROUNDS; round++) {
        nearest = old;
        for (size_t i = 0; i < count; i += LANES)
            take_nearer(f, centroids + i * f->columns, f->count_old + i, min_size(LANES, count - i), &nearest);
        move_centroids(f, &nearest, centroids);
    }
    uint16_t *stored = product_centroids(f->layout, f->unit->block, f->unit->kv->k_dimension, f->partition);
    uint8_t *codes = product_codes(f->layout, f->unit->block, f->unit->kv->k_dimension, f->partition);
    for (size_t i = 0; i < count * f->columns; i++) stored[i] = float_to_half(centroids[i]);
    take_stored(f, f->count_old, f->count_old + count, &old);
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) codes[t] = (uint8_t)(f->count_old + count - 1 - old.indices[t]);
}

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct product_layout *layout = &operation->layout->product;
    struct build_unit whole = *unit;
    if (unit->token_end < KV_CHUNK_TOKENS) return;
    whole.token_begin = 0;
    cpu_load_keys(device, &whole, scratch);
    struct fitting f = {
        .device = device, .layout = layout, .unit = unit, .columns = unit->kv->k_dimension / layout->partitions};
    ASSERT(unit->kv->k_dimension <= DIMENSION_MAX && layout->centroids <= KV_CHUNK_TOKENS);
    ASSERT(layout->centroids * layout->codebook_chunks <= CENTROIDS_MAX);
    f.count_old = (size_t)(unit->chunk_index - product_codebook_first(layout, unit->chunk_index)) * layout->centroids;
    for (; f.partition < layout->partitions; f.partition++) {
        f.keys = scratch->keys + f.partition * f.columns;
        fit(&f, scratch->centroids);
    }
}

/* ---- score ---- */

static size_t kernel_scratch(const struct select_run *run) {
    return align_up(run->device->kernels.score.scratch_bytes(run->kv->k_dimension), 64);
}

/* Products of a query with the centroids of a partition that a range of tokens may name, in the order of the codebook.
 * Codes of a block that names what is before the first chunk find zeros in front. */
static size_t table_size(const struct product_layout *layout) {
    return (2 * layout->codebook_chunks + SCORE_TOKENS / KV_CHUNK_TOKENS + 2) * layout->centroids;
}

static size_t scratch_bytes(const struct select_run *run) {
    return kernel_scratch(run) + table_size(&run->operation->layout->product) * sizeof(float);
}

/* Sets, or adds to, the scores of a chunk's tokens [begin, end). */
static void add_products(const uint8_t *codes, size_t code_mask, const float *last, size_t begin, size_t end, bool adds,
                         float *scores) {
    for (size_t t = begin; t < end; t++) {
        const float product = *(last - (codes[t] & code_mask));
        scores[t - begin] = adds ? scores[t - begin] + product : product;
    }
}

static void score_partition(const struct score_range *range, size_t partition, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct product_layout *layout = &run->operation->layout->product;
    const size_t dimension = run->kv->k_dimension, columns = dimension / layout->partitions;
    const size_t codebook = layout->codebook_chunks * layout->centroids;
    const uint64_t first = range->begin / KV_CHUNK_TOKENS, end = (range->end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS,
                   base = product_codebook_first(layout, first);
    float *zeros = (float *)(void *)(scratch + kernel_scratch(run)), *products = zeros + codebook;
    memset(zeros, 0, codebook * sizeof *zeros);
    run->device->kernels.score.rows(
        &(struct score_args){.blocks = range->blocks,
                             .block_offset = partition * layout->centroids * columns * sizeof(uint16_t),
                             .block_rows = layout->centroids,
                             .columns = columns,
                             .row_begin = base * layout->centroids,
                             .row_end = end * layout->centroids,
                             .q = range_query(range) + partition * columns,
                             .q_stride = dimension,
                             .heads = range->head_count,
                             .aggregate = run->operation->layout->aggregate,
                             .then = partition == 0 ? range->then : NULL,
                             .scores = products,
                             .scratch = scratch});
    for (uint64_t chunk = first; chunk < end; chunk++) {
        const uint64_t token_first = chunk * KV_CHUNK_TOKENS;
        const size_t begin = range->begin > token_first ? (size_t)(range->begin - token_first) : 0;
        const size_t until =
            (size_t)(range->end - token_first < KV_CHUNK_TOKENS ? range->end - token_first : KV_CHUNK_TOKENS);
        add_products(product_codes(layout, range->blocks[chunk], dimension, partition), codebook - 1,
                     products + (chunk - base + 1) * layout->centroids - 1, begin, until, partition > 0,
                     scores + (token_first + begin - range->begin));
    }
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    for (size_t partition = 0; partition < range->run->operation->layout->product.partitions; partition++)
        score_partition(range, partition, scores, scratch);
}

static size_t chunks_before(const struct key_index_layout *layout) { return layout->product.codebook_chunks - 1; }

static const struct cpu_scorer scorer = {.build = build,
                                         .builds_in_order = true,
                                         .chunks_before = chunks_before,
                                         .score = score,
                                         .scratch_bytes = scratch_bytes};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_PRODUCT, &scorer); }
