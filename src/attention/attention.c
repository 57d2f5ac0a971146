/* attention: a step's whole way through a layer, in the order in which it happens.
 *
 *   append     attention_append: K and V of the new rows are stored, and what selection reads in place of keys is built
 *   choose     select.c: scores by that, and the best of the context into lists, one per row and KV head (choice.h);
 *              reuse.c: heads whose queries are as they were take the list that they have
 *   fetch      fetch.c: where KV is in tiers, the chunks that the lists lie in come from the disk, head by head;
 *              cache/unit_cache.c: a device that has memory of its own fetches units from the host's into slots
 *   prefetch   prefetch.c: meanwhile the next layer's choice is expected, and its chunks are read while heads attend
 *   attend     select.c, the device's attend_rows: partials over the lists, in ranges that follow from lengths alone
 *   release    fetch_release: a head that has attended lets its chunks go
 *   write      attention_end_layer: chunks that are full go to the disk behind the computation
 *
 * Where all KV is in memory there is nothing to fetch, prefetch, release or write.  Rows whose context is short, layers
 * below dense_layers, sliding windows and prompts attend to everything; the first by lists of everything where others
 * choose in a graph.  Several rows of a sequence that choose go in parts of a few rows, as many as there are lists for.
 */
#include "attention/attention.h"

#include <stdlib.h>
#include <string.h>

#include "attention/bus_rebuild.h"
#include "attention/dial.h"
#include "attention/reuse.h"
#include "attention/tiered.h"
#include "attention/turns.h"
#include "attention/units.h"
#include "attention/watch.h"
#include "base/assert.h"
#include "base/layout.h"
#include "cache/kv_watch.h"
#include "cache/unit_cache.h"
#include "platform/clock.h"

enum { PART_ROWS_MIN = 8, PART_ROWS_MAX = 64 }; /* all KV in memory */
static const uint64_t PART_LIST_ROWS = 1 << 24;
enum { STEP_TOKENS_MIN = 128 };

/* Rows that choose together, an item each. */
struct part {
    struct attend_item *items; /* owned; [capacity] */
    struct kv_sequence **sequences;
    const struct select_rule **rules;
    size_t capacity, count;
};

/* The queries that a layer is expected to have, as the layer before it had them to say. */
struct expected {
    bool is_known;
    size_t layer_index;
    struct attend_operation operation;
};

/* Of a step as a graph; of the present selection. */
struct step_limits {
    struct step_list *list; /* owned, [layer][row of the step][kv head]; NULL: there was none */
    struct buffer buffer;   /* the same on the device */
    size_t list_stride;
    uint64_t tokens;  /* as attention_shape's */
    bool looks;       /* the same */
    bool are_planned; /* they are of the step that was prepared last */
};

struct attention {
    struct device *device; /* borrowed */
    struct select *select; /* borrowed; NULL: everything is attended to */
    struct reuse *reuse;   /* owned; NULL: every row chooses anew */
    struct expected expected;
    struct tiered *tiered;                /* owned; NULL: all KV is in memory */
    struct turns *turns;                  /* owned; NULL: steps above a disk are no graphs */
    bool has_turns;                       /* the graph that was launched last */
    size_t counted_layers;                /* of a step that is run again: what they choose is counted already */
    struct bus_rebuild *bus;              /* owned; NULL: K and V that the device reads in RAM are all read */
    struct unit_cache *units;             /* owned; NULL: the device has no slots for units */
    uint64_t *generations;                /* owned, [sequence_capacity]; with units */
    struct step_limits limits;            /* owned */
    struct select_statistics before_step; /* what was counted before the one that was prepared last */
    struct attention_options options;
    struct choice choice; /* owned; of the layer that attends, or attended last */
    struct part part;     /* owned */
    select_observer *observer;
    void *observer_context;
    float *event_q; /* owned, [head_count][k_dimension]; for the observer; NULL until there was one */
    bool failed;    /* since the step began */
    struct error failure;
};

/* ---- life ---- */

/* Rows of a part. */
static size_t part_rows(const struct attention_options *options) {
    if (options->cache != NULL) return tiered_row_capacity(options);
    uint64_t row = max_size(options->kv_head_count, 1) * (options->context_size + 1);
    uint64_t rows = PART_LIST_ROWS / row;
    return rows < PART_ROWS_MIN ? PART_ROWS_MIN : rows > PART_ROWS_MAX ? PART_ROWS_MAX : (size_t)rows;
}

/* Of all lists of so many rows together, at most; 0: they grow with what is asked for. */
static uint64_t list_rows(const struct attention_options *options, size_t rows) {
    return options->cache != NULL ? rows * options->kv_head_count * options->kept_max : 0;
}

static struct reuse_shape reuse_shape_of(const struct attention_options *options, size_t rows) {
    return (struct reuse_shape){.layer_count = options->layer_count,
                                .head_count = options->head_count,
                                .kv_head_count = options->kv_head_count,
                                .k_dimension = options->k_dimension,
                                .groups = options->groups,
                                .sequence_capacity = options->sequence_capacity,
                                .row_capacity = rows,
                                .list_rows = options->cache != NULL ? options->kept_max : 0};
}

static uint64_t dial_state_bytes(const struct attention_options *options) {
    const struct dial_shape dial = {.layer_count = options->layer_count,
                                    .kv_head_count = options->kv_head_count,
                                    .groups = options->groups,
                                    .sequence_capacity = options->sequence_capacity};
    return options->dials ? dial_bytes(&dial) : 0;
}

/* Of the choice that is made ahead: it takes the other's place where it is decided. */
static size_t next_rows(const struct attention_options *options, size_t rows) {
    return options->reuses ? rows : options->sequence_capacity;
}

static void place_part(struct part *part, struct layout *layout, size_t rows) {
    part->items = layout_take(layout, rows, sizeof *part->items);
    part->sequences = layout_take(layout, rows, sizeof *part->sequences);
    part->rules = layout_take(layout, rows, sizeof *part->rules);
}

uint64_t attention_bytes(const struct attention_options *options) {
    uint64_t rows = tiered_row_capacity(options);
    struct reuse_shape reuse = reuse_shape_of(options, rows);
    reuse.list_rows = options->kept_max;
    struct part part;
    struct layout layout = {0};
    place_part(&part, &layout, rows);
    uint64_t choosing = rows + (options->prefetches ? next_rows(options, rows) : 0);
    uint64_t lists = choosing * options->kv_head_count * options->kept_max * sizeof(uint32_t);
    return tiered_bytes(options) + turns_bytes(options) + layout.used + lists + dial_state_bytes(options) +
           (options->reuses ? reuse_bytes(&reuse) : 0);
}

enum status attention_create(struct attention **result, struct device *device, const struct attention_options *options,
                             struct error *error) {
    struct attention *attention = calloc(1, sizeof *attention);
    *result = NULL;
    if (attention == NULL) return error_set(error, STATUS_MEMORY, "attention: out of memory");
    *attention = (struct attention){.device = device, .options = *options};
    struct part *part = &attention->part;
    part->capacity = part_rows(options);
    struct layout layout = {0};
    place_part(part, &layout, part->capacity);
    layout = (struct layout){.memory = calloc(1, layout.used)};
    if (layout.memory != NULL) place_part(part, &layout, part->capacity);
    enum status status = STATUS_OK;
    if (layout.memory == NULL) status = error_set(error, STATUS_MEMORY, "attention: out of memory");
    if (status == STATUS_OK && options->cache != NULL)
        status = tiered_create(&attention->tiered, device, options, error);
    if (status == STATUS_OK && attention->tiered != NULL)
        status = turns_create(&attention->turns, device, options, &attention->tiered->now, &attention->tiered->prefetch,
                              error);
    else if (status == STATUS_OK && options->rebuild.chunks > 0)
        status = bus_rebuild_create(&attention->bus, device, options, error);
    if (status == STATUS_OK)
        *result = attention;
    else
        attention_destroy(attention);
    return status;
}

static void drop_limits(struct attention *attention) {
    free(attention->limits.list);
    attention->device->operations->release(attention->device, &attention->limits.buffer);
    attention->limits = (struct step_limits){.list = NULL};
}

void attention_destroy(struct attention *attention) {
    if (attention == NULL) return;
    turns_destroy(attention->turns);
    tiered_destroy(attention->tiered);
    bus_rebuild_destroy(attention->bus);
    unit_cache_destroy(attention->units);
    free(attention->generations);
    drop_limits(attention);
    choice_deinit(&attention->choice);
    reuse_destroy(attention->reuse);
    free(attention->part.items); /* the others lie behind them */
    free(attention->event_q);
    free(attention);
}

enum status attention_create_lists(struct attention *attention, uint64_t bytes, struct error *error) {
    if (attention->tiered == NULL || bytes == 0) return STATUS_OK;
    return tiered_create_lists(attention->tiered, &attention->options, bytes, error);
}

void attention_drop_select(struct attention *attention) {
    attention->select = NULL;
    attention->observer = NULL;
    choice_deinit(&attention->choice);
    unit_cache_destroy(attention->units);
    attention->units = NULL;
    drop_limits(attention);
    reuse_destroy(attention->reuse);
    attention->reuse = NULL;
    attention->expected.is_known = false;
    if (attention->tiered == NULL) return;
    choice_deinit(&attention->tiered->prefetch.choice);
    attention->tiered->prefetch.reuse = NULL;
    attention->tiered->prefetch.decides = attention->tiered->prefetch.is_decided = false;
}

enum status attention_set_select(struct attention *attention, struct select *select, struct error *error) {
    const struct attention_options *options = &attention->options;
    struct choice_options own = {.kv_head_count = options->kv_head_count,
                                 .row_capacity = attention->part.capacity,
                                 .host_reads = attention->tiered != NULL,
                                 .list_rows = list_rows(options, attention->part.capacity)};
    attention_drop_select(attention);
    if (select == NULL) return STATUS_OK;
    own.tree_layers = select_tree_layers(select);
    TRY(choice_init(&attention->choice, attention->device, &own, error));
    const struct reuse_options *reuse = &select_get_options(select)->reuse;
    if (reuse->kind == REUSE_SIMILARITY) {
        struct reuse_shape shape = reuse_shape_of(options, attention->part.capacity);
        shape.device = attention->device;
        TRY(reuse_create(&attention->reuse, &shape, reuse, select_head_importance(select),
                         select_reuse_thresholds(select), error));
    }
    attention->select = select;
    if (attention->tiered == NULL || !options->prefetches || options->kept_max == 0) return STATUS_OK;
    own.row_capacity = next_rows(options, attention->part.capacity);
    own.list_rows = list_rows(options, own.row_capacity);
    const bool decides = attention->reuse != NULL && reuse_speculates(attention->reuse);
    attention->tiered->prefetch.reuse = attention->reuse;
    attention->tiered->prefetch.decides = decides;
    return choice_init(&attention->tiered->prefetch.choice, attention->device, &own, error);
}

const double *attention_reuse_thresholds(const struct attention *attention) {
    return attention->reuse != NULL ? reuse_thresholds(attention->reuse) : NULL;
}

enum status attention_create_units(struct attention *attention, const uint32_t *whole, size_t whole_count,
                                   struct error *error) {
    const struct attention_options *options = &attention->options;
    TRY(units_create(&attention->units, attention->device, options, attention->select, whole, whole_count, error));
    if (attention->units == NULL || attention->generations != NULL) return STATUS_OK;
    attention->generations = calloc(options->sequence_capacity, sizeof *attention->generations);
    return attention->generations != NULL ? STATUS_OK
                                          : error_set(error, STATUS_MEMORY, "attention: out of memory");
}

size_t attention_whole_heads(const struct attention *attention) { return unit_cache_whole_count(attention->units); }

void attention_choose_anew(struct attention *attention, const bool *heads) {
    if (attention->reuse == NULL) return;
    reuse_choose_anew(attention->reuse, heads);
    if (attention->tiered != NULL) attention->tiered->prefetch.decides = false; /* without their own queries */
}

bool attention_watches_prefill(const struct attention *attention) {
    return attention->select != NULL && select_watches_prefill(attention->select);
}

/* ---- begin, append ---- */

/* The layer attends to the KV of another one, and has none of its own. */
static bool stores_nothing(const struct attention *attention, const struct attention_rows *rows) {
    return kv_layer_source(attention->options.groups, rows->layer_index) != rows->layer_index;
}

enum status attention_begin_layer(struct attention *attention, const struct attention_rows *rows, struct error *error) {
    if (attention->tiered == NULL || stores_nothing(attention, rows)) return STATUS_OK;
    return tiered_open_rows(attention->tiered, rows, error);
}

/* The first failure of a step, which attention_end_layer returns. */
static void note(struct attention *attention, enum status status, const struct error *error) {
    if (status == STATUS_OK || attention->failed) return;
    attention->failed = true;
    attention->failure = *error;
}

void attention_fail(struct attention *attention, const struct error *error) { note(attention, error->status, error); }

/* A graph is being captured. */
static bool is_captured(const struct attention *attention) { return span_exists(attention->choice.captured.limits); }

/* Above a disk: the host has its turns, and nothing else to do in a layer. */
static bool turns_suffice(const struct attention *attention) {
    const struct tiered *tiered = attention->tiered;
    return attention->turns != NULL && !turns_are_over(attention->turns) && attention->select != NULL &&
           (attention->reuse == NULL || span_exists(turns_told(attention->turns, TURNS_LISTED))) &&
           tiered->rebuild == NULL && tiered->lists == NULL &&
           !kv_cache_get_config(attention->options.cache)->key_index_on_disk;
}

bool attention_fits_graphs(const struct attention *attention) {
    if (attention->observer != NULL || (attention->tiered != NULL && !turns_suffice(attention))) return false;
    if (attention->reuse != NULL && !reuse_fits_graphs(attention->reuse)) return false;
    return attention->select == NULL || select_fits_graphs(attention->select);
}

/* Of lists that are kept above a disk limits come from where the host sees them. */
static bool tells(const struct attention *attention) { return attention->turns != NULL && attention->reuse != NULL; }

/* Limits of all lists of a step, and memory for lists that grow to the whole context. */
static enum status reserve_step(struct attention *attention, struct stream *stream, size_t row_count,
                                struct error *error) {
    const struct attention_options *options = &attention->options;
    struct step_limits *own = &attention->limits;
    const size_t count = options->layer_count * options->sequence_capacity * options->kv_head_count;
    if (own->list == NULL) own->list = calloc(count, sizeof *own->list);
    if (own->list == NULL) return error_set(error, STATUS_MEMORY, "attention: out of memory");
    if (!buffer_exists(&own->buffer))
        TRY(attention->device->operations->allocate(attention->device, MEMORY_DEVICE, count * sizeof *own->list,
                                                    &own->buffer, error));
    own->list_stride = align_up((size_t)kv_chunks_of(options->context_size) * KV_CHUNK_TOKENS, 16);
    if (attention->tiered != NULL) own->list_stride = (size_t)options->kept_max; /* of which there is memory */
    return choice_reserve(&attention->choice, stream, row_count * options->kv_head_count * own->list_stride, error);
}

/* A layer of a step, as it is asked what it chooses. */
struct step_query {
    struct attend_operation operation;
    struct choice_query query;
    struct step_list *limits;
};
static void step_query_init(struct step_query *layer, const struct attention *attention,
                            const struct attention_step *step, size_t index) {
    const struct attention_options *options = &attention->options;
    layer->operation =
        (struct attend_operation){.kv_head_count = kv_layer_heads(options->groups, options->kv_head_count, index),
                                  .window = step->windows[index],
                                  .items = step->items,
                                  .item_count = step->row_count};
    layer->query = (struct choice_query){
        .layer_index = index, .operation = &layer->operation, .rules = step->rules, .sequences = step->sequences};
    layer->limits = attention->limits.list + index * step->row_count * options->kv_head_count;
}

/* Some row chooses; *fits false: another one, which sees everything, has more of it than slots; or, above a disk, where
 * a list takes chunks in 4 bits and such a row does not. */
static bool some_choose(const struct attention *attention, const struct attention_step *step, bool *fits) {
    const uint64_t most = attention->tiered != NULL  ? 0
                          : attention->units != NULL ? unit_cache_tokens(attention->units)
                                                     : UINT64_MAX;
    uint64_t seen = 0;
    bool chooses = false;
    for (size_t i = 0; i < step->row_count; i++) {
        const uint64_t position = step->items[i].position_first;
        if (!select_row_sees_all(attention->select, step->rules[i], position))
            chooses = true;
        else if (position >= seen)
            seen = position + 1;
    }
    *fits = *fits && (!chooses || seen <= most);
    return chooses;
}

/* The limits of all layers' lists; chooses: in the last layer that may. */
static enum status plan_step(struct attention *attention, struct stream *stream, const struct attention_step *step,
                             struct attention_shape *kind, struct error *error) {
    struct choice *choice = &attention->choice;
    for (size_t index = 0; index < attention->options.layer_count; index++) {
        struct step_query layer;
        step_query_init(&layer, attention, step, index);
        if (select_limits(attention->select, &layer.query, choice, layer.limits)) kind->looks = true;
        if (choice->everything) continue;
        kind->chooses = choice->chosen_count != 0;
        if (attention->reuse != NULL)
            TRY(reuse_limits(attention->reuse, stream, &layer.query, choice, layer.limits, &kind->lists[2], error));
    }
    return STATUS_OK;
}

/* A power of two: a graph lasts while sequences double, and at most twice what is needed is launched. */
static uint64_t tokens_of(const struct attention_step *step) {
    uint64_t tokens = STEP_TOKENS_MIN;
    for (size_t i = 0; i < step->row_count; i++)
        while (tokens <= step->items[i].position_first) tokens *= 2;
    return tokens;
}

static bool is_watched(const struct attention_step *step) {
    for (size_t i = 0; i < step->row_count; i++)
        if (kv_sequence_is_watched(step->sequences[i])) return true;
    return false;
}

/* Of a layer, the first one. */
static struct attention_rows rows_of_step(struct attention *attention, const struct attention_step *step) {
    ASSERT(step->row_count <= attention->part.capacity);
    memcpy(attention->part.items, step->items, step->row_count * sizeof *step->items);
    return (struct attention_rows){
        .sequences = step->sequences, .items = attention->part.items, .item_count = step->row_count};
}

enum status attention_open_step(struct attention *attention, const struct attention_step *step, struct error *error) {
    const struct attention_options *options = &attention->options;
    struct attention_rows rows = rows_of_step(attention, step);
    for (; rows.layer_index < options->layer_count; rows.layer_index++)
        if (kv_layer_heads(options->groups, options->kv_head_count, rows.layer_index) > 0)
            TRY(attention_begin_layer(attention, &rows, error));
    return STATUS_OK;
}

enum status attention_prepare_step(struct attention *attention, struct stream *stream,
                                   const struct attention_step *step, struct attention_shape *kind, uint64_t *places,
                                   bool *fits, struct error *error) {
    const struct attention_options *options = &attention->options;
    struct choice *choice = &attention->choice;
    attention->before_step = choice->statistics;
    memset(places, 0, step->row_count * sizeof *places);
    *kind = (struct attention_shape){.chooses = false};
    *fits = attention->tiered == NULL;
    attention->limits.are_planned = attention->has_turns = false;
    if (attention->bus != NULL) bus_rebuild_prepare(attention->bus, stream, step, places, fits);
    if (attention->select == NULL || step->rules == NULL) return STATUS_OK;
    *fits = true;
    TRY(reserve_step(attention, stream, step->row_count, error));
    choice->lists_everything = some_choose(attention, step, fits);
    const enum status planned = plan_step(attention, stream, step, kind, error);
    choice->lists_everything = false;
    TRY(planned);
    *fits = *fits && !(kind->chooses && is_watched(step)) && (kind->chooses || attention->tiered == NULL);
    if (!*fits || !kind->chooses) return STATUS_OK;
    attention->limits.are_planned = true;
    kind->lists[0] = choice->rows->address;
    kind->lists[1] = attention->limits.buffer.address;
    kind->tokens = attention->limits.tokens = tokens_of(step);
    attention->limits.looks = kind->looks;
    if (!tells(attention))
        attention->device->operations->upload(stream, span_of(&attention->limits.buffer, 0), attention->limits.list,
                                              options->layer_count * step->row_count * options->kv_head_count *
                                                  sizeof *attention->limits.list);
    if (attention->units != NULL) {
        for (size_t i = 0; i < step->row_count; i++)
            attention->generations[i] = kv_sequence_generation(step->sequences[i]);
        ASSERT(units_keep_forms(options, attention->select, step));
        unit_cache_show(attention->units, stream, attention->generations, step->row_count, places);
    }
    if (attention->turns != NULL)
        turns_begin(attention->turns, &(struct turns_step){.step = step,
                                                           .select = attention->select,
                                                           .limits = attention->limits.list,
                                                           .rows = choice->rows,
                                                           .expected = attention->tiered->prefetch.choice.rows,
                                                           .list_stride = attention->limits.list_stride,
                                                           .has_slots = attention->units != NULL,
                                                           .keeps_lists = tells(attention)});
    for (size_t i = 0; i < step->row_count && attention->reuse != NULL; i++)
        places[i] = places[i] * options->sequence_capacity + kv_sequence_index(step->sequences[i]);
    return STATUS_OK;
}

void attention_uncount_step(struct attention *attention) { attention->choice.statistics = attention->before_step; }

/* The first layers' lists are as they were planned. */
static void note_lists(struct attention *attention, const struct attention_step *step, size_t layer_count) {
    for (size_t index = 0; index < layer_count; index++) {
        struct step_query layer;
        step_query_init(&layer, attention, step, index);
        if (layer.operation.window == 0 && select_layer_chooses(attention->select, index))
            reuse_note_step(attention->reuse, &layer.query, layer.limits);
    }
}

void attention_note_step(struct attention *attention, struct stream *stream, const struct attention_step *step) {
    attention->has_turns = attention->turns != NULL;
    if (attention->reuse == NULL || !attention->limits.are_planned) return;
    /* Above a disk a turn may fail, and none of the layers behind it then has other lists. */
    if (!attention->has_turns) note_lists(attention, step, attention->options.layer_count);
    reuse_read_counts(attention->reuse, stream, step->row_count);
}

/* The step is run again.  Lists that are kept were counted by the device, as far as they were chosen: where they are
 * chosen once more all of them are taken. */
static void count_again(struct attention *attention, const struct attention_step *step, size_t layer_count) {
    attention_uncount_step(attention);
    if (attention->reuse == NULL) return;
    for (size_t index = 0; index < layer_count; index++) {
        struct step_query layer;
        step_query_init(&layer, attention, step, index);
        (void)select_limits(attention->select, &layer.query, &attention->choice, layer.limits);
    }
    attention->counted_layers = layer_count;
}

void attention_end_units(struct attention *attention, bool is_lost) {
    if (attention->units != NULL) unit_cache_end_step(attention->units, is_lost);
}

enum status attention_settle_step(struct attention *attention, const struct attention_step *step, bool *again,
                                  struct error *error) {
    const struct attention_options *options = &attention->options;
    struct attention_rows rows = rows_of_step(attention, step);
    struct turns_outcome outcome;
    *again = false;
    if (!attention->has_turns) return STATUS_OK;
    attention->has_turns = false;
    const enum status status = turns_end(attention->turns, &outcome, error);
    *again = outcome.is_full;
    if (*again) attention_end_units(attention, true); /* it attended to other memory */
    if (attention->reuse != NULL) note_lists(attention, step, outcome.layer_count);
    TRY(status);
    if (*again) count_again(attention, step, outcome.layer_count);
    attention->choice.statistics.verdicts_read += outcome.verdicts;
    if (*again) return STATUS_OK;
    attention->choice.statistics.lists_read += outcome.lists;
    for (; rows.layer_index < options->layer_count; rows.layer_index++)
        if (kv_layer_heads(options->groups, options->kv_head_count, rows.layer_index) > 0 &&
            !stores_nothing(attention, &rows))
            TRY(tiered_write_rows(attention->tiered, &rows, error));
    return STATUS_OK;
}

static void capture_choice(struct choice *choice, const struct step_lists *lists, struct span told,
                           size_t list_stride) {
    choice->captured = *lists;
    choice->told = told;
    choice->list_stride = list_stride;
}

void attention_begin_capture(struct attention *attention) {
    if (attention->limits.list == NULL) return; /* dense */
    /* Where they are told those of a layer are first what is expected of it, and then its own. */
    const struct step_lists lists = {.limits = span_of(&attention->limits.buffer, 0),
                                     .tokens = attention->limits.tokens,
                                     .looks = attention->limits.looks};
    const struct span none = {.buffer = NULL};
    const bool is_told = tells(attention);
    capture_choice(&attention->choice, &lists, is_told ? turns_told(attention->turns, TURNS_LISTED) : none,
                   attention->limits.list_stride);
    if (attention->tiered != NULL)
        capture_choice(&attention->tiered->prefetch.choice, &lists,
                       is_told ? turns_told(attention->turns, TURNS_EXPECTED) : none, attention->limits.list_stride);
    attention->choice.lists_everything = attention->limits.are_planned;
}

void attention_end_capture(struct attention *attention) {
    attention->choice.lists_everything = false;
    const struct step_lists none = {.step = {.buffer = NULL}};
    capture_choice(&attention->choice, &none, none.step, 0);
    if (attention->tiered != NULL) capture_choice(&attention->tiered->prefetch.choice, &none, none.step, 0);
}

void attention_show_layer(struct stream *stream, const struct attention_rows *rows) {
    for (size_t i = 0; i < rows->item_count; i++) {
        struct attend_item *item = &rows->items[i];
        item->view = kv_sequence_view(rows->sequences[i], stream, rows->layer_index);
        ASSERT(item->position_first + item->row_count <= item->view.chunk_stride * KV_CHUNK_TOKENS);
    }
}

void attention_watch_layer(const struct attention_rows *rows, uint64_t window) {
    const struct attend_operation operation = {
        .kv_head_count = rows->kv_head_count, .window = window, .items = rows->items, .item_count = rows->item_count};
    watch_everything(&operation, rows->sequences, rows->layer_index, 0);
}

void attention_append(struct attention *attention, struct stream *stream, const struct attention_rows *rows) {
    attention_show_layer(stream, rows);
    if (is_captured(attention)) attention->choice.captured.step = rows->step;
    if (is_captured(attention) && attention->tiered != NULL)
        attention->tiered->prefetch.choice.captured.step = rows->step;
    if (stores_nothing(attention, rows)) return;
    attention->device->operations->append(stream, &(struct append_operation){.k = rows->k,
                                                                             .v = rows->v,
                                                                             .k_stride = rows->k_stride,
                                                                             .v_stride = rows->v_stride,
                                                                             .kv_head_count = rows->kv_head_count,
                                                                             .items = rows->items,
                                                                             .item_count = rows->item_count,
                                                                             .step = rows->step});
    struct error error;
    if (attention->select == NULL) return;
    for (size_t i = 0; i < rows->item_count; i++)
        note(attention,
             kv_sequence_open_key_index(rows->sequences[i], stream, rows->layer_index, rows->items[i].position_first,
                                        rows->items[i].position_first + rows->items[i].row_count, &error),
             &error);
    select_append(attention->select, stream, rows->layer_index, rows->items, rows->item_count, rows->step);
    for (size_t i = 0; i < rows->item_count; i++)
        kv_sequence_keep_key_index(rows->sequences[i], stream, rows->layer_index,
                                   rows->items[i].position_first + rows->items[i].row_count);
}

bool attention_keep_inputs(struct attention *attention, struct stream *stream, const struct attention_inputs *inputs) {
    if (attention->bus != NULL) bus_rebuild_keep(attention->bus, stream, inputs);
    return attention->bus != NULL;
}

void attention_truncate(struct attention *attention, struct kv_sequence *sequence, uint64_t token_count) {
    if (attention->bus != NULL)
        bus_rebuild_truncate(attention->bus, sequence, token_count);
    else
        kv_sequence_set_length(sequence, token_count);
}

/* ---- attend ---- */

/* A layer of a graph above a disk, which attends to all rows, not to those in 4 bits. */
static void attend_captured(struct attention *attention, struct stream *stream, const struct attention_layer *layer) {
    struct attend_operation operation = layer->operation;
    struct attend_item *items = attention->part.items;
    ASSERT(operation.item_count <= attention->part.capacity);
    turns_put(attention->turns, stream, layer);
    for (size_t i = 0; i < operation.item_count; i++) {
        items[i] = operation.items[i];
        items[i].view.quantized = (struct span){.buffer = NULL};
    }
    operation.items = items;
    attention->device->operations->attend(stream, &operation);
}

static enum status attend_everything(struct attention *attention, struct stream *stream,
                                     const struct attention_layer *layer, bool prefetches, struct error *error) {
    if (attention->tiered != NULL && is_captured(attention)) {
        attend_captured(attention, stream, layer);
        return STATUS_OK;
    }
    if (attention->tiered != NULL) return tiered_attend_everything(attention->tiered, stream, layer, prefetches, error);
    if (attention->bus != NULL && bus_rebuild_takes(attention->bus, layer))
        return bus_rebuild_attend(attention->bus, stream, layer, error);
    attention->device->operations->attend(stream, &layer->operation);
    return STATUS_OK;
}

static struct choice_query query_of(const struct attention *attention, const struct attention_layer *layer) {
    return (struct choice_query){.layer_index = layer->index,
                                 .operation = &layer->operation,
                                 .rules = layer->rules,
                                 .sequences = layer->sequences,
                                 .attends_next = attention->tiered == NULL};
}

static enum status choose(struct attention *attention, struct stream *stream, const struct attention_layer *layer,
                          struct error *error) {
    struct choice *choice = &attention->choice;
    struct trace *trace = attention->options.trace;
    struct attend_operation operation = layer->operation;
    struct choice_query query = query_of(attention, layer);
    uint64_t began = trace_clock(trace);
    const struct select_statistics counted = choice->statistics;
    query.operation = &operation;
    if (attention->tiered != NULL && prefetch_take_choice(&attention->tiered->prefetch, layer->index, choice))
        return STATUS_OK;
    if (attention->reuse != NULL) {
        if (attention->expected.is_known && attention->expected.layer_index == layer->index) {
            operation.q = attention->expected.operation.q;
            reuse_put_own_queries(attention->reuse, stream, layer->index, &layer->operation,
                                  &attention->expected.operation);
        }
        TRY((is_captured(attention) ? reuse_capture : reuse_choose)(attention->reuse, attention->select, stream, &query,
                                                                    choice, error));
    } else {
        TRY(select_choose(attention->select, stream, &query, choice, error));
    }
    if (layer->index < attention->counted_layers) choice->statistics = counted;
    if (attention->tiered == NULL || is_captured(attention)) return STATUS_OK;
    /* The host reads the lists. */
    if (!choice->everything) TRY(attention->device->operations->stream_synchronize(stream, error));
    trace_since(trace, "choose", TRACE_CHOICE, began, (uint32_t)layer->index, (uint32_t)choice->chosen_count);
    return STATUS_OK;
}

/* The rows of a part that see everything. */
static enum status attend_dense_rows(struct attention *attention, struct stream *stream,
                                     const struct attention_layer *layer, struct error *error) {
    const struct choice *choice = &attention->choice;
    struct attention_layer dense = *layer;
    if (choice->dense_count == 0) return STATUS_OK;
    dense.operation.item_count = 1;
    for (size_t i = 0; i < choice->dense_count; i++) {
        dense.operation.items = &choice->dense[i];
        dense.sequences = &layer->sequences[choice->dense_items[i]];
        watch_everything(&dense.operation, dense.sequences, layer->index, 0);
        if (attention->tiered == NULL) continue; /* all at once */
        TRY(attend_everything(attention, stream, &dense, false, error));
    }
    if (attention->tiered != NULL) return STATUS_OK;
    dense.operation.items = choice->dense;
    dense.operation.item_count = choice->dense_count;
    return attend_everything(attention, stream, &dense, false, error);
}

static enum status observe(struct attention *attention, struct stream *stream, const struct attention_layer *layer,
                           struct error *error) {
    const struct attend_operation *operation = &layer->operation;
    struct choice *choice = &attention->choice;
    const struct host_list *lists;
    const double *bounds = select_mass_bounds(attention->select);
    const struct mass_estimate *left_out = select_mass_estimates(attention->select);
    for (size_t i = 0; i < choice->chosen_count && attention->observer != NULL; i++) {
        const struct rows_item *item = &choice->chosen[i];
        const size_t q_bytes = operation->head_count * item->view.layout->k_dimension * sizeof(float),
                     q_most = operation->head_count * attention->options.k_dimension * sizeof(float);
        if (attention->event_q == NULL) attention->event_q = malloc(q_most);
        if (attention->event_q == NULL) return error_set(error, STATUS_MEMORY, "attention: no memory for the observer");
        TRY(device_read(attention->device, stream, attention->event_q,
                        span_floats(operation->q, item->row * operation->q_stride), q_bytes, error));
        TRY(choice_read(choice, stream, i, operation->kv_head_count, &lists, error));
        attention->observer(
            attention->observer_context,
            &(struct select_event){.layer_index = layer->index,
                                   .row = item->row,
                                   .position = item->position,
                                   .q = attention->event_q,
                                   .view = item->view,
                                   .device = attention->device,
                                   .stream = stream,
                                   .lists = lists,
                                   .mass_bound = bounds != NULL ? bounds + i * operation->head_count : NULL,
                                   .left_out = left_out != NULL ? left_out + i * operation->head_count : NULL});
    }
    return STATUS_OK;
}

/* The units of the choice, for the device's slots, of rows that are their sequences' only ones; false: there are no
 * slots. */
static bool show_units(struct attention *attention, const struct attention_layer *layer, struct unit_lists *lists) {
    struct choice *choice = &attention->choice;
    if (attention->units == NULL || choice->chosen_count == 0) return false;
    for (size_t i = 0; i < choice->chosen_count; i++) {
        const struct kv_sequence *sequence = layer->sequences[choice->chosen_items[i]];
        ASSERT(is_captured(attention) || kv_sequence_keeps_forms(sequence, layer->index, choice->chosen[i].position));
        attention->generations[i] = kv_sequence_generation(sequence);
    }
    *lists = (struct unit_lists){.layer_index = layer->index,
                                 .item_count = choice->chosen_count,
                                 .items = choice->chosen,
                                 .generations = attention->generations,
                                 .head_count = choice->kv_head_count,
                                 .at = choice_step_lists(choice)};
    choice->places = unit_cache_places(attention->units, &choice->place_stride);
    return true;
}

/* Rows that choose, or see everything because their context is short.  is_step: each is its sequence's only one. */
static enum status attend_part(struct attention *attention, struct stream *stream, const struct attention_layer *layer,
                               bool is_step, bool is_last, struct error *error) {
    struct choice *choice = &attention->choice;
    const struct choice_query query = query_of(attention, layer);
    TRY(choose(attention, stream, layer, error));
    TRY(watch_choice(choice, &query, stream, error));
    uint64_t began = clock_ns();
    TRY(attend_dense_rows(attention, stream, layer, error));
    struct unit_lists units = {.layer_index = layer->index};
    const bool fetches = is_step && show_units(attention, layer, &units);
    if (attention->tiered != NULL && !is_captured(attention))
        return tiered_attend_choice(attention->tiered, stream,
                                    &(struct tiered_choice){.select = attention->select,
                                                            .layer = layer,
                                                            .choice = choice,
                                                            .stays = !is_last,
                                                            .units = fetches ? attention->units : NULL,
                                                            .unit_lists = &units},
                                    error);
    if (choice->dense_count > 0) choice->statistics.dense_ns += clock_ns() - began;
    if (attention->tiered != NULL)
        TRY(turns_put_choice(attention->turns, stream, layer, fetches ? attention->units : NULL, &units, error));
    if (fetches) unit_cache_fetch(attention->units, stream, &units);
    if (choice->chosen_count > 0)
        TRY(select_attend_chosen(attention->select, stream, &layer->operation, choice, error));
    return observe(attention, stream, layer, error);
}

bool attention_rows_depend(const struct attention *attention) {
    if (attention->select == NULL) return false;
    return select_goes_row_by_row(attention->select) || attention->reuse != NULL ||
           (attention->tiered != NULL && attention->tiered->lists != NULL);
}

/* How many rows go together. */
static size_t rows_together(const struct attention *attention, const struct attention_layer *layer, size_t *row_count) {
    *row_count = 0;
    for (size_t i = 0; i < layer->operation.item_count; i++) *row_count += layer->operation.items[i].row_count;
    bool is_step = *row_count == layer->operation.item_count;
    return attention_rows_depend(attention) && !is_step ? 1 : attention->part.capacity;
}

/* They are of a step, and together. */
static bool goes_whole(const struct attention *attention, const struct attention_layer *layer) {
    size_t row_count;
    const size_t rows_max = rows_together(attention, layer, &row_count);
    return row_count == layer->operation.item_count && row_count <= rows_max;
}

static enum status attend_in_parts(struct attention *attention, struct stream *stream,
                                   const struct attention_layer *layer, struct error *error) {
    const struct attend_operation *operation = &layer->operation;
    struct part *part = &attention->part;
    size_t row_count, rows_max = rows_together(attention, layer, &row_count), done = 0;
    if (goes_whole(attention, layer)) return attend_part(attention, stream, layer, true, true, error);
    struct attention_layer rows = *layer;
    rows.operation.items = part->items;
    rows.sequences = part->sequences;
    rows.rules = part->rules;
    rows.math.queries = NULL; /* of rows in parts none knows what the next layer wants first */
    part->count = 0;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t row = 0; row < operation->items[i].row_count; row++) {
            struct attend_item *item = &part->items[part->count];
            *item = operation->items[i];
            item->row_first += row;
            item->position_first += row;
            item->row_count = 1;
            part->sequences[part->count] = layer->sequences[i];
            part->rules[part->count++] = layer->rules[i];
            done++;
            if (part->count < rows_max && done < row_count) continue;
            rows.operation.item_count = part->count;
            TRY(attend_part(attention, stream, &rows, false, done == row_count, error));
            part->count = 0;
        }
    return STATUS_OK;
}

/* What the next layer's rows look up, choose and label by. */
static void expect_queries(struct attention *attention, const struct attention_layer *layer) {
    struct expected *expected = &attention->expected;
    const size_t next = layer->index + 1;
    expected->is_known = false;
    if (attention->reuse == NULL || layer->rules == NULL || layer->math.queries == NULL ||
        !reuse_speculates(attention->reuse) || !select_layer_chooses(attention->select, next))
        return;
    if (attention->tiered != NULL && prefetch_has_decided(&attention->tiered->prefetch, next)) return;
    expected->layer_index = next;
    expected->is_known = layer->math.queries(layer->math.context, next, &expected->operation);
}

static enum status attend(struct attention *attention, struct stream *stream, const struct attention_layer *layer,
                          struct error *error) {
    struct select *select = attention->select;
    struct choice *choice = &attention->choice;
    if (select == NULL || layer->rules == NULL) { /* a prompt, or nobody chooses */
        watch_everything(&layer->operation, layer->sequences, layer->index, 0);
        TRY(attend_everything(attention, stream, layer, select == NULL, error));
        if (select == NULL || attention->tiered != NULL) return STATUS_OK;
        return select_watch_prefill(select, stream, layer->index, &layer->operation, choice, error);
    }
    if (layer->operation.window != 0 || !select_layer_chooses(select, layer->index)) {
        uint64_t began = clock_ns();
        TRY(choose(attention, stream, layer, error)); /* everything */
        watch_everything(&layer->operation, layer->sequences, layer->index, 0);
        TRY(attend_everything(attention, stream, layer, false, error));
        if (attention->tiered == NULL) choice->statistics.dense_ns += clock_ns() - began;
        return STATUS_OK;
    }
    if (attention->tiered != NULL && select_scans(select))
        return tiered_scan(attention->tiered, stream,
                           &(struct tiered_choice){.select = select, .layer = layer, .choice = choice}, error);
    return attend_in_parts(attention, stream, layer, error);
}

void attention_expect(struct attention *attention, struct stream *stream, const struct attention_layer *layer) {
    struct error error;
    if (attention->failed || attention->select == NULL || layer->rules == NULL) return;
    if (attention->tiered != NULL && !is_captured(attention) && !select_scans(attention->select) &&
        goes_whole(attention, layer))
        note(attention, tiered_expect(attention->tiered, stream, attention->select, layer, &error), &error);
    expect_queries(attention, layer);
}

void attention_attend(struct attention *attention, struct stream *stream, const struct attention_layer *layer) {
    struct error error;
    if (attention->failed) return; /* rows may be lacking */
    enum status status = attend(attention, stream, layer, &error);
    expect_queries(attention, layer);
    note(attention, status, &error);
}

/* ---- end ---- */

bool attention_rounds(const struct attention *attention) { return attention->options.rounds; }

bool attention_store(struct attention *attention, struct stream *stream, const struct attention_rows *rows) {
    struct error error;
    if (attention->failed || attention->tiered == NULL || stores_nothing(attention, rows)) return !attention->failed;
    enum status status = attention->device->operations->stream_synchronize(stream, &error);
    if (status == STATUS_OK) status = tiered_write_rows(attention->tiered, rows, &error);
    note(attention, status, &error);
    return status == STATUS_OK;
}

enum status attention_end_layer(struct attention *attention, struct stream *stream, const struct attention_rows *rows,
                                struct error *error) {
    if (attention->tiered != NULL) TRY(kv_tier_failure(attention->options.cache, error));
    if (attention->failed) {
        if (error != NULL) *error = attention->failure;
        return attention->failure.status;
    }
    if (attention->tiered == NULL || is_captured(attention) || stores_nothing(attention, rows)) return STATUS_OK;
    /* The host reads the rows that were stored. */
    TRY(attention->device->operations->stream_synchronize(stream, error));
    return tiered_write_rows(attention->tiered, rows, error);
}

void attention_change_items(struct attention *attention) {
    if (attention->tiered != NULL) prefetch_forget(&attention->tiered->prefetch);
    attention->expected.is_known = false;
}

static void trace_reuse(struct trace *trace, struct reuse_step step) {
    trace_count(trace, "reuse: hits", (double)step.hits);
    trace_count(trace, "reuse: misses", (double)step.misses);
    trace_count(trace, "reuse: mean age", step.hits > 0 ? (double)step.age_sum / (double)step.hits : 0);
    trace_count(trace, "reuse: oldest", (double)step.age_max);
    trace_count(trace, "reuse: bytes kept", (double)step.bytes);
}

void attention_end_step(struct attention *attention) {
    if (attention->reuse != NULL && attention->options.trace != NULL)
        trace_reuse(attention->options.trace, reuse_end_step(attention->reuse));
    if (attention->tiered != NULL) tiered_end_step(attention->tiered);
    if (attention->bus != NULL) bus_rebuild_end_step(attention->bus);
    choice_end_step(&attention->choice);
    attention->expected.is_known = false;
    attention->counted_layers = 0;
    attention->failed = false;
}

/* ---- what it did ---- */

struct select_statistics attention_statistics(const struct attention *attention) {
    struct select_statistics sum = choice_statistics(&attention->choice);
    if (attention->reuse != NULL) reuse_add_counts(attention->reuse, attention->select, &sum);
    return sum;
}

void attention_set_link(struct attention *attention, double bytes_per_second) {
    if (attention->tiered != NULL && attention->tiered->rebuild != NULL)
        rebuild_set_link(attention->tiered->rebuild, bytes_per_second);
}

void attention_force_rebuild(struct attention *attention, size_t chunks) {
    if (attention->tiered != NULL && attention->tiered->rebuild != NULL)
        rebuild_force(attention->tiered->rebuild, chunks);
    if (attention->bus != NULL) bus_rebuild_force(attention->bus, chunks);
}

struct rebuild_statistics attention_rebuild_statistics(const struct attention *attention) {
    const struct tiered *tiered = attention->tiered;
    if (attention->bus != NULL) return bus_rebuild_statistics(attention->bus);
    if (tiered == NULL || tiered->rebuild == NULL) return (struct rebuild_statistics){0};
    return rebuild_statistics(tiered->rebuild);
}

enum status attention_fetch_counts(const struct attention *attention, struct stream *stream,
                                   struct fetch_counts *counts, struct error *error) {
    *counts = (struct fetch_counts){.hits = 0};
    return attention->units != NULL ? unit_cache_counts(attention->units, stream, counts, error) : STATUS_OK;
}

uint64_t attention_unit_bytes(const struct attention *attention) { return unit_cache_bytes(attention->units); }

struct list_buffer_counts attention_list_buffer_counts(const struct attention *attention) {
    return list_buffers_counts(attention->tiered != NULL ? attention->tiered->lists : NULL);
}

void attention_reset_statistics(struct attention *attention) {
    if (attention->tiered != NULL) list_buffers_reset_counts(attention->tiered->lists);
    choice_reset_statistics(&attention->choice);
    if (attention->reuse != NULL) reuse_reset_counts(attention->reuse);
}

void attention_set_observer(struct attention *attention, select_observer *observer, void *context) {
    attention->observer = observer;
    attention->observer_context = context;
}
