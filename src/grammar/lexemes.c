/* lexemes: strings, numbers and whitespace of JSON (RFC 8259), byte by byte. */
#include "grammar/grammar_internal.h"

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
    return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : -1;
}

static enum string_state text_next(uint8_t byte) {
    if (byte == '"') return STRING_CLOSED;
    if (byte == '\\') return STRING_ESCAPE;
    if (byte < 0x20) return STRING_WRONG;
    if (byte < 0x80) return STRING_TEXT;
    if (byte < 0xC2) return STRING_WRONG; /* a continuation, or an overlong character */
    if (byte < 0xE0) return STRING_ONE_MORE;
    if (byte < 0xF0) return byte == 0xE0 ? STRING_AFTER_E0 : byte == 0xED ? STRING_AFTER_ED : STRING_TWO_MORE;
    if (byte > 0xF4) return STRING_WRONG;
    return byte == 0xF0 ? STRING_AFTER_F0 : byte == 0xF4 ? STRING_AFTER_F4 : STRING_THREE_MORE;
}

static enum string_state escape_next(uint8_t byte) {
    switch (byte) {
    case 'u': return STRING_HEX_1;
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return STRING_TEXT;
    }
    return STRING_WRONG;
}

/* The four digits of \uXXXX. */
static enum string_state hex_next(enum string_state state, int digit) {
    if (digit < 0) return STRING_WRONG;
    switch ((int)state) {
    case STRING_HEX_1: return digit == 0 ? STRING_HEX_2_ZERO : digit == 0xD ? STRING_HEX_2_D : STRING_HEX_2;
    case STRING_HEX_2: return STRING_HEX_3;
    case STRING_HEX_3: return STRING_HEX_4;
    case STRING_HEX_4: return STRING_TEXT;
    case STRING_HEX_2_ZERO: return digit == 0 ? STRING_HEX_3_ZERO : STRING_HEX_3;
    case STRING_HEX_3_ZERO: return digit == 0 ? STRING_HEX_4_ZERO : STRING_HEX_4;
    case STRING_HEX_4_ZERO: return digit == 0 ? STRING_WRONG : STRING_TEXT;
    case STRING_HEX_2_D: return digit < 8 ? STRING_HEX_3 : digit < 12 ? STRING_HEX_3_HIGH : STRING_WRONG;
    case STRING_HEX_3_HIGH: return STRING_HEX_4_HIGH;
    case STRING_HEX_4_HIGH: return STRING_LOW_BACKSLASH;
    case STRING_LOW_1: return digit == 0xD ? STRING_LOW_2 : STRING_WRONG;
    case STRING_LOW_2: return digit >= 12 ? STRING_HEX_3 : STRING_WRONG;
    }
    return STRING_WRONG;
}

static enum string_state between(uint8_t byte, uint8_t first, uint8_t last, enum string_state next) {
    return byte >= first && byte <= last ? next : STRING_WRONG;
}

enum string_state string_next(enum string_state state, uint8_t byte) {
    switch (state) {
    case STRING_TEXT: return text_next(byte);
    case STRING_ONE_MORE: return between(byte, 0x80, 0xBF, STRING_TEXT);
    case STRING_TWO_MORE: return between(byte, 0x80, 0xBF, STRING_ONE_MORE);
    case STRING_AFTER_E0: return between(byte, 0xA0, 0xBF, STRING_ONE_MORE);
    case STRING_AFTER_ED: return between(byte, 0x80, 0x9F, STRING_ONE_MORE);
    case STRING_THREE_MORE: return between(byte, 0x80, 0xBF, STRING_TWO_MORE);
    case STRING_AFTER_F0: return between(byte, 0x90, 0xBF, STRING_TWO_MORE);
    case STRING_AFTER_F4: return between(byte, 0x80, 0x8F, STRING_TWO_MORE);
    case STRING_ESCAPE: return escape_next(byte);
    case STRING_LOW_BACKSLASH: return byte == '\\' ? STRING_LOW_U : STRING_WRONG;
    case STRING_LOW_U: return byte == 'u' ? STRING_LOW_1 : STRING_WRONG;
    case STRING_HEX_1:
    case STRING_HEX_2:
    case STRING_HEX_3:
    case STRING_HEX_4:
    case STRING_HEX_2_ZERO:
    case STRING_HEX_3_ZERO:
    case STRING_HEX_4_ZERO:
    case STRING_HEX_2_D:
    case STRING_HEX_3_HIGH:
    case STRING_HEX_4_HIGH:
    case STRING_LOW_1:
    case STRING_LOW_2: return hex_next(state, hex_digit(byte));
    case STRING_CLOSED:
    case STRING_WRONG: break;
    }
    return STRING_WRONG;
}

/* So many digits, and every reader has the same number: below 2^63, and far from infinity. */
enum { INTEGER_DIGITS_MAX = 16, FRACTION_DIGITS_MAX = 16, EXPONENT_DIGITS_MAX = 2 };

static enum number_state count_digit(uint32_t *digits, uint32_t max, enum number_state state) {
    if (*digits >= max) return NUMBER_WRONG;
    (*digits)++;
    return state;
}

static enum number_state after_integer(uint32_t *digits, uint8_t byte, bool only_integer) {
    if (only_integer) return NUMBER_WRONG;
    *digits = 0;
    return byte == '.' ? NUMBER_POINT : byte == 'e' || byte == 'E' ? NUMBER_E : NUMBER_WRONG;
}

enum number_state number_next(enum number_state state, uint32_t *digits, uint8_t byte, bool only_integer) {
    const bool is_digit = byte >= '0' && byte <= '9';
    switch (state) {
    case NUMBER_BEGIN:
        *digits = 0;
        if (byte == '-') return NUMBER_MINUS;
        __attribute__((fallthrough));
    case NUMBER_MINUS:
        if (byte == '0') return NUMBER_ZERO;
        return is_digit ? count_digit(digits, INTEGER_DIGITS_MAX, NUMBER_INTEGER) : NUMBER_WRONG;
    case NUMBER_ZERO: return after_integer(digits, byte, only_integer);
    case NUMBER_INTEGER:
        if (is_digit) return count_digit(digits, INTEGER_DIGITS_MAX, NUMBER_INTEGER);
        return after_integer(digits, byte, only_integer);
    case NUMBER_POINT: return is_digit ? count_digit(digits, FRACTION_DIGITS_MAX, NUMBER_FRACTION) : NUMBER_WRONG;
    case NUMBER_FRACTION:
        if (is_digit) return count_digit(digits, FRACTION_DIGITS_MAX, NUMBER_FRACTION);
        *digits = 0;
        return byte == 'e' || byte == 'E' ? NUMBER_E : NUMBER_WRONG;
    case NUMBER_E:
        if (byte == '+' || byte == '-') return NUMBER_SIGN;
        __attribute__((fallthrough));
    case NUMBER_SIGN:
    case NUMBER_EXPONENT: return is_digit ? count_digit(digits, EXPONENT_DIGITS_MAX, NUMBER_EXPONENT) : NUMBER_WRONG;
    case NUMBER_WRONG: break;
    }
    return NUMBER_WRONG;
}

bool number_is_complete(enum number_state state) {
    return state == NUMBER_ZERO || state == NUMBER_INTEGER || state == NUMBER_FRACTION || state == NUMBER_EXPONENT;
}

uint8_t space_next(uint8_t state, uint8_t byte) {
    if ((state == SPACE_NONE || state == SPACE_SHORT) && byte == ' ') return SPACE_OVER;
    if (state == SPACE_NONE && byte == '\n') return SPACE_LINE;
    if (state >= SPACE_LINE && state < SPACE_LINE + SPACE_INDENT_MAX && (byte == ' ' || byte == '\t'))
        return (uint8_t)(state + 1);
    return SPACE_WRONG;
}
