#include "token/unicode.h"

#include <string.h>

#include <utf8proc.h>

/* RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF. */
size_t utf8_sequence_length(const uint8_t *text, size_t end, size_t at) {
    const uint8_t *p = text + at;
    size_t left = end - at;
    uint8_t lead = p[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (left < length) return 0;
    uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return length;
}

struct unicode_character unicode_decode(const uint8_t *text, size_t end, size_t at) {
    if (at >= end) return (struct unicode_character){0, 0};
    const uint8_t *p = text + at;
    if (p[0] < 0x80) return (struct unicode_character){p[0], 1};
    switch (utf8_sequence_length(text, end, at)) {
    case 2: return (struct unicode_character){(p[0] & 0x1FU) << 6 | (p[1] & 0x3FU), 2};
    case 3: return (struct unicode_character){(p[0] & 0x0FU) << 12 | (p[1] & 0x3FU) << 6 | (p[2] & 0x3FU), 3};
    case 4:
        return (struct unicode_character){
            (p[0] & 0x07U) << 18 | (p[1] & 0x3FU) << 12 | (p[2] & 0x3FU) << 6 | (p[3] & 0x3FU), 4};
    default: return (struct unicode_character){UNICODE_REPLACEMENT, 1};
    }
}

size_t utf8_encode(uint32_t code, uint8_t bytes[UTF8_BYTES_MAX]) {
    if (code < 0x80) {
        bytes[0] = (uint8_t)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = length - 1; i > 0; i--, code >>= 6) bytes[i] = (uint8_t)(0x80 | (code & 0x3F));
    bytes[0] = (uint8_t)(lead[length] | code);
    return length;
}

static bool is_space(uint32_t code) { /* the property White_Space, 25 characters */
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

static unsigned class_of_category(utf8proc_category_t category) {
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return UNICODE_UPPER;
    case UTF8PROC_CATEGORY_LL: return UNICODE_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return UNICODE_UNCASED;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return UNICODE_MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return UNICODE_NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return UNICODE_PUNCTUATION;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return UNICODE_SYMBOL;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return UNICODE_SEPARATOR;
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: break;
    }
    return UNICODE_OTHER;
}

/* Most text is mostly ASCII, and the call into utf8proc is most of the cost of a scan. */
#define O UNICODE_OTHER
#define W (UNICODE_OTHER | UNICODE_SPACE)
#define N (UNICODE_OTHER | UNICODE_SPACE | UNICODE_NEWLINE)
#define B (UNICODE_SEPARATOR | UNICODE_SPACE)
#define P UNICODE_PUNCTUATION
#define S UNICODE_SYMBOL
#define D UNICODE_NUMBER
#define U UNICODE_UPPER
#define L UNICODE_LOWER
// clang-format off
const uint16_t unicode_ascii_classes[128] = {
    O, O, O, O, O, O, O, O, O, W, N, W, W, N, O, O, /* 00 */
    O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, /* 10 */
    B, P, P, P, S, P, P, P, P, P, P, S, P, P, P, P, /* 20 */
    D, D, D, D, D, D, D, D, D, D, P, P, S, S, S, P, /* 30 */
    P, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, /* 40 */
    U, U, U, U, U, U, U, U, U, U, U, P, P, P, S, P, /* 50 */
    S, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, /* 60 */
    L, L, L, L, L, L, L, L, L, L, L, P, S, P, S, O, /* 70 */
};
// clang-format on
#undef O
#undef W
#undef N
#undef B
#undef P
#undef S
#undef D
#undef U
#undef L

unsigned unicode_classes(uint32_t code) {
    if (code < 128) return unicode_ascii_classes[code];
    unsigned classes = class_of_category(utf8proc_category((utf8proc_int32_t)code));
    return is_space(code) ? classes | UNICODE_SPACE : classes;
}

/* Whether held[count] is a proper prefix of a valid sequence. */
static bool is_prefix(const uint8_t *held, size_t count) {
    static const uint8_t fill[] = {0x80, 0x90, 0xA0, 0xBF};
    uint8_t trial[UTF8_BYTES_MAX];
    if (count == 0 || count >= UTF8_BYTES_MAX) return false;
    /* Only the second byte has special ranges; one of these values is inside each. */
    for (size_t f = 0; f < sizeof fill; f++) {
        memset(trial, 0x80, sizeof trial);
        memcpy(trial, held, count);
        if (count == 1) trial[1] = fill[f];
        if (utf8_sequence_length(trial, sizeof trial, 0) > count) return true;
    }
    return false;
}

static size_t emit(const struct utf8_stream *stream, const uint8_t *bytes, size_t length, char *output) {
    if (stream->replace && utf8_sequence_length(bytes, length, 0) == 0)
        return utf8_encode(UNICODE_REPLACEMENT, (uint8_t *)output);
    memcpy(output, bytes, length);
    return length;
}

size_t utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t length, char *output) {
    size_t written = 0;
    for (size_t i = 0; i < length; i++) {
        stream->held[stream->held_count++] = (uint8_t)bytes[i];
        while (stream->held_count > 0 && !is_prefix(stream->held, stream->held_count)) {
            size_t take = utf8_sequence_length(stream->held, stream->held_count, 0);
            if (take == 0) take = 1; /* can never become a character */
            written += emit(stream, stream->held, take, output + written);
            stream->held_count -= take;
            memmove(stream->held, stream->held + take, stream->held_count);
        }
    }
    return written;
}

size_t utf8_stream_finish(struct utf8_stream *stream, char *output) {
    size_t written = 0;
    for (size_t i = 0; i < stream->held_count; i++) written += emit(stream, stream->held + i, 1, output + written);
    stream->held_count = 0;
    return written;
}
