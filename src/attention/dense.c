#include "attention/dense.h"

#include "base/assert.h"

void dense_attend(struct stream *stream, const struct device *device, const struct dense_step *step) {
    for (size_t i = 0; i < step->item_count; i++) {
        struct attend_item *item = &step->items[i];
        item->view = kv_sequence_view(step->sequences[i], step->layer_index);
        ASSERT(item->position_first + item->row_count <= item->view.chunk_stride * KV_CHUNK_TOKENS);
    }
    const struct append_operation append = {
        .k = step->k,
        .v = step->v,
        .k_stride = step->k_stride,
        .v_stride = step->v_stride,
        .kv_head_count = step->kv_head_count,
        .items = step->items,
        .item_count = step->item_count,
    };
    device->operations->append(stream, &append);
    const struct attend_operation attend = {
        .q = step->q,
        .q_stride = step->q_stride,
        .out = step->out,
        .out_stride = step->out_stride,
        .head_count = step->head_count,
        .kv_head_count = step->kv_head_count,
        .scale = step->scale,
        .softcap = step->softcap,
        .window = step->window,
        .items = step->items,
        .item_count = step->item_count,
    };
    device->operations->attend(stream, &attend);
}
