/* A tree of boxes (kernels/tree): nodes of the start level are scored, in units of SCORE_TOKENS tokens, and the best
 * leaves are searched for below them, head by head. */
#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    (void)scratch;
    tree_build(&device->kernels.abstract, &(struct tree_build_args){.layout = &operation->layout->tree,
                                                                    .kv = unit->kv,
                                                                    .chunk = unit->chunk,
                                                                    .token_begin = unit->token_begin,
                                                                    .token_end = unit->token_end,
                                                                    .block = unit->block});
}

static bool builds_above(const struct key_index_layout *layout) { return tree_top(layout->tree.leaf) == TREE_RUN; }

/* The run that a unit's chunk fills up. */
static void build_above(const struct key_index_layout *layout, const struct build_unit *unit) {
    if (unit->token_end < KV_CHUNK_TOKENS || unit->chunk_index % TREE_RUN_CHUNKS != TREE_RUN_CHUNKS - 1) return;
    ASSERT(unit->block_first + TREE_RUN_CHUNKS == unit->chunk_index + 1);
    tree_build_run(&layout->tree, unit->blocks);
}

static size_t chunks_before(const struct key_index_layout *layout) {
    return builds_above(layout) ? TREE_RUN_CHUNKS - 1 : 0;
}

static const struct tree_layout *layout_of(const struct select_run *run) { return &run->operation->layout->tree; }

/* The level whose nodes are scored.  Fractions of a softmax over the leaves do not bound each other, so they cannot
 * be searched. */
static enum tree_level start_of(const struct choose_operation *operation) {
    return scores_by_head(operation) ? operation->layout->tree.leaf : operation->tree_start;
}

/* Whether the scored nodes are searched below; false: they are the leaves. */
static bool is_searched(const struct choose_operation *operation) {
    return start_of(operation) > operation->layout->tree.leaf;
}

static size_t score_count(const struct choose_operation *operation, const struct select_item *item) {
    uint64_t begin, end;
    tree_start_range(start_of(operation), item->candidate_begin, item->candidate_end, &begin, &end);
    return (size_t)(end - begin);
}

static size_t unit_nodes(const struct choose_operation *operation) {
    return (size_t)(SCORE_TOKENS / tree_tokens(start_of(operation)));
}

static size_t part_count(const struct choose_operation *operation, const struct select_item *item) {
    size_t nodes = score_count(operation, item), per_unit = unit_nodes(operation);
    return max_size((nodes + per_unit - 1) / per_unit, 1);
}

static size_t query_bytes(const struct select_run *run) {
    return align_up(tree_query_floats(layout_of(run), run->group) * sizeof(float), 64);
}

static size_t blocks_bytes(const struct select_run *run) {
    uint64_t end = 0;
    for (size_t i = 0; i < run->row_count; i++)
        if (run->rows[i].item->candidate_end > end) end = run->rows[i].item->candidate_end;
    return align_up((size_t)(end / KV_CHUNK_TOKENS + 1) * sizeof(void *), 64);
}

/* Prepares the query for boxes, in the first bytes of scratch, which it advances.  Every unit prepares its own, in
 * less than a microsecond: a phase for it would be a barrier before any node is scored. */
static const float *query_in(const struct select_run *run, size_t row, size_t kv_head, uint8_t **scratch) {
    float *query = (float *)(void *)*scratch;
    tree_query(layout_of(run), head_query(run, &run->rows[row], kv_head), run->kv->k_dimension, run->group, query);
    *scratch += query_bytes(run);
    return query;
}

/* Blocks of the chunks of tokens [begin, end), by chunk, in the first bytes of scratch, which it advances. */
static const void *const *find_blocks(const struct select_run *run, const struct select_item *item, size_t kv_head,
                                      uint64_t begin, uint64_t end, uint8_t **scratch) {
    const uint64_t first = begin / KV_CHUNK_TOKENS, chunk_end = (end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    void **blocks = (void **)(void *)*scratch;
    cpu_find_chunks(item->view.pools, head_key_index(item, kv_head) + first, (size_t)(chunk_end - first),
                    blocks + first);
    *scratch += blocks_bytes(run);
    return (const void *const *)blocks;
}

static void score_part(const struct select_run *run, size_t row, size_t kv_head, size_t part, uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    enum tree_level level = start_of(run->operation);
    uint64_t begin, end, first;
    ASSERT(level >= layout_of(run)->leaf);
    tree_start_range(level, item->candidate_begin, item->candidate_end, &begin, &end);
    first = begin + part * unit_nodes(run->operation);
    if (first >= end) return;
    if (end > first + unit_nodes(run->operation)) end = first + unit_nodes(run->operation);
    const float *query = query_in(run, row, kv_head, &scratch);
    const void *const *blocks =
        find_blocks(run, item, kv_head, first * tree_tokens(level), end * tree_tokens(level), &scratch);
    for (size_t head = 0; head < run->score_heads; head++)
        tree_score(&run->device->kernels.score,
                   &(struct tree_score_args){.layout = layout_of(run),
                                             .level = level,
                                             .blocks = blocks,
                                             .node_begin = first,
                                             .node_end = end,
                                             .query = query + head * tree_query_floats(layout_of(run), 1) / 2,
                                             .group = run->group / run->score_heads,
                                             .scores = head_scores(run, row, kv_head) + head * run->score_stride +
                                                       (first - begin),
                                             .scratch = scratch});
}

static bool find(const struct select_run *run, size_t row, size_t kv_head, uint32_t *indices, uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    if (!is_searched(run->operation)) return false;
    const float *query = query_in(run, row, kv_head, &scratch);
    const void *const *blocks = find_blocks(run, item, kv_head, item->candidate_begin, item->candidate_end, &scratch);
    tree_search(&run->device->kernels.score, &run->device->kernels.top_k,
                &(struct tree_search_args){
                    .layout = layout_of(run),
                    .blocks = blocks,
                    .token_begin = item->candidate_begin,
                    .token_end = item->candidate_end,
                    .k = (size_t)(select_item_picks(item, kv_head) / run->operation->layout->unit_tokens),
                    .query = query,
                    .group = run->group,
                    .start = run->operation->tree_start,
                    .start_scores = head_scores(run, row, kv_head),
                    .indices = indices,
                    .counts = &run->tree_counts[row * run->operation->kv_head_count + kv_head],
                    .scratch = scratch});
    return true;
}

static void count_searches(const struct select_run *run) {
    const struct choose_operation *operation = run->operation;
    if (operation->tree_counts == NULL || run->tree_counts == NULL) return;
    size_t heads = operation->kv_head_count;
    enum tree_level leaf = layout_of(run)->leaf;
    for (size_t i = 0; i < run->row_count * heads; i++) {
        const struct select_row *row = &run->rows[i / heads];
        struct tree_counts *counts = &run->tree_counts[i];
        if (!is_searched(operation) && cpu_head_is_scored(row->item, i % heads)) {
            counts->searches = 1;
            counts->tokens = row->item->candidate_end - row->item->candidate_begin;
            counts->leaves = counts->tokens / tree_tokens(leaf);
            counts->nodes[leaf] = counts->evaluated[leaf] = counts->leaves;
        }
        tree_counts_add(operation->tree_counts, counts);
    }
}

static size_t scratch_bytes(const struct select_run *run) {
    size_t bytes = tree_score_scratch_bytes(layout_of(run));
    for (size_t i = 0; i < run->row_count && is_searched(run->operation); i++) {
        const struct select_item *item = run->rows[i].item;
        bytes = max_size(bytes, tree_search_scratch_bytes(layout_of(run), &run->device->kernels.top_k,
                                                          item->candidate_end - item->candidate_begin));
    }
    return query_bytes(run) + blocks_bytes(run) + bytes;
}

static const struct cpu_search search = {.score_count = score_count,
                                         .part_count = part_count,
                                         .score_part = score_part,
                                         .find = find,
                                         .count = count_searches};
const struct cpu_scorer cpu_scorer_tree = {.build = build,
                                           .chunks_before = chunks_before,
                                           .build_above = build_above,
                                           .builds_above = builds_above,
                                           .scratch_bytes = scratch_bytes,
                                           .search = &search};
