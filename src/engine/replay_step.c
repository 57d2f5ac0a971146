/* replay_step: replaces a step's queries, keys and values by recorded ones (recording.h). */
#include <stdlib.h>

#include "engine/engine_internal.h"

struct replay_shape replay_shape_of(const struct engine *engine) {
    const struct model_config *config = &engine->model->config;
    return (struct replay_shape){config->layer_count, config->head_count, config->kv_head_count};
}

enum status replay_step(struct engine *engine, size_t count, struct forward_replay *replay,
                        struct error *error) {
    const struct kv_cache_config *kv = &engine->kv;
    const struct replay_shape shape = replay_shape_of(engine);
    const size_t q_size = shape.head_count * kv->k_dimension, k_size = kv->kv_head_count * kv->k_dimension,
                 v_size = kv->kv_head_count * kv->v_dimension, rows = kv->layer_count * count;
    if (engine->replay_rows == NULL)
        engine->replay_rows = calloc(kv->layer_count * engine->sequence_capacity,
                                     (q_size + k_size + v_size) * sizeof *engine->replay_rows);
    if (engine->replay_rows == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for a recording's rows");
    float *q = engine->replay_rows, *k = q + rows * q_size, *v = k + rows * k_size;
    for (size_t row = 0; row < rows; row++) {
        const struct replay *of = engine->replays[row % count];
        const uint64_t position = engine->positions[row % count];
        replay_queries(of, &shape, row / count, position, q + row * q_size);
        replay_keys_values(of, &shape, row / count, position, k + row * k_size, v + row * v_size);
    }
    *replay = (struct forward_replay){.row_count = count, .q = q, .k = k, .v = v};
    return STATUS_OK;
}
