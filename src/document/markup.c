#include "document/markup.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "document/reference_names.h"

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }

/* ---- references ---- */

/* What the numbers 0x80 to 0x9F stand for: windows-1252. */
static const uint16_t upper_controls[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                            0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                            0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                            0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

static void add_point(struct text *text, uint32_t point) {
    utf8proc_uint8_t bytes[4];
    if (point >= 0x80 && point < 0xA0) point = upper_controls[point - 0x80];
    if (point == 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) point = 0xFFFD;
    const utf8proc_ssize_t count = utf8proc_encode_char((utf8proc_int32_t)point, bytes);
    text_append(text, (const char *)bytes, count > 0 ? (size_t)count : 0);
}

/* &#12; or &#xC;, from behind the '#': bytes that were taken; 0: it is none. */
static size_t decode_number(const char *bytes, size_t length, struct text *text) {
    const bool is_hex = length > 0 && (bytes[0] == 'x' || bytes[0] == 'X');
    const size_t begin = is_hex ? 1 : 0;
    uint32_t point = 0;
    size_t at = begin;
    for (; at < length; at++) {
        const char c = bytes[at];
        uint32_t digit;
        if (is_digit(c))
            digit = (uint32_t)(c - '0');
        else if (is_hex && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')))
            digit = (uint32_t)((c | 0x20) - 'a') + 10;
        else
            break;
        if (point <= 0x10FFFF) point = point * (is_hex ? 16 : 10) + digit;
    }
    if (at == begin) return 0;
    add_point(text, point);
    return at + (at < length && bytes[at] == ';' ? 1 : 0);
}

static const char *find_name(const char *name, size_t length) {
    size_t begin = 0, end = reference_name_count;
    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        const char *own = reference_names[middle].name;
        const int order = strncmp(own, name, length);
        if (order == 0 && own[length] == '\0') return reference_names[middle].text;
        if (order < 0)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

/* The longest name that there is, from behind the '&': bytes that were taken; 0: none. */
static size_t decode_name(const char *bytes, size_t length, struct text *text) {
    enum { NAME_BYTES_MAX = 32 };
    size_t end = 0;
    while (end < length && end < NAME_BYTES_MAX && (is_letter(bytes[end]) || is_digit(bytes[end]))) end++;
    if (end < length && end < NAME_BYTES_MAX && bytes[end] == ';') end++;
    for (; end > 1; end--) {
        const char *found = find_name(bytes, end);
        if (found == NULL) continue;
        text_add(text, found);
        return end;
    }
    return 0;
}

void markup_decode(const char *bytes, size_t length, struct text *text) {
    for (size_t at = 0; at < length;) {
        const char *next = memchr(bytes + at, '&', length - at);
        const size_t plain = next != NULL ? (size_t)(next - bytes) - at : length - at;
        text_append(text, bytes + at, plain);
        at += plain;
        if (at == length) return;
        const size_t rest = length - at - 1;
        const size_t taken = rest > 0 && bytes[at + 1] == '#' ? decode_number(bytes + at + 2, rest - 1, text)
                                                              : decode_name(bytes + at + 1, rest, text);
        if (taken == 0)
            text_append(text, bytes + at++, 1);
        else
            at += 1 + taken + (bytes[at + 1] == '#' ? 1 : 0);
    }
}

/* ---- tags ---- */

bool markup_is(const struct markup_token *token, const char *name) {
    return strlen(name) == token->name_length && strncasecmp(token->name, name, token->name_length) == 0;
}

/* Behind the value that begins at `at`, behind the '='. */
static size_t value_end(const char *bytes, size_t length, size_t at) {
    while (at < length && is_space(bytes[at])) at++;
    if (at < length && (bytes[at] == '"' || bytes[at] == '\'')) {
        const char *end = memchr(bytes + at + 1, bytes[at], length - at - 1);
        return end != NULL ? (size_t)(end - bytes) + 1 : length;
    }
    while (at < length && !is_space(bytes[at]) && bytes[at] != '>') at++;
    return at;
}

/* Where the '>' of the tag is whose name ends at `at`; length: nowhere. */
static size_t tag_end(const char *bytes, size_t length, size_t at) {
    while (at < length && bytes[at] != '>') at = bytes[at] == '=' ? value_end(bytes, length, at + 1) : at + 1;
    return at;
}

bool markup_attribute(const struct markup_token *token, const char *name, struct text *value) {
    const char *bytes = token->bytes;
    const size_t wanted = strlen(name);
    for (size_t at = 0; at < token->length;) {
        while (at < token->length && (is_space(bytes[at]) || bytes[at] == '/')) at++;
        const size_t begin = at;
        while (at < token->length && !is_space(bytes[at]) && bytes[at] != '=' && bytes[at] != '/') at++;
        const size_t length = at - begin;
        while (at < token->length && is_space(bytes[at])) at++;
        const bool has_value = at < token->length && bytes[at] == '=';
        size_t from = has_value ? at + 1 : at;
        size_t end = has_value ? value_end(bytes, token->length, from) : at;
        const size_t next = end;
        if (length == wanted && strncasecmp(bytes + begin, name, wanted) == 0) {
            while (from < end && is_space(bytes[from])) from++;
            if (end - from >= 2 && (bytes[from] == '"' || bytes[from] == '\'') && bytes[end - 1] == bytes[from])
                from++, end--;
            markup_decode(bytes + from, end - from, value);
            return true;
        }
        at = next > begin ? next : begin + 1;
    }
    return false;
}

/* Elements of HTML whose text has no tags. */
static bool is_raw(const struct markup_token *token) {
    static const char *const names[] = {"script", "style", "title", "textarea", "iframe", "noembed", "noframes", "xmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (markup_is(token, names[i])) return true;
    return false;
}

/* Where "</NAME" begins, from `at` on; length: nowhere. */
static size_t raw_end(const struct markup_reader *reader, size_t at) {
    while (at < reader->length) {
        const char *next = memchr(reader->bytes + at, '<', reader->length - at);
        if (next == NULL) break;
        at = (size_t)(next - reader->bytes);
        const size_t behind = at + 2 + reader->raw_length;
        if (behind <= reader->length && next[1] == '/' && strncasecmp(next + 2, reader->raw, reader->raw_length) == 0 &&
            (behind == reader->length || !(is_letter(reader->bytes[behind]) || is_digit(reader->bytes[behind]))))
            return at;
        at++;
    }
    return reader->length;
}

static void take_text(struct markup_reader *reader, struct markup_token *token, size_t end) {
    *token =
        (struct markup_token){.kind = MARKUP_TEXT, .bytes = reader->bytes + reader->at, .length = end - reader->at};
    reader->at = end;
}

/* The tag at `at`, whose name begins behind `intro` bytes; false: it does not end. */
static bool take_tag(struct markup_reader *reader, struct markup_token *token, size_t intro) {
    const char *bytes = reader->bytes;
    size_t begin = reader->at + intro, at = begin;
    while (at < reader->length && !is_space(bytes[at]) && bytes[at] != '>' && bytes[at] != '/') {
        if (bytes[at] == ':' && at + 1 < reader->length) begin = at + 1; /* a prefix of XML's */
        at++;
    }
    const size_t end = tag_end(bytes, reader->length, at);
    if (end == reader->length) return false;
    *token = (struct markup_token){.kind = intro == 1 ? MARKUP_OPEN : MARKUP_CLOSE,
                                   .bytes = bytes + at,
                                   .length = end - at,
                                   .name = bytes + begin,
                                   .name_length = at - begin,
                                   .is_empty = end > at && bytes[end - 1] == '/'};
    reader->at = end + 1;
    reader->raw = NULL;
    if (token->kind == MARKUP_OPEN && !reader->is_xml && is_raw(token)) {
        reader->raw = token->name;
        reader->raw_length = token->name_length;
    }
    return true;
}

static bool begins(const struct markup_reader *reader, const char *word) {
    const size_t length = strlen(word);
    return reader->length - reader->at >= length && memcmp(reader->bytes + reader->at, word, length) == 0;
}

/* Behind `word`, from `from` bytes behind the reader's place on; the end: nowhere. */
static size_t behind(const struct markup_reader *reader, size_t from, const char *word) {
    const size_t at = reader->at + from;
    if (at >= reader->length) return reader->length;
    const char *found = memmem(reader->bytes + at, reader->length - at, word, strlen(word));
    return found != NULL ? (size_t)(found - reader->bytes) + strlen(word) : reader->length;
}

/* What begins with "<!" or "<?": true: it was text. */
static bool take_declaration(struct markup_reader *reader, struct markup_token *token) {
    if (begins(reader, "<![CDATA[")) {
        const size_t end = behind(reader, 9, "]]>");
        const bool is_closed = end >= 3 && memcmp(reader->bytes + end - 3, "]]>", 3) == 0 && end - reader->at >= 12;
        *token = (struct markup_token){.kind = MARKUP_VERBATIM,
                                       .bytes = reader->bytes + reader->at + 9,
                                       .length = end - reader->at - 9 - (is_closed ? 3 : 0)};
        reader->at = end;
        return true;
    }
    if (begins(reader, "<!-->") || begins(reader, "<!--->"))
        reader->at = behind(reader, 0, ">");
    else
        reader->at = begins(reader, "<!--") ? behind(reader, 4, "-->") : behind(reader, 2, ">");
    return false;
}

bool markup_next(struct markup_reader *reader, struct markup_token *token) {
    while (reader->at < reader->length) {
        const char *bytes = reader->bytes;
        const size_t rest = reader->length - reader->at;
        if (reader->raw != NULL) {
            const size_t end = raw_end(reader, reader->at);
            reader->raw = NULL;
            if (end == reader->at) continue; /* its end tag */
            take_text(reader, token, end);
            return true;
        }
        const char next = rest > 1 && bytes[reader->at] == '<' ? bytes[reader->at + 1] : '\0';
        if (next == '!' || next == '?') {
            if (take_declaration(reader, token)) return true;
            continue;
        }
        const bool closes = next == '/' && rest > 2 && is_letter(bytes[reader->at + 2]);
        if (closes || is_letter(next)) {
            if (take_tag(reader, token, closes ? 2 : 1)) return true;
            reader->at = reader->length; /* a tag that the end cuts is none */
            return false;
        }
        const char *tag = memchr(bytes + reader->at + 1, '<', rest - 1);
        take_text(reader, token, tag != NULL ? (size_t)(tag - bytes) : reader->length);
        return true;
    }
    return false;
}
