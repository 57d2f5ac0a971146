/* pre_tokenizer: cuts text into the pieces inside which byte-level BPE merges.
 *
 * The model families publish a regular expression each (or several, applied one after the other, each to
 * the pieces of the one before).  Here every expression is a hand-written scanner: a function that, at the
 * start of a piece, returns its end.  Text that no alternative matches is a piece of its own up to the next
 * match, as in Hugging Face's Split(behavior="isolated").  A scanner looks at each character a bounded
 * number of times, so a whole text takes linear time whatever it holds; nothing recurses.
 * tests/token/test_pre_tokenizer.c compares every scanner with its published expression under PCRE2.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PRE_TOKENIZER_STAGES_MAX = 6 };

/* The part of a text that a stage sees.  Look-ahead stops at end. */
struct text_view {
    const uint8_t *text;
    size_t end;
};

/* at < view->end: the start of a piece.  Returns its end, > at and <= view->end. */
typedef size_t pre_tokenizer_scan(const struct text_view *view, size_t at);

struct pre_tokenizer {
    const char *family;
    pre_tokenizer_scan *stages[PRE_TOKENIZER_STAGES_MAX]; /* NULL after the last */
};

/* A value of tokenizer.ggml.pre, its pre-tokenizer, and the settings it implies. */
struct pre_tokenizer_name {
    const char *name;
    const struct pre_tokenizer *pre_tokenizer;
    bool ignore_merges; /* a piece that is a token becomes that token, whatever the merges say */
    bool adds_bos;      /* unless tokenizer.ggml.add_bos_token says otherwise */
};

const struct pre_tokenizer_name *pre_tokenizer_find(const char *name, size_t length); /* NULL: unknown */

struct pre_tokenizer_cursor {
    const struct pre_tokenizer *pre_tokenizer;
    struct text_view view;
    size_t at;
    size_t stage_count;
    size_t ends[PRE_TOKENIZER_STAGES_MAX + 1]; /* [0] the text, [k] the piece of stage k that holds at */
};

void pre_tokenizer_begin(struct pre_tokenizer_cursor *cursor, const struct pre_tokenizer *pre_tokenizer,
                         const uint8_t *text, size_t length);
/* The next piece is text[*start .. *end).  false: the end of the text. */
bool pre_tokenizer_next(struct pre_tokenizer_cursor *cursor, size_t *start, size_t *end);

/* The scanners (pre_tokenizer_scan.c).  The expression of each stands above its definition. */
pre_tokenizer_scan scan_llama3, scan_qwen2, scan_qwen35, scan_gpt2, scan_tekken, scan_gpt4o, scan_deepseek3,
    scan_numbers, scan_number, scan_numbers_by_three, scan_digits_by_three, scan_byte_digits, scan_newline, scan_lines,
    scan_deepseek_cased, scan_deepseek_punctuation, scan_space_tail, scan_deepseek_ideographs,
    scan_deepseek3_ideographs, scan_letters, scan_punctuation, scan_falcon_punctuation, scan_default_punctuation;
