#include "generate/draft.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { SLOTS_MIN = 1024, LENGTH_FIRST = 2 };

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

size_t draft_next(struct draft *draft, const struct token_list *tokens, token_id last, size_t most,
                  token_id drafted[DRAFT_MAX]) {
    token_id gram[DRAFT_GRAM];
    if (draft->rest > 0) {
        draft->rest--;
        return 0;
    }
    if (tokens->count <= DRAFT_GRAM || tokens->count >= UINT32_MAX || !grow(draft, tokens->count)) return 0;
    see(draft, tokens);
    memcpy(gram, tokens->ids + tokens->count - (DRAFT_GRAM - 1), (DRAFT_GRAM - 1) * sizeof *gram);
    gram[DRAFT_GRAM - 1] = last;
    const size_t end = draft->ends[slot_of(draft, gram)];
    if (end == 0 || end >= tokens->count) return 0;
    if (memcmp(tokens->ids + end - DRAFT_GRAM, gram, sizeof gram) != 0) return 0;
    if (draft->length == 0) draft->length = LENGTH_FIRST;
    const size_t count = min_size(min_size(draft->length, most), tokens->count - end);
    memcpy(drafted, tokens->ids + end, count * sizeof *drafted);
    return count;
}

void draft_learn(struct draft *draft, size_t drafted, size_t right) {
    if (right == drafted) {
        draft->length = min_size(2 * draft->length, DRAFT_MAX);
        draft->misses = 0;
        return;
    }
    draft->length = max_size(draft->length / 2, 1);
    draft->misses++;
    draft->rest = min_size((size_t)4 << min_size(draft->misses, 6), DRAFT_REST_MAX);
}
