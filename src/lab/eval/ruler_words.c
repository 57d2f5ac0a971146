/* The lists of ruler_text.h as arrays, and what is made of them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/eval/ruler_internal.h"

#define X(word) word,
static const char *const noise[] = {RULER_NOISE(X)};
static const char *const adjectives[] = {RULER_ADJECTIVES(X)};
static const char *const nouns[] = {RULER_NOUNS(X)};
static const char *const first_names[] = {RULER_FIRST_NAMES(X)};
static const char *const surnames[] = {RULER_SURNAMES(X)};
static const char *const town_starts[] = {RULER_TOWN_STARTS(X)};
static const char *const town_ends[] = {RULER_TOWN_ENDS(X)};
static const char *const regions[] = {RULER_REGIONS(X)};
static const char *const jobs[] = {RULER_JOBS(X)};
#undef X

#define LIST(array) \
    { array, sizeof array / sizeof array[0] }
const struct word_list ruler_noise = LIST(noise), ruler_adjectives = LIST(adjectives), ruler_nouns = LIST(nouns),
                       ruler_first_names = LIST(first_names), ruler_surnames = LIST(surnames),
                       ruler_town_starts = LIST(town_starts), ruler_town_ends = LIST(town_ends),
                       ruler_regions = LIST(regions), ruler_jobs = LIST(jobs);

static const char *const templates[] = {
#define X(name, text) text,
    RULER_TEMPLATES(X)
#undef X
};
static const char *const separators[] = {
#define X(name, text) text,
    RULER_SEPARATORS(X)
#undef X
};
static const char *const kinds[][2] = {
#define X(name, singular, plural) {singular, plural},
    RULER_KINDS(X)
#undef X
};

const char *ruler_separator_text(enum ruler_separator separator) { return separators[separator]; }

const char *ruler_kind_text(enum ruler_kind kind, bool plural) { return kinds[kind][plural]; }

static const char *field_value(const struct field *fields, size_t count, const char *name, size_t length) {
    for (size_t i = 0; i < count; i++)
        if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0) return fields[i].value;
    ASSERT(name == NULL); /* a template names a field that nobody fills */
    return "";
}

void ruler_fill(struct text *text, enum ruler_template template, const struct field *fields, size_t count) {
    for (const char *c = templates[template]; *c != '\0';) {
        size_t plain = strcspn(c, "{");
        text_append(text, c, plain);
        c += plain;
        if (*c != '{') continue;
        size_t name = strcspn(c + 1, "}");
        text_add(text, field_value(fields, count, c + 1, name));
        c += name + 2;
    }
}

void ruler_join_keys(struct text *text, const char (*keys)[RULER_ANSWER_BYTES], size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (i > 0) text_add(text, separators[i + 1 < count ? SEPARATOR_keys : SEPARATOR_last_key]);
        text_add(text, keys[i]);
    }
}

size_t ruler_word_pair_count(void) { return ruler_adjectives.count * ruler_nouns.count; }

void ruler_word_pair(char *target, size_t index) {
    snprintf(target, RULER_ANSWER_BYTES, "%s-%s", adjectives[index / ruler_nouns.count],
             nouns[index % ruler_nouns.count]);
}

static void write_uuid(char *target, struct random *random) {
    uint64_t a = random_next(random), b = random_next(random);
    a = (a & ~UINT64_C(0xf000)) | UINT64_C(0x4000);     /* version 4 */
    b = (b & ~(UINT64_C(3) << 62)) | UINT64_C(1) << 63; /* variant 10 */
    snprintf(target, RULER_ANSWER_BYTES, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, a >> 32,
             a >> 16 & 0xffff, a & 0xffff, b >> 48, b & UINT64_C(0xffffffffffff));
}

void ruler_word(char *target, enum ruler_kind kind, struct random *random) {
    switch (kind) {
    case KIND_number: snprintf(target, RULER_ANSWER_BYTES, "%" PRIu64, 1000000 + random_below(random, 9000000)); return;
    case KIND_word: snprintf(target, RULER_ANSWER_BYTES, "%s", nouns[random_below(random, ruler_nouns.count)]); return;
    case KIND_uuid: write_uuid(target, random); return;
    }
}

void ruler_page_answer(struct ruler_page *page, const char *answer) {
    ASSERT(page->answer_count < RULER_ANSWERS_MAX && strlen(answer) < RULER_ANSWER_BYTES);
    memcpy(page->answers[page->answer_count++], answer, strlen(answer) + 1);
}

/* ---- urn ---- */

static size_t bit_words(size_t count) { return (count + 63) / 64; }

bool urn_init(struct urn *urn, size_t count) {
    *urn = (struct urn){.drawn = calloc(bit_words(count), sizeof *urn->drawn), .count = count, .left = count};
    return urn->drawn != NULL;
}

void urn_deinit(struct urn *urn) {
    free(urn->drawn);
    *urn = (struct urn){0};
}

void urn_refill(struct urn *urn) {
    memset(urn->drawn, 0, bit_words(urn->count) * sizeof *urn->drawn);
    urn->left = urn->count;
}

void urn_remove(struct urn *urn, size_t index) {
    uint64_t bit = UINT64_C(1) << (index % 64);
    if ((urn->drawn[index / 64] & bit) != 0) return;
    urn->drawn[index / 64] |= bit;
    urn->left--;
}

int64_t urn_draw(struct urn *urn, struct random *random) {
    if (urn->left == 0) return URN_EMPTY;
    size_t index = (size_t)random_below(random, urn->count);
    while ((urn->drawn[index / 64] >> (index % 64) & 1) != 0) index = (index + 1) % urn->count;
    urn_remove(urn, index);
    return (int64_t)index;
}
