#include "attention/reuse.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_cache.h"

/* What a KV head of a layer of a sequence holds. */
struct held {
    /* Owned MEMORY_SHARED; uint32_t [capacity]: sinks and picks, and behind them the window of the last step. */
    struct buffer rows;
    size_t capacity, prefix_count; /* rows of sinks and picks; 0: nothing is held */
    uint64_t candidate_end;        /* where the window began when they were chosen */
    uint64_t position, seen;       /* of the row that chose, and of the last one that looked */
    struct select_keep keep;       /* its rule's */
};

struct held_sequence {
    const struct kv_sequence *sequence; /* whose it is; NULL: nobody's */
    uint64_t generation;
    uint64_t used; /* the last step; the lowest goes when there is another sequence */
};

struct reuse {
    struct reuse_shape shape;
    struct reuse_options options;
    float *importance;               /* owned; [layer][head] */
    double *thresholds;              /* owned; [layer][kv head] */
    struct held_sequence *sequences; /* owned; [sequence_capacity] */
    struct held *held;               /* owned; [sequence_capacity][layer][kv head] */
    float *labels;                   /* owned; [sequence_capacity][layer][head][k_dimension] */
    float *queries;       /* owned; [row_capacity][head][k_dimension]: of the rows that choose now */
    double *similarities; /* owned; [group] */
    bool *hits;           /* owned; [row_capacity][kv head] */
    size_t *slots;        /* owned; [row_capacity]: the rows' sequences */
    uint64_t clock;
    struct reuse_step step; /* what happened since it began */
};

/* ---- life ---- */

static size_t held_count(const struct reuse_shape *shape) {
    return shape->sequence_capacity * shape->layer_count * shape->kv_head_count;
}

static size_t query_size(const struct reuse_shape *shape) { return shape->head_count * shape->k_dimension; }

uint64_t reuse_bytes(const struct reuse_shape *shape) {
    uint64_t heads = shape->layer_count * shape->head_count, held = held_count(shape);
    uint64_t labels = shape->sequence_capacity * shape->layer_count + shape->row_capacity;
    return heads * (sizeof(float) + sizeof(double)) +
           held * (sizeof(struct held) + shape->list_rows * sizeof(uint32_t)) +
           labels * query_size(shape) * sizeof(float) + shape->row_capacity * sizeof(size_t);
}

static void set_thresholds(struct reuse *reuse, const float *importance, const double *thresholds) {
    const struct reuse_shape *shape = &reuse->shape;
    const size_t group = shape->head_count / shape->kv_head_count;
    for (size_t i = 0; i < shape->layer_count * shape->head_count; i++)
        reuse->importance[i] = importance != NULL ? importance[i] : 1;
    for (size_t lane = 0; lane < shape->layer_count * shape->kv_head_count; lane++) {
        double importance_max = 0;
        for (size_t i = 0; i < group; i++) {
            const double own = (double)reuse->importance[lane * group + i];
            if (own > importance_max) importance_max = own;
        }
        const bool follows =
            thresholds == NULL || !(reuse->options.eta <= 1); /* above 1: nothing is reused */
        reuse->thresholds[lane] =
            follows ? reuse_threshold(&reuse->options, importance_max) : thresholds[lane];
    }
}

enum status reuse_create(struct reuse **result, const struct reuse_shape *shape,
                         const struct reuse_options *options, const float *importance,
                         const double *thresholds, struct error *error) {
    struct reuse *reuse = calloc(1, sizeof *reuse);
    const size_t heads = shape->layer_count * shape->head_count;
    *result = NULL;
    if (reuse == NULL) return error_set(error, STATUS_MEMORY, "reuse: out of memory");
    *reuse = (struct reuse){.shape = *shape, .options = *options};
    reuse->importance = calloc(heads, sizeof *reuse->importance);
    reuse->thresholds = calloc(shape->layer_count * shape->kv_head_count, sizeof *reuse->thresholds);
    reuse->sequences = calloc(shape->sequence_capacity, sizeof *reuse->sequences);
    reuse->held = calloc(held_count(shape), sizeof *reuse->held);
    reuse->labels =
        calloc(shape->sequence_capacity * shape->layer_count * query_size(shape), sizeof *reuse->labels);
    reuse->queries = calloc(shape->row_capacity * query_size(shape), sizeof *reuse->queries);
    reuse->similarities = calloc(shape->head_count, sizeof *reuse->similarities);
    reuse->slots = calloc(shape->row_capacity, sizeof *reuse->slots);
    if (reuse->importance == NULL || reuse->thresholds == NULL || reuse->sequences == NULL ||
        reuse->held == NULL || reuse->labels == NULL || reuse->queries == NULL ||
        reuse->similarities == NULL || reuse->slots == NULL) {
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
    for (size_t i = 0; reuse->held != NULL && i < held_count(&reuse->shape); i++)
        reuse->shape.device->operations->release(reuse->shape.device, &reuse->held[i].rows);
    free(reuse->importance);
    free(reuse->thresholds);
    free(reuse->sequences);
    free(reuse->held);
    free(reuse->labels);
    free(reuse->queries);
    free(reuse->similarities);
    free(reuse->slots);
    free(reuse);
}

const double *reuse_thresholds(const struct reuse *reuse) { return reuse->thresholds; }

bool reuse_speculates(const struct reuse *reuse) {
    return reuse->options.labels == REUSE_SPECULATED && reuse->options.eta <= 1;
}

/* ---- whose ---- */

static struct held *held_of(struct reuse *reuse, size_t slot, size_t layer_index) {
    return reuse->held + (slot * reuse->shape.layer_count + layer_index) * reuse->shape.kv_head_count;
}

static float *label_of(struct reuse *reuse, size_t slot, size_t layer_index) {
    return reuse->labels + (slot * reuse->shape.layer_count + layer_index) * query_size(&reuse->shape);
}

static void forget(struct reuse *reuse, size_t slot) {
    struct held *held = held_of(reuse, slot, 0);
    for (size_t i = 0; i < reuse->shape.layer_count * reuse->shape.kv_head_count; i++)
        held[i].prefix_count = 0;
}

/* The sequence's slot, with nothing of another sequence or of what the sequence was.  There are as many as sequences
 * may live, so that the one that goes is of a sequence that does not. */
static size_t slot_of(struct reuse *reuse, const struct kv_sequence *sequence) {
    size_t slot = 0;
    for (size_t i = 0; i < reuse->shape.sequence_capacity; i++) {
        if (reuse->sequences[i].sequence == sequence) {
            slot = i;
            break;
        }
        if (reuse->sequences[i].used < reuse->sequences[slot].used) slot = i;
    }
    struct held_sequence *held = &reuse->sequences[slot];
    const uint64_t generation = kv_sequence_generation(sequence);
    if (held->sequence != sequence || held->generation != generation) forget(reuse, slot);
    *held = (struct held_sequence){.sequence = sequence, .generation = generation, .used = ++reuse->clock};
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

static bool is_alike(struct reuse *reuse, size_t layer_index, size_t kv_head, const float *queries,
                     const float *label) {
    const struct reuse_shape *shape = &reuse->shape;
    const size_t group = shape->head_count / shape->kv_head_count, first = kv_head * group;
    for (size_t i = 0; i < group; i++)
        reuse->similarities[i] = label_cosine(queries + (first + i) * shape->k_dimension,
                                              label + (first + i) * shape->k_dimension, shape->k_dimension);
    const double similarity =
        label_similarity(reuse->options.aggregate, reuse->similarities,
                         reuse->importance + layer_index * shape->head_count + first, group);
    return similarity >= reuse->thresholds[layer_index * shape->kv_head_count + kv_head];
}

/* Heads of a row whose lists are good need no picks. */
static void look_up(struct reuse *reuse, const struct choice_query *query, struct choice *choice,
                    size_t index) {
    const struct select_item *candidates = &choice->candidates[index];
    const size_t heads = reuse->shape.kv_head_count, slot = reuse->slots[index];
    const struct select_keep keep = query->rules[choice->chosen_items[index]]->keep;
    const float *queries = reuse->queries + index * query_size(&reuse->shape);
    const float *label = label_of(reuse, slot, query->layer_index);
    const struct held *held = held_of(reuse, slot, query->layer_index);
    for (size_t head = 0; head < heads; head++) {
        uint64_t *picks = &choice->picks[index * heads + head];
        bool *hit = &choice->hits[index * heads + head];
        *hit = *picks > 0 && is_current(reuse, &held[head], candidates->position, keep) &&
               is_alike(reuse, query->layer_index, head, queries, label);
        if (*hit) *picks = 0;
    }
}

/* A row that chooses is the last one that looked. */
static void note_seen(struct reuse *reuse, const struct choice_query *query, const struct choice *choice,
                      size_t index) {
    struct held *held = held_of(reuse, reuse->slots[index], query->layer_index);
    for (size_t head = 0; head < reuse->shape.kv_head_count; head++)
        held[head].seen = choice->candidates[index].position;
}

/* Plans, reads the rows' queries and looks their heads up. */
static enum status plan(struct reuse *reuse, const struct select *select, struct stream *stream,
                        const struct choice_query *query, struct choice *choice, struct error *error) {
    const struct attend_operation *operation = query->operation;
    const size_t size = query_size(&reuse->shape);
    ASSERT(operation->kv_head_count == reuse->shape.kv_head_count && query->kv_head_first == 0);
    select_plan(select, query, choice);
    ASSERT(choice->chosen_count <= reuse->shape.row_capacity);
    for (size_t i = 0; i < choice->chosen_count; i++) {
        TRY(device_read(reuse->shape.device, stream, reuse->queries + i * size,
                        span_floats(operation->q, choice->candidates[i].row * operation->q_stride),
                        size * sizeof(float), error));
        reuse->slots[i] = slot_of(reuse, query->sequences[choice->chosen_items[i]]);
        look_up(reuse, query, choice, i);
    }
    return STATUS_OK;
}

/* ---- lists ---- */

static enum status reserve(struct reuse *reuse, struct held *held, size_t rows, struct error *error) {
    if (rows <= held->capacity) return STATUS_OK;
    size_t capacity = rows + rows / 2;
    if (reuse->shape.list_rows != 0) capacity = min_size(capacity, (size_t)reuse->shape.list_rows);
    ASSERT(capacity >= rows);
    struct device *device = reuse->shape.device;
    struct buffer grown;
    if (device->operations->allocate(device, MEMORY_SHARED, capacity * sizeof(uint32_t), &grown, NULL) !=
        STATUS_OK)
        return error_set(error, STATUS_MEMORY, "reuse: no memory for a list of %zu rows", rows);
    if (held->prefix_count > 0) memcpy(grown.host, held->rows.host, held->prefix_count * sizeof(uint32_t));
    device->operations->release(device, &held->rows);
    held->rows = grown;
    held->capacity = capacity;
    return STATUS_OK;
}

/* The list of a head that hits, with the row's window. */
static enum status take(struct reuse *reuse, struct held *held, const struct select_item *candidates,
                        struct row_list *list, struct select_statistics *statistics, struct error *error) {
    const uint64_t begin = reuse->options.age > 0 ? held->candidate_end : candidates->candidate_end;
    const uint64_t age = candidates->position - held->position;
    const size_t window = (size_t)(candidates->position + 1 - begin);
    TRY(reserve(reuse, held, held->prefix_count + window, error));
    uint32_t *rows = held->rows.host;
    for (size_t i = 0; i < window; i++) rows[held->prefix_count + i] = (uint32_t)(begin + i);
    statistics->kept += held->prefix_count + window - list->count;
    *list = (struct row_list){.rows = span_of(&held->rows, 0), .count = held->prefix_count + window};
    statistics->reuse.hits++;
    statistics->reuse.rows += list->count;
    statistics->reuse.age_sum += age;
    if (age > statistics->reuse.age_max) statistics->reuse.age_max = age;
    return STATUS_OK;
}

/* What a head has chosen now. */
static enum status keep(struct reuse *reuse, struct held *held, const struct select_item *candidates,
                        struct select_keep rule, const struct row_list *list, struct error *error) {
    const size_t window = (size_t)(candidates->position + 1 - candidates->candidate_end);
    held->prefix_count = 0;
    TRY(reserve(reuse, held, list->count, error));
    memcpy(held->rows.host, row_list_host(list), list->count * sizeof(uint32_t));
    held->prefix_count = list->count - window;
    held->candidate_end = candidates->candidate_end;
    held->position = candidates->position;
    held->keep = rule;
    return STATUS_OK;
}

/* The list is that of a hit. */
static void note_hit(struct reuse *reuse, const struct held *held, uint64_t position,
                     const struct rows_item *chosen, const struct row_list *list) {
    const uint64_t age = position - held->position;
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

static enum status settle(struct reuse *reuse, const struct choice_query *query, struct choice *choice,
                          size_t index, struct error *error) {
    const struct select_item *candidates = &choice->candidates[index];
    const struct reuse_shape *shape = &reuse->shape;
    const size_t heads = shape->kv_head_count, slot = reuse->slots[index];
    const size_t group_size = query_size(shape) / heads;
    const struct select_keep rule = query->rules[choice->chosen_items[index]]->keep;
    const float *queries = reuse->queries + index * query_size(shape);
    float *label = label_of(reuse, slot, query->layer_index);
    struct held *held = held_of(reuse, slot, query->layer_index);
    for (size_t head = 0; head < heads; head++) {
        struct row_list *list = &choice->lists[index * heads + head];
        if (choice->hits[index * heads + head]) {
            TRY(take(reuse, &held[head], candidates, list, &choice->statistics, error));
            note_hit(reuse, &held[head], candidates->position, &choice->chosen[index], list);
        } else if (select_item_picks(candidates, head) > 0) {
            TRY(keep(reuse, &held[head], candidates, rule, list, error));
            memcpy(label + head * group_size, queries + head * group_size, group_size * sizeof *label);
            choice->statistics.reuse.misses++;
            reuse->step.misses++;
        }
    }
    return STATUS_OK;
}

enum status reuse_choose(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) {
    const struct device_operations *operations = reuse->shape.device->operations;
    TRY(plan(reuse, select, stream, query, choice, error));
    for (size_t i = 0; i < choice->chosen_count; i++) note_seen(reuse, query, choice, i);
    TRY(select_pick(select, stream, query, choice, error));
    if (choice->chosen_count == 0) return STATUS_OK;
    TRY(operations->stream_synchronize(stream, error)); /* the host reads the lists */
    for (size_t i = 0; i < choice->chosen_count; i++) TRY(settle(reuse, query, choice, i, error));
    return STATUS_OK;
}

enum status reuse_expect(struct reuse *reuse, const struct select *select, struct stream *stream,
                         const struct choice_query *query, struct choice *choice, struct error *error) {
    TRY(plan(reuse, select, stream, query, choice, error));
    return select_pick(select, stream, query, choice, error);
}
