#include "attention/turns.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cache/unit_cache.h"

enum { TABLES = 2 }; /* of a sequence: of chunks, and of those in 4 bits */

struct turns {
    struct device *device;            /* borrowed */
    struct kv_cache *cache;           /* borrowed */
    struct fetch *fetch;              /* borrowed */
    struct attention_options options; /* with what it borrows */
    struct buffer missing;            /* MEMORY_SHARED; uint8_t [row][kv head][unit_cache_place_stride] */
    struct buffer written;            /* MEMORY_SHARED; struct place_delta [row][TABLES][written_stride] */
    struct kv_sequence **sequences;   /* owned, [sequence_capacity]; of the step */
    struct attend_item *items;        /* owned, the same */
    struct turns_step step;           /* what it borrows of the step's is the two above */
    struct attention_step rows;
    uint64_t lists; /* read in this step */
    bool is_full, is_over;
    enum status failed;
    struct error failure;
};

static size_t written_stride(const struct attention_options *options) {
    return 1 + options->kv_head_count * (size_t)kv_chunks_of(options->context_size);
}
static size_t written_bytes(const struct attention_options *options) {
    return options->sequence_capacity * TABLES * written_stride(options) * sizeof(struct place_delta);
}
static size_t missing_bytes(const struct attention_options *options) {
    return options->sequence_capacity * options->kv_head_count * unit_cache_place_stride(options->context_size);
}

uint64_t turns_bytes(const struct attention_options *options) {
    return options->turns && options->kept_max > 0 ? written_bytes(options) + missing_bytes(options) : 0;
}

enum status turns_create(struct turns **result, struct device *device, const struct attention_options *options,
                         struct fetch *fetch, struct error *error) {
    const struct device_operations *operations = device->operations;
    *result = NULL;
    if (turns_bytes(options) == 0 || operations->host_turn == NULL) return STATUS_OK;
    struct turns *turns = calloc(1, sizeof *turns);
    if (turns == NULL) return error_set(error, STATUS_MEMORY, "attention: out of memory");
    *turns = (struct turns){.device = device, .cache = options->cache, .fetch = fetch, .options = *options};
    turns->sequences = calloc(options->sequence_capacity, sizeof *turns->sequences);
    turns->items = calloc(options->sequence_capacity, sizeof *turns->items);
    enum status status = STATUS_OK;
    if (turns->sequences == NULL || turns->items == NULL)
        status = error_set(error, STATUS_MEMORY, "attention: out of memory");
    if (status == STATUS_OK)
        status = operations->allocate(device, MEMORY_SHARED, missing_bytes(options), &turns->missing, error);
    if (status == STATUS_OK)
        status = operations->allocate(device, MEMORY_SHARED, written_bytes(options), &turns->written, error);
    if (status == STATUS_OK)
        *result = turns;
    else
        turns_destroy(turns);
    return status;
}

void turns_destroy(struct turns *turns) {
    if (turns == NULL) return;
    turns->device->operations->release(turns->device, &turns->missing);
    turns->device->operations->release(turns->device, &turns->written);
    free(turns->sequences);
    free(turns->items);
    free(turns);
}

/* ---- the host's turn ---- */

static struct span written_of(const struct turns *turns, size_t row, bool quantized) {
    return span_of(&turns->written,
                   (row * TABLES + quantized) * written_stride(&turns->options) * sizeof(struct place_delta));
}

/* The lists of all rows and heads, but for units that the device has. */
static void plan_lists(struct turns *turns, size_t layer, size_t heads) {
    const struct turns_step *step = &turns->step;
    const struct step_list *limits = step->limits + layer * turns->rows.row_count * turns->options.kv_head_count;
    const size_t stride = unit_cache_place_stride(turns->options.context_size);
    const uint8_t *missing = step->has_slots ? turns->missing.host : NULL;
    for (size_t i = 0; i < turns->rows.row_count; i++)
        for (size_t head = 0; head < heads; head++) {
            const size_t list = i * heads + head;
            fetch_add_list(turns->fetch,
                           &(struct fetch_list){.sequence = turns->sequences[i],
                                                .index = i,
                                                .kv_head = head,
                                                .rows = (const uint32_t *)step->rows->host + list * step->list_stride,
                                                .count = limits[list].count,
                                                .missing = missing != NULL ? missing + list * stride : NULL});
        }
    turns->lists += turns->rows.row_count * heads;
}

static void plan_everything(struct turns *turns, size_t layer, size_t heads) {
    const struct attention_layer all = {.index = layer,
                                        .sequences = turns->sequences,
                                        .operation = {.kv_head_count = heads,
                                                      .window = turns->rows.windows[layer],
                                                      .items = turns->items,
                                                      .item_count = turns->rows.row_count}};
    fetch_add_everything(turns->fetch, &all);
    for (size_t i = 0; i < turns->fetch->count; i++) turns->fetch->jobs[i].request.scan = false; /* all at once */
}

static enum status bring(struct turns *turns, size_t layer, struct error *error) {
    struct fetch *fetch = turns->fetch;
    const size_t heads = kv_layer_heads(turns->options.groups, turns->options.kv_head_count, layer);
    const bool chooses = turns->rows.windows[layer] == 0 && select_layer_chooses(turns->step.select, layer);
    fetch->layer_index = layer;
    (chooses ? plan_lists : plan_everything)(turns, layer, heads);
    fetch_begin(fetch, SIZE_MAX);
    TRY(kv_tier_failure(turns->cache, error));
    turns->is_full = fetch->begun < fetch->count;
    for (size_t i = 0; i < fetch->count && !turns->is_full; i++) TRY(kv_fetch_wait(&fetch->jobs[i].request, error));
    return STATUS_OK;
}

/* Nobody takes a slot before the layer has attended: the engine's thread would, and it waits.  So chunks are pinned
 * only until all are there.  Attention behind a turn that failed reads memory that is there, and nobody uses it. */
static void take(void *context, size_t layer) {
    struct turns *turns = context;
    if (turns->failed == STATUS_OK && !turns->is_full) turns->failed = bring(turns, layer, &turns->failure);
    fetch_drop(turns->fetch);
    const bool is_lost = turns->failed != STATUS_OK || turns->is_full;
    for (size_t i = 0; i < turns->rows.row_count; i++) {
        struct kv_sequence *sequence = turns->sequences[i];
        struct place_delta *chunks = span_host(written_of(turns, i, false));
        if (is_lost)
            kv_sequence_write_cover(sequence, layer, turns->items[i].position_first, chunks);
        else
            kv_sequence_write_update(sequence, layer, false, chunks);
        if (span_exists(kv_sequence_table(sequence, true)))
            kv_sequence_write_update(sequence, layer, true, span_host(written_of(turns, i, true)));
    }
}

/* ---- a step ---- */

void turns_begin(struct turns *turns, const struct turns_step *step) {
    const size_t count = step->step->row_count;
    ASSERT(count <= turns->options.sequence_capacity);
    turns->step = *step;
    turns->rows = *step->step;
    memcpy(turns->sequences, turns->rows.sequences, count * sizeof *turns->sequences);
    memcpy(turns->items, turns->rows.items, count * sizeof *turns->items);
    turns->lists = 0;
    turns->is_full = false;
    turns->failed = STATUS_OK;
}

struct span turns_missing(const struct turns *turns) {
    return span_of(&turns->missing, 0);
}

void turns_put(struct turns *turns, struct stream *stream, size_t layer_index, struct kv_sequence *const *sequences,
               size_t row_count) {
    const struct device_operations *operations = turns->device->operations;
    operations->host_turn(stream, &(struct host_turn_operation){.take = take, .context = turns, .number = layer_index});
    for (size_t i = 0; i < row_count; i++)
        for (size_t quantized = 0; quantized < TABLES; quantized++) {
            const struct update_places_operation update = {.table = kv_sequence_table(sequences[i], quantized),
                                                           .count = written_stride(&turns->options) - 1,
                                                           .written = written_of(turns, i, quantized)};
            if (span_exists(update.table)) operations->update_places(stream, &update);
        }
}

enum status turns_end(struct turns *turns, uint64_t *lists, bool *is_full, struct error *error) {
    *lists = turns->lists;
    *is_full = turns->is_full;
    turns->is_over |= turns->is_full;
    if (turns->failed != STATUS_OK && error != NULL) *error = turns->failure;
    return turns->failed;
}

bool turns_are_over(const struct turns *turns) { return turns->is_over; }
