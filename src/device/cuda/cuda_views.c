#include "device/cuda/cuda_views.h"

#include "base/assert.h"
#include "base/checked.h"

enum { STAGED_ALIGN = 64 };

/* False: a pool has more buffers than a kernel knows. */
static bool pools_stage(struct cuda_pools *staged, const struct kv_pools *pools) {
    *staged = (struct cuda_pools){.pool = {{.reserved = 0}}};
    for (size_t i = 0; i < KV_POOLS; i++) {
        const struct kv_pool *pool = &pools->list[i + 1];
        if (pool->buffers == NULL) continue;
        if (pool->buffer_count > KV_BUFFERS_MAX) return false;
        staged->pool[i].slots_per_buffer = UINT32_C(1) << pool->buffer_shift;
        staged->pool[i].slot_bytes = pool->slot_bytes;
        for (size_t b = 0; b < pool->buffer_count; b++) staged->pool[i].base[b] = pool->buffers[b].address;
    }
    return true;
}

static void item_stage(struct staged_views *views, size_t index, const struct attend_item *item) {
    views->items[index] = (struct step_item){.pages = cuda_address(item->view.chunks),
                                             .index_pages = cuda_address(item->view.key_index),
                                             .q4_pages = cuda_address(item->view.quantized),
                                             .position_first = item->position_first,
                                             .row_first = (uint32_t)item->row_first,
                                             .row_count = (uint32_t)item->row_count,
                                             .chunk_stride = (uint32_t)item->view.chunk_stride};
    for (size_t i = 0; i < item->row_count; i++)
        views->rows[views->row_count++] =
            (struct step_row){.position = item->position_first + i, .item = (uint32_t)index};
}

static bool areas_take(struct stream *stream, struct staged_views *views, size_t row_count, size_t item_count) {
    size_t used = 0;
    const size_t pools = used;
    used += align_up(item_count * sizeof(struct cuda_pools), STAGED_ALIGN);
    const size_t head = used;
    used += align_up(sizeof(struct step_head), STAGED_ALIGN);
    const size_t rows = used;
    used += align_up(row_count * sizeof(struct step_row), STAGED_ALIGN);
    const size_t items = used;
    used += item_count * sizeof(struct step_item);
    if (!staging_take(stream, used, true, &views->area)) return false;
    views->pools = (struct cuda_pools *)(void *)(views->area.host + pools);
    views->head = (struct step_head *)(void *)(views->area.host + head);
    views->rows = (struct step_row *)(void *)(views->area.host + rows);
    views->items = (struct step_item *)(void *)(views->area.host + items);
    views->card_pools = views->area.card + pools;
    views->card_head = views->area.card + head;
    views->card_rows = views->area.card + rows;
    views->card_items = views->area.card + items;
    return true;
}

size_t cuda_rows_of(const struct attend_item *items, size_t begin, size_t end) {
    size_t count = 0;
    for (size_t i = begin; i < end; i++) count += items[i].row_count;
    return count;
}

bool cuda_views_stage(struct stream *stream, struct staged_views *views, const struct attend_item *items,
                      size_t item_count, const struct attend_ranges *ranges, struct span step) {
    *views = (struct staged_views){.row_count = 0};
    if (!areas_take(stream, views, cuda_rows_of(items, 0, item_count), item_count)) return false;
    for (size_t i = 0; i < item_count; i++) {
        if (!pools_stage(&views->pools[i], items[i].view.pools)) {
            error_set(cuda_device_error(stream->device), STATUS_MEMORY, "cuda: a pool of KV in more than %d buffers",
                      KV_BUFFERS_MAX);
            cuda_work_lacks(stream);
            return false;
        }
        item_stage(views, i, &items[i]);
        if (ranges != NULL) {
            views->items[i].range_first = (uint16_t)ranges[i].first;
            views->items[i].range_end = (uint16_t)ranges[i].end;
        }
    }
    *views->head = (struct step_head){UINT32_MAX, UINT32_MAX};
    staging_send(stream, &views->area);
    if (stream->made == NULL) return true;
    ASSERT(span_exists(step)); /* else every launch would have the positions of the first */
    for (size_t i = 0; i < item_count && item_count > 1; i++)
        ASSERT(items[i].row_first == i && items[i].row_count == 1);
    views->card_rows = cuda_address(step);
    return true;
}

struct kv_shape cuda_shape_of(const struct kv_layout *layout) {
    return (struct kv_shape){.k_type = (uint32_t)layout->k_type,
                             .v_type = (uint32_t)layout->v_type,
                             .k_dimension = (uint32_t)layout->k_dimension,
                             .v_dimension = (uint32_t)layout->v_dimension,
                             .k_row_bytes = (uint32_t)layout->k_row_bytes,
                             .v_row_bytes = (uint32_t)layout->v_row_bytes,
                             .k_scales_offset = (uint32_t)layout->k_scales_offset,
                             .v_offset = (uint32_t)layout->v_offset,
                             .v_scales_offset = (uint32_t)layout->v_scales_offset,
                             .block_bytes = (uint32_t)layout->block_bytes};
}

size_t cuda_run_end(const struct attend_item *items, size_t item_count, size_t first) {
    size_t end = first + 1;
    while (end < item_count && items[end].view.pools == items[first].view.pools &&
           items[end].row_first == items[end - 1].row_first + items[end - 1].row_count)
        end++;
    return end;
}
