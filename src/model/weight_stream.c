#include "model/weight_stream.h"

#include <stdlib.h>

#include "base/checked.h"
#include "model/expert_pages.h"
#include "model/model_internal.h"
#include "model/weight_reader.h"
#include "platform/clock.h"
#include "platform/memory.h"

enum {
    QUERY_PARTS = 3, /* the first of them: q, k and v, which arrive first */
    SLOTS = 2,
    ARRIVALS = 64,
    GAP_BYTES = 64 << 10, /* between two tensors: read over rather than in another run of requests */
};

enum part { PART_QUERIES, PART_REST, PARTS };

/* A run of a file's bytes that is read in one go, in whole blocks. */
struct run {
    struct weight_run blocks;
    enum part part;
    uint64_t at; /* in the slot */
};

/* Where a matrix lies: in the file and in its slot. */
struct place {
    struct weight *weight; /* of struct model; where it is changes */
    const void *mapped;    /* data, in the mapped file */
    uint32_t file;
    uint64_t offset, bytes;
    uint64_t at; /* in the slot */
};

struct layer_plan {
    struct place places[LAYER_MATRICES];
    size_t place_count;
    struct run runs[LAYER_MATRICES];
    size_t run_count;
    uint64_t slot_bytes;
    bool is_resident;
};

struct slot {
    uint8_t *memory; /* owned; [slot_bytes] */
    size_t layer;
    size_t pending[PARTS]; /* requests that have not arrived */
};

struct weight_stream {
    struct model *model; /* borrowed */
    struct weight_reader reader;
    struct expert_pages *experts; /* owned; NULL: no layer is a mixture */
    struct layer_plan *layers;    /* owned; [layer_count] */
    struct layer_plan top;        /* the output matrix and position table, resident */
    size_t layer_count;
    uint8_t *resident; /* owned; [resident_bytes] */
    struct slot slots[SLOTS];
    size_t first, used;     /* of the slots that are in use, a ring */
    size_t next;            /* the layer that is read next; resident ones are skipped */
    uint64_t scatter_bytes; /* of embedding tables that stay on disk; 0: none */
    struct weight_figures figures;
};

/* ---- what lies where ---- */

static bool locate(const struct model *model, struct weight *weight, struct place *place) {
    const struct matrix *matrix = &weight->matrix;
    *place = (struct place){.weight = weight, .mapped = matrix->data, .bytes = matrix->rows * matrix->row_bytes};
    return weight_find(&model->gguf, matrix->data, &place->file, &place->offset);
}

/* Places of one part are read in the order of the file; those that lie at most `gap` bytes apart in one run. */
static void plan_part(struct layer_plan *plan, size_t first, size_t end, uint64_t gap, enum part part) {
    struct place *places = plan->places;
    for (size_t i = first + 1; i < end; i++) /* by file and offset */
        for (size_t j = i;
             j > first && (places[j].file < places[j - 1].file ||
                           (places[j].file == places[j - 1].file && places[j].offset < places[j - 1].offset));
             j--) {
            struct place moved = places[j];
            places[j] = places[j - 1];
            places[j - 1] = moved;
        }
    struct run *run = NULL;
    for (size_t i = first; i < end; i++) {
        struct place *place = &places[i];
        const struct weight_run own = weight_run_around(place->file, place->offset, place->bytes);
        if (run == NULL || run->blocks.file != own.file || own.offset > run->blocks.offset + run->blocks.bytes + gap) {
            run = &plan->runs[plan->run_count++];
            *run = (struct run){.blocks = {own.file, own.offset, 0}, .part = part, .at = plan->slot_bytes};
        }
        const uint64_t bytes = own.offset + own.bytes - run->blocks.offset;
        plan->slot_bytes += bytes - run->blocks.bytes;
        run->blocks.bytes = bytes;
        place->at = run->at + (place->offset - run->blocks.offset);
    }
}

/* Experts have pages of their own; what lies between the other matrices, which stay, is not to stay with them. */
static void plan_layer(const struct model *model, size_t layer, struct layer_plan *plan) {
    struct layer_weights *weights = &model->layers[layer];
    struct weight *matrices[LAYER_MATRICES];
    size_t queries = 0;
    const uint64_t gap = model->config.experts.count > 0 ? 0 : GAP_BYTES;
    layer_matrices(weights, matrices);
    for (size_t i = 0; i < LAYER_MATRICES; i++) {
        const bool is_expert =
            matrices[i] == &weights->gate || matrices[i] == &weights->up || matrices[i] == &weights->down;
        if (is_expert && model_layer_has_experts(&model->config, layer)) continue;
        if (!locate(model, matrices[i], &plan->places[plan->place_count])) continue;
        plan->place_count++;
        if (i < QUERY_PARTS) queries = plan->place_count;
    }
    plan_part(plan, 0, queries, gap, PART_QUERIES);
    plan_part(plan, queries, plan->place_count, gap, PART_REST);
}

/* A table of which a pass reads few rows. */
static void leave_mapped(struct weight_stream *stream, struct weight *table) {
    struct place place;
    if (!locate(stream->model, table, &place)) return;
    stream->scatter_bytes += place.bytes;
    file_map_scatter(&stream->model->gguf.maps[place.file], place.offset, place.bytes);
}

static void plan_top(struct weight_stream *stream) {
    struct model *model = stream->model;
    struct layer_plan *plan = &stream->top;
    plan->is_resident = true;
    const bool tied = model->output.matrix.data == model->token_embedding.matrix.data;
    if (locate(model, &model->output, &plan->places[plan->place_count])) plan->place_count++;
    if (locate(model, &model->position_embedding, &plan->places[plan->place_count])) plan->place_count++;
    plan_part(plan, 0, plan->place_count, GAP_BYTES, PART_REST);
    if (!tied) leave_mapped(stream, &model->token_embedding);
    leave_mapped(stream, &model->input_table);
}

static uint64_t matrix_bytes(const struct layer_plan *plan) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->place_count; i++) bytes += plan->places[i].bytes;
    return bytes;
}

/* Keeps as many layers in RAM as fit beside the top and the slots, evenly spread. */
static enum status divide_layers(struct weight_stream *stream, uint64_t host_bytes, uint64_t slot,
                                 struct error *error) {
    struct weight_figures *figures = &stream->figures;
    figures->slot_bytes = SLOTS * slot;
    const uint64_t least = figures->resident_bytes + figures->slot_bytes;
    if (host_bytes < least)
        return error_set(error, STATUS_MEMORY,
                         "--weights-host: %llu bytes, at least %llu are needed for the output matrix and two "
                         "layers of %s",
                         (unsigned long long)host_bytes, (unsigned long long)least, stream->model->gguf.path);
    const size_t kept = (size_t)((host_bytes - least) / slot), count = stream->layer_count;
    for (size_t i = 0; i < count; i++) {
        struct layer_plan *plan = &stream->layers[i];
        plan->is_resident = kept >= count || (i + 1) * kept / count > i * kept / count;
        if (plan->is_resident) figures->resident_bytes += plan->slot_bytes;
        if (plan->is_resident) figures->resident_layers++;
        for (size_t r = 0; r < plan->run_count && !plan->is_resident; r++)
            figures->pass_bytes += plan->runs[r].blocks.bytes;
    }
    return STATUS_OK;
}

/* Keeps everything but experts in RAM; what is left is for those. */
static enum status divide_experts(struct weight_stream *stream, uint64_t host_bytes, struct error *error) {
    struct weight_figures *figures = &stream->figures;
    const struct experts_config *experts = &stream->model->config.experts;
    const uint64_t page = expert_pages_slot_bytes(stream->model);
    for (size_t i = 0; i < stream->layer_count; i++) {
        stream->layers[i].is_resident = true;
        figures->resident_bytes += stream->layers[i].slot_bytes;
        figures->resident_layers += !model_layer_has_experts(&stream->model->config, i);
    }
    const uint64_t least = figures->resident_bytes + experts->used * page;
    if (host_bytes < least)
        return error_set(error, STATUS_MEMORY,
                         "--weights-host: %llu bytes, at least %llu are needed for all but the experts and for the %zu "
                         "experts of a token in a layer of %s",
                         (unsigned long long)host_bytes, (unsigned long long)least, experts->used,
                         stream->model->gguf.path);
    return expert_pages_create(&stream->experts, stream->model, &stream->reader, host_bytes - figures->resident_bytes,
                               figures, error);
}

static enum status divide(struct weight_stream *stream, uint64_t host_bytes, struct error *error) {
    struct weight_figures *figures = &stream->figures;
    uint64_t slot = 0;
    for (size_t i = 0; i < stream->layer_count; i++) {
        if (stream->layers[i].slot_bytes > slot) slot = stream->layers[i].slot_bytes;
        figures->weight_bytes += matrix_bytes(&stream->layers[i]);
    }
    figures->weight_bytes += matrix_bytes(&stream->top) + stream->scatter_bytes;
    figures->resident_bytes = stream->top.slot_bytes;
    if (stream->model->config.experts.count > 0) return divide_experts(stream, host_bytes, error);
    return divide_layers(stream, host_bytes, slot, error);
}

/* Stacks of experts are in no place while there are pages of them, so that nobody reads them by mistake. */
static void show_stacks(const struct weight_stream *stream, bool shown) {
    const struct model *model = stream->model;
    for (size_t i = model->config.experts.dense_layers; i < stream->layer_count; i++) {
        struct weight *const stacks[] = {&model->layers[i].gate, &model->layers[i].up, &model->layers[i].down};
        for (size_t j = 0; j < sizeof stacks / sizeof *stacks; j++)
            stacks[j]->memory.address = shown ? (uintptr_t)stacks[j]->matrix.data : 0;
    }
}

/* ---- reading ---- */

/* Matrices point there; memory NULL: into the mapped file. */
static void show(struct weight_stream *stream, struct layer_plan *plan, const uint8_t *memory) {
    struct model *model = stream->model;
    const bool tied = model->token_embedding.matrix.data == model->output.matrix.data;
    for (size_t i = 0; i < plan->place_count; i++)
        plan->places[i].weight->memory.address =
            (uintptr_t)(memory != NULL ? memory + plan->places[i].at : plan->places[i].mapped);
    if (tied) model->token_embedding.memory.address = model->output.memory.address;
}

static void submit_run(struct weight_stream *stream, struct slot *slot, size_t index, const struct run *run) {
    slot->pending[run->part] +=
        weight_reader_submit(&stream->reader, &run->blocks, slot->memory + run->at, index * PARTS + run->part);
}

/* Takes what has arrived; waits for at least count_min. */
static void collect(struct weight_stream *stream, size_t count_min) {
    struct weight_arrival arrivals[ARRIVALS];
    const size_t count = weight_reader_collect(&stream->reader, count_min, arrivals, ARRIVALS);
    for (size_t i = 0; i < count; i++) stream->slots[arrivals[i].tag / PARTS].pending[arrivals[i].tag % PARTS]--;
}

static bool is_pending(const struct slot *slot, size_t parts) {
    for (size_t part = 0; part < parts; part++)
        if (slot->pending[part] > 0) return true;
    return false;
}

/* Waits for the first `parts` parts of a slot. */
static void await(struct weight_stream *stream, struct slot *slot, size_t parts) {
    collect(stream, 0);
    if (!is_pending(slot, parts)) return;
    const double began = clock_seconds();
    while (is_pending(slot, parts)) collect(stream, 1);
    stream->figures.wait_seconds += clock_seconds() - began;
}

/* Begins to read layers as long as slots are free. */
static void read_ahead(struct weight_stream *stream) {
    while (stream->used < SLOTS && stream->reader.failure.status == STATUS_OK) {
        while (stream->layers[stream->next].is_resident) stream->next = (stream->next + 1) % stream->layer_count;
        const size_t index = (stream->first + stream->used++) % SLOTS;
        struct slot *slot = &stream->slots[index];
        const struct layer_plan *plan = &stream->layers[stream->next];
        slot->layer = stream->next;
        for (size_t i = 0; i < plan->run_count; i++) submit_run(stream, slot, index, &plan->runs[i]);
        stream->next = (stream->next + 1) % stream->layer_count;
    }
    weight_reader_flush(&stream->reader);
}

/* Frees the oldest slot. */
static void release(struct weight_stream *stream) {
    struct slot *slot = &stream->slots[stream->first];
    await(stream, slot, PARTS);
    show(stream, &stream->layers[slot->layer], NULL);
    stream->first = (stream->first + 1) % SLOTS;
    stream->used--;
}

/* The layer's slot, which becomes the oldest; NULL: nobody reads it. */
static struct slot *find(struct weight_stream *stream, size_t layer) {
    for (size_t i = 0; i < stream->used; i++)
        if (stream->slots[(stream->first + i) % SLOTS].layer == layer)
            return &stream->slots[(stream->first + i) % SLOTS];
    return NULL;
}

/* Reports a failed read once.  The next pass reads everything anew: a disk may be back by then. */
static enum status fail(struct weight_stream *stream, struct error *error) {
    while (stream->used > 0) release(stream);
    enum status status = stream->reader.failure.status;
    if (error != NULL) *error = stream->reader.failure;
    stream->reader.failure.status = STATUS_OK;
    return status;
}

enum status weight_stream_need(struct weight_stream *stream, size_t layer, struct error *error) {
    if (stream == NULL || stream->layers[layer].is_resident) return STATUS_OK;
    if (find(stream, layer) == NULL) { /* the first pass, or the one before ended early */
        while (stream->used > 0) release(stream);
        stream->next = layer;
    }
    while (stream->used > 0 && stream->slots[stream->first].layer != layer) release(stream);
    read_ahead(stream);
    struct slot *slot = find(stream, layer);
    if (slot != NULL) await(stream, slot, PARTS);
    if (stream->reader.failure.status != STATUS_OK) return fail(stream, error);
    show(stream, &stream->layers[layer], slot->memory);
    return STATUS_OK;
}

bool weight_stream_has_queries(struct weight_stream *stream, size_t layer) {
    if (stream == NULL || stream->layers[layer].is_resident) return true;
    struct slot *slot = find(stream, layer);
    if (slot == NULL) return false;
    await(stream, slot, PART_QUERIES + 1);
    if (stream->reader.failure.status != STATUS_OK) return false;
    show(stream, &stream->layers[layer], slot->memory);
    return true;
}

void weight_stream_done(struct weight_stream *stream, size_t layer) {
    if (stream == NULL || stream->used == 0 || stream->slots[stream->first].layer != layer) return;
    release(stream);
    read_ahead(stream);
}

/* ---- the file ---- */

void weight_stream_end_pass(struct weight_stream *stream) {
    if (stream == NULL) return;
    const struct model *model = stream->model;
    if (stream->scatter_bytes > 0) {
        struct weight tables[] = {model->token_embedding, model->input_table};
        struct place place;
        for (size_t i = 0; i < 2; i++)
            if (locate(model, &tables[i], &place))
                file_map_drop(&model->gguf.maps[place.file], place.offset, place.bytes);
    }
}

/* ---- creation ---- */

static enum status allocate(uint8_t **memory, uint64_t bytes, struct error *error) {
    *memory = memory_area_create(bytes);
    return *memory != NULL
               ? STATUS_OK
               : error_set(error, STATUS_MEMORY, "no memory for %llu bytes of weights", (unsigned long long)bytes);
}

/* Reads what stays, through the first slot's counters. */
static enum status read_resident(struct weight_stream *stream, struct layer_plan *plan, uint8_t *memory,
                                 struct error *error) {
    struct slot *slot = &stream->slots[0];
    uint8_t *own = slot->memory;
    slot->memory = memory;
    for (size_t i = 0; i < plan->run_count; i++) {
        submit_run(stream, slot, 0, &plan->runs[i]);
        await(stream, slot, PARTS);
    }
    slot->memory = own;
    show(stream, plan, memory);
    return stream->reader.failure.status == STATUS_OK ? STATUS_OK : fail(stream, error);
}

static enum status read_all_resident(struct weight_stream *stream, struct error *error) {
    uint8_t *memory = stream->resident;
    TRY(read_resident(stream, &stream->top, memory, error));
    memory += stream->top.slot_bytes;
    for (size_t i = 0; i < stream->layer_count; i++) {
        if (!stream->layers[i].is_resident) continue;
        TRY(read_resident(stream, &stream->layers[i], memory, error));
        memory += stream->layers[i].slot_bytes;
    }
    stream->figures.wait_seconds = 0;
    stream->reader.read_bytes = 0;
    return STATUS_OK;
}

static enum status create(struct weight_stream *stream, uint64_t host_bytes, const struct io_faults *faults,
                          struct error *error) {
    struct model *model = stream->model;
    stream->layers = calloc(stream->layer_count, sizeof *stream->layers);
    if (stream->layers == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    plan_top(stream);
    for (size_t i = 0; i < stream->layer_count; i++) plan_layer(model, i, &stream->layers[i]);
    TRY(divide(stream, host_bytes, error));
    uint64_t largest = stream->top.slot_bytes;
    if (stream->experts != NULL) largest = max_size(largest, expert_pages_slot_bytes(model));
    for (size_t i = 0; i < stream->layer_count; i++)
        if (stream->layers[i].slot_bytes > largest) largest = stream->layers[i].slot_bytes;
    /* All of the slots may be on their way. */
    const uint64_t piece = max_size(WEIGHT_PIECE_BYTES, largest / (WEIGHT_REQUESTS_MAX / SLOTS - LAYER_MATRICES));
    TRY(weight_reader_open(&stream->reader, &model->gguf, align_up(piece, IO_ALIGNMENT), faults, error));
    const uint64_t slot = stream->experts == NULL ? stream->figures.slot_bytes / SLOTS : 0;
    TRY(allocate(&stream->resident, stream->figures.resident_bytes, error));
    for (size_t i = 0; i < SLOTS && slot > 0; i++) TRY(allocate(&stream->slots[i].memory, slot, error));
    TRY(read_all_resident(stream, error));
    if (stream->experts != NULL) show_stacks(stream, false);
    for (uint32_t i = 0; i < model->gguf.file_count; i++) /* what loading touched */
        file_map_drop(&model->gguf.maps[i], 0, model->gguf.maps[i].size_bytes);
    return STATUS_OK;
}

static uint64_t all_bytes(const struct model *model) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < model->gguf.tensor_count; i++) bytes += model->gguf.tensors[i].size_bytes;
    return bytes;
}

enum status weight_stream_create(struct weight_stream **stream, struct model *model, uint64_t host_bytes,
                                 const struct io_faults *faults, struct error *error) {
    *stream = NULL;
    if (host_bytes >= all_bytes(model)) return STATUS_OK;
    if (model->output.memory.kind != MEMORY_SHARED) /* a device that has a form of its own, or its own memory */
        return error_set(error, STATUS_UNSUPPORTED, "--weights-host: this device holds all weights itself");
    struct weight_stream *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    made->model = model;
    made->layer_count = model->config.layer_count;
    enum status status = create(made, host_bytes, faults, error);
    if (status != STATUS_OK) {
        weight_stream_destroy(made);
        return status;
    }
    *stream = made;
    return STATUS_OK;
}

void weight_stream_destroy(struct weight_stream *stream) {
    if (stream == NULL) return;
    weight_reader_close(&stream->reader);
    if (stream->experts != NULL) show_stacks(stream, true);
    expert_pages_destroy(stream->experts);
    show(stream, &stream->top, NULL);
    for (size_t i = 0; stream->layers != NULL && i < stream->layer_count; i++) show(stream, &stream->layers[i], NULL);
    for (size_t i = 0; i < SLOTS; i++) memory_area_destroy(stream->slots[i].memory, stream->figures.slot_bytes / SLOTS);
    memory_area_destroy(stream->resident, stream->figures.resident_bytes);
    free(stream->layers);
    free(stream);
}

#define ROW(KIND, UNIT, MEMBER, NAME, HELP) COUNTER_ROW(KIND, UNIT, struct weight_figures, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(LEVEL, BYTES, weight_bytes, "bytes", "Of all matrices."),
    ROW(LEVEL, BYTES, resident_bytes, "resident_bytes", "Of those that stay in RAM."),
    ROW(LEVEL, BYTES, slot_bytes, "slot_bytes", "Of the slots that the others, or experts, are read into."),
    ROW(LEVEL, ITEMS, resident_layers, "resident_layers", "Layers that stay in RAM."),
    ROW(LEVEL, BYTES, pass_bytes, "pass_bytes", "Read for each pass; with experts, for one that uses them all."),
    ROW(TOTAL, BYTES, read_bytes, "read_bytes", "Read so far."),
    ROW(TOTAL, SECONDS, wait_seconds, "wait_seconds", "Time in which nothing was computed."),
    ROW(LEVEL, ITEMS, expert_slots, "expert_slots", "Experts that there is RAM for."),
    ROW(TOTAL, ITEMS, expert_hits, "expert_hits", "Experts of a layer's rows that were in RAM."),
    ROW(TOTAL, ITEMS, expert_misses, "expert_misses", "Those that were not."),
    ROW(TOTAL, ITEMS, expert_ahead, "expert_ahead", "Experts that were read before their layer."),
    ROW(TOTAL, ITEMS, expert_ahead_used, "expert_ahead_used", "Of those the ones that rows used; no hits."),
    ROW(LEVEL, ITEMS, direct, "direct", "1: read without the page cache."),
};
#undef ROW
const struct counter_table weight_counters = COUNTER_TABLE("weights_", struct weight_figures, counter_rows);

struct weight_figures weight_stream_figures(const struct weight_stream *stream) {
    struct weight_figures figures = stream->figures;
    figures.read_bytes = stream->reader.read_bytes;
    figures.direct = stream->reader.direct;
    return figures;
}

struct expert_pages *weight_stream_experts(const struct weight_stream *stream) {
    return stream != NULL ? stream->experts : NULL;
}
