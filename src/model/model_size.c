#include "model/model_size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "device/device_open.h"

/* Snapshots of states may take so much, all sequences together, but there are two at least. */
static const uint64_t STATES_BYTES = (uint64_t)1 << 30;
enum { STATE_SLOTS_MIN = KV_STATE_SLOTS_BESIDE + 2 };

/* As in weight_stream.c: slots, and the most that a run of a file takes beyond its tensors, for blocks and gaps. */
enum { SLOTS = 2, RUN_BYTES = 2 * 4096 + (64 << 10) };

struct kv_cache_config model_cache_config(const struct model_config *config, enum kv_type k_type, enum kv_type v_type) {
    return (struct kv_cache_config){
        .layer_count = model_stored_layers(config),
        .kv_head_count = config->kv_head_count,
        .k_dimension = config->k_dimension,
        .v_dimension = config->v_dimension,
        .groups = config->kv_groups,
        .state_floats = model_state_floats(config),
        .state_slots = model_state_slots(config, 1),
        .k_type = k_type,
        .v_type = v_type,
        .token_capacity = 1,
        .sequence_capacity = 1,
    };
}

size_t model_state_slots(const struct model_config *config, size_t sequence_count) {
    const uint64_t bytes = model_state_floats(config) * sizeof(float) * sequence_count;
    if (bytes == 0) return 0;
    const uint64_t fitting = STATES_BYTES / bytes;
    if (fitting < STATE_SLOTS_MIN) return STATE_SLOTS_MIN;
    return (size_t)min_size(fitting, KV_STATE_SNAPSHOTS_MAX + KV_STATE_SLOTS_BESIDE);
}

bool model_cache_q8_possible(const struct model_config *config) {
    for (size_t i = 0; config->kv_groups != NULL && i < config->kv_groups->group_count; i++) {
        const struct kv_geometry *geometry = &config->kv_groups->list[i].geometry;
        if (geometry->k_dimension % KV_SCALE_GROUP != 0 || geometry->v_dimension % KV_SCALE_GROUP != 0) return false;
    }
    return config->k_dimension % KV_SCALE_GROUP == 0 && config->v_dimension % KV_SCALE_GROUP == 0;
}

uint64_t model_work_bytes(const struct model_config *config, uint64_t row_count) {
    uint64_t attention = config->head_count * (config->k_dimension + config->v_dimension) +
                         config->kv_head_count * (config->k_dimension + config->v_dimension);
    uint64_t row = 2 * config->hidden_size + attention + 2 * model_ffn_width(config) + config->experts.count +
                   2 * config->experts.used + model_mixed_width(config);
    if (config->experts.shared == SHARED_EXPERT_BESIDE) row += 2 * config->hidden_size;
    const uint64_t ahead = FORWARD_AHEAD_MAX * config->state.layer_count * model_ahead_width(config);
    return (row_count * row + config->vocabulary_size + ahead + config->state.layer_floats) * sizeof(float);
}

/* ---- weights ---- */

double model_step_share(const struct gguf *gguf, const struct model_config *config, const struct gguf_tensor *tensor) {
    static const char *const tables[] = {"position_embd.weight", "per_layer_token_embd.weight", "token_embd.weight"};
    const bool is_tied = gguf_find_tensor(gguf, "output.weight") == NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables - is_tied; i++)
        if (gguf_find_tensor(gguf, tables[i]) == tensor) return 0;
    if (model_leaves_out(config, tensor)) return 0;
    return tensor->dimensions[2] > 1 ? (double)config->experts.used / (double)tensor->dimensions[2] : 1;
}

/* In the file, or as a card has it. */
static uint64_t own_bytes(const struct gguf_tensor *tensor, bool on_card) {
    uint64_t elements = 1;
    for (size_t i = 0; i < GGUF_DIMENSIONS_MAX; i++) elements *= tensor->dimensions[i];
    return on_card ? device_card_bytes(tensor->type, elements) : tensor->size_bytes;
}

static uint64_t tensor_bytes(const struct gguf *gguf, const char *name, bool on_card) {
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    return tensor != NULL ? own_bytes(tensor, on_card) + RUN_BYTES : 0;
}

static struct weight_sizes sizes_of(const struct gguf *gguf, const struct model_config *config, bool on_card) {
    static const char *const matrices[] = {"attn_q",
                                           "attn_k",
                                           "attn_v",
                                           "attn_output",
                                           "ffn_gate",
                                           "ffn_up",
                                           "ffn_down",
                                           "ffn_gate_inp",
                                           "ffn_gate_exps",
                                           "ffn_up_exps",
                                           "ffn_down_exps",
                                           "ffn_gate_up_exps",
                                           "inp_gate",
                                           "proj",
                                           "ffn_gate_shexp",
                                           "ffn_up_shexp",
                                           "ffn_down_shexp",
                                           "ffn_gate_inp_shexp",
                                           "shortconv.in_proj",
                                           "shortconv.out_proj",
                                           "attn_qkv",
                                           "attn_gate",
                                           "ssm_alpha",
                                           "ssm_beta",
                                           "ssm_ba",
                                           "ssm_out"};
    struct weight_sizes sizes = {.layer_count = config->layer_count};
    for (uint64_t i = 0; i < gguf->tensor_count; i++)
        if (!model_leaves_out(config, &gguf->tensors[i])) sizes.all += own_bytes(&gguf->tensors[i], on_card);
    if (on_card && config->layer_input_size > 0) /* it stays in RAM */
        sizes.all -= tensor_bytes(gguf, "per_layer_token_embd.weight", true) - RUN_BYTES;
    const uint64_t output = tensor_bytes(gguf, "output.weight", on_card);
    sizes.top = (output > 0 ? output : tensor_bytes(gguf, "token_embd.weight", on_card)) +
                tensor_bytes(gguf, "position_embd.weight", on_card);
    const struct experts_config *experts = &config->experts;
    if (experts->count > 0) {
        sizes.mixture.layers = config->layer_count - experts->dense_layers;
        sizes.mixture.count = experts->count;
        sizes.mixture.used = experts->used;
    }
    const uint64_t inputs = tensor_bytes(gguf, "per_layer_model_proj.weight", on_card) / config->layer_count;
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        uint64_t slot = experts->count > 0 ? 0 : inputs;
        *(experts->count > 0 ? &sizes.top : &sizes.layers) += inputs;
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%zu.%s.weight", layer, matrices[i]);
            const uint64_t bytes = tensor_bytes(gguf, name, on_card);
            const bool is_stack = strstr(matrices[i], "_exps") != NULL;
            if (bytes == 0) continue;
            if (experts->count > 0 && !is_stack && !on_card) {
                sizes.top += bytes;
                continue;
            }
            slot += is_stack && !on_card ? (bytes - RUN_BYTES) / experts->count + RUN_BYTES : bytes;
            sizes.layers += bytes - RUN_BYTES;
        }
        if (slot > sizes.slot) sizes.slot = slot;
    }
    return sizes;
}

struct weight_sizes weight_sizes_of(const struct gguf *gguf, const struct model_config *config) {
    return sizes_of(gguf, config, false);
}

struct weight_sizes weight_sizes_on_card(const struct gguf *gguf, const struct model_config *config) {
    return sizes_of(gguf, config, true);
}

/* With the fewest slots. */
static uint64_t least_bytes(const struct weight_sizes *sizes) {
    return sizes->top + (sizes->mixture.count > 0 ? sizes->mixture.used : SLOTS) * sizes->slot;
}

size_t weight_sizes_resident(const struct weight_sizes *sizes, uint64_t host_bytes) {
    const uint64_t least = least_bytes(sizes);
    if (host_bytes >= sizes->all) return sizes->layer_count;
    if (host_bytes < least || sizes->slot == 0) return 0;
    if (sizes->mixture.count > 0) return sizes->layer_count - sizes->mixture.layers;
    const uint64_t layers = (host_bytes - least) / sizes->slot;
    return layers < sizes->layer_count ? (size_t)layers : sizes->layer_count;
}

size_t weight_sizes_experts(const struct weight_sizes *sizes, uint64_t host_bytes) {
    const size_t all = sizes->mixture.layers * sizes->mixture.count;
    if (host_bytes >= sizes->all) return all;
    if (host_bytes < least_bytes(sizes) || sizes->slot == 0) return 0;
    const uint64_t slots = (host_bytes - sizes->top) / sizes->slot;
    return slots < all ? (size_t)slots : all;
}

double weight_sizes_pass_bytes(const struct weight_sizes *sizes, uint64_t host_bytes) {
    size_t units = sizes->layer_count, held = weight_sizes_resident(sizes, host_bytes);
    if (sizes->mixture.count > 0) {
        units = sizes->mixture.layers * sizes->mixture.count;
        held = weight_sizes_experts(sizes, host_bytes);
    }
    return units > 0 ? (double)sizes->layers * (double)(units - held) / (double)units : 0;
}

double weight_sizes_step_bytes(const struct weight_sizes *sizes, uint64_t host_bytes, size_t row_count) {
    const double all = weight_sizes_pass_bytes(sizes, host_bytes);
    if (sizes->mixture.count == 0) return all;
    const double share = (double)sizes->mixture.used / (double)sizes->mixture.count;
    return all * (1 - pow(1 - share, (double)row_count));
}

uint64_t weight_sizes_host_bytes(const struct weight_sizes *sizes, uint64_t spare) {
    const uint64_t least = least_bytes(sizes);
    if (spare >= sizes->all) return sizes->all;
    if (spare < least) return 0;
    if (sizes->mixture.count > 0) return sizes->top + weight_sizes_experts(sizes, spare) * sizes->slot;
    return least + weight_sizes_resident(sizes, spare) * sizes->slot;
}

size_t weight_sizes_device_layers(const struct weight_sizes *sizes, uint64_t free_bytes) {
    const uint64_t beside = sizes->top + DEVICE_BESIDE_WEIGHTS_BYTES;
    if (sizes->layers == 0 || free_bytes <= beside) return 0;
    return (size_t)min_size((free_bytes - beside) / (sizes->layers / sizes->layer_count + 1), sizes->layer_count);
}

uint64_t weight_sizes_device_bytes(const struct weight_sizes *sizes, size_t device_layers) {
    if (device_layers >= sizes->layer_count) return sizes->all;
    return sizes->top + sizes->layers / sizes->layer_count * device_layers;
}

uint64_t model_device_bytes(const char *path, size_t device_layers) {
    struct gguf gguf = {0};
    struct arena arena;
    struct model_config config;
    uint64_t bytes = 0;
    arena_init(&arena);
    if (gguf_open(&gguf, path, NULL) == STATUS_OK && model_config_read(&config, &gguf, &arena, NULL) == STATUS_OK) {
        const struct weight_sizes sizes = weight_sizes_on_card(&gguf, &config);
        bytes = weight_sizes_device_bytes(&sizes, device_layers);
    }
    arena_deinit(&arena);
    gguf_close(&gguf);
    return bytes;
}
