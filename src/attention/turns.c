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
    struct prefetch *prefetch;        /* borrowed */
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
                         struct fetch *fetch, struct prefetch *prefetch, struct error *error) {
    const struct device_operations *operations = device->operations;
    *result = NULL;
    if (turns_bytes(options) == 0 || operations->host_turn == NULL) return STATUS_OK;
    struct turns *turns = calloc(1, sizeof *turns);
    if (turns == NULL) return error_set(error, STATUS_MEMORY, "attention: out of memory");
    *turns = (struct turns){
        .device = device, .cache = options->cache, .fetch = fetch, .prefetch = prefetch, .options = *options};
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

static size_t heads_of(const struct turns *turns, size_t layer) {
    return kv_layer_heads(turns->options.groups, turns->options.kv_head_count, layer);
}

static struct span written_of(const struct turns *turns, size_t row, bool quantized) {
    return span_of(&turns->written,
                   (row * TABLES + quantized) * written_stride(&turns->options) * sizeof(struct place_delta));
}

/* The lists of all rows and heads of a layer; missing: but for units that the device has; NULL: it has none. */
static void plan_lists(const struct turns *turns, struct fetch *fetch, const struct buffer *rows,
                       const uint8_t *missing) {
    const struct turns_step *step = &turns->step;
    const size_t layer = fetch->layer_index, heads = heads_of(turns, layer),
                 stride = unit_cache_place_stride(turns->options.context_size);
    const struct step_list *limits = step->limits + layer * turns->rows.row_count * turns->options.kv_head_count;
    for (size_t i = 0; i < turns->rows.row_count; i++)
        for (size_t head = 0; head < heads; head++) {
            const size_t list = i * heads + head;
            fetch_add_list(fetch, &(struct fetch_list){.sequence = turns->sequences[i],
                                                       .index = i,
                                                       .kv_head = head,
                                                       .rows = (const uint32_t *)rows->host + list * step->list_stride,
                                                       .count = limits[list].count,
                                                       .missing = missing != NULL ? missing + list * stride : NULL});
        }
}

static void plan_everything(const struct turns *turns, size_t layer) {
    const struct attention_layer all = {.index = layer,
                                        .sequences = turns->sequences,
                                        .operation = {.kv_head_count = heads_of(turns, layer),
                                                      .window = turns->rows.windows[layer],
                                                      .items = turns->items,
                                                      .item_count = turns->rows.row_count}};
    fetch_add_everything(turns->fetch, &all);
    for (size_t i = 0; i < turns->fetch->count; i++) turns->fetch->jobs[i].request.scan = false; /* all at once */
}

static enum status bring(struct turns *turns, size_t layer, struct error *error) {
    struct fetch *fetch = turns->fetch;
    const bool late = prefetch_is_late(turns->prefetch);
    fetch->layer_index = layer;
    if (turns->rows.windows[layer] == 0 && select_layer_chooses(turns->step.select, layer)) {
        plan_lists(turns, fetch, turns->step.rows, turns->step.has_slots ? turns->missing.host : NULL);
        turns->lists += fetch->count;
    } else {
        plan_everything(turns, layer);
    }
    fetch_begin(fetch, SIZE_MAX);
    if (fetch->begun < fetch->count) { /* what holds the slots is ahead of its time */
        prefetch_drop(turns->prefetch);
        fetch_begin(fetch, SIZE_MAX);
    }
    TRY(kv_tier_failure(turns->cache, error));
    turns->is_full = fetch->begun < fetch->count;
    for (size_t i = 0; i < fetch->count && !turns->is_full; i++) TRY(kv_fetch_wait(&fetch->jobs[i].request, error));
    prefetch_settle(turns->prefetch, fetch, late);
    return STATUS_OK;
}

/* The reads of what the next layer is expected to list begin. */
static void expect(struct turns *turns, size_t next) {
    struct prefetch *prefetch = turns->prefetch;
    if (!prefetch_plans(prefetch, next)) return;
    plan_lists(turns, &prefetch->next, prefetch->choice.rows, NULL);
    for (size_t i = 0; i < prefetch->next.count; i++) {
        struct fetch_job *job = &prefetch->next.jobs[i];
        prefetch_leave_out_growing(job, turns->items[job->index].position_first);
    }
    prefetch_begin_expected(prefetch);
}

/* Chunks stay until the next turn: what is read ahead takes the slots of others.  Attention behind a turn that failed
 * reads memory that is there, and nobody uses it. */
static void take(void *context, size_t number) {
    struct turns *turns = context;
    const size_t layer = number / 2;
    fetch_drop(turns->fetch); /* the layer before has attended */
    prefetch_hold(turns->prefetch, layer);
    if (turns->failed == STATUS_OK && !turns->is_full) turns->failed = bring(turns, layer, &turns->failure);
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
    if (!is_lost && number % 2 != 0) expect(turns, layer + 1);
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

void turns_put(struct turns *turns, struct stream *stream, const struct attention_layer *layer, bool expects) {
    const struct device_operations *operations = turns->device->operations;
    operations->host_turn(
        stream, &(struct host_turn_operation){.take = take, .context = turns, .number = 2 * layer->index + expects});
    for (size_t i = 0; i < layer->operation.item_count; i++)
        for (size_t quantized = 0; quantized < TABLES; quantized++) {
            const struct update_places_operation update = {.table = kv_sequence_table(layer->sequences[i], quantized),
                                                           .count = written_stride(&turns->options) - 1,
                                                           .written = written_of(turns, i, quantized)};
            if (span_exists(update.table)) operations->update_places(stream, &update);
        }
}

enum status turns_end(struct turns *turns, uint64_t *lists, bool *is_full, struct error *error) {
    fetch_drop(turns->fetch);
    *lists = turns->lists;
    *is_full = turns->is_full;
    turns->is_over |= turns->is_full;
    if (turns->failed != STATUS_OK && error != NULL) *error = turns->failure;
    return turns->failed;
}

bool turns_are_over(const struct turns *turns) { return turns->is_over; }
