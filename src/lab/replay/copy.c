#include "lab/replay/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_cache.h"
#include "tensor/half.h"

struct copy {
    struct device *device;
    struct stream *stream;            /* owned */
    const struct kv_sequence *source; /* borrowed */
    const struct model_config *config;
    void *chunk; /* owned; host memory; a chunk of the source */
};

static void read_halves(const uint8_t *row, size_t count, float *values) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, row + 2 * i, sizeof half);
        values[i] = half_to_float(half);
    }
}

static enum status not_in_memory(struct error *error) {
    return error_set(error, STATUS_UNSUPPORTED, "a copy of KV that is not f16 in memory");
}

/* An engine_rows.  Storing the rows gives the same halves again.  Rows that no window of the source sees are what they
 * were: none of the copy's sees them. */
static enum status copy_rows(void *context, size_t layer, uint64_t position, const struct rows_target *target,
                             struct error *error) {
    const struct copy *copy = context;
    const struct kv_geometry *kv = &copy->config->layers[layer].kv;
    const struct kv_windows *windows = copy->config->kv_windows;
    const struct kv_layout *layout = kv_sequence_layer_layout(copy->source, layer);
    for (size_t head = 0; head < kv->kv_head_count; head++)
        for (size_t i = 0; i < target->count; i++) {
            const uint64_t token = position + i;
            const struct span chunk = kv_sequence_chunk(copy->source, layer, head, token / KV_CHUNK_TOKENS);
            if (!span_exists(chunk) && (windows == NULL || !windows->slides[layer])) return not_in_memory(error);
            if (!span_exists(chunk)) continue;
            if (i == 0 || token % KV_CHUNK_TOKENS == 0)
                TRY(device_read(copy->device, copy->stream, copy->chunk, chunk, layout->chunk_bytes, error));
            read_halves(kv_k_row(layout, copy->chunk, token % KV_CHUNK_TOKENS), kv->k_dimension,
                        target->k + (i * kv->kv_head_count + head) * kv->k_dimension);
            read_halves(kv_v_row(layout, copy->chunk, token % KV_CHUNK_TOKENS), kv->v_dimension,
                        target->v + (i * kv->kv_head_count + head) * kv->v_dimension);
        }
    return STATUS_OK;
}

enum status copy_check_states(const struct model_config *config, const char *what, struct error *error) {
    if (config->state.layer_count == 0) return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED,
                     "%s: %zu of its %zu layers keep a state in place of K and V, which %s does not have", config->name,
                     config->state.layer_count, config->layer_count, what);
}

static bool is_f16(const struct kv_sequence *kv) {
    const struct kv_layout *layout = kv_sequence_layer_layout(kv, 0);
    return layout->k_type == KV_F16 && layout->v_type == KV_F16;
}

enum status copy_kv(struct model *model, struct engine *engine, struct sequence *sequence,
                    const struct sequence *source, uint64_t token_count, struct error *error) {
    struct copy copy = {.device = model->device, .source = sequence_kv(source), .config = &model->config};
    size_t chunk_bytes = 0;
    ASSERT(sequence_length(sequence) == 0 && sequence_cut_of(source, token_count) == token_count);
    ASSERT(engine_config(engine) == copy.config);
    TRY(copy_check_states(copy.config, "a copy of KV", error));
    if (!is_f16(copy.source) || !is_f16(sequence_kv(sequence))) return not_in_memory(error);
    if (engine_select(engine) != NULL && select_watches_prefill(engine_select(engine)))
        return error_set(error, STATUS_UNSUPPORTED, "a copy of KV for a selection that watches prompts");
    for (size_t layer = 0; layer < model_stored_layers(copy.config); layer++)
        chunk_bytes = max_size(chunk_bytes, kv_sequence_layer_layout(copy.source, layer)->chunk_bytes);
    TRY(copy.device->operations->stream_create(copy.device, &copy.stream, error));
    copy.chunk = malloc(chunk_bytes);
    const enum status status = copy.chunk != NULL ? engine_fill(engine, sequence, copy_rows, &copy, token_count, error)
                                                  : error_set(error, STATUS_MEMORY, "no memory for a chunk");
    copy.device->operations->stream_destroy(copy.stream);
    free(copy.chunk);
    return status;
}
