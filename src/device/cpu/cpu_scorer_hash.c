/* Scores of tokens by a code and a norm of each key: kernels/hash. */
#include <math.h>

#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

static void build_signs(const struct cpu_device *device, const struct key_index_operation *operation,
                        const struct build_unit *unit, const struct build_scratch *scratch, size_t count) {
    const struct hash_layout *layout = &operation->layout->hash;
    const size_t dimension = unit->kv->k_dimension;
    device->kernels.hash.encode(
        &(struct hash_encode_args){.weights = operation->weights + unit->kv_head * dimension * layout->bits,
                                   .dimension = dimension,
                                   .bits = layout->bits,
                                   .x = scratch->keys,
                                   .x_stride = dimension,
                                   .count = count,
                                   .codes = scratch->codes,
                                   .norms = scratch->norms});
}

/* x . the rotation of a KV head. */
static void rotate(const struct cpu_device *device, const uint16_t *weights, size_t kv_head, size_t dimension,
                   const float *x, size_t count, float *out) {
    device->kernels.project.rows(&(struct project_args){.weights = weights + kv_head * dimension * dimension,
                                                        .dimension = dimension,
                                                        .columns = dimension,
                                                        .x = x,
                                                        .x_stride = dimension,
                                                        .count = count,
                                                        .out = out,
                                                        .out_stride = dimension});
}

static void build_levels(const struct cpu_device *device, const struct key_index_operation *operation,
                         const struct build_unit *unit, const struct build_scratch *scratch, size_t count) {
    const struct hash_layout *layout = &operation->layout->hash;
    const size_t dimension = unit->kv->k_dimension;
    for (size_t i = 0; i < count; i++) {
        float rotated[HASH_BITS_MAX];
        rotate(device, operation->weights, unit->kv_head, dimension, scratch->keys + i * dimension, 1,
               rotated);
        hash_levels(rotated, dimension, layout->bits, scratch->codes + i * layout->code_bytes,
                    &scratch->norms[i]);
    }
}

static void build(const struct cpu_device *device, const struct key_index_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct hash_layout *layout = &operation->layout->hash;
    const size_t count = unit->token_end - unit->token_begin;
    cpu_load_keys(device, unit, scratch);
    (operation->layout->by_level ? build_levels : build_signs)(device, operation, unit, scratch, count);
    for (size_t i = 0; i < count; i++)
        hash_store(layout, unit->block, unit->token_begin + i, scratch->codes + i * layout->code_bytes,
                   scratch->norms[i]);
}

/* Of one query head. */
static size_t head_bytes(const struct key_index_layout *layout) {
    return layout->by_level ? layout->hash.bits * sizeof(float) : layout->hash.code_bytes;
}

static size_t query_bytes(const struct key_index_layout *layout, size_t group) {
    return align_up(group * head_bytes(layout), 64);
}

/* Rotated queries; where one score is wanted of the group, their sum in the place of the first. */
static void prepare_values(const struct select_run *run, size_t kv_head, const float *q, float *values) {
    const struct choose_operation *operation = run->operation;
    const size_t dimension = run->kv->k_dimension, bits = operation->layout->hash.bits;
    for (size_t head = 0; head < run->group; head++) {
        float *own = values + head * bits;
        rotate(run->device, operation->weights, kv_head, dimension, q + head * dimension, 1, own);
        hash_level_values(own, dimension, bits, own);
        for (size_t j = 0; head > 0 && !scores_by_head(operation) && j < bits; j++) values[j] += own[j];
    }
}

static void prepare(const struct select_run *run, size_t kv_head, const float *q, void *prepared) {
    const struct choose_operation *operation = run->operation;
    const struct hash_layout *layout = &operation->layout->hash;
    size_t dimension = run->kv->k_dimension;
    if (operation->layout->by_level) {
        prepare_values(run, kv_head, q, prepared);
        return;
    }
    run->device->kernels.hash.encode(
        &(struct hash_encode_args){.weights = operation->weights + kv_head * dimension * layout->bits,
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
        prepared_query(run, range->row, range->kv_head) + range->head_first * head_bytes(layout);
    run->device->kernels.hash.score(
        &(struct hash_score_args){.layout = &layout->hash,
                                  .blocks = range->blocks,
                                  .token_begin = range->begin,
                                  .token_end = range->end,
                                  .codes = query,
                                  .values = layout->by_level ? (const float *)(const void *)query : NULL,
                                  .group = layout->by_level ? 1 : range->head_count,
                                  .use_norms = layout->use_norms,
                                  .then = range->then,
                                  .scores = scores,
                                  .scratch = scratch});
}

static size_t scratch_bytes(const struct select_run *run) {
    return run->device->kernels.hash.score_scratch_bytes(&run->operation->layout->hash, run->group);
}

/* A score is the agreement of two codes times |k|, so |q| is missing; by level it is an estimate of q . k. */
static float head_scale(const struct select_run *run, const float *q) {
    double squares = 0;
    if (run->operation->layout->by_level) return 1;
    for (size_t d = 0; d < run->kv->k_dimension; d++) squares += (double)q[d] * (double)q[d];
    return (float)sqrt(squares);
}

const struct cpu_scorer cpu_scorer_hash = {.build = build,
                                           .query_bytes = query_bytes,
                                           .prepare = prepare,
                                           .score = score,
                                           .scratch_bytes = scratch_bytes,
                                           .head_scale = head_scale};
