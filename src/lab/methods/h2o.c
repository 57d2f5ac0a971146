/* h2o: tokens ranked by the attention they have received so far (Zhang et al. 2023, H2O), half of keep to them and
 * half to the recent.  Differs from [h2o]: nothing is evicted, so a token that was left out keeps its mass and
 * can come back only when the heavy ones lose their lead; the prompt's column sums are estimated from every
 * SELECT_WATCH_INTERVAL-th query, times that; mass is summed over the group of a KV head. */
#include "attention/select_method.h"
#include "base/checked.h"
#include "lab/methods/methods.h"
#include "plan/presets.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    (void)shape, (void)options, (void)error;
    layout->kind = KEY_INDEX_MASS;
    layout->bytes = KV_CHUNK_TOKENS * sizeof(float);
    return STATUS_OK;
}

/* Of the lists of items as long as the longest: memory for their scores. */
static enum status reserve_scores(struct device *device, struct stream *stream,
                                  const struct attend_rows_operation *rows, struct buffer *scores,
                                  struct error *error) {
    const struct device_operations *operations = device->operations;
    size_t bytes = rows->item_count * rows->head_count * rows->scores_stride * sizeof(float);
    if (bytes <= scores->bytes) return STATUS_OK;
    bytes += bytes / 2;                                 /* contexts grow token by token */
    TRY(operations->stream_synchronize(stream, error)); /* the rows before may still add their mass */
    operations->release(device, scores);
    return operations->allocate(device, MEMORY_DEVICE, bytes, scores, error);
}

/* attend_rows with scores, whose shares of attention are added to the rows' mass. */
static enum status attend(struct device *device, struct stream *stream, struct attend_rows_operation *rows,
                          float weight, struct buffer *scores, struct error *error) {
    size_t longest = 0;
    for (size_t i = 0; i < rows->item_count; i++)
        for (size_t head = 0; head < rows->kv_head_count; head++)
            longest = max_size(longest, rows->items[i].lists[head].count);
    rows->scores_stride = align_up(longest, 16);
    TRY(reserve_scores(device, stream, rows, scores, error));
    rows->scores = span_of(scores, 0);
    device->operations->attend_rows(stream, rows);
    device->operations->add_mass(stream, &(struct add_mass_operation){.rows = rows, .weight = weight});
    return STATUS_OK;
}

const struct select_method select_h2o = {.name = "h2o",
                                         .summary = "tokens by the attention they received (H2O)",
                                         .layout = layout,
                                         .attend = attend,
                                         .scatter = 0.5,
                                         .recent_fraction = 0.5,
                                         .watches_prefill = true};

static const struct preset h2o = {
    .name = "h2o",
    .summary = "tokens by the attention they received (H2O)",
    .methods = {"h2o", "none", "none", "even", "f16", "none"},
    .keep = "20%",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_h2o);
    preset_add(&h2o);
}
