/* tokenizer: text to token ids and back, from the metadata of a GGUF file.
 *
 * SentencePiece ("llama"), byte-level BPE ("gpt2") with the pre-tokenizers of the common model families, and BPE of
 * characters ("gemma4").  Linear time on any input, no recursion.  Thread-safe after creation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "format/gguf.h"

typedef int32_t token_id; /* an index into the vocabulary; -1: none */

enum { TOKEN_NONE = -1 };

struct tokenizer;

/* force_pre: accept an unknown or missing tokenizer.ggml.pre and treat it as "default" (else STATUS_MODEL
 * with its name).  A vocabulary that is damaged is STATUS_MODEL with the key; one of another kind (bert, t5,
 * rwkv ...) is STATUS_UNSUPPORTED with its name.  Keeps no pointer into gguf. */
enum status tokenizer_create(struct tokenizer **tokenizer, const struct gguf *gguf, bool force_pre, struct error *error)
    STATUS_CHECKED;
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL allowed */

struct token_list {
    token_id *ids; /* owned */
    size_t count, capacity;
};
void token_list_deinit(struct token_list *list);
enum status token_list_append(struct token_list *list, token_id id, struct error *error) STATUS_CHECKED;

struct tokenize_options {
    bool add_special;   /* add BOS (and EOS) if the vocabulary asks for them */
    bool parse_special; /* the text of control tokens becomes those tokens; off for user text */
};

/* Appends the ids of text[length] (any bytes, fewer than 4 GiB) to list.  On failure the list keeps its old ids and
 * may have some of the new ones.  STATUS_MEMORY; STATUS_UNSUPPORTED: the vocabulary has neither a token for a byte
 * of the text nor an unknown token. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                             struct tokenize_options options, struct token_list *list, struct error *error)
    STATUS_CHECKED;

/* Parts of a text.  A chat template builds them, so that only the template can place control tokens. */
struct tokenize_part {
    token_id id;      /* that token; TOKEN_NONE: the text, where control tokens are plain text */
    const char *text; /* borrowed */
    size_t length;
};

/* Appends the ids of the parts in order, without BOS or EOS of its own.  Where SentencePiece puts a space
 * before a text (at the start, behind a token), a text that begins with one gets no second. */
enum status tokenizer_encode_parts(const struct tokenizer *tokenizer, const struct tokenize_part *parts, size_t count,
                                   struct token_list *list, struct error *error) STATUS_CHECKED;

/* The bytes of one token; none of a control token, unless special is set.  Writes at most capacity bytes and returns
 * the token's length in bytes. */
size_t tokenizer_piece(const struct tokenizer *tokenizer, token_id id, bool special, char *buffer, size_t capacity);

/* The text of a list: the inverse of encode.  *text is newly allocated, zero-terminated and may hold any bytes; length
 * may be NULL.  The space that encode puts before a text (SentencePiece) is removed.  STATUS_USAGE: an id is out of
 * range. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const token_id *ids, size_t count, bool special,
                             char **text, size_t *length, struct error *error) STATUS_CHECKED;

size_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer);
token_id tokenizer_bos(const struct tokenizer *tokenizer);
token_id tokenizer_eos(const struct tokenizer *tokenizer);
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
/* Whether id is a control token (BOS, the marks of a chat template ...).  Plain text never produces one. */
bool tokenizer_is_control(const struct tokenizer *tokenizer, token_id id);
/* Whether id ends an answer: eos, eot, eom and similar. */
bool tokenizer_is_end(const struct tokenizer *tokenizer, token_id id);
/* Those that no answer may have, [*count]; NULL: none. */
const token_id *tokenizer_suppressed(const struct tokenizer *tokenizer, size_t *count);
token_id tokenizer_find(const struct tokenizer *tokenizer, const char *text); /* TOKEN_NONE: absent */
