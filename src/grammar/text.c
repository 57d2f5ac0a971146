/* text: how a string goes on, whichever kind it is. */
#include "grammar/thread_internal.h"

bool thread_is_text(const struct thread *thread) {
    return thread->kind == THREAD_STRING || thread->kind == THREAD_KEY_STRING || thread->kind == THREAD_TEXT ||
           thread->kind == THREAD_KEY_TEXT;
}

static const struct automaton *automaton_of(const struct stepper *s, const struct thread *thread) {
    const bool has_one = thread->kind == THREAD_TEXT || thread->kind == THREAD_KEY_TEXT;
    return has_one ? s->schema->forms[thread->form].text : NULL;
}

static void limits_of(const struct stepper *s, const struct thread *thread, uint32_t *least, uint32_t *most) {
    const struct form *form = &s->schema->forms[thread->form];
    *least = thread->kind == THREAD_STRING ? form->item_min : 0;
    *most = thread->kind == THREAD_STRING ? form->item_max : UINT32_MAX;
}

struct text_state thread_text_state(const struct thread *thread) {
    const bool is_plain = thread->kind == THREAD_STRING || thread->kind == THREAD_KEY_STRING;
    return (struct text_state){(uint16_t)(is_plain ? thread->state : thread->begin), (uint16_t)thread->offset};
}

bool thread_reads_alike(const struct stepper *s, const struct thread *a, const struct thread *b) {
    uint32_t a_least, a_most, b_least, b_most;
    if (!thread_is_text(a) || !thread_is_text(b)) return false;
    limits_of(s, a, &a_least, &a_most);
    limits_of(s, b, &b_least, &b_most);
    return automaton_of(s, a) == automaton_of(s, b) && a->state == b->state && a->begin == b->begin &&
           a->offset == b->offset && a_least == b_least && a_most == b_most;
}

enum text_step text_step(const struct stepper *s, const struct thread *thread, struct text_state *state, uint8_t byte) {
    const struct automaton *automaton = automaton_of(s, thread);
    if (automaton != NULL) {
        const uint16_t next = automaton_next(automaton, state->state, byte);
        if (next == AUTOMATON_DEAD) return TEXT_WRONG;
        state->state = next;
        return automaton->accept[next] ? TEXT_CLOSED : TEXT_GOES_ON;
    }
    uint32_t least, most;
    limits_of(s, thread, &least, &most);
    const enum string_state next = string_next((enum string_state)state->state, byte);
    if (next == STRING_WRONG) return TEXT_WRONG;
    if (next == STRING_CLOSED) return state->count >= least ? TEXT_CLOSED : TEXT_WRONG;
    if (state->state == STRING_TEXT) { /* a character begins */
        if (state->count == most) return TEXT_WRONG;
        if (most != UINT32_MAX || state->count < least) state->count++;
    }
    state->state = (uint16_t)next;
    return TEXT_GOES_ON;
}

bool thread_is_plain(const struct stepper *s, const struct thread *thread, uint32_t *least, uint32_t *most) {
    if (automaton_of(s, thread) != NULL || thread->state != STRING_TEXT) return false;
    limits_of(s, thread, least, most);
    *least = thread->offset < *least ? *least - thread->offset : 0;
    if (*most != UINT32_MAX) *most -= thread->offset;
    return true;
}
