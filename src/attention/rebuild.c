#include "attention/rebuild.h"

#include <stdlib.h>

#include "attention/rebuild_rates.h"
#include "base/assert.h"
#include "base/checked.h"
#include "platform/clock.h"

enum {
    TILE_CHUNKS = REBUILD_ROWS_MAX / KV_CHUNK_TOKENS,
    BESIDE_HEADS = 2,
    LOOK_PARTS = 6,    /* two looks are near if they are no further apart than a sixth of what is measured by them */
    WAITED_NS = 20000, /* a call that takes less has not waited */
};
static const double WAIT_MIN = 0.05; /* of a step's time; a shorter wait may not have been for the link */

/* The chunks of a layer that are computed again: [chunk_first, chunk_first + chunk_count) of chunk_end. */
struct rebuild_run {
    size_t layer_index;
    struct inputs *inputs; /* its sequence's */
    uint64_t chunk_first, chunk_count, chunk_end;
    size_t range_chunks; /* each range of so many is attended to as it is computed; 0: all stay in the workspace */
    size_t ring_chunks;  /* whole ranges, that are in the workspace at once */
    bool stays;          /* none is in the workspace: they are computed to where the tier would read them */
};

/* The reads that were begun with a run. */
struct first_reads {
    uint64_t begin_ns, arrived_ns; /* 0: not yet */
    uint64_t missing_ns;           /* the last time at which they were not all there */
    double bytes;
    size_t jobs;   /* of the others */
    bool is_bound; /* arrived_ns is known well enough to be the link's time; else they arrived no later */
};

/* The layers of a step so far. */
struct rebuild_step {
    size_t last_layer;
    uint64_t begin_ns, last_end_ns; /* of the first and the last of them; 0: there was none */
    uint64_t wait_ns, kv_bytes;
    bool is_rebuilt; /* one of them, in part */
};

/* Where chunks are computed. */
struct workspace {
    struct slab chunks;      /* MEMORY_DEVICE; [kv_head_count][chunk_capacity] */
    struct kv_pools pools;   /* POOL_OTHER is chunks; the rest the cache's */
    struct page_table own;   /* [kv_head_count][chunk_capacity]: the places of chunks */
    struct page_table table; /* [kv_head_count][view_chunks]: of a view */
    uint32_t *others;        /* owned; [view_chunks] */
    size_t other_count;
    struct buffer rows;     /* owned MEMORY_SHARED; float: a tile's inputs */
    struct buffer tile;     /* owned MEMORY_DEVICE; the same */
    struct buffer partials; /* owned MEMORY_DEVICE; of attend_ranges */
};

/* The planned layer, and the rebuilding in it. */
struct layer_run {
    struct stream *stream;       /* borrowed */
    struct attend_ranges ranges; /* as they are handed out */
    struct rebuild_run run;
    struct kv_sequence *computing;                /* whose run stays, until it is ended; NULL: none is under way */
    uint64_t computed_chunks;                     /* of it */
    uint64_t run_ns, wait_ns, attend_ns, read_ns; /* all of it; for inputs, for attention, for the others */
};

struct rebuild {
    struct device *device;                                          /* borrowed */
    size_t kv_head_count, hidden_size, chunk_capacity, view_chunks; /* the first: the most of any layer */
    const struct kv_groups *groups;                                 /* borrowed; NULL: all layers are alike */
    size_t chunk_bytes, forced_chunks;                              /* the first: the most of any layer */
    bool shares_link;
    const struct kv_cache *cache; /* borrowed */
    size_t head_count;
    struct workspace memory;
    struct layer_run layer;
    struct first_reads first_reads;
    struct rebuild_rates rates;
    struct rebuild_step step; /* under way */
    struct rebuild_statistics statistics;
    struct error refusal; /* the first */
};

/* ---- life ---- */

static size_t workspace_bytes(const struct attention_options *options) {
    return options->kv_head_count * options->rebuild.chunks * options->rebuild.chunk_bytes;
}

static size_t tile_bytes(const struct attention_options *options) {
    return REBUILD_ROWS_MAX * options->rebuild.hidden_size * sizeof(float);
}

size_t rebuild_partial_floats(const struct device *device, size_t head_count, size_t v_dimension) {
    const struct range_form form = device_range_form(device);
    return head_count * form.count_max * (form.partial_floats + v_dimension);
}

static size_t partials_bytes(const struct device *device, const struct attention_options *options) {
    return rebuild_partial_floats(device, options->head_count, options->rebuild.v_dimension) * sizeof(float);
}

uint64_t rebuild_bytes(const struct attention_options *options) {
    const uint64_t chunks = kv_chunks_of(options->context_size);
    if (options->rebuild.chunks == 0) return 0;
    return sizeof(struct rebuild) + workspace_bytes(options) + 2 * tile_bytes(options) + partials_bytes(NULL, options) +
           page_table_bytes(options->kv_head_count, options->rebuild.chunks) +
           page_table_bytes(options->kv_head_count, chunks) + chunks * sizeof(uint32_t);
}

/* Of a head's chunk in the workspace. */
static uint32_t own_place(const struct rebuild *rebuild, size_t head, size_t index) {
    return place_make(POOL_OTHER, head * rebuild->chunk_capacity + index);
}

static enum status init(struct rebuild *rebuild, const struct attention_options *options, struct error *error) {
    const struct device_operations *operations = rebuild->device->operations;
    const size_t heads = rebuild->kv_head_count;
    struct device *device = rebuild->device;
    TRY(slab_init(&rebuild->memory.chunks, rebuild->device, MEMORY_DEVICE, rebuild->chunk_bytes,
                  heads * rebuild->chunk_capacity, error));
    TRY(page_table_init(&rebuild->memory.own, rebuild->device, heads, rebuild->chunk_capacity, error));
    TRY(page_table_init(&rebuild->memory.table, rebuild->device, heads, rebuild->view_chunks, error));
    TRY(operations->allocate(device, MEMORY_SHARED, tile_bytes(options), &rebuild->memory.rows, error));
    TRY(operations->allocate(device, MEMORY_DEVICE, tile_bytes(options), &rebuild->memory.tile, error));
    TRY(operations->allocate(device, MEMORY_DEVICE, partials_bytes(device, options), &rebuild->memory.partials, error));
    rebuild->memory.others = calloc(rebuild->view_chunks, sizeof *rebuild->memory.others);
    if (rebuild->memory.others == NULL) return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    for (size_t head = 0; head < heads; head++)
        for (size_t i = 0; i < rebuild->chunk_capacity; i++)
            page_table_set(&rebuild->memory.own, head, i, own_place(rebuild, head, i));
    return STATUS_OK;
}

enum status rebuild_create(struct rebuild **result, struct device *device, const struct attention_options *options,
                           struct error *error) {
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    *result = rebuild;
    if (rebuild == NULL) return error_set(error, STATUS_MEMORY, "rebuilding: out of memory");
    *rebuild = (struct rebuild){.device = device,
                                .kv_head_count = options->kv_head_count,
                                .hidden_size = options->rebuild.hidden_size,
                                .chunk_capacity = options->rebuild.chunks,
                                .view_chunks = (size_t)kv_chunks_of(options->context_size),
                                .chunk_bytes = options->rebuild.chunk_bytes,
                                .shares_link = options->rebuild.shares_link,
                                .groups = options->groups,
                                .head_count = options->head_count,
                                .cache = options->cache};
    rebuild_rates_init(&rebuild->rates);
    ASSERT(rebuild->chunk_bytes == kv_cache_chunk_bytes_max(kv_cache_get_config(options->cache)));
    return init(rebuild, options, error);
}

void rebuild_destroy(struct rebuild *rebuild) {
    if (rebuild == NULL) return;
    const struct device_operations *operations = rebuild->device->operations;
    operations->release(rebuild->device, &rebuild->memory.partials);
    operations->release(rebuild->device, &rebuild->memory.rows);
    operations->release(rebuild->device, &rebuild->memory.tile);
    slab_deinit(&rebuild->memory.chunks);
    page_table_deinit(&rebuild->memory.own);
    page_table_deinit(&rebuild->memory.table);
    free(rebuild->memory.others);
    free(rebuild);
}

/* ---- a layer ---- */

static size_t heads_of(const struct rebuild *rebuild, size_t layer) {
    return kv_layer_heads(rebuild->groups, rebuild->kv_head_count, layer);
}

static const struct kv_layout *layout_of(const struct rebuild *rebuild, size_t layer) {
    return kv_cache_layer_layout(rebuild->cache, layer);
}

/* Of a KV head on: what is kept of its query heads. */
static struct span partials_of(const struct rebuild *rebuild, size_t layer, size_t head_first) {
    const size_t group = rebuild->head_count / heads_of(rebuild, layer);
    return span_floats(
        span_of(&rebuild->memory.partials, 0),
        rebuild_partial_floats(rebuild->device, head_first * group, layout_of(rebuild, layer)->v_dimension));
}

/* Whose KV has room while others are computed. */
static uint64_t held_tokens(const struct rebuild *rebuild, size_t layer) {
    return kv_tier_beside_chunks(rebuild->cache) / heads_of(rebuild, layer) * KV_CHUNK_TOKENS;
}

/* ---- plan ---- */

static enum rebuild_kind kind_of(size_t row_count) { return row_count == 1 ? REBUILD_STEP : REBUILD_PROMPT; }

static bool is_missing(const struct rebuild *rebuild, const struct kv_sequence *sequence, size_t layer,
                       uint64_t chunk) {
    for (size_t head = 0; head < heads_of(rebuild, layer); head++)
        if (kv_sequence_places(sequence, layer, head)[chunk] == PLACE_NOWHERE) return true;
    return false;
}

/* The first run of chunks that are missing, *first and the return value, and how many are missing in all. */
static uint64_t find_run(const struct rebuild *rebuild, const struct kv_sequence *sequence, size_t layer, uint64_t full,
                         uint64_t *first, uint64_t *missing) {
    uint64_t run = 0;
    bool is_over = false;
    *first = *missing = 0;
    for (uint64_t chunk = 0; chunk < full; chunk++) {
        if (!is_missing(rebuild, sequence, layer, chunk)) {
            is_over = *missing > 0;
            continue;
        }
        if (*missing == 0) *first = chunk;
        ++*missing;
        run += !is_over;
    }
    return run;
}

/* How many chunks of the run can be computed again: all of them, if the tier has room (the run stays); else what the
 * workspace holds, or whole ranges, of which each attends by itself, if these are more.  Then the run begins where a
 * range does. */
static uint64_t chunks_max(const struct rebuild *rebuild, struct rebuild_run *plan, uint64_t run,
                           const struct attend_item *item) {
    const uint64_t first = plan->chunk_first, kept = inputs_chunks(plan->inputs),
                   range = device_range_form(rebuild->device).rows(item->position_first + 1) / KV_CHUNK_TOKENS;
    uint64_t most = kept > first ? kept - first : 0;
    most = most < run ? most : run;
    if (plan->stays) return min_size(most, inputs_read_max(plan->inputs));
    const uint64_t held = most < rebuild->chunk_capacity ? most : rebuild->chunk_capacity;
    const uint64_t begin = (first + range - 1) / range * range, end = (first + most) / range * range;
    const uint64_t forced = rebuild->forced_chunks;
    if (item->row_count != 1 || range > rebuild->chunk_capacity || end < begin + held + 1 ||
        end - begin > inputs_read_max(plan->inputs) || (forced > 0 && forced <= held))
        return held;
    plan->chunk_first = begin;
    plan->range_chunks = (size_t)range;
    plan->ring_chunks = (size_t)range;
    while (plan->ring_chunks < TILE_CHUNKS && plan->ring_chunks + range <= rebuild->chunk_capacity)
        plan->ring_chunks += (size_t)range;
    return end - begin;
}

/* As long as the rates say. */
static uint64_t chunks_of_split(struct rebuild *rebuild, const struct rebuild_run *plan, uint64_t most,
                                uint64_t missing, enum rebuild_kind kind) {
    const double input_bytes = (double)inputs_chunk_bytes(inputs_get_shape(plan->inputs)) / KV_CHUNK_TOKENS;
    const uint64_t tile = plan->range_chunks > 0 ? plan->range_chunks : 1;
    struct split_question question = {.token_count = missing * KV_CHUNK_TOKENS,
                                      .tokens_max = most * KV_CHUNK_TOKENS,
                                      .tile_tokens = tile * KV_CHUNK_TOKENS,
                                      .input_bytes = plan->layer_index > 0 ? input_bytes : 0,
                                      .kv_bytes = (double)(heads_of(rebuild, plan->layer_index) *
                                                           layout_of(rebuild, plan->layer_index)->chunk_bytes) /
                                                  KV_CHUNK_TOKENS,
                                      .schedule = SPLIT_OVERLAPPED,
                                      .first_tokens = REBUILD_ROWS_MAX,
                                      .held_tokens = held_tokens(rebuild, plan->layer_index)};
    rebuild->statistics.input_bytes = input_bytes;
    rebuild->statistics.kv_bytes = question.kv_bytes;
    if (rebuild->forced_chunks == REBUILD_NOTHING) return 0;
    if (rebuild->forced_chunks > 0) return most < rebuild->forced_chunks ? most : rebuild->forced_chunks / tile * tile;
    if (question.input_bytes >= question.kv_bytes) return 0; /* whatever the rates are */
    return rebuild_rates_choose(&rebuild->rates, &question, kind) / KV_CHUNK_TOKENS;
}

/* Which chunks of the layer, into *plan; how many its heads lack in RAM, or 0 where nothing can be computed again. */
static uint64_t decide(struct rebuild *rebuild, const struct attention_layer *layer, struct rebuild_run *plan) {
    const struct attend_operation *operation = &layer->operation;
    *plan = (struct rebuild_run){.layer_index = layer->index};
    if (operation->item_count != 1 || operation->window != 0 || layer->math.rebuild == NULL) return 0;
    struct kv_sequence *sequence = layer->sequences[0];
    const uint64_t length = kv_sequence_length(sequence), position = operation->items[0].position_first;
    const uint64_t full = (position < length ? position : length) / KV_CHUNK_TOKENS;
    plan->inputs = kv_sequence_inputs(sequence);
    if (plan->inputs == NULL || layer->index >= inputs_get_shape(plan->inputs)->layer_count) return 0;
    plan->chunk_end = kv_chunks_of(position + operation->items[0].row_count);
    uint64_t missing;
    const uint64_t run = find_run(rebuild, sequence, layer->index, full, &plan->chunk_first, &missing);
    if (run == 0) return missing;
    plan->stays = kv_sequence_has_room(sequence, missing);
    const uint64_t most = chunks_max(rebuild, plan, run, &operation->items[0]);
    plan->chunk_count = chunks_of_split(rebuild, plan, most, missing, kind_of(operation->items[0].row_count));
    return missing;
}

bool rebuild_expects(struct rebuild *rebuild, const struct attention_layer *layer) {
    struct rebuild_run plan;
    return rebuild != NULL && decide(rebuild, layer, &plan) > 0 && plan.chunk_count > 0;
}

/* What was computed of a run that stays is there from now on. */
static void end_computing(struct rebuild *rebuild) {
    const struct rebuild_run *run = &rebuild->layer.run;
    if (rebuild->layer.computing == NULL) return;
    kv_sequence_end_computing(rebuild->layer.computing, run->layer_index, run->chunk_first, run->chunk_count,
                              rebuild->layer.computed_chunks,
                              rebuild->device->operations->ticket(rebuild->layer.stream));
    rebuild->statistics.kept_chunks += rebuild->layer.computed_chunks;
    rebuild->layer.computing = NULL;
}

/* Before anything is read for the layer: then slots are there for both. */
static void begin_computing(struct rebuild *rebuild, struct kv_sequence *sequence) {
    struct rebuild_run *run = &rebuild->layer.run;
    rebuild->layer.computed_chunks = 0;
    if (!run->stays || run->chunk_count == 0) return;
    run->stays = kv_sequence_begin_computing(sequence, run->layer_index, run->chunk_first, run->chunk_count);
    if (run->stays)
        rebuild->layer.computing = sequence;
    else
        run->chunk_count = min_size(run->chunk_count, rebuild->chunk_capacity);
}

bool rebuild_plan(struct rebuild *rebuild, const struct attention_layer *layer) {
    struct rebuild_run *run = &rebuild->layer.run;
    ASSERT(rebuild->layer.computing == NULL);
    const uint64_t missing = decide(rebuild, layer, run);
    begin_computing(rebuild, layer->sequences[0]);
    rebuild->statistics.layers += missing > 0;
    rebuild->statistics.missing_chunks += missing;
    rebuild->statistics.chunks += run->chunk_count;
    rebuild->memory.other_count = 0;
    for (uint64_t chunk = 0; chunk < run->chunk_end && run->chunk_count > 0; chunk++)
        if (chunk < run->chunk_first || chunk >= run->chunk_first + run->chunk_count)
            rebuild->memory.others[rebuild->memory.other_count++] = (uint32_t)chunk;
    return run->chunk_count > 0;
}

const uint32_t *rebuild_others(const struct rebuild *rebuild, size_t *count) {
    *count = rebuild->memory.other_count;
    return rebuild->memory.others;
}

/* ---- run ---- */

/* Enough for the disk to be busy while a tile is computed, and no more: the next inputs come behind it. */
static void read_beside(const struct rebuild *rebuild, struct fetch *others) {
    fetch_keep_busy(others, BESIDE_HEADS * rebuild->memory.other_count);
}

/* The disk is busy with inputs until those of the first tile have come: what is asked for earlier delays these, as a
 * disk does not serve one request after the other. */
static bool others_can_wait(const struct rebuild *rebuild) {
    const struct rebuild_run *run = &rebuild->layer.run;
    return run->layer_index > 0 && run->chunk_count > TILE_CHUNKS && inputs_has_begun(run->inputs, TILE_CHUNKS);
}

static void begin_others(struct rebuild *rebuild, struct fetch *others) {
    struct first_reads *reads = &rebuild->first_reads;
    read_beside(rebuild, others);
    reads->bytes =
        (double)(fetch_missed(others, others->begun) * layout_of(rebuild, rebuild->layer.run.layer_index)->chunk_bytes);
    if (rebuild->layer.run.layer_index > 0) reads->bytes += (double)inputs_begun_bytes(rebuild->layer.run.inputs);
    reads->jobs = others->begun;
}

enum status rebuild_begin(struct rebuild *rebuild, struct fetch *others, struct error *error) {
    struct first_reads *reads = &rebuild->first_reads;
    const uint64_t now = clock_ns();
    *reads = (struct first_reads){.begin_ns = now, .missing_ns = now};
    if (rebuild->layer.run.layer_index > 0)
        TRY(inputs_read_begin(rebuild->layer.run.inputs, rebuild->layer.run.layer_index, rebuild->layer.run.chunk_first,
                              (size_t)rebuild->layer.run.chunk_count, error));
    if (!others_can_wait(rebuild)) begin_others(rebuild, others);
    return STATUS_OK;
}

/* For the inputs of a tile. */
static enum status wait_tile(struct rebuild *rebuild, size_t first, size_t count, struct error *error) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t began = clock_ns();
        TRY(inputs_read_wait(rebuild->layer.run.inputs, first + i, error));
        const uint64_t now = clock_ns();
        if (now - began >= WAITED_NS && inputs_has_begun(rebuild->layer.run.inputs, first + i))
            rebuild->first_reads.missing_ns = now;
        rebuild->layer.wait_ns += now - began;
    }
    return STATUS_OK;
}

/* They have come: into the device's memory. */
static enum status fetch_tile(struct rebuild *rebuild, struct stream *stream, size_t first, size_t count,
                              struct error *error) {
    const size_t chunk = KV_CHUNK_TOKENS * rebuild->hidden_size;
    float *rows = rebuild->memory.rows.host;
    for (size_t i = 0; i < count; i++)
        TRY(inputs_read_rows(rebuild->layer.run.inputs, first + i, rows + i * chunk, error));
    rebuild->device->operations->copy(stream, span_of(&rebuild->memory.tile, 0), span_of(&rebuild->memory.rows, 0),
                                      count * chunk * sizeof(float));
    return STATUS_OK;
}

/* Where the run's chunk lies in the workspace, from a head's first on. */
static size_t place_of(const struct rebuild_run *run, uint64_t index) {
    return (size_t)(run->range_chunks > 0 ? index % run->ring_chunks : index);
}

/* A view of one of the own tables, which shows chunks of the workspace and those of a sequence's view. */
static struct kv_view own_view(struct rebuild *rebuild, struct stream *stream, struct page_table *table,
                               const struct kv_view *others) {
    page_table_update(table, stream, 0, table->lane_count);
    return rebuild_view_of(&rebuild->memory.pools, &rebuild->memory.chunks, table, others);
}

struct kv_view rebuild_view_of(struct kv_pools *pools, const struct slab *chunks, const struct page_table *table,
                               const struct kv_view *others) {
    *pools = *others->pools;
    pools->list[POOL_OTHER] = chunks->pool;
    return (struct kv_view){.layout = others->layout,
                            .pools = pools,
                            .chunks = page_table_lane(table, 0),
                            .chunk_stride = table->chunk_capacity};
}

void rebuild_append(struct device *device, struct stream *stream, const struct rebuild_rows *rows, size_t kv_head_count,
                    const struct attend_item *item) {
    device->operations->append(stream, &(struct append_operation){.k = rows->k,
                                                                  .v = rows->v,
                                                                  .k_stride = rows->k_stride,
                                                                  .v_stride = rows->v_stride,
                                                                  .kv_head_count = kv_head_count,
                                                                  .items = item,
                                                                  .item_count = 1,
                                                                  .step = rows->step});
}

/* Chunks [first, first + count) of the run. */
static enum status compute_tile(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                                size_t first, size_t count, struct error *error) {
    const uint64_t position = (rebuild->layer.run.chunk_first + first) * KV_CHUNK_TOKENS;
    struct rebuild_rows rows = {
        .layer_index = layer->index, .position_first = position, .row_count = count * KV_CHUNK_TOKENS};
    if (layer->index == 0)
        rows.tokens = inputs_tokens(rebuild->layer.run.inputs) + position;
    else
        rows.inputs = span_of(&rebuild->memory.tile, 0);
    layer->math.rebuild(layer->math.context, &rows);
    struct attend_item item = {.view = own_view(rebuild, stream, &rebuild->memory.own, &layer->operation.items[0].view),
                               .row_count = rows.row_count};
    item.view = kv_view_chunks(&item.view, place_of(&rebuild->layer.run, first));
    if (rebuild->layer.run.stays) {
        item.view = kv_sequence_view(rebuild->layer.computing, stream, layer->index);
        item.view = kv_view_chunks(&item.view, rebuild->layer.run.chunk_first + first);
    }
    rebuild_append(rebuild->device, stream, &rows, layer->operation.kv_head_count, &item);
    return rebuild->device->operations->stream_synchronize(stream, error); /* the tile's memory is used again */
}

/* All heads attend to the ranges that end before chunk `end` of the run, and the workspace is free. */
static void attend_range(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                         size_t end) {
    const struct rebuild_run *run = &rebuild->layer.run;
    const size_t first = (end - 1) / run->ring_chunks * run->ring_chunks;
    const uint64_t chunk_first = run->chunk_first + first;
    for (size_t head = 0; head < heads_of(rebuild, run->layer_index); head++)
        for (size_t i = 0; i < end - first; i++)
            page_table_set(&rebuild->memory.table, head, chunk_first + i, own_place(rebuild, head, i));
    const struct attend_ranges range = {.makes = true,
                                        .first = chunk_first / run->range_chunks,
                                        .end = (run->chunk_first + end) / run->range_chunks,
                                        .partials = partials_of(rebuild, run->layer_index, 0)};
    struct attend_item item = layer->operation.items[0];
    struct attend_operation operation = layer->operation;
    item.view = own_view(rebuild, stream, &rebuild->memory.table, &item.view);
    operation.items = &item;
    operation.ranges = &range;
    const uint64_t began = clock_ns();
    rebuild->device->operations->attend(stream, &operation);
    rebuild->layer.attend_ns += clock_ns() - began;
}

/* When they have arrived, which is between two looks: the link may be idle from then on.  Where these are far apart it
 * is the later one, so that the link is not taken for faster than it is. */
static enum status look_for_first_reads(struct rebuild *rebuild, struct fetch *others, struct error *error) {
    struct first_reads *reads = &rebuild->first_reads;
    if (reads->arrived_ns > 0) return STATUS_OK;
    bool arrived = fetch_have_arrived(others, reads->jobs);
    if (arrived && rebuild->layer.run.layer_index > 0)
        TRY(inputs_begun_look(rebuild->layer.run.inputs, &arrived, error));
    const uint64_t now = clock_ns(), between = now - reads->missing_ns;
    if (!arrived) {
        reads->missing_ns = now;
        return STATUS_OK;
    }
    reads->is_bound = LOOK_PARTS * between <= now - reads->begin_ns;
    reads->arrived_ns = reads->is_bound ? now - between / 2 : now;
    return STATUS_OK;
}

/* Between two computations: what has come is checked, and more is asked for. */
static enum status look_and_read(struct rebuild *rebuild, struct fetch *others, struct error *error) {
    const uint64_t began = clock_ns();
    if (rebuild->first_reads.jobs == 0) {
        begin_others(rebuild, others);
    } else {
        TRY(look_for_first_reads(rebuild, others, error));
        read_beside(rebuild, others);
    }
    rebuild->layer.read_ns += clock_ns() - began;
    return STATUS_OK;
}

/* Chunks [first, first + count) of the run, from their inputs on. */
static enum status rebuild_tile(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                                struct fetch *others, size_t first, size_t count, struct error *error) {
    const uint64_t began = clock_ns(), not_computing = rebuild->layer.wait_ns + rebuild->layer.read_ns;
    if (layer->index > 0) TRY(wait_tile(rebuild, first, count, error));
    TRY(look_and_read(rebuild, others, error));
    if (layer->index > 0) TRY(fetch_tile(rebuild, stream, first, count, error));
    TRY(compute_tile(rebuild, stream, layer, first, count, error));
    const uint64_t other = rebuild->layer.wait_ns + rebuild->layer.read_ns - not_computing;
    rebuild->layer.computed_chunks += count;
    rebuild_rates_add_computing(&rebuild->rates, (double)(count * KV_CHUNK_TOKENS),
                                1e-9 * (double)(clock_ns() - began - other));
    return STATUS_OK;
}

enum status rebuild_run(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                        struct fetch *others, struct error *error) {
    const size_t chunks = (size_t)rebuild->layer.run.chunk_count;
    const uint64_t run_began = clock_ns();
    ASSERT(layer->index == rebuild->layer.run.layer_index);
    rebuild->layer.stream = stream;
    rebuild->layer.wait_ns = rebuild->layer.attend_ns = rebuild->layer.read_ns = 0;
    const size_t ring = rebuild->layer.run.range_chunks > 0 ? rebuild->layer.run.ring_chunks : chunks;
    for (size_t first = 0, count; first < chunks; first += count) {
        count = min_size(min_size(chunks - first, TILE_CHUNKS), ring - first % ring);
        if (layer->index > 0) count = min_size(count, inputs_read_ahead(rebuild->layer.run.inputs, first));
        TRY(rebuild_tile(rebuild, stream, layer, others, first, count, error));
        const size_t end = first + count;
        if (rebuild->layer.run.range_chunks > 0 && (end % ring == 0 || end == chunks))
            attend_range(rebuild, stream, layer, end);
        TRY(look_and_read(rebuild, others, error));
    }
    inputs_read_end(rebuild->layer.run.inputs);
    rebuild->layer.run_ns = clock_ns() - run_began;
    rebuild_rates_add_reading(&rebuild->rates,
                              (double)(fetch_missed(others, others->begun) * KV_CHUNK_TOKENS) /
                                  (double)heads_of(rebuild, layer->index),
                              1e-9 * (double)rebuild->layer.read_ns);
    return STATUS_OK;
}

void rebuild_refuse(struct rebuild *rebuild, const struct error *why) {
    end_computing(rebuild);
    if (rebuild->statistics.refusals++ == 0) rebuild->refusal = *why;
    inputs_refuse(rebuild->layer.run.inputs);
}

struct kv_view rebuild_view(struct rebuild *rebuild, struct stream *stream, const struct kv_view *view,
                            const struct kv_fetch *first, size_t head_count) {
    const struct rebuild_run *run = &rebuild->layer.run;
    if (run->stays) return *view;
    for (size_t i = 0; i < head_count; i++) {
        const size_t head = first->kv_head + i;
        const uint32_t *others = kv_sequence_places(first->sequence, run->layer_index, head);
        for (uint64_t chunk = 0; chunk < run->chunk_end; chunk++) {
            const bool is_own = chunk >= run->chunk_first && chunk < run->chunk_first + run->chunk_count;
            page_table_set(&rebuild->memory.table, i, chunk,
                           is_own ? own_place(rebuild, head, place_of(run, chunk - run->chunk_first)) : others[chunk]);
        }
    }
    return own_view(rebuild, stream, &rebuild->memory.table, view);
}

const struct attend_ranges *rebuild_ranges(struct rebuild *rebuild, size_t head_first) {
    const struct rebuild_run *run = &rebuild->layer.run;
    if (run->range_chunks == 0) return NULL;
    rebuild->layer.ranges = (struct attend_ranges){.first = run->chunk_first / run->range_chunks,
                                                   .end = (run->chunk_first + run->chunk_count) / run->range_chunks,
                                                   .partials = partials_of(rebuild, run->layer_index, head_first)};
    return &rebuild->layer.ranges;
}

static double seconds_between(uint64_t begin_ns, uint64_t end_ns) { return 1e-9 * (double)(end_ns - begin_ns); }

/* Where weights come over the link as well, it did not move these bytes alone: it is at least as fast, and what it was
 * measured to be before the first step stays. */
static void add_link(struct rebuild *rebuild, double bytes, double seconds, bool is_bound) {
    rebuild_rates_add_link(&rebuild->rates, bytes, seconds, is_bound && !rebuild->shares_link);
}

/* The link was never idle until the first reads had arrived, or all of them if these took longer. */
static void note_link(struct rebuild *rebuild, const struct rebuild_layer *layer) {
    const struct first_reads *reads = &rebuild->first_reads;
    const struct rebuild_run *run = &rebuild->layer.run;
    const uint64_t chunks = run->layer_index > 0 ? run->chunk_count : 0;
    if (reads->arrived_ns > 0)
        add_link(rebuild, reads->bytes, seconds_between(reads->begin_ns, reads->arrived_ns), reads->is_bound);
    else
        add_link(rebuild, (double)(layer->kv_bytes + chunks * inputs_chunk_bytes(inputs_get_shape(run->inputs))),
                 seconds_between(reads->begin_ns, layer->read_end_ns), true);
}

/* What is neither waiting nor rebuilding a layer computes in any case. */
static void note_besides(struct rebuild *rebuild, const struct rebuild_layer *layer, double rebuilding) {
    const struct rebuild_step *step = &rebuild->step;
    if (step->last_end_ns == 0 || layer->index != step->last_layer + 1) return;
    rebuild_rates_add_besides(&rebuild->rates, kind_of(layer->row_count),
                              seconds_between(step->last_end_ns, layer->end_ns) - 1e-9 * (double)layer->wait_ns -
                                  rebuilding);
}

void rebuild_note(struct rebuild *rebuild, const struct rebuild_layer *layer) {
    struct rebuild_step *step = &rebuild->step;
    double rebuilding = 0;
    end_computing(rebuild);
    if (layer->is_rebuilt) {
        rebuilding = 1e-9 * (double)(rebuild->layer.run_ns - rebuild->layer.attend_ns);
        note_link(rebuild, layer);
    }
    note_besides(rebuild, layer, rebuilding);
    if (step->begin_ns == 0) step->begin_ns = layer->begin_ns;
    step->is_rebuilt = step->is_rebuilt || layer->is_rebuilt;
    step->wait_ns += layer->wait_ns;
    step->kv_bytes += layer->kv_bytes;
    step->last_layer = layer->index;
    step->last_end_ns = layer->end_ns;
}

/* Where layers are prefetched their reads cannot be told apart, but the step's can: if it waited for some of them, the
 * link was busy all the time. */
void rebuild_end_step(struct rebuild *rebuild) {
    const struct rebuild_step *step = &rebuild->step;
    const double seconds = seconds_between(step->begin_ns, step->last_end_ns);
    end_computing(rebuild); /* of a layer that failed */
    if (step->last_end_ns > 0 && !step->is_rebuilt)
        add_link(rebuild, (double)step->kv_bytes, seconds, 1e-9 * (double)step->wait_ns >= WAIT_MIN * seconds);
    rebuild->step = (struct rebuild_step){0};
    rebuild_rates_end_step(&rebuild->rates);
}

void rebuild_set_link(struct rebuild *rebuild, double bytes_per_second) {
    rebuild_rates_add_link(&rebuild->rates, bytes_per_second, 1, true);
    rebuild_rates_end_step(&rebuild->rates);
}

void rebuild_force(struct rebuild *rebuild, size_t chunks) { rebuild->forced_chunks = chunks; }

#define ROW(KIND, UNIT, MEMBER, NAME, HELP) COUNTER_ROW(KIND, UNIT, struct rebuild_statistics, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(TOTAL, ITEMS, layers, "layers", "Layers that lacked chunks in RAM whose inputs are kept."),
    ROW(TOTAL, ITEMS, missing_chunks, "missing_chunks", "Chunks of those layers, each of all heads."),
    ROW(TOTAL, ITEMS, chunks, "rebuilt_chunks", "Of them computed again."),
    ROW(TOTAL, ITEMS, kept_chunks, "kept_chunks", "Of those, chunks that stayed in RAM."),
    ROW(TOTAL, ITEMS, refusals, "refusals", "Inputs that could not be read."),
    ROW(LEVEL, BYTES, input_bytes, "input_bytes", "Of a token and layer."),
    ROW(LEVEL, BYTES, kv_bytes, "kv_bytes", "Of a token and layer."),
    ROW(LEVEL, PER_SECOND, bytes_per_second, "link_bytes_per_second", "At which KV is read."),
    ROW(LEVEL, SECONDS, seconds_per_token, "seconds_per_token", "To compute K and V of one token of one layer."),
    ROW(LEVEL, SECONDS, seconds_per_read, "seconds_per_read", "Of a token that is read beside."),
    ROW(LEVEL, SECONDS, seconds_besides, "seconds_besides", "Of the rest of a layer of a step."),
    ROW(LEVEL, ITEMS, held_tokens, "held_tokens", "Tokens whose KV memory has room for meanwhile."),
};
#undef ROW
const struct counter_table rebuild_counters = COUNTER_TABLE("rebuild_", struct rebuild_statistics, counter_rows);

struct rebuild_statistics rebuild_statistics(const struct rebuild *rebuild) {
    struct rebuild_statistics statistics = rebuild->statistics;
    if (statistics.refusals > 0) statistics.refusal = rebuild->refusal.message;
    statistics.bytes_per_second = rate_per_second(&rebuild->rates.link);
    statistics.seconds_per_token = rate_seconds(&rebuild->rates.computing);
    statistics.seconds_per_read = rate_seconds(&rebuild->rates.reading);
    statistics.held_tokens = held_tokens(rebuild, 0);
    statistics.seconds_besides = rate_seconds(&rebuild->rates.besides[REBUILD_STEP]);
    return statistics;
}
