/* Scores of tokens by the levels of their rotated keys: kernels/level. */
#include <string.h>

#include "device/cpu/cpu_scorer_internal.h"

/* x . the rotation of a KV head. */
static void rotate(const struct cpu_device *device, const uint16_t *weights, size_t kv_head, size_t dimension,
                   const float *x, float *out) {
    device->kernels.project.rows(&(struct project_args){.weights = weights + kv_head * dimension * dimension,
                                                        .dimension = dimension,
                                                        .columns = dimension,
                                                        .x = x,
                                                        .x_stride = dimension,
                                                        .count = 1,
                                                        .out = out,
                                                        .out_stride = dimension});
}

/* Codes are around the mean of a chunk's keys, so they come with its last token; until then nobody chooses from it. */
static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct level_layout *layout = &operation->layout->level;
    const size_t dimension = unit->kv->k_dimension;
    struct build_unit all = *unit;
    all.token_begin = 0;
    if (unit->token_begin == 0 && unit->token_end < KV_CHUNK_TOKENS) memset(unit->block, 0, layout->bytes);
    if (unit->token_end < KV_CHUNK_TOKENS) return;
    cpu_load_keys(device, &all, scratch);
    if (layout->spread_offset != 0) level_set_spread(layout, unit->block, scratch->keys);
    for (size_t i = 0; i < KV_CHUNK_TOKENS; i++) {
        float rotated[LEVEL_DIMENSION_MAX], *key = scratch->keys + i * dimension;
        rotate(device, cpu_halves(operation->weights), unit->kv_head, dimension, key, rotated);
        memcpy(key, rotated, dimension * sizeof *key);
    }
    level_set_center(layout, unit->block, scratch->keys);
    for (size_t i = 0; i < KV_CHUNK_TOKENS; i++) level_store(layout, unit->block, i, scratch->keys + i * dimension);
}

static size_t query_bytes(const struct key_index_layout *layout, size_t group) {
    return group * level_query_bytes(&layout->level);
}

/* Rotated queries; where one score is wanted of the group, their sum. */
static void prepare(const struct select_run *run, size_t kv_head, const float *q, void *prepared) {
    const struct choose_operation *operation = run->operation;
    const struct level_layout *layout = &operation->layout->level;
    const size_t dimension = run->kv->k_dimension, bytes = level_query_bytes(layout);
    const bool apart = scores_by_head(operation);
    float rotated[LEVEL_DIMENSION_MAX], sum[LEVEL_DIMENSION_MAX] = {0};
    for (size_t head = 0; head < run->group; head++) {
        rotate(run->device, cpu_halves(operation->weights), kv_head, dimension, q + head * dimension, rotated);
        if (apart) level_prepare(layout, rotated, (char *)prepared + head * bytes);
        for (size_t j = 0; !apart && j < dimension; j++) sum[j] += rotated[j];
    }
    if (!apart) level_prepare(layout, sum, prepared);
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct level_layout *layout = &run->operation->layout->level;
    (void)scratch;
    run->device->kernels.level.score(&(struct level_score_args){
        .layout = layout,
        .blocks = range->blocks,
        .token_begin = range->begin,
        .token_end = range->end,
        .queries = prepared_query(run, range->row, range->kv_head) + range->head_first * level_query_bytes(layout),
        .heads = scores_by_head(run->operation) ? range->head_count : 1,
        .then = range->then,
        .scores = scores,
        .stride = range->stride});
}

const struct cpu_scorer cpu_scorer_level = {
    .build = build, .query_bytes = query_bytes, .prepare = prepare, .score = score, .scores_apart = true};
