/* A template as tokens, with white space as Jinja has it under trim_blocks and lstrip_blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/node_internal.h"

static enum status wrong(struct jinja_lexer *lexer, const char *what) {
    return error_set(lexer->error, STATUS_UNSUPPORTED, "tokenizer.chat_template, line %u: %s", lexer->line, what);
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }
static bool is_white(char c) { return is_blank(c) || c == '\n'; }
static bool begins_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void pass(struct jinja_lexer *lexer, size_t count) {
    for (; count > 0; count--)
        if (lexer->source[lexer->at++] == '\n') lexer->line++;
}

static bool is_next(const struct jinja_lexer *lexer, const char *mark) {
    const size_t length = strlen(mark);
    return lexer->length - lexer->at >= length && memcmp(lexer->source + lexer->at, mark, length) == 0;
}

/* ---- data ---- */

/* Where the next {{, {% or {# is; length: nowhere. */
static size_t find_mark(const struct jinja_lexer *lexer, size_t from) {
    for (size_t at = from; at + 1 < lexer->length; at++)
        if (lexer->source[at] == '{' && strchr("{%#", lexer->source[at + 1]) != NULL) return at;
    return lexer->length;
}

/* The end of data before the mark at `mark`, which takes white space away. */
static size_t data_end(const struct jinja_lexer *lexer, size_t begin, size_t mark) {
    size_t end = mark;
    if (mark >= lexer->length) return end;
    const char sign = mark + 2 < lexer->length ? lexer->source[mark + 2] : ' ';
    if (sign == '-') {
        while (end > begin && is_white(lexer->source[end - 1])) end--;
    } else if (sign != '+' && lexer->source[mark + 1] != '{') {
        size_t line = end;
        while (line > begin && is_blank(lexer->source[line - 1])) line--;
        const bool is_line_start = line > begin ? lexer->source[line - 1] == '\n' : lexer->line_is_starting;
        if (is_line_start) end = line;
    }
    return end;
}

/* Notes what follows %}, -%}, +%}, and the same of }} and #}. */
static void note_end(struct jinja_lexer *lexer, bool strips, bool trims) {
    lexer->strips = strips;
    lexer->trims = trims && !strips;
    lexer->line_is_starting = false;
}

static enum status pass_comment(struct jinja_lexer *lexer) {
    const char *end = memmem(lexer->source + lexer->at + 2, lexer->length - lexer->at - 2, "#}", 2);
    if (end == NULL) return wrong(lexer, "a comment has no end");
    const size_t at = (size_t)(end - lexer->source);
    const char before = at > lexer->at + 2 ? lexer->source[at - 1] : ' ';
    pass(lexer, at + 2 - lexer->at);
    note_end(lexer, before == '-', before != '+');
    return STATUS_OK;
}

/* What the tag before leaves out. */
static void pass_trimmed(struct jinja_lexer *lexer) {
    if (lexer->strips) {
        while (lexer->at < lexer->length && is_white(lexer->source[lexer->at])) {
            lexer->line_is_starting = lexer->source[lexer->at] == '\n';
            pass(lexer, 1);
        }
    } else if (lexer->trims && is_next(lexer, "\n")) {
        pass(lexer, 1);
        lexer->line_is_starting = true;
    }
    lexer->strips = lexer->trims = false;
}

static enum status data_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    pass_trimmed(lexer);
    const size_t begin = lexer->at, mark = find_mark(lexer, begin), end = data_end(lexer, begin, mark);
    *token = (struct jinja_token){
        .kind = TOKEN_DATA, .line = lexer->line, .text = lexer->source + begin, .length = end - begin};
    pass(lexer, mark - begin);
    if (token->length > 0) {
        lexer->line_is_starting = lexer->source[end - 1] == '\n';
        return STATUS_OK;
    }
    if (mark >= lexer->length) {
        token->kind = TOKEN_END;
        return STATUS_OK;
    }
    if (lexer->source[mark + 1] == '#') {
        TRY(pass_comment(lexer));
        return data_token(lexer, token);
    }
    token->kind = lexer->source[mark + 1] == '{' ? TOKEN_OUTPUT_BEGIN : TOKEN_BLOCK_BEGIN;
    token->text = "{";
    lexer->state = token->kind == TOKEN_OUTPUT_BEGIN ? LEXER_IN_OUTPUT : LEXER_IN_BLOCK;
    lexer->brackets = 0;
    pass(lexer, 2);
    if (lexer->at < lexer->length && strchr("-+", lexer->source[lexer->at]) != NULL && lexer->source[lexer->at] != '\0')
        pass(lexer, 1);
    return STATUS_OK;
}

/* ---- literals ---- */

static size_t put_code(char *to, uint32_t code) {
    if (code < 0x80) return to[0] = (char)code, 1;
    if (code < 0x800) return to[0] = (char)(0xC0 | code >> 6), to[1] = (char)(0x80 | (code & 0x3F)), 2;
    if (code < 0x10000) {
        to[0] = (char)(0xE0 | code >> 12);
        to[1] = (char)(0x80 | (code >> 6 & 0x3F));
        to[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    to[0] = (char)(0xF0 | code >> 18);
    to[1] = (char)(0x80 | (code >> 12 & 0x3F));
    to[2] = (char)(0x80 | (code >> 6 & 0x3F));
    to[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* \xhh, \uhhhh, \Uhhhhhhhh at text: the code point, and how many characters it takes; 0: none. */
static size_t read_escape(const char *text, size_t length, uint32_t *code) {
    const size_t digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    if (digits == 0 || length < 1 + digits) return 0;
    *code = 0;
    for (size_t i = 1; i <= digits; i++) {
        const char *hex = "0123456789abcdef", c = text[i];
        const char *found = memchr(hex, c >= 'A' && c <= 'F' ? c + 32 : c, 16);
        if (found == NULL) return 0;
        *code = *code * 16 + (uint32_t)(found - hex);
    }
    return *code <= 0x10FFFF && (*code < 0xD800 || *code > 0xDFFF) ? 1 + digits : 0;
}

/* The escapes of Python; an unknown one stays. */
static size_t unescape(char *to, const char *text, size_t length) {
    static const char from[] = "ntrbfav0\\'\"\n", into[] = "\n\t\r\b\f\a\v\0\\'\"";
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t code;
        if (text[i] != '\\' || i + 1 == length) {
            to[count++] = text[i];
            continue;
        }
        const char *known = memchr(from, text[i + 1], sizeof from - 1);
        const size_t used = known == NULL ? read_escape(text + i + 1, length - i - 1, &code) : 0;
        if (used > 0) {
            count += put_code(to + count, code);
            i += used;
        } else if (known != NULL) {
            if (*known != '\n') to[count++] = into[known - from];
            i++;
        } else {
            to[count++] = '\\';
        }
    }
    return count;
}

static enum status text_literal(struct jinja_lexer *lexer, struct jinja_token *token) {
    const char quote = lexer->source[lexer->at];
    size_t end = lexer->at + 1;
    while (end < lexer->length && lexer->source[end] != quote) end += lexer->source[end] == '\\' ? 2 : 1;
    if (end >= lexer->length) return wrong(lexer, "a text has no end");
    char *text = arena_allocate(lexer->arena, end - lexer->at);
    if (text == NULL) return error_set(lexer->error, STATUS_MEMORY, "no memory for the chat template");
    token->kind = TOKEN_TEXT_LITERAL;
    token->text = text;
    token->length = unescape(text, lexer->source + lexer->at + 1, end - lexer->at - 1);
    pass(lexer, end + 1 - lexer->at);
    return STATUS_OK;
}

static enum status number_literal(struct jinja_lexer *lexer, struct jinja_token *token) {
    char digits[64];
    size_t count = 0, at = lexer->at;
    bool is_real = false;
    for (; at < lexer->length && count + 1 < sizeof digits; at++) {
        const char c = lexer->source[at];
        const char next = at + 1 < lexer->length ? lexer->source[at + 1] : ' ';
        const bool is_point = c == '.' && !is_real && is_digit(next);
        const bool is_exponent = (c == 'e' || c == 'E') && count > 0 && memchr(digits, 'e', count) == NULL &&
                                 (is_digit(next) || next == '-' || next == '+');
        const bool is_sign = (c == '-' || c == '+') && count > 0 && digits[count - 1] == 'e';
        if (c == '_') continue;
        if (!is_digit(c) && !is_point && !is_exponent && !is_sign) break;
        is_real = is_real || is_point || is_exponent;
        digits[count++] = is_exponent ? 'e' : c;
    }
    digits[count] = '\0';
    errno = 0;
    token->kind = is_real ? TOKEN_FLOAT_LITERAL : TOKEN_INTEGER_LITERAL;
    if (is_real)
        token->real = strtod(digits, NULL);
    else
        token->integer = strtoll(digits, NULL, 10);
    if (errno == ERANGE || count + 1 == sizeof digits) return wrong(lexer, "a number is too large");
    pass(lexer, at - lexer->at);
    return STATUS_OK;
}

/* ---- expressions ---- */

static enum status word_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    size_t end = lexer->at;
    while (end < lexer->length && (begins_word(lexer->source[end]) || is_digit(lexer->source[end]))) end++;
    token->kind = TOKEN_WORD;
    token->length = end - lexer->at;
    token->text = arena_text(lexer->arena, lexer->source + lexer->at, token->length);
    if (token->text == NULL) return error_set(lexer->error, STATUS_MEMORY, "no memory for the chat template");
    pass(lexer, token->length);
    return STATUS_OK;
}

/* true: }} or %}, with its sign. */
static bool end_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    const bool in_block = lexer->state == LEXER_IN_BLOCK;
    const char *ends[] = {in_block ? "%}" : "}}", in_block ? "-%}" : "-}}", in_block ? "+%}" : "+}}"};
    if (lexer->brackets > 0) return false;
    for (size_t i = 0; i < 3; i++) {
        if (!is_next(lexer, ends[i])) continue;
        token->kind = in_block ? TOKEN_BLOCK_END : TOKEN_OUTPUT_END;
        token->text = "end";
        pass(lexer, strlen(ends[i]));
        note_end(lexer, i == 1, in_block && i != 2);
        lexer->state = LEXER_IN_DATA;
        return true;
    }
    return false;
}

static enum status mark_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    static const char *const marks[] = {"//", "**", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",",
                                        ".",  ":",  "|",  "~",  "+",  "-",  "*", "/", "%", "<", ">", "=", ";"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (!is_next(lexer, marks[i])) continue;
        token->kind = TOKEN_MARK;
        token->text = marks[i];
        token->length = strlen(marks[i]);
        if (strchr("([{", marks[i][0]) != NULL) lexer->brackets++;
        if (strchr(")]}", marks[i][0]) != NULL && lexer->brackets > 0) lexer->brackets--;
        pass(lexer, token->length);
        return STATUS_OK;
    }
    return wrong(lexer, "a character that has no meaning in an expression");
}

enum status jinja_next_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    if (lexer->state == LEXER_IN_DATA) return data_token(lexer, token);
    while (lexer->at < lexer->length && is_white(lexer->source[lexer->at])) pass(lexer, 1);
    *token = (struct jinja_token){.line = lexer->line};
    if (lexer->at == lexer->length) return wrong(lexer, "a tag has no end");
    const char c = lexer->source[lexer->at];
    if (end_token(lexer, token)) return STATUS_OK;
    if (begins_word(c)) return word_token(lexer, token);
    if (is_digit(c)) return number_literal(lexer, token);
    if (c == '"' || c == '\'') return text_literal(lexer, token);
    return mark_token(lexer, token);
}

/* {%- endraw -%} at `at`: its length; 0: not here. */
static size_t raw_end(const struct jinja_lexer *lexer, size_t at) {
    const size_t begin = at;
    at += 2;
    if (at < lexer->length && (lexer->source[at] == '-' || lexer->source[at] == '+')) at++;
    while (at < lexer->length && is_white(lexer->source[at])) at++;
    if (lexer->length - at < 6 || memcmp(lexer->source + at, "endraw", 6) != 0) return 0;
    at += 6;
    while (at < lexer->length && is_white(lexer->source[at])) at++;
    if (at < lexer->length && (lexer->source[at] == '-' || lexer->source[at] == '+')) at++;
    return lexer->length - at >= 2 && memcmp(lexer->source + at, "%}", 2) == 0 ? at + 2 - begin : 0;
}

enum status jinja_raw_token(struct jinja_lexer *lexer, struct jinja_token *token) {
    pass_trimmed(lexer);
    const size_t begin = lexer->at;
    for (size_t at = begin; at + 1 < lexer->length; at++) {
        if (lexer->source[at] != '{' || lexer->source[at + 1] != '%') continue;
        const size_t length = raw_end(lexer, at);
        if (length == 0) continue;
        *token = (struct jinja_token){.kind = TOKEN_DATA,
                                      .line = lexer->line,
                                      .text = lexer->source + begin,
                                      .length = data_end(lexer, begin, at) - begin};
        pass(lexer, at + length - begin);
        const char before = lexer->source[at + length - 3];
        note_end(lexer, before == '-', before != '+');
        return STATUS_OK;
    }
    return wrong(lexer, "{% raw %} has no end");
}
