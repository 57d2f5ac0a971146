#include "attention/prefetch_gate.h"

enum {
    TRIES_FIRST = 4,
    PAUSE_STEPS = 32,
    MEMORY = 8, /* prefetches that an average looks back */
    CHUNKS_MIN = 8,
    CHUNKS_FIRST = 256,
    CHUNKS_MAX = 1 << 20,
};

/* A request costs the processor a fourth to a fifth of what a wait for it costs (decision 0020). */
static const float USED_MIN = 0.2f;
static const float CHUNKS_LATE = 0.75f, CHUNKS_IN_TIME = 1.1f;

void prefetch_gate_init(struct prefetch_gate *gate) { *gate = (struct prefetch_gate){.chunks_max = CHUNKS_FIRST}; }

bool prefetch_gate_opens(struct prefetch_gate *gate) {
    if (gate->tries < TRIES_FIRST) return true;
    if (gate->used > 0.5f && gate->used >= USED_MIN * gate->read && gate->chunks_max > CHUNKS_MIN) return true;
    if (gate->pause > 0) {
        gate->pause--;
        return false;
    }
    gate->pause = PAUSE_STEPS;
    return true;
}

size_t prefetch_gate_chunks(const struct prefetch_gate *gate) { return (size_t)gate->chunks_max; }

void prefetch_gate_add(struct prefetch_gate *gate, const struct prefetch_outcome *outcome) {
    if (gate->tries < MEMORY) gate->tries++;
    float fraction = 1.0f / (float)gate->tries;
    gate->read += fraction * ((float)outcome->read - gate->read);
    gate->used += fraction * ((float)outcome->used - gate->used);
    if (outcome->late && (float)outcome->read < gate->chunks_max) gate->chunks_max = (float)outcome->read;
    gate->chunks_max *= outcome->late ? CHUNKS_LATE : CHUNKS_IN_TIME;
    if (gate->chunks_max < CHUNKS_MIN) gate->chunks_max = CHUNKS_MIN;
    if (gate->chunks_max > CHUNKS_MAX) gate->chunks_max = CHUNKS_MAX;
}
