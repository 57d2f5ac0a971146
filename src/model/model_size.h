/* model_size: the memory that a model takes, computed from its configuration. */
#ifndef LOAM_MODEL_MODEL_SIZE_H
#define LOAM_MODEL_MODEL_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/kv_cache.h"
#include "model/model.h"

/* The cache of this model for one sequence of one token, for kv_cache_bytes_per_token. */
struct kv_cache_config model_cache_config(const struct model_config *config, enum kv_type k_type,
                                          enum kv_type v_type);
/* q8_0 stores scales per 32 elements: head dimensions must be multiples of 32. */
bool model_cache_q8_possible(const struct model_config *config);
/* Estimated buffers of a forward pass over row_count rows: the widest activations that exist at the same time. */
uint64_t model_work_bytes(const struct model_config *config, uint64_t row_count);

#endif
