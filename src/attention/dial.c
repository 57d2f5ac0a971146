#include "attention/dial.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/layout.h"
#include "cache/kv_cache.h"

enum { PICKS_MIN = 32 };

/* Of estimates, what the last one counts; of the logarithm of how far the mean is off, what picks follow at once. */
static const double NEWEST = 0.5, GROWTH = 0.6, SHRINKAGE = 0.15;
static const double OFF_MAX = 1.2, FLOOR = 0.1; /* FLOOR: of the target, what a logarithm takes as nothing */

struct dial_state {
    double picks; /* 0: nothing is known */
    double left_out;
};

struct dial_head {
    struct dial_state now, before; /* before: of the pass whose rows were added last, for when it is done again */
    uint64_t end;                  /* position behind the last row that was added */
};

struct dial {
    struct dial_shape shape;
    uint64_t *answers;       /* [sequence_capacity]: kv_sequence_answer; 0: nobody's */
    struct dial_head *heads; /* [sequence_capacity][lane] */
};

static size_t lane_of(const struct dial_shape *shape, size_t layer, size_t kv_head) {
    return kv_layer_lane(shape->groups, shape->kv_head_count, layer, kv_head);
}
static size_t lane_count(const struct dial_shape *shape) { return lane_of(shape, shape->layer_count, 0); }

static struct dial *place(struct layout *layout, const struct dial_shape *shape) {
    struct dial *dial = layout_take(layout, 1, sizeof *dial), unused;
    struct dial *placed = dial != NULL ? dial : &unused;
    placed->answers = layout_take(layout, shape->sequence_capacity, sizeof *placed->answers);
    placed->heads = layout_take(layout, shape->sequence_capacity * lane_count(shape), sizeof *placed->heads);
    return dial;
}

uint64_t dial_bytes(const struct dial_shape *shape) {
    struct layout layout = {NULL, 0};
    (void)place(&layout, shape);
    return layout.used;
}

enum status dial_create(struct dial **result, const struct dial_shape *shape, struct error *error) {
    struct layout layout = {calloc(1, (size_t)dial_bytes(shape)), 0};
    *result = NULL;
    if (layout.memory == NULL)
        return error_set(error, STATUS_MEMORY, "loss: no memory for %zu sequences", shape->sequence_capacity);
    *result = place(&layout, shape);
    (*result)->shape = *shape;
    return STATUS_OK;
}

void dial_destroy(struct dial *dial) { free(dial); }

static struct dial_head *head_of(const struct dial *dial, size_t slot, size_t layer_index, size_t kv_head) {
    return &dial->heads[slot * lane_count(&dial->shape) + lane_of(&dial->shape, layer_index, kv_head)];
}

size_t dial_slot(struct dial *dial, const struct kv_sequence *sequence) {
    const size_t slot = kv_sequence_index(sequence);
    const uint64_t answer = kv_sequence_answer(sequence);
    ASSERT(slot < dial->shape.sequence_capacity);
    if (dial->answers[slot] != answer) {
        struct dial_head *heads = head_of(dial, slot, 0, 0);
        for (size_t i = 0; i < lane_count(&dial->shape); i++) heads[i] = (struct dial_head){0};
    }
    dial->answers[slot] = answer;
    return slot;
}

/* A row that was added before is of a step that failed: what it said is forgotten, and said again. */
static void begin_row(struct dial_head *head, uint64_t position) {
    if (position < head->end) {
        head->now = head->before;
        head->end = position;
    }
    head->before = head->now;
}

uint64_t dial_picks(struct dial *dial, const struct dial_choice *choice, uint64_t unit) {
    struct dial_head *head = head_of(dial, choice->slot, choice->layer_index, choice->kv_head);
    const uint64_t candidates = choice->candidates;
    begin_row(head, choice->position);
    const double wanted = head->now.picks > 0 ? head->now.picks : ceil(DIAL_FIRST * (double)candidates);
    const uint64_t picks = wanted < (double)candidates ? (uint64_t)ceil(wanted) : candidates;
    const uint64_t whole = (picks + unit - 1) / unit * unit;
    return whole < candidates ? whole : candidates;
}

void dial_add(struct dial *dial, const struct dial_choice *choice, const struct mass_estimate *estimates,
              size_t group) {
    struct dial_head *found = head_of(dial, choice->slot, choice->layer_index, choice->kv_head);
    struct dial_state *head = &found->now;
    const uint64_t candidates = choice->candidates;
    found->end = choice->position + 1;
    const double target = DIAL_MARGIN * dial->shape.loss;
    double left_out = 0;
    for (size_t i = 0; i < group; i++) left_out = fmax(left_out, estimates[i].left_out);
    if (head->picks == 0) *head = (struct dial_state){.picks = DIAL_FIRST * (double)candidates, .left_out = left_out};
    head->left_out += NEWEST * (left_out - head->left_out);
    const double off = log((head->left_out + FLOOR * target) / ((1 + FLOOR) * target));
    const double bounded = fmax(fmin(off, OFF_MAX), -OFF_MAX);
    head->picks *= exp((bounded > 0 ? GROWTH : SHRINKAGE) * bounded);
    head->picks = fmax(fmin(head->picks, (double)candidates), fmin(PICKS_MIN, (double)candidates));
}
