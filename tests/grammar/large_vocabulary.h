/* large_vocabulary: tokens as many and as long as those of large models have, made up. */
#pragma once

#include <stddef.h>

#include "grammar/token_trie.h"

/* Of `count` tokens: token b is byte b, the last one ends an answer; between them words with and without a blank,
 * mixtures with JSON's marks, runs of one mark, and numbers.  Aborts without memory. */
struct token_trie *large_vocabulary_trie(size_t count);
