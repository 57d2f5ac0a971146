#include "attention/list_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/kv_cache.h"
#include "cache/page_table.h"
#include "cache/slab.h"

static const uint32_t NO_PLACE = UINT32_MAX;

struct list_buffer {
    size_t count;        /* rows of the list; 0: nothing is held */
    uint32_t *rows;      /* in the tables; [list_rows]: the list */
    struct span places;  /* in the tables; uint32_t [list_rows]: where each row is, of the buffer's rows */
    uint32_t slot_first; /* of its chunk_count chunks */
};

/* Whose buffers they are. */
struct buffered_sequence {
    const struct kv_sequence *sequence; /* NULL: nobody's */
    uint64_t generation, used;          /* used: the lowest goes when there is another sequence */
    size_t head_count;                  /* heads that have come */
    uint32_t *heads;                    /* [lane]: its buffer; NO_PLACE: none */
};

struct list_buffers {
    struct device *device; /* borrowed */
    struct list_buffer_shape shape;
    size_t heads_max, chunk_count;       /* of a sequence; of a buffer */
    struct buffered_sequence *sequences; /* owned, and the next four behind it; [sequence_capacity] */
    uint32_t *missing;                   /* [list_rows]: of the last question, or new places */
    bool *is_taken;                      /* [list_rows]: places that stay */
    struct list_buffer *list;            /* [sequence_capacity][heads_max] */
    uint32_t *rows;                      /* [sequence_capacity][heads_max][list_rows] */
    struct buffer places;                /* owned MEMORY_SHARED; the same */
    struct slab memory;                  /* MEMORY_SHARED; [sequence_capacity][heads_max][chunk_count] chunks */
    struct kv_pools pools;               /* POOL_ROWS is memory */
    struct page_table shown;             /* of the last view; [kv_head_count][chunk_count] */
    uint64_t clock;
    struct list_buffer_counts counts;
};

/* ---- life ---- */

static size_t lane_of(const struct list_buffer_shape *shape, size_t layer, size_t kv_head) {
    return kv_layer_lane(shape->groups, shape->kv_head_count, layer, kv_head);
}
static size_t lane_count(const struct list_buffer_shape *shape) { return lane_of(shape, shape->layer_count, 0); }

static size_t chunks_of(uint64_t list_rows) { return (size_t)kv_chunks_of(list_rows); }

static void place_tables(struct list_buffers *b, struct layout *layout) {
    const size_t sequences = b->shape.sequence_capacity, rows = (size_t)b->shape.list_rows;
    b->sequences = layout_take(layout, sequences, sizeof *b->sequences);
    for (size_t i = 0; i < sequences; i++) {
        uint32_t *heads = layout_take(layout, lane_count(&b->shape), sizeof *heads);
        if (heads != NULL) b->sequences[i].heads = heads;
    }
    b->missing = layout_take(layout, rows, sizeof *b->missing);
    b->is_taken = layout_take(layout, rows, sizeof *b->is_taken);
}

/* Of so many heads, what is in the host's own memory. */
static void place_heads(struct list_buffers *b, struct layout *layout, size_t count) {
    b->list = layout_take(layout, count, sizeof *b->list);
    b->rows = layout_take(layout, count, (size_t)b->shape.list_rows * sizeof *b->rows);
}

uint64_t list_buffer_head_bytes(uint64_t list_rows, size_t chunk_bytes) {
    struct list_buffers b = {.shape.list_rows = list_rows};
    struct layout layout = {0};
    place_heads(&b, &layout, 1);
    return layout.used + chunks_of(list_rows) * chunk_bytes + list_rows * sizeof(uint32_t);
}

uint64_t list_buffer_table_bytes(const struct list_buffer_shape *shape) {
    struct list_buffers b = {.shape = *shape};
    struct layout layout = {0};
    place_tables(&b, &layout);
    return sizeof b + layout.used + page_table_bytes(shape->kv_head_count, chunks_of(shape->list_rows));
}

/* Heads of each sequence that the bytes hold. */
static size_t heads_of(const struct list_buffer_shape *shape) {
    const uint64_t tables = list_buffer_table_bytes(shape),
                   head = list_buffer_head_bytes(shape->list_rows, shape->chunk_bytes),
                   all = lane_count(shape) - lane_of(shape, shape->layer_first, 0);
    if (shape->list_rows == 0 || shape->bytes <= tables) return 0;
    const uint64_t heads = (shape->bytes - tables) / head / shape->sequence_capacity;
    return (size_t)(heads < all ? heads : all);
}

static enum status allocate(struct list_buffers *b, struct error *error) {
    const size_t count = b->shape.sequence_capacity * b->heads_max;
    struct layout layout = {0};
    place_tables(b, &layout);
    place_heads(b, &layout, count);
    layout = (struct layout){.memory = calloc(1, layout.used)};
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "buffers of lists: out of memory");
    place_tables(b, &layout);
    place_heads(b, &layout, count);
    TRY(slab_init(&b->memory, b->device, MEMORY_SHARED, b->shape.chunk_bytes, count * b->chunk_count, error));
    TRY(page_table_init(&b->shown, b->device, b->shape.kv_head_count, b->chunk_count, error));
    return b->device->operations->allocate(b->device, MEMORY_SHARED,
                                           count * (size_t)b->shape.list_rows * sizeof(uint32_t), &b->places, error);
}

enum status list_buffers_create(struct list_buffers **result, struct device *device,
                                const struct list_buffer_shape *shape, struct error *error) {
    *result = NULL;
    if (heads_of(shape) == 0) return STATUS_OK;
    struct list_buffers *b = calloc(1, sizeof *b);
    if (b == NULL) return error_set(error, STATUS_MEMORY, "buffers of lists: out of memory");
    *b = (struct list_buffers){
        .device = device, .shape = *shape, .heads_max = heads_of(shape), .chunk_count = chunks_of(shape->list_rows)};
    const size_t count = shape->sequence_capacity * b->heads_max, rows = (size_t)shape->list_rows;
    const enum status status = allocate(b, error);
    if (status != STATUS_OK) {
        list_buffers_destroy(b);
        return status;
    }
    b->pools.list[POOL_ROWS] = b->memory.pool;
    b->counts.heads = b->heads_max;
    for (size_t i = 0; i < count; i++)
        b->list[i] = (struct list_buffer){.rows = b->rows + i * rows,
                                          .places = span_of(&b->places, i * rows * sizeof(uint32_t)),
                                          .slot_first = (uint32_t)(i * b->chunk_count)};
    *result = b;
    return STATUS_OK;
}

void list_buffers_destroy(struct list_buffers *b) {
    if (b == NULL) return;
    slab_deinit(&b->memory);
    page_table_deinit(&b->shown);
    b->device->operations->release(b->device, &b->places);
    free(b->sequences); /* and the other tables */
    free(b);
}

/* ---- whose ---- */

/* The sequence's, with nothing of another sequence or of what the sequence was.  There are as many as sequences may
 * live, so that the one that goes is of a sequence that does not. */
static size_t sequence_index(struct list_buffers *b, const struct kv_sequence *sequence) {
    const size_t lanes = lane_count(&b->shape);
    size_t index = 0;
    for (size_t i = 0; i < b->shape.sequence_capacity; i++) {
        if (b->sequences[i].sequence == sequence) {
            index = i;
            break;
        }
        if (b->sequences[i].used < b->sequences[index].used) index = i;
    }
    struct buffered_sequence *own = &b->sequences[index];
    const uint64_t generation = kv_sequence_generation(sequence);
    own->used = ++b->clock;
    if (own->sequence == sequence && own->generation == generation) return index;
    own->sequence = sequence;
    own->generation = generation;
    own->head_count = 0;
    for (size_t i = 0; i < lanes; i++) own->heads[i] = NO_PLACE;
    for (size_t i = 0; i < b->heads_max; i++) b->list[index * b->heads_max + i].count = 0;
    return index;
}

struct list_buffer *list_buffers_of(struct list_buffers *b, const struct kv_sequence *sequence, size_t layer_index,
                                    size_t kv_head, const struct row_list *list) {
    if (b == NULL || list->count > b->shape.list_rows || layer_index < b->shape.layer_first) return NULL;
    const size_t lane = lane_of(&b->shape, layer_index, kv_head);
    if (b->shape.stays != NULL &&
        b->shape.stays[lane_of(&b->shape, kv_layer_source(b->shape.groups, layer_index), kv_head)])
        return NULL;
    const size_t index = sequence_index(b, sequence);
    struct buffered_sequence *own = &b->sequences[index];
    uint32_t *head = &own->heads[lane];
    if (*head == NO_PLACE && own->head_count < b->heads_max) *head = (uint32_t)own->head_count++;
    return *head == NO_PLACE ? NULL : &b->list[index * b->heads_max + *head];
}

/* ---- rows ---- */

const uint32_t *list_buffer_missing(struct list_buffers *b, const struct list_buffer *buffer,
                                    const struct row_list *list, size_t *count) {
    const uint32_t *rows = row_list_host(list);
    size_t i = 0;
    *count = 0;
    ASSERT(list->count <= b->shape.list_rows);
    for (size_t j = 0; j < list->count; j++) { /* both ascend */
        while (i < buffer->count && buffer->rows[i] < rows[j]) i++;
        if (i == buffer->count || buffer->rows[i] != rows[j]) b->missing[(*count)++] = rows[j];
    }
    return b->missing;
}

/* K or V of a row, and its scales, which lie together in their block. */
static void copy_half(const uint8_t *source, size_t from, uint8_t *target, size_t to, size_t row_bytes,
                      size_t scales_offset, size_t scale_bytes) {
    memcpy(target + to * row_bytes, source + from * row_bytes, row_bytes);
    if (scale_bytes > 0)
        memcpy(target + scales_offset + to * scale_bytes, source + scales_offset + from * scale_bytes, scale_bytes);
}

static void copy_row(const struct kv_layout *layout, const void *source, size_t from, void *target, size_t to) {
    const uint8_t *block = kv_block(layout, source, from);
    uint8_t *own = (uint8_t *)target + to / KV_BLOCK_TOKENS * layout->block_bytes;
    const size_t k_scales = layout->k_type == KV_Q8 ? layout->k_dimension / KV_SCALE_GROUP * sizeof(uint16_t) : 0;
    const size_t v_scales = layout->v_type == KV_Q8 ? layout->v_dimension / KV_SCALE_GROUP * sizeof(uint16_t) : 0;
    from %= KV_BLOCK_TOKENS;
    to %= KV_BLOCK_TOKENS;
    copy_half(block, from, own, to, layout->k_row_bytes, layout->k_scales_offset, k_scales);
    copy_half(block + layout->v_offset, from, own + layout->v_offset, to, layout->v_row_bytes,
              layout->v_scales_offset - layout->v_offset, v_scales);
}

/* Rows that stay keep their places; returns how many do.  The others' places are open. */
static size_t keep_places(struct list_buffers *b, const struct list_buffer *buffer, const struct row_list *list) {
    const uint32_t *rows = row_list_host(list), *places = span_host(buffer->places);
    size_t kept = 0, i = 0;
    memset(b->is_taken, 0, (size_t)b->shape.list_rows * sizeof *b->is_taken);
    for (size_t j = 0; j < list->count; j++) {
        while (i < buffer->count && buffer->rows[i] < rows[j]) i++;
        const bool found = i < buffer->count && buffer->rows[i] == rows[j];
        b->missing[j] = found ? places[i] : NO_PLACE;
        if (!found) continue;
        b->is_taken[places[i]] = true;
        kept++;
    }
    return kept;
}

void list_buffer_fill(struct list_buffers *b, struct list_buffer *buffer, const struct row_list *list,
                      const struct kv_view *view, const uint32_t *places) {
    ASSERT(list->count <= b->shape.list_rows);
    const size_t kept = keep_places(b, buffer, list);
    const uint32_t *rows = row_list_host(list);
    uint32_t open = 0;
    for (size_t j = 0; j < list->count; j++) {
        if (b->missing[j] != NO_PLACE) continue;
        while (b->is_taken[open]) open++; /* there are as many places as a list may have rows */
        const struct span chunk = kv_pools_chunk(view->pools, places[rows[j] / KV_CHUNK_TOKENS]);
        ASSERT(span_exists(chunk));
        copy_row(view->layout, span_host(chunk), rows[j] % KV_CHUNK_TOKENS,
                 span_host(slab_slot(&b->memory, buffer->slot_first + open / KV_CHUNK_TOKENS)), open % KV_CHUNK_TOKENS);
        b->missing[j] = open++;
    }
    memcpy(buffer->rows, rows, list->count * sizeof *buffer->rows);
    memcpy(span_host(buffer->places), b->missing, list->count * sizeof *b->missing);
    buffer->count = list->count;
    b->counts.kept += kept;
    b->counts.copied += list->count - kept;
}

struct row_list list_buffer_rows(const struct list_buffer *buffer) {
    return (struct row_list){.rows = buffer->places, .count = buffer->count};
}

struct kv_view list_buffers_view(struct list_buffers *b, struct stream *stream, const struct kv_layout *layout,
                                 const struct list_buffer *const *shown, size_t count) {
    ASSERT(count <= b->shape.kv_head_count);
    for (size_t head = 0; head < count; head++)
        for (size_t i = 0; i < b->chunk_count; i++)
            page_table_set(&b->shown, head, i, place_make(POOL_ROWS, shown[head]->slot_first + i));
    page_table_update(&b->shown, stream, 0, count);
    return (struct kv_view){
        .layout = layout, .pools = &b->pools, .chunks = page_table_lane(&b->shown, 0), .chunk_stride = b->chunk_count};
}

static const struct counter counter_rows[] = {
    COUNTER_ROW(LEVEL, ITEMS, struct list_buffer_counts, heads, "heads", "KV heads that may have a buffer."),
    COUNTER_ROW(TOTAL, ITEMS, struct list_buffer_counts, kept, "rows_kept", "Rows of lists that were there."),
    COUNTER_ROW(TOTAL, ITEMS, struct list_buffer_counts, copied, "rows_copied", "Rows that were copied there."),
};
const struct counter_table list_buffer_counters = COUNTER_TABLE("kv_list_", struct list_buffer_counts, counter_rows);

struct list_buffer_counts list_buffers_counts(const struct list_buffers *b) {
    return b != NULL ? b->counts : (struct list_buffer_counts){0};
}

void list_buffers_reset_counts(struct list_buffers *b) {
    if (b != NULL) b->counts = (struct list_buffer_counts){.heads = b->heads_max};
}
