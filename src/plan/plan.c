#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "attention/bus_rebuild.h"
#include "attention/list_buffer.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/size.h"
#include "cache/inputs.h"
#include "kernels/attention/attention.h"
#include "model/model_size.h"
#include "platform/memory.h"

/* Of what RAM has beyond the least so much goes to rows of lists. */
enum { LIST_SHARE = 7, LIST_SHARE_WHOLE = 8 };
enum { LIST_UNIT_MAX = 4 }; /* tokens; of longer pieces a slot holds as much as a list of its bytes */
enum { SEGMENT_DEFAULT = 8192 };
static const size_t SEGMENT_BYTES = 64 << 20;                                 /* of its residual stream, by default */
static const uint64_t BUFFER_BYTES_MIN = 2 << 20, BUFFER_BYTES_MAX = 8 << 20; /* write-behind */

enum status plan_set_disk(struct plan *plan, const char *directory, size_t length, uint64_t limit_bytes,
                          struct error *error) {
    plan->disk_bytes = limit_bytes;
    plan->disk_directory = strndup(directory, length);
    return plan->disk_directory != NULL ? STATUS_OK
                                        : error_set(error, STATUS_MEMORY, "no memory for the name of a folder");
}

void plan_deinit(struct plan *plan) {
    free((char *)plan->disk_directory);
    *plan = (struct plan){0};
}

/* ---- what can be done ---- */

static enum status check_sizes(const struct plan *plan, const struct model_config *config, struct error *error) {
    if (plan->sequence_capacity < 1 || plan->sequence_capacity > PLAN_SEQUENCES_MAX)
        return error_set(error, STATUS_USAGE, "%zu sequences: expected 1 to %d", plan->sequence_capacity,
                         PLAN_SEQUENCES_MAX);
    if (plan->batch_size > DEVICE_BATCH_MAX)
        return error_set(error, STATUS_USAGE, "a batch of %zu tokens: expected at most %d", plan->batch_size,
                         DEVICE_BATCH_MAX);
    if (plan->segment_size > PLAN_SEGMENT_MAX)
        return error_set(error, STATUS_USAGE, "a segment of %zu tokens: expected at most %d", plan->segment_size,
                         PLAN_SEGMENT_MAX);
    if (!config->has_rope && plan->context_size > config->context_length)
        return error_set(error, STATUS_USAGE,
                         "a context of %llu tokens: this model has learned positions for %llu only",
                         (unsigned long long)plan->context_size, (unsigned long long)config->context_length);
    return STATUS_OK;
}

/* Codes by a codebook are built of many chunks' blocks, which must then be in memory. */
static bool key_index_may_leave(const struct plan *plan) {
    const struct select_method *method = plan->select.method;
    return plan->disk_directory != NULL && method != NULL && !method->needs_key_index;
}

/* Nodes above a chunk are built of those of its chunks. */
static size_t key_index_group(const struct select_options *select) {
    const bool is_searched = select->take == 0 || select->take == select->leaf;
    return select->method == &select_tree && select->leaf < KV_CHUNK_TOKENS && is_searched ? TREE_RUN_CHUNKS : 1;
}

static enum status check_select(const struct plan *plan, struct error *error) {
    const struct select_method *method = plan->select.method;
    if (method == NULL) return STATUS_OK;
    if (plan->key_index == PLAN_KEY_INDEX_DISK && plan->disk_directory == NULL)
        return error_set(error, STATUS_USAGE,
                         "--set key_index=disk: where the key index lies is a question with --kv-disk only");
    if (plan->key_index == PLAN_KEY_INDEX_DISK && !key_index_may_leave(plan))
        return error_set(error, STATUS_UNSUPPORTED,
                         "key_index=disk with select=%s: its key index is built of that of all chunks before",
                         method->name);
    if (method->reads_keys && plan->k_type != KV_F16)
        return error_set(error, STATUS_UNSUPPORTED, "select=%s reads keys as halves: codec=f16 only", method->name);
    if (plan->quantized_pages && (method->reads_keys || plan->select.scan))
        return error_set(error, STATUS_UNSUPPORTED, "select=%s reads rows, not 4-bit pages: codec=f16 only",
                         method->name);
    if (plan->select.reuse.kind != REUSE_NONE && method == &select_all)
        return error_set(error, STATUS_UNSUPPORTED, "reuse=similarity with select=all: there is nothing to reuse");
    if (plan->select.reuse.kind != REUSE_NONE && plan->host_bytes > 0 && (method->reads_keys || plan->select.scan))
        return error_set(error, STATUS_UNSUPPORTED,
                         "reuse=similarity with select=%s and KV on disk: every key is read in every step anyway",
                         method->name);
    if (plan->host_bytes > 0 && method->watches_prefill)
        return error_set(error, STATUS_UNSUPPORTED,
                         "select=%s with KV on disk: what it sums up changes with every token and is not saved",
                         method->name);
    return STATUS_OK;
}

static enum status check_rebuild(const struct plan *plan, const struct model_config *config, struct error *error) {
    if (!plan->rebuilds) return STATUS_OK;
    if (plan->select.method != NULL && plan->select.method != &select_all)
        return error_set(error, STATUS_UNSUPPORTED,
                         "rebuild=recompute with select=%s: rows that are chosen lie in chunks that would be "
                         "computed whole; select=all only",
                         plan->select.method->name);
    if (plan->quantized_pages)
        return error_set(error, STATUS_UNSUPPORTED,
                         "rebuild=recompute with 4-bit pages: what is computed again is not rounded; "
                         "codec=f16 or q8 only");
    if (model_stored_layers(config) < 2)
        return error_set(error, STATUS_UNSUPPORTED, "rebuild=recompute: a model of one layer keeps no inputs");
    return STATUS_OK;
}

static enum status check_dimensions(const struct plan *plan, const struct kv_geometry *geometry, struct error *error) {
    if ((plan->k_type != KV_Q8 || geometry->k_dimension % KV_SCALE_GROUP == 0) &&
        (plan->v_type != KV_Q8 || geometry->v_dimension % KV_SCALE_GROUP == 0))
        return STATUS_OK;
    return error_set(error, STATUS_USAGE, "q8 KV needs head dimensions in multiples of %d, not %zu and %zu",
                     KV_SCALE_GROUP, geometry->k_dimension, geometry->v_dimension);
}

/* Before KV is sized. */
static enum status check_kv_types(const struct plan *plan, const struct model_config *config, struct error *error) {
    struct kv_geometry one = {.k_dimension = config->k_dimension, .v_dimension = config->v_dimension};
    const struct kv_groups *groups = config->kv_groups;
    for (size_t i = 0; i < (groups != NULL ? groups->group_count : 1); i++) {
        if (groups != NULL) one = groups->list[i].geometry;
        TRY(check_dimensions(plan, &one, error));
    }
    return STATUS_OK;
}

/* Pages of two forms are of layers that are alike; and what layers that attend to the KV of others cannot have. */
static enum status check_layers(const struct plan *plan, const struct model_config *config, struct error *error) {
    const struct kv_groups *groups = config->kv_groups;
    if (groups != NULL && plan->disk_directory != NULL && config->layer_count > STORE_GROUP_LAYERS_MAX)
        return error_set(error, STATUS_UNSUPPORTED, "--kv-disk: layers that differ are at most %d, not %zu",
                         STORE_GROUP_LAYERS_MAX, config->layer_count);
    /* What rows were before their chunk was rounded is gone when a later layer reads it. */
    const size_t stored = model_stored_layers(config);
    if (stored < config->layer_count && plan->quantized_pages)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s: %zu of its %zu layers attend to the KV of others, which a codec of 4 bits does not "
                         "support: try --set codec=f16",
                         config->name, config->layer_count - stored, config->layer_count);
    if (groups != NULL && plan->mixes_pages)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s: its layers have K and V of %zu different shapes, which codec=dynamic does not support: "
                         "try --set codec=q4",
                         config->name, groups->group_count);
    if (stored < config->layer_count && plan->key_index == PLAN_KEY_INDEX_DISK)
        return error_set(error, STATUS_UNSUPPORTED,
                         "key_index=disk: %zu of %zu layers choose by the key index of others, which is gone by then",
                         config->layer_count - stored, config->layer_count);
    return STATUS_OK;
}

/* Between layers that keep a state no inputs are kept: no family that has them would be quicker by it. */
static enum status check_states(const struct plan *plan, const struct model_config *config, struct error *error) {
    const struct state_config *state = &config->state;
    if (state->layer_count == 0 || !plan->rebuilds || plan_inputs_ratio(plan, config) >= 1) return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED,
                     "rebuild=recompute: %zu of the %zu layers of %s keep a state in place of K and V, which are "
                     "not computed again: try --preset full",
                     state->layer_count, config->layer_count, config->name);
}

enum status plan_check(const struct plan *plan, const struct model_config *config, struct error *error) {
    if (plan->is_auto)
        return error_set(error, STATUS_USAGE,
                         "--preset auto: this command does not choose; loam plan prints what is quickest");
    TRY(check_sizes(plan, config, error));
    TRY(check_kv_types(plan, config, error));
    if (plan->disk_directory != NULL && plan->host_bytes == 0)
        return error_set(error, STATUS_USAGE, "documents on disk need a budget in RAM");
    if (plan->quantized_pages && (plan->disk_directory == NULL || plan->k_type != KV_F16 || plan->v_type != KV_F16))
        return error_set(error, STATUS_USAGE, "4-bit pages are of f16 KV, and on disk");
    if (plan->mixes_pages && (!plan->quantized_pages || config->layer_count > PAGE_FRACTIONS_LAYERS_MAX))
        return error_set(error, STATUS_USAGE, "a fraction of the pages in 4 bits is of at most %d layers, not %zu",
                         PAGE_FRACTIONS_LAYERS_MAX, config->layer_count);
    TRY(check_rebuild(plan, config, error));
    TRY(check_layers(plan, config, error));
    TRY(check_states(plan, config, error));
    return check_select(plan, error);
}

/* ---- the cache ---- */

struct select_shape plan_select_shape(const struct model_config *config) {
    return (struct select_shape){.layer_count = config->layer_count,
                                 .head_count = config->head_count,
                                 .kv_head_count = config->kv_head_count,
                                 .k_dimension = config->k_dimension,
                                 .v_dimension = config->v_dimension,
                                 .groups = config->kv_groups,
                                 .windows = config->kv_windows};
}

uint64_t plan_context_size(const struct plan *plan, const struct model_config *config) {
    return plan->context_size != 0 ? plan->context_size : config->context_length;
}

size_t plan_batch_size(const struct plan *plan) {
    return plan->batch_size != 0 ? plan->batch_size : PLAN_BATCH_DEFAULT;
}

/* Rounds down to whole blocks: segments must not move the boundaries of blocks. */
size_t plan_segment_size(const struct plan *plan, const struct model_config *config) {
    const size_t block = plan_batch_size(plan);
    const uint64_t context = plan_context_size(plan, config);
    size_t size = plan->segment_size;
    if (size == 0) size = min_size(SEGMENT_DEFAULT, SEGMENT_BYTES / (config->hidden_size * sizeof(float)));
    if (context < size) size = align_up((size_t)context, block);
    return max_size(size / block * block, block);
}

struct forward_options plan_forward_options(const struct plan *plan, const struct model_config *config) {
    const size_t block = max_size(plan_batch_size(plan), plan->sequence_capacity);
    return (struct forward_options){.rebuilds = plan_keeps_inputs(plan, config),
                                    .row_capacity = max_size(plan_segment_size(plan, config), block),
                                    .block_capacity = block,
                                    .logit_row_capacity = min_size(block, PLAN_SEQUENCES_MAX),
                                    .beside_capacity = block};
}

uint64_t plan_sequence_bytes(const struct model_config *config, enum kv_type k_type, enum kv_type v_type,
                             uint64_t token_count) {
    const struct plan plan = {.context_size = token_count};
    struct kv_cache_config cache = model_cache_config(config, k_type, v_type);
    cache.windows = config->kv_windows;
    cache.batch_tokens = plan_segment_size(&plan, config);
    return kv_cache_sequence_bytes(&cache, token_count);
}

double plan_inputs_ratio(const struct plan *plan, const struct model_config *config) {
    const struct inputs_shape shape = {.layer_count = model_stored_layers(config),
                                       .hidden_size = config->hidden_size,
                                       .form = config->hidden_size % 32 != 0 ? INPUTS_F32
                                               : plan->device_bytes != 0     ? INPUTS_F16
                                                                             : INPUTS_Q8};
    const struct kv_cache_config cache = model_cache_config(config, plan->k_type, plan->v_type);
    return (double)inputs_chunk_bytes(&shape) * (double)(shape.layer_count - config->state.layer_count) /
           (double)(kv_cache_bytes_per_token(&cache) * KV_CHUNK_TOKENS);
}

bool plan_keeps_inputs(const struct plan *plan, const struct model_config *config) {
    return plan->rebuilds && plan_inputs_ratio(plan, config) < 1;
}

/* The first layer behind so many that attend to everything. */
static size_t layer_behind(const struct model_config *config, size_t count) {
    return kv_full_layer_behind(config->kv_groups, config->kv_windows, config->layer_count, count);
}

/* With the least workspace for what is computed again. */
static enum status least_attention(const struct plan *plan, const struct model_config *config,
                                   struct attention_options *attention, struct error *error) {
    const struct select_shape shape = plan_select_shape(config);
    *attention = (struct attention_options){.kv_head_count = config->kv_head_count,
                                            .layer_count = config->layer_count,
                                            .head_count = config->head_count,
                                            .k_dimension = config->k_dimension,
                                            .groups = config->kv_groups,
                                            .reuses = plan->select.reuse.kind == REUSE_SIMILARITY,
                                            .dials = plan->select.loss > 0,
                                            .sequence_capacity = plan->sequence_capacity,
                                            .context_size = plan_context_size(plan, config),
                                            .turns = plan->device_bytes != 0 && plan->disk_directory != NULL,
                                            .prefetches = plan->prefetches,
                                            .unit_bytes = plan->unit_bytes,
                                            .q4_of_16 = plan->fixes_fractions ? plan->quantized_of_16
                                                                              : PAGE_FRACTION_WHOLE / 2};
    attention->list_layer_first = layer_behind(config, max_size(plan->resident_layers, plan->select.dense_layers));
    if (plan_keeps_inputs(plan, config)) {
        const struct kv_cache_config cache = model_cache_config(config, plan->k_type, plan->v_type);
        attention->rebuild.chunk_bytes = kv_cache_chunk_bytes_max(&cache);
        attention->rebuild.chunks = 1;
        attention->rebuild.layer_first = max_size(plan->near_layers, 1);
        attention->rebuild.hidden_size = config->hidden_size;
        attention->rebuild.v_dimension = config->v_dimension;
    }
    if (plan->select.method == NULL || plan->select.method == &select_all) return STATUS_OK;
    return select_options_kept_max(&plan->select, &shape, attention->context_size, &attention->kept_max, error);
}

/* Of all sequences' layers that keep one. */
static uint64_t states_bytes(const struct plan *plan, const struct kv_cache_config *cache) {
    return plan->sequence_capacity * kv_states_bytes(cache);
}

/* Shapes and types alone: for bytes per token. */
static enum status token_config(const struct plan *plan, const struct model_config *config,
                                struct kv_cache_config *cache, struct error *error) {
    const struct select_shape shape = plan_select_shape(config);
    TRY(check_kv_types(plan, config, error));
    *cache = model_cache_config(config, plan->k_type, plan->v_type);
    cache->state_slots = model_state_slots(config, plan->sequence_capacity);
    cache->block_tokens = max_size(plan_batch_size(plan), PLAN_BLOCK_MIN);
    if (!plan->rows_in_host && !plan->keeps_rows && (plan->disk_directory == NULL || config->state.layer_count == 0))
        cache->windows = config->kv_windows;
    if (cache->windows != NULL) cache->batch_tokens = max_size(plan_segment_size(plan, config), cache->block_tokens);
    cache->key_index_layer_first = select_layer_first(&plan->select, &shape);
    if (plan->select.method == NULL) return STATUS_OK;
    return select_options_key_index_bytes(&plan->select, &shape, &cache->key_index_bytes, error);
}

/* Where RAM does not hold the key index of every sequence's whole context, they share what it holds: one context at
 * least, and of what is left then half; the rest is slots. */
static void pool_key_index(const struct plan *plan, uint64_t context, struct kv_cache_config *cache) {
    if (!plan->pools_key_index || cache->host_bytes == 0 || cache->key_index_bytes == 0 || plan->device_bytes != 0 ||
        plan->disk_directory == NULL || plan->key_index == PLAN_KEY_INDEX_DISK ||
        kv_tier_bytes_min(cache) <= cache->host_bytes)
        return;
    const uint64_t all = cache->token_capacity;
    cache->pooled_tokens = context;
    const uint64_t one = kv_tier_bytes_min(cache);
    cache->pooled_tokens = context + KV_CHUNK_TOKENS;
    const uint64_t chunk = kv_tier_bytes_min(cache) - one;
    const uint64_t spare = cache->host_bytes > one ? cache->host_bytes - one : 0;
    cache->pooled_tokens = context + spare / 2 / chunk * KV_CHUNK_TOKENS;
    if (cache->pooled_tokens >= all) cache->pooled_tokens = 0;
}

/* Decides where the key index lies, once all else of the cache is known.  Without a budget: as in the least one. */
static void place_key_index(const struct plan *plan, struct kv_cache_config *cache) {
    if (!key_index_may_leave(plan) || cache->key_index_bytes == 0 || plan->key_index == PLAN_KEY_INDEX_RAM ||
        (cache->groups != NULL && cache->groups->stored_count < cache->groups->layer_count))
        return;
    const uint64_t in_ram = kv_tier_bytes_min(cache), pooled = cache->pooled_tokens;
    cache->key_index_group = key_index_group(&plan->select);
    cache->key_index_on_disk = true;
    cache->pooled_tokens = 0; /* of RAM */
    if (cache->host_bytes < kv_tier_bytes_min(cache)) cache->key_index_places = 1;
    if (plan->key_index == PLAN_KEY_INDEX_DISK) return;
    cache->key_index_on_disk = cache->host_bytes > 0 && in_ram > cache->host_bytes && kv_tier_bytes_min(cache) < in_ram;
    if (!cache->key_index_on_disk) cache->pooled_tokens = pooled;
}

static enum status lacks_key_index(const struct plan *plan, uint64_t tokens, uint64_t bytes, struct error *error) {
    char needed[32], has[32];
    return error_set(error, STATUS_MEMORY,
                     "key index, states and page tables of %llu tokens need %s, the device has %s for them: try a "
                     "smaller -c",
                     (unsigned long long)tokens, bytes_text(bytes, needed, sizeof needed),
                     bytes_text(plan->device_bytes, has, sizeof has));
}

/* With rows on disk the key index, states and page tables are what a device's own memory holds; sequences that share
 * the key index share as much as is left. */
static enum status bound_key_index(const struct plan *plan, uint64_t context, struct kv_cache_config *cache,
                                   struct error *error) {
    const uint64_t bytes = kv_tier_device_bytes(cache);
    if (plan->disk_directory == NULL || bytes <= plan->device_bytes) return STATUS_OK;
    if (cache->key_index_bytes == 0) return lacks_key_index(plan, cache->token_capacity, bytes, error);
    cache->pooled_tokens = KV_CHUNK_TOKENS;
    const uint64_t one = kv_tier_device_bytes(cache);
    cache->pooled_tokens = 2 * KV_CHUNK_TOKENS;
    const uint64_t chunk = kv_tier_device_bytes(cache) - one, spare = one - chunk; /* of columns beside the pool */
    cache->pooled_tokens = plan->device_bytes > spare ? (plan->device_bytes - spare) / chunk * KV_CHUNK_TOKENS : 0;
    if (plan->pools_key_index && context <= cache->pooled_tokens) return STATUS_OK;
    return lacks_key_index(plan, cache->token_capacity, bytes, error);
}

/* Rows of lists and heads that stay whole, beside the layers that do: of the heads as many as leave every other head
 * its list (CLO, 3.3: what the buffers leave free is for persistent heads).  Where that is none, lists have what they
 * would have if none were to stay. */
static void divide_lists(struct kv_cache_config *cache, const struct list_buffer_shape *buffers, uint64_t spare,
                         size_t *staying) {
    const uint64_t heads = kv_lane(cache, buffers->layer_count, 0) - kv_lane(cache, buffers->layer_first, 0),
                   head = cache->sequence_capacity * list_buffer_head_bytes(buffers->list_rows, buffers->chunk_bytes),
                   tables = list_buffer_table_bytes(buffers),
                   layers = kv_lane(cache, min_size(cache->resident_layers, cache->layer_count), 0);
    ASSERT(*staying <= heads);
    uint64_t rest = spare;
    for (; *staying > 0; --*staying) {
        const uint64_t whole = kv_tier_heads_bytes(cache, layers + *staying);
        rest = whole < spare ? spare - whole : 0;
        if ((heads - *staying) * head + tables <= rest / LIST_SHARE_WHOLE * LIST_SHARE) break;
        rest = spare;
    }
    const uint64_t all = (heads - *staying) * head + tables, most = rest / LIST_SHARE_WHOLE * LIST_SHARE;
    cache->list_bytes = all < most ? all : most;
    cache->scratch_bytes += cache->list_bytes;
}

/* What RAM has beyond the least goes to rows of lists, up to what all heads' lists may have: a slot holds 64 tokens, of
 * which a list of short units wants a few.  Layers that are to stay have what is left.  *staying: heads that are to
 * stay; as many as do, where lists have buffers. */
static enum status add_list_buffers(const struct plan *plan, const struct model_config *config,
                                    const struct attention_options *lists, struct kv_cache_config *cache,
                                    size_t *staying, struct error *error) {
    const struct select_shape shape = plan_select_shape(config);
    const uint64_t least = kv_tier_bytes_min(cache);
    uint64_t unit;
    if (!plan->select.list_buffers || plan->disk_directory == NULL || plan->quantized_pages || plan->select.scan ||
        lists->kept_max == 0 || cache->host_bytes <= least)
        return STATUS_OK;
    TRY(select_options_unit(&plan->select, &shape, &unit, error));
    const size_t chunk_bytes = kv_cache_chunk_bytes_max(cache); /* as a slot has */
    const uint64_t kv_bytes = kv_lane_count(cache) * kv_chunks_of(cache->token_capacity) * chunk_bytes;
    /* A window's rows are whole chunks, always the same; clusters are taken of a few chunks, which slots hold; by alpha
     * a list is far shorter than the longest, which its buffer has place for. */
    if (plan->select.method == &select_window || plan->select.method->finds_few_chunks || plan->select.alpha > 0)
        return STATUS_OK;
    if (unit > LIST_UNIT_MAX || cache->host_bytes >= kv_tier_bytes_around(cache, kv_bytes)) return STATUS_OK;
    const struct list_buffer_shape buffers = {.layer_count = config->layer_count,
                                              .kv_head_count = cache->kv_head_count,
                                              .groups = cache->groups,
                                              .sequence_capacity = cache->sequence_capacity,
                                              .layer_first = lists->list_layer_first,
                                              .list_rows = lists->kept_max,
                                              .chunk_bytes = chunk_bytes};
    divide_lists(cache, &buffers, cache->host_bytes - least, staying);
    return STATUS_OK;
}

/* Of attention, of states that lie in RAM, and of the inputs that each sequence keeps. */
static uint64_t scratch_bytes_of(const struct plan *plan, const struct model_config *config,
                                 const struct attention_options *attention, const struct kv_cache_config *cache) {
    const struct inputs_shape shape = {
        .layer_count = model_stored_layers(config), .hidden_size = config->hidden_size, .form = plan->inputs_form};
    const uint64_t inputs =
        plan_keeps_inputs(plan, config)
            ? plan->sequence_capacity * inputs_bytes(&shape, attention->context_size, attention->rebuild.chunks)
            : 0;
    return attention_bytes(attention) + (plan->device_bytes != 0 ? 0 : states_bytes(plan, cache)) + inputs;
}

/* Buffers that are a share of the RAM, of which what it has beyond the least pays: else the least would grow with what
 * is given.  A sixteenth is for writing behind (4-bit pages have a third of the bytes), and a quarter at most for
 * computing again: workspace and inputs of two ranges of attention (each attends as soon as it is computed), in whole
 * chunks of all heads. */
static void grow_buffers(const struct plan *plan, const struct model_config *config,
                         struct attention_options *attention, struct kv_cache_config *cache) {
    const uint64_t least = kv_tier_bytes_min(cache), scratch = cache->scratch_bytes, host = cache->host_bytes,
                   spare = host > least ? host - least : 0;
    if (cache->buffer_bytes > 0) {
        uint64_t share = min_size(host / (plan->quantized_pages ? 32 : 16), spare / 4);
        share = min_size(share, BUFFER_BYTES_MAX);
        cache->buffer_bytes = max_size(share, BUFFER_BYTES_MIN);
    }
    if (!plan_keeps_inputs(plan, config) || plan->rows_in_host) return;
    const uint64_t context = kv_chunks_of(attention->context_size),
                   ranges = 2 * attention_range_rows(attention->context_size) / KV_CHUNK_TOKENS,
                   share = min_size(host / 4, spare / 2);
    uint64_t most = min_size(context, ranges);
    if (plan->device_bytes != 0) /* where the workspace is then */
        most = min_size(most, plan->device_bytes / (config->kv_head_count * attention->rebuild.chunk_bytes));
    for (uint64_t chunks = most; chunks > 1; chunks--) {
        attention->rebuild.chunks = (size_t)chunks;
        cache->scratch_bytes = scratch_bytes_of(plan, config, attention, cache);
        if (cache->scratch_bytes - scratch <= share) return;
    }
    attention->rebuild.chunks = 1;
    cache->scratch_bytes = scratch;
}

/* All of the cache and of attention but buffers of lists. */
static enum status divide_host(const struct plan *plan, const struct model_config *config,
                               struct attention_options *attention, struct kv_cache_config *cache,
                               struct error *error) {
    uint64_t context = plan_context_size(plan, config), per_sequence, bytes;
    TRY(token_config(plan, config, cache, error));
    TRY(least_attention(plan, config, attention, error));
    cache->sequence_capacity = plan->sequence_capacity;
    cache->host_bytes = plan->host_bytes;
    cache->device_has_memory = plan->device_bytes != 0;
    cache->rows_in_host = plan->rows_in_host;
    cache->near_layers = plan->near_layers;
    cache->quantized_pages = plan->quantized_pages;
    cache->eviction = plan->eviction;
    cache->read_gap_bytes = plan->read_gap_bytes;
    cache->mixes_pages = plan->mixes_pages;
    const bool stays = plan->disk_directory != NULL && plan->resident_layers > 0;
    cache->resident_layers = stays ? layer_behind(config, plan->resident_layers) : 0;
    cache->buffer_bytes = plan->disk_directory != NULL ? BUFFER_BYTES_MIN : 0;
    cache->scratch_bytes = scratch_bytes_of(plan, config, attention, cache);
    cache->chosen_tokens = attention->kept_max;
    if (!checked_align(context, KV_CHUNK_TOKENS, &per_sequence) ||
        !checked_multiply(per_sequence, plan->sequence_capacity, &cache->token_capacity) ||
        !checked_multiply(cache->token_capacity, kv_cache_bytes_per_token(cache), &bytes) || bytes > (uint64_t)1 << 46)
        return error_set(error, STATUS_MEMORY, "a context of %llu tokens for %zu sequences does not fit any memory",
                         (unsigned long long)context, plan->sequence_capacity);
    /* Where they have all of the context anyway, prompts may be cut anywhere. */
    if (cache->windows != NULL && plan->disk_directory == NULL &&
        kv_window_columns(cache->windows, cache->batch_tokens) >= per_sequence / KV_CHUNK_TOKENS)
        cache->windows = NULL;
    pool_key_index(plan, per_sequence, cache);
    place_key_index(plan, cache);
    TRY(bound_key_index(plan, per_sequence, cache, error));
    grow_buffers(plan, config, attention, cache);
    return STATUS_OK;
}

enum status plan_attention_options(const struct plan *plan, const struct model_config *config,
                                   struct attention_options *attention, struct error *error) {
    struct kv_cache_config cache;
    return plan_keeps_inputs(plan, config) ? divide_host(plan, config, attention, &cache, error)
                                           : least_attention(plan, config, attention, error);
}

enum status plan_cache_config(const struct plan *plan, const struct model_config *config, struct kv_cache_config *cache,
                              struct error *error) {
    struct attention_options lists;
    size_t staying = 0;
    TRY(divide_host(plan, config, &lists, cache, error));
    return add_list_buffers(plan, config, &lists, cache, &staying, error);
}

enum status plan_keep_heads(const struct plan *plan, const struct model_config *config, struct kv_cache_config *cache,
                            size_t *head_count, struct error *error) {
    struct attention_options lists;
    TRY(plan_attention_options(plan, config, &lists, error));
    cache->scratch_bytes -= cache->list_bytes;
    cache->list_bytes = 0;
    return add_list_buffers(plan, config, &lists, cache, head_count, error);
}

enum status plan_host_bytes_min(const struct plan *plan, const struct model_config *config, uint64_t *bytes,
                                struct error *error) {
    struct kv_cache_config cache;
    struct plan counted = *plan;
    counted.select.list_buffers = false; /* they take what is beyond it */
    TRY(plan_cache_config(&counted, config, &cache, error));
    *bytes = kv_tier_bytes_min(&cache);
    return STATUS_OK;
}

enum status plan_host_bytes_around(const struct plan *plan, const struct model_config *config, uint64_t kv_bytes,
                                   uint64_t *bytes, struct error *error) {
    struct plan counted = *plan;
    struct kv_cache_config cache;
    counted.host_bytes = *bytes = kv_bytes;
    counted.select.list_buffers = false; /* they are of kv_bytes */
    if (counted.key_index == PLAN_KEY_INDEX_FITS) counted.key_index = PLAN_KEY_INDEX_RAM;
    for (int round = 0; round < 4; round++) { /* one of the buffers is a share of the whole */
        TRY(plan_cache_config(&counted, config, &cache, error));
        counted.host_bytes = *bytes = kv_tier_bytes_around(&cache, kv_bytes);
    }
    return STATUS_OK;
}

/* ---- the device ---- */

void plan_bound_device(struct plan *plan, struct device *device) {
    const uint64_t free_bytes = device_memory_free(device);
    plan->device_bytes = 0;
    plan->shares_memory = device->shares_memory;
    if (free_bytes != UINT64_MAX) plan_bound_memory(plan, free_bytes);
}

/* Activations and what is computed with take the rest: an eighth, within bounds, and at least what plan_fit_context
 * counts. */
void plan_bound_memory(struct plan *plan, uint64_t free_bytes) {
    static const uint64_t rest_min = (uint64_t)64 << 20, rest_max = (uint64_t)1 << 30;
    const uint64_t rest = max_size(free_bytes / 8, min_size(rest_min, free_bytes / 2));
    plan->device_free_bytes = max_size(free_bytes, 1);
    plan->device_bytes = max_size(free_bytes - (rest < rest_max ? rest : rest_max), 1);
    if (plan->device_budget_bytes == 0) return;
    if (plan->device_budget_bytes < plan->device_bytes) plan->device_bytes = plan->device_budget_bytes;
    plan->budget_bytes -= plan->device_budget_bytes;
    plan->has_budget = plan->budget_bytes > 0;
    plan->device_budget_bytes = 0;
}

/* ---- what memory holds ---- */

/* What bounds KV in memory, and for whom. */
struct kv_bound {
    uint64_t bytes;
    bool is_device; /* the device's memory, not a budget */
};
static bool bound_of(const struct plan *plan, struct kv_bound *bound) {
    const bool on_device = plan->device_bytes != 0 && !plan->rows_in_host;
    *bound = (struct kv_bound){.bytes = plan->has_budget ? plan->budget_bytes : UINT64_MAX};
    if (on_device && plan->device_bytes < bound->bytes)
        *bound = (struct kv_bound){.bytes = plan->device_bytes, .is_device = true};
    return (plan->has_budget || on_device) && plan->disk_directory == NULL;
}

/* Of a context, all sequences: what lies in RAM or on the device with the rows, and the key index. */
struct context_bytes {
    uint64_t rows, key_index;
};
static struct context_bytes context_bytes_of(const struct plan *plan, const struct kv_cache_config *cache,
                                             uint64_t tokens) {
    struct kv_cache_config plain = *cache;
    const uint64_t whole = kv_chunks_of(tokens) * KV_CHUNK_TOKENS;
    plain.key_index_bytes = 0;
    const uint64_t rows = kv_cache_sequence_bytes(&plain, whole);
    return (struct context_bytes){.rows = rows * plan->sequence_capacity,
                                  .key_index =
                                      (kv_cache_sequence_bytes(cache, whole) - rows) * plan->sequence_capacity};
}

/* Layers whose rows stay on the device: those that attend to everything, as a step reads all of that.  Where others
 * choose, half of the memory is left to their slots. */
static size_t near_layers_of(const struct plan *plan, const struct kv_cache_config *cache, uint64_t row_bytes,
                             uint64_t bytes) {
    const bool chooses = plan->select.method != NULL && plan->select.method != &select_all;
    const uint64_t layer_bytes = row_bytes / cache->layer_count;
    const size_t dense = chooses ? plan->select.dense_layers : cache->layer_count;
    if (cache->groups != NULL || layer_bytes == 0) return 0;
    return min_size(dense, (size_t)((chooses ? bytes / 2 : bytes) / layer_bytes));
}

/* Bytes that a token takes in RAM, where rows are there alone. */
static uint64_t far_bytes_per_token(const struct plan *plan, const struct kv_cache_config *cache) {
    struct kv_cache_config held = *cache;
    held.key_index_bytes = 0; /* the device's */
    const uint64_t all = kv_cache_bytes_per_token(&held);
    return all - all / cache->layer_count * plan->near_layers +
           plan->input_row_bytes * (cache->layer_count - max_size(plan->near_layers, 1));
}

/* Bytes that a sequence of so many tokens takes there; and the most tokens whose bytes these are. */
static uint64_t sequence_bytes(const struct plan *plan, const struct kv_cache_config *cache, uint64_t tokens) {
    uint64_t bytes;
    if (!plan->rows_in_host) return kv_cache_sequence_bytes(cache, tokens);
    return checked_multiply(far_bytes_per_token(plan, cache), tokens, &bytes) ? bytes : UINT64_MAX;
}
static uint64_t fitting_tokens(const struct plan *plan, const struct kv_cache_config *cache, uint64_t bytes) {
    return plan->rows_in_host ? bytes / far_bytes_per_token(plan, cache) : kv_cache_fitting_tokens(cache, bytes);
}

/* Inputs lie beside rows in RAM, so that some of these are computed again on the device. */
static void place_inputs(struct plan *plan, const struct model_config *config, const struct kv_cache_config *cache) {
    char name[32];
    plan->rebuilds = strcmp(plan_method(plan, AXIS_REBUILD, name, sizeof name), "recompute") == 0 &&
                     cache->groups == NULL && config->state.layer_count == 0 && config->hidden_size % 32 == 0;
    if (plan_keeps_inputs(plan, config)) plan->input_row_bytes = bus_rebuild_row_bytes(config->hidden_size);
}

/* K and V in RAM, where the device's own memory does not hold them beside the key index. */
static enum status place_rows(struct plan *plan, const struct model_config *config, struct kv_cache_config *cache,
                              struct error *error) {
    struct context_bytes bytes = context_bytes_of(plan, cache, plan->context_size);
    plan->rows_in_host = false;
    plan->unit_bytes = plan->near_layers = plan->input_row_bytes = 0;
    plan->rebuilds = plan->rebuilds && plan->disk_directory != NULL;
    const uint64_t states = states_bytes(plan, cache), beside = bytes.key_index + states;
    if (plan->device_bytes == 0 || plan->disk_directory != NULL || bytes.rows + beside <= plan->device_bytes)
        return STATUS_OK;
    if (beside > plan->device_bytes) return lacks_key_index(plan, plan->context_size, beside, error);
    plan->rows_in_host = true;
    cache->windows = NULL;
    if (plan->shares_memory) return STATUS_OK;
    bytes = context_bytes_of(plan, cache, plan->context_size);
    plan->unit_bytes = plan->device_bytes - bytes.key_index - states;
    place_inputs(plan, config, cache);
    const uint64_t layer = bytes.rows / cache->layer_count,
                   workspace = plan->input_row_bytes > 0 ? min_size(layer, plan->unit_bytes) : 0;
    plan->near_layers = near_layers_of(plan, cache, bytes.rows, plan->unit_bytes - workspace);
    plan->unit_bytes -= bytes.rows / cache->layer_count * plan->near_layers;
    return STATUS_OK;
}

/* What a larger budget is given by: where a device has no memory of its own, either is RAM's. */
static const char *budget_option(const struct plan *plan) {
    const bool is_devices = plan->device_budget_bytes > 0 && plan->device_budget_bytes == plan->budget_bytes;
    return is_devices ? "--kv-device" : "--kv-host";
}

static enum status lacks_states(const struct plan *plan, uint64_t states, const struct kv_bound *bound,
                                struct error *error) {
    char needed[32], budget[32];
    return error_set(error, STATUS_MEMORY,
                     "the states of %zu sequences need %s, the budget is %s: try a larger %s", plan->sequence_capacity,
                     bytes_text(states, needed, sizeof needed), bytes_text(bound->bytes, budget, sizeof budget),
                     budget_option(plan));
}

/* The cache hands out whole chunks. */
static enum status check_budget(const struct plan *plan, const struct kv_cache_config *cache, uint64_t tokens,
                                uint64_t *fitting, struct error *error) {
    struct kv_bound bound;
    *fitting = UINT64_MAX;
    if (!bound_of(plan, &bound)) return STATUS_OK;
    const uint64_t states = plan->rows_in_host ? 0 : states_bytes(plan, cache); /* the device's */
    if (states > bound.bytes) return lacks_states(plan, states, &bound, error);
    const uint64_t for_chunks = bound.bytes - states;
    *fitting = fitting_tokens(plan, cache, for_chunks / plan->sequence_capacity) / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    if (tokens <= *fitting) return STATUS_OK;
    const uint64_t wanted =
        sequence_bytes(plan, cache, kv_chunks_of(tokens) * KV_CHUNK_TOKENS) * plan->sequence_capacity;
    char needed[32], budget[32];
    if (bound.is_device)
        return error_set(error, STATUS_MEMORY,
                         "the KV of %llu tokens needs %s, the device has %s for it, which hold %llu tokens: try -c "
                         "%llu or more, which RAM holds then%s or --kv-disk DIR",
                         (unsigned long long)tokens, bytes_text(wanted, needed, sizeof needed),
                         bytes_text(for_chunks, budget, sizeof budget), (unsigned long long)*fitting,
                         (unsigned long long)(kv_chunks_of(tokens) * KV_CHUNK_TOKENS),
                         plan->k_type == KV_F16 ? ", -ctk q8_0 -ctv q8_0" : "");
    return error_set(error, STATUS_MEMORY,
                     "the KV of %llu tokens needs %s, the budget is %s and holds %llu tokens: try a larger "
                     "%s%s or --kv-disk DIR",
                     (unsigned long long)tokens, bytes_text(wanted, needed, sizeof needed),
                     bytes_text(for_chunks, budget, sizeof budget), (unsigned long long)*fitting, budget_option(plan),
                     plan->k_type == KV_F16 ? ", -ctk q8_0 -ctv q8_0" : "");
}

/* What a pass works in on the device, beside K and V, key index and states: activations, page tables, lists, what
 * products of a block make of their inputs; and rings of streams, kernels, and areas of 2 MiB that are not full. */
static enum status work_bytes(const struct plan *plan, const struct model_config *config,
                              const struct kv_cache_config *cache, uint64_t *bytes, struct error *error) {
    static const uint64_t own_bytes = (uint64_t)16 << 20;
    const struct forward_options forward = plan_forward_options(plan, config);
    const size_t widest = max_size(max_size(model_ffn_width(config), config->hidden_size),
                                   config->head_count * max_size(config->k_dimension, config->v_dimension)),
                 experts = config->experts.used * config->experts.size;
    struct attention_options attention;
    TRY(least_attention(plan, config, &attention, error));
    *bytes = own_bytes + forward_bytes(config, &forward) + attention_bytes(&attention) +
             forward.block_capacity * (widest * sizeof(uint16_t) + experts * sizeof(float)) +
             (plan->disk_directory != NULL /* they count with the key index */
                  ? 0
                  : plan->sequence_capacity * kv_sequence_device_table_bytes(cache, kv_chunks_of(plan->context_size)));
    return STATUS_OK;
}

/* The device's memory for K and V, of `most` bytes, with the plan's context.  One that is given is tried in any case:
 * what is counted is a little more than what is allocated. */
static enum status bound_by_work(struct plan *plan, const struct model_config *config,
                                 const struct kv_cache_config *cache, bool is_given, uint64_t most,
                                 struct error *error) {
    uint64_t work;
    char needed[32], free_text[32];
    if (plan->device_free_bytes == 0) return STATUS_OK;
    TRY(work_bytes(plan, config, cache, &work, error));
    if (work >= plan->device_free_bytes && is_given) return STATUS_OK;
    if (work >= plan->device_free_bytes)
        return error_set(error, STATUS_MEMORY,
                         "a context of %llu tokens needs %s of the device's memory to work in, %s are free: try "
                         "fewer layers on the device (-ngl)",
                         (unsigned long long)plan->context_size, bytes_text(work, needed, sizeof needed),
                         bytes_text(plan->device_free_bytes, free_text, sizeof free_text));
    plan->device_bytes = min_size(most, plan->device_free_bytes - work);
    return STATUS_OK;
}

/* Whether a context that was not given fits: all of it. */
static enum status context_fits(struct plan *plan, const struct model_config *config, uint64_t context, uint64_t most,
                                struct error *error) {
    struct kv_cache_config cache;
    uint64_t fitting;
    plan->context_size = context;
    TRY(token_config(plan, config, &cache, error));
    TRY(bound_by_work(plan, config, &cache, false, most, error));
    return check_budget(plan, &cache, context, &fitting, error);
}

enum status plan_fit_context(struct plan *plan, const struct model_config *config, struct error *error) {
    struct kv_cache_config cache;
    const bool is_given = plan->context_size != 0;
    const uint64_t all = plan_context_size(plan, config), most = plan->device_bytes;
    uint64_t fitting, chunks = 1, end = kv_chunks_of(all);
    if (is_given) {
        TRY(token_config(plan, config, &cache, error));
        TRY(bound_by_work(plan, config, &cache, true, most, error));
        TRY(place_rows(plan, config, &cache, error));
        return check_budget(plan, &cache, all, &fitting, error);
    }
    if (context_fits(plan, config, all, most, error) == STATUS_OK) return STATUS_OK;
    TRY(context_fits(plan, config, KV_CHUNK_TOKENS, most, error));
    while (end - chunks > 1) { /* so many whole chunks fit, `end` do not */
        const uint64_t middle = chunks + (end - chunks) / 2;
        if (context_fits(plan, config, middle * KV_CHUNK_TOKENS, most, error) == STATUS_OK)
            chunks = middle;
        else
            end = middle;
    }
    return context_fits(plan, config, chunks * KV_CHUNK_TOKENS, most, error);
}

uint64_t plan_device_context(const struct model_config *config, enum kv_type type, uint64_t free_bytes) {
    struct plan plan = {.sequence_capacity = 1, .k_type = type, .v_type = type};
    plan_bound_memory(&plan, free_bytes);
    return plan_fit_context(&plan, config, NULL) == STATUS_OK ? plan.context_size : 0;
}

enum status plan_check_budget(const struct plan *plan, const struct model_config *config, uint64_t token_count,
                              struct error *error) {
    struct kv_cache_config cache;
    uint64_t fitting;
    TRY(token_config(plan, config, &cache, error));
    return check_budget(plan, &cache, token_count, &fitting, error);
}

/* A preset's pages are all in 4 bits but for the first ones (decision 0034), which layers that differ cannot have: rows
 * are exact, 4 bits in the first page are not. */
static void take_rows(struct plan *plan, const struct model_config *config) {
    const bool is_presets = plan->mixes_pages && plan->fixes_fractions && plan->quantized_of_16 == PAGE_FRACTION_WHOLE;
    if (is_presets && config->kv_groups != NULL)
        plan->quantized_pages = plan->mixes_pages = plan->fixes_fractions = false;
}

/* K and V on disk: what the device's memory has beside the key index is slots, for rows that are chosen and chunks in
 * 4 bits.  Rows that are computed again are attended to where they lie. */
static enum status place_units(struct plan *plan, const struct model_config *config, struct error *error) {
    struct kv_cache_config cache;
    plan->unit_bytes = 0;
    if (plan->device_bytes == 0 || plan->shares_memory || plan->select.method == NULL ||
        plan->select.method == &select_all || plan->select.scan || plan_keeps_inputs(plan, config))
        return STATUS_OK;
    TRY(plan_cache_config(plan, config, &cache, error));
    plan->unit_bytes = plan->device_bytes - kv_tier_device_bytes(&cache); /* which was held against it */
    return STATUS_OK;
}

/* Buffers that grow with the budget (grow_buffers: workspace and inputs of kvpr, most of all) take slots of a budget
 * that was to hold all of the K and V: it gets what they take, up to `most`. */
static enum status add_buffers(struct plan *plan, const struct model_config *config, uint64_t kv_bytes, uint64_t most,
                               struct error *error) {
    enum { ROUNDS = 12 }; /* of what is added they take up to half, too */
    for (size_t round = 0; round < ROUNDS && !plan->quantized_pages; round++) {
        struct kv_cache_config cache;
        TRY(plan_cache_config(plan, config, &cache, error));
        const uint64_t chunk_bytes = kv_cache_chunk_bytes_max(&cache), chunks = kv_bytes / chunk_bytes,
                       slots = kv_tier_chunk_slots(&cache, 0);
        if (slots >= chunks) break;
        plan->host_bytes += kv_tier_slots_bytes(&cache, (chunks - slots) * chunk_bytes);
        if (plan->host_bytes >= most) break;
    }
    if (plan->host_bytes > most) plan->host_bytes = most;
    return STATUS_OK;
}

enum status plan_set_host_bytes(struct plan *plan, const struct model_config *config, struct error *error) {
    struct kv_cache_config cache;
    uint64_t bytes_min, all, kv_bytes = 0;
    if (plan->disk_directory == NULL) return STATUS_OK;
    take_rows(plan, config);
    TRY(place_units(plan, config, error));
    plan->host_bytes = plan->budget_bytes;
    if (plan->has_budget) return STATUS_OK;
    TRY(token_config(plan, config, &cache, error));
    TRY(plan_host_bytes_min(plan, config, &bytes_min, error));
    all = kv_cache_sequence_bytes(&cache, kv_chunks_of(plan_context_size(plan, config)) * KV_CHUNK_TOKENS);
    if (all == UINT64_MAX || __builtin_mul_overflow(all, plan->sequence_capacity, &kv_bytes) ||
        __builtin_add_overflow(kv_tier_slots_bytes(&cache, kv_bytes), bytes_min, &all))
        all = UINT64_MAX;
    const uint64_t memory = plan->memory_bytes != 0 ? plan->memory_bytes : memory_available_bytes();
    uint64_t half = memory / 2, wanted = all < half ? all : half;
    plan->host_bytes = wanted;
    if (all < half) TRY(add_buffers(plan, config, kv_bytes, half, error));
    wanted = plan->host_bytes;
    if (plan->pools_key_index) TRY(plan_host_bytes_min(plan, config, &bytes_min, error));
    plan->host_bytes = wanted > bytes_min ? wanted : bytes_min;
    return STATUS_OK;
}

enum status plan_check_memory(const struct plan *plan, const struct model_config *config, uint64_t token_count,
                              struct error *error) {
    struct kv_cache_config cache;
    if (plan->disk_directory != NULL || (plan->device_bytes != 0 && !plan->rows_in_host))
        return STATUS_OK; /* the engine says what it needs; it was bounded */
    TRY(token_config(plan, config, &cache, error));
    const uint64_t bytes = sequence_bytes(plan, &cache, token_count);
    uint64_t available = memory_available_bytes();
    if (!plan->rows_in_host) available -= min_size(available, states_bytes(plan, &cache));
    if (bytes <= available) return STATUS_OK;
    char needed[32], free_text[32];
    return error_set(error, STATUS_MEMORY, "the KV of %llu tokens needs %s, the system has %s; at most %llu fit%s",
                     (unsigned long long)token_count, bytes_text(bytes, needed, sizeof needed),
                     bytes_text(available, free_text, sizeof free_text),
                     (unsigned long long)fitting_tokens(plan, &cache, available),
                     plan->k_type == KV_F16 ? " (-ctk q8_0 -ctv q8_0: nearly twice that)" : "");
}
