#include "generate/draft.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* KNOWN: samples, so that one of a busy moment is not the price. */
enum { SLOTS_MIN = 1024, STEPS_KNOWN = 2, ROWS_KNOWN = 3 };

/* In steps.  What an answer may have lost: half a step at first, and a hundredth of each step; and what of its gains it
 * may lose again, at most.  ROW: what a row costs until it was measured, and at least. */
static const double CREDIT_FIRST = 0.5, CREDIT_STEP = 0.01, CREDIT_MAX = 4, ROW_FIRST = 0.5, ROW_MIN = 0.1;

void draft_deinit(struct draft *draft) {
    free(draft->ends);
    *draft = (struct draft){.ends = NULL};
}

static size_t slot_of(const struct draft *draft, const token_id *gram) {
    uint64_t hash = 0;
    for (size_t i = 0; i < DRAFT_GRAM; i++) hash = (hash ^ (uint32_t)gram[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 32) & (draft->slot_count - 1);
}

/* Two slots for each token: most grams have one of their own. */
static bool grow(struct draft *draft, size_t count) {
    if (2 * count <= draft->slot_count) return true;
    size_t slots = draft->slot_count > 0 ? draft->slot_count : SLOTS_MIN;
    while (slots < 2 * count) slots *= 2;
    uint32_t *ends = calloc(slots, sizeof *ends);
    if (ends == NULL) return false;
    free(draft->ends);
    draft->ends = ends;
    draft->slot_count = slots;
    draft->seen = 0;
    return true;
}

/* Of all tokens that another one follows. */
static void see(struct draft *draft, const struct token_list *tokens) {
    if (draft->seen > tokens->count) draft->seen = 0; /* it was cut: grams that are gone are told by their tokens */
    for (size_t end = max_size(draft->seen, DRAFT_GRAM); end < tokens->count; end++)
        draft->ends[slot_of(draft, tokens->ids + end - DRAFT_GRAM)] = (uint32_t)end;
    draft->seen = tokens->count;
}

/* A row of a draft, in steps. */
static double row_cost(const struct draft *draft) {
    const double step = rate_seconds(&draft->step), row = rate_seconds(&draft->row);
    if (draft->row.count < ROWS_KNOWN) return ROW_FIRST;
    return row > ROW_MIN * step ? row / step : ROW_MIN;
}

/* Of whose loss the credit allows: all of it may be wrong. */
static size_t affordable(const struct draft *draft) {
    const double credit = CREDIT_FIRST + draft->gained;
    return credit > 0 ? (size_t)(credit / row_cost(draft)) : 0;
}

size_t draft_next(struct draft *draft, const struct token_list *tokens, token_id last, size_t most,
                  token_id drafted[DRAFT_MAX]) {
    token_id gram[DRAFT_GRAM];
    if (draft->length == 0) draft->length = 1;
    most = min_size(min_size(draft->length, most), affordable(draft));
    if (most == 0 || draft->step.count < STEPS_KNOWN) return 0;
    if (tokens->count <= DRAFT_GRAM || tokens->count >= UINT32_MAX || !grow(draft, tokens->count)) return 0;
    see(draft, tokens);
    memcpy(gram, tokens->ids + tokens->count - (DRAFT_GRAM - 1), (DRAFT_GRAM - 1) * sizeof *gram);
    gram[DRAFT_GRAM - 1] = last;
    const size_t end = draft->ends[slot_of(draft, gram)];
    if (end == 0 || end >= tokens->count) return 0;
    if (memcmp(tokens->ids + end - DRAFT_GRAM, gram, sizeof gram) != 0) return 0;
    const size_t count = min_size(most, tokens->count - end);
    memcpy(drafted, tokens->ids + end, count * sizeof *drafted);
    return count;
}

void draft_learn(struct draft *draft, size_t drafted, size_t right, double seconds) {
    if (drafted == 0) {
        rate_note(&draft->step, 1, seconds);
    } else {
        const double rows = seconds - rate_seconds(&draft->step);
        rate_note(&draft->row, (double)drafted, rows > 0 ? rows : 0);
        draft->gained += (double)right - (double)drafted * row_cost(draft);
        draft->length = right == drafted ? min_size(2 * draft->length, DRAFT_MAX) : max_size(draft->length / 2, 1);
    }
    draft->gained += CREDIT_STEP;
    if (draft->gained > CREDIT_MAX) draft->gained = CREDIT_MAX;
}
