#include "model/model_size.h"

struct kv_cache_config model_cache_config(const struct model_config *config, enum kv_type k_type,
                                          enum kv_type v_type) {
    return (struct kv_cache_config){
        .layer_count = config->layer_count,
        .kv_head_count = config->kv_head_count,
        .k_dimension = config->k_dimension,
        .v_dimension = config->v_dimension,
        .k_type = k_type,
        .v_type = v_type,
        .token_capacity = 1,
        .sequence_capacity = 1,
    };
}

bool model_cache_q8_possible(const struct model_config *config) {
    return config->k_dimension % KV_SCALE_GROUP == 0 && config->v_dimension % KV_SCALE_GROUP == 0;
}

uint64_t model_work_bytes(const struct model_config *config, uint64_t row_count) {
    uint64_t attention = config->head_count * (config->k_dimension + config->v_dimension) +
                         config->kv_head_count * (config->k_dimension + config->v_dimension);
    uint64_t row = 2 * config->hidden_size + attention + 2 * config->ffn_size;
    return (row_count * row + config->vocabulary_size) * sizeof(float);
}
