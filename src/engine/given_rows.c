/* given_rows: what a benchmark gives in place of a step's computed queries, keys and values (engine.h). */
#include <stdlib.h>

#include "engine/engine_internal.h"

enum status given_rows_of_step(struct engine *engine, size_t count, struct forward_replay *replay,
                               struct error *error) {
    const struct kv_cache_config *kv = &engine->kv;
    const size_t q_size = engine->model->config.head_count * kv->k_dimension,
                 k_size = kv->kv_head_count * kv->k_dimension, v_size = kv->kv_head_count * kv->v_dimension,
                 rows = kv->layer_count * count;
    if (engine->given_floats == NULL)
        engine->given_floats = calloc(kv->layer_count * engine->sequence_capacity,
                                      (q_size + k_size + v_size) * sizeof *engine->given_floats);
    if (engine->given_floats == NULL) return error_set(error, STATUS_MEMORY, "no memory for given rows");
    float *q = engine->given_floats, *k = q + rows * q_size, *v = k + rows * k_size;
    for (size_t row = 0; row < rows; row++) {
        const struct given_rows *of = &engine->given[row % count];
        const uint64_t position = engine->positions[row % count];
        of->queries(of->context, row / count, position, q + row * q_size);
        of->keys_values(of->context, row / count, position, k + row * k_size, v + row * v_size);
    }
    *replay = (struct forward_replay){.row_count = count, .q = q, .k = k, .v = v};
    return STATUS_OK;
}
