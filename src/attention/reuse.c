#include "attention/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/layout.h"
#include "cache/kv_cache.h"

/* What a KV head of a layer of a sequence holds, as far as the host knows: how long the list is and when it was chosen
 * is the device's (struct step_kept). */
struct held {
    struct buffer rows;      /* owned MEMORY_DEVICE; uint32_t: sinks and picks */
    bool is_held;            /* the device's count is of these rows */
    uint64_t seen;           /* the position of the last row that looked */
    struct select_keep keep; /* of the rule of the last one that chose or took */
};

struct reuse {
    struct reuse_shape shape;
    struct reuse_options options;
    float *importance;    /* [layer][head] */
    double *thresholds;   /* [lane] */
    bool *anew;           /* [lane]: it takes no list, and chooses by its own queries */
    uint64_t *answers;    /* [sequence_capacity]: kv_sequence_answer; 0: nobody's */
    struct held *held;    /* [sequence_capacity][lane] */
    struct buffer labels; /* owned MEMORY_DEVICE; float [sequence_capacity][layer][head][k_dimension] */
    struct buffer kept;   /* the same; struct step_kept [sequence_capacity][lane] */
    struct buffer limits; /* the same; struct step_list [row_capacity][kv head]: of a step that is no graph */
    /* struct step_reuse [row_capacity][kv head]: the first owned MEMORY_DEVICE, the other one MEMORY_SHARED, as it was
     * behind the last step */
    struct buffer counts, counts_read;
    bool clears_counts; /* before the next step */
    uint64_t moves;     /* of lists' memory */
    /* [row_capacity], of the rows that choose now: their sequences, what is compared, and each head's. */
    size_t *slots;
    struct label_item *items;
    struct step_list *lists; /* [row_capacity][kv head]: limits */
    struct reuse_step step;  /* what happened since it began */
};

/* ---- life ---- */

static size_t lane_of(const struct reuse_shape *shape, size_t layer, size_t kv_head) {
    return kv_layer_lane(shape->groups, shape->kv_head_count, layer, kv_head);
}
static size_t lane_count(const struct reuse_shape *shape) { return lane_of(shape, shape->layer_count, 0); }

static size_t held_count(const struct reuse_shape *shape) { return shape->sequence_capacity * lane_count(shape); }

static size_t query_size(const struct reuse_shape *shape) { return shape->head_count * shape->k_dimension; }

static size_t label_bytes(const struct reuse_shape *shape) {
    return shape->sequence_capacity * shape->layer_count * query_size(shape) * sizeof(float);
}

/* KV heads of rows that choose together. */
static size_t looking(const struct reuse_shape *shape) { return shape->row_capacity * shape->kv_head_count; }

/* All of it but the labels and the lists that are held, which are the device's. */
static struct reuse *place(struct layout *layout, const struct reuse_shape *shape) {
    struct reuse *reuse = layout_take(layout, 1, sizeof *reuse), unused;
    struct reuse *placed = reuse != NULL ? reuse : &unused;
    const size_t lanes = lane_count(shape), rows = shape->row_capacity;
    placed->importance = layout_take(layout, shape->layer_count * shape->head_count, sizeof *placed->importance);
    placed->thresholds = layout_take(layout, lanes, sizeof *placed->thresholds);
    placed->anew = layout_take(layout, lanes, sizeof *placed->anew);
    placed->answers = layout_take(layout, shape->sequence_capacity, sizeof *placed->answers);
    placed->held = layout_take(layout, held_count(shape), sizeof *placed->held);
    placed->slots = layout_take(layout, rows, sizeof *placed->slots);
    placed->items = layout_take(layout, rows, sizeof *placed->items);
    placed->lists = layout_take(layout, rows * shape->kv_head_count, sizeof *placed->lists);
    return reuse;
}

static uint64_t host_bytes(const struct reuse_shape *shape) {
    struct layout layout = {NULL, 0};
    (void)place(&layout, shape);
    return layout.used;
}

uint64_t reuse_bytes(const struct reuse_shape *shape) {
    return host_bytes(shape) + held_count(shape) * (shape->list_rows * sizeof(uint32_t) + sizeof(struct step_kept)) +
           label_bytes(shape) + looking(shape) * (sizeof(struct step_list) + 2 * sizeof(struct step_reuse));
}

/* Of the most important query head of a group. */
static double importance_of(const float *importance, size_t group) {
    double importance_max = 0;
    for (size_t i = 0; i < group; i++)
        if ((double)importance[i] > importance_max) importance_max = (double)importance[i];
    return importance_max;
}

static void set_thresholds(struct reuse *reuse, const float *importance, const double *thresholds) {
    const struct reuse_shape *shape = &reuse->shape;
    const bool follows = thresholds == NULL || !(reuse->options.eta <= 1); /* above 1: nothing is reused */
    for (size_t i = 0; i < shape->layer_count * shape->head_count; i++)
        reuse->importance[i] = importance != NULL ? importance[i] : 1;
    for (size_t layer = 0; layer < shape->layer_count; layer++) {
        const size_t heads = kv_layer_heads(shape->groups, shape->kv_head_count, layer);
        const float *own = reuse->importance + layer * shape->head_count;
        for (size_t head = 0; head < heads; head++) {
            const size_t lane = lane_of(shape, layer, head), group = shape->head_count / heads;
            reuse->thresholds[lane] =
                follows ? reuse_threshold(&reuse->options, importance_of(own + head * group, group)) : thresholds[lane];
        }
    }
}

static bool allocate(struct reuse *reuse) {
    const struct reuse_shape *shape = &reuse->shape;
    const struct {
        struct buffer *buffer;
        enum memory_kind kind;
        size_t bytes;
    } all[] = {{&reuse->labels, MEMORY_DEVICE, label_bytes(shape)},
               {&reuse->kept, MEMORY_DEVICE, held_count(shape) * sizeof(struct step_kept)},
               {&reuse->limits, MEMORY_DEVICE, looking(shape) * sizeof(struct step_list)},
               {&reuse->counts, MEMORY_DEVICE, looking(shape) * sizeof(struct step_reuse)},
               {&reuse->counts_read, MEMORY_SHARED, looking(shape) * sizeof(struct step_reuse)}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (shape->device->operations->allocate(shape->device, all[i].kind, all[i].bytes, all[i].buffer, NULL) !=
            STATUS_OK)
            return false;
    return true;
}

enum status reuse_create(struct reuse **result, const struct reuse_shape *shape, const struct reuse_options *options,
                         const float *importance, const double *thresholds, struct error *error) {
    struct layout layout = {calloc(1, (size_t)host_bytes(shape)), 0};
    *result = NULL;
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "reuse: out of memory");
    struct reuse *reuse = place(&layout, shape);
    reuse->shape = *shape;
    reuse->options = *options;
    if (!allocate(reuse)) {
        reuse_destroy(reuse);
        TRY(device_state(shape->device, error));
        return error_set(error, STATUS_MEMORY, "reuse: no memory for the labels of %zu sequences",
                         shape->sequence_capacity);
    }
    set_thresholds(reuse, importance, thresholds);
    *result = reuse;
    return STATUS_OK;
}

void reuse_destroy(struct reuse *reuse) {
    if (reuse == NULL) return;
    const struct device_operations *operations = reuse->shape.device->operations;
    for (size_t i = 0; i < held_count(&reuse->shape); i++)
        operations->release(reuse->shape.device, &reuse->held[i].rows);
    struct buffer *const all[] = {&reuse->labels, &reuse->kept, &reuse->limits, &reuse->counts, &reuse->counts_read};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) operations->release(reuse->shape.device, all[i]);
    free(reuse);
}

const double *reuse_thresholds(const struct reuse *reuse) { return reuse->thresholds; }

bool reuse_speculates(const struct reuse *reuse) {
    return reuse->options.labels == REUSE_SPECULATED && reuse->options.eta <= 1;
}

void reuse_choose_anew(struct reuse *reuse, const bool *heads) {
    memcpy(reuse->anew, heads, lane_count(&reuse->shape) * sizeof *heads);
}

void reuse_put_own_queries(const struct reuse *reuse, struct stream *stream, size_t layer_index,
                           const struct attend_operation *own, const struct attend_operation *expected) {
    const size_t heads = own->kv_head_count, group = own->head_count / heads;
    for (size_t i = 0; i < own->item_count; i++)
        for (size_t j = 0; j < own->items[i].row_count * heads; j++) {
            const size_t row = own->items[i].row_first + j / heads, head = j % heads,
                         size = group * own->items[i].view.layout->k_dimension;
            if (reuse->anew[lane_of(&reuse->shape, layer_index, head)])
                reuse->shape.device->operations->copy(
                    stream, span_floats(expected->q, row * expected->q_stride + head * size),
                    span_floats(own->q, row * own->q_stride + head * size), size * sizeof(float));
        }
}

/* ---- whose ---- */

static struct held *held_of(struct reuse *reuse, size_t slot, size_t layer_index) {
    return reuse->held + slot * lane_count(&reuse->shape) + lane_of(&reuse->shape, layer_index, 0);
}

static struct span label_of(const struct reuse *reuse, size_t slot, size_t layer_index) {
    return span_floats(span_of(&reuse->labels, 0),
                       (slot * reuse->shape.layer_count + layer_index) * query_size(&reuse->shape));
}

static struct span kept_of(const struct reuse *reuse, size_t slot, size_t layer_index) {
    return span_of(&reuse->kept, (slot * lane_count(&reuse->shape) + lane_of(&reuse->shape, layer_index, 0)) *
                                     sizeof(struct step_kept));
}

static void forget(struct reuse *reuse, size_t slot) {
    struct held *held = held_of(reuse, slot, 0);
    for (size_t i = 0; i < lane_count(&reuse->shape); i++) held[i].is_held = false;
}

/* The sequence's slot, with nothing of another sequence or of what the sequence was. */
static size_t slot_of(struct reuse *reuse, const struct kv_sequence *sequence) {
    const size_t slot = kv_sequence_index(sequence);
    const uint64_t answer = kv_sequence_answer(sequence);
    ASSERT(slot < reuse->shape.sequence_capacity);
    if (reuse->answers[slot] != answer) forget(reuse, slot);
    reuse->answers[slot] = answer;
    return slot;
}

/* ---- lookup ---- */

static bool same_keep(struct select_keep a, struct select_keep b) { return a.ratio == b.ratio && a.tokens == b.tokens; }

/* Whether the list may still be one of this row's context, whatever the queries; its age the device knows. */
static bool is_current(const struct held *held, uint64_t position, struct select_keep keep) {
    return held->is_held && same_keep(held->keep, keep) && (position == held->seen || position == held->seen + 1);
}

/* Whose lists may still be of this row's context; the labels of the others that choose are replaced. */
static void look_up(const struct reuse *reuse, const struct choice_query *query, const struct choice *choice,
                    size_t index, struct step_list *limits) {
    const struct select_item *candidates = &choice->candidates[index];
    const struct select_keep keep = query->rules[choice->chosen_items[index]]->keep;
    const struct held *held =
        reuse->held + reuse->slots[index] * lane_count(&reuse->shape) + lane_of(&reuse->shape, query->layer_index, 0);
    for (size_t head = 0; head < choice->kv_head_count; head++) {
        const bool anew = reuse->anew[lane_of(&reuse->shape, query->layer_index, head)];
        enum label_use use =
            !anew && is_current(&held[head], candidates->position, keep) ? LABEL_COMPARED : LABEL_REPLACED;
        if (select_item_picks(candidates, head) == 0) use = LABEL_STAYS;
        limits[head].use = use;
    }
}

/* Of all heads of a row that chooses. */
static void plan_lists(const struct reuse *reuse, const struct choice_query *query, const struct choice *choice,
                       size_t index) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count;
    struct step_list *limits = reuse->lists + index * heads;
    for (size_t head = 0; head < heads; head++) limits[head] = select_item_limits(candidates, head);
    look_up(reuse, query, choice, index, limits);
}

static bool compares(const struct reuse *reuse, const struct choice *choice) {
    for (size_t i = 0; i < choice->chosen_count * choice->kv_head_count; i++)
        if (reuse->lists[i].use == LABEL_COMPARED) return true;
    return false;
}

static void put_comparison(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                           const struct choice *choice, const struct compare_labels_operation *how) {
    const struct reuse_shape *shape = &reuse->shape;
    struct compare_labels_operation own = *how;
    for (size_t i = 0; i < choice->chosen_count; i++)
        reuse->items[i] = (struct label_item){.row = choice->candidates[i].row,
                                              .position = choice->candidates[i].position,
                                              .label = label_of(reuse, reuse->slots[i], query->layer_index),
                                              .kept = kept_of(reuse, reuse->slots[i], query->layer_index)};
    own.q = query->operation->q;
    own.q_stride = query->operation->q_stride;
    own.head_count = shape->head_count;
    own.kv_head_count = choice->kv_head_count;
    own.k_dimension = choice->chosen[0].view.layout->k_dimension;
    own.aggregate = reuse->options.aggregate;
    own.importance = reuse->importance + query->layer_index * shape->head_count;
    own.thresholds = reuse->thresholds + lane_of(shape, query->layer_index, 0);
    own.age_max = reuse->options.age;
    own.items = reuse->items;
    own.item_count = choice->chosen_count;
    shape->device->operations->compare_labels(stream, &own);
}

/* What becomes of the limits, for which the host waits where a list may be taken. */
static enum status compare(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                           const struct choice *choice, bool decides, struct error *error) {
    const struct device_operations *operations = reuse->shape.device->operations;
    const size_t bytes = choice->chosen_count * choice->kv_head_count * sizeof *reuse->lists;
    const struct span limits = span_of(&reuse->limits, 0);
    const bool waits = compares(reuse, choice);
    if (!waits && !decides) return STATUS_OK;
    operations->upload(stream, limits, reuse->lists, bytes);
    put_comparison(reuse, stream, query, choice,
                   &(struct compare_labels_operation){.only_says = !decides, .at = {.limits = limits}});
    if (!waits) return STATUS_OK;
    operations->download(stream, reuse->lists, limits, bytes);
    return operations->stream_synchronize(stream, error);
}

/* What rows choose from, and whose lists are theirs. */
static void plan_rows(struct reuse *reuse, const struct select *select, const struct choice_query *query,
                      struct choice *choice) {
    select_plan(select, query, choice);
    ASSERT(choice->chosen_count <= reuse->shape.row_capacity);
    for (size_t i = 0; i < choice->chosen_count; i++)
        reuse->slots[i] = slot_of(reuse, query->sequences[choice->chosen_items[i]]);
}

/* Plans, and looks up which rows' heads hit: these need no picks. */
static enum status plan(struct reuse *reuse, const struct select *select, struct stream *stream,
                        const struct choice_query *query, struct choice *choice, bool decides, struct error *error) {
    const size_t heads = query->operation->kv_head_count;
    ASSERT(query->kv_head_first == 0 &&
           heads == kv_layer_heads(reuse->shape.groups, reuse->shape.kv_head_count, query->layer_index));
    plan_rows(reuse, select, query, choice);
    if (choice->chosen_count == 0) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++) plan_lists(reuse, query, choice, i);
    for (size_t i = 0; i < choice->chosen_count * heads; i++)
        choice->statistics.verdicts_read += reuse->lists[i].use == LABEL_COMPARED;
    TRY(compare(reuse, stream, query, choice, decides, error));
    for (size_t i = 0; i < choice->chosen_count * heads; i++) {
        choice->hits[i] = reuse->lists[i].kept_count > 0;
        choice->picks[i] = reuse->lists[i].picks;
    }
    return STATUS_OK;
}

/* A row that chooses is the last one that looked.  What misses has another label now, and no list until it has chosen.
 */
static void note_seen(struct reuse *reuse, const struct choice_query *query, const struct choice *choice,
                      size_t index) {
    const size_t heads = choice->kv_head_count;
    struct held *held = held_of(reuse, reuse->slots[index], query->layer_index);
    for (size_t head = 0; head < heads; head++) {
        held[head].seen = choice->candidates[index].position;
        if (choice->picks[index * heads + head] > 0) held[head].is_held = false;
    }
}

/* ---- lists ---- */

/* What is there already stays there. */
static enum status reserve(struct reuse *reuse, struct stream *stream, struct held *held, size_t rows,
                           struct error *error) {
    if (rows * sizeof(uint32_t) <= held->rows.bytes) return STATUS_OK;
    size_t capacity = rows + rows / 2;
    if (reuse->shape.list_rows != 0) capacity = min_size(capacity, (size_t)reuse->shape.list_rows);
    ASSERT(capacity >= rows);
    struct device *device = reuse->shape.device;
    struct buffer longer;
    if (device->operations->allocate(device, MEMORY_DEVICE, capacity * sizeof(uint32_t), &longer, NULL) != STATUS_OK) {
        TRY(device_state(device, error));
        return error_set(error, STATUS_MEMORY, "reuse: no memory for a list of %zu rows", rows);
    }
    enum status status = STATUS_OK;
    if (buffer_exists(&held->rows)) {
        device->operations->copy(stream, span_of(&longer, 0), span_of(&held->rows, 0), held->rows.bytes);
        status = device->operations->stream_synchronize(stream, error);
    }
    device->operations->release(device, &held->rows);
    held->rows = longer;
    reuse->moves++;
    return status;
}

/* What the head will have chosen, without its window. */
static size_t chosen_rows(const struct step_list *list, uint64_t position) {
    return list->count - (size_t)(position + 1 - list->candidate_end);
}

/* What the heads of a row that chooses take, or keep of what they choose. */
static enum status show_kept(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                             struct choice *choice, size_t index, struct error *error) {
    struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count;
    struct held *held = held_of(reuse, reuse->slots[index], query->layer_index);
    struct kept_list *kept = choice->kept + index * heads;
    for (size_t head = 0; head < heads; head++) {
        const struct step_list *list = &reuse->lists[index * heads + head];
        kept[head] = (struct kept_list){.is_taken = choice->hits[index * heads + head]};
        if (kept[head].is_taken) {
            kept[head].count = list->kept_count;
            kept[head].window_begin = list->window_begin;
        } else if (select_item_picks(candidates, head) > 0) {
            TRY(reserve(reuse, stream, &held[head], chosen_rows(list, candidates->position), error));
        } else {
            continue;
        }
        kept[head].rows = span_of(&held[head].rows, 0);
    }
    candidates->kept = kept;
    return STATUS_OK;
}

static void note_hit(struct reuse *reuse, struct reuse_counts *counts, uint64_t age, const struct rows_item *chosen,
                     const struct row_list *list) {
    counts->hits++;
    counts->rows += list->count;
    counts->age_sum += age;
    if (age > counts->age_max) counts->age_max = age;
    reuse->step.hits++;
    reuse->step.bytes += list->count * (chosen->view.layout->chunk_bytes / KV_CHUNK_TOKENS);
    reuse->step.age_sum += age;
    if (age > reuse->step.age_max) reuse->step.age_max = age;
}

struct reuse_step reuse_end_step(struct reuse *reuse) {
    const struct reuse_step step = reuse->step;
    reuse->step = (struct reuse_step){0};
    return step;
}

/* With alpha a list may be shorter than what was planned. */
static void shorten(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                    const struct choice *choice, size_t index, size_t head) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t count = choice->lists[index * choice->kv_head_count + head].count;
    const struct step_kept kept = {
        .position = candidates->position,
        .count = (uint32_t)(count - (size_t)(candidates->position + 1 - candidates->candidate_end)),
        .candidate_end = (uint32_t)candidates->candidate_end};
    reuse->shape.device->operations->upload(
        stream, span_behind(kept_of(reuse, reuse->slots[index], query->layer_index), head * sizeof kept), &kept,
        sizeof kept);
}

/* The lists of a row are on their way: what of them is held, and what is counted. */
static void settle(struct reuse *reuse, struct stream *stream, bool has_alpha, const struct choice_query *query,
                   struct choice *choice, size_t index) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count, slot = reuse->slots[index];
    struct held *held = held_of(reuse, slot, query->layer_index);
    for (size_t head = 0; head < heads; head++) {
        const struct row_list *list = &choice->lists[index * heads + head];
        if (choice->hits[index * heads + head]) {
            note_hit(reuse, &choice->statistics.reuse, reuse->lists[index * heads + head].age, &choice->chosen[index],
                     list);
        } else if (select_item_picks(candidates, head) > 0) {
            if (has_alpha) shorten(reuse, stream, query, choice, index, head);
            held[head].is_held = true;
            held[head].keep = query->rules[choice->chosen_items[index]]->keep;
            choice->statistics.reuse.misses++;
            reuse->step.misses++;
        }
    }
}

enum status reuse_choose(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) {
    TRY(plan(reuse, select, stream, query, choice, true, error));
    if (choice->chosen_count == 0) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++) note_seen(reuse, query, choice, i);
    for (size_t i = 0; i < choice->chosen_count; i++) TRY(show_kept(reuse, stream, query, choice, i, error));
    TRY(select_pick(select, stream, query, choice, error));
    const bool has_alpha = select_get_options(select)->alpha > 0;
    if (has_alpha) /* how long the lists are comes with the stream */
        TRY(reuse->shape.device->operations->stream_synchronize(stream, error));
    for (size_t i = 0; i < choice->chosen_count; i++) settle(reuse, stream, has_alpha, query, choice, i);
    return STATUS_OK;
}

/* ---- steps that are graphs ---- */

bool reuse_fits_graphs(const struct reuse *reuse) { return !reuse_speculates(reuse); }

enum status reuse_limits(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                         const struct choice *choice, struct step_list *limits, uint64_t *moves, struct error *error) {
    const size_t heads = choice->kv_head_count;
    if (reuse->clears_counts) {
        memset(span_host(span_of(&reuse->counts_read, 0)), 0, reuse->counts_read.bytes);
        reuse->shape.device->operations->upload(stream, span_of(&reuse->counts, 0),
                                                span_host(span_of(&reuse->counts_read, 0)), reuse->counts.bytes);
        reuse->clears_counts = false;
    }
    for (size_t i = 0; i < choice->chosen_count; i++) {
        struct step_list *own = limits + choice->chosen_items[i] * heads;
        reuse->slots[i] = slot_of(reuse, query->sequences[choice->chosen_items[i]]);
        struct held *held = held_of(reuse, reuse->slots[i], query->layer_index);
        look_up(reuse, query, choice, i, own);
        /* With its window, so that it seldom moves while that becomes shorter and longer. */
        const bool sees_all = own->candidate_end == 0; /* it keeps nothing */
        for (size_t head = 0; head < heads && !sees_all; head++)
            TRY(reserve(reuse, stream, &held[head], own[head].count, error));
    }
    *moves = reuse->moves;
    return STATUS_OK;
}

enum status reuse_capture(struct reuse *reuse, const struct select *select, struct stream *stream,
                          const struct choice_query *query, struct choice *choice, struct error *error) {
    const size_t heads = query->operation->kv_head_count;
    plan_rows(reuse, select, query, choice);
    if (choice->chosen_count == 0) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++) {
        const struct held *held = held_of(reuse, reuse->slots[i], query->layer_index);
        for (size_t head = 0; head < heads; head++)
            choice->kept[i * heads + head] = (struct kept_list){
                .rows = buffer_exists(&held[head].rows) ? span_of(&held[head].rows, 0) : (struct span){.buffer = NULL}};
        choice->candidates[i].kept = choice->kept + i * heads;
    }
    memset(choice->hits, 0, choice->chosen_count * heads * sizeof *choice->hits);
    put_comparison(reuse, stream, query, choice,
                   &(struct compare_labels_operation){.at = choice_step_lists(choice),
                                                      .told = choice_told(choice),
                                                      .counts = span_of(&reuse->counts, 0)});
    return select_pick(select, stream, query, choice, error);
}

enum status reuse_capture_expected(struct reuse *reuse, const struct select *select, struct stream *stream,
                                   const struct choice_query *query, struct choice *choice, struct error *error) {
    plan_rows(reuse, select, query, choice);
    if (choice->chosen_count == 0) return STATUS_OK;
    put_comparison(reuse, stream, query, choice,
                   &(struct compare_labels_operation){
                       .only_says = true, .at = choice_step_lists(choice), .told = choice_told(choice)});
    return select_pick(select, stream, query, choice, error);
}

void reuse_note_step(struct reuse *reuse, const struct choice_query *query, const struct step_list *limits) {
    const size_t heads = query->operation->kv_head_count;
    for (size_t row = 0; row < query->operation->item_count; row++) {
        if (limits[row * heads].candidate_end == 0) continue; /* it sees everything */
        struct held *held = held_of(reuse, slot_of(reuse, query->sequences[row]), query->layer_index);
        for (size_t head = 0; head < heads; head++) {
            held[head].seen = query->operation->items[row].position_first;
            if (limits[row * heads + head].picks == 0) continue;
            held[head].is_held = true;
            held[head].keep = query->rules[row]->keep;
        }
    }
}

void reuse_read_counts(struct reuse *reuse, struct stream *stream, size_t row_count) {
    reuse->shape.device->operations->copy(stream, span_of(&reuse->counts_read, 0), span_of(&reuse->counts, 0),
                                          row_count * reuse->shape.kv_head_count * sizeof(struct step_reuse));
}

void reuse_add_counts(const struct reuse *reuse, const struct select *select, struct select_statistics *statistics) {
    const struct step_reuse *counts = span_host(span_of(&reuse->counts_read, 0));
    const size_t scored_tokens = select_scored_tokens(select);
    if (reuse->clears_counts) return;
    for (size_t i = 0; i < looking(&reuse->shape); i++) {
        struct reuse_counts *sum = &statistics->reuse;
        sum->hits += counts[i].hits;
        sum->misses += counts[i].misses;
        sum->rows += counts[i].rows;
        sum->age_sum += counts[i].age_sum;
        if (counts[i].age_max > sum->age_max) sum->age_max = counts[i].age_max;
        statistics->kept += counts[i].rows - counts[i].chosen_rows;
        statistics->evaluated -= counts[i].scored / scored_tokens;
    }
}

void reuse_reset_counts(struct reuse *reuse) { reuse->clears_counts = true; }

enum status reuse_expect(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) {
    TRY(plan(reuse, select, stream, query, choice, false, error));
    return select_pick(select, stream, query, choice, error);
}
