/* vocabularies: where the tests of src/token get their vocabularies and texts from. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "token/tokenizer.h"

/* A file, whole, zero-terminated; NULL where it cannot be read. Free it. */
char *read_whole(const char *path, size_t *length);

/* Opens path as GGUF and makes its tokenizer; fails the test on error. */
struct tokenizer *open_vocabulary(const char *path);

/* Encode and decode that fail the test on error. */
struct token_list encode(const struct tokenizer *t, const char *text, size_t length, bool special);
char *decode(const struct tokenizer *t, const struct token_list *list, bool special, size_t *length);

/* Fails the test unless decode(encode(text)) == text. */
void assert_round_trip(const struct tokenizer *t, const char *text, size_t length);

/* A byte-level vocabulary without merges: token b is byte b, then the controls, then (if not NULL and not
 * among them) bos and eos. */
struct tokenizer *byte_vocabulary(const char *pre, const char *const *controls, size_t control_count,
                                  const char *bos, const char *eos);
