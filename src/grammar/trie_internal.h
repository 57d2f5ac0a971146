/* The trie's nodes, and what it knows about strings beforehand.
 *
 * Inside a string almost every token may come next, and walking all of them takes too long.  So the trie has the set of
 * tokens that stay inside a string, and a second tree of the others: their bytes after the closing quote. */
#pragma once

#include "grammar/token_trie.h"

enum { TOKEN_BYTES_MAX = 256 };

/* In the order of a walk that goes down first. */
struct trie_node {
    uint32_t skip;        /* the node after this one's children and theirs */
    uint32_t token_begin; /* of trie_tree.tokens: those that end here */
    uint16_t token_count;
    uint8_t byte, depth; /* depth: of its bytes, minus 1 */
};

struct trie_tree {
    struct trie_node *nodes; /* owned, [node_count] */
    token_id *tokens;        /* owned, [token_count] */
    size_t node_count, token_count;
};

struct token_trie {
    struct trie_tree all;
    struct trie_tree closing; /* by their bytes after the quote */
    uint16_t *characters;     /* owned, [vocabulary_size]: of a text, that begin in the token up to a closing quote */
    uint64_t *inside;         /* owned, a bit for each token: it begins and ends in the text of a string */
    token_id *closed_tokens;  /* owned, [closed_count]: those that end with the quote */
    uint8_t *bytes;           /* owned: of all tokens in the tree */
    uint32_t *offsets;        /* owned, [vocabulary_size + 1]; token i has bytes[offsets[i], offsets[i + 1]) */
    uint64_t *ends;           /* owned, a bit for each token that ends an answer */
    size_t vocabulary_size, word_count, closed_count;
    uint32_t characters_max;
};
