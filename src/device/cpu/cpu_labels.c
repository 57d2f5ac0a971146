/* compare_labels on the cpu.  A unit is one KV head of one row: its label is its own, so units share nothing. */
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"

/* Fewer floats than so many are compared in less time than a thread takes to wake. */
enum { FLOATS_ALONE = 16384 };

static bool is_alike(const struct compare_labels_operation *operation, size_t kv_head, const float *q,
                     const float *label) {
    const size_t group = operation->head_count / operation->kv_head_count, dimension = operation->k_dimension;
    double cosines[GROUP_MAX];
    for (size_t i = 0; i < group; i++) cosines[i] = label_cosine(q + i * dimension, label + i * dimension, dimension);
    return label_similarity(operation->aggregate, cosines, operation->importance + kv_head * group, group) >=
           operation->thresholds[kv_head];
}

static void take(struct step_list *list, const struct step_kept *kept, uint64_t position, uint64_t age_max) {
    list->kept_count = kept->count;
    list->window_begin = age_max > 0 ? kept->candidate_end : list->candidate_end;
    list->age = (uint32_t)(position - kept->position);
    list->count = list->kept_count + (uint32_t)position + 1 - list->window_begin;
    list->picks = 0;
}

/* Of one that is only asked for. */
static void choose_nothing(struct step_list *list) {
    list->count -= list->picks;
    list->picks = 0;
}

static void count_hit(struct step_reuse *counts, const struct step_list *before, const struct step_list *list) {
    const uint32_t candidates = before->candidate_end - before->candidate_begin;
    counts->hits++;
    counts->rows += list->count;
    counts->age_sum += list->age;
    if (list->age > counts->age_max) counts->age_max = list->age;
    counts->chosen_rows += before->count;
    counts->scored += before->picks < candidates ? candidates : 0;
}

static struct step_list *list_at(struct span lists, size_t unit) {
    return span_exists(lists) ? (struct step_list *)cpu_address(lists) + unit : NULL;
}

static void compare_unit(const struct compare_labels_operation *operation, size_t unit) {
    const size_t heads = operation->kv_head_count, group = operation->head_count / heads, kv_head = unit % heads,
                 first = kv_head * group * operation->k_dimension;
    const struct label_item *item = &operation->items[unit / heads];
    const float *q = cpu_floats(operation->q) + item->row * operation->q_stride + first;
    float *label = cpu_floats(item->label) + first;
    struct step_list *list = list_at(operation->at.limits, unit), *told = list_at(operation->told, unit);
    struct step_kept *kept = (struct step_kept *)cpu_address(item->kept) + kv_head;
    struct step_reuse *counts =
        span_exists(operation->counts) ? (struct step_reuse *)cpu_address(operation->counts) + unit : NULL;
    if (told != NULL) *list = *told;
    const struct step_list before = *list;
    const bool is_current =
        kept->count > 0 && (operation->age_max == 0 || item->position - kept->position <= operation->age_max);
    if (list->use == LABEL_COMPARED && is_current && is_alike(operation, kv_head, q, label)) {
        if (operation->only_says)
            choose_nothing(list);
        else
            take(list, kept, item->position, operation->age_max);
        if (counts != NULL && !operation->only_says) count_hit(counts, &before, list);
    } else if (list->use != LABEL_STAYS && !operation->only_says) {
        memcpy(label, q, group * operation->k_dimension * sizeof *label);
        *kept = (struct step_kept){.position = item->position,
                                   .count = list->count - ((uint32_t)item->position + 1 - list->candidate_end),
                                   .candidate_end = list->candidate_end};
        if (counts != NULL) counts->misses++;
    }
    if (told != NULL) *told = *list;
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
