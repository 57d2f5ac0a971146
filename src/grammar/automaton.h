/* automaton: a deterministic automaton over bytes, for the strings and numbers that a keyword of a schema describes.
 *
 * It is found by exploring: from a first state, what each class of bytes leads to, until no state is new.  From every
 * state that stays the end can be reached.  Immutable then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"

enum {
    AUTOMATON_STATES_MAX = 8192,
    AUTOMATON_WORK_MAX = 1 << 25, /* of exploring, in what explorer.step counts */
    AUTOMATON_DEAD = UINT16_MAX,
};

struct automaton {
    uint16_t *next;  /* [state_count][class_count] */
    uint8_t *accept; /* [state_count] */
    uint8_t classes[256];
    uint32_t state_count, class_count;
    uint32_t shortest; /* bytes of the shortest text; the first state is 0 */
};

/* Where texts are described by: a state is key_words words. */
struct explorer {
    const void *context;
    size_t key_words;
    const uint32_t *first; /* [key_words] */
    uint64_t *work;        /* of all automata of a schema: below AUTOMATON_WORK_MAX */
    /* Bytes of a class lead alike. */
    uint8_t classes[256];
    uint32_t class_count;
    /* False: the byte cannot come. */
    bool (*step)(const void *context, const uint32_t *key, uint8_t byte, uint32_t *next, uint64_t *work);
    bool (*accepts)(const void *context, const uint32_t *key);
};

/* *automaton in the arena; NULL: no text is described.  STATUS_FULL: too many states. */
enum status automaton_explore(struct automaton **automaton, struct arena *arena, const struct explorer *explorer,
                              struct error *error) STATUS_CHECKED;

static inline uint16_t automaton_next(const struct automaton *a, uint32_t state, uint8_t byte) {
    return a->next[state * a->class_count + a->classes[byte]];
}

/* Whether it describes the whole text. */
bool automaton_accepts(const struct automaton *automaton, const uint8_t *text, size_t length);
