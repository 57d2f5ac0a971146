/* vt: a value handed from variable to variable; cwe and fwe: words to be counted. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/eval/ruler_internal.h"

enum { NOISE_LINE = 5, NAME_LETTERS = 5, CODE_LETTERS = 6 };

static void random_letters(char *target, size_t count, char first, struct random *random) {
    for (size_t i = 0; i < count; i++) target[i] = (char)(first + (char)random_below(random, 26));
    target[count] = '\0';
}

void ruler_write_noise(struct text *text, size_t sentence_count, const char *const *lines, const double *places,
                       size_t count) {
    size_t line_count = (sentence_count + NOISE_LINE - 1) / NOISE_LINE, next = 0;
    for (size_t i = 0; i <= line_count; i++) {
        while (next < count && (i == line_count || (size_t)(places[next] * (double)(line_count + 1)) <= i)) {
            if (i + next > 0) text_add(text, "\n");
            text_add(text, lines[next++]);
        }
        if (i == line_count) break;
        if (i + next > 0) text_add(text, "\n");
        for (size_t j = 0; j < NOISE_LINE && i * NOISE_LINE + j < sentence_count; j++) {
            if (j > 0) text_add(text, " ");
            text_add(text, ruler_noise.words[j % ruler_noise.count]);
        }
    }
}

/* ---- vt ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool ruler_vt_draw(struct ruler_draft *draft) {
    for (size_t i = 0; i < VT_NAMES; i++) {
        bool again = true;
        while (again) {
            random_letters(draft->names[i], NAME_LETTERS, 'A', &draft->random);
            again = false;
            for (size_t j = 0; j < i; j++) again = again || strcmp(draft->names[i], draft->names[j]) == 0;
        }
        draft->places[i] = random_double(&draft->random);
    }
    qsort(draft->places, VT_NAMES, sizeof draft->places[0], ascending);
    snprintf(draft->vt_value, sizeof draft->vt_value, "%d", (int)(10000 + random_below(&draft->random, 90000)));
    return true;
}

void ruler_vt_statement(const struct ruler_draft *draft, size_t index, struct text *text) {
    const char *name = draft->names[index];
    if (index == 0)
        FILL(text, TEMPLATE_vt_first, {"name", name}, {"value", draft->vt_value});
    else
        FILL(text, TEMPLATE_vt_next, {"name", name}, {"source", draft->names[index - 1]});
}

void ruler_vt_question(const struct ruler_draft *draft, struct ruler_page *page) {
    struct text *text = &page->prompt;
    text_add(text, "\n");
    FILL(text, TEMPLATE_question_vt, {"value", draft->vt_value});
    text_add(text, "\n");
    FILL(text, TEMPLATE_prefix_vt, {"value", draft->vt_value});
    for (size_t i = 0; i < VT_NAMES; i++) ruler_page_answer(page, draft->names[i]);
}

void ruler_vt_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page) {
    struct text statements[VT_NAMES] = {{0}};
    const char *lines[VT_NAMES];
    bool failed = false;
    for (size_t i = 0; i < VT_NAMES; i++) {
        ruler_vt_statement(draft, i, &statements[i]);
        lines[i] = statements[i].bytes;
        failed = failed || statements[i].failed;
    }
    struct text *text = &page->prompt;
    ruler_fill(text, TEMPLATE_intro_vt, NULL, 0);
    text_add(text, "\n");
    if (!failed) ruler_write_noise(text, unit_count, lines, draft->places, VT_NAMES);
    ruler_vt_question(draft, page);
    if (failed) text->failed = true;
    for (size_t i = 0; i < VT_NAMES; i++) text_deinit(&statements[i]);
}

/* ---- cwe ---- */

/* The words of a list come from one vocabulary: single ones while these are enough, else pairs. */
static size_t cwe_vocabulary(const struct ruler_draft *draft) {
    return draft->pairs ? ruler_word_pair_count() : ruler_nouns.count + ruler_adjectives.count;
}

static void cwe_word(const struct ruler_draft *draft, size_t index, char *target) {
    if (draft->pairs)
        ruler_word_pair(target, index);
    else
        snprintf(target, RULER_ANSWER_BYTES, "%s",
                 index < ruler_nouns.count ? ruler_nouns.words[index]
                                           : ruler_adjectives.words[index - ruler_nouns.count]);
}

bool ruler_cwe_draw(struct ruler_draft *draft) { return urn_init(&draft->urn, cwe_vocabulary(draft)); }

static void shuffle(uint32_t *items, size_t count, struct random *random) {
    for (size_t i = count; i-- > 1;) {
        size_t j = (size_t)random_below(random, i + 1);
        uint32_t kept = items[i];
        items[i] = items[j];
        items[j] = kept;
    }
}

/* The entries of a list in their order: [entry count] numbers of words in `drawn`; the first ten are common. */
static uint32_t *cwe_entries(size_t word_count, size_t common_times, size_t other_times, size_t *entry_count,
                             struct random *random) {
    *entry_count = CWE_COMMON * common_times + (word_count - CWE_COMMON) * other_times;
    uint32_t *entries = malloc(*entry_count * sizeof *entries);
    if (entries == NULL) return NULL;
    size_t used = 0;
    for (size_t w = 0; w < word_count; w++)
        for (size_t i = 0; i < (w < CWE_COMMON ? common_times : other_times); i++) entries[used++] = (uint32_t)w;
    ASSERT(used == *entry_count);
    shuffle(entries, used, random);
    return entries;
}

void ruler_cwe_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page) {
    struct random random = draft->random;
    struct text *text = &page->prompt;
    size_t word_count = CWE_COMMON + unit_count, entry_count;
    if (word_count > cwe_vocabulary(draft)) {
        page->exhausted = true;
        return;
    }
    bool is_short = draft->length < 4096;
    uint32_t *entries = cwe_entries(word_count, is_short ? 10 : 30, is_short ? 1 : 3, &entry_count, &random);
    size_t *drawn = malloc(word_count * sizeof *drawn);
    if (entries == NULL || drawn == NULL) {
        text->failed = true;
        goto done;
    }
    urn_refill(&draft->urn);
    for (size_t w = 0; w < word_count; w++) drawn[w] = (size_t)urn_draw(&draft->urn, &random);
    ruler_fill(text, TEMPLATE_intro_cwe, NULL, 0);
    text_add(text, "\n");
    bool seen[CWE_COMMON] = {false};
    for (size_t i = 0; i < entry_count; i++) {
        char number[24], word[RULER_ANSWER_BYTES];
        snprintf(number, sizeof number, "%zu", i + 1);
        cwe_word(draft, drawn[entries[i]], word);
        if (i > 0) text_add(text, " ");
        FILL(text, TEMPLATE_cwe_entry, {"number", number}, {"word", word});
        if (entries[i] < CWE_COMMON && !seen[entries[i]]) ruler_page_answer(page, word);
        if (entries[i] < CWE_COMMON) seen[entries[i]] = true;
    }
    text_add(text, "\n");
    ruler_fill(text, TEMPLATE_question_cwe, NULL, 0);
    text_add(text, "\n");
    ruler_fill(text, TEMPLATE_prefix_cwe, NULL, 0);
done:
    free(entries);
    free(drawn);
}

/* ---- fwe ---- */

bool ruler_fwe_draw(struct ruler_draft *draft) {
    (void)draft;
    return true;
}

void ruler_fwe_write(struct ruler_draft *draft, size_t unit_count, struct ruler_page *page) {
    struct random random = draft->random;
    struct text *text = &page->prompt;
    /* Rank r occurs floor(units / (zeta(2) r^2)) times; ranks that would not occur are left out. */
    const double zeta = 1.6449340668482264;
    size_t rank_count = (size_t)sqrt((double)unit_count / zeta), used = 0;
    uint32_t *words = malloc((unit_count + 1) * sizeof *words);
    char(*codes)[8] = calloc(rank_count + 1, sizeof *codes);
    if (words == NULL || codes == NULL) {
        text->failed = true;
        goto done;
    }
    for (size_t r = 0; r < rank_count; r++) {
        random_letters(codes[r], CODE_LETTERS, 'a', &random);
        size_t times = (size_t)((double)unit_count / (zeta * (double)(r + 1) * (double)(r + 1)));
        for (size_t i = 0; i < times && used < unit_count; i++) words[used++] = (uint32_t)r;
    }
    shuffle(words, used, &random);
    ruler_fill(text, TEMPLATE_intro_fwe, NULL, 0);
    text_add(text, "\n");
    for (size_t i = 0; i < used; i++) {
        if (i > 0) text_add(text, " ");
        if (words[i] == 0)
            ruler_fill(text, TEMPLATE_fwe_dots, NULL, 0);
        else
            text_add(text, codes[words[i]]);
    }
    text_add(text, "\n");
    ruler_fill(text, TEMPLATE_question_fwe, NULL, 0);
    text_add(text, "\n");
    ruler_fill(text, TEMPLATE_prefix_fwe, NULL, 0);
    for (size_t r = 1; r <= FWE_ASKED && r < rank_count; r++) ruler_page_answer(page, codes[r]);
done:
    free(words);
    free(codes);
}
