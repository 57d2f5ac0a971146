#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/inputs.h"
#include "cache/kv_cache_internal.h"

void kv_group_layout(const struct kv_cache_config *config, size_t group, struct kv_layout *layout) {
    const struct kv_geometry geometry = kv_group_at(config, group).geometry;
    kv_layout_init(layout, config->k_type, config->v_type, geometry.k_dimension, geometry.v_dimension);
}

/* Of a group, those that slide or the others. */
static size_t group_layers(const struct kv_cache_config *config, size_t group, bool slides) {
    size_t count = 0;
    if (config->windows == NULL) return slides ? 0 : kv_group_at(config, group).layer_count;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        count += kv_group_of(config, layer) == group && kv_slides(config, layer) == slides;
    return count;
}

/* Bytes of a column, of layers that slide or of the others; false when they do not fit. */
static bool column_bytes(const struct kv_cache_config *config, bool slides, uint64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < kv_group_count(config); i++) {
        struct kv_layout layout;
        uint64_t its;
        kv_group_layout(config, i, &layout);
        if (!checked_multiply(group_layers(config, i, slides), kv_group_at(config, i).geometry.kv_head_count, &its) ||
            !checked_multiply(its, layout.chunk_bytes, &its) || !checked_add(*bytes, its, bytes))
            return false;
    }
    return true;
}

static uint64_t window_column_bytes(const struct kv_cache_config *config) {
    uint64_t bytes;
    return column_bytes(config, true, &bytes) ? bytes : UINT64_MAX;
}

static size_t key_index_layers(const struct kv_cache_config *config) {
    if (config->key_index_bytes == 0 || config->key_index_layer_first >= config->layer_count) return 0;
    return config->layer_count - config->key_index_layer_first;
}

/* Layers that have blocks in memory at once. */
static size_t layers_in_memory(const struct kv_cache_config *config) {
    const size_t layers = key_index_layers(config);
    return config->key_index_on_disk ? min_size(layers, kv_key_index_places(config)) : layers;
}

/* Lanes that have blocks; and in memory at once. */
static size_t key_index_lanes(const struct kv_cache_config *config) {
    if (key_index_layers(config) == 0) return 0;
    return kv_lane_count(config) - kv_lane(config, config->key_index_layer_first, 0);
}

static size_t lanes_in_memory(const struct kv_cache_config *config) {
    return config->key_index_on_disk ? layers_in_memory(config) * kv_heads_max(config) : key_index_lanes(config);
}

/* Of layers that do not slide, and the key index. */
static uint64_t whole_bytes_per_token(const struct kv_cache_config *config) {
    uint64_t bytes, key_index;
    bool fits = column_bytes(config, false, &bytes) &&
                checked_multiply(key_index_lanes(config), config->key_index_bytes, &key_index) &&
                checked_add(bytes, key_index, &bytes);
    return fits ? bytes / KV_CHUNK_TOKENS : UINT64_MAX;
}

uint64_t kv_cache_bytes_per_token(const struct kv_cache_config *config) {
    struct kv_cache_config all = *config;
    all.windows = NULL;
    return whole_bytes_per_token(&all);
}

static uint64_t window_tokens(const struct kv_cache_config *config) {
    if (config->windows == NULL) return 0;
    return kv_window_columns(config->windows, config->batch_tokens) * KV_CHUNK_TOKENS;
}

uint64_t kv_cache_sequence_bytes(const struct kv_cache_config *config, uint64_t token_count) {
    const uint64_t most = window_tokens(config), held = token_count < most ? token_count : most;
    uint64_t whole, windows;
    if (!checked_multiply(whole_bytes_per_token(config), token_count, &whole) ||
        !checked_multiply(window_column_bytes(config) / KV_CHUNK_TOKENS, held, &windows) ||
        !checked_add(whole, windows, &whole))
        return UINT64_MAX;
    return whole;
}

uint64_t kv_cache_fitting_tokens(const struct kv_cache_config *config, uint64_t bytes) {
    const uint64_t whole = whole_bytes_per_token(config), most = window_tokens(config),
                   windows = kv_cache_sequence_bytes(config, most);
    if (bytes < windows || most == 0) return bytes / kv_cache_bytes_per_token(config);
    return whole > 0 ? most + (bytes - windows) / whole : UINT64_MAX / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
}

size_t kv_cache_chunk_bytes_max(const struct kv_cache_config *config) {
    size_t bytes = 0;
    for (size_t i = 0; i < kv_group_count(config); i++) {
        struct kv_layout layout;
        kv_group_layout(config, i, &layout);
        bytes = max_size(bytes, layout.chunk_bytes);
    }
    return bytes;
}

/* ---- tables ---- */

/* What a sequence has of columns. */
static void place_columns(struct kv_sequence *sequence, struct layout *layout, const struct kv_cache_config *config,
                          uint64_t chunk_count) {
    sequence->columns = layout_take(layout, (size_t)chunk_count, sizeof *sequence->columns);
    if (config->windows != NULL)
        sequence->windows.columns = layout_take(layout, (size_t)chunk_count, sizeof *sequence->windows.columns);
}

/* Blocks that grow, with key_index_on_disk. */
static void place_open(struct open_blocks *open, struct layout *layout, const struct kv_cache_config *config) {
    if (!config->key_index_on_disk) return;
    open->blocks = layout_take(layout, kv_lane_count(config), config->key_index_bytes);
    open->chunks = layout_take(layout, config->layer_count, sizeof *open->chunks);
}

static size_t key_index_table_lanes(const struct kv_cache_config *config) {
    return config->key_index_on_disk ? lanes_in_memory(config) : kv_lane_count(config);
}

uint64_t kv_sequence_device_table_bytes(const struct kv_cache_config *config, uint64_t chunk_count) {
    const uint64_t lanes = (config->quantized_pages ? 2 : 1) * kv_lane_count(config) +
                           (config->key_index_bytes > 0 ? key_index_table_lanes(config) : 0);
    return page_table_device_bytes(lanes, chunk_count);
}

uint64_t kv_sequence_table_bytes(const struct kv_cache_config *config, uint64_t chunk_count) {
    struct kv_sequence sequence;
    struct layout layout = {0};
    const uint64_t chunks = page_table_bytes(kv_lane_count(config), chunk_count);
    place_columns(&sequence, &layout, config, chunk_count);
    if (config->key_index_bytes > 0) place_open(&sequence.open, &layout, config);
    return layout.used + (config->quantized_pages ? 2 : 1) * chunks +
           (config->key_index_bytes > 0 ? page_table_bytes(key_index_table_lanes(config), chunk_count) : 0);
}

/* Touched only where it is used (the heap gives such sizes fresh pages). */
static struct layout table_memory(const struct layout *counted) {
    return (struct layout){.memory = calloc(1, max_size(counted->used, 1))};
}

/* Checksums are the host's work. */
/* Documents are read to where the host has it. */
static enum memory_kind key_index_memory(const struct kv_cache_config *config) {
    return config->host_bytes > 0 && kv_key_index_is_in_ram(config) ? MEMORY_SHARED : MEMORY_DEVICE;
}

/* Views of every group show the slabs that there are now. */
static void show_slabs(struct kv_cache *cache) {
    for (size_t i = 0; i < kv_group_count(&cache->config); i++) {
        if (cache->owner == NULL) {
            cache->pools[i].list[POOL_ROWS] = cache->slabs[i].pool;
            cache->pools[i].list[POOL_NEAR_ROWS] = cache->near.pool;
        }
        cache->pools[i].list[POOL_OTHER] = cache->key_index.pool;
    }
}

static void release_key_index(struct kv_cache *cache) {
    slab_deinit(&cache->key_index);
    show_slabs(cache);
    cache->config.key_index_bytes = 0;
}

static uint64_t window_column_count(const struct kv_cache_config *config) {
    if (config->windows == NULL || config->host_bytes > 0) return 0;
    return config->sequence_capacity * kv_window_columns(config->windows, config->batch_tokens);
}

/* Where each layer begins in its group's slab, or in the near one. */
static bool place_layers(struct kv_cache *cache, uint64_t slot_counts[KV_GROUPS_MAX]) {
    const struct kv_cache_config *config = &cache->config;
    const size_t near = config->near_layers;
    cache->first_slots = calloc(config->layer_count, sizeof *cache->first_slots);
    for (size_t layer = 0; layer < config->layer_count && cache->first_slots != NULL; layer++) {
        const size_t group = kv_group_of(config, layer), heads = kv_heads(config, layer);
        const uint64_t slots =
            heads * (kv_slides(config, layer) ? window_column_count(config) : kv_column_count(config));
        if (layer == near) slot_counts[0] = 0; /* so far they were of the near slab */
        cache->first_slots[layer] = slot_counts[group];
        slot_counts[group] += slots;
    }
    return cache->first_slots != NULL;
}

static enum status create_slabs(struct kv_cache *cache, struct error *error) {
    const size_t near = cache->config.near_layers;
    uint64_t slot_counts[KV_GROUPS_MAX] = {0};
    ASSERT(near == 0 || (cache->config.rows_in_host && cache->config.groups == NULL));
    ASSERT(cache->config.windows == NULL || !cache->config.rows_in_host);
    if (!place_layers(cache, slot_counts)) return error_set(error, STATUS_MEMORY, "KV cache: out of memory");
    if (near == cache->config.layer_count) slot_counts[0] = 0;
    enum status status = slab_init(&cache->near, cache->device, MEMORY_DEVICE, cache->layouts[0].chunk_bytes,
                                   near * cache->config.kv_head_count * kv_column_count(&cache->config), error);
    for (size_t i = 0; i < kv_group_count(&cache->config) && status == STATUS_OK; i++)
        status = slab_init(&cache->slabs[i], cache->device, cache->config.rows_in_host ? MEMORY_SHARED : MEMORY_DEVICE,
                           cache->layouts[i].chunk_bytes, slot_counts[i], error);
    if (status != STATUS_OK && error != NULL) error_prefix(error, "KV cache");
    TRY(status);
    show_slabs(cache);
    return STATUS_OK;
}

enum status kv_cache_create(struct kv_cache **cache, struct device *device, const struct kv_cache_config *config,
                            struct error *error) {
    ASSERT(config->host_bytes == 0);
    return kv_cache_create_owned(cache, device, config, NULL, error);
}

enum status kv_cache_create_owned(struct kv_cache **result, struct device *device, const struct kv_cache_config *config,
                                  const struct kv_chunk_owner *owner, struct error *error) {
    uint64_t bytes, slab_bytes, column_count = kv_column_count(config);
    ASSERT(config->groups == NULL || (config->groups->stored_count == config->layer_count && !config->mixes_pages));
    if (!column_bytes(config, false, &bytes) || !checked_multiply(bytes, column_count, &slab_bytes))
        return error_set(error, STATUS_MEMORY, "KV cache: %llu tokens do not fit any memory",
                         (unsigned long long)config->token_capacity);
    struct kv_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) return error_set(error, STATUS_MEMORY, "KV cache: out of memory");
    cache->device = device;
    cache->config = *config;
    cache->config.key_index_bytes = 0; /* until there is memory for it */
    for (size_t i = 0; i < kv_group_count(config); i++) kv_group_layout(config, i, &cache->layouts[i]);
    cache->owner = owner;
    enum status status = owner != NULL ? owner->create(cache, error) : create_slabs(cache, error);
    if (status == STATUS_OK && (!columns_init(&cache->columns, column_count) ||
                                !columns_init(&cache->window_columns, window_column_count(config))))
        status = error_set(error, STATUS_MEMORY, "KV cache: no memory for the list of %llu free columns",
                           (unsigned long long)column_count);
    if (status == STATUS_OK)
        status = kv_cache_set_key_index(cache, config->key_index_bytes, config->key_index_layer_first, error);
    if (status != STATUS_OK) {
        kv_cache_destroy(cache);
        return status;
    }
    *result = cache;
    return STATUS_OK;
}

void kv_cache_destroy(struct kv_cache *cache) {
    if (cache == NULL) return;
    ASSERT(cache->sequence_count == 0 && cache->columns.used == 0 && cache->window_columns.used == 0);
    release_key_index(cache);
    for (size_t i = 0; i < KV_GROUPS_MAX; i++) slab_deinit(&cache->slabs[i]);
    slab_deinit(&cache->near);
    if (cache->owner != NULL) cache->owner->destroy(cache);
    columns_deinit(&cache->columns);
    columns_deinit(&cache->window_columns);
    free(cache->first_slots);
    free(cache);
}

uint64_t kv_key_index_blocks(const struct kv_cache_config *config) {
    return lanes_in_memory(config) * kv_column_count(config);
}

static uint64_t cache_column_bytes(const struct kv_cache *cache) {
    uint64_t bytes;
    if (cache->owner != NULL) /* chunks have slots */
        return lanes_in_memory(&cache->config) * cache->config.key_index_bytes;
    const bool fits = column_bytes(&cache->config, false, &bytes); /* as when it was made */
    ASSERT(fits);
    return bytes + key_index_lanes(&cache->config) * cache->config.key_index_bytes;
}

uint64_t kv_cache_used_bytes(const struct kv_cache *cache) {
    uint64_t slots = cache->owner != NULL ? cache->owner->used_bytes(cache) : 0;
    const uint64_t states = cache->sequence_count * kv_states_bytes(&cache->config);
    return cache->columns.used * cache_column_bytes(cache) +
           cache->window_columns.used * window_column_bytes(&cache->config) + slots + states;
}

uint64_t kv_cache_used_device_bytes(const struct kv_cache *cache) {
    const struct kv_cache_config *config = &cache->config;
    uint64_t column = cache_column_bytes(cache);
    if (config->rows_in_host)
        column = key_index_lanes(config) * config->key_index_bytes +
                 config->near_layers * config->kv_head_count * cache->layouts[0].chunk_bytes;
    const uint64_t states = cache->sequence_count * kv_states_bytes(config);
    if (config->key_index_on_disk) return states;
    return states + cache->columns.used * column + cache->window_columns.used * window_column_bytes(config);
}

void kv_cache_give_back(struct kv_cache *cache) {
    if (cache->sequence_count > 0) return;
    if (cache->owner != NULL) cache->owner->give_back(cache);
    if (cache->columns.fresh_first == 0) return;
    columns_renew(&cache->columns);
    columns_renew(&cache->window_columns);
    for (size_t i = 0; i < KV_GROUPS_MAX; i++) (void)slab_renew(&cache->slabs[i]);
    (void)slab_renew(&cache->near);
    (void)slab_renew(&cache->key_index);
    show_slabs(cache);
}

const struct kv_layout *kv_cache_layer_layout(const struct kv_cache *cache, size_t layer_index) {
    return &cache->layouts[kv_group_of(&cache->config, layer_index)];
}

const struct kv_layout *kv_cache_layout(const struct kv_cache *cache) {
    const struct kv_cache_config *config = &cache->config;
    ASSERT(kv_groups_with_heads(config->groups) == 1);
    return kv_cache_layer_layout(cache, kv_layer_behind(config->groups, config->layer_count, 0));
}

const struct kv_layout *kv_sequence_layer_layout(const struct kv_sequence *sequence, size_t layer_index) {
    return kv_cache_layer_layout(sequence->cache, layer_index);
}

size_t kv_sequence_source_layer(const struct kv_sequence *sequence, size_t layer_index) {
    return kv_layer_source(sequence->cache->config.groups, layer_index);
}

const struct kv_cache_config *kv_cache_get_config(const struct kv_cache *cache) { return &cache->config; }

/* The first lane of such a layer in a sequence's table; with key_index_on_disk of a place, which has lanes for the
 * heads of any layer. */
static size_t key_index_lane(const struct kv_cache_config *config, size_t layer) {
    return config->key_index_on_disk ? layer * kv_heads_max(config)
                                     : kv_lane(config, config->key_index_layer_first + layer, 0);
}

static uint64_t key_index_block(const struct kv_cache *cache, size_t layer, uint64_t column, size_t head) {
    const struct kv_cache_config *config = &cache->config;
    const size_t lane = key_index_lane(config, layer);
    const uint64_t lanes_before = lane - key_index_lane(config, 0), heads = key_index_lane(config, layer + 1) - lane,
                   count = cache->columns.count, run_first = column / KEY_INDEX_RUN * KEY_INDEX_RUN,
                   run = min_size(KEY_INDEX_RUN, count - run_first); /* the last one is shorter */
    return lanes_before * count + run_first * heads + head * run + column - run_first;
}

bool kv_key_index_run_is_whole(const struct kv_sequence *sequence, uint64_t chunk) {
    const uint64_t *columns = sequence->columns + chunk;
    if (chunk + KEY_INDEX_RUN > sequence->column_count || columns[0] % KEY_INDEX_RUN != 0) return false;
    for (size_t i = 1; i < KEY_INDEX_RUN; i++)
        if (columns[i] != columns[0] + i) return false;
    return true; /* which all are in one run of columns */
}

/* Enters the places of the blocks beside column number `index` of the sequence. */
static void key_index_enter(struct kv_sequence *sequence, uint64_t index) {
    const struct kv_cache *cache = sequence->cache;
    const struct kv_cache_config *config = &cache->config;
    for (size_t layer = 0; layer < layers_in_memory(config); layer++)
        for (size_t lane = key_index_lane(config, layer), head = 0; lane + head < key_index_lane(config, layer + 1);
             head++) {
            uint64_t block = key_index_block(cache, layer, sequence->columns[index], head);
            ASSERT(block < cache->key_index.slot_count);
            page_table_set(&sequence->key_index, lane + head, index, place_make(POOL_OTHER, block));
        }
}

/* Makes the sequence's table of key index blocks, for the columns that it has; false: no memory. */
static bool key_index_table(struct kv_sequence *sequence) {
    const struct kv_cache *cache = sequence->cache;
    const struct kv_cache_config *config = &cache->config;
    page_table_deinit(&sequence->key_index);
    free(sequence->open.blocks);
    sequence->open = (struct open_blocks){0};
    memset(sequence->places, 0, sizeof sequence->places);
    if (!slab_exists(&cache->key_index)) return true;
    if (page_table_init(&sequence->key_index, cache->device, key_index_table_lanes(config), sequence->column_capacity,
                        NULL) != STATUS_OK)
        return false;
    struct layout layout = {0};
    place_open(&sequence->open, &layout, config);
    if (layout.used > 0 && (layout = table_memory(&layout)).memory == NULL) return false;
    if (layout.memory != NULL) place_open(&sequence->open, &layout, config);
    for (uint64_t i = 0; i < sequence->column_count; i++) key_index_enter(sequence, i);
    return true;
}

/* The tables of all sequences; false: no memory. */
static bool key_index_tables(struct kv_cache *cache) {
    for (struct kv_sequence *sequence = cache->sequences; sequence != NULL; sequence = sequence->next)
        if (!key_index_table(sequence)) return false;
    return true;
}

/* Nothing was ever stored, so the key index is zeros. */
static bool is_fresh(const struct kv_cache *cache) {
    bool made = cache->owner != NULL ? cache->owner->is_divided(cache) : slab_exists(&cache->slabs[0]);
    return made && cache->columns.fresh_first == 0;
}

enum status kv_cache_set_key_index(struct kv_cache *cache, size_t key_index_bytes, size_t key_index_layer_first,
                                   struct error *error) {
    ASSERT(key_index_bytes % 64 == 0);
    if (is_fresh(cache) && cache->config.key_index_bytes == key_index_bytes &&
        cache->config.key_index_layer_first == key_index_layer_first)
        return STATUS_OK; /* as it was made */
    release_key_index(cache);
    (void)key_index_tables(cache); /* of none */
    struct kv_cache_config config = cache->config;
    config.key_index_bytes = key_index_bytes;
    config.key_index_layer_first = key_index_layer_first;
    if (key_index_layers(&config) == 0) return cache->owner != NULL ? cache->owner->divide(cache, error) : STATUS_OK;
    enum status status = slab_init(&cache->key_index, cache->device, key_index_memory(&config), key_index_bytes,
                                   kv_key_index_blocks(&config), error);
    if (status != STATUS_OK) {
        if (error != NULL) error_prefix(error, "key index");
        return status;
    }
    show_slabs(cache);
    cache->config = config;
    status = cache->owner != NULL ? cache->owner->divide(cache, error) : STATUS_OK;
    if (status == STATUS_OK && key_index_tables(cache)) return STATUS_OK;
    release_key_index(cache);
    (void)key_index_tables(cache);
    TRY(status);
    TRY(device_state(cache->device, error));
    return error_set(error, STATUS_MEMORY, "key index: no memory for the page tables");
}

static size_t free_index(const struct kv_cache *cache) {
    size_t index = 0;
    for (const struct kv_sequence *s = cache->sequences; s != NULL;) {
        const bool taken = s->index == index;
        index += taken;
        s = taken ? cache->sequences : s->next;
    }
    return index;
}

enum status kv_sequence_create(struct kv_sequence **result, struct kv_cache *cache, uint64_t token_capacity,
                               struct error *error) {
    if (cache->sequence_count == cache->config.sequence_capacity)
        return error_set(error, STATUS_FULL, "KV cache: %zu sequences live, which is all it was made for",
                         cache->sequence_count);
    struct kv_sequence *sequence = calloc(1, sizeof *sequence);
    if (sequence == NULL) return error_set(error, STATUS_MEMORY, "KV sequence: out of memory");
    sequence->cache = cache;
    sequence->index = free_index(cache);
    sequence->generation = sequence->answer = ++cache->generations;
    sequence->column_capacity = kv_chunks_of(token_capacity);
    if (sequence->column_capacity > cache->columns.count) sequence->column_capacity = cache->columns.count;
    const size_t lanes = kv_lane_count(&cache->config);
    struct layout layout = {0};
    place_columns(sequence, &layout, &cache->config, sequence->column_capacity);
    layout = table_memory(&layout);
    if (layout.memory != NULL) place_columns(sequence, &layout, &cache->config, sequence->column_capacity);
    bool has_tables =
        sequence->columns != NULL &&
        page_table_init(&sequence->chunks, cache->device, lanes, sequence->column_capacity, NULL) == STATUS_OK &&
        (!cache->config.quantized_pages ||
         page_table_init(&sequence->quantized, cache->device, lanes, sequence->column_capacity, NULL) == STATUS_OK) &&
        key_index_table(sequence);
    sequence->next = cache->sequences;
    if (sequence->next != NULL) sequence->next->previous = sequence;
    cache->sequences = sequence;
    cache->sequence_count++;
    enum status status = STATUS_OK;
    if (!has_tables) status = device_state(cache->device, error);
    if (!has_tables && status == STATUS_OK)
        status = error_set(error, STATUS_MEMORY, "KV sequence: no memory for the tables of %llu tokens",
                           (unsigned long long)token_capacity);
    if (status == STATUS_OK && cache->owner != NULL) status = cache->owner->add(sequence, error);
    if (status == STATUS_OK && cache->config.state_floats > 0)
        status = kv_state_create(&sequence->state, cache->device, cache->config.state_floats, cache->config.state_slots,
                                 error);
    if (status != STATUS_OK) {
        kv_sequence_destroy(sequence);
        return status;
    }
    *result = sequence;
    return STATUS_OK;
}

static void columns_shrink(struct kv_sequence *sequence, uint64_t column_count) {
    /* The last first, so that taking them again gives them in their old order. */
    while (sequence->column_count > column_count)
        columns_give_back(&sequence->cache->columns, sequence->columns[--sequence->column_count]);
}

void kv_sequence_destroy(struct kv_sequence *sequence) {
    if (sequence == NULL) return;
    if (sequence->cache->owner != NULL) sequence->cache->owner->remove(sequence);
    inputs_close(sequence->inputs);
    kv_state_destroy(sequence->state);
    kv_windows_deinit(sequence);
    columns_shrink(sequence, 0);
    ASSERT(sequence->cache->sequence_count > 0);
    sequence->cache->sequence_count--;
    if (sequence->next != NULL) sequence->next->previous = sequence->previous;
    if (sequence->previous != NULL)
        sequence->previous->next = sequence->next;
    else
        sequence->cache->sequences = sequence->next;
    free(sequence->columns); /* the windows' lie behind them */
    page_table_deinit(&sequence->chunks);
    page_table_deinit(&sequence->quantized);
    page_table_deinit(&sequence->key_index);
    free(sequence->open.blocks);
    free(sequence->watch);
    free(sequence);
}

/* Enters the places of the column's chunks as number `index` of the sequence. */
static void column_enter(struct kv_sequence *sequence, uint64_t index, uint64_t column) {
    const struct kv_cache *cache = sequence->cache;
    const struct kv_cache_config *config = &cache->config;
    sequence->columns[index] = column;
    for (size_t layer = 0; layer < config->layer_count && cache->owner == NULL; layer++)
        for (size_t head = 0; !kv_slides(config, layer) && head < kv_heads(config, layer); head++)
            page_table_set(&sequence->chunks, kv_lane(config, layer, head), index,
                           kv_slab_place(cache, layer, column, head));
    if (kv_has_key_index(sequence)) key_index_enter(sequence, index);
}

enum status kv_sequence_reserve(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    struct kv_cache *cache = sequence->cache;
    uint64_t needed = kv_chunks_of(token_count);
    if (needed <= sequence->column_count) return STATUS_OK;
    uint64_t bytes = cache_column_bytes(cache), all_free = columns_free_count(&cache->columns),
             spare = kv_spare_columns(&cache->config), free_count = all_free > spare ? all_free - spare : 0;
    if (needed > sequence->column_capacity)
        return error_set(
            error, STATUS_FULL, "KV cache: a sequence of %llu tokens, made for at most %llu (%llu bytes per token)",
            (unsigned long long)token_count, (unsigned long long)(sequence->column_capacity * KV_CHUNK_TOKENS),
            (unsigned long long)(bytes / KV_CHUNK_TOKENS));
    if (needed - sequence->column_count > free_count)
        return error_set(error, STATUS_FULL, "KV cache: %llu tokens need %llu bytes more, %llu are free of %llu",
                         (unsigned long long)token_count,
                         (unsigned long long)((needed - sequence->column_count) * bytes),
                         (unsigned long long)(free_count * bytes), (unsigned long long)(cache->columns.count * bytes));
    while (sequence->column_count < needed) {
        uint64_t column = columns_take(&cache->columns);
        column_enter(sequence, sequence->column_count++, column);
    }
    ASSERT(columns_free_count(&cache->columns) <= all_free);
    return STATUS_OK;
}

void kv_sequence_share_columns(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t column_count) {
    struct kv_cache *cache = sequence->cache;
    ASSERT(other->cache == cache && sequence->column_count == 0);
    ASSERT(column_count <= other->column_count && column_count <= sequence->column_capacity);
    for (uint64_t i = 0; i < column_count; i++) {
        columns_share(&cache->columns, other->columns[i]);
        column_enter(sequence, i, other->columns[i]);
    }
    sequence->column_count = column_count;
}

void kv_sequence_drop_columns(struct kv_sequence *sequence) { columns_shrink(sequence, 0); }

enum status kv_sequence_own_column(struct kv_sequence *sequence, uint64_t index, struct stream *stream,
                                   struct error *error) {
    struct kv_cache *cache = sequence->cache;
    const uint64_t column = sequence->columns[index];
    if (cache->columns.users[column] == 1) return STATUS_OK;
    if (columns_free_count(&cache->columns) == 0) return error_set(error, STATUS_MEMORY, "KV cache: no column is free");
    const struct kv_cache_config *config = &cache->config;
    const uint64_t own = columns_take(&cache->columns);
    for (size_t layer = 0; layer < layers_in_memory(config); layer++)
        for (size_t head = 0; head < key_index_lane(config, layer + 1) - key_index_lane(config, layer); head++)
            cache->device->operations->copy(
                stream, slab_slot(&cache->key_index, key_index_block(cache, layer, own, head)),
                slab_slot(&cache->key_index, key_index_block(cache, layer, column, head)), config->key_index_bytes);
    if (cache->owner == NULL) kv_copy_chunks(cache, stream, false, own, column);
    columns_give_back(&cache->columns, column);
    column_enter(sequence, index, own);
    /* Other streams read the one, and what the others have may write the other. */
    return cache->device->operations->stream_synchronize(stream, error);
}

enum status kv_sequence_own_tail(struct kv_sequence *sequence, struct stream *stream, struct error *error) {
    if (sequence->cache->owner != NULL || sequence->length % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    TRY(kv_windows_own(sequence, sequence->length / KV_CHUNK_TOKENS, stream, error));
    return kv_sequence_own_column(sequence, sequence->length / KV_CHUNK_TOKENS, stream, error);
}

enum status kv_sequence_share(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t token_count,
                              struct stream *stream, struct error *error) {
    struct kv_cache *cache = sequence->cache;
    const uint64_t full = token_count / KV_CHUNK_TOKENS;
    ASSERT(cache->owner == NULL && sequence->length == 0 && token_count <= other->length);
    ASSERT(sequence->inputs == NULL && other->inputs == NULL);
    kv_sequence_drop_columns(sequence); /* reserved ones */
    kv_sequence_share_columns(sequence, other, full);
    enum status status = kv_sequence_reserve(sequence, token_count, error);
    if (status == STATUS_OK && cache->config.windows != NULL) kv_windows_share(sequence, other, token_count);
    if (status == STATUS_OK && token_count % KV_CHUNK_TOKENS != 0) {
        kv_copy_chunks(cache, stream, false, sequence->columns[full], other->columns[full]);
        status = cache->device->operations->stream_synchronize(stream, error);
    }
    if (status != STATUS_OK) {
        kv_sequence_drop_columns(sequence);
        return status;
    }
    if (sequence->state != NULL) kv_state_copy(sequence->state, other->state, token_count, stream);
    sequence->length = token_count;
    return sequence->state != NULL ? cache->device->operations->stream_synchronize(stream, error) : STATUS_OK;
}

struct kv_state *kv_sequence_state(const struct kv_sequence *sequence) {
    return sequence->state;
}

void kv_sequence_begin_rows(struct kv_sequence *sequence, uint64_t state_end, uint64_t end) {
    if (sequence->state != NULL) kv_state_begin(sequence->state, state_end);
    if (sequence->cache->config.windows != NULL) kv_windows_begin(sequence, end);
}

size_t kv_sequence_snapshots(const struct kv_sequence *sequence) {
    if (sequence->state != NULL) return kv_state_snapshots(sequence->state);
    return sequence->cache->config.windows != NULL ? KV_WINDOW_SNAPSHOTS : 0;
}

/* Where windows touch, every length between is one that it may be cut to. */
uint64_t kv_sequence_snapshot_step(const struct kv_sequence *sequence) {
    const struct kv_windows *windows = sequence->cache->config.windows;
    return windows != NULL ? windows->tokens : 1;
}

void kv_sequence_plan_snapshots(struct kv_sequence *sequence, const uint64_t *positions, size_t count, uint64_t turn) {
    ASSERT(count <= kv_sequence_snapshots(sequence));
    if (sequence->state != NULL) kv_state_plan(sequence->state, positions, count, turn);
    kv_snapshots_plan(&sequence->windows.plan, positions, count, turn);
}

uint64_t kv_sequence_cut_of(const struct kv_sequence *sequence, uint64_t token_count) {
    for (uint64_t before = UINT64_MAX; before != token_count;) {
        before = token_count;
        if (sequence->state != NULL) token_count = kv_state_longest(sequence->state, token_count);
        if (sequence->cache->config.windows != NULL) token_count = kv_windows_longest(sequence, token_count);
    }
    return token_count;
}

uint64_t kv_sequence_length(const struct kv_sequence *sequence) { return sequence->length; }
uint64_t kv_sequence_generation(const struct kv_sequence *sequence) { return sequence->generation; }
uint64_t kv_sequence_answer(const struct kv_sequence *sequence) { return sequence->answer; }
size_t kv_sequence_index(const struct kv_sequence *sequence) { return sequence->index; }
void kv_sequence_begin_answer(struct kv_sequence *sequence) { sequence->answer = ++sequence->cache->generations; }

void kv_sequence_set_length(struct kv_sequence *sequence, uint64_t token_count) {
    ASSERT(kv_chunks_of(token_count) <= sequence->column_count); /* invariant 3 */
    if (token_count <= sequence->length) sequence->generation = ++sequence->cache->generations;
    if (token_count <= sequence->length && sequence->inputs != NULL) inputs_truncate(sequence->inputs, token_count);
    if (token_count <= sequence->length && sequence->cache->owner != NULL)
        sequence->cache->owner->truncate(sequence, token_count);
    if (sequence->state != NULL) kv_state_set_length(sequence->state, token_count);
    if (sequence->cache->config.windows != NULL) kv_windows_set_length(sequence, token_count);
    if (token_count < sequence->length) {
        columns_shrink(sequence, kv_chunks_of(token_count));
        kv_sequence_begin_answer(sequence);
    }
    sequence->length = token_count;
}

static bool layer_has_key_index(const struct kv_sequence *sequence, size_t layer_index) {
    return kv_has_key_index(sequence) && layer_index >= sequence->cache->config.key_index_layer_first;
}

void kv_sequence_update(struct kv_sequence *sequence, struct stream *stream, size_t reading_layer) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t layer_index = kv_sequence_source_layer(sequence, reading_layer);
    const size_t heads = kv_heads(config, layer_index), first = kv_lane(config, layer_index, 0);
    ASSERT(layer_index < config->layer_count);
    page_table_update(&sequence->chunks, stream, first, heads);
    if (kv_has_quantized(sequence)) page_table_update(&sequence->quantized, stream, first, heads);
    if (layer_has_key_index(sequence, layer_index))
        page_table_update(&sequence->key_index, stream, kv_key_index_lane(sequence, layer_index), heads);
}

struct span kv_sequence_table(const struct kv_sequence *sequence, bool quantized) {
    if (quantized && !kv_has_quantized(sequence)) return (struct span){.buffer = NULL};
    return page_table_lane(quantized ? &sequence->quantized : &sequence->chunks, 0);
}

void kv_sequence_write_update(struct kv_sequence *sequence, size_t reading_layer, bool quantized,
                              struct place_delta *written) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t layer_index = kv_sequence_source_layer(sequence, reading_layer);
    written->index =
        (uint32_t)page_table_take(quantized ? &sequence->quantized : &sequence->chunks, kv_lane(config, layer_index, 0),
                                  kv_heads(config, layer_index), written + 1);
}

void kv_sequence_write_cover(struct kv_sequence *sequence, size_t reading_layer, uint64_t position,
                             struct place_delta *written) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t layer_index = kv_sequence_source_layer(sequence, reading_layer), chunk = position / KV_CHUNK_TOKENS;
    size_t count = 0;
    for (size_t head = 0; head < kv_heads(config, layer_index); head++)
        count += page_table_cover(&sequence->chunks, kv_lane(config, layer_index, head), chunk + 1,
                                  kv_chunk_place(sequence, layer_index, head, chunk), written + 1 + count);
    written->index = (uint32_t)count;
}

struct kv_view kv_sequence_view(struct kv_sequence *sequence, struct stream *stream, size_t reading_layer) {
    const struct kv_cache *cache = sequence->cache;
    const size_t layer_index = kv_sequence_source_layer(sequence, reading_layer);
    const size_t capacity = (size_t)sequence->column_capacity,
                 offset = kv_lane(&cache->config, layer_index, 0) * capacity,
                 group = kv_group_of(&cache->config, layer_index);
    kv_sequence_update(sequence, stream, layer_index);
    struct kv_view view = {.layout = &cache->layouts[group],
                           .pools = &cache->pools[group],
                           .chunks = span_behind(page_table_lane(&sequence->chunks, 0), offset * sizeof(uint32_t)),
                           .chunk_stride = capacity};
    if (kv_has_quantized(sequence))
        view.quantized = span_behind(page_table_lane(&sequence->quantized, 0), offset * sizeof(uint32_t));
    if (layer_has_key_index(sequence, layer_index))
        view.key_index = page_table_lane(&sequence->key_index, kv_key_index_lane(sequence, layer_index));
    return view;
}

const uint32_t *kv_sequence_places(const struct kv_sequence *sequence, size_t layer_index, size_t kv_head) {
    const size_t source = kv_sequence_source_layer(sequence, layer_index),
                 lane = kv_lane(&sequence->cache->config, source, kv_head);
    return sequence->chunks.places + lane * sequence->column_capacity;
}

struct span kv_sequence_chunk(const struct kv_sequence *sequence, size_t layer_index, size_t kv_head, uint64_t chunk) {
    const struct kv_cache *cache = sequence->cache;
    return kv_pools_chunk(&cache->pools[kv_group_of(&cache->config, layer_index)],
                          kv_chunk_place(sequence, kv_sequence_source_layer(sequence, layer_index), kv_head, chunk));
}
