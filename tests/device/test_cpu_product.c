/* Product codes of keys, over random keys with a printed seed: groups that are there are found, those of a chunk before
 * by its centroids; every code names the nearest centroid of the codebook, computed here in double; blocks are the same
 * to the bit in any parts of a build, on any threads and kernels; what is chosen has the largest products with the
 * centroids that codes name; a key that is not a number is chosen, and spoils no other; codes that nobody wrote reach
 * no memory that is not theirs. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "lab/methods/product_codes.h"
#include "device_variants.h"
#include "host_span.h"
#include "kernels/kernels.h"
#include "placed.h"
#include "seed.h"
#include "tensor/half.h"

enum { DEVICES = 4, KV_HEADS = 3, GROUP = 3, HEADS = KV_HEADS * GROUP, DIMENSION = 64, V_DIMENSION = 32 };
enum { CHUNKS_MAX = 160, SHAPES = 4, ROUNDS = 8 };

static const struct product_layout shapes[SHAPES] = {{2, 4, 16}, {4, 1, 16}, {8, 1, 32}, {1, 64, 4}};

struct fixture {
    struct device *devices[DEVICES]; /* the first with reference kernels, the others by threads 1, 2, 3 */
    struct stream *streams[DEVICES];
    struct kernels kernels;
};

struct product_case {
    struct random random;
    struct kv_layout kv;
    struct key_index_layout layout;
    uint64_t length;
    float scale;
    float q[HEADS * DIMENSION];
    void *chunks[KV_HEADS * CHUNKS_MAX], *blocks[KV_HEADS * CHUNKS_MAX];
    struct placed placed;
    struct kv_view view;
    float *keys;    /* [KV_HEADS][length][DIMENSION], as they are stored */
    double *scores; /* [length] */
    uint32_t *rows; /* [KV_HEADS][length] */
    struct row_list lists[KV_HEADS];
};

static float *key_of(const struct product_case *c, size_t kv_head, uint64_t token) {
    return c->keys + (kv_head * c->length + token) * DIMENSION;
}

static void store_key(struct product_case *c, const struct fixture *fixture, size_t kv_head, uint64_t token) {
    float value[V_DIMENSION] = {0}, *key = key_of(c, kv_head, token);
    void *chunk = c->chunks[kv_head * CHUNKS_MAX + token / KV_CHUNK_TOKENS];
    fixture->kernels.attention.store(&c->kv, chunk, token % KV_CHUNK_TOKENS, key, value);
    fixture->kernels.attention.load(&c->kv, chunk, token % KV_CHUNK_TOKENS, key, value);
}

static size_t group_of(const struct product_case *c, size_t partition, uint64_t token) {
    const size_t groups = c->layout.product.centroids;
    return (token % KV_CHUNK_TOKENS * groups / KV_CHUNK_TOKENS + partition) % groups;
}

/* Keys of as many groups as a chunk has centroids, the same in chunks 2 i and 2 i + 1; or of none. */
static void keys_init(struct product_case *c, const struct fixture *fixture, bool grouped) {
    const struct product_layout *product = &c->layout.product;
    const size_t columns = DIMENSION / product->partitions;
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        float centers[PRODUCT_PARTITIONS_MAX][KV_CHUNK_TOKENS][DIMENSION];
        for (uint64_t t = 0; t < c->length; t++) {
            for (size_t d = 0; t % (2 * (uint64_t)KV_CHUNK_TOKENS) == 0 &&
                               d < product->centroids * DIMENSION * product->partitions;
                 d++)
                centers[d / DIMENSION % product->partitions][d / DIMENSION / product->partitions]
                       [d % DIMENSION] = (float)random_normal(&c->random);
            float *key = key_of(c, kv_head, t);
            for (size_t d = 0; d < DIMENSION; d++)
                key[d] = grouped ? centers[d / columns][group_of(c, d / columns, t)][d % columns] +
                                       0.01F * (float)random_normal(&c->random)
                                 : (float)random_normal(&c->random);
            store_key(c, fixture, kv_head, t);
        }
    }
}

static void case_init(struct product_case *c, const struct fixture *fixture, uint64_t round, uint64_t seed,
                      uint64_t length, bool grouped) {
    *c = (struct product_case){.length = length, .scale = 0.125F};
    random_init(&c->random, seed + round);
    kv_layout_init(&c->kv, round % 3 == 0 ? KV_Q8 : KV_F16, KV_F16, DIMENSION, V_DIMENSION);
    c->layout = (struct key_index_layout){.kind = KEY_INDEX_PRODUCT,
                                          .unit_tokens = 1,
                                          .product = shapes[round % SHAPES],
                                          .aggregate = round / SHAPES % 2 == 0 ? SCORE_SUM : SCORE_SOFTMAX};
    c->layout.bytes = align_up(product_bytes(&c->layout.product, DIMENSION), 64);
    c->keys = calloc(KV_HEADS * length * DIMENSION, sizeof *c->keys);
    c->scores = calloc(length, sizeof *c->scores);
    c->rows = calloc(KV_HEADS * length, sizeof *c->rows);
    for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) {
        c->chunks[i] = aligned_alloc(64, c->kv.chunk_bytes);
        c->blocks[i] = aligned_alloc(64, c->layout.bytes);
        memset(c->chunks[i], 0, c->kv.chunk_bytes);
        memset(c->blocks[i], 0xff, c->layout.bytes); /* of somebody before */
    }
    const struct addresses addresses = {
        .chunks = c->chunks, .key_index = c->blocks, .heads = KV_HEADS, .stride = CHUNKS_MAX};
    c->view = placed_view(&c->placed, &c->kv, &addresses);
    for (size_t i = 0; i < HEADS * DIMENSION; i++) c->q[i] = (float)random_normal(&c->random);
    keys_init(c, fixture, grouped);
}

static void case_deinit(struct product_case *c) {
    for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) free(c->chunks[i]), free(c->blocks[i]);
    placed_free(&c->placed);
    free(c->keys), free(c->scores), free(c->rows);
}

/* Rows [first, length) in parts of any length, as a prompt and steps would. */
static void build(struct product_case *c, const struct fixture *fixture, size_t device, uint64_t first,
                  uint64_t part_max) {
    for (uint64_t done = first, count; done < c->length; done += count) {
        count = 1 + random_below(&c->random, part_max);
        if (count > c->length - done) count = c->length - done;
        const struct attend_item item = {.view = c->view, .position_first = done, .row_count = (size_t)count};
        fixture->devices[device]->operations->key_index_build(
            fixture->streams[device],
            &(struct key_index_build_operation){
                .layout = &c->layout, .kv_head_count = KV_HEADS, .items = &item, .item_count = 1});
    }
}

/* ---- blocks ---- */

static const void *block_of(const struct product_case *c, size_t kv_head, uint64_t chunk) {
    return c->blocks[kv_head * CHUNKS_MAX + chunk];
}

static size_t code_of(const struct product_case *c, size_t kv_head, uint64_t token, size_t partition) {
    const struct product_layout *product = &c->layout.product;
    return product_codes(product, block_of(c, kv_head, token / KV_CHUNK_TOKENS), DIMENSION,
                         partition)[token % KV_CHUNK_TOKENS] %
           (product->centroids * product->codebook_chunks);
}

/* The centroid that a code of `chunk` names; NULL: it is before the first chunk. */
static const uint16_t *centroid_of(const struct product_case *c, size_t kv_head, uint64_t chunk,
                                   size_t partition, size_t code) {
    const struct product_layout *product = &c->layout.product;
    const size_t back = code / product->centroids, index = product->centroids - 1 - code % product->centroids;
    if (back > chunk) return NULL;
    return product_centroids(product, block_of(c, kv_head, chunk - back), DIMENSION, partition) +
           index * (DIMENSION / product->partitions);
}

static double distance_of(const struct product_case *c, const float *key, size_t partition,
                          const uint16_t *centroid) {
    const size_t columns = DIMENSION / c->layout.product.partitions;
    double sum = 0;
    for (size_t d = 0; d < columns; d++) {
        const double apart = (double)key[partition * columns + d] - (double)half_to_float(centroid[d]);
        sum += apart * apart;
    }
    return sum;
}

static void check_codes(const struct product_case *c, size_t kv_head, uint64_t token, bool grouped) {
    const struct product_layout *product = &c->layout.product;
    const uint64_t chunk = token / KV_CHUNK_TOKENS;
    const float *key = key_of(c, kv_head, token);
    for (size_t partition = 0; partition < product->partitions; partition++) {
        const size_t code = code_of(c, kv_head, token, partition);
        const uint16_t *centroid = centroid_of(c, kv_head, chunk, partition, code);
        assert_non_null(centroid);
        const double found = distance_of(c, key, partition, centroid);
        for (size_t other = 0; other < product->centroids * product->codebook_chunks; other++) {
            const uint16_t *nearer = centroid_of(c, kv_head, chunk, partition, other);
            if (nearer != NULL) assert_true(found <= distance_of(c, key, partition, nearer) + 1e-4);
        }
        if (!grouped) continue;
        assert_true(found < 0.1); /* of its group: two centers are some columns * 2 apart */
        if (product->codebook_chunks > 1 && chunk % 2 == 0) assert_true(code < product->centroids);
    }
}

/* Of groups that no chunk before had: their centroids are their means. */
static void check_means(const struct product_case *c, uint64_t chunk, size_t partition) {
    const struct product_layout *product = &c->layout.product;
    const size_t columns = DIMENSION / product->partitions;
    for (uint64_t t = chunk * KV_CHUNK_TOKENS; t < (chunk + 1) * KV_CHUNK_TOKENS; t++) {
        float mean[DIMENSION] = {0};
        double size = 0;
        for (uint64_t other = chunk * KV_CHUNK_TOKENS; other < (chunk + 1) * KV_CHUNK_TOKENS; other++)
            size += group_of(c, partition, other) == group_of(c, partition, t);
        for (uint64_t other = chunk * KV_CHUNK_TOKENS; other < (chunk + 1) * KV_CHUNK_TOKENS; other++)
            for (size_t d = 0; d < columns && group_of(c, partition, other) == group_of(c, partition, t); d++)
                mean[partition * columns + d] += key_of(c, 0, other)[partition * columns + d] / (float)size;
        const size_t code = code_of(c, 0, t, partition);
        assert_true(distance_of(c, mean, partition, centroid_of(c, 0, chunk, partition, code)) <
                    1e-5 * (double)columns);
    }
}

/* Of groups that were in the chunk before: what its centroids are worth. */
static void check_reused_centroids(const struct product_case *c) {
    size_t before = 0;
    for (uint64_t t = 0; t < c->length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS; t++)
        before += t / KV_CHUNK_TOKENS % 2 == 1 && code_of(c, 0, t, 0) >= c->layout.product.centroids;
    assert_true(before > 0);
}

/* ---- choice ---- */

/* Of query heads [first, first + count) of the KV head. */
static double product_of(const struct product_case *c, size_t kv_head, size_t first, size_t count,
                         uint64_t token) {
    const struct product_layout *product = &c->layout.product;
    const size_t columns = DIMENSION / product->partitions;
    double sum = 0;
    for (size_t partition = 0; partition < product->partitions; partition++) {
        const uint16_t *centroid = centroid_of(c, kv_head, token / KV_CHUNK_TOKENS, partition,
                                               code_of(c, kv_head, token, partition));
        for (size_t g = first; g < first + count && centroid != NULL; g++)
            for (size_t d = 0; d < columns; d++)
                sum += (double)c->q[(kv_head * GROUP + g) * DIMENSION + partition * columns + d] *
                       (double)half_to_float(centroid[d]);
    }
    return sum;
}

static void find_scores(struct product_case *c, size_t kv_head, uint64_t begin, uint64_t end) {
    for (uint64_t t = begin; t < end; t++) c->scores[t] = 0;
    if (c->layout.aggregate == SCORE_SUM) {
        for (uint64_t t = begin; t < end; t++) c->scores[t] = product_of(c, kv_head, 0, GROUP, t);
        return;
    }
    for (size_t g = 0; g < GROUP; g++) {
        double sum = 0;
        for (uint64_t t = begin; t < end; t++) sum += exp((double)c->scale * product_of(c, kv_head, g, 1, t));
        for (uint64_t t = begin; t < end; t++)
            c->scores[t] += exp((double)c->scale * product_of(c, kv_head, g, 1, t)) / sum;
    }
}

static struct select_item choose(struct product_case *c, const struct fixture *fixture, size_t device,
                                 const uint64_t *picks) {
    const struct select_item item = {.view = c->view,
                                     .position = c->length - 1,
                                     .candidate_begin = 3,
                                     .candidate_end = c->length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS,
                                     .picks = picks};
    struct error error;
    fixture->devices[device]->operations->choose(fixture->streams[device],
                                                 &(struct choose_operation){.q = host_span(c->q),
                                                                            .q_stride = HEADS * DIMENSION,
                                                                            .head_count = HEADS,
                                                                            .kv_head_count = KV_HEADS,
                                                                            .scale = c->scale,
                                                                            .layout = &c->layout,
                                                                            .items = &item,
                                                                            .item_count = 1,
                                                                            .rows = host_span(c->rows),
                                                                            .lists = c->lists});
    assert_ok(fixture->devices[device]->operations->stream_synchronize(fixture->streams[device], &error),
              error);
    return item;
}

static void check_choice(struct product_case *c, const struct fixture *fixture, size_t device) {
    uint64_t picks[KV_HEADS];
    for (size_t i = 0; i < KV_HEADS; i++)
        picks[i] = (c->length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS - 3) * (i + 1) / 5;
    const struct select_item item = choose(c, fixture, device, picks);
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        double chosen = INFINITY, left = -INFINITY;
        find_scores(c, kv_head, item.candidate_begin, item.candidate_end);
        for (uint64_t t = item.candidate_begin, next = item.candidate_begin; t < item.candidate_end; t++) {
            const bool is_chosen = row_list_host(&c->lists[kv_head])[next] == t;
            next += is_chosen;
            if (is_chosen)
                chosen = fmin(chosen, c->scores[t]);
            else
                left = fmax(left, c->scores[t]);
        }
        assert_true(chosen >= left - 2e-4 * fabs(left) - (c->layout.aggregate == SCORE_SUM ? 1e-4 : 0));
    }
}

/* ---- tests ---- */

static int open_devices(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    device_variants_open(fixture->devices, fixture->streams, DEVICES);
    kernels_init(&fixture->kernels, 0);
    *state = fixture;
    return 0;
}

static int close_devices(void **state) {
    struct fixture *fixture = *state;
    device_variants_close(fixture->devices, fixture->streams, DEVICES);
    free(fixture);
    return 0;
}

static void check_round(struct fixture *fixture, uint64_t round, uint64_t seed, bool grouped) {
    struct product_case c;
    /* The last is of two ranges of scores. */
    case_init(&c, fixture, round, seed, round + 1 == ROUNDS ? 9700 : 130 + 173 * round, grouped);
    uint8_t *first = malloc(c.layout.bytes * KV_HEADS * CHUNKS_MAX);
    for (size_t device = 0; device < DEVICES; device++) {
        for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) memset(c.blocks[i], 0xff, c.layout.bytes);
        build(&c, fixture, device, 0, device == 1 ? 100 : device == 2 ? 1 : c.length);
        if (device == 3) build(&c, fixture, device, c.length / 2, 70); /* as after a cut */
        for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) {
            if (device == 0) memcpy(first + i * c.layout.bytes, c.blocks[i], c.layout.bytes);
            assert_memory_equal(first + i * c.layout.bytes, c.blocks[i], c.layout.bytes);
        }
        check_choice(&c, fixture, device);
    }
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++)
        for (uint64_t t = 0; t<c.length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS; t += c.length> 2000 ? 13 : 1)
            check_codes(&c, kv_head, t, grouped);
    for (uint64_t chunk = 0; grouped && chunk < c.length / KV_CHUNK_TOKENS; chunk += 2)
        for (size_t partition = 0; partition < c.layout.product.partitions; partition++)
            check_means(&c, chunk, partition);
    if (grouped && c.layout.product.centroids < KV_CHUNK_TOKENS) check_reused_centroids(&c);
    free(first);
    case_deinit(&c);
}

static void codes_and_choices(void **state) {
    const uint64_t seed = test_seed(20261124);
    for (uint64_t round = 0; round < ROUNDS; round++)
        if (test_takes_next()) check_round(*state, round, seed, round % 2 == 1);
    for (uint64_t round = 0; round < SHAPES; round++)
        if (test_takes_next()) check_round(*state, round, seed, round % 2 == 0);
}

/* Its score is not a number, so it is chosen; the others of its chunk have codes as near as ever. */
static void a_key_that_is_no_number(void **state) {
    const struct fixture *fixture = *state;
    enum { LENGTH = 640, SPOILT = 3 * KV_CHUNK_TOKENS + 17 };
    struct product_case c;
    const uint64_t picks[KV_HEADS] = {5, 5, 5};
    case_init(&c, fixture, SHAPES, test_seed(20261125), LENGTH, false);
    c.layout.aggregate = SCORE_SUM;
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        key_of(&c, kv_head, SPOILT)[40] = NAN;
        store_key(&c, fixture, kv_head, SPOILT);
    }
    build(&c, fixture, 1, 0, LENGTH);
    choose(&c, fixture, 1, picks);
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        size_t found = 0;
        for (size_t i = 0; i < c.lists[kv_head].count; i++)
            found += row_list_host(&c.lists[kv_head])[i] == SPOILT;
        assert_int_equal(found, 1);
        for (uint64_t t = 0; t < LENGTH; t++)
            if (t != SPOILT) assert_true(isfinite(product_of(&c, kv_head, 0, GROUP, t)));
    }
    case_deinit(&c);
}

/* Codes of a block that nobody wrote: those that name what is before the first chunk count as nothing. */
static void codes_that_name_nothing(void **state) {
    const struct fixture *fixture = *state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct product_case c;
        if (!test_takes_next()) continue;
        case_init(&c, fixture, round, test_seed(20261126), 700, false);
        build(&c, fixture, 1, 0, c.length);
        for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++)
            for (uint64_t t = 0; t < 5 * (uint64_t)KV_CHUNK_TOKENS; t++)
                for (size_t partition = 0; partition < c.layout.product.partitions; partition++)
                    product_codes(&c.layout.product, block_of(&c, kv_head, t / KV_CHUNK_TOKENS), DIMENSION,
                                  partition)[t % KV_CHUNK_TOKENS] = (uint8_t)random_below(&c.random, 256);
        check_choice(&c, fixture, 1);
        case_deinit(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_and_choices),
                                       cmocka_unit_test(a_key_that_is_no_number),
                                       cmocka_unit_test(codes_that_name_nothing)};
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
