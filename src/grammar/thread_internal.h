/* thread: one way to read the answer so far, and how a byte changes it. */
#pragma once

#include "grammar/grammar_internal.h"

enum { THREADS_MAX = 64 };

enum thread_kind {
    THREAD_BEFORE,     /* a value of `place` comes */
    THREAD_LITERAL,    /* in one of form's literals [begin, end), after offset bytes */
    THREAD_STRING,     /* in a string, after offset characters */
    THREAD_TEXT,       /* in a string of an automaton, whose state is begin */
    THREAD_NUMBER,     /* offset digits */
    THREAD_DECIMAL,    /* in a number of an automaton, whose state is begin */
    THREAD_FIRST_KEY,  /* after { */
    THREAD_NEXT_KEY,   /* after a comma */
    THREAD_KEY,        /* in one of the keys [begin, end) */
    THREAD_KEY_STRING, /* in any key */
    THREAD_KEY_TEXT,   /* in a key of an automaton, whose state is begin */
    THREAD_COLON,      /* after a key */
    THREAD_FIRST_ITEM, /* after [ */
    THREAD_AFTER,      /* after a property or an item */
    THREAD_DONE,
};

/* What encloses the value that a thread is in. */
struct enclosure {
    uint32_t outer; /* NOTHING: none */
    uint32_t form;
    /* OBJECT: the property that the value is of; ARRAY: items before it, of unique ones a bit for each; MAP with
     * a limit: entries before it */
    uint32_t count;
    uint32_t bucket;
};

struct thread {
    uint8_t kind;
    uint8_t state;  /* string_state, number_state, or that of whitespace: SPACE_WRONG where none may come */
    uint16_t depth; /* open brackets */
    uint32_t form;  /* the container of keys, colons and commas, else the value's own; BEFORE: a place */
    uint32_t count; /* as in struct enclosure */
    uint32_t begin, end, offset;
    uint32_t enclosure; /* around form; NOTHING: it is the whole answer */
};

struct enclosures {
    struct enclosure *items; /* owned, [capacity] */
    uint32_t *buckets;       /* owned, [bucket_mask + 1]: index + 1 */
    uint32_t count, capacity, bucket_mask;
};

struct thread_set {
    struct thread *items; /* [THREADS_MAX], borrowed */
    uint32_t *hashes;     /* [THREADS_MAX], borrowed */
    uint32_t count;
};

struct stepper {
    const struct json_schema *schema;
    struct enclosures enclosures;
    uint64_t work; /* bytes that were read by threads, and threads that were compared, by 16 */
};

/* ---- enclosures.c ---- */

bool enclosures_init(struct enclosures *enclosures, uint32_t capacity); /* false: no memory */
void enclosures_deinit(struct enclosures *enclosures);
/* The one of these values, which is made if there is none. */
uint32_t enclosures_intern(struct enclosures *enclosures, uint32_t outer, uint32_t form, uint32_t count);
/* Only the first `count` stay. */
void enclosures_cut(struct enclosures *enclosures, uint32_t count);

/* ---- text.c ---- */

/* How far a string is: string_state, or a state of its automaton; and how many characters it has, as far as its form
 * counts them. */
struct text_state {
    uint16_t state, count;
};
enum text_step { TEXT_WRONG, TEXT_GOES_ON, TEXT_CLOSED };

/* In a string, of a value or a key. */
bool thread_is_text(const struct thread *thread);
struct text_state thread_text_state(const struct thread *thread);
/* Both read the same bytes up to the closing quote. */
bool thread_reads_alike(const struct stepper *stepper, const struct thread *a, const struct thread *b);
/* One byte more; *state is changed unless it is wrong. */
enum text_step text_step(const struct stepper *stepper, const struct thread *thread, struct text_state *state,
                         uint8_t byte);
/* Any text is allowed: state is string_state.  Of how many characters, counting from now on. */
bool thread_is_plain(const struct stepper *stepper, const struct thread *thread, uint32_t *least, uint32_t *most);

/* ---- thread.c ---- */

/* What the thread is behind the closing quote of the string that it is in. */
void thread_close_text(struct stepper *stepper, const struct thread *thread, struct thread_set *out);

/* Unless it is there already, or the set is full. */
void thread_set_add(struct stepper *stepper, struct thread_set *set, const struct thread *thread);
/* Adds to *out what a thread becomes by one byte: nothing, one thread, or several. */
void thread_step(struct stepper *stepper, const struct thread *thread, uint8_t byte, struct thread_set *out);
/* Not within a text, a key or a literal: only white space, punctuation, a number or a value's first byte can come. */
bool thread_is_outside(const struct thread *thread);
/* The answer may end here. */
bool thread_may_end(const struct stepper *stepper, const struct thread *thread);
