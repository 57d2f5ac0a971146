#include "cache/unit_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/slab.h"

/* Of a generation of some sequence. */
struct unit_owner {
    uint64_t generation; /* 0: none */
    uint64_t used;       /* when, of cache->clock */
};

struct unit_layer {
    struct unit_cache_layer of;
    size_t lane;          /* its first */
    size_t memory, state; /* where they begin in a sequence's */
    /* Where the parts of its state begin, of all KV heads; tables at 0.  Tables and owners, which an empty one has of
     * ones, come first. */
    size_t owners, stamps, hands, used, state_bytes;
};

/* Of all layers. */
struct unit_sizes {
    size_t memory, state;             /* of a sequence */
    size_t ones, zeros;               /* of the largest state that is empty */
    size_t lane_count, kv_head_count; /* the latter: the most of a layer with slots; 0: none has any */
};

struct unit_cache {
    struct device *device;             /* borrowed */
    struct unit_cache_options options; /* without what it borrows */
    struct unit_layer *of_layer;       /* owned, [layer_count] */
    struct unit_sizes sizes;
    size_t unit_stride, place_stride, whole_count;
    struct slab memory, states; /* [sequence_capacity] */
    struct buffer empty;        /* ones, then zeros: around where they meet lies any layer's empty state */
    struct buffer firsts;       /* of unit_slots, one layer's behind another's */
    struct buffer counts;       /* struct fetch_counts [lane] */
    struct buffer places;       /* uint64_t [sequence_capacity][kv head][place_stride] */
    struct unit_owner *owners;  /* owned, [sequence_capacity] */
    bool *is_empty;             /* owned, [sequence_capacity][layer_count]: to be emptied before it is used */
    struct unit_slots *shown;   /* owned, [sequence_capacity] */
    uint32_t *firsts_here;      /* owned; what firsts has from is_ready on */
    bool is_ready;              /* empty and firsts are written */
    uint64_t clock;
};

/* ---- how many slots a KV head has ---- */

static size_t unit_stride_of(const struct unit_cache_options *options) {
    return (size_t)(kv_chunks_of(options->context_size) * KV_CHUNK_BLOCKS);
}

/* A list has a unit more at either end of its candidates, at most. */
size_t unit_cache_place_stride(uint64_t context_size) {
    return align_up((size_t)(kv_chunks_of(context_size) * KV_CHUNK_BLOCKS) + 2, LAYOUT_ALIGNMENT / sizeof(uint64_t));
}

static size_t lanes_of(const struct unit_cache_options *options) {
    size_t count = 0;
    for (size_t i = 0; i < options->layer_count; i++) count += options->layers[i].kv_head_count;
    return count;
}

/* Each as many, but for those that are to be whole: the first so many are, the others have more, up to half as many
 * again, once each head has its list (decision 0078). */
static void fill_slots(const struct unit_cache_options *options, size_t whole_count, size_t each, uint32_t *slots) {
    const size_t all = unit_stride_of(options), list = options->list_units,
                 more = each > list ? min_size(each / 2, 2 * (each - list)) : 0;
    for (size_t i = lanes_of(options); i-- > 0;) slots[i] = (uint32_t)each;
    for (size_t i = 0; i < options->whole_count; i++)
        slots[options->whole[i]] = (uint32_t)(i < whole_count ? all : min_size(each + more, all));
}

/* Where everything lies.  layers: [layer_count], or NULL: it is counted. */
static struct unit_sizes place_layers(const struct unit_cache_options *options, const uint32_t *slots,
                                      struct unit_layer *layers) {
    struct unit_sizes sizes = {0};
    struct layout memory = {0}, states = {0};
    for (size_t i = 0; i < options->layer_count; i++) {
        struct unit_layer layer = {.of = options->layers[i], .lane = sizes.lane_count};
        const size_t heads = layer.of.kv_head_count;
        struct layout state = {0};
        size_t count = 0;
        sizes.lane_count += heads;
        for (size_t head = 0; head < heads; head++) count += slots[layer.lane + head];
        if (layer.of.block_bytes > 0) {
            (void)layout_offset(&state, heads * unit_stride_of(options), sizeof(int32_t)); /* tables */
            layer.owners = layout_offset(&state, count, sizeof(uint32_t));
            layer.stamps = layout_offset(&state, count, sizeof(uint32_t));
            layer.hands = layout_offset(&state, heads, sizeof(uint32_t));
            layer.used = layout_offset(&state, count, 1);
            layer.state_bytes = state.used;
            layer.memory = layout_offset(&memory, count, layer.of.block_bytes);
            layer.state = layout_offset(&states, layer.state_bytes, 1);
            sizes.ones = max_size(sizes.ones, layer.stamps);
            sizes.zeros = max_size(sizes.zeros, layer.state_bytes - layer.stamps);
            sizes.kv_head_count = max_size(sizes.kv_head_count, heads);
        }
        if (layers != NULL) layers[i] = layer;
    }
    sizes.memory = memory.used;
    sizes.state = states.used;
    return sizes;
}

static uint64_t firsts_bytes(const struct unit_cache_options *options, const struct unit_sizes *sizes) {
    return (sizes->lane_count + options->layer_count) * sizeof(uint32_t);
}
static uint64_t count_bytes(const struct unit_sizes *sizes) { return sizes->lane_count * sizeof(struct fetch_counts); }
static uint64_t place_bytes(const struct unit_cache_options *options, const struct unit_sizes *sizes) {
    return options->sequence_capacity * sizes->kv_head_count * unit_cache_place_stride(options->context_size) *
           sizeof(uint64_t);
}

static bool fits(const struct unit_cache_options *options, size_t whole_count, size_t each, uint32_t *slots) {
    fill_slots(options, whole_count, each, slots);
    const struct unit_sizes sizes = place_layers(options, slots, NULL);
    return sizes.kv_head_count > 0 && options->sequence_capacity * (sizes.memory + sizes.state) + sizes.ones +
                                              sizes.zeros + firsts_bytes(options, &sizes) + count_bytes(&sizes) +
                                              place_bytes(options, &sizes) <=
                                          options->bytes;
}

/* With fewer the others miss more than whole heads save (decision 0078). */
enum { LISTS_BESIDE_WHOLE = 3 };

/* slots: out, [lane].  Heads are whole as far as the others keep theirs (CLO, 3.3: what the buffers of lists leave free
 * is for persistent heads); what is left is shared.  false: not one each. */
static bool divide(const struct unit_cache_options *options, uint32_t *slots, size_t *whole_count) {
    const size_t most = unit_stride_of(options);
    size_t whole = options->whole_count, low = 0;
    while (whole > 0 && !fits(options, whole, min_size(LISTS_BESIDE_WHOLE * options->list_units, most), slots)) whole--;
    for (size_t high = most; low < high;) {
        const size_t each = high - (high - low) / 2;
        if (fits(options, whole, each, slots))
            low = each;
        else
            high = each - 1;
    }
    fill_slots(options, whole, low, slots);
    *whole_count = whole;
    return low > 0;
}

/* ---- life ---- */

static void fill_firsts(struct unit_cache *cache, const uint32_t *slots) {
    for (size_t i = 0; i < cache->options.layer_count; i++) {
        const struct unit_layer *layer = &cache->of_layer[i];
        uint32_t *firsts = cache->firsts_here + layer->lane + i;
        for (size_t head = 0; head < layer->of.kv_head_count; head++)
            firsts[head + 1] = firsts[head] + slots[layer->lane + head];
    }
}

static enum status memory_create(struct unit_cache *cache, const struct unit_cache_options *options,
                                 const uint32_t *slots, struct error *error) {
    const struct device_operations *operations = cache->device->operations;
    const size_t places = options->sequence_capacity;
    struct device *device = cache->device;
    cache->of_layer = calloc(options->layer_count, sizeof *cache->of_layer);
    cache->owners = calloc(places, sizeof *cache->owners);
    cache->is_empty = calloc(places * options->layer_count, sizeof *cache->is_empty);
    cache->shown = calloc(places, sizeof *cache->shown);
    cache->firsts_here = calloc(lanes_of(options) + options->layer_count, sizeof *cache->firsts_here);
    if (cache->of_layer == NULL || cache->owners == NULL || cache->is_empty == NULL || cache->shown == NULL ||
        cache->firsts_here == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for slots of %zu sequences", places);
    const struct unit_sizes sizes = cache->sizes = place_layers(options, slots, cache->of_layer);
    fill_firsts(cache, slots);
    TRY(slab_init(&cache->memory, device, MEMORY_DEVICE, sizes.memory, places, error));
    TRY(slab_init(&cache->states, device, MEMORY_DEVICE, sizes.state, places, error));
    TRY(operations->allocate(device, MEMORY_DEVICE, sizes.ones + sizes.zeros, &cache->empty, error));
    TRY(operations->allocate(device, MEMORY_DEVICE, firsts_bytes(options, &sizes), &cache->firsts, error));
    TRY(operations->allocate(device, MEMORY_DEVICE, count_bytes(&sizes), &cache->counts, error));
    return operations->allocate(device, MEMORY_DEVICE, place_bytes(options, &sizes), &cache->places, error);
}

enum status unit_cache_create(struct unit_cache **result, struct device *device,
                              const struct unit_cache_options *options, struct error *error) {
    *result = NULL;
    struct unit_cache *cache = calloc(1, sizeof *cache);
    uint32_t *slots = calloc(lanes_of(options) + 1, sizeof *slots);
    if (cache == NULL || slots == NULL) {
        free(cache);
        free(slots);
        return error_set(error, STATUS_MEMORY, "no memory for slots");
    }
    *cache = (struct unit_cache){.device = device,
                                 .options = *options,
                                 .unit_stride = unit_stride_of(options),
                                 .place_stride = unit_cache_place_stride(options->context_size),
                                 .memory = {.device = device},
                                 .states = {.device = device}};
    cache->options.layers = NULL;
    cache->options.whole = NULL;
    const bool has_slots = divide(options, slots, &cache->whole_count);
    const enum status status = has_slots ? memory_create(cache, options, slots, error) : STATUS_OK;
    free(slots);
    if (has_slots && status == STATUS_OK)
        *result = cache;
    else
        unit_cache_destroy(cache);
    return status;
}

void unit_cache_destroy(struct unit_cache *cache) {
    if (cache == NULL) return;
    slab_deinit(&cache->memory);
    slab_deinit(&cache->states);
    struct buffer *const buffers[] = {&cache->empty, &cache->firsts, &cache->counts, &cache->places};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        cache->device->operations->release(cache->device, buffers[i]);
    free(cache->of_layer);
    free(cache->owners);
    free(cache->is_empty);
    free(cache->shown);
    free(cache->firsts_here);
    free(cache);
}

/* ---- which slots ---- */

/* The place of a generation: its own, or the one that was used longest ago, which is emptied. */
static size_t place_of(struct unit_cache *cache, uint64_t generation) {
    const size_t count = cache->options.sequence_capacity, layers = cache->options.layer_count;
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
    const size_t count = cache->options.sequence_capacity * cache->options.layer_count;
    for (size_t i = 0; i < count; i++) cache->is_empty[i] = true;
}

/* What the device reads and never writes. */
static void make_ready(struct unit_cache *cache, struct stream *stream) {
    const struct device_operations *operations = cache->device->operations;
    uint8_t ones[4096];
    if (cache->is_ready) return;
    memset(ones, 0xff, sizeof ones);
    for (size_t done = 0; done < cache->sizes.ones; done += sizeof ones)
        operations->upload(stream, span_of(&cache->empty, done), ones, min_size(sizeof ones, cache->sizes.ones - done));
    operations->upload(stream, span_of(&cache->firsts, 0), cache->firsts_here,
                       firsts_bytes(&cache->options, &cache->sizes));
    cache->is_ready = true;
}

static struct unit_slots show(struct unit_cache *cache, struct stream *stream, size_t index, uint64_t generation) {
    const size_t place = place_of(cache, generation);
    const struct unit_layer *layer = &cache->of_layer[index];
    const struct span state = span_behind(slab_slot(&cache->states, place), layer->state);
    bool *is_empty = &cache->is_empty[place * cache->options.layer_count + index];
    make_ready(cache, stream);
    if (*is_empty)
        cache->device->operations->copy(stream, state, span_of(&cache->empty, cache->sizes.ones - layer->stamps),
                                        layer->state_bytes);
    *is_empty = false;
    return (struct unit_slots){.unit_stride = cache->unit_stride,
                               .firsts = span_of(&cache->firsts, (layer->lane + index) * sizeof(uint32_t)),
                               .tables = state,
                               .owners = span_behind(state, layer->owners),
                               .stamps = span_behind(state, layer->stamps),
                               .used = span_behind(state, layer->used),
                               .hands = span_behind(state, layer->hands),
                               .memory = span_behind(slab_slot(&cache->memory, place), layer->memory)};
}

void unit_cache_show(struct unit_cache *cache, struct stream *stream, const uint64_t *generations, size_t count,
                     uint64_t *places) {
    ASSERT(count <= cache->options.sequence_capacity);
    for (size_t i = 0; i < count; i++) (void)place_of(cache, generations[i]);
    for (size_t i = 0; i < count; i++) {
        if (places != NULL) places[i] = place_of(cache, generations[i]);
        for (size_t layer = 0; layer < cache->options.layer_count; layer++)
            if (cache->of_layer[layer].of.block_bytes > 0) (void)show(cache, stream, layer, generations[i]);
    }
}

/* Those of the heads behind head_first: firsts are of the layer's slots. */
static struct unit_slots slots_behind(struct unit_slots slots, size_t head_first) {
    slots.firsts = span_behind(slots.firsts, head_first * sizeof(uint32_t));
    slots.tables = span_behind(slots.tables, head_first * slots.unit_stride * sizeof(int32_t));
    slots.hands = span_behind(slots.hands, head_first * sizeof(uint32_t));
    return slots;
}

void unit_cache_fetch(struct unit_cache *cache, struct stream *stream, const struct unit_lists *lists) {
    const struct unit_layer *layer = &cache->of_layer[lists->layer_index];
    const size_t first = lists->head_first;
    ASSERT(lists->layer_index < cache->options.layer_count && layer->of.block_bytes > 0 &&
           first + lists->head_count <= layer->of.kv_head_count &&
           lists->item_first + lists->item_count <= cache->options.sequence_capacity);
    /* Else places would not be as said. */
    ASSERT(lists->head_count == layer->of.kv_head_count || lists->item_count == 1);
    for (size_t i = 0; i < lists->item_count; i++)
        cache->shown[i] = slots_behind(show(cache, stream, lists->layer_index, lists->generations[i]), first);
    struct rows_item part = lists->items[0];
    part.view = kv_view_heads(&part.view, first);
    part.lists += first;
    const size_t places = lists->item_first * layer->of.kv_head_count + first;
    const struct fetch_operation fetch = {
        .items = first > 0 ? &part : lists->items,
        .item_count = lists->item_count,
        .kv_head_count = lists->head_count,
        .slots = cache->shown,
        .counts = span_of(&cache->counts, (layer->lane + first) * sizeof(struct fetch_counts)),
        .places = span_of(&cache->places, places * cache->place_stride * sizeof(uint64_t)),
        .place_stride = cache->place_stride,
        .missing = lists->missing,
        .at = lists->at};
    cache->device->operations->fetch(stream, &fetch);
}

uint64_t unit_cache_bytes(const struct unit_cache *cache) {
    if (cache == NULL) return 0;
    return cache->options.sequence_capacity * (cache->sizes.memory + cache->sizes.state) + cache->empty.bytes +
           cache->firsts.bytes + cache->counts.bytes + cache->places.bytes;
}

uint64_t unit_cache_tokens(const struct unit_cache *cache) {
    uint32_t slots = UINT32_MAX;
    for (size_t i = 0; i < cache->options.layer_count; i++) {
        const struct unit_layer *layer = &cache->of_layer[i];
        const uint32_t *firsts = cache->firsts_here + layer->lane + i;
        for (size_t head = 0; head < layer->of.kv_head_count && layer->of.block_bytes > 0; head++)
            if (firsts[head + 1] - firsts[head] < slots) slots = firsts[head + 1] - firsts[head];
    }
    return slots * (uint64_t)KV_BLOCK_TOKENS;
}

size_t unit_cache_whole_count(const struct unit_cache *cache) { return cache != NULL ? cache->whole_count : 0; }

struct span unit_cache_places(const struct unit_cache *cache, size_t *stride) {
    *stride = cache->place_stride;
    return span_of(&cache->places, 0);
}

enum status unit_cache_counts(struct unit_cache *cache, struct stream *stream, struct fetch_counts *sum,
                              struct error *error) {
    const size_t lanes = cache->sizes.lane_count;
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
