#include "cache/unit_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/page_fractions.h"
#include "cache/slab.h"

/* Of a generation of some sequence. */
struct unit_owner {
    uint64_t generation; /* 0: none */
    uint64_t used;       /* when, of cache->clock */
    bool is_fetching;    /* slots may be promised bytes that attention brings */
};

/* Slots hold units of rows, or chunks in 4 bits. */
enum slot_kind { SLOT_UNITS, SLOT_CHUNKS, SLOT_KINDS };

/* A layer's slots of a kind. */
struct unit_part {
    size_t slot_bytes;    /* 0: it has none */
    size_t stride;        /* of a table */
    size_t memory, state; /* where they begin in a sequence's */
    /* Where the parts of its state begin, of all KV heads; tables at 0.  Tables and owners, which an empty one has of
     * ones, come first. */
    size_t owners, stamps, hands, used, state_bytes;
};

struct unit_layer {
    struct unit_cache_layer of;
    size_t lane; /* its first */
    struct unit_part parts[SLOT_KINDS];
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
    size_t place_stride, whole_count;
    struct slab memory, states; /* [sequence_capacity] */
    struct buffer empty;        /* ones, then zeros: around where they meet lies any layer's empty state */
    struct buffer firsts;       /* of unit_slots, [kind], one layer's behind another's */
    struct buffer counts;       /* struct fetch_counts [lane] */
    struct buffer places;       /* uint64_t [sequence_capacity][kv head][place_stride] */
    struct unit_owner *owners;  /* owned, [sequence_capacity] */
    bool *is_empty;             /* owned, [sequence_capacity][layer_count]: to be emptied before it is used */
    struct unit_slots *shown;   /* owned, [kind][sequence_capacity] */
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

/* Slots of a head, by kind. */
struct slot_counts {
    uint32_t of[SLOT_KINDS];
};

/* For as many tokens as so many units have, `all` being the context: by the fraction that is in 4 bits.  Of a whole
 * context a head has up to a chunk more of either form than that. */
static struct slot_counts slots_for(const struct unit_cache_layer *layer, size_t units, size_t all) {
    if (layer->q4_bytes == 0) return (struct slot_counts){{(uint32_t)units, 0}};
    const size_t whole = PAGE_FRACTION_WHOLE, first = layer->first_is_rows ? min_size(units, KV_CHUNK_BLOCKS) : 0,
                 q4 = (units - first) * layer->q4_of_16, rows = (units - first) * (whole - layer->q4_of_16),
                 beside = units == all && rows > 0 && q4 > 0 ? 1 : 0, each = whole * KV_CHUNK_BLOCKS;
    return (struct slot_counts){{(uint32_t)min_size(first + (rows + whole - 1) / whole + beside * KV_CHUNK_BLOCKS, all),
                                 (uint32_t)min_size((q4 + each - 1) / each + beside, all / KV_CHUNK_BLOCKS)}};
}

/* Each as many, but for those that are to be whole: the first so many are, the others have more, up to half as many
 * again, once each head has its list (decision 0078). */
static void fill_slots(const struct unit_cache_options *options, size_t whole_count, size_t each,
                       struct slot_counts *slots) {
    const size_t all = unit_stride_of(options), list = options->list_units,
                 more = each > list ? min_size(each / 2, 2 * (each - list)) : 0;
    const struct unit_cache_layer *layer = options->layers;
    for (size_t lane = 0; lane < lanes_of(options); lane++) slots[lane].of[SLOT_UNITS] = (uint32_t)each;
    for (size_t i = 0; i < options->whole_count; i++)
        slots[options->whole[i]].of[SLOT_UNITS] = (uint32_t)(i < whole_count ? all : min_size(each + more, all));
    for (size_t lane = 0; layer < options->layers + options->layer_count; layer++)
        for (size_t head = 0; head < layer->kv_head_count; head++, lane++)
            slots[lane] = slots_for(layer, slots[lane].of[SLOT_UNITS], all);
}

/* The slots of a kind of a layer's heads, from `slots` on. */
static void place_part(struct unit_part *part, const struct slot_counts *slots, size_t heads, enum slot_kind kind,
                       struct layout *memory, struct layout *states) {
    struct layout state = {0};
    size_t count = 0;
    for (size_t head = 0; head < heads; head++) count += slots[head].of[kind];
    (void)layout_offset(&state, heads * part->stride, sizeof(int32_t)); /* tables */
    part->owners = layout_offset(&state, count, sizeof(uint32_t));
    part->stamps = layout_offset(&state, count, sizeof(uint32_t));
    part->hands = layout_offset(&state, heads, sizeof(uint32_t));
    part->used = layout_offset(&state, count, 1);
    part->state_bytes = state.used;
    part->memory = layout_offset(memory, count, part->slot_bytes);
    part->state = layout_offset(states, part->state_bytes, 1);
}

/* Where everything lies.  layers: [layer_count], or NULL: it is counted. */
static struct unit_sizes place_layers(const struct unit_cache_options *options, const struct slot_counts *slots,
                                      struct unit_layer *layers) {
    struct unit_sizes sizes = {0};
    struct layout memory = {0}, states = {0};
    for (size_t i = 0; i < options->layer_count; i++) {
        struct unit_layer layer = {.of = options->layers[i], .lane = sizes.lane_count};
        const size_t heads = layer.of.kv_head_count, stride = unit_stride_of(options);
        layer.parts[SLOT_UNITS] = (struct unit_part){.slot_bytes = layer.of.block_bytes, .stride = stride};
        layer.parts[SLOT_CHUNKS] =
            (struct unit_part){.slot_bytes = layer.of.q4_bytes, .stride = stride / KV_CHUNK_BLOCKS};
        sizes.lane_count += heads;
        for (enum slot_kind kind = SLOT_UNITS; kind < SLOT_KINDS; kind++) {
            struct unit_part *part = &layer.parts[kind];
            if (part->slot_bytes == 0) continue;
            place_part(part, slots + layer.lane, heads, kind, &memory, &states);
            sizes.ones = max_size(sizes.ones, part->stamps);
            sizes.zeros = max_size(sizes.zeros, part->state_bytes - part->stamps);
            sizes.kv_head_count = max_size(sizes.kv_head_count, heads);
        }
        if (layers != NULL) layers[i] = layer;
    }
    sizes.memory = memory.used;
    sizes.state = states.used;
    return sizes;
}

static uint64_t firsts_bytes(const struct unit_cache_options *options, const struct unit_sizes *sizes) {
    return SLOT_KINDS * (sizes->lane_count + options->layer_count) * sizeof(uint32_t);
}
static uint64_t count_bytes(const struct unit_sizes *sizes) { return sizes->lane_count * sizeof(struct fetch_counts); }
static uint64_t place_bytes(const struct unit_cache_options *options, const struct unit_sizes *sizes) {
    return options->sequence_capacity * sizes->kv_head_count * unit_cache_place_stride(options->context_size) *
           sizeof(uint64_t);
}

static bool fits(const struct unit_cache_options *options, size_t whole_count, size_t each, struct slot_counts *slots) {
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
static bool divide(const struct unit_cache_options *options, struct slot_counts *slots, size_t *whole_count) {
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

/* Where a layer's firsts begin. */
static size_t firsts_at(const struct unit_cache *cache, size_t index, enum slot_kind kind) {
    return kind * (cache->sizes.lane_count + cache->options.layer_count) + cache->of_layer[index].lane + index;
}

static void fill_firsts(struct unit_cache *cache, const struct slot_counts *slots) {
    for (size_t i = 0; i < cache->options.layer_count; i++)
        for (enum slot_kind kind = SLOT_UNITS; kind < SLOT_KINDS; kind++) {
            const struct unit_layer *layer = &cache->of_layer[i];
            uint32_t *firsts = cache->firsts_here + firsts_at(cache, i, kind);
            for (size_t head = 0; head < layer->of.kv_head_count; head++)
                firsts[head + 1] = firsts[head] + slots[layer->lane + head].of[kind];
        }
}

static enum status memory_create(struct unit_cache *cache, const struct unit_cache_options *options,
                                 const struct slot_counts *slots, struct error *error) {
    const struct device_operations *operations = cache->device->operations;
    const size_t places = options->sequence_capacity;
    struct device *device = cache->device;
    cache->of_layer = calloc(options->layer_count, sizeof *cache->of_layer);
    cache->owners = calloc(places, sizeof *cache->owners);
    cache->is_empty = calloc(places * options->layer_count, sizeof *cache->is_empty);
    cache->shown = calloc(SLOT_KINDS * places, sizeof *cache->shown);
    cache->firsts_here = calloc(SLOT_KINDS * (lanes_of(options) + options->layer_count), sizeof *cache->firsts_here);
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
    struct slot_counts *slots = calloc(lanes_of(options) + 1, sizeof *slots);
    if (cache == NULL || slots == NULL) {
        free(cache);
        free(slots);
        return error_set(error, STATUS_MEMORY, "no memory for slots");
    }
    *cache = (struct unit_cache){.device = device,
                                 .options = *options,
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

void unit_cache_end_step(struct unit_cache *cache, bool is_lost) {
    const size_t layers = cache->options.layer_count;
    for (size_t place = 0; place < cache->options.sequence_capacity; place++) {
        if (cache->owners[place].is_fetching && is_lost)
            for (size_t layer = 0; layer < layers; layer++) cache->is_empty[place * layers + layer] = true;
        cache->owners[place].is_fetching = false;
    }
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

static struct unit_slots slots_at(const struct unit_cache *cache, size_t index, enum slot_kind kind, size_t place) {
    const struct unit_part *part = &cache->of_layer[index].parts[kind];
    const struct span state = span_behind(slab_slot(&cache->states, place), part->state);
    return (struct unit_slots){.unit_stride = part->stride,
                               .firsts = span_of(&cache->firsts, firsts_at(cache, index, kind) * sizeof(uint32_t)),
                               .tables = state,
                               .owners = span_behind(state, part->owners),
                               .stamps = span_behind(state, part->stamps),
                               .used = span_behind(state, part->used),
                               .hands = span_behind(state, part->hands),
                               .memory = span_behind(slab_slot(&cache->memory, place), part->memory)};
}

/* The place whose slots of the layer are the generation's, and ready. */
static size_t show(struct unit_cache *cache, struct stream *stream, size_t index, uint64_t generation) {
    const size_t place = place_of(cache, generation);
    bool *is_empty = &cache->is_empty[place * cache->options.layer_count + index];
    make_ready(cache, stream);
    for (enum slot_kind kind = SLOT_UNITS; kind < SLOT_KINDS && *is_empty; kind++) {
        const struct unit_part *part = &cache->of_layer[index].parts[kind];
        if (part->slot_bytes == 0) continue;
        cache->device->operations->copy(stream, slots_at(cache, index, kind, place).tables,
                                        span_of(&cache->empty, cache->sizes.ones - part->stamps), part->state_bytes);
    }
    *is_empty = false;
    cache->owners[place].is_fetching = true;
    return place;
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
    const size_t first = lists->head_first, capacity = cache->options.sequence_capacity;
    struct unit_slots *q4_slots = cache->shown + capacity;
    ASSERT(lists->layer_index < cache->options.layer_count && layer->of.block_bytes > 0 &&
           first + lists->head_count <= layer->of.kv_head_count &&
           lists->item_first + lists->item_count <= cache->options.sequence_capacity);
    /* Else places would not be as said. */
    ASSERT(lists->head_count == layer->of.kv_head_count || lists->item_count == 1);
    for (size_t i = 0; i < lists->item_count; i++) {
        const size_t place = show(cache, stream, lists->layer_index, lists->generations[i]);
        for (enum slot_kind kind = SLOT_UNITS; kind < SLOT_KINDS; kind++)
            cache->shown[kind * capacity + i] = slots_behind(slots_at(cache, lists->layer_index, kind, place), first);
    }
    struct rows_item part = lists->items[0];
    part.view = kv_view_heads(&part.view, first);
    part.lists += first;
    const size_t places = lists->item_first * layer->of.kv_head_count + first;
    const struct fetch_operation fetch = {
        .items = first > 0 ? &part : lists->items,
        .item_count = lists->item_count,
        .kv_head_count = lists->head_count,
        .slots = cache->shown,
        .q4_slots = layer->of.q4_bytes > 0 ? q4_slots : NULL,
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
        const uint32_t *firsts = cache->firsts_here + firsts_at(cache, i, SLOT_UNITS);
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
    *sum = (struct fetch_counts){.hits = 0};
    struct fetch_counts *counts = calloc(lanes, sizeof *counts);
    if (counts == NULL) return error_set(error, STATUS_MEMORY, "no memory for counts of slots");
    const enum status status =
        device_read(cache->device, stream, counts, span_of(&cache->counts, 0), lanes * sizeof *counts, error);
    for (size_t i = 0; i < lanes && status == STATUS_OK; i++) {
        sum->hits += counts[i].hits;
        sum->misses += counts[i].misses;
        sum->direct += counts[i].direct;
        sum->absent += counts[i].absent;
        sum->chunk_hits += counts[i].chunk_hits;
        sum->chunk_misses += counts[i].chunk_misses;
        sum->chunk_direct += counts[i].chunk_direct;
    }
    free(counts);
    return status;
}
