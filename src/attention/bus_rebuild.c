#include "attention/bus_rebuild.h"

#include <stdlib.h>

#include "attention/rebuild.h"
#include "attention/split.h"
#include "base/checked.h"
#include "platform/clock.h"
#include "rates/rates.h"

enum {
    TILE_CHUNKS = REBUILD_ROWS_MAX / KV_CHUNK_TOKENS,
    TIMED_STEPS = 3, /* their median counts */
    TIMED_TILES = 4, /* of a layer of those, at most */
};

/* What is kept of a sequence. */
struct kept_rows {
    uint64_t generation;      /* 0: nothing yet */
    size_t run, range_chunks; /* chunks of its last run, and of a range */
    uint64_t counts[];        /* [layers]: rows from the first on */
};

/* Of a sequence of a step. */
struct bus_run {
    const struct kv_sequence *sequence;
    uint64_t kept;              /* rows, of all layers */
    size_t chunk_first;         /* in the workspace */
    size_t count, range_chunks; /* chunks of the run; of a range of attention */
};

/* Runs of the step that was prepared, and its operations as they are handed out. */
struct bus_step {
    struct bus_run *runs; /* owned, as the others: [sequence_capacity] */
    struct attend_item *items;
    struct attend_ranges *ranges;
    struct split_growth *growth;
    size_t run_count, chunk_count; /* chunk_count 0: nothing is computed again */
    bool is_timed;
};

struct bus_rebuild {
    struct device *device; /* borrowed */
    struct attention_options options;
    struct range_form form;
    uint64_t context;        /* whole chunks */
    struct slab inputs;      /* MEMORY_SHARED [sequence][layer]: halves [context][hidden_size], scales [context] */
    struct kept_rows **kept; /* owned, [sequence_capacity] */
    struct slab chunks;      /* MEMORY_DEVICE [kv head][rebuild.chunks]: the workspace */
    struct kv_pools pools;   /* POOL_OTHER is the workspace */
    struct page_table table; /* of it */
    /* [2][rebuild.chunks * 64], owned, and in MEMORY_DEVICE: of the workspace's rows their numbers, and the positions
     * that they are computed for */
    struct step_row *rows;
    struct buffer steps;
    struct buffer partials; /* MEMORY_DEVICE: of attend_ranges, a row's behind the other's */
    bool is_shown;          /* steps and table are on the device */
    struct bus_step step;
    size_t forced_chunks, timed_steps;
    struct rate link, computing; /* bytes, tokens */
    struct rebuild_statistics statistics;
};

/* ---- life ---- */

uint64_t bus_rebuild_row_bytes(size_t hidden_size) { return hidden_size * sizeof(uint16_t) + sizeof(float); }

/* Of a sequence's row. */
static uint64_t row_partial_bytes(const struct device *device, const struct attention_options *options) {
    return rebuild_partial_floats(device, options->head_count, options->rebuild.v_dimension) * sizeof(float);
}

/* Of a head, with their page table and steps, in the device's memory. */
static size_t chunks_that_fit(const struct device *device, const struct attention_options *options) {
    const uint64_t partials = options->sequence_capacity * row_partial_bytes(device, options),
                   chunk = options->kv_head_count * (options->rebuild.chunk_bytes + sizeof(uint32_t)) +
                           2 * KV_CHUNK_TOKENS * sizeof(struct step_row);
    if (options->unit_bytes <= partials) return 0;
    return min_size((options->unit_bytes - partials) / chunk,
                    options->sequence_capacity * kv_chunks_of(options->context_size));
}

static size_t layers_of(const struct bus_rebuild *bus) {
    return bus->options.layer_count - bus->options.rebuild.layer_first;
}

static enum status init(struct bus_rebuild *bus, struct error *error) {
    const struct attention_options *options = &bus->options;
    const struct device_operations *operations = bus->device->operations;
    const size_t sequences = options->sequence_capacity, chunks = options->rebuild.chunks,
                 step_bytes = 2 * chunks * KV_CHUNK_TOKENS * sizeof *bus->rows;
    bus->kept = calloc(sequences, sizeof *bus->kept);
    bus->rows = calloc(1, step_bytes);
    bus->step.runs = calloc(sequences, sizeof *bus->step.runs);
    bus->step.items = calloc(sequences, sizeof *bus->step.items);
    bus->step.ranges = calloc(sequences, sizeof *bus->step.ranges);
    bus->step.growth = calloc(sequences, sizeof *bus->step.growth);
    for (size_t i = 0; i < sequences && bus->kept != NULL; i++) {
        bus->kept[i] = calloc(1, sizeof **bus->kept + layers_of(bus) * sizeof *bus->kept[i]->counts);
        if (bus->kept[i] == NULL) return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    }
    if (bus->kept == NULL || bus->rows == NULL || bus->step.runs == NULL || bus->step.items == NULL ||
        bus->step.ranges == NULL || bus->step.growth == NULL)
        return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    for (size_t i = 0; i < chunks * KV_CHUNK_TOKENS; i++) bus->rows[i].position = i;
    TRY(slab_init(&bus->inputs, bus->device, MEMORY_SHARED,
                  bus->context * bus_rebuild_row_bytes(options->rebuild.hidden_size), sequences * layers_of(bus),
                  error));
    TRY(slab_init(&bus->chunks, bus->device, MEMORY_DEVICE, options->rebuild.chunk_bytes,
                  options->kv_head_count * chunks, error));
    TRY(page_table_init(&bus->table, bus->device, options->kv_head_count, chunks, error));
    for (size_t i = 0; i < options->kv_head_count * chunks; i++)
        page_table_set(&bus->table, i / chunks, i % chunks, place_make(POOL_OTHER, i));
    TRY(operations->allocate(bus->device, MEMORY_DEVICE, step_bytes, &bus->steps, error));
    return operations->allocate(bus->device, MEMORY_DEVICE, sequences * row_partial_bytes(bus->device, options),
                                &bus->partials, error);
}

enum status bus_rebuild_create(struct bus_rebuild **result, struct device *device,
                               const struct attention_options *options, struct error *error) {
    const size_t chunks = chunks_that_fit(device, options);
    *result = NULL;
    if (chunks < TILE_CHUNKS) return STATUS_OK;
    struct bus_rebuild *bus = calloc(1, sizeof *bus);
    *result = bus;
    if (bus == NULL) return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    *bus = (struct bus_rebuild){.device = device,
                                .options = *options,
                                .form = device_range_form(device),
                                .context = kv_chunks_of(options->context_size) * KV_CHUNK_TOKENS};
    bus->options.rebuild.chunks = chunks;
    return init(bus, error);
}

void bus_rebuild_destroy(struct bus_rebuild *bus) {
    if (bus == NULL) return;
    bus->device->operations->release(bus->device, &bus->partials);
    bus->device->operations->release(bus->device, &bus->steps);
    page_table_deinit(&bus->table);
    slab_deinit(&bus->chunks);
    slab_deinit(&bus->inputs);
    for (size_t i = 0; i < bus->options.sequence_capacity && bus->kept != NULL; i++) free(bus->kept[i]);
    free(bus->kept);
    free(bus->rows);
    free(bus->step.runs);
    free(bus->step.items);
    free(bus->step.ranges);
    free(bus->step.growth);
    free(bus);
}

/* ---- inputs ---- */

/* Of a layer of a sequence, from a row on. */
static struct keep_rows_operation rows_of(const struct bus_rebuild *bus, const struct kv_sequence *sequence,
                                          size_t layer, uint64_t row) {
    const size_t hidden = bus->options.rebuild.hidden_size;
    const struct span slot = slab_slot(&bus->inputs, kv_sequence_index(sequence) * layers_of(bus) + layer -
                                                         bus->options.rebuild.layer_first);
    return (struct keep_rows_operation){
        .columns = hidden,
        .halves = span_behind(slot, row * hidden * sizeof(uint16_t)),
        .scales = span_behind(slot, bus->context * hidden * sizeof(uint16_t) + row * sizeof(float))};
}

/* What is kept of the sequence as it is now: what was of another one is forgotten. */
static struct kept_rows *kept_of(struct bus_rebuild *bus, const struct kv_sequence *sequence) {
    struct kept_rows *kept = bus->kept[kv_sequence_index(sequence)];
    if (kept->generation == kv_sequence_generation(sequence)) return kept;
    kept->generation = kv_sequence_generation(sequence);
    kept->run = 0;
    for (size_t i = 0; i < layers_of(bus); i++) kept->counts[i] = 0;
    return kept;
}

/* Rows from here on are others. */
static void cut(uint64_t *count, uint64_t position) { *count = *count < position ? *count : position; }

void bus_rebuild_keep(struct bus_rebuild *bus, struct stream *stream, const struct attention_inputs *inputs) {
    const size_t first = bus->options.rebuild.layer_first;
    for (size_t i = 0; i < inputs->item_count && inputs->layer_index >= first; i++) {
        const struct attend_item *item = &inputs->items[i];
        uint64_t *count = &kept_of(bus, inputs->sequences[i])->counts[inputs->layer_index - first];
        cut(count, item->position_first);
        if (!inputs->come_back || *count < item->position_first) continue;
        struct keep_rows_operation keep = rows_of(bus, inputs->sequences[i], inputs->layer_index, item->position_first);
        keep.x = span_floats(inputs->x, item->row_first * keep.columns);
        keep.x_stride = keep.columns;
        keep.row_count = item->row_count;
        bus->device->operations->keep_rows(stream, &keep);
        *count += item->row_count;
    }
}

void bus_rebuild_truncate(struct bus_rebuild *bus, struct kv_sequence *sequence, uint64_t token_count) {
    struct kept_rows *kept = kept_of(bus, sequence);
    kv_sequence_set_length(sequence, token_count);
    kept->generation = kv_sequence_generation(sequence);
    for (size_t i = 0; i < layers_of(bus); i++) cut(&kept->counts[i], token_count);
}

/* ---- how much ---- */

static uint64_t split_of(struct bus_rebuild *bus, uint64_t chunks, uint64_t most, uint64_t unit) {
    const double link = rate_per_second(&bus->link);
    struct split_question question = {.token_count = chunks * KV_CHUNK_TOKENS,
                                      .tokens_max = most * KV_CHUNK_TOKENS,
                                      .tile_tokens = unit * KV_CHUNK_TOKENS,
                                      .input_bytes = bus->statistics.input_bytes,
                                      .kv_bytes = bus->statistics.kv_bytes,
                                      .bytes_per_second = link,
                                      .seconds_per_token = rate_seconds(&bus->computing),
                                      .schedule = SPLIT_COLUMN};
    if (link <= 0 || question.seconds_per_token <= 0) return 0;
    const struct split split = split_choose(&question);
    return split.seconds < SPLIT_GAIN_MIN * split.seconds_without ? split.tokens / KV_CHUNK_TOKENS : 0;
}

/* Of a row at this position, with room for so many chunks. */
static void decide(struct bus_rebuild *bus, struct bus_run *run, uint64_t position, size_t room) {
    const size_t range = (size_t)bus->form.rows(position + 1) / KV_CHUNK_TOKENS,
                 unit = range * ((TILE_CHUNKS + range - 1) / range);
    const uint64_t chunks = position / KV_CHUNK_TOKENS, held = min_size(run->kept / KV_CHUNK_TOKENS, room),
                   most = held / unit * unit;
    run->range_chunks = range;
    if (bus->forced_chunks == REBUILD_NOTHING) return;
    if (bus->forced_chunks > 0)
        run->count = min_size(bus->forced_chunks, held) / range * range;
    else if (bus->timed_steps < TIMED_STEPS)
        run->count = min_size(most, TIMED_TILES * unit);
    else
        run->count = split_of(bus, chunks, most, unit);
}

static size_t workspace_rows(const struct bus_rebuild *bus) { return bus->options.rebuild.chunks * KV_CHUNK_TOKENS; }

/* The workspace's chunks, and which rows they are of. */
static void show(struct bus_rebuild *bus, struct stream *stream) {
    const size_t bytes = workspace_rows(bus) * sizeof *bus->rows;
    struct step_row *const positions = bus->rows + workspace_rows(bus), *row = positions;
    bool changes = !bus->is_shown;
    for (size_t i = 0; i < bus->step.run_count; i++)
        for (uint64_t n = 0; n < bus->step.runs[i].count * KV_CHUNK_TOKENS; n++, row++) {
            changes = changes || row->position != n;
            row->position = n;
        }
    if (!bus->is_shown) {
        page_table_update(&bus->table, stream, 0, bus->table.lane_count);
        bus->device->operations->upload(stream, span_of(&bus->steps, 0), bus->rows, bytes);
    }
    if (changes)
        bus->device->operations->upload(stream, span_of(&bus->steps, bytes), positions,
                                        (size_t)(row - positions) * sizeof *row);
    bus->is_shown = true;
}

/* What is kept of the row's sequence, as far as it is as it was. */
static struct bus_run run_of(struct bus_rebuild *bus, const struct attention_step *step, size_t row) {
    struct bus_run run = {.sequence = step->sequences[row], .kept = UINT64_MAX};
    uint64_t *counts = kept_of(bus, run.sequence)->counts;
    for (size_t layer = 0; layer < layers_of(bus); layer++) {
        cut(&counts[layer], step->items[row].position_first);
        cut(&run.kept, counts[layer]);
    }
    return run;
}

/* The runs of the step before, where they may stay: ranges are as they were, inputs and the workspace hold them. */
static void keep_runs(struct bus_rebuild *bus) {
    struct bus_step *step = &bus->step;
    const bool decides = bus->forced_chunks == 0 && bus->timed_steps >= TIMED_STEPS;
    bool stays = decides;
    size_t chunks = 0;
    for (size_t i = 0; i < step->run_count; i++) {
        const struct bus_run *run = &step->runs[i];
        const struct kept_rows *kept = kept_of(bus, run->sequence);
        step->growth[i] = (struct split_growth){kept->run, run->count};
        stays = stays && kept->run <= run->kept / KV_CHUNK_TOKENS &&
                (kept->run == 0 || kept->range_chunks == run->range_chunks);
        chunks += kept->run;
    }
    stays = stays && chunks <= bus->options.rebuild.chunks && split_stays(step->growth, step->run_count);
    for (size_t i = 0; i < step->run_count; i++) {
        struct bus_run *run = &step->runs[i];
        struct kept_rows *kept = kept_of(bus, run->sequence);
        if (stays) run->count = kept->run;
        kept->run = decides ? run->count : 0;
        kept->range_chunks = run->range_chunks;
    }
}

void bus_rebuild_prepare(struct bus_rebuild *bus, struct stream *stream, const struct attention_step *step,
                         uint64_t *runs, bool *fits) {
    const struct rebuild_options *options = &bus->options.rebuild;
    struct rebuild_statistics *sums = &bus->statistics;
    uint64_t chunks = 0; /* of which something is kept */
    bus->step.chunk_count = 0;
    bus->step.run_count = step->row_count;
    for (size_t i = 0; i < step->row_count; i++) {
        bus->step.runs[i] = run_of(bus, step, i);
        if (bus->step.runs[i].kept > 0) chunks += step->items[i].position_first / KV_CHUNK_TOKENS;
    }
    sums->input_bytes = (double)bus_rebuild_row_bytes(options->hidden_size);
    sums->kv_bytes = (double)(bus->options.kv_head_count * options->chunk_bytes) / KV_CHUNK_TOKENS;
    for (size_t i = 0; i < step->row_count; i++) {
        struct bus_run *run = &bus->step.runs[i];
        const uint64_t position = step->items[i].position_first, own = position / KV_CHUNK_TOKENS;
        /* Each has room by its length. */
        decide(bus, run, position, chunks <= options->chunks ? own : (size_t)(options->chunks * own / chunks));
    }
    keep_runs(bus);
    for (size_t i = 0; i < step->row_count; i++) {
        struct bus_run *run = &bus->step.runs[i];
        run->chunk_first = bus->step.chunk_count;
        bus->step.chunk_count += run->count;
        runs[i] = (uint64_t)run->count << 32 | run->range_chunks;
    }
    bus->step.is_timed = bus->step.chunk_count > 0 && bus->forced_chunks == 0 && bus->timed_steps < TIMED_STEPS;
    *fits = *fits && !bus->step.is_timed;
    if (bus->step.chunk_count > 0) show(bus, stream);
    sums->layers += chunks > 0 ? layers_of(bus) : 0;
    sums->missing_chunks += layers_of(bus) * chunks;
    sums->chunks += layers_of(bus) * bus->step.chunk_count;
}

void bus_rebuild_end_step(struct bus_rebuild *bus) {
    bus->timed_steps += bus->step.is_timed;
    rate_end_sample(&bus->link);
    rate_end_sample(&bus->computing);
    bus->step.chunk_count = 0;
    bus->step.is_timed = false;
}

/* ---- a layer ---- */

bool bus_rebuild_takes(const struct bus_rebuild *bus, const struct attention_layer *layer) {
    return bus->step.chunk_count > 0 && layer->index >= bus->options.rebuild.layer_first &&
           layer->operation.window == 0;
}

/* A view of the workspace, from a chunk on. */
static struct kv_view own_view(struct bus_rebuild *bus, const struct kv_view *others, size_t chunk) {
    const struct kv_view view = rebuild_view_of(&bus->pools, &bus->chunks, &bus->table, others);
    return kv_view_chunks(&view, chunk);
}

/* Inputs of chunks [first, end) of the workspace, of a sequence after the other: [returned]. */
static size_t kept_inputs(const struct bus_rebuild *bus, size_t layer, size_t first, size_t end,
                          struct keep_rows_operation kept[TILE_CHUNKS]) {
    size_t count = 0;
    for (size_t i = 0; i < bus->step.run_count; i++) {
        const struct bus_run *run = &bus->step.runs[i];
        const size_t from = max_size(first, run->chunk_first), to = min_size(end, run->chunk_first + run->count);
        if (from >= to) continue;
        kept[count] = rows_of(bus, run->sequence, layer, (from - run->chunk_first) * KV_CHUNK_TOKENS);
        kept[count++].row_count = (to - from) * KV_CHUNK_TOKENS;
    }
    return count;
}

static void compute(struct bus_rebuild *bus, struct stream *stream, const struct attention_layer *layer) {
    for (size_t first = 0, count; first < bus->step.chunk_count; first += count) {
        struct keep_rows_operation kept[TILE_CHUNKS];
        count = min_size(bus->step.chunk_count - first, TILE_CHUNKS);
        const uint64_t row = first * KV_CHUNK_TOKENS;
        struct rebuild_rows rows = {.layer_index = layer->index,
                                    .row_count = count * KV_CHUNK_TOKENS,
                                    .kept = kept,
                                    .kept_count = kept_inputs(bus, layer->index, first, first + count, kept),
                                    .step = span_of(&bus->steps, (workspace_rows(bus) + row) * sizeof *bus->rows)};
        layer->math.rebuild(layer->math.context, &rows);
        rows.step = span_of(&bus->steps, row * sizeof *bus->rows);
        const struct attend_item item = {.view = own_view(bus, &layer->operation.items[0].view, 0),
                                         .row_count = rows.row_count,
                                         .position_first = row};
        rebuild_append(bus->device, stream, &rows, layer->operation.kv_head_count, &item);
    }
}

/* The ranges behind the runs, or, with merges, those of the runs, and all together. */
static void attend(struct bus_rebuild *bus, struct stream *stream, const struct attention_layer *layer, bool merges) {
    struct attend_operation operation = layer->operation;
    const size_t partials = row_partial_bytes(bus->device, &bus->options);
    ASSERT(operation.item_count == bus->step.run_count);
    for (size_t i = 0; i < bus->step.run_count; i++) {
        const struct bus_run *run = &bus->step.runs[i];
        bus->step.items[i] = operation.items[i];
        if (merges) bus->step.items[i].view = own_view(bus, &operation.items[i].view, run->chunk_first);
        bus->step.ranges[i] = (struct attend_ranges){.makes = !merges,
                                                     .first = run->count / run->range_chunks,
                                                     .end = bus->form.count_max,
                                                     .partials = span_of(&bus->partials, i * partials)};
    }
    operation.items = bus->step.items;
    operation.ranges = bus->step.ranges;
    bus->device->operations->attend(stream, &operation);
}

static enum status seconds_until(struct bus_rebuild *bus, struct stream *stream, uint64_t *began, double *seconds,
                                 struct error *error) {
    TRY(bus->device->operations->stream_synchronize(stream, error));
    const uint64_t now = clock_ns();
    *seconds = 1e-9 * (double)(now - *began);
    *began = now;
    return STATUS_OK;
}

/* One after the other, and timed: the bus by what attention reads, computing by what is left without its inputs. */
static enum status attend_timed(struct bus_rebuild *bus, struct stream *stream, const struct attention_layer *layer,
                                struct error *error) {
    const uint64_t rows = bus->step.chunk_count * KV_CHUNK_TOKENS;
    uint64_t began = 0, others = 0;
    for (size_t i = 0; i < bus->step.run_count; i++) others += layer->operation.items[i].position_first + 1;
    const double read = bus->statistics.kv_bytes * (double)(others - rows);
    double seconds;
    TRY(seconds_until(bus, stream, &began, &seconds, error));
    attend(bus, stream, layer, false);
    TRY(seconds_until(bus, stream, &began, &seconds, error));
    rate_add(&bus->link, read, seconds);
    const double inputs = seconds / read * (double)rows * bus->statistics.input_bytes;
    compute(bus, stream, layer);
    TRY(seconds_until(bus, stream, &began, &seconds, error));
    rate_add(&bus->computing, (double)rows, seconds > inputs ? seconds - inputs : 0);
    attend(bus, stream, layer, true);
    return STATUS_OK;
}

enum status bus_rebuild_attend(struct bus_rebuild *bus, struct stream *stream, const struct attention_layer *layer,
                               struct error *error) {
    const struct device_operations *operations = bus->device->operations;
    if (bus->step.is_timed) return attend_timed(bus, stream, layer, error);
    operations->beside(stream, &(struct beside_operation){BESIDE_BEGIN});
    compute(bus, stream, layer);
    operations->beside(stream, &(struct beside_operation){BESIDE_END});
    attend(bus, stream, layer, false);
    operations->beside(stream, &(struct beside_operation){BESIDE_JOIN});
    attend(bus, stream, layer, true);
    return STATUS_OK;
}

/* ---- what it did ---- */

void bus_rebuild_force(struct bus_rebuild *bus, size_t chunks) { bus->forced_chunks = chunks; }

struct rebuild_statistics bus_rebuild_statistics(const struct bus_rebuild *bus) {
    struct rebuild_statistics statistics = bus->statistics;
    statistics.bytes_per_second = rate_per_second(&bus->link);
    statistics.seconds_per_token = rate_seconds(&bus->computing);
    return statistics;
}
