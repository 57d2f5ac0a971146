#include "lab/calibrate/hash_head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "lab/calibrate/dot.h"
#include "lab/calibrate/eigen.h"
#include "lab/calibrate/gram.h"
#include "tensor/half.h"

enum { DIMENSION_MAX = 1024 }; /* of a head, as models have them (model_internal.h) */

enum status hash_head_create(struct hash_head **head, const struct samples *samples, const struct kernels *kernels,
                             struct pool *pool, const struct hash_head_options *options, struct error *error) {
    const struct model_config *config = &samples->model->config;
    size_t dimension = config->k_dimension, pairs = options->query_count * options->keys_per_query;
    struct hash_head *h = calloc(1, sizeof *h);
    if (h == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    *h = (struct hash_head){.samples = samples,
                            .kernels = kernels,
                            .pool = pool,
                            .group = config->head_count / config->kv_head_count,
                            .dimension = dimension,
                            .window_size = samples->options.window_size,
                            .query_count = options->query_count,
                            .keys_per_query = options->keys_per_query};
    h->keys = calloc(samples->options.window_count * h->window_size, dimension * sizeof(float));
    h->drawn.queries = calloc(h->query_count, dimension * sizeof(float));
    h->drawn.keys = calloc(pairs, dimension * sizeof(float));
    h->drawn.keys_across = calloc(pairs, dimension * sizeof(float));
    h->drawn.labels = calloc(pairs, sizeof(float));
    h->shape = calloc(dimension * dimension, sizeof(float));
    h->drawn.seeds = calloc(h->query_count, sizeof *h->drawn.seeds);
    h->scores = calloc(pool_thread_count(pool) * h->window_size, sizeof(float));
    if (h->keys == NULL || h->drawn.queries == NULL || h->drawn.keys == NULL || h->drawn.keys_across == NULL ||
        h->drawn.labels == NULL || h->shape == NULL || h->drawn.seeds == NULL || h->scores == NULL) {
        hash_head_destroy(h);
        return error_set(error, STATUS_MEMORY, "no memory for %zu pairs of queries and keys", pairs);
    }
    *head = h;
    return STATUS_OK;
}

void hash_head_destroy(struct hash_head *head) {
    if (head == NULL) return;
    free(head->keys);
    free(head->drawn.queries);
    free(head->drawn.keys);
    free(head->drawn.keys_across);
    free(head->drawn.labels);
    free(head->shape);
    free(head->drawn.seeds);
    free(head->scores);
    free(head);
}

enum status hash_head_load(struct hash_head *head, size_t layer, size_t kv_head, size_t window_first,
                           size_t window_count, struct error *error) {
    ASSERT(window_first + window_count <= head->samples->options.window_count);
    head->layer = layer, head->kv_head = kv_head;
    head->window_first = window_first, head->window_count = window_count;
    for (size_t i = 0; i < window_count; i++)
        TRY(samples_keys(head->samples, layer, window_first + i, kv_head,
                         head->keys + i * head->window_size * head->dimension, error));
    return STATUS_OK;
}

/* ---- shape ---- */

static void add_normalised(double *sum, const double *moment, size_t dimension) {
    double trace = 0;
    for (size_t i = 0; i < dimension; i++) trace += moment[i * dimension + i];
    if (trace <= 0) return;
    double scale = (double)dimension / (2 * trace);
    for (size_t i = 0; i < dimension; i++)
        for (size_t j = 0; j <= i; j++) {
            sum[i * dimension + j] += scale * moment[i * dimension + j];
            sum[j * dimension + i] = sum[i * dimension + j];
        }
}

static void add_keys(const struct hash_head *h, double *moment, float *row) {
    size_t dimension = h->dimension, count = h->window_count * h->window_size;
    double mean[DIMENSION_MAX] = {0};
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < dimension; d++) mean[d] += (double)h->keys[i * dimension + d] / (double)count;
    for (size_t i = 0; i < count; i++) {
        for (size_t d = 0; d < dimension; d++) row[d] = h->keys[i * dimension + d] - (float)mean[d];
        gram_add(moment, row, dimension);
    }
}

static void add_queries(const struct hash_head *h, double *moment) {
    for (size_t window = 0; window < h->window_count; window++)
        for (size_t i = 0; i < h->samples->query_count; i++)
            for (size_t g = 0; g < h->group; g++)
                gram_add(moment,
                         samples_query(h->samples, h->layer, h->window_first + window, i, h->kv_head * h->group + g),
                         h->dimension);
}

enum status hash_head_shape(struct hash_head *head, double power, struct error *error) {
    size_t n = head->dimension;
    double *memory = calloc(4 * n * n + n, sizeof *memory);
    float row[DIMENSION_MAX];
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    double *keys = memory, *queries = keys + n * n, *sum = queries + n * n, *vectors = sum + n * n;
    double *values = vectors + n * n;
    add_keys(head, keys, row);
    add_queries(head, queries);
    add_normalised(sum, keys, n);
    add_normalised(sum, queries, n);
    eigen_symmetric(sum, n, values, vectors);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double element = 0;
            for (size_t k = 0; k < n; k++)
                element += vectors[i * n + k] * pow(fmax(values[k], 1e-4), power) * vectors[j * n + k];
            head->shape[i * n + j] = (float)element;
        }
    free(memory);
    return STATUS_OK;
}

void hash_head_unshape(const struct hash_head *head, float *weights_across, size_t bits) {
    float row[DIMENSION_MAX];
    for (size_t j = 0; j < bits; j++) {
        float *weights = weights_across + j * head->dimension;
        for (size_t d = 0; d < head->dimension; d++)
            row[d] = dot(head->shape + d * head->dimension, weights, head->dimension);
        memcpy(weights, row, head->dimension * sizeof *row);
    }
}

/* ---- pairs ---- */

static void copy_shaped(const struct hash_head *h, const float *x, float *out) {
    size_t dimension = h->dimension;
    for (size_t d = 0; d < dimension; d++) out[d] = dot(h->shape + d * dimension, x, dimension);
    if (h->keeps_length) return;
    float square = dot(out, out, dimension), scale = square > 0 ? sqrtf((float)dimension / square) : 1;
    for (size_t d = 0; d < dimension; d++) out[d] *= scale;
}

/* A random query and some of its keys at random.  A key's label follows from the number of keys that score higher. */
static void draw_query(struct hash_head *h, size_t index, float *scores) {
    struct random random;
    random_init(&random, h->drawn.seeds[index]);
    size_t window = (size_t)random_below(&random, h->window_count), dimension = h->dimension;
    size_t query = (size_t)random_below(&random, h->samples->query_count);
    size_t head = h->kv_head * h->group + (size_t)random_below(&random, h->group);
    size_t count = samples_position(h->samples, h->window_first + window, query) + 1;
    const float *q = samples_query(h->samples, h->layer, h->window_first + window, query, head);
    const float *keys = h->keys + window * h->window_size * dimension;
    for (size_t i = 0; i < count; i++) scores[i] = dot(q, keys + i * dimension, dimension);
    copy_shaped(h, q, h->drawn.queries + index * dimension);
    for (size_t i = 0; i < h->keys_per_query; i++) {
        size_t token = (size_t)random_below(&random, count), pair = index * h->keys_per_query + i, rank = 0;
        for (size_t j = 0; j < count; j++) rank += scores[j] > scores[token];
        h->drawn.labels[pair] = hash_label(rank, count);
        copy_shaped(h, keys + token * dimension, h->drawn.keys + pair * dimension);
        for (size_t d = 0; d < dimension; d++)
            h->drawn.keys_across[d * h->query_count * h->keys_per_query + pair] = h->drawn.keys[pair * dimension + d];
    }
}

static void draw_task(void *context, const struct pool_worker *worker) {
    struct hash_head *h = context;
    struct range queries = pool_range(worker, h->query_count, 1);
    for (size_t i = queries.begin; i < queries.end; i++) draw_query(h, i, h->scores + worker->index * h->window_size);
}

void hash_head_draw(struct hash_head *head, struct random *random, struct hash_pairs *pairs) {
    for (size_t i = 0; i < head->query_count; i++) head->drawn.seeds[i] = random_next(random);
    pool_run(head->pool, draw_task, head);
    *pairs = (struct hash_pairs){.dimension = head->dimension,
                                 .query_count = head->query_count,
                                 .keys_per_query = head->keys_per_query,
                                 .queries = head->drawn.queries,
                                 .keys = head->drawn.keys,
                                 .keys_across = head->drawn.keys_across,
                                 .labels = head->drawn.labels};
}

/* ---- what codes find ---- */

struct caught_run {
    struct hash_head *head;
    const uint16_t *weights;
    struct hash_layout layout;
    struct hash_keep keep;
    size_t chunk_count;
    uint8_t *blocks;     /* [window_count][chunk_count][layout.bytes] */
    const void **chunks; /* [window_count][chunk_count] */
    uint8_t *scratch;    /* [threads][scratch_bytes] */
    size_t score_bytes, top_bytes, scratch_bytes;
    struct hash_caught *caught;       /* [window_count][queries] */
    float *scores, *found, *weighed;  /* [threads][window_size] */
    uint32_t *true_indices, *indices; /* [threads][window_size] */
};

static void encode_window(struct caught_run *run, size_t window) {
    const struct hash_head *h = run->head;
    for (size_t token = 0; token < h->window_size; token++) {
        uint8_t code[HASH_CODE_BYTES_MAX];
        float norm;
        h->kernels->hash.encode(
            &(struct hash_encode_args){.weights = run->weights,
                                       .dimension = h->dimension,
                                       .bits = run->layout.bits,
                                       .x = h->keys + (window * h->window_size + token) * h->dimension,
                                       .x_stride = h->dimension,
                                       .count = 1,
                                       .codes = code,
                                       .norms = &norm});
        uint8_t *block = run->blocks + (window * run->chunk_count + token / KV_CHUNK_TOKENS) * run->layout.bytes;
        hash_store(&run->layout, block, token % KV_CHUNK_TOKENS, code, norm);
    }
}

static size_t overlap(const uint32_t *a, const uint32_t *b, size_t count) {
    size_t same = 0;
    for (size_t i = 0, j = 0; i < count && j < count;)
        if (a[i] == b[j])
            same++, i++, j++;
        else if (a[i] < b[j])
            i++;
        else
            j++;
    return same;
}

static void top(const struct caught_run *run, const float *scores, size_t count, size_t k, uint32_t *indices,
                void *scratch) {
    run->head->kernels->top_k.select(
        &(struct top_k_args){.scores = scores, .count = count, .k = k, .indices = indices, .scratch = scratch});
}

/* Softmax weights of tokens [0, position] for a query, not yet divided by their sum, which it returns. */
static double weigh(const struct hash_head *h, const float *q, const float *keys, size_t position, float *weights) {
    float largest = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i <= position; i++) {
        weights[i] = samples_score(h->samples, q, keys + i * h->dimension);
        largest = weights[i] > largest ? weights[i] : largest;
    }
    for (size_t i = 0; i <= position; i++) {
        weights[i] = expf(weights[i] - largest);
        sum += (double)weights[i];
    }
    return sum;
}

/* The thread's indices are those of k tokens behind the sinks. */
static double mass_of(const struct caught_run *run, size_t thread, const float *q, const float *keys, size_t position,
                      size_t k) {
    const struct hash_head *h = run->head;
    const uint32_t *found = run->indices + thread * h->window_size;
    float *weights = run->weighed + thread * h->window_size;
    double mass = 0;
    for (size_t head = 0; head < h->group; head++) {
        double all = weigh(h, q + head * h->dimension, keys, position, weights), held = 0;
        for (size_t i = 0; i < run->keep.sinks; i++) held += (double)weights[i];
        for (size_t i = position + 1 - run->keep.recent; i <= position; i++) held += (double)weights[i];
        for (size_t i = 0; i < k; i++) held += (double)weights[run->keep.sinks + found[i]];
        mass += held / all;
    }
    return mass / (double)h->group;
}

static struct hash_caught query_caught(struct caught_run *run, size_t window, size_t query, size_t thread) {
    const struct hash_head *h = run->head;
    size_t position = samples_position(h->samples, h->window_first + window, query), size = h->window_size;
    if (position < run->keep.sinks + run->keep.recent + 1) return (struct hash_caught){1, 1};
    size_t end = position + 1 - run->keep.recent, count = end - run->keep.sinks;
    size_t k = max_size((size_t)ceil(run->keep.fraction * (double)count), 1);
    uint8_t codes[64 * HASH_CODE_BYTES_MAX], *scratch = run->scratch + thread * run->scratch_bytes;
    float *true_scores = run->scores + thread * size, *found = run->found + thread * size;
    uint32_t *true_indices = run->true_indices + thread * size, *indices = run->indices + thread * size;
    const float *keys = h->keys + window * size * h->dimension;
    const float *q = samples_query(h->samples, h->layer, h->window_first + window, query, h->kv_head * h->group);
    float *sum = found; /* sum of the group's queries: q.k is linear in q */
    for (size_t d = 0; d < h->dimension; d++) sum[d] = 0;
    for (size_t i = 0; i < h->group * h->dimension; i++) sum[i % h->dimension] += q[i];
    for (size_t i = 0; i < count; i++)
        true_scores[i] = dot(sum, keys + (run->keep.sinks + i) * h->dimension, h->dimension);
    h->kernels->hash.encode(&(struct hash_encode_args){.weights = run->weights,
                                                       .dimension = h->dimension,
                                                       .bits = run->layout.bits,
                                                       .x = q,
                                                       .x_stride = h->dimension,
                                                       .count = h->group,
                                                       .codes = codes});
    h->kernels->hash.score(&(struct hash_score_args){.layout = &run->layout,
                                                     .blocks = run->chunks + window * run->chunk_count,
                                                     .token_begin = run->keep.sinks,
                                                     .token_end = end,
                                                     .codes = codes,
                                                     .group = h->group,
                                                     .use_norms = true,
                                                     .scores = found,
                                                     .scratch = scratch});
    top(run, true_scores, count, k, true_indices, scratch + run->score_bytes);
    top(run, found, count, k, indices, scratch + run->score_bytes);
    struct hash_caught caught = {.recall = (double)overlap(true_indices, indices, k) / (double)k};
    size_t few = max_size(k / HASH_MASS_DIVISOR, 1);
    top(run, found, count, few, indices, scratch + run->score_bytes);
    caught.mass = mass_of(run, thread, q, keys, position, few);
    return caught;
}

static void caught_task(void *context, const struct pool_worker *worker) {
    struct caught_run *run = context;
    const struct hash_head *h = run->head;
    struct range windows = pool_range(worker, h->window_count, 1);
    for (size_t i = windows.begin; i < windows.end; i++) encode_window(run, i);
    pool_barrier(worker);
    size_t queries = h->samples->query_count;
    struct range share = pool_range(worker, h->window_count * queries, 1);
    for (size_t i = share.begin; i < share.end; i++)
        run->caught[i] = query_caught(run, i / queries, i % queries, worker->index);
}

static void caught_free(struct caught_run *run) {
    free(run->blocks);
    free(run->chunks);
    free(run->scratch);
    free(run->caught);
    free(run->scores);
    free(run->found);
    free(run->weighed);
    free(run->true_indices);
    free(run->indices);
}

static bool caught_allocate(struct caught_run *run) {
    const struct hash_head *h = run->head;
    size_t threads = pool_thread_count(h->pool), chunks = h->window_count * run->chunk_count;
    size_t floats = max_size(h->window_size, h->dimension);
    run->score_bytes = align_up(h->kernels->hash.score_scratch_bytes(&run->layout, h->group), 64);
    run->scratch_bytes = run->score_bytes;
    for (size_t k = 1; k <= h->window_size; k *= 2)
        run->top_bytes = max_size(run->top_bytes, h->kernels->top_k.scratch_bytes(h->window_size, k));
    run->top_bytes = max_size(run->top_bytes, h->kernels->top_k.scratch_bytes(h->window_size, h->window_size));
    run->scratch_bytes += align_up(run->top_bytes, 64);
    run->blocks = aligned_alloc(64, align_up(max_size(chunks * run->layout.bytes, 64), 64));
    run->chunks = calloc(chunks, sizeof *run->chunks);
    run->scratch = aligned_alloc(64, align_up(max_size(threads * run->scratch_bytes, 64), 64));
    run->caught = calloc(h->window_count * h->samples->query_count, sizeof *run->caught);
    run->scores = calloc(threads * floats, sizeof(float));
    run->found = calloc(threads * floats, sizeof(float));
    run->weighed = calloc(threads * floats, sizeof(float));
    run->true_indices = calloc(threads * h->window_size, sizeof(uint32_t));
    run->indices = calloc(threads * h->window_size, sizeof(uint32_t));
    if (run->blocks == NULL || run->chunks == NULL || run->scratch == NULL || run->caught == NULL ||
        run->scores == NULL || run->found == NULL || run->weighed == NULL || run->true_indices == NULL ||
        run->indices == NULL)
        return false;
    for (size_t i = 0; i < chunks; i++) run->chunks[i] = run->blocks + i * run->layout.bytes;
    return true;
}

enum status hash_head_caught(struct hash_head *head, const uint16_t *weights, size_t bits, struct hash_keep keep,
                             struct hash_caught *caught, struct error *error) {
    struct caught_run run = {.head = head,
                             .weights = weights,
                             .keep = keep,
                             .chunk_count = (head->window_size + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS};
    hash_layout_init(&run.layout, bits);
    ASSERT(head->group <= 64 && head->dimension <= head->window_size);
    if (!caught_allocate(&run)) {
        caught_free(&run);
        return error_set(error, STATUS_MEMORY, "no memory for hash codes of %zu windows", head->window_count);
    }
    pool_run(head->pool, caught_task, &run);
    size_t count = head->window_count * head->samples->query_count;
    *caught = (struct hash_caught){0};
    for (size_t i = 0; i < count; i++) {
        caught->recall += run.caught[i].recall / (double)count;
        caught->mass += run.caught[i].mass / (double)count;
    }
    caught_free(&run);
    return STATUS_OK;
}

/* ---- what learning must beat ---- */

enum status hash_random_weights(struct random *random, size_t dimension, size_t bits, uint16_t *weights,
                                struct error *error) {
    double *basis = calloc(dimension * dimension, sizeof *basis);
    if (basis == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    for (size_t bit = 0; bit < bits; bit++) {
        double *row = basis + bit % dimension * dimension, square = 0;
        for (size_t d = 0; d < dimension; d++) row[d] = random_normal(random);
        for (size_t i = 0; i < 2 * (bit % dimension); i++) { /* Gram-Schmidt, twice */
            const double *other = basis + i % (bit % dimension) * dimension;
            double product = 0;
            for (size_t d = 0; d < dimension; d++) product += row[d] * other[d];
            for (size_t d = 0; d < dimension; d++) row[d] -= product * other[d];
        }
        for (size_t d = 0; d < dimension; d++) square += row[d] * row[d];
        for (size_t d = 0; d < dimension; d++) row[d] /= sqrt(square);
        for (size_t d = 0; d < dimension; d++) weights[d * bits + bit] = float_to_half((float)row[d]);
    }
    free(basis);
    return STATUS_OK;
}
