/* compare_labels on the cpu.  A unit is one KV head of one row: its label is its own, so units share nothing. */
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"

/* Fewer floats than so many are compared in less time than a thread takes to wake. */
enum { FLOATS_ALONE = 16384 };

static void compare_unit(const struct compare_labels_operation *operation, size_t unit) {
    const size_t group = operation->head_count / operation->kv_head_count, dimension = operation->k_dimension,
                 kv_head = unit % operation->kv_head_count, first = kv_head * group;
    const struct label_item *item = &operation->items[unit / operation->kv_head_count];
    const enum label_use use = item->heads[kv_head];
    const float *q = cpu_floats(operation->q) + item->row * operation->q_stride + first * dimension;
    float *label = cpu_floats(item->label) + first * dimension;
    double cosines[GROUP_MAX];
    operation->alike[unit] = false;
    if (use == LABEL_COMPARED) {
        for (size_t i = 0; i < group; i++)
            cosines[i] = label_cosine(q + i * dimension, label + i * dimension, dimension);
        operation->alike[unit] =
            label_similarity(operation->aggregate, cosines, operation->importance + first, group) >=
            operation->thresholds[kv_head];
    }
    if (use != LABEL_STAYS && !operation->alike[unit] && !operation->keeps_labels)
        memcpy(label, q, group * dimension * sizeof *label);
}

static void compare_task(void *context, const struct pool_worker *worker) {
    const struct compare_labels_operation *operation = context;
    const struct range range = pool_range(worker, operation->item_count * operation->kv_head_count, 1);
    for (size_t unit = range.begin; unit < range.end; unit++) compare_unit(operation, unit);
}

void cpu_compare_labels(struct stream *stream, const struct compare_labels_operation *operation) {
    struct compare_labels_operation own = *operation;
    const size_t floats = own.item_count * own.head_count * own.k_dimension;
    ASSERT(own.head_count % own.kv_head_count == 0 && own.head_count / own.kv_head_count <= GROUP_MAX);
    cpu_run(stream->device, floats <= FLOATS_ALONE, compare_task, &own);
}
