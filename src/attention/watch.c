#include "attention/watch.h"

#include "cache/kv_watch.h"

void watch_everything(const struct attend_operation *operation, struct kv_sequence *const *sequences,
                      size_t layer_index, size_t kv_head_first) {
    const uint64_t window = operation->window;
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        const uint64_t end = item->position_first + item->row_count;
        if (!kv_sequence_is_watched(sequences[i])) continue;
        for (size_t head = 0; head < operation->kv_head_count; head++)
            kv_watch_range(sequences[i], layer_index, kv_head_first + head,
                           window > 0 && end > window ? end - window : 0, end);
    }
}

enum status watch_choice(struct choice *choice, const struct choice_query *query, struct stream *stream,
                         struct error *error) {
    const struct host_list *lists;
    if (choice->everything) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++) {
        struct kv_sequence *sequence = query->sequences[choice->chosen_items[i]];
        if (!kv_sequence_is_watched(sequence)) continue;
        TRY(choice_read(choice, stream, i, query->operation->kv_head_count, &lists, error));
        for (size_t head = 0; head < query->operation->kv_head_count; head++)
            kv_watch_list(sequence, query->layer_index, query->kv_head_first + head, lists[head].rows,
                          lists[head].count);
    }
    return STATUS_OK;
}
