#include "attention/turns.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

enum { TABLES = 2 }; /* of a sequence: of chunks, and of those in 4 bits */

struct turns {
    struct device *device;            /* borrowed */
    struct kv_cache *cache;           /* borrowed */
    struct fetch *fetch;              /* borrowed */
    struct prefetch *prefetch;        /* borrowed */
    struct attention_options options; /* with what it borrows */
    /* MEMORY_SHARED: uint8_t [TURNS_LISTS][row][kv head][unit_cache_place_stride], */
    struct buffer missing;
    struct buffer told;             /* struct step_list [TURNS_LISTS][layer][row][kv head], where lists are kept, */
    struct buffer written;          /* struct place_delta [row][TABLES][written_stride] */
    struct kv_sequence **sequences; /* owned, [sequence_capacity]; of the step */
    struct attend_item *items;      /* owned, the same */
    struct turns_step step;         /* what it borrows of the step's is the two above */
    struct attention_step rows;
    struct turns_outcome outcome; /* of this step */
    bool is_over;
    enum status failed;
    struct error failure;
};

static size_t written_stride(const struct attention_options *options) {
    return 1 + options->kv_head_count * (size_t)kv_chunks_of(options->context_size);
}
static size_t written_bytes(const struct attention_options *options) {
    return options->sequence_capacity * TABLES * written_stride(options) * sizeof(struct place_delta);
}
/* Of the lists of a layer, and of those that are expected. */
static size_t missing_bytes(const struct attention_options *options) {
    return options->sequence_capacity * options->kv_head_count * unit_cache_place_stride(options->context_size);
}
static size_t told_bytes(const struct attention_options *options) {
    return options->layer_count * options->sequence_capacity * options->kv_head_count * sizeof(struct step_list);
}

uint64_t turns_bytes(const struct attention_options *options) {
    if (!options->turns || options->kept_max == 0) return 0;
    return written_bytes(options) +
           TURNS_LISTS * (missing_bytes(options) + (options->reuses ? told_bytes(options) : 0));
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
        status =
            operations->allocate(device, MEMORY_SHARED, TURNS_LISTS * missing_bytes(options), &turns->missing, error);
    if (status == STATUS_OK && options->reuses)
        status = operations->allocate(device, MEMORY_SHARED, TURNS_LISTS * told_bytes(options), &turns->told, error);
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
    turns->device->operations->release(turns->device, &turns->told);
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

/* Where fetch says which units are missing, in front of the turn. */
static struct span missing_of(const struct turns *turns, enum turns_lists of) {
    return span_of(&turns->missing, of * missing_bytes(&turns->options));
}

static size_t first_limit(const struct turns *turns, size_t layer) {
    return layer * turns->rows.row_count * turns->options.kv_head_count;
}

static struct step_list *told_of(const struct turns *turns, enum turns_lists of) {
    return span_host(turns_told(turns, of));
}

/* The limits of a layer's lists, as the device has them. */
static const struct step_list *limits_of(const struct turns *turns, size_t layer, enum turns_lists of) {
    const struct step_list *all = turns->step.keeps_lists ? told_of(turns, of) : turns->step.limits;
    return all + first_limit(turns, layer);
}

/* The lists of all rows and heads of a layer, but for units that the device has. */
static void plan_lists(const struct turns *turns, struct fetch *fetch, enum turns_lists of) {
    const struct turns_step *step = &turns->step;
    const size_t layer = fetch->layer_index, heads = heads_of(turns, layer),
                 stride = unit_cache_place_stride(turns->options.context_size);
    const struct buffer *rows = of == TURNS_EXPECTED ? step->expected : step->rows;
    const struct step_list *limits = limits_of(turns, layer, of);
    const uint8_t *missing = step->has_slots ? span_host(missing_of(turns, of)) : NULL;
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

static void plan_choice(struct turns *turns, size_t layer) {
    const struct step_list *limits = limits_of(turns, layer, TURNS_LISTED);
    plan_lists(turns, turns->fetch, TURNS_LISTED);
    turns->outcome.lists += turns->fetch->count;
    for (size_t i = 0; i < turns->fetch->count && turns->step.keeps_lists; i++)
        turns->outcome.verdicts += limits[i].use == LABEL_COMPARED;
}

/* Lists that are kept keep their chunks.  The jobs are of the layer's lists, in their order. */
static void hold_lists(struct turns *turns, size_t layer) {
    const struct step_list *limits = limits_of(turns, layer, TURNS_LISTED);
    for (size_t i = 0; i < turns->fetch->count; i++)
        kv_fetch_hold(&turns->fetch->jobs[i].request, limits[i].kept_count > 0);
}

static enum status bring(struct turns *turns, size_t layer, struct error *error) {
    struct fetch *fetch = turns->fetch;
    const bool late = prefetch_is_late(turns->prefetch);
    fetch->layer_index = layer;
    const bool chooses = turns->rows.windows[layer] == 0 && select_layer_chooses(turns->step.select, layer);
    if (chooses)
        plan_choice(turns, layer);
    else
        plan_everything(turns, layer);
    fetch_begin(fetch, SIZE_MAX);
    if (fetch->begun < fetch->count) { /* what holds the slots is ahead of its time */
        prefetch_drop(turns->prefetch);
        fetch_begin(fetch, SIZE_MAX);
    }
    TRY(kv_tier_failure(turns->cache, error));
    turns->outcome.is_full = fetch->begun < fetch->count;
    for (size_t i = 0; i < fetch->count && !turns->outcome.is_full; i++)
        TRY(kv_fetch_wait(&fetch->jobs[i].request, error));
    if (chooses && turns->step.keeps_lists && !turns->outcome.is_full) hold_lists(turns, layer);
    prefetch_settle(turns->prefetch, fetch, late);
    return STATUS_OK;
}

/* The reads of what the next layer is expected to list begin. */
static void expect(struct turns *turns, size_t next) {
    struct prefetch *prefetch = turns->prefetch;
    if (!prefetch_plans(prefetch, next)) return;
    plan_lists(turns, &prefetch->next, TURNS_EXPECTED);
    for (size_t i = 0; i < prefetch->next.count; i++) {
        struct fetch_job *job = &prefetch->next.jobs[i];
        prefetch_leave_out_growing(job, turns->items[job->index].position_first);
    }
    prefetch_begin_expected(prefetch);
}

static bool is_lost(const struct turns *turns) { return turns->failed != STATUS_OK || turns->outcome.is_full; }

/* Layers from this one on choose nothing. */
static void end_choosing(struct turns *turns, size_t layer) {
    turns->outcome.layer_count = layer;
    if (!turns->step.keeps_lists) return;
    struct step_list *limits = told_of(turns, TURNS_LISTED);
    for (size_t i = first_limit(turns, layer); i < first_limit(turns, turns->options.layer_count); i++) {
        limits[i].use = LABEL_STAYS;
        limits[i].count -= limits[i].picks;
        limits[i].picks = 0;
    }
}

/* Chunks stay until the next turn: what is read ahead takes the slots of others.  Attention behind a turn that failed
 * reads memory that is there, and nobody uses it. */
static void take(void *context, size_t number) {
    struct turns *turns = context;
    const size_t layer = number / 2;
    fetch_drop(turns->fetch); /* the layer before has attended */
    prefetch_hold(turns->prefetch, layer);
    if (!is_lost(turns)) {
        turns->failed = bring(turns, layer, &turns->failure);
        if (is_lost(turns)) end_choosing(turns, layer + 1);
    }
    for (size_t i = 0; i < turns->rows.row_count; i++) {
        struct kv_sequence *sequence = turns->sequences[i];
        struct place_delta *chunks = span_host(written_of(turns, i, false));
        if (is_lost(turns))
            kv_sequence_write_cover(sequence, layer, turns->items[i].position_first, chunks);
        else
            kv_sequence_write_update(sequence, layer, false, chunks);
        if (span_exists(kv_sequence_table(sequence, true)))
            kv_sequence_write_update(sequence, layer, true, span_host(written_of(turns, i, true)));
    }
    if (!is_lost(turns) && number % 2 != 0) expect(turns, layer + 1);
}

/* ---- a step ---- */

void turns_begin(struct turns *turns, const struct turns_step *step) {
    const size_t count = step->step->row_count;
    ASSERT(count <= turns->options.sequence_capacity);
    turns->step = *step;
    turns->rows = *step->step;
    memcpy(turns->sequences, turns->rows.sequences, count * sizeof *turns->sequences);
    memcpy(turns->items, turns->rows.items, count * sizeof *turns->items);
    turns->outcome = (struct turns_outcome){.layer_count = turns->options.layer_count};
    turns->failed = STATUS_OK;
    for (enum turns_lists of = 0; of < TURNS_LISTS && step->keeps_lists; of++)
        memcpy(told_of(turns, of), step->limits, first_limit(turns, turns->options.layer_count) * sizeof *step->limits);
}

struct span turns_told(const struct turns *turns, enum turns_lists of) {
    if (!buffer_exists(&turns->told)) return (struct span){.buffer = NULL};
    return span_of(&turns->told, of * told_bytes(&turns->options));
}

/* expects: prefetch's choice is the next layer's by then. */
static void put(struct turns *turns, struct stream *stream, const struct attention_layer *layer, bool expects) {
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

void turns_put(struct turns *turns, struct stream *stream, const struct attention_layer *layer) {
    put(turns, stream, layer, false);
}

static void say_missing(const struct turns *turns, struct stream *stream, struct unit_cache *units,
                        const struct unit_lists *listed, enum turns_lists of) {
    struct unit_lists asked = *listed;
    if (units == NULL) return;
    asked.missing = missing_of(turns, of);
    unit_cache_fetch(units, stream, &asked);
}

enum status turns_put_choice(struct turns *turns, struct stream *stream, const struct attention_layer *layer,
                             struct unit_cache *units, const struct unit_lists *listed, struct error *error) {
    const struct choice *next = &turns->prefetch->choice;
    struct unit_lists expected = *listed; /* of the same rows */
    bool expects;
    say_missing(turns, stream, units, listed, TURNS_LISTED);
    TRY(prefetch_put(turns->prefetch, stream, turns->step.select, layer, &expects, error));
    if (expects) {
        expected.layer_index = next->layer_index;
        expected.items = next->chosen;
        expected.head_count = next->kv_head_count;
        expected.at = choice_step_lists(next);
        ASSERT(next->chosen_count == turns->rows.row_count);
        say_missing(turns, stream, units, &expected, TURNS_EXPECTED);
    }
    put(turns, stream, layer, expects);
    return STATUS_OK;
}

enum status turns_end(struct turns *turns, struct turns_outcome *outcome, struct error *error) {
    fetch_drop(turns->fetch);
    *outcome = turns->outcome;
    turns->is_over |= outcome->is_full;
    if (turns->failed != STATUS_OK && error != NULL) *error = turns->failure;
    return turns->failed;
}

bool turns_are_over(const struct turns *turns) { return turns->is_over; }
