/* Clusters of keys over random keys with a printed seed: groups that are there are found, in any parts of a build; a
 * block's centroids, values and sizes are those of its tokens; what is chosen is of the clusters with the largest
 * products; and attend_rest gives what it says, computed here in double from the block, on any number of threads and
 * head by head to the bit, and nothing where everything is listed. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "lab/methods/cluster.h"
#include "device_variants.h"
#include "host_span.h"
#include "kernels/kernels.h"
#include "placed.h"
#include "seed.h"
#include "tensor/half.h"

enum { DEVICES = 4, KV_HEADS = 3, GROUP = 3, HEADS = KV_HEADS * GROUP, DIMENSION = 64, V_DIMENSION = 32 };
enum { CHUNKS_MAX = 160, ROUNDS = 5 };

struct fixture {
    struct device *devices[DEVICES]; /* the first with reference kernels, the others by threads 1, 2, 3 */
    struct stream *streams[DEVICES];
    struct kernels kernels;
};

struct cluster_case {
    struct random random;
    struct kv_layout kv;
    struct key_index_layout layout;
    uint64_t length;
    float scale, softcap;
    bool is_alike; /* keys and values of a group are: their estimate is attention itself */
    float q[HEADS * DIMENSION], out[HEADS * V_DIMENSION];
    void *chunks[KV_HEADS * CHUNKS_MAX], *blocks[KV_HEADS * CHUNKS_MAX];
    struct placed placed;
    struct kv_view view;
    float *keys, *values; /* [KV_HEADS][length][...], as they are stored */
    uint32_t *rows;       /* [KV_HEADS][length] */
    struct row_list lists[KV_HEADS];
    struct softmax_sum sums[HEADS];
};

static void rows_init(struct cluster_case *c, const struct fixture *fixture, size_t groups) {
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        float directions[CLUSTERS_MAX][DIMENSION];
        for (uint64_t t = 0; t < c->length; t++) {
            const size_t chunk = kv_head * CHUNKS_MAX + t / KV_CHUNK_TOKENS;
            float *key = c->keys + (kv_head * c->length + t) * DIMENSION;
            float *value = c->values + (kv_head * c->length + t) * V_DIMENSION;
            const size_t group = t % KV_CHUNK_TOKENS * groups / KV_CHUNK_TOKENS;
            for (size_t d = 0; d < DIMENSION; d++) {
                if (t % (KV_CHUNK_TOKENS / groups) == 0)
                    directions[group][d] = (float)random_normal(&c->random);
                key[d] = directions[group][d] + (c->is_alike ? 0 : 0.2F * (float)random_normal(&c->random));
            }
            for (size_t d = 0; d < V_DIMENSION; d++)
                value[d] = c->is_alike ? directions[group][d] : (float)random_normal(&c->random);
            fixture->kernels.attention.store(&c->kv, c->chunks[chunk], t % KV_CHUNK_TOKENS, key, value);
            fixture->kernels.attention.load(&c->kv, c->chunks[chunk], t % KV_CHUNK_TOKENS, key, value);
        }
    }
}

static void case_init(struct cluster_case *c, const struct fixture *fixture, uint64_t seed, uint64_t length) {
    static const size_t counts[] = {4, 8, 2, 1};
    *c = (struct cluster_case){
        .length = length, .scale = 0.125F, .softcap = seed % 3 == 0 ? 6 : 0, .is_alike = seed % 5 == 3};
    random_init(&c->random, seed);
    kv_layout_init(&c->kv, seed % 2 == 0 ? KV_F16 : KV_Q8, KV_F16, DIMENSION, V_DIMENSION);
    c->layout = (struct key_index_layout){.kind = KEY_INDEX_CLUSTER,
                                          .unit_tokens = 1,
                                          .cluster_count = counts[seed % 4],
                                          .estimates_rest = true,
                                          .aggregate = SCORE_SUM};
    c->layout.bytes = align_up(cluster_bytes(c->layout.cluster_count, DIMENSION, V_DIMENSION), 64);
    c->keys = calloc(KV_HEADS * length * DIMENSION, sizeof *c->keys);
    c->values = calloc(KV_HEADS * length * V_DIMENSION, sizeof *c->values);
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
    rows_init(c, fixture, c->layout.cluster_count);
}

static void case_deinit(struct cluster_case *c) {
    for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) free(c->chunks[i]), free(c->blocks[i]);
    placed_free(&c->placed);
    free(c->keys), free(c->values), free(c->rows);
}

static struct cluster_block block_of(const struct cluster_case *c, size_t kv_head, uint64_t token) {
    return cluster_block_of(c->blocks[kv_head * CHUNKS_MAX + token / KV_CHUNK_TOKENS],
                            c->layout.cluster_count, DIMENSION, V_DIMENSION);
}

/* In parts of any length, as a prompt and steps would. */
static void build(struct cluster_case *c, const struct fixture *fixture, size_t device, uint64_t part_max) {
    for (uint64_t done = 0, count; done < c->length; done += count) {
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

static void check_block(const struct cluster_case *c, size_t kv_head, uint64_t first) {
    const size_t count = c->layout.cluster_count;
    const struct cluster_block block = block_of(c, kv_head, first);
    for (size_t cluster = 0; cluster < count; cluster++) {
        double key[DIMENSION] = {0}, value[V_DIMENSION] = {0};
        size_t size = 0;
        for (uint64_t t = first; t < first + KV_CHUNK_TOKENS; t++) {
            if (block.of_tokens[t - first] != cluster) continue;
            size++;
            for (size_t d = 0; d < DIMENSION; d++)
                key[d] += (double)c->keys[(kv_head * c->length + t) * DIMENSION + d];
            for (size_t d = 0; d < V_DIMENSION; d++)
                value[d] += (double)c->values[(kv_head * c->length + t) * V_DIMENSION + d];
        }
        assert_int_equal(block.sizes[cluster], size);
        assert_int_equal(size, KV_CHUNK_TOKENS / count); /* the groups that are there */
        for (size_t d = 0; d < DIMENSION; d++)
            assert_true(fabs((double)half_to_float(block.centroids[cluster * DIMENSION + d]) -
                             key[d] / (double)size) < 4e-3);
        for (size_t d = 0; d < V_DIMENSION; d++)
            assert_true(fabs((double)half_to_float(block.values[cluster * V_DIMENSION + d]) -
                             value[d] / (double)size) < 4e-3);
    }
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) /* neighbours of a group */
        assert_int_equal(block.of_tokens[t],
                         block.of_tokens[t / (KV_CHUNK_TOKENS / count) * (KV_CHUNK_TOKENS / count)]);
}

/* ---- choice ---- */

static double score_of(const struct cluster_case *c, size_t kv_head, uint64_t token) {
    const struct cluster_block block = block_of(c, kv_head, token);
    const uint16_t *centroid = block.centroids + block.of_tokens[token % KV_CHUNK_TOKENS] * DIMENSION;
    double sum = 0;
    for (size_t g = 0; g < GROUP; g++)
        for (size_t d = 0; d < DIMENSION; d++)
            sum += (double)c->q[(kv_head * GROUP + g) * DIMENSION + d] * (double)half_to_float(centroid[d]);
    return sum;
}

/* Leaves what it chose in c->lists. */
static void check_choice(struct cluster_case *c, const struct fixture *fixture, size_t device) {
    struct select_item item = {.view = c->view, .position = c->length - 1, .candidate_begin = 3};
    uint64_t picks[KV_HEADS];
    item.candidate_end = c->length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    item.picks = picks;
    for (size_t i = 0; i < KV_HEADS; i++)
        picks[i] = (item.candidate_end - item.candidate_begin) * (i + 1) / 5;
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
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        double chosen = INFINITY, left = -INFINITY;
        for (uint64_t t = item.candidate_begin, next = item.candidate_begin; t < item.candidate_end; t++) {
            const bool is_chosen = row_list_host(&c->lists[kv_head])[next] == t;
            next += is_chosen;
            if (is_chosen)
                chosen = fmin(chosen, score_of(c, kv_head, t));
            else
                left = fmax(left, score_of(c, kv_head, t));
        }
        assert_true(chosen >= left - 1e-4 * fabs(left));
    }
}

/* ---- the rest ---- */

static void attend(struct cluster_case *c, const struct fixture *fixture, size_t device, size_t kv_head_first,
                   size_t kv_head_count, bool with_rest) {
    const struct device_operations *operations = fixture->devices[device]->operations;
    struct rows_item item = {.view = c->view, .position = c->length - 1, .lists = c->lists + kv_head_first};
    item.view = kv_view_heads(&item.view, kv_head_first);
    const struct attend_rows_operation rows = {.q = host_span(c->q + kv_head_first * GROUP * DIMENSION),
                                               .q_stride = HEADS * DIMENSION,
                                               .out = host_span(c->out + kv_head_first * GROUP * V_DIMENSION),
                                               .out_stride = HEADS * V_DIMENSION,
                                               .head_count = kv_head_count * GROUP,
                                               .kv_head_count = kv_head_count,
                                               .scale = c->scale,
                                               .softcap = c->softcap,
                                               .items = &item,
                                               .item_count = 1,
                                               .sums = host_span(c->sums + kv_head_first * GROUP)};
    const struct attend_rest_operation rest = {.rows = &rows, .layout = &c->layout};
    struct error error;
    operations->attend_rows(fixture->streams[device], &rows);
    if (with_rest) operations->attend_rest(fixture->streams[device], &rest);
    assert_ok(operations->stream_synchronize(fixture->streams[device], &error), error);
}

static double as_softmax_sees(const struct cluster_case *c, double product) {
    const double score = product * (double)c->scale;
    return c->softcap > 0 ? (double)c->softcap * tanh(score / (double)c->softcap) : score;
}

/* Every row by itself: as it is, or as its cluster.  Where those of clusters are alike, all rows as they are: this is
 * attention to everything. */
static void check_rest(const struct cluster_case *c, size_t head) {
    const size_t kv_head = head / GROUP;
    const uint64_t full = c->length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    double values[V_DIMENSION] = {0}, sum = 0;
    for (uint64_t t = 0, next = 0; t < c->length; t++) {
        const bool is_listed = next < c->lists[kv_head].count && row_list_host(&c->lists[kv_head])[next] == t;
        const bool as_it_is = is_listed || c->is_alike;
        const struct cluster_block block = block_of(c, kv_head, t);
        const size_t cluster = is_listed || t >= full ? 0 : block.of_tokens[t % KV_CHUNK_TOKENS];
        const float *key = c->keys + (kv_head * c->length + t) * DIMENSION,
                    *value = c->values + (kv_head * c->length + t) * V_DIMENSION;
        double product = 0;
        next += is_listed;
        assert_true(is_listed || t < full);
        for (size_t d = 0; d < DIMENSION; d++)
            product += (double)c->q[head * DIMENSION + d] *
                       (double)(as_it_is ? key[d] : half_to_float(block.centroids[cluster * DIMENSION + d]));
        const double weight = exp(as_softmax_sees(c, product));
        sum += weight;
        for (size_t d = 0; d < V_DIMENSION; d++)
            values[d] += weight * (double)(as_it_is ? value[d]
                                                    : half_to_float(block.values[cluster * V_DIMENSION + d]));
    }
    for (size_t d = 0; d < V_DIMENSION; d++)
        if (!(fabs((double)c->out[head * V_DIMENSION + d] - values[d] / sum) < 2e-3))
            fail_msg("head %zu: %.6f, expected %.6f", head, (double)c->out[head * V_DIMENSION + d],
                     values[d] / sum);
}

static void check_case(struct cluster_case *c, const struct fixture *fixture) {
    float first[HEADS * V_DIMENSION];
    for (size_t device = 0; device < DEVICES; device++) {
        for (size_t i = 0; i < KV_HEADS * CHUNKS_MAX; i++) memset(c->blocks[i], 0xff, c->layout.bytes);
        build(c, fixture, device, device == 1 ? 100 : c->length);
        for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++)
            for (uint64_t t = 0; t + KV_CHUNK_TOKENS <= c->length; t += KV_CHUNK_TOKENS)
                check_block(c, kv_head, t);
        check_choice(c, fixture, device);
        attend(c, fixture, device, 0, KV_HEADS, true);
        for (size_t head = 0; head < HEADS; head++) check_rest(c, head);
        if (device == 0) continue;
        if (device == 1) memcpy(first, c->out, sizeof first);
        assert_memory_equal(c->out, first, sizeof first);
        memset(c->out, 0, sizeof c->out);
        for (size_t kv_head = KV_HEADS; kv_head-- > 0;) attend(c, fixture, device, kv_head, 1, true);
        assert_memory_equal(c->out, first, sizeof first);
    }
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) { /* everything is listed */
        uint32_t *rows = c->rows + kv_head * c->length;
        for (uint64_t t = 0; t < c->length; t++) rows[t] = (uint32_t)t;
        c->lists[kv_head] = (struct row_list){host_span(rows), (size_t)c->length};
    }
    attend(c, fixture, 1, 0, KV_HEADS, false);
    memcpy(first, c->out, sizeof first);
    attend(c, fixture, 1, 0, KV_HEADS, true);
    assert_memory_equal(c->out, first, sizeof first);
}

static void clusters_and_the_rest(void **state) {
    (void)state;
    struct fixture fixture;
    device_variants_open(fixture.devices, fixture.streams, DEVICES);
    kernels_init(&fixture.kernels, 0);
    const uint64_t seed = test_seed(20261123);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct cluster_case c;
        /* The last is of several pieces of cpu_attend_rest.c. */
        case_init(&c, &fixture, seed + round, round + 1 == ROUNDS ? 9700 : 130 + 173 * round);
        check_case(&c, &fixture);
        case_deinit(&c);
    }
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(clusters_and_the_rest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
