/* Texts with a mark for each byte: who wrote it. */
#include <string.h>

#include <utf8proc.h>

#include "jinja/jinja_internal.h"

static bool mark_of(const struct jinja_text *text, size_t at) {
    return text->marks != NULL ? text->marks[at] != 0 : text->by_template;
}

struct jinja_value jinja_text_value(struct jinja_run *run, const char *bytes, size_t length, bool by_template) {
    struct jinja_text *text = jinja_allocate(run, sizeof *text);
    if (text == NULL) return jinja_undefined(NULL);
    *text = (struct jinja_text){.bytes = bytes, .length = length, .by_template = by_template};
    return (struct jinja_value){.kind = JINJA_TEXT, .text = text};
}

struct jinja_value jinja_text_word(struct jinja_run *run, const char *word) {
    return jinja_text_value(run, word, strlen(word), true);
}

struct jinja_value jinja_text_cut(struct jinja_run *run, const struct jinja_text *text, size_t begin, size_t end) {
    struct jinja_text *cut = jinja_allocate(run, sizeof *cut);
    if (cut == NULL) return jinja_undefined(NULL);
    *cut = *text;
    if (end < begin) end = begin;
    cut->bytes += begin;
    if (cut->marks != NULL) cut->marks += begin;
    cut->length = end - begin;
    return (struct jinja_value){.kind = JINJA_TEXT, .text = cut};
}

bool jinja_text_is(const struct jinja_text *text, const char *word) {
    return text->length == strlen(word) && memcmp(text->bytes, word, text->length) == 0;
}

/* ---- the builder ---- */

/* false: failed. */
static bool reserve(struct jinja_builder *builder, size_t length) {
    if (!jinja_charge_bytes(builder->run, length)) return false;
    if (length <= builder->capacity - builder->length) return true;
    const size_t capacity = 2 * builder->capacity + length + 32;
    char *bytes = jinja_allocate(builder->run, capacity);
    uint8_t *marks = builder->marks != NULL ? jinja_allocate(builder->run, capacity) : NULL;
    if (bytes == NULL || (builder->marks != NULL && marks == NULL)) return false;
    if (builder->length > 0) memcpy(bytes, builder->bytes, builder->length);
    if (marks != NULL) memcpy(marks, builder->marks, builder->length);
    builder->bytes = bytes;
    builder->marks = marks;
    builder->capacity = capacity;
    return true;
}

/* From here on each byte has its mark. */
static bool mix(struct jinja_builder *builder) {
    if (builder->marks != NULL) return true;
    builder->marks = jinja_allocate(builder->run, builder->capacity);
    if (builder->marks == NULL) return false;
    memset(builder->marks, builder->by_template, builder->length);
    return true;
}

void jinja_put(struct jinja_builder *builder, const char *bytes, size_t length, bool by_template) {
    if (length == 0 || !reserve(builder, length)) return;
    if (builder->length == 0 && builder->marks == NULL) builder->by_template = by_template;
    if (builder->marks == NULL && builder->by_template != by_template && !mix(builder)) return;
    memcpy(builder->bytes + builder->length, bytes, length);
    if (builder->marks != NULL) memset(builder->marks + builder->length, by_template, length);
    builder->length += length;
}

void jinja_reserve(struct jinja_builder *builder, size_t length) {
    builder->bytes = jinja_allocate(builder->run, length);
    if (builder->bytes != NULL) builder->capacity = length;
}

void jinja_put_word(struct jinja_builder *builder, const char *word) { jinja_put(builder, word, strlen(word), true); }

void jinja_put_text(struct jinja_builder *builder, const struct jinja_text *text, size_t begin, size_t end) {
    if (end <= begin) return;
    if (text->marks == NULL) {
        jinja_put(builder, text->bytes + begin, end - begin, text->by_template);
        return;
    }
    if (!reserve(builder, end - begin) || !mix(builder)) return;
    memcpy(builder->bytes + builder->length, text->bytes + begin, end - begin);
    memcpy(builder->marks + builder->length, text->marks + begin, end - begin);
    builder->length += end - begin;
}

struct jinja_value jinja_built(struct jinja_builder *builder) {
    struct jinja_text *text = jinja_allocate(builder->run, sizeof *text);
    if (text == NULL) return jinja_undefined(NULL);
    *text = (struct jinja_text){.bytes = builder->length > 0 ? builder->bytes : "",
                                .marks = builder->marks,
                                .length = builder->length,
                                .by_template = builder->by_template || builder->length == 0};
    return (struct jinja_value){.kind = JINJA_TEXT, .text = text};
}

/* ---- characters: what is no UTF-8 is one character a byte ---- */

size_t jinja_character(const struct jinja_text *text, size_t at, int32_t *code) {
    const utf8proc_ssize_t length =
        utf8proc_iterate((const utf8proc_uint8_t *)text->bytes + at, (utf8proc_ssize_t)(text->length - at), code);
    if (length > 0) return (size_t)length;
    *code = -1;
    return 1;
}

size_t jinja_character_bytes(const struct jinja_text *text, size_t at) {
    int32_t code;
    return jinja_character(text, at, &code);
}

size_t jinja_text_characters(const struct jinja_text *text) {
    size_t count = 0;
    for (size_t at = 0; at < text->length; at += jinja_character_bytes(text, at)) count++;
    return count;
}

size_t jinja_text_offset(const struct jinja_text *text, size_t character) {
    size_t at = 0;
    while (at < text->length && character-- > 0) at += jinja_character_bytes(text, at);
    return at;
}

/* What Python's str.isspace says. */
bool jinja_is_space(int32_t code) {
    return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

static bool has_character(const struct jinja_text *characters, int32_t code) {
    int32_t other;
    if (characters == NULL) return jinja_is_space(code);
    for (size_t at = 0; at < characters->length; at += jinja_character(characters, at, &other))
        if ((jinja_character(characters, at, &other), other) == code && code >= 0) return true;
    return false;
}

struct jinja_value jinja_text_strip(struct jinja_run *run, const struct jinja_text *text,
                                    const struct jinja_text *characters, bool left, bool right) {
    size_t begin = 0, end = 0;
    bool has_begun = !left;
    if (!jinja_charge_bytes(run, text->length * (characters != NULL ? 8 * characters->length : 1)))
        return jinja_undefined(NULL);
    for (size_t at = 0; at < text->length;) {
        int32_t code;
        const size_t next = at + jinja_character(text, at, &code);
        if (has_character(characters, code)) {
            if (!has_begun) begin = next;
        } else {
            has_begun = true;
            end = next;
        }
        at = next;
    }
    if (!right) end = text->length;
    return jinja_text_cut(run, text, begin, end);
}

/* ---- case ---- */

static int32_t convert(int32_t code, enum jinja_case how, bool is_first, bool is_word_start) {
    if (code < 0) return code;
    switch (how) {
    case JINJA_UPPER: return utf8proc_toupper(code);
    case JINJA_LOWER: return utf8proc_tolower(code);
    case JINJA_CAPITALIZE: return is_first ? utf8proc_totitle(code) : utf8proc_tolower(code);
    case JINJA_TITLE:
    case JINJA_TITLE_WORDS: return is_word_start ? utf8proc_totitle(code) : utf8proc_tolower(code);
    }
    return code;
}

static bool is_letter(int32_t code) {
    const utf8proc_category_t category = code >= 0 ? utf8proc_category(code) : UTF8PROC_CATEGORY_CN;
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

/* What begins a word for the filter `title`: [-\s({\[<] before it. */
static bool parts_words(int32_t code) {
    return jinja_is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
}

struct jinja_value jinja_text_case(struct jinja_run *run, const struct jinja_text *text, enum jinja_case how) {
    struct jinja_builder builder = {.run = run};
    bool starts = true;
    if (!jinja_charge_bytes(run, 8 * text->length)) return jinja_undefined(NULL);
    for (size_t at = 0; at < text->length && !jinja_failed(run);) {
        int32_t code;
        const size_t length = jinja_character(text, at, &code);
        const int32_t other = convert(code, how, at == 0, starts);
        utf8proc_uint8_t encoded[4];
        if (other == code || other < 0)
            jinja_put(&builder, text->bytes + at, length, mark_of(text, at));
        else
            jinja_put(&builder, (const char *)encoded, (size_t)utf8proc_encode_char(other, encoded), mark_of(text, at));
        starts = how == JINJA_TITLE ? !is_letter(code) : parts_words(code);
        at += length;
    }
    return jinja_built(&builder);
}

/* ---- parts ---- */

size_t jinja_text_find(struct jinja_run *run, const struct jinja_text *text, const struct jinja_text *wanted,
                       size_t from) {
    if (from > text->length) return SIZE_MAX;
    const char *found = memmem(text->bytes + from, text->length - from, wanted->bytes, wanted->length);
    const size_t at = found != NULL ? (size_t)(found - text->bytes) : SIZE_MAX;
    return jinja_charge_bytes(run, (found != NULL ? at : text->length) - from + wanted->length) ? at : SIZE_MAX;
}

struct jinja_value jinja_text_replace(struct jinja_run *run, const struct jinja_text *text,
                                      const struct jinja_text *old, const struct jinja_text *new_text,
                                      int64_t count_max) {
    struct jinja_builder builder = {.run = run};
    size_t at = 0, from = 0;
    for (int64_t n = 0; (count_max < 0 || n < count_max) && jinja_charge(run, 1); n++) {
        const size_t found = jinja_text_find(run, text, old, from);
        if (found == SIZE_MAX) break;
        jinja_put_text(&builder, text, at, found);
        jinja_put_text(&builder, new_text, 0, new_text->length);
        at = from = found + old->length;
        if (old->length > 0) continue;
        if (from == text->length) break;
        from += jinja_character_bytes(text, from); /* between all characters */
    }
    jinja_put_text(&builder, text, at, text->length);
    return jinja_built(&builder);
}
