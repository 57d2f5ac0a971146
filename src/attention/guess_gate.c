#include "attention/guess_gate.h"

enum {
    TRIES_FIRST = 4,
    PAUSE_STEPS = 32,
    MEMORY = 8, /* guesses that an average looks back */
    ROOM_LEAST = 8,
    ROOM_FIRST = 256,
    ROOM_MOST = 1 << 20,
};

/* A request costs the processor a fourth to a fifth of what a wait for it costs (docs/decisions/0020). */
static const float USED_LEAST = 0.2f;
static const float ROOM_LATE = 0.75f, ROOM_IN_TIME = 1.1f;

void guess_gate_init(struct guess_gate *gate) { *gate = (struct guess_gate){.room = ROOM_FIRST}; }

bool guess_gate_opens(struct guess_gate *gate) {
    if (gate->tries < TRIES_FIRST) return true;
    if (gate->used > 0.5f && gate->used >= USED_LEAST * gate->read && gate->room > ROOM_LEAST) return true;
    if (gate->pause > 0) {
        gate->pause--;
        return false;
    }
    gate->pause = PAUSE_STEPS;
    return true;
}

size_t guess_gate_room(const struct guess_gate *gate) { return (size_t)gate->room; }

void guess_gate_add(struct guess_gate *gate, const struct guess_outcome *outcome) {
    if (gate->tries < MEMORY) gate->tries++;
    float share = 1.0f / (float)gate->tries;
    gate->read += share * ((float)outcome->read - gate->read);
    gate->used += share * ((float)outcome->used - gate->used);
    if (outcome->late && (float)outcome->read < gate->room) gate->room = (float)outcome->read;
    gate->room *= outcome->late ? ROOM_LATE : ROOM_IN_TIME;
    if (gate->room < ROOM_LEAST) gate->room = ROOM_LEAST;
    if (gate->room > ROOM_MOST) gate->room = ROOM_MOST;
}
