#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

struct exploration {
    const struct explorer *explorer;
    uint32_t *keys;     /* [capacity][key_words] */
    uint32_t *buckets;  /* [bucket_count]: state + 1 */
    uint16_t *next;     /* [capacity][class_count] */
    uint32_t *distance; /* [capacity]: bytes to the end; UINT32_MAX: it is not reached */
    uint32_t count, capacity, bucket_count;
};

static enum status no_memory(struct error *error) {
    return error_set(error, STATUS_MEMORY, "no memory for the JSON schema");
}

static void exploration_deinit(struct exploration *e) {
    free(e->keys);
    free(e->buckets);
    free(e->next);
    free(e->distance);
}

static uint32_t *bucket_of(const struct exploration *e, const uint32_t *key) {
    const size_t words = e->explorer->key_words;
    uint64_t hash = 0;
    for (size_t i = 0; i < words; i++) hash = (hash ^ key[i] ^ hash >> 32) * 0x9E3779B97F4A7C15U;
    uint32_t at = (uint32_t)(hash >> 32) & (e->bucket_count - 1);
    while (e->buckets[at] != 0 && memcmp(e->keys + (e->buckets[at] - 1) * words, key, words * sizeof *key) != 0)
        at = (at + 1) & (e->bucket_count - 1);
    return &e->buckets[at];
}

/* Twice as many, or the first. */
static enum status grow(struct exploration *e, struct error *error) {
    const uint32_t more = e->capacity == 0 ? 64 : 2 * e->capacity;
    const size_t words = e->explorer->key_words;
    uint32_t *keys = realloc(e->keys, more * words * sizeof *keys);
    if (keys != NULL) e->keys = keys;
    uint16_t *next = realloc(e->next, (size_t)more * e->explorer->class_count * sizeof *next);
    if (next != NULL) e->next = next;
    uint32_t *buckets = calloc(2 * more, sizeof *buckets);
    if (keys == NULL || next == NULL || buckets == NULL) {
        free(buckets);
        return no_memory(error);
    }
    free(e->buckets);
    e->buckets = buckets;
    e->bucket_count = 2 * more;
    e->capacity = more;
    for (uint32_t i = 0; i < e->count; i++) *bucket_of(e, e->keys + i * words) = i + 1;
    return STATUS_OK;
}

static enum status add(struct exploration *e, const uint32_t *key, uint16_t *state, struct error *error) {
    uint32_t *bucket = bucket_of(e, key);
    if (*bucket == 0) {
        if (e->count == AUTOMATON_STATES_MAX)
            return error_set(error, STATUS_FULL, "more than %d states", AUTOMATON_STATES_MAX);
        const size_t words = e->explorer->key_words;
        memcpy(e->keys + e->count * words, key, words * sizeof *key);
        *bucket = ++e->count;
        *state = (uint16_t)(e->count - 1);
        if (e->count == e->capacity) TRY(grow(e, error));
        return STATUS_OK;
    }
    *state = (uint16_t)(*bucket - 1);
    return STATUS_OK;
}

static enum status explore(struct exploration *e, uint32_t *key, struct error *error) {
    const struct explorer *x = e->explorer;
    uint8_t bytes[256];
    uint16_t first;
    for (unsigned b = 256; b-- > 0;) bytes[x->classes[b]] = (uint8_t)b;
    TRY(grow(e, error));
    TRY(add(e, x->first, &first, error));
    for (uint32_t state = 0; state < e->count; state++) {
        for (uint32_t class = 0; class < x->class_count; class ++) {
            uint16_t next = AUTOMATON_DEAD;
            memset(key, 0, x->key_words * sizeof *key);
            if (x->step(x->context, e->keys + state * x->key_words, bytes[class], key, x->work))
                TRY(add(e, key, &next, error));
            e->next[state * x->class_count + class] = next;
        }
        if (*x->work > AUTOMATON_WORK_MAX) return error_set(error, STATUS_FULL, "it takes too long to read");
    }
    return STATUS_OK;
}

/* What leads to a state mostly comes before it. */
static enum status find_distances(struct exploration *e, struct error *error) {
    const struct explorer *x = e->explorer;
    e->distance = malloc(e->count * sizeof *e->distance);
    if (e->distance == NULL) return no_memory(error);
    for (uint32_t i = 0; i < e->count; i++)
        e->distance[i] = x->accepts(x->context, e->keys + i * x->key_words) ? 0 : UINT32_MAX;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = e->count; i-- > 0;)
            for (uint32_t class = 0; class < x->class_count; class ++) {
                const uint16_t next = e->next[i * x->class_count + class];
                if (next == AUTOMATON_DEAD || e->distance[next] >= UINT32_MAX - 1 ||
                    e->distance[next] + 1 >= e->distance[i])
                    continue;
                e->distance[i] = e->distance[next] + 1;
                changed = true;
            }
    }
    return STATUS_OK;
}

/* Only the states from which the end is reached. */
static enum status keep(const struct exploration *e, struct automaton *a, struct arena *arena, struct error *error) {
    const struct explorer *x = e->explorer;
    uint16_t *renamed = malloc(e->count * sizeof *renamed);
    if (renamed == NULL) return no_memory(error);
    memcpy(a->classes, x->classes, sizeof a->classes);
    a->class_count = x->class_count;
    a->shortest = e->distance[0];
    for (uint32_t i = 0; i < e->count; i++)
        renamed[i] = e->distance[i] == UINT32_MAX ? AUTOMATON_DEAD : (uint16_t)a->state_count++;
    a->next = arena_array(arena, (uint64_t)a->state_count * a->class_count, sizeof *a->next);
    a->accept = arena_array(arena, a->state_count, sizeof *a->accept);
    for (uint32_t i = 0; i < e->count && a->next != NULL && a->accept != NULL; i++) {
        if (renamed[i] == AUTOMATON_DEAD) continue;
        a->accept[renamed[i]] = e->distance[i] == 0;
        for (uint32_t class = 0; class < a->class_count; class ++) {
            const uint16_t next = e->next[i * a->class_count + class];
            a->next[renamed[i] * a->class_count + class] = next == AUTOMATON_DEAD ? next : renamed[next];
        }
    }
    free(renamed);
    return a->next != NULL && a->accept != NULL ? STATUS_OK : no_memory(error);
}

enum status automaton_explore(struct automaton **automaton, struct arena *arena, const struct explorer *explorer,
                              struct error *error) {
    struct exploration e = {.explorer = explorer};
    uint32_t *key = malloc(explorer->key_words * sizeof *key);
    enum status status = key != NULL ? explore(&e, key, error) : no_memory(error);
    *automaton = NULL;
    if (status == STATUS_OK) status = find_distances(&e, error);
    if (status == STATUS_OK && e.distance[0] != UINT32_MAX) {
        *automaton = arena_allocate(arena, sizeof **automaton);
        status = *automaton != NULL ? keep(&e, *automaton, arena, error) : no_memory(error);
    }
    free(key);
    exploration_deinit(&e);
    return status;
}

bool automaton_accepts(const struct automaton *a, const uint8_t *text, size_t length) {
    uint32_t state = 0;
    for (size_t i = 0; i < length; i++) {
        state = automaton_next(a, state, text[i]);
        if (state == AUTOMATON_DEAD) return false;
    }
    return a->accept[state];
}
