/* unicode: UTF-8 and the character classes that pre-tokenizers speak of.
 *
 * Categories are those of libutf8proc (2.8: Unicode 15.0).  Bytes that are not UTF-8 are not an error:
 * each such byte is one character of class SYMBOL (as U+FFFD would be), so that every byte string can be
 * tokenized and comes back byte for byte.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every character has exactly one of the first nine bits; SPACE and NEWLINE are additional. */
enum unicode_class {
    UNICODE_UPPER = 1 << 0,       /* Lu, Lt */
    UNICODE_LOWER = 1 << 1,       /* Ll */
    UNICODE_UNCASED = 1 << 2,     /* Lm, Lo */
    UNICODE_MARK = 1 << 3,        /* Mn, Mc, Me */
    UNICODE_NUMBER = 1 << 4,      /* Nd, Nl, No */
    UNICODE_PUNCTUATION = 1 << 5, /* Pc, Pd, Ps, Pe, Pi, Pf, Po */
    UNICODE_SYMBOL = 1 << 6,      /* Sm, Sc, Sk, So; bytes that are not UTF-8 */
    UNICODE_SEPARATOR = 1 << 7,   /* Zs, Zl, Zp: all of them are SPACE too */
    UNICODE_OTHER = 1 << 8,       /* Cc, Cf, Cs, Co, Cn */
    UNICODE_SPACE = 1 << 9,       /* White_Space: the \s of the published patterns */
    UNICODE_NEWLINE = 1 << 10,    /* CR and LF only */
};

enum {
    UNICODE_LETTER = UNICODE_UPPER | UNICODE_LOWER | UNICODE_UNCASED,
    UNICODE_REPLACEMENT = 0xFFFD,
    UTF8_BYTES_MAX = 4,
};

/* One character of text. */
struct unicode_character {
    uint32_t code;   /* UNICODE_REPLACEMENT for a byte that is not UTF-8 */
    uint32_t length; /* bytes, 1..4; 0 only at the end of the text */
};

/* The character at text[at]; length 0 when at >= end. */
struct unicode_character unicode_decode(const uint8_t *text, size_t end, size_t at);

/* Length 1..4 of the valid UTF-8 sequence at text[at], 0 when there is none (at < end). */
size_t utf8_sequence_length(const uint8_t *text, size_t end, size_t at);

/* Writes 1..4 bytes and returns how many.  code must be a scalar value. */
size_t utf8_encode(uint32_t code, uint8_t bytes[UTF8_BYTES_MAX]);

unsigned unicode_classes(uint32_t code); /* bits of enum unicode_class; never 0 */
extern const uint16_t unicode_ascii_classes[128];

/* Takes bytes cut anywhere (a token may end inside a character) and gives whole characters.  Holds back at most three
 * bytes.  Bytes that can never become a character pass unchanged, or as U+FFFD with replace. */
struct utf8_stream {
    uint8_t held[UTF8_BYTES_MAX];
    size_t held_count;
    bool replace; /* set by the caller: each invalid byte becomes U+FFFD (for JSON) */
};

/* The most bytes that utf8_stream_push writes for length bytes of input. */
static inline size_t utf8_stream_bound(size_t length) { return 3 * (length + UTF8_BYTES_MAX); }

/* Writes what is complete to output, which has utf8_stream_bound(length) bytes; returns its length. */
size_t utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t length, char *output);

/* At the end: writes what was held back, as it is or replaced, at most utf8_stream_bound(0) bytes. */
size_t utf8_stream_finish(struct utf8_stream *stream, char *output);
