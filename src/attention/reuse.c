#include "attention/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/layout.h"
#include "cache/kv_cache.h"

/* What a KV head of a layer of a sequence holds. */
struct held {
    struct buffer rows;      /* owned MEMORY_DEVICE; uint32_t: sinks and picks */
    size_t prefix_count;     /* of them; 0: nothing is held */
    uint64_t candidate_end;  /* where the window began when they were chosen */
    uint64_t position, seen; /* of the row that chose, and of the last one that looked */
    struct select_keep keep; /* its rule's */
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
    /* [row_capacity], of the rows that choose now: their sequences, what is compared, and each head's. */
    size_t *slots;
    struct label_item *items;
    enum label_use *uses;   /* [row_capacity][kv head] */
    struct reuse_step step; /* what happened since it began */
};

/* ---- life ---- */

static size_t lane_of(const struct reuse_shape *shape, size_t layer, size_t kv_head) {
    return kv_layer_lane(shape->groups, shape->kv_head_count, layer, kv_head);
}
static size_t lane_count(const struct reuse_shape *shape) { return lane_of(shape, shape->layer_count, 0); }

static size_t held_count(const struct reuse_shape *shape) {
    return shape->sequence_capacity * lane_count(shape);
}

static size_t query_size(const struct reuse_shape *shape) { return shape->head_count * shape->k_dimension; }

static size_t label_bytes(const struct reuse_shape *shape) {
    return shape->sequence_capacity * shape->layer_count * query_size(shape) * sizeof(float);
}

/* All of it but the labels and the lists that are held, which are the device's. */
static struct reuse *place(struct layout *layout, const struct reuse_shape *shape) {
    struct reuse *reuse = layout_take(layout, 1, sizeof *reuse), unused;
    struct reuse *placed = reuse != NULL ? reuse : &unused;
    const size_t lanes = lane_count(shape), rows = shape->row_capacity;
    placed->importance =
        layout_take(layout, shape->layer_count * shape->head_count, sizeof *placed->importance);
    placed->thresholds = layout_take(layout, lanes, sizeof *placed->thresholds);
    placed->anew = layout_take(layout, lanes, sizeof *placed->anew);
    placed->answers = layout_take(layout, shape->sequence_capacity, sizeof *placed->answers);
    placed->held = layout_take(layout, held_count(shape), sizeof *placed->held);
    placed->slots = layout_take(layout, rows, sizeof *placed->slots);
    placed->items = layout_take(layout, rows, sizeof *placed->items);
    placed->uses = layout_take(layout, rows * shape->kv_head_count, sizeof *placed->uses);
    return reuse;
}

static uint64_t host_bytes(const struct reuse_shape *shape) {
    struct layout layout = {NULL, 0};
    (void)place(&layout, shape);
    return layout.used;
}

uint64_t reuse_bytes(const struct reuse_shape *shape) {
    return host_bytes(shape) + held_count(shape) * shape->list_rows * sizeof(uint32_t) + label_bytes(shape);
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
        const size_t heads = kv_layer_heads(shape->groups, shape->kv_head_count, layer),
                     group = shape->head_count / heads;
        const float *own = reuse->importance + layer * shape->head_count;
        for (size_t head = 0; head < heads; head++) {
            const size_t lane = lane_of(shape, layer, head);
            reuse->thresholds[lane] =
                follows ? reuse_threshold(&reuse->options, importance_of(own + head * group, group))
                        : thresholds[lane];
        }
    }
}

enum status reuse_create(struct reuse **result, const struct reuse_shape *shape,
                         const struct reuse_options *options, const float *importance,
                         const double *thresholds, struct error *error) {
    struct layout layout = {calloc(1, (size_t)host_bytes(shape)), 0};
    *result = NULL;
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "reuse: out of memory");
    struct reuse *reuse = place(&layout, shape);
    reuse->shape = *shape;
    reuse->options = *options;
    if (shape->device->operations->allocate(shape->device, MEMORY_DEVICE, label_bytes(shape), &reuse->labels,
                                            NULL) != STATUS_OK) {
        reuse_destroy(reuse);
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
    operations->release(reuse->shape.device, &reuse->labels);
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

static void forget(struct reuse *reuse, size_t slot) {
    struct held *held = held_of(reuse, slot, 0);
    for (size_t i = 0; i < lane_count(&reuse->shape); i++) held[i].prefix_count = 0;
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

static bool same_keep(struct select_keep a, struct select_keep b) {
    return a.ratio == b.ratio && a.tokens == b.tokens;
}

/* Whether the list is still one of this row's context, whatever the queries. */
static bool is_current(const struct reuse *reuse, const struct held *held, uint64_t position,
                       struct select_keep keep) {
    const size_t age = reuse->options.age;
    return held->prefix_count > 0 && same_keep(held->keep, keep) &&
           (position == held->seen || position == held->seen + 1) &&
           (age == 0 || position - held->position <= age);
}

/* Whose lists are still of this row's context; the labels of the others that choose are replaced. */
static void look_up(struct reuse *reuse, const struct choice_query *query, struct choice *choice,
                    size_t index) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count, slot = reuse->slots[index];
    const struct select_keep keep = query->rules[choice->chosen_items[index]]->keep;
    const struct held *held = held_of(reuse, slot, query->layer_index);
    enum label_use *uses = reuse->uses + index * heads;
    for (size_t head = 0; head < heads; head++) {
        const bool anew = reuse->anew[lane_of(&reuse->shape, query->layer_index, head)];
        uses[head] = !anew && is_current(reuse, &held[head], candidates->position, keep) ? LABEL_COMPARED
                                                                                         : LABEL_REPLACED;
        if (select_item_picks(candidates, head) == 0) uses[head] = LABEL_STAYS;
        choice->statistics.verdicts_read += uses[head] == LABEL_COMPARED;
    }
    reuse->items[index] = (struct label_item){
        .row = candidates->row, .label = label_of(reuse, slot, query->layer_index), .heads = uses};
}

static bool compares(const struct reuse *reuse, const struct choice *choice) {
    for (size_t i = 0; i < choice->chosen_count * choice->kv_head_count; i++)
        if (reuse->uses[i] == LABEL_COMPARED) return true;
    return false;
}

/* Fills choice->hits.  The verdict decides how long lists are and what is counted, so that the host waits for it. */
static enum status compare(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                           struct choice *choice, bool decides, struct error *error) {
    const struct reuse_shape *shape = &reuse->shape;
    const struct device_operations *operations = shape->device->operations;
    const struct attend_operation *operation = query->operation;
    const bool waits = compares(reuse, choice);
    if (waits || decides)
        operations->compare_labels(
            stream, &(struct compare_labels_operation){
                        .q = operation->q,
                        .q_stride = operation->q_stride,
                        .head_count = shape->head_count,
                        .kv_head_count = choice->kv_head_count,
                        .k_dimension = choice->chosen[0].view.layout->k_dimension,
                        .aggregate = reuse->options.aggregate,
                        .importance = reuse->importance + query->layer_index * shape->head_count,
                        .thresholds = reuse->thresholds + lane_of(shape, query->layer_index, 0),
                        .items = reuse->items,
                        .item_count = choice->chosen_count,
                        .keeps_labels = !decides,
                        .alike = choice->hits});
    if (waits) return operations->stream_synchronize(stream, error);
    return STATUS_OK;
}

/* Plans, and looks up which rows' heads hit: these need no picks. */
static enum status plan(struct reuse *reuse, const struct select *select, struct stream *stream,
                        const struct choice_query *query, struct choice *choice, bool decides,
                        struct error *error) {
    const size_t heads = query->operation->kv_head_count;
    ASSERT(query->kv_head_first == 0 &&
           heads == kv_layer_heads(reuse->shape.groups, reuse->shape.kv_head_count, query->layer_index));
    select_plan(select, query, choice);
    ASSERT(choice->chosen_count <= reuse->shape.row_capacity);
    if (choice->chosen_count == 0) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++) {
        reuse->slots[i] = slot_of(reuse, query->sequences[choice->chosen_items[i]]);
        look_up(reuse, query, choice, i);
    }
    TRY(compare(reuse, stream, query, choice, decides, error));
    for (size_t i = 0; i < choice->chosen_count * heads; i++) {
        choice->hits[i] = reuse->uses[i] == LABEL_COMPARED && choice->hits[i];
        if (choice->hits[i]) choice->picks[i] = 0;
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
        if (choice->picks[index * heads + head] > 0) held[head].prefix_count = 0;
    }
}

/* ---- lists ---- */

static enum status reserve(struct reuse *reuse, struct stream *stream, struct held *held, size_t rows,
                           struct error *error) {
    if (rows * sizeof(uint32_t) <= held->rows.bytes) return STATUS_OK;
    size_t capacity = rows + rows / 2;
    if (reuse->shape.list_rows != 0) capacity = min_size(capacity, (size_t)reuse->shape.list_rows);
    ASSERT(capacity >= rows);
    struct device *device = reuse->shape.device;
    if (buffer_exists(&held->rows)) TRY(device->operations->stream_synchronize(stream, error));
    device->operations->release(device, &held->rows);
    if (device->operations->allocate(device, MEMORY_DEVICE, capacity * sizeof(uint32_t), &held->rows, NULL) !=
        STATUS_OK)
        return error_set(error, STATUS_MEMORY, "reuse: no memory for a list of %zu rows", rows);
    return STATUS_OK;
}

/* What the heads of a row that chooses take, or keep of what they choose. */
static enum status show_kept(struct reuse *reuse, struct stream *stream, const struct choice_query *query,
                             struct choice *choice, size_t index, struct error *error) {
    struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count;
    const uint64_t window = candidates->position + 1 - candidates->candidate_end;
    struct held *held = held_of(reuse, reuse->slots[index], query->layer_index);
    struct kept_list *kept = choice->kept + index * heads;
    for (size_t head = 0; head < heads; head++) {
        kept[head] = (struct kept_list){.is_taken = choice->hits[index * heads + head]};
        if (kept[head].is_taken) {
            kept[head].count = held[head].prefix_count;
            kept[head].window_begin =
                reuse->options.age > 0 ? held[head].candidate_end : candidates->candidate_end;
        } else if (select_item_picks(candidates, head) > 0) {
            TRY(reserve(reuse, stream, &held[head], (size_t)(select_item_kept(candidates, head) - window),
                        error));
        } else {
            continue;
        }
        kept[head].rows = span_of(&held[head].rows, 0);
    }
    candidates->kept = kept;
    return STATUS_OK;
}

static void note_hit(struct reuse *reuse, struct reuse_counts *counts, uint64_t age,
                     const struct rows_item *chosen, const struct row_list *list) {
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

/* The lists of a row are on their way: what of them is held, and what is counted. */
static void settle(struct reuse *reuse, const struct choice_query *query, struct choice *choice,
                   size_t index) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t heads = choice->kv_head_count, slot = reuse->slots[index];
    const size_t window = (size_t)(candidates->position + 1 - candidates->candidate_end);
    struct held *held = held_of(reuse, slot, query->layer_index);
    for (size_t head = 0; head < heads; head++) {
        const struct row_list *list = &choice->lists[index * heads + head];
        if (choice->hits[index * heads + head]) {
            note_hit(reuse, &choice->statistics.reuse, candidates->position - held[head].position,
                     &choice->chosen[index], list);
        } else if (select_item_picks(candidates, head) > 0) {
            held[head].prefix_count = list->count - window;
            held[head].candidate_end = candidates->candidate_end;
            held[head].position = candidates->position;
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
    if (select_get_options(select)->alpha > 0) /* how long the lists are comes with the stream */
        TRY(reuse->shape.device->operations->stream_synchronize(stream, error));
    for (size_t i = 0; i < choice->chosen_count; i++) settle(reuse, query, choice, i);
    return STATUS_OK;
}

enum status reuse_expect(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) {
    TRY(plan(reuse, select, stream, query, choice, false, error));
    return select_pick(select, stream, query, choice, error);
}
