#include "model/weight_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/checked.h"
#include "model/model_internal.h"
#include "platform/clock.h"
#include "platform/io_queue.h"
#include "platform/memory.h"

enum {
    QUERY_PARTS = 3, /* the first of them: q, k and v, which arrive first */
    SLOTS = 2,
    PIECE_BYTES = 1 << 20, /* of a request */
    DEPTH_MAX = 1024,
    COMPLETIONS = 64,
    READERS = 4,          /* reads at the same time: 2.5 GB/s with 4, with 8 and with 16, bench/weights.sh */
    GAP_BYTES = 64 << 10, /* between two tensors: read over rather than in another run of requests */
};

enum part { PART_QUERIES, PART_REST, PARTS };

/* A run of a file's bytes that is read in one go, in whole blocks. */
struct run {
    uint32_t file;
    enum part part;
    uint64_t offset, bytes; /* of the file, multiples of IO_ALIGNMENT */
    uint64_t at;            /* in the slot */
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

struct source {
    struct io_file file;
    uint8_t *tail;       /* owned; the bytes behind the last whole block */
    uint64_t tail_first; /* their offset */
    size_t tail_bytes;
};

struct weight_stream {
    struct model *model; /* borrowed */
    struct io_queue *queue;
    struct source *sources; /* owned; [model->gguf.file_count] */
    size_t source_count;
    struct layer_plan *layers; /* owned; [layer_count] */
    struct layer_plan top;     /* the output matrix and position table, resident */
    size_t layer_count;
    uint8_t *resident; /* owned; [resident_bytes] */
    struct slot slots[SLOTS];
    size_t first, used; /* of the slots that are in use, a ring */
    size_t next;        /* the layer that is read next; resident ones are skipped */
    size_t piece_bytes; /* of a request */
    struct error failure;
    uint64_t scatter_bytes; /* of an embedding table that stays on disk; 0: none */
    struct weight_figures figures;
};

/* ---- what lies where ---- */

static bool locate(const struct model *model, struct weight *weight, struct place *place) {
    const struct matrix *matrix = &weight->matrix;
    if (matrix->data == NULL) return false;
    const uint8_t *data = matrix->data;
    for (uint32_t i = 0; i < model->gguf.file_count; i++) {
        const struct file_map *map = &model->gguf.maps[i];
        if (data < map->data || data >= map->data + map->size_bytes) continue;
        *place = (struct place){.weight = weight,
                                .mapped = data,
                                .file = i,
                                .offset = (uint64_t)(data - map->data),
                                .bytes = matrix->rows * matrix->row_bytes};
        return true;
    }
    return false;
}

/* Places of one part are read in the order of the file; those that lie close together in one run. */
static void plan_part(struct layer_plan *plan, size_t first, size_t end, enum part part) {
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
        uint64_t begin = place->offset & ~(uint64_t)(IO_ALIGNMENT - 1);
        uint64_t behind = align_up(place->offset + place->bytes, IO_ALIGNMENT);
        if (run == NULL || run->file != place->file || begin > run->offset + run->bytes + GAP_BYTES) {
            run = &plan->runs[plan->run_count++];
            *run = (struct run){.file = place->file, .part = part, .offset = begin, .at = plan->slot_bytes};
        }
        plan->slot_bytes += behind - (run->offset + run->bytes);
        run->bytes = behind - run->offset;
        place->at = run->at + (place->offset - run->offset);
    }
}

static void plan_layer(const struct model *model, struct layer_weights *weights, struct layer_plan *plan) {
    struct weight *matrices[LAYER_MATRICES];
    size_t queries = 0;
    layer_matrices(weights, matrices);
    for (size_t i = 0; i < LAYER_MATRICES; i++) {
        if (!locate(model, matrices[i], &plan->places[plan->place_count])) continue;
        plan->place_count++;
        if (i < QUERY_PARTS) queries = plan->place_count;
    }
    plan_part(plan, 0, queries, PART_QUERIES);
    plan_part(plan, queries, plan->place_count, PART_REST);
}

static void plan_top(struct weight_stream *stream) {
    struct model *model = stream->model;
    struct layer_plan *plan = &stream->top;
    plan->is_resident = true;
    const bool tied = model->output.matrix.data == model->token_embedding.matrix.data;
    if (locate(model, &model->output, &plan->places[plan->place_count])) plan->place_count++;
    if (locate(model, &model->position_embedding, &plan->places[plan->place_count])) plan->place_count++;
    plan_part(plan, 0, plan->place_count, PART_REST);
    if (tied) return;
    struct place table;
    if (!locate(model, &model->token_embedding, &table)) return;
    stream->scatter_bytes = table.bytes;
    file_map_scatter(&model->gguf.maps[table.file], table.offset, table.bytes);
}

static uint64_t matrix_bytes(const struct layer_plan *plan) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->place_count; i++) bytes += plan->places[i].bytes;
    return bytes;
}

/* Keeps as many layers in RAM as fit beside the top and the slots, evenly spread. */
static enum status divide(struct weight_stream *stream, uint64_t host_bytes, struct error *error) {
    struct weight_figures *figures = &stream->figures;
    uint64_t slot = 0;
    for (size_t i = 0; i < stream->layer_count; i++) {
        if (stream->layers[i].slot_bytes > slot) slot = stream->layers[i].slot_bytes;
        figures->weight_bytes += matrix_bytes(&stream->layers[i]);
    }
    figures->weight_bytes += matrix_bytes(&stream->top) + stream->scatter_bytes;
    figures->resident_bytes = stream->top.slot_bytes;
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
            figures->pass_bytes += plan->runs[r].bytes;
    }
    return STATUS_OK;
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

/* Bytes of a run that O_DIRECT can read; the rest is in the source's tail. */
static uint64_t whole_bytes(const struct source *source, const struct run *run) {
    if (run->offset + run->bytes <= source->tail_first) return run->bytes;
    return run->offset < source->tail_first ? source->tail_first - run->offset : 0;
}

static void submit_run(struct weight_stream *stream, struct slot *slot, size_t index, const struct run *run) {
    struct source *source = &stream->sources[run->file];
    const uint64_t whole = whole_bytes(source, run);
    if (whole < run->bytes) memcpy(slot->memory + run->at + whole, source->tail, source->tail_bytes);
    for (uint64_t done = 0; done < whole; done += stream->piece_bytes) {
        const uint64_t left = whole - done;
        const struct io_request request = {.operation = IO_READ,
                                           .file = &source->file,
                                           .offset = run->offset + done,
                                           .memory = slot->memory + run->at + done,
                                           .bytes = left < stream->piece_bytes ? (size_t)left
                                                                               : stream->piece_bytes,
                                           .tag = index * PARTS + run->part};
        enum status status = io_queue_submit(stream->queue, &request);
        ASSERT(status == STATUS_OK); /* piece_bytes and the depth are chosen so */
        slot->pending[run->part]++;
        stream->figures.read_bytes += request.bytes;
    }
}

/* Takes what has arrived; waits for at least count_min. */
static void collect(struct weight_stream *stream, size_t count_min) {
    struct io_completion done[COMPLETIONS];
    size_t count = count_min > 0 ? io_queue_wait(stream->queue, done, COMPLETIONS, count_min)
                                 : io_queue_poll(stream->queue, done, COMPLETIONS);
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = &stream->slots[done[i].request.tag / PARTS];
        slot->pending[done[i].request.tag % PARTS]--;
        if (done[i].status != STATUS_OK && stream->failure.status == STATUS_OK)
            (void)io_completion_error(&done[i], &stream->failure);
    }
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
    while (stream->used < SLOTS && stream->failure.status == STATUS_OK) {
        while (stream->layers[stream->next].is_resident)
            stream->next = (stream->next + 1) % stream->layer_count;
        const size_t index = (stream->first + stream->used++) % SLOTS;
        struct slot *slot = &stream->slots[index];
        const struct layer_plan *plan = &stream->layers[stream->next];
        slot->layer = stream->next;
        for (size_t i = 0; i < plan->run_count; i++) submit_run(stream, slot, index, &plan->runs[i]);
        stream->next = (stream->next + 1) % stream->layer_count;
    }
    io_queue_flush(stream->queue);
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
    enum status status = stream->failure.status;
    if (error != NULL) *error = stream->failure;
    stream->failure.status = STATUS_OK;
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
    if (stream->failure.status != STATUS_OK) return fail(stream, error);
    show(stream, &stream->layers[layer], slot->memory);
    return STATUS_OK;
}

bool weight_stream_has_queries(struct weight_stream *stream, size_t layer) {
    if (stream == NULL || stream->layers[layer].is_resident) return true;
    struct slot *slot = find(stream, layer);
    if (slot == NULL) return false;
    await(stream, slot, PART_QUERIES + 1);
    if (stream->failure.status != STATUS_OK) return false;
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
        struct weight table = model->token_embedding;
        struct place place;
        if (locate(model, &table, &place))
            file_map_drop(&model->gguf.maps[place.file], place.offset, place.bytes);
    }
}

static enum status open_source(struct source *source, const struct file_map *map,
                               const struct io_faults *faults, struct error *error) {
    struct io_file buffered;
    struct stat now;
    TRY(io_file_open_path(&source->file, map->path, true, faults, error));
    if (fstat(source->file.fd, &now) != 0)
        return error_set(error, STATUS_IO, "%s: its size is not known", map->path);
    if (now.st_dev != map->before.st_dev || now.st_ino != map->before.st_ino)
        return error_set(error, STATUS_MODEL, "%s: another file is there now: start again", map->path);
    TRY(file_map_check(map, error));
    source->tail_first = map->size_bytes & ~(uint64_t)(IO_ALIGNMENT - 1);
    source->tail_bytes = (size_t)(map->size_bytes - source->tail_first);
    source->tail = calloc(1, IO_ALIGNMENT);
    if (source->tail == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    TRY(io_file_open_path(&buffered, map->path, false, faults, error));
    enum status status = io_file_read(&buffered, source->tail_first, source->tail, source->tail_bytes, error);
    io_file_close(&buffered);
    return status;
}

static enum status open_sources(struct weight_stream *stream, const struct io_faults *faults,
                                struct error *error) {
    const struct gguf *gguf = &stream->model->gguf;
    stream->sources = calloc(gguf->file_count, sizeof *stream->sources);
    if (stream->sources == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    stream->figures.direct = true;
    for (uint32_t i = 0; i < gguf->file_count; i++) {
        stream->source_count++;
        TRY(open_source(&stream->sources[i], &gguf->maps[i], faults, error));
        stream->figures.direct &= stream->sources[i].file.direct;
    }
    return STATUS_OK;
}

/* ---- creation ---- */

static enum status allocate(uint8_t **memory, uint64_t bytes, struct error *error) {
    *memory = memory_area_create(bytes);
    return *memory != NULL ? STATUS_OK
                           : error_set(error, STATUS_MEMORY, "no memory for %llu bytes of weights",
                                       (unsigned long long)bytes);
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
    return stream->failure.status == STATUS_OK ? STATUS_OK : fail(stream, error);
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
    stream->figures.read_bytes = 0;
    return STATUS_OK;
}

static enum status create(struct weight_stream *stream, uint64_t host_bytes, const struct io_faults *faults,
                          struct error *error) {
    struct model *model = stream->model;
    stream->layers = calloc(stream->layer_count, sizeof *stream->layers);
    if (stream->layers == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    plan_top(stream);
    for (size_t i = 0; i < stream->layer_count; i++) plan_layer(model, &model->layers[i], &stream->layers[i]);
    TRY(divide(stream, host_bytes, error));
    TRY(open_sources(stream, faults, error));
    const uint64_t slot = stream->figures.slot_bytes / SLOTS;
    uint64_t largest = stream->top.slot_bytes > slot ? stream->top.slot_bytes : slot;
    stream->piece_bytes =
        align_up(max_size(PIECE_BYTES, largest / (DEPTH_MAX / SLOTS - LAYER_MATRICES)), IO_ALIGNMENT);
    /* Threads: io_uring's submission of so much blocks the caller, who is to compute meanwhile, until the device's
     * queue takes the last of it. */
    const struct io_queue_options options = {
        .backend = IO_BACKEND_THREADS, .depth = DEPTH_MAX, .thread_count = READERS};
    TRY(io_queue_create(&stream->queue, &options, error));
    TRY(allocate(&stream->resident, stream->figures.resident_bytes, error));
    for (size_t i = 0; i < SLOTS; i++) TRY(allocate(&stream->slots[i].memory, slot, error));
    TRY(read_all_resident(stream, error));
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
    if (model->output.memory.kind !=
        MEMORY_SHARED) /* a device that has a form of its own, or its own memory */
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
    io_queue_destroy(stream->queue); /* waits for what is on its way */
    show(stream, &stream->top, NULL);
    for (size_t i = 0; stream->layers != NULL && i < stream->layer_count; i++)
        show(stream, &stream->layers[i], NULL);
    for (size_t i = 0; i < stream->source_count; i++) {
        io_file_close(&stream->sources[i].file);
        free(stream->sources[i].tail);
    }
    for (size_t i = 0; i < SLOTS; i++)
        memory_area_destroy(stream->slots[i].memory, stream->figures.slot_bytes / SLOTS);
    memory_area_destroy(stream->resident, stream->figures.resident_bytes);
    free(stream->sources);
    free(stream->layers);
    free(stream);
}

#define ROW(KIND, UNIT, MEMBER, NAME, HELP) COUNTER_ROW(KIND, UNIT, struct weight_figures, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(LEVEL, BYTES, weight_bytes, "bytes", "Of all matrices."),
    ROW(LEVEL, BYTES, resident_bytes, "resident_bytes", "Of those that stay in RAM."),
    ROW(LEVEL, BYTES, slot_bytes, "slot_bytes", "Of the slots that the others are read into."),
    ROW(LEVEL, ITEMS, resident_layers, "resident_layers", "Layers that stay in RAM."),
    ROW(LEVEL, BYTES, pass_bytes, "pass_bytes", "Read for each pass."),
    ROW(TOTAL, BYTES, read_bytes, "read_bytes", "Read so far."),
    ROW(TOTAL, SECONDS, wait_seconds, "wait_seconds", "Time in which nothing was computed."),
    ROW(LEVEL, ITEMS, direct, "direct", "1: read without the page cache."),
};
#undef ROW
const struct counter_table weight_counters = COUNTER_TABLE("weights_", struct weight_figures, counter_rows);

struct weight_figures weight_stream_figures(const struct weight_stream *stream) {
    return stream->figures;
}
