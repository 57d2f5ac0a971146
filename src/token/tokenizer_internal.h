/* The vocabulary as encode and decode use it, and how it is built from arrays.
 *
 * Every token has two texts: the one in the file (`text`: SentencePiece writes a space as U+2581, byte-level
 * BPE writes every byte as a printable character) and the bytes that it stands for (`bytes`).  Encoding
 * works on bytes throughout; `text` is for look-ups by name and for reading merges.
 */
#pragma once

#include <stdatomic.h>

#include "base/arena.h"
#include "token/pre_tokenizer_internal.h"
#include "token/tokenizer.h"

enum token_type { /* the values of tokenizer.ggml.token_type */
                  TOKEN_UNDEFINED,
                  TOKEN_NORMAL,
                  TOKEN_UNKNOWN,
                  TOKEN_CONTROL,
                  TOKEN_USER_DEFINED,
                  TOKEN_UNUSED,
                  TOKEN_BYTE,
                  TOKEN_TYPE_COUNT
};

/* BPE: of bytes.  CHARACTER_BPE (gemma4): of characters, with SentencePiece's spaces and byte tokens. */
enum tokenizer_model { TOKENIZER_SPM, TOKENIZER_BPE, TOKENIZER_CHARACTER_BPE };

enum {
    TOKEN_TEXT_BYTES_MAX = 16384,  /* of one token */
    SPECIAL_TEXT_BYTES_MAX = 1024, /* of one that texts are searched for: bounds a look-up */
    TOKENIZER_ENDS_MAX = 32,
};

/* Tokens that stand for no text, in range or TOKEN_NONE, and what is put around a text. */
struct token_rules {
    token_id bos, eos, unknown;
    token_id ends[TOKENIZER_ENDS_MAX];
    size_t end_count;
    bool adds_bos, adds_eos, adds_space_prefix, removes_extra_spaces;
};

/* The arrays that a vocabulary is made from; borrowed, and only read by tokenizer_build. */
struct tokenizer_source {
    enum tokenizer_model model;
    const struct gguf_string *tokens; /* [token_count] */
    uint64_t token_count;             /* 1 .. INT32_MAX */
    const uint8_t *types;             /* [token_count], enum token_type; NULL: derived from the texts */
    const float *scores;              /* [token_count]; SPM only */
    const struct gguf_string *merges; /* [merge_count] "left right", best first; not SPM */
    uint64_t merge_count;
    const struct pre_tokenizer_name *pre; /* not SPM */
    struct token_rules rules;             /* ends: eot and eom, which end an answer beside eos */
};

struct vocabulary_token {
    size_t text, bytes; /* offsets into tokenizer.texts */
    uint32_t text_length, byte_length;
    uint32_t rank; /* SPM: 0 is the best score; equal scores have equal ranks */
    uint8_t type;
};

/* A hash table of token ids, by open addressing.  A power of two of slots; TOKEN_NONE: free. */
struct token_table {
    token_id *slots;
    size_t mask;
};

struct merge_rule {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    token_id merged; /* TOKEN_NONE: the slot is free */
};

struct special_list { /* ids in the order of their bytes, for longest-match look-up */
    token_id *ids;
    size_t count;
    bool starts[256]; /* by first byte */
};

/* Open addressing. */
struct merge_table {
    struct merge_rule *rules; /* [mask + 1] */
    size_t mask;
};

struct tokenizer {
    struct arena arena; /* owns all below */
    enum tokenizer_model model;
    size_t token_count;
    struct vocabulary_token *tokens; /* [token_count] */
    const char *texts;
    uint64_t hash_seed;                        /* differs per run, so that no file can force collisions */
    struct token_table by_text;                /* all tokens */
    struct token_table by_bytes;               /* those that merging may produce */
    size_t byte_length_max;                    /* of those */
    struct merge_table merges;                 /* BPE */
    token_id byte_tokens[256];                 /* TOKEN_NONE: the vocabulary has none */
    struct special_list user_defined, special; /* special: control, unknown and user-defined */
    const struct pre_tokenizer *pre_tokenizer; /* NULL: SPM */
    bool ignore_merges;
    bool splits_at_spaces; /* SPM: no token has a space after another character */
    /* [token_count] whether merging a token's own bytes yields that token: 0 not yet known, 1 yes, 2 no.
     * Each value is computed from constant data, so any thread may store it; relaxed is enough. */
    _Atomic uint8_t *whole;
    struct token_rules rules; /* ends: all tokens that end an answer, each once */
    token_id *suppressed;     /* [suppressed_count] */
    size_t suppressed_count;
};

/* Builds from arrays. STATUS_MODEL names the key at fault, STATUS_MEMORY. */
enum status tokenizer_build(struct tokenizer **tokenizer, const struct tokenizer_source *source, struct error *error)
    STATUS_CHECKED;

static inline const char *token_bytes(const struct tokenizer *t, token_id id) { return t->texts + t->tokens[id].bytes; }

/* TOKEN_NONE where absent. */
token_id vocabulary_find_bytes(const struct tokenizer *t, const uint8_t *bytes, size_t length);
/* merged is TOKEN_NONE if no merge joins the two. */
struct merge_rule vocabulary_find_merge(const struct tokenizer *t, token_id left, token_id right);
/* The longest token of the list that begins text[length]; TOKEN_NONE: none. */
token_id special_match(const struct tokenizer *t, const struct special_list *list, const uint8_t *text, size_t length);
/* The UTF-8 character for a byte; returns its length. */
size_t byte_level_encode(uint8_t byte, uint8_t bytes[4]);

/* Workspace for merging the pieces of one text; reused from piece to piece. */
struct merge_symbol {
    token_id id;             /* TOKEN_NONE: no token has exactly this text (SPM) */
    token_id merged;         /* of this with the next */
    uint32_t rank;           /* of that merge; MERGE_NONE: none */
    uint32_t previous, next; /* byte offsets are indices; next is the piece's length at the end */
};

struct merge_scratch {
    struct merge_symbol *symbols; /* [capacity] */
    uint64_t *heap;               /* [2 * heap_capacity] */
    size_t capacity, heap_capacity;
};

void merge_scratch_deinit(struct merge_scratch *scratch);

/* Appends the tokens of one piece, 0 < length < UINT32_MAX. */
enum status merge_piece(const struct tokenizer *t, const uint8_t *text, size_t length, struct merge_scratch *scratch,
                        struct token_list *list, struct error *error) STATUS_CHECKED;
