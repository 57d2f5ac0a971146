/* Scores of tokens by a code and a norm of each key: kernels/hash. */
#include <math.h>

#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct hash_layout *layout = &operation->layout->hash;
    const size_t dimension = unit->kv->k_dimension, count = unit->token_end - unit->token_begin;
    cpu_load_keys(device, unit, scratch);
    device->kernels.hash.encode(
        &(struct hash_encode_args){.weights = cpu_halves(operation->weights) + unit->kv_head * dimension * layout->bits,
                                   .dimension = dimension,
                                   .bits = layout->bits,
                                   .x = scratch->keys,
                                   .x_stride = dimension,
                                   .count = count,
                                   .codes = scratch->codes,
                                   .norms = scratch->norms});
    for (size_t i = 0; i < count; i++)
        hash_store(layout, unit->block, unit->token_begin + i, scratch->codes + i * layout->code_bytes,
                   scratch->norms[i]);
}

static size_t query_bytes(const struct key_index_layout *layout, size_t group) {
    return align_up(group * layout->hash.code_bytes, 64);
}

static void prepare(const struct select_run *run, size_t kv_head, const float *q, void *prepared) {
    const struct choose_operation *operation = run->operation;
    const struct hash_layout *layout = &operation->layout->hash;
    size_t dimension = run->kv->k_dimension;
    run->device->kernels.hash.encode(
        &(struct hash_encode_args){.weights = cpu_halves(operation->weights) + kv_head * dimension * layout->bits,
                                   .dimension = dimension,
                                   .bits = layout->bits,
                                   .x = q,
                                   .x_stride = dimension,
                                   .count = run->group,
                                   .codes = prepared});
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct key_index_layout *layout = run->operation->layout;
    const uint8_t *query =
        prepared_query(run, range->row, range->kv_head) + range->head_first * layout->hash.code_bytes;
    run->device->kernels.hash.score(&(struct hash_score_args){.layout = &layout->hash,
                                                              .blocks = range->blocks,
                                                              .token_begin = range->begin,
                                                              .token_end = range->end,
                                                              .codes = query,
                                                              .group = range->head_count,
                                                              .use_norms = layout->use_norms,
                                                              .then = range->then,
                                                              .scores = scores,
                                                              .scratch = scratch});
}

static size_t scratch_bytes(const struct select_run *run) {
    return run->device->kernels.hash.score_scratch_bytes(&run->operation->layout->hash, run->group);
}

/* A score is the agreement of two codes times
 *
 * k
 *
 * ; the factor
 *
 * q
 *
 * is missing.
 */
static float head_scale(const struct select_run *run, const float *q) {
    double squares = 0;
    for (size_t d = 0; d < run->kv->k_dimension; d++) squares += (double)q[d] * (double)q[d];
    return (float)sqrt(squares);
}

const struct cpu_scorer cpu_scorer_hash = {.build = build,
                                           .query_bytes = query_bytes,
                                           .prepare = prepare,
                                           .score = score,
                                           .scratch_bytes = scratch_bytes,
                                           .head_scale = head_scale};
