/* fill: fills sequences with KV that is not computed: random or given rows, for benchmarks at depths where a prefill
 * takes too long, and copied rows of another engine's sequence. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/documents.h"
#include "engine/engine_internal.h"
#include "tensor/half.h"

enum { FILL_ROWS = 256 };
_Static_assert((int)FILL_ROWS <= (int)PLAN_BLOCK_MIN, "the cache takes them at once");

struct fill {
    struct engine *engine;
    struct sequence *sequence;
    struct stream *stream;
    float *host; /* owned; of a layer, [FILL_ROWS][kv_head_count][k_dimension + v_dimension]; the same: */
    struct buffer rows;
    void *chunk; /* owned; host memory; a chunk of the source */
    struct random random;
    const struct sequence *source; /* whose rows are copied; NULL: none */
    const struct given_rows *given; /* whose rows are used; NULL and no source: rows are random */
};

/* Approximately normal values: sums of four uniform numbers, mean 0 and variance 1, one generator call each. */
static void fill_values(struct random *random, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_next(random);
        uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        values[i] = ((float)sum - 131070.0F) * (1.0F / 37836.7F); /* standard deviation 65535 / sqrt(3) */
    }
}

static void read_halves(const uint8_t *row, size_t count, float *values) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, row + 2 * i, sizeof half);
        values[i] = half_to_float(half);
    }
}

/* Reads rows [position, position + count) of a source layer as floats.  Storing them gives the same halves again.  Rows
 * that no window of the source sees are what they were: none of the copy's sees them. */
static enum status copy_rows(struct fill *fill, size_t layer, uint64_t position, size_t count,
                             struct error *error) {
    const struct kv_geometry *kv = &fill->engine->model->config.layers[layer].kv;
    const struct kv_layout *layout = kv_cache_layer_layout(fill->engine->cache, layer);
    float *k = fill->host, *v = k + count * kv->kv_head_count * kv->k_dimension;
    for (size_t head = 0; head < kv->kv_head_count; head++)
        for (size_t i = 0; i < count; i++) {
            uint64_t token = position + i;
            const struct span chunk =
                kv_sequence_chunk(fill->source->kv, layer, head, token / KV_CHUNK_TOKENS);
            if (!span_exists(chunk)) continue;
            if (i == 0 || token % KV_CHUNK_TOKENS == 0)
                TRY(device_read(fill->engine->model->device, fill->stream, fill->chunk, chunk,
                                layout->chunk_bytes, error));
            read_halves(kv_k_row(layout, fill->chunk, token % KV_CHUNK_TOKENS), kv->k_dimension,
                        k + (i * kv->kv_head_count + head) * kv->k_dimension);
            read_halves(kv_v_row(layout, fill->chunk, token % KV_CHUNK_TOKENS), kv->v_dimension,
                        v + (i * kv->kv_head_count + head) * kv->v_dimension);
        }
    return STATUS_OK;
}

static void take_given(struct fill *fill, size_t layer, uint64_t position, size_t count) {
    const struct kv_cache_config *kv = &fill->engine->kv;
    const size_t k_size = kv->kv_head_count * kv->k_dimension, v_size = kv->kv_head_count * kv->v_dimension;
    float *k = fill->host, *v = k + count * k_size;
    for (size_t i = 0; i < count; i++)
        fill->given->keys_values(fill->given->context, layer, position + i, k + i * k_size, v + i * v_size);
}

/* K and V of a row of a layer, at most. */
static size_t row_floats(const struct engine *engine) {
    size_t floats = 0;
    for (size_t layer = 0; layer < engine->kv.layer_count; layer++) {
        const struct kv_geometry *kv = &engine->model->config.layers[layer].kv;
        floats = max_size(floats, kv->kv_head_count * (kv->k_dimension + kv->v_dimension));
    }
    return floats;
}

/* Random rows are the same in all layers: attention's time does not depend on them, and generating them takes long. */
static enum status fill_block(struct fill *fill, uint64_t position, size_t count, struct error *error) {
    const struct device_operations *operations = fill->engine->model->device->operations;
    const bool made_up = fill->source == NULL && fill->given == NULL;
    struct engine *engine = fill->engine;
    if (made_up) {
        fill_values(&fill->random, fill->host, count * row_floats(engine));
        operations->upload(fill->stream, span_of(&fill->rows, 0), fill->host,
                           count * row_floats(engine) * sizeof(float));
    }
    kv_sequence_begin_rows(fill->sequence->kv, position + count, position + count);
    for (size_t layer = 0; layer < engine->kv.layer_count; layer++) {
        const struct kv_geometry *kv = &engine->model->config.layers[layer].kv;
        const size_t k_stride = kv->kv_head_count * kv->k_dimension,
                     v_stride = kv->kv_head_count * kv->v_dimension;
        if (fill->source != NULL) TRY(copy_rows(fill, layer, position, count, error));
        if (fill->given != NULL) take_given(fill, layer, position, count);
        if (!made_up)
            operations->upload(fill->stream, span_of(&fill->rows, 0), fill->host,
                               count * (k_stride + v_stride) * sizeof(float));
        struct attend_item item = {.row_first = 0, .row_count = count, .position_first = position};
        const struct attention_rows rows = {.layer_index = layer,
                                            .kv_head_count = kv->kv_head_count,
                                            .k = span_of(&fill->rows, 0),
                                            .v = span_of(&fill->rows, count * k_stride * sizeof(float)),
                                            .k_stride = k_stride,
                                            .v_stride = v_stride,
                                            .sequences = &fill->sequence->kv,
                                            .items = &item,
                                            .item_count = 1};
        TRY(attention_begin_layer(engine->attention, &rows, error));
        attention_append(engine->attention, fill->stream, &rows);
        TRY(operations->stream_synchronize(fill->stream, error)); /* host is filled again */
        TRY(attention_end_layer(engine->attention, fill->stream, &rows, error));
    }
    return STATUS_OK;
}

static enum status fill_run(struct fill *fill, uint64_t token_count, struct error *error) {
    struct device *device = fill->engine->model->device;
    const size_t bytes = FILL_ROWS * row_floats(fill->engine) * sizeof(float);
    TRY(device->operations->stream_create(device, &fill->stream, error));
    TRY(device->operations->allocate(device, MEMORY_DEVICE, bytes, &fill->rows, error));
    fill->host = calloc(1, bytes);
    fill->chunk = malloc(kv_cache_chunk_bytes_max(&fill->engine->kv));
    if (fill->host == NULL || fill->chunk == NULL)
        return error_set(error, STATUS_MEMORY, "no memory to fill %d rows", FILL_ROWS);
    for (uint64_t done = 0; done < token_count;) {
        uint64_t length = sequence_length(fill->sequence);
        size_t count = min_size(token_count - done, FILL_ROWS);
        TRY(fill_block(fill, length, count, error));
        kv_sequence_set_length(fill->sequence->kv, length + count);
        sequence_note_whole(fill->sequence, length, NULL);
        done += count;
    }
    return STATUS_OK;
}

static enum status fill_sequence(struct fill *fill, uint64_t token_count, struct error *error) {
    struct engine *engine = fill->engine;
    struct sequence *sequence = fill->sequence;
    ASSERT(sequence->engine == engine);
    if (engine->documents != NULL && !sequence->attached) {
        sequence->attached = true;
        TRY(documents_attach_nameless(engine->documents, sequence->kv, engine->context_size, error));
    }
    TRY(sequence_grow(sequence, token_count, error));
    const uint64_t end = sequence_length(sequence) + token_count; /* a benchmark goes back to it */
    if (kv_sequence_snapshots(sequence->kv) > 0) kv_sequence_plan_snapshots(sequence->kv, &end, 1, 0);
    enum status status = fill_run(fill, token_count, error);
    struct device *device = engine->model->device;
    device->operations->release(device, &fill->rows);
    if (fill->stream != NULL) device->operations->stream_destroy(fill->stream);
    free(fill->chunk);
    free(fill->host);
    return status;
}

enum status engine_fill_random(struct engine *engine, struct sequence *sequence, uint64_t token_count,
                               uint64_t seed, struct error *error) {
    struct fill fill = {.engine = engine, .sequence = sequence};
    random_init(&fill.random, seed);
    return fill_sequence(&fill, token_count, error);
}

static enum status check_states(const struct engine *engine, const char *what, struct error *error) {
    const struct model_config *config = &engine->model->config;
    if (config->state.layer_count == 0) return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED,
                     "%s: %zu of its %zu layers keep a state in place of K and V, which %s does not have",
                     config->name, config->state.layer_count, config->layer_count, what);
}

enum status engine_fill_given(struct engine *engine, struct sequence *sequence, const struct given_rows *given,
                              uint64_t token_count, struct error *error) {
    ASSERT(sequence_length(sequence) == 0);
    TRY(check_states(engine, "a recording", error));
    struct fill fill = {.engine = engine, .sequence = sequence, .given = given};
    return fill_sequence(&fill, token_count, error);
}

void engine_set_given(struct engine *engine, const struct given_rows *given) { engine->given = given; }

enum status engine_copy(struct engine *engine, struct sequence *sequence, const struct sequence *source,
                        uint64_t token_count, struct error *error) {
    const struct engine *from = source->engine;
    ASSERT(sequence_length(sequence) == 0 && sequence_cut_of(source, token_count) == token_count);
    ASSERT(from != engine && from->model == engine->model);
    TRY(check_states(engine, "a copy of KV", error));
    if (from->kv.host_bytes > 0 || from->kv.k_type != KV_F16 || from->kv.v_type != KV_F16 ||
        engine->kv.k_type != KV_F16 || engine->kv.v_type != KV_F16)
        return error_set(error, STATUS_UNSUPPORTED, "a copy of KV that is not f16 in memory");
    if (engine->select != NULL && select_watches_prefill(engine->select))
        return error_set(error, STATUS_UNSUPPORTED, "a copy of KV for a selection that watches prompts");
    free(sequence->tokens); /* not saved */
    sequence->tokens = NULL;
    struct fill fill = {.engine = engine, .sequence = sequence, .source = source};
    return fill_sequence(&fill, token_count, error);
}

enum status engine_fill_document(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                                 uint64_t token_count, uint64_t seed, struct error *error) {
    ASSERT(sequence->engine == engine && engine->documents != NULL && !sequence->attached);
    ASSERT(sequence_length(sequence) == 0 && token_count <= engine->context_size);
    TRY(engine_fill_random(engine, sequence, token_count, seed, error));
    sequence_note_tokens(sequence, 0, tokens, (size_t)token_count);
    TRY(kv_sequence_commit(sequence->kv, sequence->tokens, error));
    return sequence_flush(sequence, error);
}
