/* fill: fills sequences with KV that is not computed. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/documents.h"
#include "engine/engine_internal.h"

enum { FILL_ROWS = 256 };
_Static_assert((int)FILL_ROWS <= (int)PLAN_BLOCK_MIN, "the cache takes them at once");

struct fill {
    struct engine *engine;
    struct sequence *sequence;
    engine_rows *rows;
    void *context;
    struct stream *stream;
    float *host; /* owned; of a layer, [FILL_ROWS][kv_head_count][k_dimension + v_dimension]; the same: */
    struct buffer memory;
};

/* Random rows are the same in all layers: attention's time does not depend on them, and generating them takes long. */
struct random_rows {
    struct random random;
    size_t row_floats; /* of any layer, at most */
};

/* Approximately normal values: sums of four uniform numbers, mean 0 and variance 1, one generator call each. */
static void fill_values(struct random *random, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_next(random);
        uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        values[i] = ((float)sum - 131070.0F) * (1.0F / 37836.7F); /* standard deviation 65535 / sqrt(3) */
    }
}

static enum status random_rows(void *context, size_t layer, uint64_t position, const struct rows_target *target,
                               struct error *error) {
    struct random_rows *rows = context;
    (void)position, (void)error;
    if (layer == 0) fill_values(&rows->random, target->k, target->count * rows->row_floats);
    return STATUS_OK;
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

static enum status fill_block(struct fill *fill, uint64_t position, size_t count, struct error *error) {
    struct engine *engine = fill->engine;
    const struct device_operations *operations = engine->model->device->operations;
    kv_sequence_begin_rows(fill->sequence->kv, position + count, position + count);
    for (size_t layer = 0; layer < engine->kv.layer_count; layer++) {
        const struct kv_geometry *kv = &engine->model->config.layers[layer].kv;
        const size_t k_stride = kv->kv_head_count * kv->k_dimension, v_stride = kv->kv_head_count * kv->v_dimension;
        const struct rows_target target = {fill->host, fill->host + count * k_stride, count};
        TRY(fill->rows(fill->context, layer, position, &target, error));
        operations->upload(fill->stream, span_of(&fill->memory, 0), fill->host,
                           count * (k_stride + v_stride) * sizeof(float));
        struct attend_item item = {.row_first = 0, .row_count = count, .position_first = position};
        const struct attention_rows rows = {.layer_index = layer,
                                            .kv_head_count = kv->kv_head_count,
                                            .k = span_of(&fill->memory, 0),
                                            .v = span_of(&fill->memory, count * k_stride * sizeof(float)),
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
    TRY(device->operations->allocate(device, MEMORY_DEVICE, bytes, &fill->memory, error));
    fill->host = calloc(1, bytes);
    if (fill->host == NULL) return error_set(error, STATUS_MEMORY, "no memory to fill %d rows", FILL_ROWS);
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
    device->operations->release(device, &fill->memory);
    if (fill->stream != NULL) device->operations->stream_destroy(fill->stream);
    free(fill->host);
    return status;
}

enum status engine_fill_random(struct engine *engine, struct sequence *sequence, uint64_t token_count, uint64_t seed,
                               struct error *error) {
    struct random_rows rows = {.row_floats = row_floats(engine)};
    random_init(&rows.random, seed);
    struct fill fill = {.engine = engine, .sequence = sequence, .rows = random_rows, .context = &rows};
    return fill_sequence(&fill, token_count, error);
}

enum status engine_fill(struct engine *engine, struct sequence *sequence, engine_rows *rows, void *context,
                        uint64_t token_count, struct error *error) {
    struct fill fill = {.engine = engine, .sequence = sequence, .rows = rows, .context = context};
    free(sequence->tokens); /* they do not say what is stored: nothing is saved */
    sequence->tokens = NULL;
    return fill_sequence(&fill, token_count, error);
}
