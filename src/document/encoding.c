#include "document/encoding.h"

#include <errno.h>
#include <iconv.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

/* The first name is the one that is shown.  What pages call latin1 is windows-1252. */
static const struct {
    const char *name, *converter;
} table[] = {
    {"utf-8", "UTF-8"},
    {"utf8", "UTF-8"},
    {"us-ascii", "UTF-8"},
    {"utf-16", "UTF-16LE"},
    {"utf-16le", "UTF-16LE"},
    {"utf-16be", "UTF-16BE"},
    {"latin1", "WINDOWS-1252"},
    {"latin-1", "WINDOWS-1252"},
    {"iso-8859-1", "WINDOWS-1252"},
    {"iso8859-1", "WINDOWS-1252"},
    {"windows-1252", "WINDOWS-1252"},
    {"cp1252", "WINDOWS-1252"},
    {"iso-8859-2", "ISO-8859-2"},
    {"latin2", "ISO-8859-2"},
    {"iso-8859-15", "ISO-8859-15"},
    {"latin9", "ISO-8859-15"},
    {"windows-1250", "WINDOWS-1250"},
    {"windows-1251", "WINDOWS-1251"},
    {"koi8-r", "KOI8-R"},
    {"shift_jis", "SHIFT_JIS"},
    {"euc-jp", "EUC-JP"},
    {"euc-kr", "EUC-KR"},
    {"gb18030", "GB18030"},
    {"gbk", "GB18030"},
    {"gb2312", "GB18030"},
    {"big5", "BIG5"},
};

const char *encoding_find(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == length && strncasecmp(table[i].name, name, length) == 0) return table[i].converter;
    return NULL;
}

const char *encoding_names(void) {
    return "utf-8, utf-16le, utf-16be, latin1, latin2, latin9, windows-1250, windows-1251, windows-1252, "
           "koi8-r, "
           "shift_jis, euc-jp, euc-kr, gb18030, big5";
}

const char *encoding_of_mark(const char *bytes, size_t length, size_t *mark_bytes) {
    static const struct {
        const char *mark;
        size_t length;
        const char *converter;
    } marks[] = {{"\xEF\xBB\xBF", 3, "UTF-8"}, {"\xFF\xFE", 2, "UTF-16LE"}, {"\xFE\xFF", 2, "UTF-16BE"}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        if (length < marks[i].length || memcmp(bytes, marks[i].mark, marks[i].length) != 0) continue;
        *mark_bytes = marks[i].length;
        return marks[i].converter;
    }
    *mark_bytes = 0;
    return NULL;
}

/* Units of two bytes, the byte `high` the upper one: most are ASCII's, and each is a character of a text. */
static bool is_wide_text(const unsigned char *bytes, size_t length, size_t high) {
    size_t plain = 0, half = 0; /* half: a surrogate waits for its second */
    for (size_t i = 0; i < length; i += 2) {
        const unsigned unit = (unsigned)bytes[i + high] << 8 | bytes[i + 1 - high];
        const bool is_second = unit >= 0xDC00 && unit < 0xE000;
        if (is_second != (half == 1)) return false;
        half = unit >= 0xD800 && unit < 0xDC00;
        if ((unit < ' ' && strchr("\t\n\r\f", (int)unit) == NULL) || unit == 0 || unit >= 0xFFFE) return false;
        plain += unit < 0x80;
    }
    return half == 0 && plain >= length / 2 - length / 16;
}

const char *encoding_of_zeros(const char *bytes, size_t length) {
    enum { UNITS_MIN = 32 };
    const unsigned char *own = (const unsigned char *)bytes;
    if (length < 2 * UNITS_MIN || length % 2 != 0) return NULL;
    if (is_wide_text(own, length, 1)) return "UTF-16LE";
    return is_wide_text(own, length, 0) ? "UTF-16BE" : NULL;
}

size_t encoding_utf8_length(const char *bytes, size_t length) {
    const utf8proc_uint8_t *own = (const utf8proc_uint8_t *)bytes;
    size_t at = 0;
    while (at < length) {
        if (own[at] < 0x80) {
            at++;
            continue;
        }
        utf8proc_int32_t point;
        const size_t rest = length - at;
        const utf8proc_ssize_t count = utf8proc_iterate(own + at, (utf8proc_ssize_t)(rest < 4 ? rest : 4), &point);
        if (count <= 0) return at;
        at += (size_t)count;
    }
    return length;
}

static void add_unknown(struct text *text) { text_add(text, "\xEF\xBF\xBD"); }

static void decode_utf8(const char *bytes, size_t length, struct text *text) {
    for (size_t at = 0; at < length;) {
        const size_t valid = encoding_utf8_length(bytes + at, length - at);
        text_append(text, bytes + at, valid);
        at += valid;
        if (at < length) add_unknown(text), at++;
    }
}

static void decode(iconv_t converter, const char *bytes, size_t length, size_t unit, struct text *text) {
    char *in = (char *)bytes, block[4096];
    while (length > 0 && !text->failed) {
        char *out = block;
        size_t room = sizeof block;
        const size_t converted = iconv(converter, &in, &length, &out, &room);
        const int failed = errno;
        text_append(text, block, sizeof block - room);
        if (converted != (size_t)-1 || failed == E2BIG) continue;
        const size_t skipped = length < unit ? length : unit;
        add_unknown(text);
        in += skipped, length -= skipped;
        (void)iconv(converter, NULL, NULL, NULL, NULL);
    }
}

enum status encoding_decode(const char *encoding, const char *bytes, size_t length, struct text *text,
                            struct error *error) {
    if (strcmp(encoding, "UTF-8") == 0) {
        decode_utf8(bytes, length, text);
        return STATUS_OK;
    }
    const iconv_t converter = iconv_open("UTF-8", encoding);
    if (converter == (iconv_t)-1)
        return error_set(error, STATUS_UNSUPPORTED, "this system's iconv does not know %s", encoding);
    decode(converter, bytes, length, strncmp(encoding, "UTF-16", 6) == 0 ? 2 : 1, text);
    iconv_close(converter);
    return STATUS_OK;
}
