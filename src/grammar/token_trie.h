/* token_trie: a vocabulary as a tree of bytes, so that one walk finds every token that may come next.
 *
 * Made once for each model; immutable then, and of any number of threads. */
#pragma once

#include "token/tokenizer.h"

struct token_trie;

/* Control tokens and tokens of more than 256 bytes are not in it: they are never part of JSON here.  Keeps no pointer
 * into the tokenizer. */
enum status token_trie_create(struct token_trie **trie, const struct tokenizer *tokenizer, struct error *error)
    STATUS_CHECKED;
void token_trie_destroy(struct token_trie *trie); /* NULL allowed */
