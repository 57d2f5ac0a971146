/* pattern_read: the syntax of regular expressions.  Fragments are built from their end to their beginning, so that each
 * is told where it leads; what is repeated is read again for each time. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/pattern_internal.h"

enum { RANGES_MAX = 512, REPEAT_MAX = 1000, PARTS_MAX = 2048, BUILDS_MAX = 1 << 16 };
#define NO_LIMIT UINT32_MAX

enum part_kind { PART_EMPTY, PART_SET, PART_BOTH, PART_EITHER, PART_REPEAT, PART_BEGIN, PART_END };

/* A node of what was read. */
struct part {
    enum part_kind kind;
    uint32_t left, right;           /* BOTH, EITHER; REPEAT: left */
    uint32_t min, max;              /* REPEAT */
    struct character_range *ranges; /* SET, owned, [range_count] */
    size_t range_count;
};

struct reader {
    const char *at, *end;
    struct part *parts; /* owned, [part_count] */
    uint32_t part_count, depth, build_count;
    struct character_range set[RANGES_MAX];
    size_t set_count;
    struct error *error;
};

static const struct character_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                    blanks[] = {{'\t', '\r'}, {' ', ' '}},
                                    /* what one of the two languages takes for such */
    some_digits[] = {{'0', '9'}, {0x300, 0x10FFFF}},
                                    some_words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, 0x10FFFF}},
                                    some_blanks[] = {{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},
                                                     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x180E, 0x180E},
                                                     {0x2000, 0x200F}, {0x2028, 0x202F}, {0x205F, 0x205F},
                                                     {0x3000, 0x3000}, {0xFEFF, 0xFEFF}},
                                    line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static enum status wrong(const struct reader *r, const char *what) {
    return error_set(r->error, STATUS_USAGE, "%s", what);
}

static enum status new_part(struct reader *r, const struct part *part, uint32_t *index) {
    if (r->part_count == PARTS_MAX) return wrong(r, "it is too long");
    r->parts[r->part_count] = *part;
    *index = r->part_count++;
    return STATUS_OK;
}

/* ---- sets of characters ---- */

static enum status add_range(struct reader *r, uint32_t low, uint32_t high) {
    if (r->set_count == RANGES_MAX) return wrong(r, "a class has too many ranges");
    r->set[r->set_count++] = (struct character_range){low, high};
    return STATUS_OK;
}

static enum status add_ranges(struct reader *r, const struct character_range *ranges, size_t count) {
    for (size_t i = 0; i < count; i++) TRY(add_range(r, ranges[i].low, ranges[i].high));
    return STATUS_OK;
}

static enum status add_others(struct reader *r, const struct character_range *ranges, size_t count) {
    uint32_t low = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].low > low) TRY(add_range(r, low, ranges[i].low - 1));
        low = ranges[i].high + 1;
    }
    return low <= 0x10FFFF ? add_range(r, low, 0x10FFFF) : STATUS_OK;
}

static int compare(const void *left, const void *right) {
    const struct character_range *a = left, *b = right;
    return a->low < b->low ? -1 : a->low > b->low;
}

/* The set's ranges in order, none touching another. */
static void join_ranges(struct reader *r) {
    size_t kept = 0;
    if (r->set_count == 0) return;
    qsort(r->set, r->set_count, sizeof *r->set, compare);
    for (size_t i = 1; i < r->set_count; i++) {
        if (r->set[i].low <= r->set[kept].high + 1)
            r->set[kept].high = (uint32_t)max_size(r->set[kept].high, r->set[i].high);
        else
            r->set[++kept] = r->set[i];
    }
    r->set_count = kept + 1;
}

static enum status set_part(struct reader *r, bool is_negated, uint32_t *index) {
    join_ranges(r);
    if (is_negated) {
        struct character_range named[RANGES_MAX];
        const size_t count = r->set_count;
        memcpy(named, r->set, count * sizeof *named);
        r->set_count = 0;
        TRY(add_others(r, named, count));
    }
    struct part part = {.kind = PART_SET, .range_count = r->set_count};
    part.ranges = malloc((r->set_count + 1) * sizeof *part.ranges);
    if (part.ranges == NULL) return error_set(r->error, STATUS_MEMORY, "no memory for a pattern");
    memcpy(part.ranges, r->set, r->set_count * sizeof *part.ranges);
    const enum status status = new_part(r, &part, index);
    if (status != STATUS_OK) free(part.ranges);
    return status;
}

/* \d and its like.  wide: all that one of the two languages takes for it, because it is to be left out. */
static enum status add_kind(struct reader *r, char letter, bool wide) {
#define ARRAY(ranges) ranges, sizeof ranges / sizeof *ranges
    switch (letter) {
    case 'd': return wide ? add_ranges(r, ARRAY(some_digits)) : add_ranges(r, ARRAY(digits));
    case 'w': return wide ? add_ranges(r, ARRAY(some_words)) : add_ranges(r, ARRAY(words));
    case 's': return wide ? add_ranges(r, ARRAY(some_blanks)) : add_ranges(r, ARRAY(blanks));
    case 'D': return wide ? add_others(r, ARRAY(digits)) : add_others(r, ARRAY(some_digits));
    case 'W': return wide ? add_others(r, ARRAY(words)) : add_others(r, ARRAY(some_words));
    default: return wide ? add_others(r, ARRAY(blanks)) : add_others(r, ARRAY(some_blanks));
    }
}

/* ---- characters ---- */

/* The text is UTF-8. */
static uint32_t next_character(struct reader *r) {
    const uint8_t first = (uint8_t)*r->at++;
    uint32_t c = first < 0x80 ? first : first < 0xE0 ? first & 0x1FU : first < 0xF0 ? first & 0xFU : first & 7U;
    while (first >= 0x80 && r->at < r->end && ((uint8_t)*r->at & 0xC0) == 0x80)
        c = c << 6 | ((uint8_t)*r->at++ & 0x3FU);
    return c;
}

static enum status read_hex(struct reader *r, size_t count, uint32_t *value) {
    *value = 0;
    for (size_t i = 0; i < count; i++, r->at++) {
        const char c = r->at < r->end ? *r->at : '\0', letter = (char)(c | 0x20);
        const bool is_digit = c >= '0' && c <= '9', is_letter = letter >= 'a' && letter <= 'f';
        if (!is_digit && !is_letter) return wrong(r, "\\x or \\u without its digits");
        *value = *value * 16 + (uint32_t)(is_digit ? c - '0' : letter - 'a' + 10);
    }
    return STATUS_OK;
}

static enum status read_unicode(struct reader *r, uint32_t *c) {
    if (r->at < r->end && *r->at == '{') {
        const char *close = memchr(r->at, '}', (size_t)(r->end - r->at));
        if (close == NULL || close - r->at < 2 || close - r->at > 7) return wrong(r, "\\u{...}: expected a number");
        r->at++;
        TRY(read_hex(r, (size_t)(close - r->at), c));
        r->at++;
        return *c <= 0x10FFFF ? STATUS_OK : wrong(r, "\\u{...}: no character");
    }
    TRY(read_hex(r, 4, c));
    if (*c >= 0xD800 && *c < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        uint32_t low;
        r->at += 2;
        TRY(read_hex(r, 4, &low));
        if (low >= 0xDC00 && low <= 0xDFFF) *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    }
    return *c < 0xD800 || *c > 0xDFFF ? STATUS_OK : wrong(r, "\\u: half of a pair");
}

/* Behind a backslash.  *kind: d, w, s, D, W or S; '\0': the character *c. */
static enum status read_escape(struct reader *r, bool in_class, char *kind, uint32_t *c) {
    static const char names[] = "tnrfv0", values[] = "\t\n\r\f\v";
    *kind = '\0';
    if (r->at == r->end) return wrong(r, "it ends with a backslash");
    const char letter = *r->at;
    if (strchr("dwsDWS", letter) != NULL && letter != '\0') {
        *kind = letter;
        r->at++;
        return STATUS_OK;
    }
    const char *name = letter != '\0' ? strchr(names, letter) : NULL;
    if (name != NULL) {
        *c = (uint8_t)values[name - names]; /* of \0: the text's own end */
        r->at++;
        return STATUS_OK;
    }
    if (letter == 'x') return r->at++, read_hex(r, 2, c);
    if (letter == 'u') return r->at++, read_unicode(r, c);
    if (letter == 'b' && in_class) return r->at++, *c = '\b', STATUS_OK;
    if (letter == 'b' || letter == 'B') return wrong(r, "\\b is not supported");
    if (letter == 'p' || letter == 'P') return wrong(r, "\\p is not supported");
    if (letter >= '0' && letter <= '9') return wrong(r, "references back are not supported");
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))
        return wrong(r, "a backslash before this letter is not supported");
    *c = next_character(r);
    return STATUS_OK;
}

/* One character or kind of a class. */
static enum status read_member(struct reader *r, bool wide, bool *is_kind, uint32_t *c) {
    char kind = '\0';
    *is_kind = false;
    if (*r->at != '\\') return *c = next_character(r), STATUS_OK;
    r->at++;
    TRY(read_escape(r, true, &kind, c));
    *is_kind = kind != '\0';
    return *is_kind ? add_kind(r, kind, wide) : STATUS_OK;
}

/* Behind [. */
static enum status read_class(struct reader *r, uint32_t *index) {
    const bool is_negated = r->at < r->end && *r->at == '^';
    r->set_count = 0;
    if (is_negated) r->at++;
    if (r->at < r->end && *r->at == ']') return wrong(r, "an empty class");
    while (r->at < r->end && *r->at != ']') {
        uint32_t low, high;
        bool is_kind, ends_with_kind = false;
        TRY(read_member(r, is_negated, &is_kind, &low));
        if (is_kind) continue;
        high = low;
        if (r->end - r->at >= 2 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            TRY(read_member(r, is_negated, &ends_with_kind, &high));
            if (ends_with_kind) {
                TRY(add_range(r, '-', '-'));
                high = low;
            }
        }
        if (high < low) return wrong(r, "a class whose range is backwards");
        TRY(add_range(r, low, high));
    }
    if (r->at == r->end) return wrong(r, "a class without its ]");
    r->at++;
    return set_part(r, is_negated, index);
}

/* ---- expressions ---- */

static enum status read_either(struct reader *r, uint32_t *index);

/* Behind (. */
static enum status read_group(struct reader *r, uint32_t *index) {
    if (r->depth == PATTERN_DEPTH_MAX) return wrong(r, "groups are nested too deep");
    if (r->at < r->end && *r->at == '?') {
        const char *name = r->at + 1 + (r->end - r->at > 1 && r->at[1] == 'P');
        const bool is_named = r->end - name >= 2 && name[0] == '<' && name[1] != '=' && name[1] != '!';
        const char *close = is_named ? memchr(name, '>', (size_t)(r->end - name)) : NULL;
        if (close != NULL)
            r->at = close + 1;
        else if (r->end - r->at >= 2 && r->at[1] == ':')
            r->at += 2;
        else
            return wrong(r, "looking ahead or behind, and flags, are not supported");
    }
    r->depth++;
    TRY(read_either(r, index));
    r->depth--;
    if (r->at == r->end || *r->at != ')') return wrong(r, "a group without its )");
    r->at++;
    return STATUS_OK;
}

static enum status read_atom(struct reader *r, uint32_t *index) {
    char kind;
    uint32_t c;
    r->set_count = 0;
    switch (*r->at) {
    case '(': return r->at++, read_group(r, index);
    case '[': return r->at++, read_class(r, index);
    case '^': return r->at++, new_part(r, &(struct part){.kind = PART_BEGIN}, index);
    case '$': return r->at++, new_part(r, &(struct part){.kind = PART_END}, index);
    case '.':
        r->at++;
        TRY(add_ranges(r, ARRAY(line_ends)));
        return set_part(r, true, index);
    case '*':
    case '+':
    case '?': return wrong(r, "nothing to repeat");
    case '\\':
        r->at++;
        TRY(read_escape(r, false, &kind, &c));
        TRY(kind != '\0' ? add_kind(r, kind, false) : add_range(r, c, c));
        return set_part(r, false, index);
    default:
        c = next_character(r);
        TRY(add_range(r, c, c));
        return set_part(r, false, index);
    }
}

static bool read_number(struct reader *r, uint32_t *number) {
    const char *begin = r->at;
    for (*number = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9' && *number <= REPEAT_MAX; r->at++)
        *number = *number * 10 + (uint32_t)(*r->at - '0');
    return r->at > begin;
}

/* {n}, {n,} or {n,m}; false: it is no such, and text. */
static bool read_braces(struct reader *r, uint32_t *min, uint32_t *max) {
    const char *begin = r->at++;
    bool is_read = read_number(r, min);
    *max = *min;
    if (is_read && r->at < r->end && *r->at == ',') {
        r->at++;
        if (!read_number(r, max)) *max = NO_LIMIT;
    }
    is_read = is_read && r->at < r->end && *r->at == '}';
    r->at = is_read ? r->at + 1 : begin;
    return is_read;
}

static enum status read_repeated(struct reader *r, uint32_t *index) {
    TRY(read_atom(r, index));
    while (r->at < r->end) {
        uint32_t min = 0, max = NO_LIMIT;
        const char c = *r->at;
        if (c == '{') {
            if (!read_braces(r, &min, &max)) return STATUS_OK;
        } else if (c == '*' || c == '+' || c == '?') {
            min = c == '+';
            max = c == '?' ? 1 : NO_LIMIT;
            r->at++;
        } else {
            return STATUS_OK;
        }
        if (min > REPEAT_MAX || (max != NO_LIMIT && (max > REPEAT_MAX || max < min)))
            return wrong(r, "a repetition that is too large or backwards");
        if (r->at < r->end && *r->at == '?') r->at++; /* of the same texts, the shortest first */
        if (r->at < r->end && *r->at == '+') return wrong(r, "repetitions that give nothing back are not supported");
        const struct part part = {.kind = PART_REPEAT, .left = *index, .min = min, .max = max};
        TRY(new_part(r, &part, index));
    }
    return STATUS_OK;
}

static enum status read_both(struct reader *r, uint32_t *index) {
    TRY(new_part(r, &(struct part){.kind = PART_EMPTY}, index));
    while (r->at < r->end && *r->at != '|' && *r->at != ')') {
        uint32_t next;
        TRY(read_repeated(r, &next));
        TRY(new_part(r, &(struct part){.kind = PART_BOTH, .left = *index, .right = next}, index));
    }
    return STATUS_OK;
}

static enum status read_either(struct reader *r, uint32_t *index) {
    TRY(read_both(r, index));
    while (r->at < r->end && *r->at == '|') {
        uint32_t other;
        r->at++;
        TRY(read_both(r, &other));
        TRY(new_part(r, &(struct part){.kind = PART_EITHER, .left = *index, .right = other}, index));
    }
    return STATUS_OK;
}

/* ---- states ---- */

static enum status build(struct reader *r, struct pattern *p, uint32_t index, uint32_t to, uint32_t *from);

static enum status build_repeat(struct reader *r, struct pattern *p, const struct part *part, uint32_t to,
                                uint32_t *from) {
    *from = to;
    if (part->max == NO_LIMIT) {
        uint32_t loop, inner;
        TRY(pattern_add(p, PATTERN_SPLIT, to, to, &loop, r->error));
        TRY(build(r, p, part->left, loop, &inner));
        p->states[loop].other = inner;
        *from = loop;
    }
    for (uint32_t i = part->min; part->max != NO_LIMIT && i < part->max; i++) {
        uint32_t inner;
        TRY(build(r, p, part->left, *from, &inner));
        TRY(pattern_add(p, PATTERN_SPLIT, inner, to, from, r->error));
    }
    for (uint32_t i = 0; i < part->min; i++) TRY(build(r, p, part->left, *from, from));
    return STATUS_OK;
}

/* Recursion ends: a part comes after those that it is made of, and BOTH goes down to the left alone. */
static enum status build(struct reader *r, struct pattern *p, uint32_t index, uint32_t to, uint32_t *from) {
    const struct part *part = &r->parts[index];
    uint32_t left, right;
    if (++r->build_count > BUILDS_MAX) return wrong(r, "it repeats too much"); /* nothing, again and again */
    while (part->kind == PART_BOTH) {
        TRY(build(r, p, part->right, to, &right));
        to = right;
        part = &r->parts[part->left];
    }
    *from = to;
    switch (part->kind) {
    case PART_BOTH:
    case PART_EMPTY: return STATUS_OK;
    case PART_SET: return pattern_add_characters(p, part->ranges, part->range_count, to, from, r->error);
    case PART_BEGIN: return pattern_add(p, PATTERN_BEGIN, to, to, from, r->error);
    case PART_END: return pattern_add(p, PATTERN_END, to, to, from, r->error);
    case PART_REPEAT: return build_repeat(r, p, part, to, from);
    case PART_EITHER:
        TRY(build(r, p, part->left, to, &left));
        TRY(build(r, p, part->right, to, &right));
        return pattern_add(p, PATTERN_SPLIT, left, right, from, r->error);
    }
    return STATUS_OK;
}

/* Any character, again and again, before `to`. */
static enum status add_anything(const struct reader *r, struct pattern *p, uint32_t to, uint32_t *from) {
    static const struct character_range all[] = {{0, 0x10FFFF}};
    uint32_t character;
    TRY(pattern_add(p, PATTERN_SPLIT, to, to, from, r->error));
    TRY(pattern_add_characters(p, all, 1, *from, &character, r->error));
    p->states[*from].other = character;
    return STATUS_OK;
}

static enum status read_whole(struct reader *r, struct pattern *p) {
    uint32_t whole, behind, inner;
    TRY(read_either(r, &whole));
    if (r->at < r->end) return wrong(r, "a ) without its group");
    TRY(pattern_add(p, PATTERN_MATCH, 0, 0, &p->match, r->error));
    TRY(add_anything(r, p, p->match, &behind));
    TRY(build(r, p, whole, behind, &inner));
    return add_anything(r, p, inner, &p->first);
}

enum status pattern_read(struct pattern *pattern, const char *text, size_t length, struct error *error) {
    *pattern = (struct pattern){0};
    if (length > PATTERN_BYTES_MAX)
        return error_set(error, STATUS_USAGE, "%zu bytes, expected at most %d", length, PATTERN_BYTES_MAX);
    struct reader *reader = calloc(1, sizeof *reader);
    struct part *parts = calloc(PARTS_MAX, sizeof *parts);
    enum status status = error_set(error, STATUS_MEMORY, "no memory for a pattern");
    if (reader != NULL && parts != NULL) {
        *reader = (struct reader){.at = text, .end = text + length, .parts = parts, .error = error};
        status = read_whole(reader, pattern);
        for (uint32_t i = 0; i < reader->part_count; i++) free(parts[i].ranges);
    }
    free(parts);
    free(reader);
    if (status != STATUS_OK) {
        pattern_deinit(pattern);
        *pattern = (struct pattern){0};
    }
    return status;
}
