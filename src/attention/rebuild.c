#include "attention/rebuild.h"

#include <stdlib.h>

#include "attention/split.h"
#include "base/assert.h"
#include "base/checked.h"
#include "kernels/attention/attention.h"
#include "platform/clock.h"

enum {
    TILE_CHUNKS = REBUILD_ROWS_MAX / KV_CHUNK_TOKENS,
    TRIAL_CHUNKS = TILE_CHUNKS, /* computed again where no rate is known yet */
};
static const double REMEMBERED = 0.9; /* of what was measured before, from layer to layer */
static const double GAIN_MIN = 0.9;   /* of the time beside: a smaller gain may be what the rates miss */
static const double WAIT_MIN =
    0.05; /* of a layer's time: less is no sign that the link was what it waited for */

/* Something that takes so many seconds for so much, over the last layers. */
struct rate {
    double amount, seconds;
};

static void rate_add(struct rate *rate, double amount, double seconds) {
    rate->amount = REMEMBERED * rate->amount + amount;
    rate->seconds = REMEMBERED * rate->seconds + seconds;
}

/* The chunks of a layer that are computed again: [chunk_first, chunk_first + chunk_count) of chunk_end. */
struct rebuild_run {
    size_t layer_index;
    struct inputs *inputs; /* its sequence's */
    uint64_t chunk_first, chunk_count, chunk_end;
    size_t
        range_chunks; /* each range of so many is attended to as it is computed; 0: all stay in the workspace */
};

struct rebuild {
    struct device *device; /* borrowed */
    size_t kv_head_count, hidden_size, chunk_capacity, view_chunks;
    size_t chunk_bytes, forced_chunks;
    const struct kv_layout *layout; /* borrowed, the cache's */
    uint8_t *chunks;                /* owned MEMORY_DEVICE; [kv_head_count][chunk_capacity] */
    void **own;                     /* owned; [kv_head_count][chunk_capacity]: their addresses */
    void **table;                   /* owned; [kv_head_count][view_chunks]: of a view */
    uint32_t *others;               /* owned; [view_chunks] */
    size_t other_count;
    float *rows;     /* owned MEMORY_HOST; a tile's inputs */
    float *tile;     /* owned MEMORY_DEVICE; the same */
    float *partials; /* owned MEMORY_HOST; [kv_head_count][ATTENTION_RANGES][partial_floats] */
    size_t partial_floats;
    struct attend_ranges ranges;         /* of the run, as they are handed out */
    struct rebuild_run run;              /* of the planned layer */
    uint64_t run_ns, wait_ns, attend_ns; /* of its rebuilding, and of that for inputs and for attention */
    uint64_t last_end_ns;                /* of the layer before */
    struct rate link, computing;         /* bytes, rows */
    struct rate besides;                 /* layers: what they compute besides */
    struct rebuild_statistics statistics;
};

/* ---- life ---- */

static size_t workspace_bytes(const struct attention_options *options) {
    return options->kv_head_count * options->rebuild_chunks * options->kv_chunk_bytes;
}

static size_t tile_bytes(const struct attention_options *options) {
    return REBUILD_ROWS_MAX * options->hidden_size * sizeof(float);
}

static size_t partial_floats(const struct attention_options *options) {
    return options->head_count / options->kv_head_count * (2 + options->v_dimension);
}

static size_t partials_bytes(const struct attention_options *options) {
    return options->kv_head_count * ATTENTION_RANGES * partial_floats(options) * sizeof(float);
}

uint64_t rebuild_bytes(const struct attention_options *options) {
    const uint64_t chunks = kv_chunks_of(options->context_size);
    if (options->rebuild_chunks == 0) return 0;
    return sizeof(struct rebuild) + workspace_bytes(options) + 2 * tile_bytes(options) +
           partials_bytes(options) +
           options->kv_head_count * (options->rebuild_chunks + chunks) * sizeof(void *) +
           chunks * sizeof(uint32_t);
}

static enum status init(struct rebuild *rebuild, const struct attention_options *options,
                        struct error *error) {
    const struct device_operations *operations = rebuild->device->operations;
    const size_t heads = rebuild->kv_head_count;
    void *memory;
    TRY(operations->allocate(rebuild->device, MEMORY_DEVICE, workspace_bytes(options), &memory, error));
    rebuild->chunks = memory;
    TRY(operations->allocate(rebuild->device, MEMORY_HOST, tile_bytes(options), &memory, error));
    rebuild->rows = memory;
    TRY(operations->allocate(rebuild->device, MEMORY_DEVICE, tile_bytes(options), &memory, error));
    rebuild->tile = memory;
    TRY(operations->allocate(rebuild->device, MEMORY_HOST, partials_bytes(options), &memory, error));
    rebuild->partials = memory;
    rebuild->own = calloc(heads * rebuild->chunk_capacity, sizeof *rebuild->own);
    rebuild->table = calloc(heads * rebuild->view_chunks, sizeof *rebuild->table);
    rebuild->others = calloc(rebuild->view_chunks, sizeof *rebuild->others);
    if (rebuild->own == NULL || rebuild->table == NULL || rebuild->others == NULL)
        return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    for (size_t i = 0; i < heads * rebuild->chunk_capacity; i++)
        rebuild->own[i] = rebuild->chunks + i * rebuild->chunk_bytes;
    return STATUS_OK;
}

enum status rebuild_create(struct rebuild **result, struct device *device,
                           const struct attention_options *options, struct error *error) {
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    *result = rebuild;
    if (rebuild == NULL) return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    *rebuild = (struct rebuild){.device = device,
                                .kv_head_count = options->kv_head_count,
                                .hidden_size = options->hidden_size,
                                .chunk_capacity = options->rebuild_chunks,
                                .view_chunks = (size_t)kv_chunks_of(options->context_size),
                                .chunk_bytes = options->kv_chunk_bytes,
                                .partial_floats = partial_floats(options),
                                .layout = kv_cache_layout(options->cache)};
    ASSERT(rebuild->chunk_bytes == rebuild->layout->chunk_bytes);
    ASSERT(options->v_dimension == rebuild->layout->v_dimension);
    return init(rebuild, options, error);
}

void rebuild_destroy(struct rebuild *rebuild) {
    if (rebuild == NULL) return;
    const struct device_operations *operations = rebuild->device->operations;
    const size_t chunks = rebuild->kv_head_count * rebuild->chunk_capacity;
    const size_t tile = REBUILD_ROWS_MAX * rebuild->hidden_size * sizeof(float);
    if (rebuild->chunks != NULL)
        operations->release(rebuild->device, MEMORY_DEVICE, rebuild->chunks, chunks * rebuild->chunk_bytes);
    if (rebuild->partials != NULL)
        operations->release(rebuild->device, MEMORY_HOST, rebuild->partials,
                            rebuild->kv_head_count * ATTENTION_RANGES * rebuild->partial_floats *
                                sizeof(float));
    if (rebuild->rows != NULL) operations->release(rebuild->device, MEMORY_HOST, rebuild->rows, tile);
    if (rebuild->tile != NULL) operations->release(rebuild->device, MEMORY_DEVICE, rebuild->tile, tile);
    free(rebuild->own);
    free(rebuild->table);
    free(rebuild->others);
    free(rebuild);
}

/* ---- plan ---- */

static bool is_missing(const struct rebuild *rebuild, const struct kv_view *view, uint64_t chunk) {
    for (size_t head = 0; head < rebuild->kv_head_count; head++)
        if (view->chunks[head * view->chunk_stride + chunk] == NULL) return true;
    return false;
}

/* The first run of chunks that are missing, *first and the return value, and how many are missing in all. */
static uint64_t find_run(const struct rebuild *rebuild, const struct kv_view *view, uint64_t full,
                         uint64_t *first, uint64_t *missing) {
    uint64_t run = 0;
    bool is_over = false;
    *first = *missing = 0;
    for (uint64_t chunk = 0; chunk < full; chunk++) {
        if (!is_missing(rebuild, view, chunk)) {
            is_over = *missing > 0;
            continue;
        }
        if (*missing == 0) *first = chunk;
        ++*missing;
        run += !is_over;
    }
    return run;
}

/* How many chunks of the run can be computed again: what the workspace holds, or whole ranges, of which each attends by
 * itself, if these are more.  Then the run begins where a range does. */
static uint64_t chunks_max(const struct rebuild *rebuild, struct rebuild_run *plan, uint64_t run,
                           const struct attend_item *item) {
    const uint64_t first = plan->chunk_first, kept = inputs_chunks(plan->inputs, plan->layer_index),
                   range = attention_range_rows(item->position_first + 1) / KV_CHUNK_TOKENS;
    uint64_t most = kept > first ? kept - first : 0;
    most = most < run ? most : run;
    const uint64_t held = most < rebuild->chunk_capacity ? most : rebuild->chunk_capacity;
    const uint64_t begin = (first + range - 1) / range * range, end = (first + most) / range * range;
    const uint64_t forced = rebuild->forced_chunks;
    if (item->row_count != 1 || range > rebuild->chunk_capacity || end < begin + held + 1 ||
        end - begin > inputs_read_max(plan->inputs) || (forced > 0 && forced <= held))
        return held;
    plan->chunk_first = begin;
    plan->range_chunks = (size_t)range;
    return end - begin;
}

/* As long as the best split, or a trial where nothing is known. */
static uint64_t chunks_of_split(struct rebuild *rebuild, const struct rebuild_run *plan, uint64_t most,
                                uint64_t missing) {
    const struct inputs_shape *shape = inputs_get_shape(plan->inputs);
    const uint64_t tile = plan->range_chunks > 0 ? plan->range_chunks : 1;
    struct split_question question = {
        .token_count = missing * KV_CHUNK_TOKENS,
        .tokens_max = most * KV_CHUNK_TOKENS,
        .tile_tokens = tile * KV_CHUNK_TOKENS,
        .input_bytes = plan->layer_index > 0 ? (double)inputs_row_bytes(shape) : 0,
        .kv_bytes = (double)(rebuild->kv_head_count * rebuild->chunk_bytes) / KV_CHUNK_TOKENS,
        .bytes_per_second = 1,
        .schedule = SPLIT_COLUMN};
    rebuild->statistics.input_bytes = (double)inputs_row_bytes(shape);
    rebuild->statistics.kv_bytes = question.kv_bytes;
    if (rebuild->forced_chunks > 0)
        return most < rebuild->forced_chunks ? most : rebuild->forced_chunks / tile * tile;
    if (question.input_bytes >= question.kv_bytes) return 0; /* whatever the rates are */
    if (rebuild->link.seconds <= 0 || rebuild->computing.amount <= 0)
        return min_size((size_t)most, max_size(TRIAL_CHUNKS, (size_t)tile));
    question.bytes_per_second = rebuild->link.amount / rebuild->link.seconds;
    question.seconds_per_token = rebuild->computing.seconds / rebuild->computing.amount;
    const struct split split = split_choose(&question);
    const double other = rebuild->besides.amount > 0 ? rebuild->besides.seconds / rebuild->besides.amount : 0;
    const double beside = other > split.seconds_without ? other : split.seconds_without; /* prefetched */
    return split.seconds + other < GAIN_MIN * beside ? split.tokens / KV_CHUNK_TOKENS : 0;
}

/* Which chunks of the layer, into *plan; how many its heads lack in RAM, or 0 where nothing can be computed again. */
static uint64_t decide(struct rebuild *rebuild, const struct attention_layer *layer,
                       struct rebuild_run *plan) {
    const struct attend_operation *operation = &layer->operation;
    *plan = (struct rebuild_run){.layer_index = layer->index};
    if (operation->item_count != 1 || operation->window != 0 || layer->math.rebuild == NULL) return 0;
    struct kv_sequence *sequence = layer->sequences[0];
    const uint64_t length = kv_sequence_length(sequence), position = operation->items[0].position_first;
    const uint64_t full = (position < length ? position : length) / KV_CHUNK_TOKENS;
    plan->inputs = kv_sequence_inputs(sequence);
    if (plan->inputs == NULL || layer->index >= inputs_get_shape(plan->inputs)->layer_count) return 0;
    plan->chunk_end = kv_chunks_of(position + operation->items[0].row_count);
    const struct kv_view view = kv_sequence_view(sequence, layer->index);
    uint64_t missing;
    const uint64_t run = find_run(rebuild, &view, full, &plan->chunk_first, &missing);
    if (run == 0) return missing;
    const uint64_t most = chunks_max(rebuild, plan, run, &operation->items[0]);
    plan->chunk_count = chunks_of_split(rebuild, plan, most, missing);
    return missing;
}

bool rebuild_expects(struct rebuild *rebuild, const struct attention_layer *layer) {
    struct rebuild_run plan;
    return rebuild != NULL && decide(rebuild, layer, &plan) > 0 && plan.chunk_count > 0;
}

bool rebuild_plan(struct rebuild *rebuild, const struct attention_layer *layer) {
    struct rebuild_run *run = &rebuild->run;
    const uint64_t missing = decide(rebuild, layer, run);
    rebuild->statistics.layers += missing > 0;
    rebuild->statistics.missing_chunks += missing;
    rebuild->statistics.chunks += run->chunk_count;
    rebuild->other_count = 0;
    for (uint64_t chunk = 0; chunk < run->chunk_end && run->chunk_count > 0; chunk++)
        if (chunk < run->chunk_first || chunk >= run->chunk_first + run->chunk_count)
            rebuild->others[rebuild->other_count++] = (uint32_t)chunk;
    return run->chunk_count > 0;
}

const uint32_t *rebuild_others(const struct rebuild *rebuild, size_t *count) {
    *count = rebuild->other_count;
    return rebuild->others;
}

/* ---- run ---- */

enum status rebuild_begin(struct rebuild *rebuild, struct error *error) {
    if (rebuild->run.layer_index == 0) return STATUS_OK;
    return inputs_read_begin(rebuild->run.inputs, rebuild->run.layer_index, rebuild->run.chunk_first,
                             (size_t)rebuild->run.chunk_count, error);
}

/* Inputs of a tile into the device's memory. */
static enum status fetch_tile(struct rebuild *rebuild, struct stream *stream, size_t first, size_t count,
                              struct error *error) {
    const size_t chunk = KV_CHUNK_TOKENS * rebuild->hidden_size;
    for (size_t i = 0; i < count; i++)
        TRY(inputs_read_rows(rebuild->run.inputs, first + i, rebuild->rows + i * chunk, error));
    rebuild->device->operations->copy(stream, rebuild->tile, rebuild->rows, count * chunk * sizeof(float));
    return STATUS_OK;
}

/* Where the run's chunk lies in the workspace, from a head's first on. */
static size_t place_of(const struct rebuild_run *run, uint64_t index) {
    return (size_t)(run->range_chunks > 0 ? index % run->range_chunks : index);
}

/* Chunks [first, first + count) of the run. */
static enum status compute_tile(struct rebuild *rebuild, struct stream *stream,
                                const struct attention_layer *layer, size_t first, size_t count,
                                struct error *error) {
    const uint64_t position = (rebuild->run.chunk_first + first) * KV_CHUNK_TOKENS;
    struct rebuild_rows rows = {
        .layer_index = layer->index, .position_first = position, .row_count = count * KV_CHUNK_TOKENS};
    if (layer->index == 0)
        rows.tokens = inputs_tokens(rebuild->run.inputs) + position;
    else
        rows.inputs = rebuild->tile;
    layer->math.rebuild(layer->math.context, &rows);
    const struct attend_item item = {.view = {.layout = rebuild->layout,
                                              .chunks = rebuild->own + place_of(&rebuild->run, first),
                                              .chunk_stride = rebuild->chunk_capacity},
                                     .row_count = rows.row_count};
    rebuild->device->operations->append(stream,
                                        &(struct append_operation){.k = rows.k,
                                                                   .v = rows.v,
                                                                   .k_stride = rows.k_stride,
                                                                   .v_stride = rows.v_stride,
                                                                   .kv_head_count = rebuild->kv_head_count,
                                                                   .items = &item,
                                                                   .item_count = 1});
    return rebuild->device->operations->stream_synchronize(stream,
                                                           error); /* the tile's memory is used again */
}

/* All heads attend to the range that ends before chunk `end` of the run, and its part of the workspace is free. */
static void attend_range(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                         size_t end) {
    const struct rebuild_run *run = &rebuild->run;
    const size_t chunks = run->range_chunks, index = end / chunks - 1;
    const uint64_t chunk_first = run->chunk_first + index * chunks;
    for (size_t head = 0; head < rebuild->kv_head_count; head++)
        for (size_t i = 0; i < chunks; i++)
            rebuild->table[head * rebuild->view_chunks + chunk_first + i] =
                rebuild->own[head * rebuild->chunk_capacity + i];
    const struct attend_ranges range = {.makes = true,
                                        .first = chunk_first / chunks,
                                        .end = chunk_first / chunks + 1,
                                        .partials = rebuild->partials + index * rebuild->partial_floats,
                                        .head_stride = ATTENTION_RANGES * rebuild->partial_floats,
                                        .partial_floats = rebuild->partial_floats};
    struct attend_item item = layer->operation.items[0];
    struct attend_operation operation = layer->operation;
    item.view = (struct kv_view){
        .layout = rebuild->layout, .chunks = rebuild->table, .chunk_stride = rebuild->view_chunks};
    operation.items = &item;
    operation.ranges = &range;
    const uint64_t began = clock_ns();
    rebuild->device->operations->attend(stream, &operation);
    rebuild->attend_ns += clock_ns() - began;
}

enum status rebuild_run(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                        struct error *error) {
    const size_t chunks = (size_t)rebuild->run.chunk_count;
    const uint64_t run_began = clock_ns();
    ASSERT(layer->index == rebuild->run.layer_index);
    rebuild->wait_ns = rebuild->attend_ns = 0;
    for (size_t first = 0, count; first < chunks; first += count) {
        count = min_size(chunks - first, TILE_CHUNKS);
        const uint64_t waited = clock_ns();
        if (layer->index > 0) TRY(fetch_tile(rebuild, stream, first, count, error));
        const uint64_t began = clock_ns();
        rebuild->wait_ns += began - waited;
        TRY(compute_tile(rebuild, stream, layer, first, count, error));
        rate_add(&rebuild->computing, (double)(count * KV_CHUNK_TOKENS), 1e-9 * (double)(clock_ns() - began));
        if (rebuild->run.range_chunks > 0 && (first + count) % rebuild->run.range_chunks == 0)
            attend_range(rebuild, stream, layer, first + count);
    }
    inputs_read_end(rebuild->run.inputs);
    rebuild->run_ns = clock_ns() - run_began;
    return STATUS_OK;
}

void rebuild_refuse(struct rebuild *rebuild) {
    rebuild->statistics.refusals++;
    inputs_refuse(rebuild->run.inputs);
}

struct kv_view rebuild_view(struct rebuild *rebuild, const struct kv_view *view, size_t head_first,
                            size_t head_count) {
    const uint64_t first = rebuild->run.chunk_first, end = first + rebuild->run.chunk_count;
    for (size_t i = 0; i < head_count; i++) {
        void **row = rebuild->table + i * rebuild->view_chunks;
        void *const *own = rebuild->own + (head_first + i) * rebuild->chunk_capacity;
        void *const *others = view->chunks + i * view->chunk_stride;
        for (uint64_t chunk = 0; chunk < rebuild->run.chunk_end; chunk++)
            row[chunk] =
                chunk >= first && chunk < end ? own[place_of(&rebuild->run, chunk - first)] : others[chunk];
    }
    return (struct kv_view){
        .layout = view->layout, .chunks = rebuild->table, .chunk_stride = rebuild->view_chunks};
}

const struct attend_ranges *rebuild_ranges(struct rebuild *rebuild, size_t head_first) {
    const struct rebuild_run *run = &rebuild->run;
    const size_t head_stride = ATTENTION_RANGES * rebuild->partial_floats;
    if (run->range_chunks == 0) return NULL;
    rebuild->ranges = (struct attend_ranges){.first = run->chunk_first / run->range_chunks,
                                             .end = (run->chunk_first + run->chunk_count) / run->range_chunks,
                                             .partials = rebuild->partials + head_first * head_stride,
                                             .head_stride = head_stride,
                                             .partial_floats = rebuild->partial_floats};
    return &rebuild->ranges;
}

/* A layer that waited for most of its time took as long as the link needed; from any other it follows that the link is
 * at least as fast.  What is neither waiting nor rebuilding a layer computes in any case. */
void rebuild_note(struct rebuild *rebuild, const struct rebuild_layer *layer) {
    const double seconds = 1e-9 * (double)(layer->end_ns - layer->begin_ns),
                 waited = 1e-9 * (double)layer->wait_ns;
    const struct rebuild_run *run = &rebuild->run;
    double bytes = (double)layer->kv_bytes, rebuilding = 0;
    if (layer->is_rebuilt) {
        rebuilding = 1e-9 * (double)(rebuild->run_ns - rebuild->attend_ns);
        if (run->layer_index > 0)
            bytes += (double)(run->chunk_count * KV_CHUNK_TOKENS) *
                     (double)inputs_row_bytes(inputs_get_shape(run->inputs));
        const bool is_bound = waited + 1e-9 * (double)rebuild->wait_ns >= WAIT_MIN * seconds;
        if (bytes > 0 && (is_bound || bytes * rebuild->link.seconds > rebuild->link.amount * seconds))
            rate_add(&rebuild->link, bytes, seconds);
    }
    if (rebuild->last_end_ns > 0 && rebuild->last_end_ns < layer->begin_ns && rebuild->run.layer_index > 0)
        rate_add(&rebuild->besides, 1,
                 1e-9 * (double)(layer->begin_ns - rebuild->last_end_ns) + seconds - waited - rebuilding);
    rebuild->last_end_ns = layer->end_ns;
}

void rebuild_set_link(struct rebuild *rebuild, double bytes_per_second) {
    rebuild->link = (struct rate){bytes_per_second, 1};
}

void rebuild_force(struct rebuild *rebuild, size_t chunks) { rebuild->forced_chunks = chunks; }

struct rebuild_statistics rebuild_statistics(const struct rebuild *rebuild) {
    struct rebuild_statistics statistics = rebuild->statistics;
    if (rebuild->link.seconds > 0) statistics.bytes_per_second = rebuild->link.amount / rebuild->link.seconds;
    if (rebuild->computing.amount > 0)
        statistics.seconds_per_token = rebuild->computing.seconds / rebuild->computing.amount;
    return statistics;
}
