/* Scores of tokens by their keys' projections on a few columns: kernels/project, kernels/score. */
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    size_t dimension = unit->kv->k_dimension, columns = operation->layout->columns;
    cpu_load_keys(device, unit, scratch);
    device->kernels.project.rows(
        &(struct project_args){.weights = cpu_halves(operation->weights) + unit->kv_head * dimension * columns,
                               .dimension = dimension,
                               .columns = columns,
                               .x = scratch->keys,
                               .x_stride = dimension,
                               .count = unit->token_end - unit->token_begin,
                               .out_halves = (uint16_t *)unit->block + unit->token_begin * columns,
                               .out_stride = columns});
}

static size_t query_bytes(const struct key_index_layout *layout, size_t group) {
    return align_up(group * layout->columns * sizeof(float), 64);
}

static void prepare(const struct select_run *run, size_t kv_head, const float *q, void *prepared) {
    const struct choose_operation *operation = run->operation;
    size_t dimension = run->kv->k_dimension, columns = operation->layout->columns;
    run->device->kernels.project.rows(
        &(struct project_args){.weights = cpu_halves(operation->weights) + kv_head * dimension * columns,
                               .dimension = dimension,
                               .columns = columns,
                               .x = q,
                               .x_stride = dimension,
                               .count = run->group,
                               .out = prepared,
                               .out_stride = columns});
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct key_index_layout *layout = run->operation->layout;
    const float *queries = (const float *)(const void *)prepared_query(run, range->row, range->kv_head);
    run->device->kernels.score.rows(&(struct score_args){.blocks = range->blocks,
                                                         .block_rows = KV_CHUNK_TOKENS,
                                                         .columns = layout->columns,
                                                         .row_begin = range->begin,
                                                         .row_end = range->end,
                                                         .q = queries + range->head_first * layout->columns,
                                                         .q_stride = layout->columns,
                                                         .heads = range->head_count,
                                                         .aggregate = layout->aggregate,
                                                         .then = range->then,
                                                         .scores = scores,
                                                         .scratch = scratch});
}

static size_t scratch_bytes(const struct select_run *run) {
    return run->device->kernels.score.scratch_bytes(run->operation->layout->columns);
}

static const struct cpu_scorer scorer = {
    .build = build, .query_bytes = query_bytes, .prepare = prepare, .score = score, .scratch_bytes = scratch_bytes};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_PARTIAL, &scorer); }
