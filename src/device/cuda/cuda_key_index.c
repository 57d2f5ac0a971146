/* Key indexes on the card: codes by level (kernels/level), and means and deviations of pages (kernels/abstract). */
#include "device/cuda/cuda_key_index.h"

#include <stdio.h>

#include "base/checked.h"

enum { HEAD_MAX = 256 };

/* ---- what it can ---- */

static bool chooses_by_level(const struct key_index_layout *layout) {
    return layout->unit_tokens == UNIT_TOKENS && layout->aggregate == SCORE_SOFTMAX &&
           layout->level.dimension <= HEAD_MAX && layout->level.dimension % 32 == 0 &&
           (layout->level.planes == 1 || layout->level.planes == 2 || layout->level.planes == 4);
}

static bool chooses_by_spread(const struct key_index_layout *layout) {
    return layout->abstract_kind == ABSTRACT_MEAN_DEVIATION && layout->abstract.dimension <= HEAD_MAX;
}

bool cuda_chooses_by(const struct key_index_layout *layout, float alpha) {
    if (layout->sample_count != 0 || layout->has_bounds || alpha != 0) return false;
    return layout->kind == KEY_INDEX_ABSTRACT ? chooses_by_spread(layout)
                                              : layout->kind == KEY_INDEX_LEVEL && chooses_by_level(layout);
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
    size_t chunks;                     /* that an item's rows may touch */
    uint32_t item_count;
};

static void level_build(const struct building *b) {
    const struct level_layout *level = &b->operation->layout->level;
    const struct cuda_level_build_args args = {.step = b->step,
                                               .items = b->items,
                                               .pools = b->pools,
                                               .rows = b->rows,
                                               .rotation = cuda_address(b->operation->weights),
                                               .shape = cuda_shape_of(b->operation->items[0].view.layout),
                                               .item_count = b->item_count,
                                               .factors_offset = (uint32_t)level->factors_offset,
                                               .center_offset = (uint32_t)level->center_offset,
                                               .step_size = level_step(level->planes)};
    char name[CUDA_KERNEL_NAME_MAX];
    snprintf(name, sizeof name, "level_build_%zu", level->planes);
    cuda_work_launch(b->stream, name,
                     (struct cuda_shape){(uint32_t)b->chunks, (uint32_t)b->operation->kv_head_count,
                                         b->item_count, 256, level_build_shared((uint32_t)level->dimension)},
                     &args);
}

static void spread_build(const struct building *b) {
    const struct abstract_layout *pages = &b->operation->layout->abstract;
    const struct cuda_spread_build_args args = {.step = b->step,
                                                .items = b->items,
                                                .pools = b->pools,
                                                .rows = b->rows,
                                                .shape = cuda_shape_of(b->operation->items[0].view.layout),
                                                .item_count = b->item_count,
                                                .page_tokens = (uint32_t)pages->page_tokens,
                                                .offset = (uint32_t)pages->offset[ABSTRACT_MEAN_DEVIATION]};
    cuda_work_launch(b->stream, "spread_build",
                     (struct cuda_shape){(uint32_t)b->chunks, (uint32_t)b->operation->kv_head_count,
                                         b->item_count, 256, 0},
                     &args);
}

static size_t chunks_touched(const struct attend_item *item) {
    const uint64_t end = item->position_first + item->row_count;
    return (size_t)((end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS - item->position_first / KV_CHUNK_TOKENS);
}

void cuda_key_index_build(struct stream *stream, const struct key_index_build_operation *operation) {
    const struct attend_item *items = operation->items;
    struct staged_views views;
    cuda_device_enter(stream->device);
    if (cuda_rows_of(items, 0, operation->item_count) == 0) return;
    if (!cuda_views_stage(stream, &views, items, operation->item_count, operation->step)) return;
    for (size_t first = 0, end; first < operation->item_count; first = end) {
        struct building building = {
            .operation = operation,
            .stream = stream,
            .step = views.card_head,
            .items = views.card_items + first * sizeof(struct step_item),
            .pools = views.card_pools + first * sizeof(struct cuda_pools),
            .rows = stream->made != NULL ? views.card_rows + first * sizeof(struct step_row) : 0};
        for (end = first; end < operation->item_count && items[end].view.pools == items[first].view.pools;
             end++)
            building.chunks = max_size(building.chunks, chunks_touched(&items[end]));
        building.item_count = (uint32_t)(end - first);
        if (operation->layout->kind == KEY_INDEX_LEVEL)
            level_build(&building);
        else
            spread_build(&building);
    }
    cuda_work_done(stream);
}

/* ---- scores ---- */

static void level_score(const struct cuda_scoring *s, size_t first, uint32_t rows) {
    const struct choose_operation *operation = s->operation;
    const struct level_layout *level = &operation->layout->level;
    const uint32_t dimension = (uint32_t)level->dimension,
                   query_bytes = (uint32_t)cuda_query_bytes(operation->layout);
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
                     (struct cuda_shape){s->heads, rows, 1, 128, dimension * sizeof(float)}, &query);
    const struct cuda_level_score_args score = {
        .rows = s->views.card_rows + first * sizeof(struct step_row),
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
        .scale = operation->scale};
    char name[CUDA_KERNEL_NAME_MAX];
    snprintf(name, sizeof name, "level_score_%zu", level->planes);
    const uint32_t chunks = (s->unit_stride * UNIT_TOKENS + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    cuda_work_launch(s->stream, name,
                     (struct cuda_shape){(chunks + 7) / 8, s->kv_heads, rows, 256,
                                         (size_t)(s->group + 3) / 4 * 4 * query_bytes},
                     &score);
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
    const struct abstract_layout *pages = &layout->abstract;
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
        .dimension = (uint32_t)pages->dimension,
        .page_tokens = (uint32_t)pages->page_tokens,
        .unit_tokens = (uint32_t)layout->unit_tokens,
        .offset = (uint32_t)pages->offset[ABSTRACT_MEAN_DEVIATION],
        .unit_stride = s->unit_stride,
        .aggregate = spread_aggregate_of(layout->aggregate),
        .factor = layout->aggregate == SCORE_SOFTMAX ? operation->scale * log2e : 1};
    const uint32_t unit_pages = score.unit_tokens / score.page_tokens;
    cuda_work_launch(s->stream, "spread_score",
                     (struct cuda_shape){(s->unit_stride * unit_pages + SPREAD_PAGES - 1) / SPREAD_PAGES,
                                         s->kv_heads, rows, 256, spread_score_shared(s->group, score.dimension)},
                     &score);
}

void cuda_score(const struct cuda_scoring *scoring, size_t first, uint32_t rows) {
    if (scoring->operation->layout->kind == KEY_INDEX_LEVEL)
        level_score(scoring, first, rows);
    else
        spread_score(scoring, first, rows);
}
