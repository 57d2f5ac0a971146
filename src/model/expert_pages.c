#include "model/expert_pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "platform/clock.h"
#include "platform/io_queue.h"
#include "platform/memory.h"

enum { ARRIVALS = 64 };

#define NOWHERE UINT32_MAX

/* What the newest pass weighs in an expert's share: half of a share is of the last 22 passes.  A guess, for random
 * weights say nothing about routers. */
static const float NEWEST = 1.0F / 32;

/* Where a layer's experts lie in a stack, one behind the other. */
struct expert_part {
    uint32_t file;
    uint64_t offset, bytes; /* of the first one; of each */
};

struct expert_layer {
    struct expert_part parts[EXPERT_PARTS];
    float weight;      /* of the passes so far in `used` */
    uint32_t *slot_of; /* [expert_count]; NOWHERE: it is not there */
    float *used;       /* [expert_count] shares of rows, each pass's weighed */
    float *worth;      /* [expert_count]: used / weight */
};

struct expert_slot {
    uint32_t layer, expert;
    uint32_t pending; /* requests that have not arrived */
    bool is_free, has_failed;
    bool is_ahead;  /* read ahead, and not used since */
    uint64_t stamp; /* of the rows that it is there for, or was expected with; 0: it is not in work any more */
};

struct rows_in_work {
    size_t layer;
    uint64_t stamp;
    uint32_t *wanted; /* owned, [expert_count]: what they use, ascending */
    /* Of these: all; those taken before; with those taken now; with those that are there, or on their way. */
    size_t wanted_count, done_count, taken_count, held_count;
};

struct expert_pages {
    const struct model *model;
    struct weight_reader *reader;   /* borrowed */
    struct weight_figures *figures; /* borrowed */
    size_t expert_count, used;
    struct expert_layer *layers; /* owned; [layer_count], those without experts zeroed */
    uint32_t *slots_of;          /* owned, and the next one: what the layers point to */
    float *shares;
    uint8_t *memory;           /* owned; [slot_count][slot_bytes] */
    struct expert_slot *slots; /* owned; [slot_count] */
    size_t slot_count;
    uint64_t slot_bytes;
    struct rows_in_work work;
    uint32_t *expected;  /* owned, [expert_count] */
    bool *is_wanted;     /* owned, [expert_count]; once all are taken, of what is expected */
    const void **places; /* owned; [EXPERT_PARTS][expert_count] */
};

/* ---- sizes ---- */

static void stacks_of(const struct model *model, size_t layer, const struct matrix *stacks[EXPERT_PARTS]) {
    const struct layer_weights *weights = &model->layers[layer];
    stacks[0] = &weights->gate.matrix;
    stacks[1] = &weights->up.matrix;
    stacks[2] = &weights->down.matrix;
}

static struct weight_run run_of(const struct expert_part *part, size_t expert) {
    if (part->bytes == 0) return (struct weight_run){.bytes = 0};
    return weight_run_around(part->file, part->offset + expert * part->bytes, part->bytes);
}

static void find_parts(const struct model *model, size_t layer, struct expert_part parts[EXPERT_PARTS]) {
    const struct matrix *stacks[EXPERT_PARTS];
    stacks_of(model, layer, stacks);
    for (size_t p = 0; p < EXPERT_PARTS; p++) {
        parts[p] = (struct expert_part){.bytes = 0};
        if (stacks[p]->data == NULL) continue; /* its rows are those of another */
        const bool found = weight_find(&model->gguf, stacks[p]->data, &parts[p].file, &parts[p].offset);
        ASSERT(found); /* weights_load has seen to it */
        parts[p].bytes = stacks[p]->rows / model->config.experts.count * stacks[p]->row_bytes;
    }
}

static uint64_t expert_bytes(const struct expert_part parts[EXPERT_PARTS], size_t expert) {
    uint64_t bytes = 0;
    for (size_t p = 0; p < EXPERT_PARTS; p++) bytes += run_of(&parts[p], expert).bytes;
    return bytes;
}

uint64_t expert_pages_slot_bytes(const struct model *model) {
    uint64_t most = 0;
    for (size_t layer = model->config.experts.dense_layers; layer < model->config.layer_count; layer++) {
        struct expert_part parts[EXPERT_PARTS];
        find_parts(model, layer, parts);
        for (size_t e = 0; e < model->config.experts.count; e++) {
            const uint64_t bytes = expert_bytes(parts, e);
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

/* ---- creation ---- */

static void count_bytes(struct expert_pages *pages) {
    const struct model_config *config = &pages->model->config;
    struct weight_figures *figures = pages->figures;
    figures->slot_bytes = pages->slot_count * pages->slot_bytes;
    figures->expert_slots = pages->slot_count;
    for (size_t layer = config->experts.dense_layers; layer < config->layer_count; layer++)
        for (size_t e = 0; e < config->experts.count; e++) {
            const struct expert_part *parts = pages->layers[layer].parts;
            figures->pass_bytes += expert_bytes(parts, e);
            for (size_t p = 0; p < EXPERT_PARTS; p++) figures->weight_bytes += parts[p].bytes;
        }
}

static enum status init(struct expert_pages *pages, uint64_t bytes, struct error *error) {
    const struct model_config *config = &pages->model->config;
    const size_t count = pages->expert_count, layers = config->layer_count;
    const size_t all = (layers - config->experts.dense_layers) * count;
    pages->slot_bytes = expert_pages_slot_bytes(pages->model);
    pages->slot_count = (size_t)(bytes / pages->slot_bytes);
    if (pages->slot_count > all) pages->slot_count = all;
    ASSERT(pages->slot_count >= pages->used && pages->slot_count < NOWHERE);
    pages->layers = calloc(layers, sizeof *pages->layers);
    pages->slots_of = calloc(layers * count, sizeof *pages->slots_of);
    pages->shares = calloc(2 * layers * count, sizeof *pages->shares);
    pages->slots = calloc(pages->slot_count, sizeof *pages->slots);
    pages->work.wanted = calloc(count, sizeof *pages->work.wanted);
    pages->expected = calloc(count, sizeof *pages->expected);
    pages->is_wanted = calloc(count, sizeof *pages->is_wanted);
    pages->places = calloc(EXPERT_PARTS * count, sizeof *pages->places);
    pages->memory = memory_area_create(pages->slot_count * pages->slot_bytes);
    if (pages->layers == NULL || pages->slots_of == NULL || pages->shares == NULL || pages->slots == NULL ||
        pages->work.wanted == NULL || pages->expected == NULL || pages->is_wanted == NULL || pages->places == NULL ||
        pages->memory == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for %zu experts", pages->slot_count);
    for (size_t i = 0; i < layers * count; i++) pages->slots_of[i] = NOWHERE;
    for (size_t i = 0; i < pages->slot_count; i++) pages->slots[i].is_free = true;
    for (size_t layer = 0; layer < layers; layer++) {
        struct expert_layer *own = &pages->layers[layer];
        own->slot_of = pages->slots_of + layer * count;
        own->used = pages->shares + 2 * layer * count;
        own->worth = own->used + count;
        if (model_layer_has_experts(config, layer)) find_parts(pages->model, layer, own->parts);
    }
    count_bytes(pages);
    return STATUS_OK;
}

enum status expert_pages_create(struct expert_pages **pages, const struct model *model, struct weight_reader *reader,
                                uint64_t bytes, struct weight_figures *figures, struct error *error) {
    *pages = calloc(1, sizeof **pages);
    if (*pages == NULL) return error_set(error, STATUS_MEMORY, "no memory for experts");
    (*pages)->model = model;
    (*pages)->reader = reader;
    (*pages)->figures = figures;
    (*pages)->expert_count = model->config.experts.count;
    (*pages)->used = model->config.experts.used;
    return init(*pages, bytes, error);
}

void expert_pages_destroy(struct expert_pages *pages) {
    if (pages == NULL) return;
    memory_area_destroy(pages->memory, pages->slot_count * pages->slot_bytes);
    free(pages->layers);
    free(pages->slots_of);
    free(pages->shares);
    free(pages->slots);
    free(pages->work.wanted);
    free(pages->expected);
    free(pages->is_wanted);
    free(pages->places);
    free(pages);
}

/* ---- reading ---- */

/* Of an expert. */
static size_t requests_max(const struct expert_pages *pages) {
    return EXPERT_PARTS + (size_t)(pages->slot_bytes / pages->reader->piece_bytes);
}

static struct expert_slot *slot_of(const struct expert_pages *pages, size_t layer, uint32_t expert) {
    const uint32_t index = pages->layers[layer].slot_of[expert];
    return index != NOWHERE ? &pages->slots[index] : NULL;
}

static void forget(struct expert_pages *pages, struct expert_slot *slot) {
    pages->layers[slot->layer].slot_of[slot->expert] = NOWHERE;
    slot->is_free = true;
    slot->is_ahead = slot->has_failed = false;
}

/* Takes what has arrived; waits for at least count_min.  What could not be read is not there. */
static void collect(struct expert_pages *pages, size_t count_min) {
    struct weight_arrival arrivals[ARRIVALS];
    const double began = count_min > 0 ? clock_seconds() : 0;
    const size_t count = weight_reader_collect(pages->reader, count_min, arrivals, ARRIVALS);
    if (count_min > 0) pages->figures->wait_seconds += clock_seconds() - began;
    for (size_t i = 0; i < count; i++) {
        struct expert_slot *slot = &pages->slots[arrivals[i].tag];
        slot->has_failed |= arrivals[i].failed;
        if (--slot->pending == 0 && slot->has_failed) forget(pages, slot);
    }
}

static void read_expert(struct expert_pages *pages, struct expert_slot *slot, size_t layer, uint32_t expert) {
    const size_t index = (size_t)(slot - pages->slots);
    uint8_t *memory = pages->memory + index * pages->slot_bytes;
    while (io_queue_free_count(pages->reader->queue) < requests_max(pages)) collect(pages, 1);
    *slot = (struct expert_slot){.layer = (uint32_t)layer, .expert = expert, .stamp = pages->work.stamp};
    pages->layers[layer].slot_of[expert] = (uint32_t)index;
    for (size_t p = 0; p < EXPERT_PARTS; p++) {
        const struct weight_run run = run_of(&pages->layers[layer].parts[p], expert);
        if (run.bytes == 0) continue;
        slot->pending += (uint32_t)weight_reader_submit(pages->reader, &run, memory, index);
        memory += run.bytes;
    }
}

/* ---- slots ---- */

/* Wanted by the rows in work, and not held yet. */
static bool is_to_come(const struct expert_pages *pages, const struct expert_slot *slot) {
    return slot->layer == pages->work.layer && pages->work.held_count < pages->work.wanted_count &&
           slot->expert >= pages->work.wanted[pages->work.held_count] && pages->is_wanted[slot->expert];
}

/* The one to evict, for rows of a layer; NULL: all are in work, or on their way, or, but at need, to come. */
static struct expert_slot *find_victim(const struct expert_pages *pages, size_t layer, bool at_need) {
    const size_t layers = pages->model->config.layer_count;
    struct expert_slot *best = NULL;
    float best_worth = 0;
    size_t best_distance = 0;
    for (size_t i = 0; i < pages->slot_count; i++) {
        struct expert_slot *slot = &pages->slots[i];
        if (slot->is_free) return slot;
        if (slot->pending > 0 || slot->stamp == pages->work.stamp || (!at_need && is_to_come(pages, slot))) continue;
        const float worth = pages->layers[slot->layer].worth[slot->expert];
        const size_t distance = (slot->layer + layers - layer - 1) % layers; /* layers until its own */
        if (best != NULL && (worth > best_worth || (worth == best_worth && distance <= best_distance))) continue;
        best = slot;
        best_worth = worth;
        best_distance = distance;
    }
    return best;
}

static struct expert_slot *take_slot(struct expert_pages *pages, size_t layer, bool at_need) {
    struct expert_slot *slot = find_victim(pages, layer, at_need);
    if (slot != NULL && !slot->is_free) forget(pages, slot);
    return slot;
}

/* ---- rows ---- */

/* Counts what a layer's rows use. */
static void count_uses(struct expert_pages *pages, const struct expert_picks *rows) {
    struct expert_layer *layer = &pages->layers[rows->layer];
    const float share = NEWEST / (float)rows->row_count;
    layer->weight += NEWEST * (1 - layer->weight);
    for (size_t e = 0; e < pages->expert_count; e++) layer->used[e] *= 1 - NEWEST;
    for (size_t i = 0; i < rows->row_count * pages->used; i++) layer->used[rows->picks[i]] += share;
    for (size_t e = 0; e < pages->expert_count; e++) layer->worth[e] = layer->used[e] / layer->weight;
}

void expert_pages_begin(struct expert_pages *pages, const struct expert_picks *rows) {
    count_uses(pages, rows);
    memset(pages->is_wanted, 0, pages->expert_count * sizeof *pages->is_wanted);
    for (size_t i = 0; i < rows->row_count * pages->used; i++) pages->is_wanted[rows->picks[i]] = true;
    pages->work.wanted_count = pages->work.done_count = pages->work.taken_count = pages->work.held_count = 0;
    for (uint32_t e = 0; e < pages->expert_count; e++)
        if (pages->is_wanted[e]) pages->work.wanted[pages->work.wanted_count++] = e;
    pages->work.layer = rows->layer;
    pages->work.stamp++;
    pages->reader->failure.status = STATUS_OK; /* of what was read ahead, and is read again if it is wanted */
}

/* It is there, and in work. */
static void hold(struct expert_pages *pages, struct expert_slot *slot) {
    slot->stamp = pages->work.stamp;
    if (slot->is_ahead)
        pages->figures->expert_ahead_used++;
    else
        pages->figures->expert_hits++;
    slot->is_ahead = false;
}

/* The next one is there, or on its way; false: no slot can be had without waiting. */
static bool hold_next(struct expert_pages *pages, bool at_need) {
    const uint32_t expert = pages->work.wanted[pages->work.held_count];
    struct expert_slot *slot = slot_of(pages, pages->work.layer, expert);
    while (slot != NULL && !slot->is_free && slot->has_failed) /* it is forgotten then, and read again */
        collect(pages, 1);
    slot = slot_of(pages, pages->work.layer, expert);
    if (slot != NULL) {
        hold(pages, slot);
    } else {
        slot = take_slot(pages, pages->work.layer, at_need);
        if (slot == NULL) return false;
        read_expert(pages, slot, pages->work.layer, expert);
        pages->figures->expert_misses++;
    }
    pages->work.held_count++;
    return true;
}

size_t expert_pages_take(struct expert_pages *pages) {
    struct rows_in_work *work = &pages->work;
    for (size_t i = work->done_count; i < work->taken_count; i++) {
        struct expert_slot *slot = slot_of(pages, work->layer, work->wanted[i]);
        if (slot != NULL) slot->stamp = 0;
    }
    work->done_count = work->taken_count;
    ASSERT(work->done_count < work->wanted_count);
    collect(pages, 0);
    for (bool waits = work->held_count == work->done_count; work->held_count < work->wanted_count;) {
        if (hold_next(pages, waits))
            waits = false;
        else if (!waits)
            break;
        else
            collect(pages, 1); /* what was expected is on its way into all of them */
    }
    weight_reader_flush(pages->reader);
    const size_t held = work->held_count - work->done_count;
    work->taken_count = work->held_count;
    if (work->held_count < work->wanted_count && held > 1) work->taken_count -= held / 2;
    return work->wanted_count - work->taken_count;
}

/* The experts of as many rows as there are slots for. */
static size_t find_expected(struct expert_pages *pages, const struct expert_picks *rows) {
    size_t count = 0;
    memset(pages->is_wanted, 0, pages->expert_count * sizeof *pages->is_wanted);
    for (size_t row = 0; row < rows->row_count; row++) {
        const size_t before = count;
        for (size_t i = row * pages->used; i < (row + 1) * pages->used; i++) {
            if (pages->is_wanted[rows->picks[i]]) continue;
            if (count == pages->slot_count) return before;
            pages->is_wanted[rows->picks[i]] = true;
            pages->expected[count++] = rows->picks[i];
        }
    }
    return count;
}

void expert_pages_expect(struct expert_pages *pages, const struct expert_picks *rows) {
    ASSERT(pages->work.taken_count == pages->work.wanted_count); /* is_wanted is free */
    const size_t count = find_expected(pages, rows);
    for (size_t i = 0; i < count; i++) {
        struct expert_slot *slot = slot_of(pages, rows->layer, pages->expected[i]);
        if (slot != NULL) slot->stamp = pages->work.stamp; /* not evicted for another one of them */
    }
    for (size_t i = 0; i < count; i++) {
        if (slot_of(pages, rows->layer, pages->expected[i]) != NULL) continue;
        if (io_queue_free_count(pages->reader->queue) < requests_max(pages)) break;
        struct expert_slot *slot = take_slot(pages, rows->layer, false);
        if (slot == NULL) break;
        read_expert(pages, slot, rows->layer, pages->expected[i]);
        slot->is_ahead = true;
        pages->figures->expert_ahead++;
    }
    weight_reader_flush(pages->reader);
}

static const void *place_of(const struct expert_pages *pages, const struct expert_slot *slot, size_t part) {
    const struct expert_part *parts = pages->layers[slot->layer].parts;
    const uint8_t *memory = pages->memory + (size_t)(slot - pages->slots) * pages->slot_bytes;
    for (size_t p = 0; p < part; p++) memory += run_of(&parts[p], slot->expert).bytes;
    const uint64_t offset = parts[part].offset + slot->expert * parts[part].bytes;
    return memory + (offset - run_of(&parts[part], slot->expert).offset);
}

enum status expert_pages_await(struct expert_pages *pages, const void *const *places[EXPERT_PARTS],
                               struct error *error) {
    for (size_t i = 0; i < EXPERT_PARTS * pages->expert_count; i++) pages->places[i] = NULL;
    for (size_t i = pages->work.done_count; i < pages->work.taken_count; i++) {
        const uint32_t expert = pages->work.wanted[i];
        struct expert_slot *slot = slot_of(pages, pages->work.layer, expert);
        while (slot != NULL && !slot->is_free && slot->pending > 0) collect(pages, 1);
        if (slot == NULL || slot->is_free) {
            ASSERT(pages->reader->failure.status != STATUS_OK);
            if (error != NULL) *error = pages->reader->failure;
            return pages->reader->failure.status;
        }
        for (size_t p = 0; p < EXPERT_PARTS; p++)
            pages->places[p * pages->expert_count + expert] = place_of(pages, slot, p);
    }
    for (size_t p = 0; p < EXPERT_PARTS; p++) places[p] = pages->places + p * pages->expert_count;
    return STATUS_OK;
}
