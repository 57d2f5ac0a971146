/* compare_labels: verdicts are limits of lists, for which nobody waits. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/kernels_turns.h"

/* What the kernel reads of an operation, in one staged area, by offsets. */
struct labels_places {
    size_t thresholds, items, importance, end;
};

static struct labels_places labels_place(const struct compare_labels_operation *operation) {
    struct labels_places places = {.thresholds = 0};
    places.items = places.thresholds + operation->kv_head_count * sizeof(double);
    places.importance = places.items + operation->item_count * sizeof(struct cuda_label);
    places.end = places.importance + operation->head_count * sizeof(float);
    return places;
}

static void labels_fill(const struct compare_labels_operation *operation, const struct labels_places *places,
                        uint8_t *host) {
    struct cuda_label *items = (struct cuda_label *)(void *)(host + places->items);
    memcpy(host + places->thresholds, operation->thresholds, operation->kv_head_count * sizeof(double));
    memcpy(host + places->importance, operation->importance, operation->head_count * sizeof(float));
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct label_item *item = &operation->items[i];
        items[i] = (struct cuda_label){.q = cuda_address(span_floats(operation->q, item->row * operation->q_stride)),
                                       .label = cuda_address(item->label),
                                       .kept = cuda_address(item->kept),
                                       .position = item->position,
                                       .row = item->row};
    }
}

void cuda_compare_labels(struct stream *stream, const struct compare_labels_operation *operation) {
    const size_t group = operation->head_count / operation->kv_head_count;
    const struct labels_places places = labels_place(operation);
    struct staged staged;
    cuda_device_enter(stream->device);
    ASSERT(group * operation->kv_head_count == operation->head_count && group <= LABEL_GROUP_MAX);
    if (operation->item_count == 0 || !staging_take(stream, places.end, true, &staged)) return;
    labels_fill(operation, &places, staged.host);
    staging_send(stream, &staged);
    const struct cuda_labels_args args = {.items = staged.card + places.items,
                                          .rows = cuda_address(operation->at.step),
                                          .importance = staged.card + places.importance,
                                          .thresholds = staged.card + places.thresholds,
                                          .limits = cuda_address(operation->at.limits),
                                          .counts = cuda_address(operation->counts),
                                          .age_max = operation->age_max,
                                          .kv_head_count = (uint32_t)operation->kv_head_count,
                                          .group = (uint32_t)group,
                                          .dimension = (uint32_t)operation->k_dimension,
                                          .by_minimum = operation->aggregate == LABEL_MINIMUM,
                                          .only_says = operation->only_says};
    const struct cuda_told_args told = {args, cuda_address(operation->told)};
    const struct cuda_shape shape = {args.kv_head_count, (uint32_t)operation->item_count, 1, 128,
                                     sizeof(struct labels_shared)};
    if (told.told != 0)
        cuda_work_launch(stream, "labels_tell", shape, &told);
    else
        cuda_work_launch(stream, "labels_compare", shape, &args);
    cuda_work_done(stream);
}
