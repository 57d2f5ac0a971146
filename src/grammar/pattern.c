/* pattern: from the states of an expression to sets of them, and what a byte leads to. */
#include "grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "grammar/pattern_internal.h"

void pattern_deinit(struct pattern *p) {
    for (uint32_t i = 0; i < p->count; i++) free(p->states[i].edges);
    free(p->states);
}

enum status pattern_add(struct pattern *p, enum pattern_kind kind, uint32_t next, uint32_t other, uint32_t *state,
                        struct error *error) {
    if (p->count == PATTERN_STATES_MAX)
        return error_set(error, STATUS_USAGE, "more than %d states", PATTERN_STATES_MAX);
    if (!array_reserve(&p->states, p->count, &p->capacity, sizeof *p->states))
        return error_set(error, STATUS_MEMORY, "no memory for a pattern");
    p->states[p->count] = (struct pattern_state){.kind = kind, .next = next, .other = other};
    *state = p->count++;
    return STATUS_OK;
}

static enum status add_edge(struct pattern *p, uint32_t from, uint8_t low, uint8_t high, uint32_t to,
                            struct error *error) {
    struct pattern_state *state = &p->states[from];
    struct pattern_edge *grown = realloc(state->edges, (state->edge_count + 1) * sizeof *grown);
    if (grown == NULL) return error_set(error, STATUS_MEMORY, "no memory for a pattern");
    state->edges = grown;
    grown[state->edge_count++] = (struct pattern_edge){low, high, to};
    return STATUS_OK;
}

/* ---- characters as JSON's bytes ---- */

/* Where the last bytes of a character are any continuation. */
static enum status tail(struct pattern *p, uint32_t tails[4], uint32_t left, struct error *error) {
    for (uint32_t i = 1; i <= left; i++) {
        if (tails[i] != UINT32_MAX) continue;
        TRY(pattern_add(p, PATTERN_EDGES, 0, 0, &tails[i], error));
        TRY(add_edge(p, tails[i], 0x80, 0xBF, tails[i - 1], error));
    }
    return STATUS_OK;
}

static size_t encode(uint32_t c, uint8_t bytes[4]) {
    if (c < 0x80) return bytes[0] = (uint8_t)c, 1;
    const size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length; i-- > 1; c >>= 6) bytes[i] = (uint8_t)(0x80 | (c & 0x3F));
    bytes[0] = (uint8_t)(c | (length == 2 ? 0xC0U : length == 3 ? 0xE0U : 0xF0U));
    return length;
}

/* Characters that differ in their last bytes alone, which are any. */
static enum status add_sequence(struct pattern *p, uint32_t from, uint32_t low, uint32_t high, uint32_t tails[4],
                                struct error *error) {
    uint8_t first[4], last[4];
    const size_t length = encode(low, first);
    (void)encode(high, last);
    for (size_t i = 0; i < length; i++) {
        bool is_any = true;
        const uint32_t left = (uint32_t)(length - i - 1);
        for (size_t later = i + 1; later < length; later++)
            is_any = is_any && first[later] == 0x80 && last[later] == 0xBF;
        if (is_any) {
            TRY(tail(p, tails, left, error));
            return add_edge(p, from, first[i], last[i], tails[left], error);
        }
        uint32_t next;
        TRY(pattern_add(p, PATTERN_EDGES, 0, 0, &next, error));
        TRY(add_edge(p, from, first[i], last[i], next, error));
        from = next;
    }
    return STATUS_OK;
}

static enum status add_range(struct pattern *p, uint32_t from, uint32_t low, uint32_t high, uint32_t tails[4],
                             struct error *error) {
    static const uint32_t limits[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    while (low <= high) {
        uint32_t end = high;
        for (size_t i = 0; i < 4; i++)
            if (low <= limits[i] && end > limits[i]) end = limits[i];
        for (uint32_t mask = 0x3F; low > 0x7F && mask < 0x1FFFFF; mask = mask << 6 | 0x3F) {
            if ((low & ~mask) == (end & ~mask)) break;
            if ((low & mask) != 0)
                end = low | mask;
            else if ((end & mask) != mask)
                end = (end & ~mask) - 1;
        }
        TRY(add_sequence(p, from, low, end, tails, error));
        low = end + 1;
    }
    return STATUS_OK;
}

/* Places behind \ and behind \u00; UINT32_MAX until a character needs them. */
struct escapes {
    uint32_t from, escape, zeros;
};

/* \" \\ and the control characters. */
static enum status add_escape(struct pattern *p, struct escapes *made, uint32_t c, uint32_t to, struct error *error) {
    static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    static const char digits[] = "0123456789ABCDEF";
    if (made->escape == UINT32_MAX) {
        TRY(pattern_add(p, PATTERN_EDGES, 0, 0, &made->escape, error));
        TRY(add_edge(p, made->from, '\\', '\\', made->escape, error));
    }
    for (size_t i = 0; i + 1 < sizeof letters; i += 2)
        if ((uint32_t)letters[i] == c)
            return add_edge(p, made->escape, (uint8_t)letters[i + 1], (uint8_t)letters[i + 1], to, error);
    if (made->zeros == UINT32_MAX) { /* u00 */
        uint32_t at = made->escape, next;
        for (const char *word = "u00"; *word != '\0'; word++, at = next) {
            TRY(pattern_add(p, PATTERN_EDGES, 0, 0, &next, error));
            TRY(add_edge(p, at, (uint8_t)*word, (uint8_t)*word, next, error));
        }
        made->zeros = at;
    }
    uint32_t digit;
    TRY(pattern_add(p, PATTERN_EDGES, 0, 0, &digit, error));
    TRY(add_edge(p, made->zeros, (uint8_t)digits[c >> 4], (uint8_t)digits[c >> 4], digit, error));
    return add_edge(p, digit, (uint8_t)digits[c & 15], (uint8_t)digits[c & 15], to, error);
}

enum status pattern_add_characters(struct pattern *p, const struct character_range *ranges, size_t count, uint32_t to,
                                   uint32_t *from, struct error *error) {
    uint32_t tails[4] = {to, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    TRY(pattern_add(p, PATTERN_EDGES, 0, 0, from, error));
    struct escapes made = {.from = *from, .escape = UINT32_MAX, .zeros = UINT32_MAX};
    for (size_t i = 0; i < count; i++) {
        uint32_t low = ranges[i].low;
        const uint32_t high = ranges[i].high;
        if (low == 0) low = 1; /* many programs cut a text there */
        for (; low <= high && low < 0x20; low++) TRY(add_escape(p, &made, low, to, error));
        while (low <= high) {
            uint32_t end = high;
            if (low == '"' || low == '\\') {
                TRY(add_escape(p, &made, low, to, error));
                low++;
                continue;
            }
            if (low < '"' && end >= '"') end = '"' - 1;
            if (low > '"' && low < '\\' && end >= '\\') end = '\\' - 1;
            if (low < 0xD800 && end >= 0xD800) end = 0xD7FF; /* halves of pairs are no characters */
            if (low >= 0xD800 && low <= 0xDFFF) {
                low = 0xE000;
                continue;
            }
            TRY(add_range(p, *from, low, end, tails, error));
            low = end + 1;
        }
    }
    return STATUS_OK;
}

/* ---- sets of states ---- */

size_t pattern_words(const struct pattern *p) { return (p->count + 31) / 32; }

static bool has(const uint32_t *set, uint32_t state) { return (set[state / 32] >> (state % 32) & 1) != 0; }

/* With all that it leads to without a byte. */
static void add_closed(const struct pattern *p, uint32_t *set, uint32_t first, bool at_begin, bool at_end) {
    uint32_t pending[PATTERN_STATES_MAX], count = 0;
    if (has(set, first)) return;
    set[first / 32] |= 1U << (first % 32);
    pending[count++] = first;
    while (count > 0) {
        const struct pattern_state *state = &p->states[pending[--count]];
        uint32_t next[2] = {UINT32_MAX, UINT32_MAX};
        if (state->kind == PATTERN_SPLIT || (state->kind == PATTERN_BEGIN && at_begin) ||
            (state->kind == PATTERN_END && at_end))
            next[0] = state->next;
        if (state->kind == PATTERN_SPLIT) next[1] = state->other;
        for (size_t i = 0; i < 2; i++) {
            if (next[i] == UINT32_MAX || has(set, next[i])) continue;
            set[next[i] / 32] |= 1U << (next[i] % 32);
            pending[count++] = next[i];
        }
    }
}

void pattern_begin(const struct pattern *p, uint32_t *set) {
    memset(set, 0, pattern_words(p) * sizeof *set);
    add_closed(p, set, p->first, true, false);
}

bool pattern_step(const struct pattern *p, const uint32_t *set, uint8_t byte, uint32_t *next, uint64_t *work) {
    const size_t words = pattern_words(p);
    bool any = false;
    memset(next, 0, words * sizeof *next);
    *work += words;
    for (size_t word = 0; word < words; word++)
        for (uint32_t bits = set[word]; bits != 0; bits &= bits - 1) {
            const struct pattern_state *state = &p->states[word * 32 + (uint32_t)__builtin_ctz(bits)];
            *work += 1 + state->edge_count;
            for (uint32_t i = 0; i < state->edge_count; i++) {
                if (byte < state->edges[i].low || byte > state->edges[i].high) continue;
                add_closed(p, next, state->edges[i].to, false, false);
                any = true;
            }
        }
    return any;
}

bool pattern_ends(const struct pattern *p, const uint32_t *set) {
    uint32_t whole[PATTERN_STATES_MAX / 32];
    if (has(set, p->match)) return true;
    memcpy(whole, set, pattern_words(p) * sizeof *whole);
    for (uint32_t i = 0; i < p->count; i++)
        if (p->states[i].kind == PATTERN_END && has(set, i)) add_closed(p, whole, p->states[i].next, false, true);
    return has(whole, p->match);
}

void pattern_mark_classes(const struct pattern *p, bool begins[257]) {
    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t e = 0; e < p->states[i].edge_count; e++) {
            begins[p->states[i].edges[e].low] = true;
            begins[p->states[i].edges[e].high + 1] = true;
        }
}
