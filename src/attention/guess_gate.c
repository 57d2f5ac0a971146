#include "attention/guess_gate.h"

enum { TRIES_FIRST = 4, PAUSE_STEPS = 32, MEMORY = 8 /* guesses that an average looks back */ };

/* A request costs the processor a fourth to a fifth of what a wait for it costs (docs/decisions/0020). */
static const float USED_LEAST = 0.2f;

bool guess_gate_opens(struct guess_gate *gate) {
    if (gate->tries < TRIES_FIRST) return true;
    if (gate->used > 0.5f && gate->used >= USED_LEAST * gate->read) return true;
    if (gate->pause > 0) {
        gate->pause--;
        return false;
    }
    gate->pause = PAUSE_STEPS;
    return true;
}

void guess_gate_add(struct guess_gate *gate, size_t read, size_t used) {
    if (gate->tries < MEMORY) gate->tries++;
    float share = 1.0f / (float)gate->tries;
    gate->read += share * ((float)read - gate->read);
    gate->used += share * ((float)used - gate->used);
}
