#include "cache/kv_state.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"

enum {
    SLOTS_MAX = KV_STATE_SNAPSHOTS_MAX + KV_STATE_SLOTS_BESIDE,
    ZEROS = SLOTS_MAX, /* in place of a slot */
};

enum slot_use { SLOT_FREE, SLOT_LENGTH, SLOT_BATCH };

struct state_slot {
    uint64_t position;
    enum slot_use use;
    bool is_kept; /* a snapshot, whatever else it is */
};

struct kv_state {
    struct device *device; /* borrowed */
    struct buffer memory;  /* owned MEMORY_DEVICE; [slot_count][float_count] */
    size_t float_count, slot_count;
    struct state_slot slots[SLOTS_MAX];
    uint64_t length, zeros_at; /* where the state is all zeros */
    uint64_t batch_end;        /* of the batch; the length: there is none */
    bool is_written;           /* the batch has begun to */
    struct kv_snapshot_plan plan;
};

enum status kv_state_create(struct kv_state **result, struct device *device, size_t float_count, size_t slot_count,
                            struct error *error) {
    ASSERT(float_count > 0 && slot_count > KV_STATE_SLOTS_BESIDE && slot_count <= SLOTS_MAX);
    struct kv_state *state = calloc(1, sizeof *state);
    *result = NULL;
    if (state == NULL) return error_set(error, STATUS_MEMORY, "state: out of memory");
    state->device = device;
    state->float_count = float_count;
    state->slot_count = slot_count;
    const enum status status = device->operations->allocate(
        device, MEMORY_DEVICE, slot_count * float_count * sizeof(float), &state->memory, error);
    if (status != STATUS_OK) {
        free(state);
        return status;
    }
    *result = state;
    return STATUS_OK;
}

void kv_state_destroy(struct kv_state *state) {
    if (state == NULL) return;
    state->device->operations->release(state->device, &state->memory);
    free(state);
}

size_t kv_state_snapshots(const struct kv_state *state) { return state->slot_count - KV_STATE_SLOTS_BESIDE; }

static struct span memory_of(const struct kv_state *state, size_t slot) {
    if (slot == ZEROS) return (struct span){.buffer = NULL};
    return span_floats(span_of(&state->memory, 0), slot * state->float_count);
}

/* The slot with the state of a position, of such a use, or, SLOT_FREE, a snapshot; ZEROS: none. */
static size_t find(const struct kv_state *state, enum slot_use use, uint64_t position) {
    for (size_t i = 0; i < state->slot_count; i++) {
        const struct state_slot *slot = &state->slots[i];
        const bool is_such = use == SLOT_FREE ? slot->is_kept && slot->use != SLOT_BATCH : slot->use == use;
        if (is_such && slot->position == position) return i;
    }
    return ZEROS;
}

/* That of the length, or a snapshot. */
static size_t slot_of(const struct kv_state *state, uint64_t position) {
    const size_t slot = find(state, SLOT_LENGTH, position);
    return slot != ZEROS ? slot : find(state, SLOT_FREE, position);
}

static size_t snapshot_count(const struct kv_state *state) {
    size_t count = 0;
    for (size_t i = 0; i < state->slot_count; i++) count += state->slots[i].is_kept;
    return count;
}

/* The nearest snapshots around a position, or the sequence's two ends. */
static double gap_around(const struct kv_state *state, uint64_t position, uint64_t end) {
    uint64_t before = 0, behind = end;
    for (size_t i = 0; i < state->slot_count; i++) {
        const struct state_slot *slot = &state->slots[i];
        if (!slot->is_kept || slot->position == position) continue;
        if (slot->position < position && slot->position > before) before = slot->position;
        if (slot->position > position && slot->position < behind) behind = slot->position;
    }
    return kv_snapshot_gap(before, position, behind, end);
}

/* The snapshot that is missed least goes; the state at the length stays as that. */
static void evict(struct kv_state *state, uint64_t end) {
    size_t least = ZEROS;
    double least_gap = 0;
    for (size_t i = 0; i < state->slot_count; i++) {
        if (!state->slots[i].is_kept || state->slots[i].use == SLOT_BATCH) continue;
        const uint64_t position = state->slots[i].position;
        const double gap = kv_snapshot_is_wanted(&state->plan, position) ? HUGE_VAL : gap_around(state, position, end);
        if (least != ZEROS && gap >= least_gap) continue;
        least = i;
        least_gap = gap;
    }
    ASSERT(least != ZEROS);
    state->slots[least].is_kept = false;
}

static void keep(struct kv_state *state, size_t slot) {
    if (state->slots[slot].is_kept) return;
    if (snapshot_count(state) == kv_state_snapshots(state)) evict(state, state->slots[slot].position);
    state->slots[slot].is_kept = true;
}

static size_t free_slot(const struct kv_state *state) {
    size_t slot = 0;
    while (slot < state->slot_count && (state->slots[slot].is_kept || state->slots[slot].use != SLOT_FREE)) slot++;
    ASSERT(slot < state->slot_count);
    return slot;
}

static size_t take_slot(struct kv_state *state, uint64_t position) {
    const size_t slot = free_slot(state);
    state->slots[slot] = (struct state_slot){.position = position, .use = SLOT_BATCH};
    return slot;
}

static void drop_batch(struct kv_state *state) {
    for (size_t i = 0; i < state->slot_count; i++)
        if (state->slots[i].use == SLOT_BATCH) state->slots[i] = (struct state_slot){.use = SLOT_FREE};
    state->batch_end = state->length;
    state->is_written = false;
}

void kv_state_plan(struct kv_state *state, const uint64_t *positions, size_t count, uint64_t turn) {
    ASSERT(count <= kv_state_snapshots(state));
    kv_snapshots_plan(&state->plan, positions, count, turn);
}

void kv_state_begin(struct kv_state *state, uint64_t end) {
    ASSERT(end > state->length);
    if (state->batch_end == end) return; /* it goes on */
    drop_batch(state);
    state->batch_end = end;
    for (size_t i = 0; i < state->plan.count; i++) {
        const uint64_t position = state->plan.positions[i];
        if (position <= state->length || position >= end) continue;
        if (snapshot_count(state) == kv_state_snapshots(state)) evict(state, end);
        state->slots[take_slot(state, position)].is_kept = true;
    }
    (void)take_slot(state, end);
}

struct kv_state_part kv_state_part(struct kv_state *state, uint64_t position, uint64_t end) {
    ASSERT(position >= state->length && position < end && end <= state->batch_end);
    size_t to = ZEROS, from;
    for (size_t i = 0; i < state->slot_count; i++) {
        const struct state_slot *slot = &state->slots[i];
        if (slot->use != SLOT_BATCH || slot->position <= position) continue;
        if (to == ZEROS || slot->position < state->slots[to].position) to = i;
    }
    ASSERT(to != ZEROS);
    if (position == state->length) {
        from = find(state, SLOT_LENGTH, position);
        ASSERT(from != ZEROS || position == state->zeros_at);
    } else {
        from = find(state, SLOT_BATCH, position); /* the one that was left there, */
        if (from == ZEROS) from = to;             /* or what a block before this one left on the way */
    }
    state->is_written = true;
    if (state->slots[to].position < end) end = state->slots[to].position;
    return (struct kv_state_part){.end = end, .from = memory_of(state, from), .to = memory_of(state, to)};
}

/* The slot of the length is a snapshot or free from now on. */
static void leave_length(struct kv_state *state) {
    const size_t slot = find(state, SLOT_LENGTH, state->length);
    if (slot != ZEROS) state->slots[slot].use = SLOT_FREE;
}

static void commit(struct kv_state *state, uint64_t length) {
    const bool is_whole = state->is_written && state->batch_end == length, is_step = length == state->length + 1;
    ASSERT(is_whole || !state->is_written);
    leave_length(state);
    if (!is_whole) {
        drop_batch(state);
        state->zeros_at = length;
    }
    for (size_t i = 0; i < state->slot_count; i++)
        if (state->slots[i].use == SLOT_BATCH)
            state->slots[i].use = state->slots[i].position == length ? SLOT_LENGTH : SLOT_FREE;
    state->length = state->batch_end = length;
    state->is_written = false;
    const size_t now = find(state, SLOT_LENGTH, length);
    if (now == ZEROS) return;
    bool keeps = is_step && length % KV_STEPS_BETWEEN == 0;
    for (size_t i = 0; i < state->plan.count; i++) keeps = keeps || state->plan.positions[i] == length;
    if (keeps) keep(state, now);
}

static void cut(struct kv_state *state, uint64_t length) {
    ASSERT(kv_state_longest(state, length) == length);
    drop_batch(state);
    leave_length(state);
    for (size_t i = 0; i < state->slot_count; i++)
        if (state->slots[i].is_kept && state->slots[i].position > length)
            state->slots[i] = (struct state_slot){.use = SLOT_FREE};
    const size_t slot = find(state, SLOT_FREE, length);
    if (slot != ZEROS)
        state->slots[slot].use = SLOT_LENGTH;
    else
        state->zeros_at = length;
    state->length = state->batch_end = length;
    state->plan.count = 0;
}

void kv_state_set_length(struct kv_state *state, uint64_t length) {
    if (length > state->length)
        commit(state, length);
    else if (length == state->length)
        drop_batch(state);
    else
        cut(state, length);
}

uint64_t kv_state_longest(const struct kv_state *state, uint64_t length) {
    uint64_t longest = state->zeros_at <= length ? state->zeros_at : 0;
    if (length >= state->length) return state->length;
    for (size_t i = 0; i < state->slot_count; i++) {
        const struct state_slot *slot = &state->slots[i];
        if (slot->is_kept && slot->use != SLOT_BATCH && slot->position <= length && slot->position > longest)
            longest = slot->position;
    }
    return longest;
}

void kv_state_copy(struct kv_state *state, const struct kv_state *other, uint64_t length, struct stream *stream) {
    ASSERT(state->length == 0 && kv_state_longest(other, length) == length);
    ASSERT(state->float_count == other->float_count);
    const size_t source = slot_of(other, length);
    if (source == ZEROS) {
        drop_batch(state);
        state->length = state->batch_end = state->zeros_at = length;
        return;
    }
    state->device->operations->copy(stream, kv_state_begin_load(state, length), memory_of(other, source),
                                    state->float_count * sizeof(float));
    kv_state_end_load(state, length);
}

/* ---- saved ones ---- */

size_t kv_state_positions(const struct kv_state *state, uint64_t positions[KV_STATE_POSITIONS_MAX]) {
    size_t count = 0;
    for (size_t i = 0; i < state->slot_count; i++) {
        const struct state_slot *slot = &state->slots[i];
        if (slot->use == SLOT_BATCH || (slot->use != SLOT_LENGTH && !slot->is_kept)) continue;
        size_t at = count++;
        for (; at > 0 && positions[at - 1] > slot->position; at--) positions[at] = positions[at - 1];
        positions[at] = slot->position;
    }
    return count;
}

struct span kv_state_at(const struct kv_state *state, uint64_t position) {
    const size_t slot = slot_of(state, position);
    ASSERT(slot != ZEROS);
    return memory_of(state, slot);
}

struct span kv_state_spare(const struct kv_state *state) {
    ASSERT(state->batch_end == state->length);
    return memory_of(state, free_slot(state));
}

size_t kv_state_thin(const struct kv_state *state, uint64_t *positions, size_t count, size_t most) {
    return kv_snapshots_thin(&state->plan, positions, count, most);
}

struct span kv_state_begin_load(struct kv_state *state, uint64_t length) {
    ASSERT(state->length == 0 && length > 0);
    drop_batch(state);
    return memory_of(state, take_slot(state, length));
}

void kv_state_end_load(struct kv_state *state, uint64_t length) {
    const size_t slot = find(state, SLOT_BATCH, length);
    ASSERT(slot != ZEROS);
    state->slots[slot].use = SLOT_LENGTH;
    state->length = state->batch_end = length;
    keep(state, slot);
}
