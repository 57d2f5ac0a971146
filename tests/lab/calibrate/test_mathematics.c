/* The mathematics of calibration on arrays: the gradient of the hash loss against finite differences, its parts
 * against plain sums, the box-constrained quadratic, and eigenvectors. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "lab/calibrate/eigen.h"
#include "lab/calibrate/hash_training.h"
#include "lab/calibrate/quadratic.h"
#include "seed.h"
#include "tensor/half.h"

/* ---- hash training ---- */

enum { QUERIES = 16, KEYS = 6, DIMENSION = 24 };

struct fixture {
    float queries[QUERIES * DIMENSION], keys[QUERIES * KEYS * DIMENSION], across[QUERIES * KEYS * DIMENSION];
    float labels[QUERIES * KEYS];
    struct hash_pairs pairs;
    struct pool *pool;
    struct matmul_kernels kernels;
};

static struct fixture *fixture_create(size_t threads) {
    struct fixture *f = calloc(1, sizeof *f);
    struct random random;
    struct error error;
    assert_non_null(f);
    random_init(&random, test_seed(5));
    for (size_t i = 0; i < QUERIES * DIMENSION; i++) f->queries[i] = (float)random_normal(&random) * 2;
    for (size_t i = 0; i < QUERIES * KEYS; i++) {
        f->labels[i] = hash_label((size_t)random_below(&random, 20), 100);
        for (size_t d = 0; d < DIMENSION; d++) {
            float value = (float)random_normal(&random) * 2 + 0.5f;
            f->keys[i * DIMENSION + d] = f->across[d * QUERIES * KEYS + i] = value;
        }
    }
    f->pairs = (struct hash_pairs){.dimension = DIMENSION,
                                   .query_count = QUERIES,
                                   .keys_per_query = KEYS,
                                   .queries = f->queries,
                                   .keys = f->keys,
                                   .keys_across = f->across,
                                   .labels = f->labels};
    assert_ok(pool_create(&f->pool, threads, &error), error);
    matmul_kernels_init(&f->kernels, cpu_features());
    return f;
}

static void fixture_destroy(struct fixture *f) {
    pool_destroy(f->pool);
    free(f);
}

static struct hash_trainer *trainer_of(struct fixture *f, const struct hash_training *training) {
    struct hash_training sized = *training;
    struct hash_trainer *trainer;
    struct error error;
    struct random random;
    sized.dimension = DIMENSION, sized.pair_max = QUERIES * KEYS;
    assert_ok(hash_trainer_create(&trainer, f->pool, &f->kernels, &sized, &error), error);
    random_init(&random, test_seed(9));
    hash_trainer_reset(trainer, &random);
    return trainer;
}

/* The loss by its formula, in double. weights: [bits][DIMENSION] */
static double plain_loss(const struct fixture *f, const struct hash_training *t, const double *weights) {
    size_t bits = t->bits, pairs = QUERIES * KEYS;
    double near = 0, balance = 0, norm = 0;
    for (size_t j = 0; j < bits; j++) {
        double sum = 0;
        for (size_t i = 0; i < pairs; i++) {
            double q = 0, k = 0;
            for (size_t d = 0; d < DIMENSION; d++) {
                q += weights[j * DIMENSION + d] * (double)f->queries[i / KEYS * DIMENSION + d];
                k += weights[j * DIMENSION + d] * (double)f->keys[i * DIMENSION + d];
            }
            q = 2 / (1 + exp(-t->slope * q)) - 1, k = 2 / (1 + exp(-t->slope * k)) - 1;
            near += (double)f->labels[i] * (q - k) * (q - k);
            sum += q + k;
        }
        balance += pow(sum / (double)(pairs * bits), 2);
    }
    bool across = bits > DIMENSION;
    size_t side = across ? DIMENSION : bits;
    for (size_t a = 0; a < side; a++)
        for (size_t b = 0; b < side; b++) {
            double sum = a == b ? (across ? -(double)bits / DIMENSION : -1) : 0;
            for (size_t i = 0; i < (across ? bits : DIMENSION); i++)
                sum += across ? weights[i * DIMENSION + a] * weights[i * DIMENSION + b]
                              : weights[a * DIMENSION + i] * weights[b * DIMENSION + i];
            norm += sum * sum;
        }
    return t->epsilon * near / (double)pairs + t->lambda * balance + t->eta * sqrt(norm);
}

/* Weights of each term that make it matter, so that a term that is wrong is seen. */
static void check_gradient(size_t bits, double epsilon, double lambda, double eta) {
    struct fixture *f = fixture_create(2);
    struct hash_training training = hash_training_published(bits);
    training.epsilon = epsilon, training.lambda = lambda, training.eta = eta, training.init_deviation = 0.5;
    struct hash_trainer *trainer = trainer_of(f, &training);
    size_t size = bits * DIMENSION;
    double *weights = calloc(size, sizeof *weights), worst = 0, largest = 0;
    for (size_t i = 0; i < size; i++) weights[i] = (double)hash_trainer_weights(trainer)[i];
    double loss = hash_trainer_loss(trainer, &f->pairs), expected = plain_loss(f, &training, weights);
    if (!(fabs(loss - expected) < 1e-4 * fabs(expected) + 1e-7))
        fail_msg("%zu bits: loss %.9g, expected %.9g", bits, loss, expected);
    for (size_t i = 0; i < size; i += 61) {
        const double step = 1e-5;
        double kept = weights[i];
        weights[i] = kept + step;
        double up = plain_loss(f, &training, weights);
        weights[i] = kept - step;
        double difference = (up - plain_loss(f, &training, weights)) / (2 * step);
        weights[i] = kept;
        worst = fmax(worst, fabs(difference - (double)hash_trainer_gradient(trainer)[i]));
        largest = fmax(largest, fabs(difference));
    }
    if (!(worst < 1e-3 * largest))
        fail_msg("%zu bits, %g %g %g: gradient off by %g of %g", bits, epsilon, lambda, eta, worst, largest);
    free(weights);
    hash_trainer_destroy(trainer);
    fixture_destroy(f);
}

static void test_gradient(void **state) {
    (void)state;
    for (size_t bits = 32; bits <= 64; bits += 32) {
        check_gradient(bits, 1, 0, 0);
        check_gradient(bits, 0, 1000, 0);
        check_gradient(bits, 0, 0, 1);
        check_gradient(bits, 0.01, 1, 2);
    }
}

/* Fewer bits than dimensions: the other side of the decorrelation. */
static void test_gradient_few_bits(void **state) {
    (void)state;
    struct hash_training training = hash_training_published(32);
    struct pool *pool;
    struct matmul_kernels kernels;
    struct hash_trainer *trainer;
    struct error error;
    struct random random;
    enum { WIDE = 48 };
    float *zeros = calloc(QUERIES * WIDE, sizeof *zeros);
    struct hash_pairs pairs = {.dimension = WIDE,
                               .query_count = QUERIES,
                               .keys_per_query = 1,
                               .queries = zeros,
                               .keys = zeros,
                               .keys_across = zeros,
                               .labels = zeros};
    assert_ok(pool_create(&pool, 1, &error), error);
    matmul_kernels_init(&kernels, cpu_features());
    training.dimension = WIDE, training.pair_max = QUERIES;
    assert_ok(hash_trainer_create(&trainer, pool, &kernels, &training, &error), error);
    random_init(&random, test_seed(3));
    hash_trainer_reset(trainer, &random);
    double before = hash_trainer_loss(trainer, &pairs);
    for (size_t i = 0; i < 400; i++) before = fmin(before, hash_trainer_step(trainer, &pairs));
    /* Zero is reached up to the size of a step: the columns become orthonormal. */
    const float *w = hash_trainer_weights(trainer);
    double squares = 0;
    for (size_t a = 0; a < 32; a++)
        for (size_t b = 0; b < 32; b++) {
            double sum = 0;
            for (size_t d = 0; d < WIDE; d++) sum += (double)(w[a * WIDE + d] * w[b * WIDE + d]);
            squares += pow(sum - (a == b), 2);
        }
    assert_true(sqrt(squares / (32 * 32)) < 0.08); /* at most 0.047 of 64 draws */
    assert_true(before < 3);
    hash_trainer_destroy(trainer);
    pool_destroy(pool);
    free(zeros);
}

static void test_threads(void **state) {
    (void)state;
    float *first = NULL;
    struct hash_training training = hash_training_published(64);
    for (size_t threads = 1; threads <= 3; threads++) {
        struct fixture *f = fixture_create(threads);
        struct hash_trainer *trainer = trainer_of(f, &training);
        for (size_t i = 0; i < 5; i++) hash_trainer_step(trainer, &f->pairs);
        size_t bytes = 64 * DIMENSION * sizeof(float);
        if (first == NULL) {
            first = malloc(bytes);
            assert_non_null(first);
            memcpy(first, hash_trainer_weights(trainer), bytes);
        }
        assert_memory_equal(first, hash_trainer_weights(trainer), bytes);
        hash_trainer_destroy(trainer);
        fixture_destroy(f);
    }
    free(first);
}

static void test_labels(void **state) {
    (void)state;
    assert_true(hash_label(0, 1000) == 20);
    assert_true(fabsf(hash_label(50, 1000) - 10.5f) < 1e-4f);
    assert_true(hash_label(99, 1000) > 1 && hash_label(99, 1000) < 1.3f);
    assert_true(hash_label(100, 1000) == -1);
    assert_true(hash_label(999, 1000) == -1);
}

static void test_store(void **state) {
    (void)state;
    const float across[2 * 3] = {0.5f, -2, 1, 1e-6f, 0, -1e-6f};
    uint16_t weights[3 * 2];
    hash_weights_store(across, 2, 3, weights);
    const float expected[3 * 2] = {0.25f, 1, -1, 0, 0.5f, -1};
    for (size_t i = 0; i < 6; i++) assert_true(half_to_float(weights[i]) == expected[i]);
}

/* ---- the quadratic ---- */

static void test_quadratic(void **state) {
    (void)state;
    enum { COUNT_MAX = 12 };
    struct random random;
    random_init(&random, test_seed(11));
    size_t converged = 0;
    for (size_t round = 0; round < 200; round++) {
        size_t count = 1 + (size_t)random_below(&random, COUNT_MAX),
               rank = 1 + (size_t)random_below(&random, count);
        double factor[COUNT_MAX * COUNT_MAX], g[COUNT_MAX * COUNT_MAX], c[COUNT_MAX], x[COUNT_MAX];
        for (size_t i = 0; i < rank * count; i++) factor[i] = random_normal(&random);
        for (size_t i = 0; i < count; i++) {
            c[i] = 3 * random_double(&random);
            for (size_t j = 0; j < count; j++) {
                g[i * count + j] = 0;
                for (size_t k = 0; k < rank; k++)
                    g[i * count + j] += factor[k * count + i] * factor[k * count + j];
            }
        }
        double left = quadratic_solve(g, c, count, 1e-9, x), value = 0;
        /* Where G is nearly singular 10,000 rounds may not be enough; then it says so. */
        assert_true(left <= 1e-2 && left == quadratic_violation(g, c, count, x));
        converged += left <= 1e-9;
        for (size_t i = 0; i < count; i++) {
            assert_true(x[i] >= 0 && x[i] <= 1);
            value -= c[i] * x[i];
            for (size_t j = 0; j < count; j++) value += x[i] * g[i * count + j] * x[j];
        }
        for (size_t trial = 0; trial < 200; trial++) { /* no other point is lower */
            double other[COUNT_MAX], found = 0;
            for (size_t i = 0; i < count; i++)
                other[i] = fmin(1, fmax(0, x[i] + 0.3 * random_normal(&random)));
            for (size_t i = 0; i < count; i++) {
                found -= c[i] * other[i];
                for (size_t j = 0; j < count; j++) found += other[i] * g[i * count + j] * other[j];
            }
            assert_true(found >=
                        value - 1e-7 - left * (double)count); /* convex: no lower than by the slopes */
        }
    }
    assert_true(converged >= 190);
}

/* ---- eigenvectors ---- */

static void check_eigen(size_t n, size_t rank, uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    double *a = calloc(n * n, sizeof *a), *kept = calloc(n * n, sizeof *a), *v = calloc(n * n, sizeof *a);
    double *values = calloc(n, sizeof *values), *row = calloc(n, sizeof *row), largest = 0;
    for (size_t k = 0; k < rank; k++) {
        for (size_t i = 0; i < n; i++) row[i] = random_normal(&random) * exp2(-(double)k / 3);
        for (size_t i = 0; i < n * n; i++) a[i] += row[i / n] * row[i % n];
    }
    memcpy(kept, a, n * n * sizeof *a);
    for (size_t i = 0; i < n * n; i++) largest = fmax(largest, fabs(kept[i]));
    eigen_symmetric(a, n, values, v);
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 || values[i] <= values[i - 1]);
        if (i >= rank) assert_true(fabs(values[i]) < 1e-12 * largest * (double)n);
        for (size_t j = 0; j < n; j++) {
            double product = 0, rebuilt = 0;
            for (size_t k = 0; k < n; k++) {
                product += v[k * n + i] * v[k * n + j];
                rebuilt += v[i * n + k] * values[k] * v[j * n + k];
            }
            assert_true(fabs(product - (i == j)) < 1e-12);
            assert_true(fabs(rebuilt - kept[i * n + j]) < 1e-12 * largest * (double)n);
        }
    }
    free(a), free(kept), free(v), free(values), free(row);
}

static void test_eigen(void **state) {
    (void)state;
    check_eigen(1, 1, 1);
    check_eigen(2, 2, 2);
    check_eigen(17, 17, 3);
    check_eigen(64, 64, 4);
    check_eigen(64, 9, 5);
    check_eigen(128, 128, 6);
    double zero[4] = {0}, values[2], vectors[4];
    eigen_symmetric(zero, 2, values, vectors);
    assert_true(values[0] == 0 && vectors[0] == 1 && vectors[1] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient), cmocka_unit_test(test_gradient_few_bits),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_labels),
        cmocka_unit_test(test_store),    cmocka_unit_test(test_quadratic),
        cmocka_unit_test(test_eigen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
