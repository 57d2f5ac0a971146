/* Merging, the same for SentencePiece and BPE: of all neighbouring pairs that form a token join
 * the one of lowest rank, the leftmost among equals, until none is left.  The two differ only in what a
 * pair's rank is: the place in the list of merges, or the order of the joined token's score.
 *
 * Symbols are a linked list inside an array indexed by the byte where each symbol starts.  Short pieces
 * (nearly all words) are scanned again after each merge; long ones use a heap of (rank, position), so that
 * a piece of n bytes costs O(n log n).  A heap entry is stale when the symbol's pair has another rank by
 * then; it is dropped when it comes up.  36 bytes of memory per byte of the longest piece.
 */
#include <stdlib.h>

#include "base/assert.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"

enum { SHORT_PIECE_BYTES = 32 };
#define MERGE_NONE UINT32_MAX

void merge_scratch_deinit(struct merge_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct merge_scratch){0};
}

static enum status scratch_reserve(struct merge_scratch *scratch, size_t length, struct error *error) {
    if (length > scratch->capacity) {
        free(scratch->symbols);
        scratch->capacity = length < 1024 ? 1024 : length;
        scratch->symbols = malloc(scratch->capacity * sizeof *scratch->symbols);
    }
    if (length > SHORT_PIECE_BYTES && length > scratch->heap_capacity) {
        free(scratch->heap);
        scratch->heap_capacity = length;
        scratch->heap = malloc(2 * length * sizeof *scratch->heap);
    }
    if (scratch->symbols && (length <= SHORT_PIECE_BYTES || scratch->heap)) return STATUS_OK;
    merge_scratch_deinit(scratch);
    return error_set(error, STATUS_MEMORY, "no memory to tokenize a piece of %zu bytes", length);
}

/* Finds the merge of symbol `at` with the next one. */
static void find_pair(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_symbol *symbols,
                      uint32_t at) {
    struct merge_symbol *left = &symbols[at];
    left->rank = MERGE_NONE;
    if (left->next >= length) return;
    const struct merge_symbol *right = &symbols[left->next];
    if (t->model != TOKENIZER_SPM) {
        struct merge_rule rule = vocabulary_find_merge(t, left->id, right->id);
        left->merged = rule.merged;
        if (rule.merged != TOKEN_NONE) left->rank = rule.rank;
    } else {
        left->merged = vocabulary_find_bytes(t, text + at, right->next - at);
        if (left->merged != TOKEN_NONE) left->rank = t->tokens[left->merged].rank;
    }
}

static void symbols_init(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_symbol *symbols) {
    uint32_t previous = 0;
    for (size_t at = 0, size; at < length; at += size) {
        size = 1;
        if (t->model == TOKENIZER_BPE) {
            symbols[at].id = t->byte_tokens[text[at]];
        } else {
            size = utf8_sequence_length(text, length, at);
            if (size == 0) size = 1; /* not UTF-8: a symbol of its own, which no token matches */
            symbols[at].id = vocabulary_find_bytes(t, text + at, size);
        }
        symbols[at].previous = previous;
        symbols[at].next = (uint32_t)(at + size);
        previous = (uint32_t)at;
    }
    for (uint32_t at = 0; at < length; at = symbols[at].next) find_pair(t, text, length, symbols, at);
}

/* Joins symbol `at` with the next one and finds the pairs on both sides again. */
static void join(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_symbol *symbols,
                 uint32_t at) {
    struct merge_symbol *left = &symbols[at], *right = &symbols[left->next];
    left->id = left->merged;
    left->next = right->next;
    right->rank = MERGE_NONE; /* dead: no heap entry finds it again */
    if (left->next < length) symbols[left->next].previous = at;
    find_pair(t, text, length, symbols, at);
    if (at > 0) find_pair(t, text, length, symbols, left->previous);
}

static void merge_short(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_symbol *symbols) {
    for (;;) {
        uint32_t best = 0;
        for (uint32_t at = symbols[0].next; at < length; at = symbols[at].next)
            if (symbols[at].rank < symbols[best].rank) best = at;
        if (symbols[best].rank == MERGE_NONE) return;
        join(t, text, length, symbols, best);
    }
}

/* Binary min-heap of rank << 32 | position. */
static void heap_sink(uint64_t *heap, size_t count, size_t hole, uint64_t value) {
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[hole] = heap[child];
        hole = child;
    }
    heap[hole] = value;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t value) {
    size_t hole = (*count)++;
    for (size_t parent; hole > 0 && heap[parent = (hole - 1) / 2] > value; hole = parent) heap[hole] = heap[parent];
    heap[hole] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0];
    uint64_t last = heap[--*count];
    if (*count > 0) heap_sink(heap, *count, 0, last);
    return top;
}

static uint64_t heap_entry(const struct merge_symbol *symbols, uint32_t at) {
    return (uint64_t)symbols[at].rank << 32 | at;
}

static void merge_long(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_scratch *scratch) {
    struct merge_symbol *symbols = scratch->symbols;
    uint64_t *heap = scratch->heap;
    size_t count = 0;
    for (uint32_t at = 0; at < length; at = symbols[at].next)
        if (symbols[at].rank != MERGE_NONE) heap[count++] = heap_entry(symbols, at);
    for (size_t i = count / 2; i-- > 0;) heap_sink(heap, count, i, heap[i]);
    while (count > 0) {
        uint64_t top = heap_pop(heap, &count);
        uint32_t at = (uint32_t)top;
        if (symbols[at].rank != top >> 32) continue;
        join(t, text, length, symbols, at);
        /* At most n entries at the start and one more per merge: fewer than 2n. */
        ASSERT(count + 2 <= 2 * scratch->heap_capacity);
        if (symbols[at].rank != MERGE_NONE) heap_push(heap, &count, heap_entry(symbols, at));
        uint32_t previous = symbols[at].previous;
        if (at > 0 && symbols[previous].rank != MERGE_NONE) heap_push(heap, &count, heap_entry(symbols, previous));
    }
}

/* A symbol without a token becomes the tokens of its bytes, if the vocabulary has them; else the unknown token, once
 * for a run of such symbols. */
static enum status append_bytes(const struct tokenizer *t, const uint8_t *text, size_t length, bool *unknown,
                                struct token_list *list, struct error *error) {
    bool missing = false;
    for (size_t i = 0; i < length; i++) missing = missing || t->byte_tokens[text[i]] == TOKEN_NONE;
    if (!missing) {
        for (size_t i = 0; i < length; i++) TRY(token_list_append(list, t->byte_tokens[text[i]], error));
        *unknown = false;
        return STATUS_OK;
    }
    if (t->rules.unknown == TOKEN_NONE)
        return error_set(error, STATUS_UNSUPPORTED,
                         "tokenizer.ggml.tokens: no token for the byte 0x%02X and no unknown token", text[0]);
    if (!*unknown) TRY(token_list_append(list, t->rules.unknown, error));
    *unknown = true;
    return STATUS_OK;
}

static enum status append_symbols(const struct tokenizer *t, const uint8_t *text, size_t length,
                                  const struct merge_symbol *symbols, struct token_list *list, struct error *error) {
    bool unknown = false; /* the previous symbol was the unknown token */
    for (uint32_t at = 0; at < length; at = symbols[at].next) {
        if (symbols[at].id != TOKEN_NONE) {
            TRY(token_list_append(list, symbols[at].id, error));
            unknown = false;
        } else {
            TRY(append_bytes(t, text + at, symbols[at].next - at, &unknown, list, error));
        }
    }
    return STATUS_OK;
}

enum status merge_piece(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_scratch *scratch,
                        struct token_list *list, struct error *error) {
    ASSERT(length > 0 && length < UINT32_MAX);
    token_id id = vocabulary_find_bytes(t, text, length);
    uint8_t whole = 0;
    if (id != TOKEN_NONE) {
        const bool is_newlines = t->model == TOKENIZER_CHARACTER_BPE && text[0] == '\n'; /* a token, as in llama.cpp */
        whole = t->ignore_merges || is_newlines ? 1 : atomic_load_explicit(&t->whole[id], memory_order_relaxed);
        if (whole == 1) return token_list_append(list, id, error);
    }
    TRY(scratch_reserve(scratch, length, error));
    symbols_init(t, text, length, scratch->symbols);
    if (length <= SHORT_PIECE_BYTES)
        merge_short(t, text, length, scratch->symbols);
    else
        merge_long(t, text, length, scratch);
    if (id != TOKEN_NONE && whole == 0) {
        whole = scratch->symbols[0].next == length && scratch->symbols[0].id == id ? 1 : 2;
        atomic_store_explicit(&t->whole[id], whole, memory_order_relaxed);
    }
    return append_symbols(t, text, length, scratch->symbols, list, error);
}
