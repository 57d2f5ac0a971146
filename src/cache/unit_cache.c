#include "cache/unit_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/slab.h"

/* The parts of a layer's state, all KV heads: tables and owners first, which an empty one has of ones. */
struct state_parts {
    size_t owners, stamps, hands, used, bytes; /* where each begins; tables at 0 */
};

/* Of a generation of some sequence. */
struct unit_owner {
    uint64_t generation; /* 0: none */
    uint64_t used;       /* when, of cache->clock */
};

/* What is sized by the layers that have slots. */
struct unit_layers {
    size_t count, kv_head_count; /* the most of any */
};

struct unit_cache {
    struct device *device;             /* borrowed */
    struct unit_cache_options options; /* without kv_head_counts */
    struct unit_layers layers;
    struct unit_layer {
        size_t number, kv_head_count; /* of those with slots */
    } * of_layer;                     /* owned, [layer_count] */
    size_t slot_count, unit_stride, place_stride;
    struct state_parts parts;
    struct slab memory,
        states;                /* [sequence_capacity][layer that chooses]; behind the last state one that stays empty */
    struct buffer counts;      /* struct fetch_counts [layer][kv head] */
    struct buffer places;      /* uint64_t [sequence_capacity][kv head][place_stride] */
    struct unit_owner *owners; /* owned, [sequence_capacity] */
    bool *is_empty;            /* owned, the same: to be emptied before it is used */
    struct unit_slots *shown;  /* owned, [sequence_capacity] */
    bool has_empty;            /* the state that stays empty is */
    uint64_t clock;
};

static struct unit_layers layers_of(const struct unit_cache_options *options) {
    struct unit_layers layers = {0, 0};
    for (size_t i = 0; i < options->layer_count; i++) {
        layers.count += options->kv_head_counts[i] > 0;
        layers.kv_head_count = max_size(layers.kv_head_count, options->kv_head_counts[i]);
    }
    return layers;
}

static size_t unit_stride_of(const struct unit_cache_options *options) {
    return (size_t)(kv_chunks_of(options->context_size) * KV_CHUNK_BLOCKS);
}

/* A list has a unit more at either end of its candidates, at most. */
size_t unit_cache_place_stride(uint64_t context_size) {
    return align_up((size_t)(kv_chunks_of(context_size) * KV_CHUNK_BLOCKS) + 2, LAYOUT_ALIGNMENT / sizeof(uint64_t));
}

static struct state_parts parts_of(const struct unit_cache_options *options, size_t heads, size_t slot_count) {
    struct layout layout = {0};
    struct state_parts parts;
    (void)layout_offset(&layout, heads * unit_stride_of(options), sizeof(int32_t)); /* tables */
    parts.owners = layout_offset(&layout, heads * slot_count, sizeof(uint32_t));
    parts.stamps = layout_offset(&layout, heads * slot_count, sizeof(uint32_t));
    parts.hands = layout_offset(&layout, heads, sizeof(uint32_t));
    parts.used = layout_offset(&layout, heads, slot_count);
    parts.bytes = layout.used;
    return parts;
}

static uint64_t count_bytes(const struct unit_layers *layers) {
    return layers->count * layers->kv_head_count * sizeof(struct fetch_counts);
}
static uint64_t place_bytes(const struct unit_cache_options *options, const struct unit_layers *layers) {
    return options->sequence_capacity * layers->kv_head_count * unit_cache_place_stride(options->context_size) *
           sizeof(uint64_t);
}

/* Slots that a KV head has of so many bytes; 0: they are too few for one. */
static uint64_t unit_cache_slots(const struct unit_cache_options *options, const struct unit_layers *with_slots) {
    const uint64_t layers = options->sequence_capacity * with_slots->count, heads = with_slots->kv_head_count,
                   fixed = (layers + 1) * parts_of(options, heads, 0).bytes + count_bytes(with_slots) +
                           place_bytes(options, with_slots),
                   slot = heads * (options->block_bytes + 2 * sizeof(uint32_t) + 1);
    if (options->bytes <= fixed || layers == 0) return 0;
    const uint64_t left = (options->bytes - fixed) / (layers + 1), rounding = (uint64_t)4 * LAYOUT_ALIGNMENT;
    const uint64_t count = left > rounding ? (left - rounding) / slot : 0;
    return count < unit_stride_of(options) ? count : unit_stride_of(options);
}

static enum status memory_create(struct unit_cache *cache, struct error *error) {
    const struct unit_cache_options *options = &cache->options;
    const struct device_operations *operations = cache->device->operations;
    const size_t places = options->sequence_capacity, layers = places * cache->layers.count;
    cache->of_layer = calloc(options->layer_count, sizeof *cache->of_layer);
    cache->owners = calloc(places, sizeof *cache->owners);
    cache->is_empty = calloc(layers, sizeof *cache->is_empty);
    cache->shown = calloc(places, sizeof *cache->shown);
    if (cache->of_layer == NULL || cache->owners == NULL || cache->is_empty == NULL || cache->shown == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for slots of %zu sequences", places);
    for (size_t i = 0, number = 0; i < options->layer_count; i++) {
        cache->of_layer[i] = (struct unit_layer){number, options->kv_head_counts[i]};
        number += options->kv_head_counts[i] > 0;
    }
    TRY(slab_init(&cache->memory, cache->device, MEMORY_DEVICE,
                  cache->layers.kv_head_count * cache->slot_count * options->block_bytes, layers, error));
    TRY(slab_init(&cache->states, cache->device, MEMORY_DEVICE, cache->parts.bytes, layers + 1, error));
    TRY(operations->allocate(cache->device, MEMORY_DEVICE, count_bytes(&cache->layers), &cache->counts, error));
    return operations->allocate(cache->device, MEMORY_DEVICE, place_bytes(options, &cache->layers), &cache->places,
                                error);
}

enum status unit_cache_create(struct unit_cache **result, struct device *device,
                              const struct unit_cache_options *options, struct error *error) {
    const struct unit_layers layers = layers_of(options);
    const uint64_t slots = unit_cache_slots(options, &layers);
    *result = NULL;
    if (slots == 0) return STATUS_OK;
    struct unit_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) return error_set(error, STATUS_MEMORY, "no memory for slots");
    *cache = (struct unit_cache){.device = device,
                                 .options = *options,
                                 .layers = layers,
                                 .slot_count = (size_t)slots,
                                 .unit_stride = unit_stride_of(options),
                                 .place_stride = unit_cache_place_stride(options->context_size),
                                 .parts = parts_of(options, layers.kv_head_count, (size_t)slots),
                                 .memory = {.device = device},
                                 .states = {.device = device}};
    const enum status status = memory_create(cache, error);
    cache->options.kv_head_counts = NULL;
    if (status != STATUS_OK) {
        unit_cache_destroy(cache);
        return status;
    }
    *result = cache;
    return STATUS_OK;
}

void unit_cache_destroy(struct unit_cache *cache) {
    if (cache == NULL) return;
    slab_deinit(&cache->memory);
    slab_deinit(&cache->states);
    cache->device->operations->release(cache->device, &cache->counts);
    cache->device->operations->release(cache->device, &cache->places);
    free(cache->of_layer);
    free(cache->owners);
    free(cache->is_empty);
    free(cache->shown);
    free(cache);
}

/* ---- which slots ---- */

/* The place of a generation: its own, or the one that was used longest ago, which is emptied. */
static size_t place_of(struct unit_cache *cache, uint64_t generation) {
    const size_t count = cache->options.sequence_capacity, layers = cache->layers.count;
    size_t place = 0;
    for (size_t i = 0; i < count; i++) {
        if (cache->owners[i].generation == generation) {
            cache->owners[i].used = ++cache->clock;
            return i;
        }
        if (cache->owners[i].used < cache->owners[place].used) place = i;
    }
    cache->owners[place] = (struct unit_owner){.generation = generation, .used = ++cache->clock};
    for (size_t layer = 0; layer < layers; layer++) cache->is_empty[place * layers + layer] = true;
    return place;
}

void unit_cache_forget(struct unit_cache *cache) {
    for (size_t i = 0; i < cache->options.sequence_capacity * cache->layers.count; i++) cache->is_empty[i] = true;
}

/* Tables and owners of ones, the rest of zeros, as it was allocated. */
static void make_empty_state(struct unit_cache *cache, struct stream *stream) {
    uint8_t ones[4096];
    const struct span empty = slab_slot(&cache->states, cache->states.slot_count - 1);
    if (cache->has_empty) return;
    memset(ones, 0xff, sizeof ones);
    for (size_t done = 0; done < cache->parts.stamps; done += sizeof ones)
        cache->device->operations->upload(stream, span_behind(empty, done), ones,
                                          min_size(sizeof ones, cache->parts.stamps - done));
    cache->has_empty = true;
}

static struct unit_slots show(struct unit_cache *cache, struct stream *stream, size_t layer, uint64_t generation) {
    const size_t index = place_of(cache, generation) * cache->layers.count + layer;
    const struct span state = slab_slot(&cache->states, index);
    if (cache->is_empty[index]) {
        make_empty_state(cache, stream);
        cache->device->operations->copy(stream, state, slab_slot(&cache->states, cache->states.slot_count - 1),
                                        cache->parts.bytes);
        cache->is_empty[index] = false;
    }
    return (struct unit_slots){.unit_stride = cache->unit_stride,
                               .slot_count = cache->slot_count,
                               .tables = state,
                               .owners = span_behind(state, cache->parts.owners),
                               .stamps = span_behind(state, cache->parts.stamps),
                               .used = span_behind(state, cache->parts.used),
                               .hands = span_behind(state, cache->parts.hands),
                               .memory = slab_slot(&cache->memory, index)};
}

void unit_cache_show(struct unit_cache *cache, struct stream *stream, const uint64_t *generations, size_t count,
                     uint64_t *places) {
    ASSERT(count <= cache->options.sequence_capacity);
    for (size_t i = 0; i < count; i++) (void)place_of(cache, generations[i]);
    for (size_t i = 0; i < count; i++) {
        if (places != NULL) places[i] = place_of(cache, generations[i]);
        for (size_t layer = 0; layer < cache->layers.count; layer++) (void)show(cache, stream, layer, generations[i]);
    }
}

/* Those of the heads behind head_first. */
static struct unit_slots slots_behind(struct unit_slots slots, size_t head_first, size_t block_bytes) {
    const size_t before = head_first * slots.slot_count;
    slots.tables = span_behind(slots.tables, head_first * slots.unit_stride * sizeof(int32_t));
    slots.owners = span_behind(slots.owners, before * sizeof(uint32_t));
    slots.stamps = span_behind(slots.stamps, before * sizeof(uint32_t));
    slots.used = span_behind(slots.used, before);
    slots.hands = span_behind(slots.hands, head_first * sizeof(uint32_t));
    slots.memory = span_behind(slots.memory, before * block_bytes);
    return slots;
}

void unit_cache_fetch(struct unit_cache *cache, struct stream *stream, const struct unit_lists *lists) {
    const struct unit_layer *layer = &cache->of_layer[lists->layer_index];
    const size_t first = lists->head_first;
    ASSERT(lists->layer_index < cache->options.layer_count && first + lists->head_count <= layer->kv_head_count &&
           lists->item_first + lists->item_count <= cache->options.sequence_capacity);
    ASSERT(lists->head_count == layer->kv_head_count || lists->item_count == 1); /* else places would not be as said */
    for (size_t i = 0; i < lists->item_count; i++)
        cache->shown[i] = slots_behind(show(cache, stream, layer->number, lists->generations[i]), first,
                                       lists->items[i].view.layout->block_bytes);
    struct rows_item part = lists->items[0];
    part.view = kv_view_heads(&part.view, first);
    part.lists += first;
    const size_t counts = layer->number * cache->layers.kv_head_count + first,
                 places = lists->item_first * layer->kv_head_count + first;
    const struct fetch_operation fetch = {.items = first > 0 ? &part : lists->items,
                                          .item_count = lists->item_count,
                                          .kv_head_count = lists->head_count,
                                          .slots = cache->shown,
                                          .counts = span_of(&cache->counts, counts * sizeof(struct fetch_counts)),
                                          .places =
                                              span_of(&cache->places, places * cache->place_stride * sizeof(uint64_t)),
                                          .place_stride = cache->place_stride,
                                          .missing = lists->missing,
                                          .at = lists->at};
    cache->device->operations->fetch(stream, &fetch);
}

uint64_t unit_cache_tokens(const struct unit_cache *cache) { return cache->slot_count * (uint64_t)KV_BLOCK_TOKENS; }

struct span unit_cache_places(const struct unit_cache *cache, size_t *stride) {
    *stride = cache->place_stride;
    return span_of(&cache->places, 0);
}

enum status unit_cache_counts(struct unit_cache *cache, struct stream *stream, struct fetch_counts *sum,
                              struct error *error) {
    const size_t lanes = cache->layers.count * cache->layers.kv_head_count;
    *sum = (struct fetch_counts){0, 0, 0, 0};
    struct fetch_counts *counts = calloc(lanes, sizeof *counts);
    if (counts == NULL) return error_set(error, STATUS_MEMORY, "no memory for counts of slots");
    const enum status status =
        device_read(cache->device, stream, counts, span_of(&cache->counts, 0), lanes * sizeof *counts, error);
    for (size_t i = 0; i < lanes && status == STATUS_OK; i++) {
        sum->hits += counts[i].hits;
        sum->misses += counts[i].misses;
        sum->direct += counts[i].direct;
        sum->absent += counts[i].absent;
    }
    free(counts);
    return status;
}
