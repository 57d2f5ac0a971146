#include "attention/units.h"

#include <stdlib.h>

#include "cache/page_fractions.h"
#include "kernels/codec/codec.h"

static struct unit_cache_layer layer_of(const struct attention_options *options, const struct select *select,
                                        size_t index) {
    const struct kv_cache_config *far = kv_cache_get_config(options->far);
    const size_t heads = kv_layer_heads(options->groups, options->kv_head_count, index);
    struct unit_cache_layer layer = {.kv_head_count = heads};
    if (heads == 0 || !select_layer_chooses(select, index)) return layer;
    const struct kv_layout *layout = kv_cache_layer_layout(options->far, index);
    layer.block_bytes = layout->block_bytes;
    if (!far->quantized_pages) return layer;
    layer.q4_bytes = kv_q4_chunk_bytes(layout);
    layer.q4_of_16 = far->mixes_pages ? options->q4_of_16 : PAGE_FRACTION_WHOLE;
    layer.first_is_rows = far->mixes_pages;
    return layer;
}

enum status units_create(struct unit_cache **units, struct device *device, const struct attention_options *options,
                         const struct select *select, const uint32_t *whole, size_t whole_count, struct error *error) {
    *units = NULL;
    if (select == NULL || options->unit_bytes == 0 || device->operations->fetch == NULL ||
        select_unit_tokens(select) % KV_BLOCK_TOKENS != 0)
        return STATUS_OK;
    struct unit_cache_layer *layers = calloc(options->layer_count, sizeof *layers);
    if (layers == NULL) return error_set(error, STATUS_MEMORY, "attention: out of memory");
    for (size_t i = 0; i < options->layer_count; i++) layers[i] = layer_of(options, select, i);
    const struct unit_cache_options of_units = {
        .layers = layers,
        .layer_count = options->layer_count,
        .context_size = options->context_size,
        .sequence_capacity = options->sequence_capacity,
        .bytes = options->unit_bytes,
        .whole = whole,
        .whole_count = whole_count,
        .list_units = (size_t)((options->kept_max + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS)};
    const enum status status = unit_cache_create(units, device, &of_units, error);
    free(layers);
    return status;
}

bool units_keep_forms(const struct attention_options *options, const struct select *select,
                      const struct attention_step *step) {
    bool keep = true;
    for (size_t layer = 0; layer < options->layer_count; layer++)
        for (size_t i = 0; i < step->row_count && layer_of(options, select, layer).block_bytes > 0; i++)
            keep = keep && kv_sequence_keeps_forms(step->sequences[i], layer, step->items[i].position_first);
    return keep;
}
