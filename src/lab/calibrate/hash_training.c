/* A step's work per pair is 2 products of dimension x bits: forward (codes of keys) and backward (gradient).  Both
 * run through the float kernels of kernels/matmul: forward as W^T [bits][dimension] against keys as rows, which
 * gives the codes transposed, [bits][pairs]; backward as the codes' gradients against the keys transposed.
 * The codes of all pairs are kept between the two, because the balance term needs their sum. */
#include "lab/calibrate/hash_training.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "tensor/half.h"

struct hash_training hash_training_published(size_t bits) {
    return (struct hash_training){.bits = bits,
                                  .slope = 0.1,
                                  .epsilon = 0.01,
                                  .lambda = 1,
                                  .eta = 2,
                                  .rate = 0.1,
                                  .momentum = 0.9,
                                  .decay = 1e-6,
                                  .init_deviation = 1,
                                  .epochs = 15,
                                  .steps = 20};
}

float hash_label(size_t rank, size_t count) {
    double top = (double)count / 10;
    if ((double)rank >= top) return -1;
    return (float)(20 - 19 * (double)rank / top);
}

/* What each slot of pairs adds up. */
struct slots {
    float *gradient; /* [SLOTS][bits][dimension] */
    double *sums;    /* [SLOTS][bits]: of codes; then the balance */
    double *loss;    /* [SLOTS] */
};

struct hash_trainer {
    struct pool *pool; /* borrowed */
    struct hash_training training;
    const struct matmul_method *product; /* borrowed: of F32 weights */
    size_t dimension, pair_max, thread_count;
    float *weights, *velocity, *gradient; /* [bits][dimension] */
    struct slots slots;
    double *balance;    /* [bits] */
    float *codes;       /* [SLOTS][bits][pairs of a slot]: of keys, then their gradients */
    float *query_codes; /* [queries][bits] */
    double *square;     /* [side][side]: D */
    uint8_t *prepared;  /* [thread_count][prepared_bytes] */
    uint8_t *scratch;   /* [thread_count][scratch_bytes] */
    size_t prepared_bytes, scratch_bytes;
    const struct hash_pairs *pairs; /* of the present run */
};

static size_t side_of(const struct hash_trainer *t) { return min_size(t->training.bits, t->dimension); }

static void *array(size_t count, size_t element_bytes) {
    uint64_t bytes;
    if (!checked_multiply(count, element_bytes, &bytes) || !checked_align(bytes, 64, &bytes)) return NULL;
    void *memory = aligned_alloc(64, max_size(bytes, 64));
    if (memory != NULL) memset(memory, 0, max_size(bytes, 64));
    return memory;
}

static bool allocate(struct hash_trainer *t) {
    size_t bits = t->training.bits, size = bits * t->dimension;
    size_t columns = max_size(t->dimension, t->pair_max / HASH_PAIR_SLOTS);
    t->prepared_bytes = align_up(t->product->prepared_bytes(bits, columns), 64);
    t->scratch_bytes = align_up(t->product->scratch_bytes(columns), 64);
    t->weights = array(size, sizeof(float));
    t->velocity = array(size, sizeof(float));
    t->gradient = array(size, sizeof(float));
    t->slots.gradient = array(HASH_PAIR_SLOTS * size, sizeof(float));
    t->slots.sums = array(HASH_PAIR_SLOTS * bits, sizeof(double));
    t->slots.loss = array(HASH_PAIR_SLOTS, sizeof(double));
    t->balance = array(bits, sizeof(double));
    t->codes = array(t->pair_max * bits, sizeof(float));
    t->query_codes = array(t->pair_max * bits, sizeof(float));
    t->square = array(side_of(t) * side_of(t), sizeof(double));
    t->prepared = array(t->thread_count, t->prepared_bytes);
    t->scratch = array(t->thread_count, t->scratch_bytes);
    return t->weights != NULL && t->velocity != NULL && t->gradient != NULL && t->slots.gradient != NULL &&
           t->slots.sums != NULL && t->slots.loss != NULL && t->balance != NULL && t->codes != NULL &&
           t->query_codes != NULL && t->square != NULL && t->prepared != NULL && t->scratch != NULL;
}

enum status hash_trainer_create(struct hash_trainer **trainer, struct pool *pool, const struct matmul_kernels *kernels,
                                const struct hash_training *training, struct error *error) {
    const size_t pair_max = training->pair_max;
    ASSERT(pair_max % HASH_PAIR_SLOTS == 0 && training->bits % 32 == 0 && training->bits > 0 &&
           training->dimension > 0);
    struct hash_trainer *t = calloc(1, sizeof *t);
    if (t != NULL) {
        *t = (struct hash_trainer){.pool = pool,
                                   .training = *training,
                                   .product = &kernels->method[TENSOR_F32],
                                   .dimension = training->dimension,
                                   .pair_max = pair_max,
                                   .thread_count = pool_thread_count(pool)};
        ASSERT(t->product->run != NULL);
    }
    if (t == NULL || !allocate(t)) {
        hash_trainer_destroy(t);
        return error_set(error, STATUS_MEMORY, "no memory to train hash weights on %zu pairs", pair_max);
    }
    *trainer = t;
    return STATUS_OK;
}

void hash_trainer_destroy(struct hash_trainer *trainer) {
    if (trainer == NULL) return;
    free(trainer->weights);
    free(trainer->velocity);
    free(trainer->gradient);
    free(trainer->slots.gradient);
    free(trainer->slots.sums);
    free(trainer->slots.loss);
    free(trainer->balance);
    free(trainer->codes);
    free(trainer->query_codes);
    free(trainer->square);
    free(trainer->prepared);
    free(trainer->scratch);
    free(trainer);
}

void hash_trainer_reset(struct hash_trainer *trainer, struct random *random) {
    size_t size = trainer->training.bits * trainer->dimension;
    for (size_t i = 0; i < size; i++)
        trainer->weights[i] = (float)(trainer->training.init_deviation * random_normal(random));
    memset(trainer->velocity, 0, size * sizeof *trainer->velocity);
}

float *hash_trainer_weights(struct hash_trainer *trainer) { return trainer->weights; }
const float *hash_trainer_gradient(const struct hash_trainer *trainer) { return trainer->gradient; }

/* 2 sigmoid(2 z) - 1 = tanh z, by its continued fraction: within 2e-6 for |z| < 3, 1e-4 where it is cut off. */
static inline float relaxed(float z) {
    float x = z < -4.97f ? -4.97f : z > 4.97f ? 4.97f : z, s = x * x;
    float value = x * (135135 + s * (17325 + s * (378 + s))) / (135135 + s * (62370 + s * (3150 + s * 28)));
    return value < -1 ? -1 : value > 1 ? 1 : value;
}

/* Rows of floats, stride apart, of which a product reads or writes the first columns. */
struct rows {
    const float *data;
    size_t count, stride;
};

/* y[row][out] = sum over c < columns of x[row][c] * w[out][c], by the calling thread. */
static void multiply(const struct hash_trainer *t, size_t thread, struct rows x, struct rows w, size_t columns,
                     float *y) {
    const struct matrix weight = {
        .type = TENSOR_F32, .data = w.data, .rows = w.count, .columns = columns, .row_bytes = w.stride * sizeof(float)};
    void *prepared = t->prepared + thread * t->prepared_bytes;
    t->product->prepare(x.data, x.stride, x.count, columns, 0, x.count, prepared);
    t->product->run(&(struct matmul_args){.weight = &weight,
                                          .input_count = x.count,
                                          .prepared = prepared,
                                          .outputs = y,
                                          .output_stride = w.count,
                                          .row_end = w.count,
                                          .scratch = t->scratch + thread * t->scratch_bytes});
}

static void encode_queries(const struct hash_trainer *t, size_t begin, size_t end) {
    const struct hash_pairs *pairs = t->pairs;
    size_t bits = t->training.bits;
    for (size_t i = begin; i < end; i++)
        for (size_t j = 0; j < bits; j++) {
            float sum = 0;
            for (size_t d = 0; d < t->dimension; d++)
                sum += pairs->queries[i * t->dimension + d] * t->weights[j * t->dimension + d];
            t->query_codes[i * bits + j] = relaxed((float)(t->training.slope / 2) * sum);
        }
}

/* Codes of a slot, and their sum. */
static void slot_forward(struct hash_trainer *t, size_t slot, size_t thread) {
    const struct hash_pairs *pairs = t->pairs;
    size_t bits = t->training.bits, per_query = pairs->keys_per_query;
    size_t queries = pairs->query_count / HASH_PAIR_SLOTS, count = queries * per_query;
    float *codes = t->codes + slot * bits * count, scale = (float)(t->training.slope / 2);
    encode_queries(t, slot * queries, (slot + 1) * queries);
    multiply(t, thread, (struct rows){t->weights, bits, t->dimension},
             (struct rows){pairs->keys + slot * count * t->dimension, count, t->dimension}, t->dimension, codes);
    for (size_t j = 0; j < bits; j++) {
        float *row = codes + j * count;
        double sum = 0;
        for (size_t i = 0; i < count; i++) row[i] = relaxed(scale * row[i]);
        for (size_t q = 0; q < queries; q++) {
            float part = 0;
            for (size_t i = 0; i < per_query; i++) part += row[q * per_query + i];
            sum += (double)part + (double)per_query * (double)t->query_codes[(slot * queries + q) * bits + j];
        }
        t->slots.sums[slot * bits + j] = sum;
    }
}

/* One bit of one query and its keys: the codes become dL/dz, the query's too; the loss. */
static double pair_backward(struct hash_trainer *t, size_t query_index, size_t bit, float *codes) {
    const size_t count = t->pairs->keys_per_query;
    const float *labels = t->pairs->labels + query_index * count;
    float *of_query = &t->query_codes[query_index * t->training.bits + bit];
    const float query_code = *of_query, balance = (float)t->balance[bit];
    float scale = (float)(2 * t->training.epsilon / (double)(t->pairs->query_count * t->pairs->keys_per_query));
    float half_slope = (float)(t->training.slope / 2), loss = 0, query = 0;
    for (size_t i = 0; i < count; i++) {
        float code = codes[i], difference = code - query_code, pull = labels[i] * difference;
        loss += pull * difference;
        query -= pull;
        codes[i] = (scale * pull + balance) * half_slope * (1 - code * code);
    }
    *of_query = (scale * query + (float)count * balance) * half_slope * (1 - query_code * query_code);
    return (double)loss;
}

static void slot_backward(struct hash_trainer *t, size_t slot, size_t thread) {
    const struct hash_pairs *pairs = t->pairs;
    size_t bits = t->training.bits, per_query = pairs->keys_per_query, dimension = t->dimension;
    size_t queries = pairs->query_count / HASH_PAIR_SLOTS, count = queries * per_query;
    float *codes = t->codes + slot * bits * count, *gradient = t->slots.gradient + slot * bits * dimension;
    double loss = 0;
    for (size_t j = 0; j < bits; j++)
        for (size_t q = 0; q < queries; q++)
            loss += pair_backward(t, slot * queries + q, j, codes + j * count + q * per_query);
    t->slots.loss[slot] = loss;
    multiply(t, thread, (struct rows){codes, bits, count},
             (struct rows){pairs->keys_across + slot * count, dimension, pairs->query_count * per_query}, count,
             gradient);
    for (size_t q = slot * queries; q < (slot + 1) * queries; q++)
        for (size_t j = 0; j < bits; j++)
            for (size_t d = 0; d < dimension; d++)
                gradient[j * dimension + d] += t->query_codes[q * bits + j] * pairs->queries[q * dimension + d];
}

/* The sums become dL/d(code) of the balance term: 2 lambda sum / (N bits)^2. */
static void balance_codes(struct hash_trainer *t) {
    double scale = 1 / (double)(t->pairs->query_count * t->pairs->keys_per_query * t->training.bits);
    for (size_t j = 0; j < t->training.bits; j++) {
        double sum = 0;
        for (size_t slot = 0; slot < HASH_PAIR_SLOTS; slot++) sum += t->slots.sums[slot * t->training.bits + j];
        t->balance[j] = 2 * t->training.lambda * sum * scale * scale;
    }
}

static void reduce(struct hash_trainer *t) {
    size_t size = t->training.bits * t->dimension;
    memcpy(t->gradient, t->slots.gradient, size * sizeof *t->gradient);
    for (size_t slot = 1; slot < HASH_PAIR_SLOTS; slot++)
        for (size_t i = 0; i < size; i++) t->gradient[i] += t->slots.gradient[slot * size + i];
}

static void pairs_task(void *context, const struct pool_worker *worker) {
    struct hash_trainer *t = context;
    struct range slots = pool_range(worker, HASH_PAIR_SLOTS, 1);
    for (size_t slot = slots.begin; slot < slots.end; slot++) slot_forward(t, slot, worker->index);
    pool_barrier(worker);
    if (worker->index == 0) balance_codes(t);
    pool_barrier(worker);
    for (size_t slot = slots.begin; slot < slots.end; slot++) slot_backward(t, slot, worker->index);
}

/* square = D; its Frobenius norm. */
static double decorrelation(struct hash_trainer *t) {
    size_t bits = t->training.bits, dimension = t->dimension, side = side_of(t);
    bool across = bits > dimension; /* W W^T, [dimension][dimension] */
    double target = across ? (double)bits / (double)dimension : 1, norm = 0;
    memset(t->square, 0, side * side * sizeof *t->square);
    if (across)
        for (size_t j = 0; j < bits; j++) {
            const float *row = t->weights + j * dimension;
            for (size_t a = 0; a < side; a++)
                for (size_t b = 0; b < side; b++) t->square[a * side + b] += (double)(row[a] * row[b]);
        }
    else
        for (size_t a = 0; a < side; a++)
            for (size_t b = 0; b < side; b++)
                for (size_t d = 0; d < dimension; d++)
                    t->square[a * side + b] += (double)(t->weights[a * dimension + d] * t->weights[b * dimension + d]);
    for (size_t a = 0; a < side; a++) t->square[a * side + a] -= target;
    for (size_t i = 0; i < side * side; i++) norm += t->square[i] * t->square[i];
    return sqrt(norm);
}

/* d|D|_F / dW = 2 D W / |D|_F, on whichever side D is. */
static void decorrelation_gradient(struct hash_trainer *t, double norm) {
    size_t bits = t->training.bits, dimension = t->dimension, side = side_of(t);
    if (norm == 0) return;
    float scale = (float)(2 * t->training.eta / norm);
    bool across = bits > dimension;
    for (size_t j = 0; j < bits; j++) {
        float *gradient = t->gradient + j * dimension;
        for (size_t a = 0; a < side; a++) {
            const double *row = t->square + a * side;
            if (across) {
                float weight = scale * t->weights[j * dimension + a];
                for (size_t d = 0; d < dimension; d++) gradient[d] += weight * (float)row[d];
            } else {
                float weight = scale * (float)row[j];
                for (size_t d = 0; d < dimension; d++) gradient[d] += weight * t->weights[a * dimension + d];
            }
        }
    }
}

double hash_trainer_loss(struct hash_trainer *trainer, const struct hash_pairs *pairs) {
    struct hash_trainer *t = trainer;
    size_t count = pairs->query_count * pairs->keys_per_query;
    ASSERT(pairs->dimension == t->dimension && count <= t->pair_max && count > 0);
    ASSERT(pairs->query_count % HASH_PAIR_SLOTS == 0);
    t->pairs = pairs;
    pool_run(t->pool, pairs_task, t);
    reduce(t);
    double loss = 0;
    for (size_t slot = 0; slot < HASH_PAIR_SLOTS; slot++) loss += t->slots.loss[slot];
    loss *= t->training.epsilon / (double)count;
    if (t->training.lambda > 0)
        for (size_t j = 0; j < t->training.bits; j++) {
            double sum = t->balance[j] * (double)count * (double)t->training.bits / (2 * t->training.lambda);
            loss += t->training.lambda * sum * sum;
        }
    double norm = decorrelation(t);
    decorrelation_gradient(t, norm);
    t->pairs = NULL;
    return loss + t->training.eta * norm;
}

double hash_trainer_step(struct hash_trainer *trainer, const struct hash_pairs *pairs) {
    const struct hash_training *how = &trainer->training;
    double loss = hash_trainer_loss(trainer, pairs);
    size_t size = how->bits * trainer->dimension;
    float rate = (float)how->rate, momentum = (float)how->momentum, decay = (float)how->decay;
    for (size_t i = 0; i < size; i++) {
        trainer->velocity[i] = momentum * trainer->velocity[i] + trainer->gradient[i] + decay * trainer->weights[i];
        trainer->weights[i] -= rate * trainer->velocity[i];
    }
    return loss;
}

void hash_weights_store(const float *weights_across, size_t bits, size_t dimension, uint16_t *weights) {
    for (size_t j = 0; j < bits; j++) {
        const float *row = weights_across + j * dimension;
        float largest = 0;
        for (size_t d = 0; d < dimension; d++) largest = fmaxf(largest, fabsf(row[d]));
        for (size_t d = 0; d < dimension; d++)
            weights[d * bits + j] = float_to_half(largest > 0 ? row[d] / largest : 0);
    }
}
