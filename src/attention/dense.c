#include "attention/dense.h"

#include "base/assert.h"

void dense_append(struct stream *stream, const struct device *device, const struct dense_rows *rows) {
    for (size_t i = 0; i < rows->item_count; i++) {
        struct attend_item *item = &rows->items[i];
        item->view = kv_sequence_view(rows->sequences[i], rows->layer_index);
        ASSERT(item->position_first + item->row_count <= item->view.chunk_stride * KV_CHUNK_TOKENS);
    }
    device->operations->append(stream, &(struct append_operation){.k = rows->k,
                                                                  .v = rows->v,
                                                                  .k_stride = rows->k_stride,
                                                                  .v_stride = rows->v_stride,
                                                                  .kv_head_count = rows->kv_head_count,
                                                                  .items = rows->items,
                                                                  .item_count = rows->item_count});
}

void dense_attend(struct stream *stream, const struct device *device,
                  const struct attend_operation *operation) {
    device->operations->attend(stream, operation);
}
