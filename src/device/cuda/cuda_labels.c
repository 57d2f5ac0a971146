/* compare_labels: the verdicts come with the synchronisation. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_device_internal.h"

/* What the kernel reads of an operation, in one staged area, by offsets. */
struct labels_places {
    size_t thresholds, items, importance, uses, end;
};

static struct labels_places labels_place(const struct compare_labels_operation *operation) {
    struct labels_places places = {.thresholds = 0};
    places.items = places.thresholds + operation->kv_head_count * sizeof(double);
    places.importance = places.items + operation->item_count * sizeof(struct cuda_label);
    places.uses = places.importance + operation->head_count * sizeof(float);
    places.end = places.uses + operation->item_count * operation->kv_head_count;
    return places;
}

static uint8_t takes_of(enum label_use use, bool keeps_labels) {
    const uint8_t queries = keeps_labels ? 0 : LABEL_TAKES_QUERIES;
    switch (use) {
    case LABEL_STAYS: return 0;
    case LABEL_REPLACED: return queries;
    case LABEL_COMPARED: break;
    }
    return LABEL_TAKES_VERDICT | queries;
}

static void labels_fill(const struct compare_labels_operation *operation, const struct labels_places *places,
                        uint8_t *host) {
    struct cuda_label *items = (struct cuda_label *)(void *)(host + places->items);
    uint8_t *uses = host + places->uses;
    memcpy(host + places->thresholds, operation->thresholds, operation->kv_head_count * sizeof(double));
    memcpy(host + places->importance, operation->importance, operation->head_count * sizeof(float));
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct label_item *item = &operation->items[i];
        items[i] =
            (struct cuda_label){.q = cuda_address(span_floats(operation->q, item->row * operation->q_stride)),
                                .label = cuda_address(item->label)};
        for (size_t head = 0; head < operation->kv_head_count; head++)
            *uses++ = takes_of(item->heads[head], operation->keeps_labels);
    }
}

void cuda_compare_labels(struct stream *stream, const struct compare_labels_operation *operation) {
    const size_t count = operation->item_count * operation->kv_head_count,
                 group = operation->head_count / operation->kv_head_count;
    const struct labels_places places = labels_place(operation);
    struct staged staged;
    cuda_device_enter(stream->device);
    ASSERT(group * operation->kv_head_count == operation->head_count && group <= LABEL_GROUP_MAX);
    if (count == 0 || !staging_take(stream, places.end, true, &staged)) return;
    labels_fill(operation, &places, staged.host);
    staging_send(stream, &staged);
    const struct buffer alike = {.address = cuda_scratch(stream, count), .bytes = count};
    if (alike.address == 0) return;
    const struct cuda_labels_args args = {.items = staged.card + places.items,
                                          .uses = staged.card + places.uses,
                                          .importance = staged.card + places.importance,
                                          .thresholds = staged.card + places.thresholds,
                                          .alike = alike.address,
                                          .kv_head_count = (uint32_t)operation->kv_head_count,
                                          .group = (uint32_t)group,
                                          .dimension = (uint32_t)operation->k_dimension,
                                          .by_minimum = operation->aggregate == LABEL_MINIMUM};
    cuda_work_launch(stream, "labels_compare",
                     (struct cuda_shape){args.kv_head_count, (uint32_t)operation->item_count, 1, 128,
                                         sizeof(struct labels_shared)},
                     &args);
    cuda_work_download(stream, operation->alike, span_of(&alike, 0), count);
}
