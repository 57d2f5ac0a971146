/* thread: how a byte changes one reading of an answer. */
#include "grammar/thread_internal.h"

#include <string.h>

#include "base/assert.h"

/* ---- sets ---- */

static bool is_same(const struct thread *a, const struct thread *b) {
    return a->kind == b->kind && a->state == b->state && a->depth == b->depth && a->form == b->form &&
           a->count == b->count && a->begin == b->begin && a->end == b->end && a->offset == b->offset &&
           a->enclosure == b->enclosure;
}

static uint32_t hash_of(const struct thread *t) {
    uint64_t hash = ((uint64_t)t->kind << 24 | (uint64_t)t->state << 16 | t->depth) * 0x9E3779B97F4A7C15U;
    hash = (hash ^ hash >> 32 ^ ((uint64_t)t->form << 32 | t->count)) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ hash >> 32 ^ ((uint64_t)t->begin << 32 | t->end)) * 0x94D049BB133111EBU;
    hash = (hash ^ hash >> 32 ^ ((uint64_t)t->offset << 32 | t->enclosure)) * 0x9E3779B97F4A7C15U;
    return (uint32_t)(hash >> 32);
}

void thread_set_add(struct stepper *s, struct thread_set *out, const struct thread *thread) {
    const uint32_t hash = hash_of(thread);
    uint32_t alike = 0;
    if (out->count == THREADS_MAX) return;
    s->work += out->count / 16;
    for (uint32_t i = 0; i < out->count; i++) alike += out->hashes[i] == hash;
    for (uint32_t i = 0; i < out->count && alike > 0; i++)
        if (is_same(&out->items[i], thread)) return;
    out->hashes[out->count] = hash;
    out->items[out->count++] = *thread;
}

/* ---- values ---- */

/* The thread is an item of an array of unique ones; *used: a bit for each that came already. */
static bool unique_around(const struct stepper *s, const struct thread *thread, uint32_t *used) {
    if (thread->enclosure == NOTHING) return false;
    const struct enclosure *around = &s->enclosures.items[thread->enclosure];
    *used = around->count;
    return s->schema->forms[around->form].is_unique;
}

/* What was read so far is a whole value. */
static bool is_value(const struct stepper *s, const struct thread *thread) {
    if (thread->kind == THREAD_DONE) return true;
    if (thread->kind == THREAD_NUMBER) return number_is_complete(thread->state);
    if (thread->kind == THREAD_DECIMAL) return s->schema->forms[thread->form].text->accept[thread->begin] != 0;
    if (thread->kind != THREAD_LITERAL) return false;
    uint32_t used;
    if (unique_around(s, thread, &used) && (used >> thread->begin & 1) != 0) return false;
    return s->schema->forms[thread->form].literals.items[thread->begin].length == thread->offset;
}

static uint32_t enclose(struct stepper *s, const struct thread *container, uint32_t count) {
    return enclosures_intern(&s->enclosures, container->enclosure, container->form, count);
}

/* The thread behind a value that is complete. */
static struct thread finished(const struct stepper *s, const struct thread *value) {
    struct thread next = {.kind = THREAD_DONE, .depth = value->depth, .enclosure = NOTHING};
    if (value->enclosure == NOTHING) return next;
    const struct enclosure *around = &s->enclosures.items[value->enclosure];
    next.kind = THREAD_AFTER;
    next.form = around->form;
    next.count = around->count;
    next.enclosure = around->outer;
    if (s->schema->forms[next.form].is_unique) next.count |= 1U << value->begin; /* of a literal, which one */
    return next;
}

static bool fits(const struct stepper *s, uint32_t place, uint16_t depth) {
    return depth + s->schema->places[place].height <= JSON_OUTPUT_DEPTH_MAX;
}

static void step_literal(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    const struct literal_table *table = &s->schema->forms[thread.form].literals;
    uint32_t used;
    if (!literals_narrow(table, &thread.begin, &thread.end, thread.offset, byte)) return;
    if (unique_around(s, &thread, &used)) { /* one that is left */
        uint32_t left = 0;
        for (uint32_t i = thread.begin; i < thread.end; i++) left += (used >> i & 1) == 0;
        if (left == 0) return;
    }
    thread.offset++;
    const bool is_whole = table->items[thread.begin].length == thread.offset;
    if (is_whole && thread.begin + 1 == thread.end) thread = finished(s, &thread);
    thread_set_add(s, out, &thread);
}

static void open_container(struct stepper *s, struct thread thread, enum thread_kind kind, struct thread_set *out) {
    thread.kind = (uint8_t)kind;
    thread.state = SPACE_NONE;
    thread.depth++;
    thread_set_add(s, out, &thread);
}

static bool step_automaton(const struct stepper *s, struct thread *thread, uint8_t byte) {
    const uint16_t next = automaton_next(s->schema->forms[thread->form].text, thread->begin, byte);
    thread->begin = next;
    return next != AUTOMATON_DEAD;
}

/* The first byte of a value of one form. */
static void begin_form(struct stepper *s, const struct thread *before, uint32_t index, uint8_t byte,
                       struct thread_set *out) {
    const struct form *form = &s->schema->forms[index];
    struct thread thread = {.form = index, .depth = before->depth, .enclosure = before->enclosure};
    if (before->depth + form->height > JSON_OUTPUT_DEPTH_MAX) return;
    switch (form->kind) {
    case FORM_OBJECT:
    case FORM_MAP:
        if (byte == '{') open_container(s, thread, THREAD_FIRST_KEY, out);
        return;
    case FORM_ARRAY:
        if (byte == '[') open_container(s, thread, THREAD_FIRST_ITEM, out);
        return;
    case FORM_STRING:
        thread.kind = THREAD_STRING;
        thread.state = STRING_TEXT;
        if (byte == '"') thread_set_add(s, out, &thread);
        return;
    case FORM_TEXT:
        thread.kind = THREAD_TEXT;
        if (step_automaton(s, &thread, byte)) thread_set_add(s, out, &thread);
        return;
    case FORM_DECIMAL:
        thread.kind = THREAD_DECIMAL;
        if (step_automaton(s, &thread, byte)) thread_set_add(s, out, &thread);
        return;
    case FORM_NUMBER:
    case FORM_INTEGER:
        thread.kind = THREAD_NUMBER;
        thread.state = (uint8_t)number_next(NUMBER_BEGIN, &thread.offset, byte, form->kind == FORM_INTEGER);
        if (thread.state != NUMBER_WRONG) thread_set_add(s, out, &thread);
        return;
    case FORM_LITERALS:
        thread.kind = THREAD_LITERAL;
        thread.end = form->literals.count;
        step_literal(s, thread, byte, out);
        return;
    }
}

static void begin_value(struct stepper *s, const struct thread *before, uint8_t byte, struct thread_set *out) {
    const struct place *place = &s->schema->places[before->form];
    if (strchr("{[\"-0123456789tfn", byte) == NULL || byte == '\0') return;
    s->work += place->form_count / 4;
    for (uint32_t i = 0; i < place->form_count && out->count < THREADS_MAX; i++)
        begin_form(s, before, place->forms[i], byte, out);
}

/* Whitespace leaves a thread as it is; false: it is none. */
static bool step_space(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    thread.state = space_next(thread.state, byte);
    if (thread.state == SPACE_WRONG) return false;
    thread_set_add(s, out, &thread);
    return true;
}

/* ---- objects ---- */

/* The keys that may come next are those of properties [first, last]. */
static void key_range(const struct form *form, const struct thread *thread, uint32_t *first, uint32_t *last) {
    *first = thread->kind == THREAD_FIRST_KEY ? 0 : thread->count + 1;
    *last = form->properties[*first].next_required;
    if (*last == form->property_count) (*last)--;
}

static bool has_key(const struct stepper *s, const struct form *form, const struct thread *thread, uint32_t begin,
                    uint32_t end) {
    uint32_t first, last;
    if (form->property_count == 0) return false;
    key_range(form, thread, &first, &last);
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t index = form->literals.items[i].index;
        if (index >= first && index <= last && fits(s, form->properties[index].place, thread->depth)) return true;
    }
    return false;
}

static void close_container(struct stepper *s, struct thread thread, struct thread_set *out) {
    ASSERT(thread.depth > 0);
    thread.depth--;
    thread = finished(s, &thread);
    thread_set_add(s, out, &thread);
}

static bool object_may_close(const struct form *form, const struct thread *thread) {
    if (thread->kind == THREAD_FIRST_KEY && form->item_min > 0) return false;
    if (form->kind == FORM_MAP) return true;
    const uint32_t first = thread->kind == THREAD_FIRST_KEY ? 0 : thread->count + 1;
    return form->properties[first].next_required == form->property_count;
}

/* The key's opening quote.  While a key is read, begin and end hold which; count stays that of the property before. */
static void begin_key(struct stepper *s, const struct form *form, struct thread thread, uint8_t byte,
                      struct thread_set *out) {
    if (byte != '"') return;
    if (form->kind == FORM_MAP) {
        if (!fits(s, form->place, thread.depth) || form->item_max == 0) return;
        if (form->item_max != UINT32_MAX) thread.count = thread.kind == THREAD_FIRST_KEY ? 0 : thread.count + 1;
        thread.kind = form->text != NULL ? THREAD_KEY_TEXT : THREAD_KEY_STRING;
        thread.state = STRING_TEXT;
        if (form->text == NULL || step_automaton(s, &thread, byte)) thread_set_add(s, out, &thread);
        return;
    }
    if (!has_key(s, form, &thread, 0, form->literals.count)) return;
    /* UINT32_MAX: there was none before; + 1 is 0 */
    if (thread.kind == THREAD_FIRST_KEY) thread.count = UINT32_MAX;
    thread.kind = THREAD_KEY;
    thread.state = 0;
    thread.begin = 0;
    thread.end = form->literals.count;
    thread.offset = 1;
    thread_set_add(s, out, &thread);
}

static void step_before_key(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    const struct form *form = &s->schema->forms[thread->form];
    if (step_space(s, *thread, byte, out)) return;
    if (thread->kind == THREAD_FIRST_KEY && byte == '}' && object_may_close(form, thread))
        close_container(s, *thread, out);
    else
        begin_key(s, form, *thread, byte, out);
}

static void step_key(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    const struct form *form = &s->schema->forms[thread.form];
    if (!literals_narrow(&form->literals, &thread.begin, &thread.end, thread.offset, byte)) return;
    if (!has_key(s, form, &thread, thread.begin, thread.end)) return;
    thread.offset++;
    const struct literal *key = &form->literals.items[thread.begin];
    if (key->length == thread.offset) /* it ends with its quote, so there is no longer one */
        thread = (struct thread){.kind = THREAD_COLON,
                                 .depth = thread.depth,
                                 .state = SPACE_SHORT,
                                 .form = thread.form,
                                 .count = key->index,
                                 .enclosure = thread.enclosure};
    thread_set_add(s, out, &thread);
}

static void step_colon(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    if (step_space(s, *thread, byte, out) || byte != ':') return;
    const struct form *form = &s->schema->forms[thread->form];
    const struct thread before = {.kind = THREAD_BEFORE,
                                  .state = SPACE_SHORT,
                                  .depth = thread->depth,
                                  .form = form->kind == FORM_MAP ? form->place : form->properties[thread->count].place,
                                  .enclosure = enclose(s, thread, thread->count)};
    thread_set_add(s, out, &before);
}

static void step_after_property(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    const struct form *form = &s->schema->forms[thread.form];
    if (byte == '}' && object_may_close(form, &thread)) {
        close_container(s, thread, out);
    } else if (byte == ',' &&
               (form->kind == FORM_MAP ? form->item_max == UINT32_MAX || thread.count + 1 < form->item_max
                                       : has_key(s, form, &thread, 0, form->literals.count))) {
        thread.kind = THREAD_NEXT_KEY;
        thread.state = SPACE_NONE;
        thread_set_add(s, out, &thread);
    }
}

/* ---- arrays ---- */

/* How many items there are, by the count of an enclosure or thread. */
static uint32_t item_count(const struct form *form, uint32_t count) {
    return form->is_unique ? (uint32_t)__builtin_popcount(count) : count;
}

/* A value may come as the item `count`. */
static bool may_have_item(const struct stepper *s, const struct form *form, const struct thread *thread,
                          uint32_t count) {
    const uint32_t items = item_count(form, count);
    return items < form->item_max && fits(s, form_item_place(form, items), thread->depth);
}

static struct thread before_item(struct stepper *s, const struct form *form, const struct thread *thread,
                                 uint32_t count) {
    return (struct thread){.kind = THREAD_BEFORE,
                           .depth = thread->depth,
                           .form = form_item_place(form, item_count(form, count)),
                           .enclosure = enclose(s, thread, count)};
}

static void step_first_item(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    const struct form *form = &s->schema->forms[thread->form];
    if (step_space(s, *thread, byte, out)) return;
    if (byte == ']' && form->item_min == 0) {
        close_container(s, *thread, out);
    } else if (may_have_item(s, form, thread, 0)) {
        const struct thread before = before_item(s, form, thread, 0);
        begin_value(s, &before, byte, out);
    }
}

static void step_after_item(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    const struct form *form = &s->schema->forms[thread->form];
    const uint32_t count = form->is_unique ? thread->count : thread->count + 1;
    if (byte == ']' && item_count(form, count) >= form->item_min) {
        close_container(s, *thread, out);
    } else if (byte == ',' && may_have_item(s, form, thread, count)) {
        const struct thread before = before_item(s, form, thread, count);
        thread_set_add(s, out, &before);
    }
}

/* ---- one byte ---- */

static void step_after(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    if (step_space(s, *thread, byte, out)) return;
    if (s->schema->forms[thread->form].kind == FORM_ARRAY)
        step_after_item(s, thread, byte, out);
    else
        step_after_property(s, *thread, byte, out);
}

void thread_close_text(struct stepper *s, const struct thread *thread, struct thread_set *out) {
    const bool is_key = thread->kind == THREAD_KEY_STRING || thread->kind == THREAD_KEY_TEXT;
    const struct thread colon = {.kind = THREAD_COLON,
                                 .state = SPACE_SHORT,
                                 .depth = thread->depth,
                                 .form = thread->form,
                                 .count = thread->count,
                                 .enclosure = thread->enclosure};
    const struct thread next = is_key ? colon : finished(s, thread);
    thread_set_add(s, out, &next);
}

static void step_text(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    struct text_state state = thread_text_state(&thread);
    switch (text_step(s, &thread, &state, byte)) {
    case TEXT_WRONG: return;
    case TEXT_CLOSED: thread_close_text(s, &thread, out); return;
    case TEXT_GOES_ON: break;
    }
    if (thread.kind == THREAD_STRING || thread.kind == THREAD_KEY_STRING)
        thread.state = (uint8_t)state.state;
    else
        thread.begin = state.state;
    thread.offset = state.count;
    thread_set_add(s, out, &thread);
}

/* Of a value that may end here: what follows it. */
static void step_behind(struct stepper *s, const struct thread *value, uint8_t byte, struct thread_set *out) {
    if (!is_value(s, value)) return;
    const struct thread after = finished(s, value);
    if (after.kind == THREAD_AFTER) step_after(s, &after, byte, out);
}

static void step_decimal(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    const struct thread value = thread;
    if (step_automaton(s, &thread, byte))
        thread_set_add(s, out, &thread);
    else
        step_behind(s, &value, byte, out);
}

static void step_number(struct stepper *s, struct thread thread, uint8_t byte, struct thread_set *out) {
    const struct thread value = thread;
    const bool only_integer = s->schema->forms[thread.form].kind == FORM_INTEGER;
    thread.state = (uint8_t)number_next(thread.state, &thread.offset, byte, only_integer);
    if (thread.state != NUMBER_WRONG)
        thread_set_add(s, out, &thread);
    else
        step_behind(s, &value, byte, out);
}

/* A literal that others begin with ("1", "12"): by what follows, it ends or goes on. */
static void step_in_literal(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    const uint32_t count = out->count;
    step_literal(s, *thread, byte, out);
    if (out->count == count) step_behind(s, thread, byte, out);
}

void thread_step(struct stepper *s, const struct thread *thread, uint8_t byte, struct thread_set *out) {
    s->work++;
    switch ((enum thread_kind)thread->kind) {
    case THREAD_BEFORE:
        if (!step_space(s, *thread, byte, out)) begin_value(s, thread, byte, out);
        return;
    case THREAD_LITERAL: step_in_literal(s, thread, byte, out); return;
    case THREAD_STRING:
    case THREAD_TEXT:
    case THREAD_KEY_STRING:
    case THREAD_KEY_TEXT: step_text(s, *thread, byte, out); return;
    case THREAD_DECIMAL: step_decimal(s, *thread, byte, out); return;
    case THREAD_NUMBER: step_number(s, *thread, byte, out); return;
    case THREAD_FIRST_KEY:
    case THREAD_NEXT_KEY: step_before_key(s, thread, byte, out); return;
    case THREAD_KEY: step_key(s, *thread, byte, out); return;
    case THREAD_COLON: step_colon(s, thread, byte, out); return;
    case THREAD_FIRST_ITEM: step_first_item(s, thread, byte, out); return;
    case THREAD_AFTER: step_after(s, thread, byte, out); return;
    case THREAD_DONE: return;
    }
}

bool thread_is_outside(const struct thread *thread) {
    switch ((enum thread_kind)thread->kind) {
    case THREAD_STRING:
    case THREAD_TEXT:
    case THREAD_LITERAL:
    case THREAD_KEY:
    case THREAD_KEY_STRING:
    case THREAD_KEY_TEXT: return false;
    case THREAD_BEFORE:
    case THREAD_NUMBER:
    case THREAD_DECIMAL:
    case THREAD_FIRST_KEY:
    case THREAD_NEXT_KEY:
    case THREAD_COLON:
    case THREAD_FIRST_ITEM:
    case THREAD_AFTER:
    case THREAD_DONE: return true;
    }
    return false;
}

bool thread_may_end(const struct stepper *s, const struct thread *thread) {
    return thread->enclosure == NOTHING && is_value(s, thread);
}
