/* score: every variant against dot products in double.
 *
 * A dot product of n terms in float is off by at most (n + 1) eps sum |q r| (Higham, Accuracy and Stability of
 * Numerical Algorithms, 3.1), eps = 2^-24.  The maximum over heads by the largest of these; a sum over heads,
 * whose queries may be added up first, by (n + heads + 1) eps times the sum over heads. */
#include "check.h"

#include "selection_emulated.h"
#include "tensor/half.h"

enum { BLOCKS_MAX = 40, HEADS_MAX = 17 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(score, emulated_score_avx512_install)

struct score_case {
    size_t columns, block_rows, block_offset, heads;
    uint64_t begin, end;
    enum score_aggregate aggregate;
};

static double dot(const float *q, const uint16_t *row, size_t columns, double *size) {
    double sum = 0;
    *size = 0;
    for (size_t i = 0; i < columns; i++) {
        double product = (double)q[i] * (double)half_to_float(row[i]);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

static double expect(const struct score_case *c, const float *q, size_t q_stride, const uint16_t *row,
                     double *bound) {
    double score = 0, sizes = 0, largest = 0;
    for (size_t head = 0; head < c->heads; head++) {
        double size, next = dot(q + head * q_stride, row, c->columns, &size);
        score = c->aggregate == SCORE_SUM ? score + next : head == 0 || next > score ? next : score;
        sizes += size;
        largest = fmax(largest, size);
    }
    double terms = (double)(c->columns + c->heads + 1);
    *bound = terms * eps * (c->aggregate == SCORE_SUM ? sizes : largest) + eps * fabs(score);
    return score;
}

static void score_check(const struct level *levels, size_t level_count, const struct score_case *c,
                        struct random *random) {
    struct guarded blocks[BLOCKS_MAX];
    const void *pointers[BLOCKS_MAX];
    size_t block_count = (size_t)(c->end + c->block_rows - 1) / c->block_rows;
    assert_true(block_count <= BLOCKS_MAX);
    for (size_t b = 0; b < block_count; b++) {
        blocks[b] = guarded_create(c->block_offset + c->block_rows * c->columns * sizeof(uint16_t));
        uint16_t *halves = (uint16_t *)(void *)((uint8_t *)blocks[b].data + c->block_offset);
        for (size_t i = 0; i < c->block_rows * c->columns; i++)
            halves[i] = float_to_half((float)random_normal(random));
        pointers[b] = blocks[b].data;
    }
    size_t q_stride = c->columns + 3, count = (size_t)(c->end - c->begin);
    struct guarded q = guarded_create(((c->heads - 1) * q_stride + c->columns) * sizeof(float));
    struct guarded scores = guarded_create(count * sizeof(float));
    fill_normal(random, q.data, q.bytes / sizeof(float), 1.0);
    for (size_t i = 0; i < level_count; i++) {
        struct guarded scratch = guarded_create(levels[i].kernels.scratch_bytes(c->columns));
        fill_nan(scores.data, count);
        struct score_args args = {.blocks = pointers,
                                  .block_offset = c->block_offset,
                                  .block_rows = c->block_rows,
                                  .columns = c->columns,
                                  .row_begin = c->begin,
                                  .row_end = c->end,
                                  .q = q.data,
                                  .q_stride = q_stride,
                                  .heads = c->heads,
                                  .aggregate = c->aggregate,
                                  .scores = scores.data,
                                  .scratch = scratch.data};
        levels[i].kernels.rows(&args);
        for (uint64_t row = c->begin; row < c->end; row++) {
            const uint8_t *block = (const uint8_t *)pointers[row / c->block_rows] + c->block_offset;
            double bound,
                want =
                    expect(c, q.data, q_stride,
                           (const uint16_t *)(const void *)block + row % c->block_rows * c->columns, &bound);
            check_near(((float *)scores.data)[row - c->begin], want, bound,
                       "%s: columns %zu block %zu heads %zu aggregate %d row %zu of %zu..%zu", levels[i].name,
                       c->columns, c->block_rows, c->heads, (int)c->aggregate, (size_t)row, (size_t)c->begin,
                       (size_t)c->end);
        }
        guarded_destroy(&scratch);
    }
    guarded_destroy(&q);
    guarded_destroy(&scores);
    for (size_t b = 0; b < block_count; b++) guarded_destroy(&blocks[b]);
}

static void scores_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(22));
    static const size_t columns[] = {8, 16, 24, 32, 40, 64, 128, 256, 272, 512},
                        block_rows[] = {1, 2, 4, 8, 64}, heads[] = {1, 2, 3, 4, 5, 7, 8, 16, 17};
    for (size_t i = 0; i < 10; i++)
        for (size_t b = 0; b < 5; b++)
            for (size_t h = 0; h < 9; h++) {
                struct score_case c = {.columns = columns[i],
                                       .block_rows = block_rows[b],
                                       .block_offset = b % 2 * 128,
                                       .heads = heads[h],
                                       .aggregate = (i + b + h) % 2 ? SCORE_SUM : SCORE_MAX};
                c.end = 1 + random_below(&random, block_rows[b] * 20 < 300 ? block_rows[b] * 20 : 300);
                c.begin = random_below(&random, c.end);
                if (h % 3 == 0) c.begin = 0;
                score_check(levels, level_count, &c, &random);
                c.begin = c.end; /* none */
                if (h == 0) score_check(levels, level_count, &c, &random);
            }
}

/* A NaN in any element of a row comes out in its score, one in a query in all. */
static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    enum { COLUMNS = 48, ROWS = 64 };
    _Alignas(16) uint16_t rows[ROWS * COLUMNS] = {0};
    const void *block = rows;
    float q[8 * COLUMNS], scores[ROWS], scratch[COLUMNS * 8];
    for (size_t level = 0; level < level_count; level++)
        for (size_t round = 0; round < 8 * COLUMNS; round++) {
            size_t at = round * 37 % ROWS, heads = 1 + round % 8;
            for (size_t i = 0; i < 8 * COLUMNS; i++) q[i] = 1;
            rows[at * COLUMNS + round % COLUMNS] = 0x7e00;
            struct score_args args = {&block, 0,       ROWS,    COLUMNS, 0,
                                      ROWS,   q,       COLUMNS, heads,   round % 3 ? SCORE_MAX : SCORE_SUM,
                                      scores, scratch, &block};
            assert_true(levels[level].kernels.scratch_bytes(COLUMNS) <= sizeof scratch);
            levels[level].kernels.rows(&args);
            for (size_t row = 0; row < ROWS; row++) assert_true(isnan(scores[row]) == (row == at));
            rows[at * COLUMNS + round % COLUMNS] = 0;
            q[round % heads * COLUMNS + round % COLUMNS] = NAN;
            levels[level].kernels.rows(&args);
            for (size_t row = 0; row < ROWS; row++) assert_true(isnan(scores[row]));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_match),
        cmocka_unit_test(nan_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
