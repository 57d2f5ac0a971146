/* Key indexes on the card: codes by level (kernels/level), means and deviations of pages (kernels/abstract), and trees
 * of boxes (kernels/tree), of which it scores every leaf. */
#include "device/cuda/cuda_key_index.h"

#include <stdio.h>

#include "base/checked.h"
#include "device/cuda/kernels_look.h"

_Static_assert((int)TREE_LEVELS == (int)TREE_LEVEL_COUNT && (int)TREE_CHUNK_LEVEL == (int)TREE_64 &&
                   (int)TREE_RUN_LENGTH == (int)TREE_RUN_CHUNKS,
               "levels of a tree");

/* ---- what it can ---- */

/* Lists are whole units of 8 tokens, as the bus moves them. */
static const char *chooses_by_level(const struct key_index_layout *layout) {
    const size_t planes = layout->level.planes;
    if (layout->unit_tokens % UNIT_TOKENS != 0) return "--set page=8";
    if (planes != 1 && planes != 2 && planes != 4) return "--set planes=1";
    return layout->aggregate == SCORE_SOFTMAX && layout->level.dimension % 32 == 0 ? "" : "--preset full";
}

/* What lies beside the keys of pages, or of leaves of a tree. */
struct page_layout {
    size_t dimension, tokens, offset; /* offset: of page 0 in a block */
    bool is_box;
};
static struct page_layout pages_of(const struct key_index_layout *layout) {
    const struct abstract_layout *pages = &layout->abstract;
    const struct tree_layout *tree = &layout->tree;
    if (layout->kind == KEY_INDEX_TREE)
        return (struct page_layout){tree->dimension, (size_t)tree_tokens(tree->leaf), tree->offset[tree->leaf], true};
    return (struct page_layout){pages->dimension, pages->page_tokens, pages->offset[ABSTRACT_MEAN_DEVIATION], false};
}

static bool is_spread(const struct key_index_layout *layout) {
    if (layout->kind == KEY_INDEX_TREE) return layout->tree.rank == TREE_MEAN_DEVIATION;
    return layout->kind == KEY_INDEX_ABSTRACT && layout->abstract_kind == ABSTRACT_MEAN_DEVIATION;
}

const char *cuda_chooses_by(const struct key_index_layout *layout, float alpha) {
    if (layout->sample_count != 0) return "it without --receipt and --loss"; /* no kernel reads sampled keys */
    if (layout->has_bounds || alpha != 0) return "--preset full";
    if (layout->kind == KEY_INDEX_LEVEL) return chooses_by_level(layout);
    return is_spread(layout) ? "" : "--preset full";
}

size_t cuda_query_bytes(const struct key_index_layout *layout) {
    return layout->kind == KEY_INDEX_LEVEL ? level_query_bytes(&layout->level) : 0;
}

uint32_t cuda_score_heads(const struct key_index_layout *layout, uint32_t group) {
    return layout->aggregate == SCORE_SOFTMAX ? group : 0;
}

/* ---- building ---- */

/* Items that share their pools, from the first on. */
struct building {
    const struct key_index_build_operation *operation;
    struct stream *stream;
    uint64_t step, rows, items, pools; /* rows: of a graph */
    size_t pieces;                     /* chunks, or runs of them, that an item's rows may touch */
    uint32_t item_count;
};

static void level_build(const struct building *b) {
    const struct level_layout *level = &b->operation->layout->level;
    const struct cuda_look_build_args args = {.build = {.step = b->step,
                                                        .items = b->items,
                                                        .pools = b->pools,
                                                        .rows = b->rows,
                                                        .rotation = cuda_address(b->operation->weights),
                                                        .shape = cuda_shape_of(b->operation->items[0].view.layout),
                                                        .item_count = b->item_count,
                                                        .factors_offset = (uint32_t)level->factors_offset,
                                                        .center_offset = (uint32_t)level->center_offset,
                                                        .step_size = level_step(level->planes)},
                                              .spread_offset = (uint32_t)level->spread_offset};
    char name[CUDA_KERNEL_NAME_MAX];
    snprintf(name, sizeof name, "level_build_%zu", level->planes);
    cuda_work_launch(b->stream, name,
                     (struct cuda_shape){(uint32_t)b->pieces, (uint32_t)b->operation->kv_head_count, b->item_count, 256,
                                         level_build_shared((uint32_t)level->dimension)},
                     &args);
}

static void spread_build(const struct building *b) {
    const struct page_layout pages = pages_of(b->operation->layout);
    const struct cuda_spread_build_args args = {.step = b->step,
                                                .items = b->items,
                                                .pools = b->pools,
                                                .rows = b->rows,
                                                .shape = cuda_shape_of(b->operation->items[0].view.layout),
                                                .item_count = b->item_count,
                                                .page_tokens = (uint32_t)pages.tokens,
                                                .offset = (uint32_t)pages.offset};
    cuda_work_launch(
        b->stream, "spread_build",
        (struct cuda_shape){(uint32_t)b->pieces, (uint32_t)b->operation->kv_head_count, b->item_count, 256, 0}, &args);
}

static void tree_build_boxes(const struct building *b) {
    const struct tree_layout *tree = &b->operation->layout->tree;
    struct cuda_tree_build_args args = {.step = b->step,
                                        .items = b->items,
                                        .pools = b->pools,
                                        .rows = b->rows,
                                        .shape = cuda_shape_of(b->operation->items[0].view.layout),
                                        .item_count = b->item_count,
                                        .leaf = tree->leaf,
                                        .has_runs = tree_top(tree->leaf) == TREE_RUN};
    for (size_t level = 0; level < TREE_LEVELS; level++) args.offset[level] = (uint32_t)tree->offset[level];
    cuda_work_launch(
        b->stream, "tree_build",
        (struct cuda_shape){(uint32_t)b->pieces, (uint32_t)b->operation->kv_head_count, b->item_count, 128, 0}, &args);
}

/* Pieces of so many tokens that an item's rows are in. */
static size_t pieces_touched(const struct attend_item *item, size_t tokens) {
    const uint64_t end = item->position_first + item->row_count;
    return (size_t)((end + tokens - 1) / tokens - item->position_first / tokens);
}

static void build(const struct building *b) {
    const enum key_index_kind kind = b->operation->layout->kind;
    if (kind == KEY_INDEX_LEVEL) level_build(b);
    if (kind == KEY_INDEX_ABSTRACT) spread_build(b);
    if (kind == KEY_INDEX_TREE) tree_build_boxes(b);
}

void cuda_key_index_build(struct stream *stream, const struct key_index_build_operation *operation) {
    const struct attend_item *items = operation->items;
    const size_t tokens = KV_CHUNK_TOKENS * (operation->layout->kind == KEY_INDEX_TREE ? TREE_RUN_CHUNKS : 1);
    struct staged_views views;
    cuda_device_enter(stream->device);
    if (cuda_rows_of(items, 0, operation->item_count) == 0) return;
    if (!cuda_views_stage(stream, &views, items, operation->item_count, NULL, operation->step)) return;
    for (size_t first = 0, end; first < operation->item_count; first = end) {
        struct building building = {.operation = operation,
                                    .stream = stream,
                                    .step = views.card_head,
                                    .items = views.card_items + first * sizeof(struct step_item),
                                    .pools = views.card_pools + first * sizeof(struct cuda_pools),
                                    .rows =
                                        stream->made != NULL ? views.card_rows + first * sizeof(struct step_row) : 0};
        for (end = first; end < operation->item_count && items[end].view.pools == items[first].view.pools; end++)
            building.pieces = max_size(building.pieces, pieces_touched(&items[end], tokens));
        building.item_count = (uint32_t)(end - first);
        build(&building);
    }
    cuda_work_done(stream);
}

/* ---- scores ---- */

/* Chunks that lists look into. */
static void chunks_look(const struct cuda_scoring *s, const struct cuda_level_score_args *score, uint64_t q) {
    const struct level_layout *level = &s->operation->layout->level;
    const uint32_t rows = score->row_count;
    const struct cuda_chunks_score_args chunks = {.rows = score->rows,
                                                  .items = score->items,
                                                  .pools = score->pools,
                                                  .queries = score->queries,
                                                  .scores = s->scores,
                                                  .q = q,
                                                  .lists = s->lists,
                                                  .limits = s->limits,
                                                  .row_count = rows,
                                                  .kv_head_count = s->kv_heads,
                                                  .group = s->group,
                                                  .query_bytes = score->query_bytes,
                                                  .dimension = score->dimension,
                                                  .q_stride = (uint32_t)s->operation->q_stride,
                                                  .center_offset = score->center_offset,
                                                  .spread_offset = (uint32_t)level->spread_offset,
                                                  .chunk_stride = s->chunk_stride,
                                                  .scale = score->scale};
    const struct cuda_choose_args choose = {.scores = s->scores,
                                            .keys = s->ranks,
                                            .chosen = s->looked,
                                            .lists = s->lists,
                                            .limits = s->limits,
                                            .row_count = rows,
                                            .kv_head_count = s->kv_heads,
                                            .unit_stride = s->chunk_stride,
                                            .group = s->group};
    cuda_work_launch(s->stream, "chunks_score",
                     (struct cuda_shape){(s->chunk_stride + LOOK_CHUNKS - 1) / LOOK_CHUNKS, s->kv_heads, rows, 256, 0},
                     &chunks);
    cuda_work_launch(s->stream, "chunks_choose",
                     (struct cuda_shape){s->kv_heads, rows, 1, 1024, sizeof(struct choose_shared)}, &choose);
}

static void level_score(const struct cuda_scoring *s, size_t first, uint32_t rows) {
    const struct choose_operation *operation = s->operation;
    const struct level_layout *level = &operation->layout->level;
    const uint32_t dimension = (uint32_t)level->dimension, query_bytes = (uint32_t)cuda_query_bytes(operation->layout);
    const struct cuda_level_query_args query = {
        .q = cuda_address(span_floats(operation->q, operation->items[first].row * operation->q_stride)),
        .rotation = cuda_address(operation->weights),
        .queries = s->queries,
        .row_count = rows,
        .q_stride = (uint32_t)operation->q_stride,
        .k_dimension = dimension,
        .head_count = s->heads,
        .group = s->group,
        .query_bytes = query_bytes,
        .planes = (uint32_t)level->planes};
    cuda_work_launch(s->stream, "level_query",
                     (struct cuda_shape){s->heads, rows, 1, 128, 2 * dimension * sizeof(float)}, &query);
    const struct cuda_look_score_args score = {
        .score = {.rows = s->views.card_rows + first * sizeof(struct step_row),
                  .items = s->views.card_items,
                  .pools = s->views.card_pools + first * sizeof(struct cuda_pools),
                  .queries = s->queries,
                  .scores = s->scores,
                  .lists = s->lists,
                  .limits = s->limits,
                  .row_count = rows,
                  .kv_head_count = s->kv_heads,
                  .group = s->group,
                  .query_bytes = query_bytes,
                  .dimension = dimension,
                  .factors_offset = (uint32_t)level->factors_offset,
                  .center_offset = (uint32_t)level->center_offset,
                  .unit_stride = s->unit_stride,
                  .scale = operation->scale,
                  .unit_tokens = (uint32_t)operation->layout->unit_tokens},
        .looked = s->looked,
        .chunk_stride = s->chunk_stride};
    char name[CUDA_KERNEL_NAME_MAX];
    snprintf(name, sizeof name, "level_score_%zu", level->planes);
    uint32_t chunks = (s->unit_stride * score.score.unit_tokens + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    if (s->looked != 0) {
        chunks = (uint32_t)min_size(chunks, s->chunks_most);
        chunks_look(s, &score.score, query.q);
    }
    const uint32_t parts = (s->group + LEVEL_SCORE_HEADS - 1) / LEVEL_SCORE_HEADS;
    cuda_work_launch(s->stream, name, (struct cuda_shape){(chunks + 7) / 8, s->kv_heads * parts, rows, 256, 0}, &score);
}

static enum spread_aggregate spread_aggregate_of(enum score_aggregate aggregate) {
    switch (aggregate) {
    case SCORE_MAX: return SPREAD_GREATEST;
    case SCORE_SUM: return SPREAD_TOGETHER;
    case SCORE_SOFTMAX: break;
    }
    return SPREAD_APART;
}

static void spread_score(const struct cuda_scoring *s, size_t first, uint32_t rows) {
    const struct choose_operation *operation = s->operation;
    const struct key_index_layout *layout = operation->layout;
    const struct page_layout pages = pages_of(layout);
    const float log2e = 1.44269504f;
    const struct cuda_spread_score_args score = {
        .rows = s->views.card_rows + first * sizeof(struct step_row),
        .items = s->views.card_items,
        .pools = s->views.card_pools + first * sizeof(struct cuda_pools),
        .q = cuda_address(span_floats(operation->q, operation->items[first].row * operation->q_stride)),
        .scores = s->scores,
        .lists = s->lists,
        .limits = s->limits,
        .row_count = rows,
        .q_stride = (uint32_t)operation->q_stride,
        .kv_head_count = s->kv_heads,
        .group = s->group,
        .dimension = (uint32_t)pages.dimension,
        .page_tokens = (uint32_t)pages.tokens,
        .unit_tokens = (uint32_t)layout->unit_tokens,
        .offset = (uint32_t)pages.offset,
        .unit_stride = s->unit_stride,
        .aggregate = spread_aggregate_of(layout->aggregate),
        .factor = layout->aggregate == SCORE_SOFTMAX ? operation->scale * log2e : 1,
        .is_box = pages.is_box};
    const uint32_t unit_pages = score.unit_tokens / score.page_tokens;
    cuda_work_launch(s->stream, "spread_score",
                     (struct cuda_shape){(s->unit_stride * unit_pages + SPREAD_PAGES - 1) / SPREAD_PAGES, s->kv_heads,
                                         rows, 256, spread_score_shared(s->group, score.dimension)},
                     &score);
}

void cuda_score(const struct cuda_scoring *scoring, size_t first, uint32_t rows) {
    if (scoring->operation->layout->kind == KEY_INDEX_LEVEL)
        level_score(scoring, first, rows);
    else
        spread_score(scoring, first, rows);
}
