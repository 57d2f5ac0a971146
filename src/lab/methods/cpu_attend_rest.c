/* attend_rest on the cpu: attention to the rows that are not listed, each as its cluster (lab/methods/cluster.h).
 *
 * Of a cluster with centroid c, mean value v and n rows that are not listed, with the listed rows' greatest score m and
 * sum s, and their output o:
 *
 *   o' = (s o + sum of n exp(q.c - m) v) / (s + sum of n exp(q.c - m))
 *
 * A unit of work is one KV head of a row. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"
#include "lab/methods/cluster.h"

enum { PIECE = 512, DIMENSION_MAX = 1024 }; /* clusters at a time, of whole chunks */

static const float NEGLIGIBLE = 1e-6F; /* of what is there so far: its value is not read */

/* A query head's attention so far: un-normalised, by the greatest score. */
struct rest_head {
    float top, sum, values[DIMENSION_MAX];
    bool is_begun;
};

struct rester {
    const struct heads_run *run;
    const struct key_index_layout *layout;
    void **blocks; /* [PIECE]: of the piece's chunks, the first of which is: */
    uint64_t chunk_first;
    float *scores, *weights; /* [PIECE] */
    uint8_t *left;           /* [PIECE]: rows of a cluster that are not listed */
    struct rest_head *heads; /* [group] */
    void *score_scratch;
};

static struct rester rester_in(const struct heads_run *run, struct layout *scratch) {
    const struct attend_rest_operation *operation = run->operation;
    struct rester rester = {.run = run, .layout = operation->layout};
    rester.scores = layout_take(scratch, PIECE, sizeof *rester.scores);
    rester.weights = layout_take(scratch, PIECE, sizeof *rester.weights);
    rester.left = layout_take(scratch, PIECE, sizeof *rester.left);
    rester.blocks = layout_take(scratch, PIECE, sizeof *rester.blocks);
    rester.heads = layout_take(scratch, run->group, sizeof *rester.heads);
    rester.score_scratch = layout_take(scratch, 1, run->device->kernels.score.scratch_bytes(run->kv->k_dimension));
    return rester;
}

static struct cluster_block block_of(const struct rester *rester, uint64_t chunk) {
    const struct kv_layout *kv = rester->run->kv;
    return cluster_block_of(rester->blocks[chunk - rester->chunk_first], rester->layout->cluster_count, kv->k_dimension,
                            kv->v_dimension);
}

/* Counts what chunks [first, end) have of rows that are not listed, from the entry *next on; whether it is any. */
static bool count_left(const struct rester *rester, uint64_t first, uint64_t end, const struct row_list *list,
                       size_t *next) {
    const size_t count = rester->layout->cluster_count;
    const uint32_t *rows = cpu_rows(*list);
    bool any = false;
    for (uint64_t chunk = first; chunk < end; chunk++) {
        const struct cluster_block block = block_of(rester, chunk);
        uint8_t *left = rester->left + (chunk - first) * count;
        memcpy(left, block.sizes, count);
        for (; *next < list->count && rows[*next] < (chunk + 1) * KV_CHUNK_TOKENS; ++*next)
            left[block.of_tokens[rows[*next] % KV_CHUNK_TOKENS]]--;
        for (size_t i = 0; i < count; i++) any = any || left[i] > 0;
    }
    return any;
}

/* Weights n exp(score - top), by a top that no score is above. */
static void weigh(const struct rester *rester, const float *q, size_t clusters, struct rest_head *head) {
    const struct attend_rows_operation *rows = rester->run->rows;
    const size_t count = rester->layout->cluster_count, dimension = rester->run->kv->k_dimension;
    const float one = 1;
    float top = head->top;
    rester->run->device->kernels.score.rows(&(struct score_args){.blocks = (const void *const *)rester->blocks,
                                                                 .block_rows = count,
                                                                 .columns = dimension,
                                                                 .row_begin = 0,
                                                                 .row_end = clusters,
                                                                 .q = q,
                                                                 .q_stride = dimension,
                                                                 .heads = 1,
                                                                 .aggregate = SCORE_MAX,
                                                                 .scores = rester->scores,
                                                                 .scratch = rester->score_scratch});
    for (size_t i = 0; i < clusters; i++) {
        const float score = attention_score(rester->scores[i], rows->scale, rows->softcap);
        rester->scores[i] = rester->left[i] > 0 ? score : -INFINITY;
        top = rester->scores[i] > top ? rester->scores[i] : top;
    }
    memset(rester->weights, 0, clusters * sizeof *rester->weights);
    rester->run->device->kernels.mass.add(&(struct mass_add_args){.scores = rester->scores,
                                                                  .scores_stride = PIECE,
                                                                  .group = 1,
                                                                  .m = &top,
                                                                  .s = &one,
                                                                  .row_count = clusters,
                                                                  .mass = rester->weights});
    if (top > head->top) {
        const float shrinks = expf(head->top - top);
        head->sum *= shrinks;
        for (size_t d = 0; d < rester->run->kv->v_dimension; d++) head->values[d] *= shrinks;
        head->top = top;
    }
}

static void add_values(const struct rester *rester, uint64_t first, size_t clusters, struct rest_head *head) {
    const size_t count = rester->layout->cluster_count, v_dimension = rester->run->kv->v_dimension;
    for (size_t i = 0; i < clusters; i++) {
        const float weight = (float)rester->left[i] * rester->weights[i];
        if (rester->left[i] == 0 || weight <= NEGLIGIBLE * head->sum) continue;
        const uint16_t *halves = block_of(rester, first + i / count).values + i % count * v_dimension;
        float value[DIMENSION_MAX];
        rester->run->device->kernels.convert.dequantize[TENSOR_F16](halves, value, v_dimension);
        head->sum += weight;
        for (size_t d = 0; d < v_dimension; d++) head->values[d] += weight * value[d];
    }
}

/* The heads of a group begin with what attend_rows gave, when there is something to add. */
static void begin_head(struct rest_head *head, const float *out, struct softmax_sum sum, size_t v_dimension) {
    head->is_begun = true;
    head->top = sum.largest;
    head->sum = sum.sum;
    for (size_t d = 0; d < v_dimension; d++) head->values[d] = out[d] * sum.sum;
}

static void rest_unit(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch) {
    const struct attend_rows_operation *rows = run->rows;
    const struct rows_item *item = unit->item;
    struct rester rester = rester_in(run, scratch);
    const size_t count = rester.layout->cluster_count, v_dimension = run->kv->v_dimension, piece = PIECE / count;
    float *out = cpu_floats(rows->out) + item->row * rows->out_stride + unit->head * v_dimension;
    const uint64_t chunks = (item->position + 1) / KV_CHUNK_TOKENS; /* full ones: the last is in the window */
    size_t next = 0;
    for (size_t head = 0; head < run->group; head++) rester.heads[head].is_begun = false;
    for (uint64_t first = 0; first < chunks; first += piece) {
        const uint64_t end = first + piece < chunks ? first + piece : chunks;
        const size_t clusters = (size_t)(end - first) * count;
        rester.chunk_first = first;
        cpu_find_chunks(item->view.pools, unit->places + first, (size_t)(end - first), rester.blocks);
        if (!count_left(&rester, first, end, &unit->list, &next)) continue;
        for (size_t head = 0; head < run->group; head++) {
            struct rest_head *own = &rester.heads[head];
            if (!own->is_begun) begin_head(own, out + head * v_dimension, unit->sums[head], v_dimension);
            weigh(&rester, unit->q + head * run->kv->k_dimension, clusters, own);
            add_values(&rester, first, clusters, own);
        }
    }
    for (size_t head = 0; head < run->group; head++)
        for (size_t d = 0; d < v_dimension && rester.heads[head].is_begun; d++)
            out[head * v_dimension + d] = rester.heads[head].values[d] / rester.heads[head].sum;
}

static void attend_rest(struct stream *stream, const struct attend_rest_operation *operation) {
    const struct attend_rows_operation *rows = operation->rows;
    struct layout scratch = {0};
    if (rows->item_count == 0) return;
    const struct heads_run run = cpu_heads_of(stream, operation, rows);
    ASSERT(operation->layout->kind == KEY_INDEX_CLUSTER && operation->layout->cluster_count <= CLUSTERS_MAX);
    ASSERT(run.kv->v_dimension <= DIMENSION_MAX);
    (void)rester_in(&run, &scratch);
    cpu_run_heads(&run, scratch.used, rows->item_count * rows->kv_head_count == 1, rest_unit);
}

__attribute__((constructor)) static void add(void) { cpu_operations.attend_rest = attend_rest; }
