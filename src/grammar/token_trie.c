#include "grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/grammar_internal.h"
#include "grammar/trie_internal.h"

/* The bytes of a token, or of its end. */
struct piece {
    const uint8_t *bytes;
    uint32_t length;
    token_id id;
};

static int compare(const void *left, const void *right) {
    const struct piece *a = left, *b = right;
    const int order = memcmp(a->bytes, b->bytes, min_size(a->length, b->length));
    if (order != 0) return order;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Every node that is still open ends here, down to those of `depth` bytes. */
static void close_nodes(struct trie_tree *tree, const uint32_t *open, size_t *open_count, size_t depth) {
    while (*open_count > depth) tree->nodes[open[--*open_count]].skip = (uint32_t)tree->node_count;
}

/* pieces: [count], none of them empty.  Sorts them. */
static enum status tree_create(struct trie_tree *tree, struct piece *pieces, size_t count, struct error *error) {
    uint32_t open[TOKEN_BYTES_MAX];
    size_t open_count = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += pieces[i].length;
    if (count > 1) qsort(pieces, count, sizeof *pieces, compare);
    tree->nodes = calloc(bytes + 1, sizeof *tree->nodes);
    tree->tokens = calloc(count + 1, sizeof *tree->tokens);
    if (tree->nodes == NULL || tree->tokens == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the tree of tokens");
    for (size_t i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        size_t shared = 0;
        while (shared < open_count && shared < piece->length && tree->nodes[open[shared]].byte == piece->bytes[shared])
            shared++;
        close_nodes(tree, open, &open_count, shared);
        for (; open_count < piece->length; open_count++) {
            open[open_count] = (uint32_t)tree->node_count;
            tree->nodes[tree->node_count++] = (struct trie_node){.byte = piece->bytes[open_count],
                                                                 .depth = (uint8_t)open_count,
                                                                 .token_begin = (uint32_t)tree->token_count};
        }
        struct trie_node *last = &tree->nodes[open[open_count - 1]];
        if (last->token_count == UINT16_MAX) continue; /* one of them is enough */
        if (last->token_count++ == 0) last->token_begin = (uint32_t)tree->token_count;
        tree->tokens[tree->token_count++] = piece->id;
    }
    close_nodes(tree, open, &open_count, 0);
    struct trie_node *fitted = realloc(tree->nodes, (tree->node_count + 1) * sizeof *fitted);
    if (fitted != NULL) tree->nodes = fitted;
    return STATUS_OK;
}

/* How many bytes of a token there are up to a closing quote; its length + 1: it stays inside the string; 0: it can not
 * be inside one. */
static size_t bytes_inside(const struct piece *piece, uint16_t *characters) {
    enum string_state state = STRING_TEXT;
    *characters = 0;
    for (size_t i = 0; i < piece->length; i++) {
        const bool is_begin = state == STRING_TEXT;
        state = string_next(state, piece->bytes[i]);
        if (state == STRING_WRONG) return 0;
        if (state == STRING_CLOSED) return i + 1;
        *characters = (uint16_t)(*characters + is_begin);
    }
    return piece->length + 1;
}

static void set_bit(uint64_t *bits, token_id id) { bits[id / 64] |= 1ULL << (id % 64); }

/* Sorts out what the tokens are inside a string; `rest` [count] receives what follows the closing quote. */
static size_t classify(struct token_trie *trie, const struct piece *pieces, size_t count, struct piece *rest) {
    size_t rest_count = 0;
    for (size_t i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        uint16_t *characters = &trie->characters[piece->id];
        const size_t inside = bytes_inside(piece, characters);
        trie->characters_max = (uint32_t)max_size(trie->characters_max, *characters);
        if (inside == 0) continue;
        if (inside > piece->length) {
            set_bit(trie->inside, piece->id);
        } else if (inside == piece->length) {
            trie->closed_tokens[trie->closed_count++] = piece->id;
        } else {
            rest[rest_count++] = (struct piece){piece->bytes + inside, piece->length - (uint32_t)inside, piece->id};
        }
    }
    return rest_count;
}

/* *pieces, newly allocated: those that can be in the tree. */
static enum status read_pieces(struct token_trie *trie, const struct tokenizer *tokenizer, struct piece **pieces,
                               size_t *count, struct error *error) {
    const size_t size = trie->vocabulary_size;
    char none[1];
    size_t total = 1, used = 0;
    for (size_t i = 0; i < size; i++) total += tokenizer_piece(tokenizer, (token_id)i, false, none, 0);
    trie->bytes = malloc(total);
    trie->offsets = calloc(size + 1, sizeof *trie->offsets);
    *pieces = calloc(size + 1, sizeof **pieces);
    if (total > UINT32_MAX || trie->bytes == NULL || trie->offsets == NULL || *pieces == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the tree of tokens");
    for (size_t i = 0; i < size; i++) {
        uint8_t *bytes = trie->bytes + used;
        const size_t length = tokenizer_piece(tokenizer, (token_id)i, false, (char *)bytes, total - used);
        trie->offsets[i + 1] = trie->offsets[i];
        if (length == 0 || length > TOKEN_BYTES_MAX || tokenizer_is_end(tokenizer, (token_id)i)) continue;
        (*pieces)[(*count)++] = (struct piece){bytes, (uint32_t)length, (token_id)i};
        used += length;
        trie->offsets[i + 1] = (uint32_t)used;
    }
    return STATUS_OK;
}

static enum status fill(struct token_trie *trie, const struct tokenizer *tokenizer, struct piece *pieces, size_t count,
                        struct error *error) {
    struct piece *rest = calloc(count + 1, sizeof *rest);
    trie->inside = calloc(trie->word_count, sizeof *trie->inside);
    trie->ends = calloc(trie->word_count, sizeof *trie->ends);
    trie->characters = calloc(trie->vocabulary_size + 1, sizeof *trie->characters);
    trie->closed_tokens = calloc(count + 1, sizeof *trie->closed_tokens);
    if (rest == NULL || trie->inside == NULL || trie->ends == NULL || trie->closed_tokens == NULL ||
        trie->characters == NULL) {
        free(rest);
        return error_set(error, STATUS_MEMORY, "no memory for the tree of tokens");
    }
    for (size_t i = 0; i < trie->vocabulary_size; i++)
        if (tokenizer_is_end(tokenizer, (token_id)i)) set_bit(trie->ends, (token_id)i);
    const size_t rest_count = classify(trie, pieces, count, rest);
    enum status status = tree_create(&trie->closing, rest, rest_count, error);
    free(rest);
    TRY(status);
    return tree_create(&trie->all, pieces, count, error);
}

enum status token_trie_create(struct token_trie **trie, const struct tokenizer *tokenizer, struct error *error) {
    struct piece *pieces = NULL;
    size_t count = 0;
    struct token_trie *made = calloc(1, sizeof *made);
    *trie = NULL;
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the tree of tokens");
    made->vocabulary_size = tokenizer_vocabulary_size(tokenizer);
    made->word_count = (made->vocabulary_size + 63) / 64;
    enum status status = read_pieces(made, tokenizer, &pieces, &count, error);
    if (status == STATUS_OK) status = fill(made, tokenizer, pieces, count, error);
    free(pieces);
    if (status == STATUS_OK)
        *trie = made;
    else
        token_trie_destroy(made);
    return status;
}

void token_trie_destroy(struct token_trie *trie) {
    if (trie == NULL) return;
    free(trie->all.nodes);
    free(trie->all.tokens);
    free(trie->closing.nodes);
    free(trie->closing.tokens);
    free(trie->bytes);
    free(trie->offsets);
    free(trie->inside);
    free(trie->characters);
    free(trie->closed_tokens);
    free(trie->ends);
    free(trie);
}
