/* model_size: the memory that a model takes, computed from its configuration. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cache/kv_cache.h"
#include "format/gguf.h"
#include "model/model.h"

/* The cache of this model for one sequence of one token, for kv_cache_bytes_per_token. */
struct kv_cache_config model_cache_config(const struct model_config *config, enum kv_type k_type, enum kv_type v_type);
/* Slots of a sequence for states, where so many sequences have them (kv_state.h); 0: no layer has one. */
size_t model_state_slots(const struct model_config *config, size_t sequence_count);
/* q8_0 stores scales per 32 elements: head dimensions must be multiples of 32. */
bool model_cache_q8_possible(const struct model_config *config);
/* Estimated buffers of a forward pass over row_count rows: the widest activations that exist at the same time. */
uint64_t model_work_bytes(const struct model_config *config, uint64_t row_count);

/* The share of a tensor that a step of one sequence reads: none of a table that rows are looked up in (one that is also
 * the output matrix is read) or of what is left out, of a stack of experts those that a row picks. */
double model_step_share(const struct gguf *gguf, const struct model_config *config, const struct gguf_tensor *tensor);

/* What of a model's weights must stay in RAM, and what can be read for each pass (weight_stream.h), from the header of
 * its file. */
struct weight_sizes {
    uint64_t all;    /* of all tensors */
    uint64_t top;    /* of what always stays: at most; all but the experts where layers have some */
    uint64_t slot;   /* of the largest layer, or expert, with what alignment adds: at most */
    uint64_t layers; /* of the matrices of all layers, or of their experts */
    size_t layer_count;
    struct {
        size_t layers, count, used; /* layers with experts; experts of each; of those by a row.  0: there are none */
    } mixture;
};
struct weight_sizes weight_sizes_of(const struct gguf *gguf, const struct model_config *config);
/* The same as a card has them (device_card_bytes). */
struct weight_sizes weight_sizes_on_card(const struct gguf *gguf, const struct model_config *config);
/* Layers that stay in RAM whole with so many bytes for weights, of those that do not hold all; at least so many do. */
size_t weight_sizes_resident(const struct weight_sizes *sizes, uint64_t host_bytes);
/* Experts, of all layers, that there is room for then. */
size_t weight_sizes_experts(const struct weight_sizes *sizes, uint64_t host_bytes);
/* Bytes that are read for each pass then, of one over a prompt that uses all experts; 0: nothing is read. */
double weight_sizes_pass_bytes(const struct weight_sizes *sizes, uint64_t host_bytes);
/* The same for a pass of few rows.  Which experts they use is taken as chance: where a router prefers some, fewer bytes
 * are read. */
double weight_sizes_step_bytes(const struct weight_sizes *sizes, uint64_t host_bytes, size_t row_count);
/* How much of `spare` bytes is of use: all that whole layers, or experts, take; at least what always stays and the
 * buffers.
 * 0: it is less than that. */
uint64_t weight_sizes_host_bytes(const struct weight_sizes *sizes, uint64_t spare);

/* Layers that fit so many bytes of a device, beside what is there as well (device.h). */
size_t weight_sizes_device_layers(const struct weight_sizes *sizes, uint64_t free_bytes);

/* Bytes that the weights take of it with so many layers there. */
uint64_t weight_sizes_device_bytes(const struct weight_sizes *sizes, size_t device_layers);

/* Of the tensors of a model file that are in a device's memory with so many layers there (model_load_options); 0: it
 * cannot be read, as model_load will say. */
uint64_t model_device_bytes(const char *path, size_t device_layers);
