#include "document/html.h"

#include <string.h>
#include <strings.h>

#include "document/encoding.h"
#include "document/markup.h"

/* ---- the encoding ---- */

enum { HEAD_BYTES = 1024 };

/* "...charset=NAME": of a meta element, in one attribute or inside another. */
static const char *encoding_of_charset(const char *text, size_t length) {
    size_t at = 0;
    while (at < length && strchr("\"' \t", text[at]) != NULL) at++;
    const size_t begin = at;
    while (at < length && strchr("\"'; \t/>", text[at]) == NULL) at++;
    return encoding_find(text + begin, at - begin);
}

/* What the page says itself, <meta charset> or <?xml encoding?>, in its first bytes; NULL: nothing that is known. */
static const char *encoding_of_head(const char *bytes, size_t length) {
    static const char *const fields[] = {"charset=", "encoding="};
    const size_t head = length < HEAD_BYTES ? length : HEAD_BYTES;
    for (size_t f = 0; f < 2; f++) {
        const size_t field = strlen(fields[f]);
        for (size_t at = 0; at + field < head; at++)
            if (strncasecmp(bytes + at, fields[f], field) == 0)
                return encoding_of_charset(bytes + at + field, head - at - field);
    }
    return NULL;
}

/* What is UTF-8 is read as that, whatever it says. */
static const char *encoding_of_page(const char *bytes, size_t length) {
    if (encoding_utf8_length(bytes, length) == length) return "UTF-8";
    const char *said = encoding_of_head(bytes, length);
    return said != NULL && strncmp(said, "UTF-16", 6) != 0 ? said : "WINDOWS-1252";
}

/* ---- elements ---- */

static bool is_one_of(const struct markup_token *token, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (markup_is(token, names[i])) return true;
    return false;
}
#define IS_ONE_OF(token, names) is_one_of(token, names, sizeof names / sizeof *names)

static const char *const unseen[] = {"script",  "style",    "template", "noscript", "iframe",
                                     "noembed", "noframes", "svg",      "object",   "rp"};
static const char *const paragraphs[] = {"p",     "h1",         "h2",  "h3",     "h4",      "h5",
                                         "h6",    "title",      "hr",  "ul",     "ol",      "dl",
                                         "table", "blockquote", "pre", "figure", "section", "article"};
static const char *const lines[] = {"div",    "li",   "tr",      "dt",         "dd",      "br",     "header",
                                    "footer", "main", "nav",     "aside",      "address", "form",   "fieldset",
                                    "option", "body", "caption", "figcaption", "summary", "details"};
static const char *const cells[] = {"td", "th"};

struct writing {
    struct text *text;
    size_t begin;       /* of the page in text */
    size_t breaks;      /* line ends before what comes next */
    bool is_apart;      /* a blank before what comes next */
    size_t pre;         /* depth: blanks stay */
    const char *hidden; /* [hidden_length] the unseen element that is open; NULL: none */
    size_t hidden_length, hidden_depth;
};

static void want_breaks(struct writing *writing, size_t breaks) {
    if (writing->breaks < breaks) writing->breaks = breaks;
}

/* A run without blanks. */
static void write_run(struct writing *writing, const char *bytes, size_t length) {
    struct text *text = writing->text;
    const bool is_first = text->length == writing->begin;
    if (!is_first && writing->breaks > 0)
        text_append(text, "\n\n", writing->breaks);
    else if (!is_first && writing->is_apart)
        text_append(text, " ", 1);
    writing->breaks = 0;
    writing->is_apart = false;
    text_append(text, bytes, length);
}

static void write_text(struct writing *writing, const char *bytes, size_t length) {
    static const char blanks[] = " \t\n\r\f";
    if (writing->pre > 0) {
        if (length > 0) write_run(writing, bytes, length);
        return;
    }
    for (size_t at = 0; at < length;) {
        const size_t begin = at;
        while (at < length && (bytes[at] == '\0' || strchr(blanks, bytes[at]) == NULL)) at++;
        if (at > begin) write_run(writing, bytes + begin, at - begin);
        const size_t blank = at;
        while (at < length && bytes[at] != '\0' && strchr(blanks, bytes[at]) != NULL) at++;
        writing->is_apart = writing->is_apart || at > blank;
    }
}

/* true: the tag belongs to an element that nobody sees. */
static bool hide(struct writing *writing, const struct markup_token *token, bool is_xml) {
    if (writing->hidden == NULL) {
        if (token->kind != MARKUP_OPEN || !(IS_ONE_OF(token, unseen) || (is_xml && markup_is(token, "head"))))
            return false;
        if (token->is_empty && (is_xml || markup_is(token, "svg"))) return true;
        writing->hidden = token->name;
        writing->hidden_length = token->name_length;
        writing->hidden_depth = 1;
        return true;
    }
    if (token->name_length == writing->hidden_length &&
        strncasecmp(token->name, writing->hidden, token->name_length) == 0 && !token->is_empty) {
        writing->hidden_depth += token->kind == MARKUP_OPEN ? 1 : -(size_t)1;
        if (writing->hidden_depth == 0) writing->hidden = NULL;
    }
    return true;
}

static void write_tag(struct writing *writing, const struct markup_token *token) {
    const bool opens = token->kind == MARKUP_OPEN;
    if (IS_ONE_OF(token, paragraphs)) want_breaks(writing, 2);
    if (markup_is(token, "br") && opens && writing->breaks > 0) want_breaks(writing, 2);
    if (IS_ONE_OF(token, lines)) want_breaks(writing, 1);
    if (opens && markup_is(token, "li")) write_run(writing, "-", 1), writing->is_apart = true;
    if (opens && IS_ONE_OF(token, cells) && writing->breaks == 0 && writing->text->length > writing->begin)
        write_run(writing, "\t", 1), writing->is_apart = false;
    if (!markup_is(token, "pre") || token->is_empty) return;
    if (opens)
        writing->pre++;
    else if (writing->pre > 0)
        writing->pre--;
}

static void write_page(const struct text *page, bool is_xml, struct text *text, struct text *decoded) {
    struct markup_reader reader = {.bytes = page->bytes, .length = page->length, .is_xml = is_xml};
    struct writing writing = {.text = text, .begin = text->length};
    struct markup_token token;
    while (markup_next(&reader, &token)) {
        if (token.kind == MARKUP_OPEN || token.kind == MARKUP_CLOSE) {
            if (!hide(&writing, &token, is_xml)) write_tag(&writing, &token);
        } else if (writing.hidden == NULL) {
            text_clear(decoded);
            if (token.kind == MARKUP_TEXT)
                markup_decode(token.bytes, token.length, decoded);
            else
                text_append(decoded, token.bytes, token.length);
            write_text(&writing, decoded->bytes, decoded->length);
        }
    }
    if (text->length > writing.begin) text_append(text, "\n", 1);
    for (size_t i = writing.begin; i < text->length && !text->failed; i++)
        if (strchr("\f\v", text->bytes[i]) != NULL) text->bytes[i] = ' '; /* zeros and marks (mark.h) */
}

bool html_begins(const char *bytes, size_t length) {
    static const char *const words[] = {"<!doctype html", "<html", "<head", "<body"};
    size_t at = 0;
    for (;;) { /* blanks, and what may come first: a comment, <?xml ...?> */
        while (at < length && strchr(" \t\r\n", bytes[at]) != NULL && bytes[at] != '\0') at++;
        const bool is_comment = length - at >= 4 && memcmp(bytes + at, "<!--", 4) == 0;
        if (!is_comment && !(length - at >= 5 && memcmp(bytes + at, "<?xml", 5) == 0)) break;
        const char *end = memmem(bytes + at, length - at, is_comment ? "-->" : "?>", is_comment ? 3 : 2);
        if (end == NULL) return false;
        at = (size_t)(end - bytes) + (is_comment ? 3 : 2);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t word = strlen(words[i]);
        if (length - at > word && strncasecmp(bytes + at, words[i], word) == 0 &&
            strchr(" \t\r\n>", bytes[at + word]) != NULL)
            return true;
    }
    return false;
}

enum status html_read(const char *bytes, size_t length, bool is_xml, struct text *text, struct error *error) {
    struct text page = {0}, decoded = {0};
    size_t mark;
    const char *encoding = encoding_of_mark(bytes, length, &mark);
    if (encoding == NULL) encoding = encoding_of_zeros(bytes, length);
    if (encoding == NULL) encoding = encoding_of_page(bytes, length);
    enum status status = encoding_decode(encoding, bytes + mark, length - mark, &page, error);
    if (status == STATUS_OK && !page.failed && page.length > 0) write_page(&page, is_xml, text, &decoded);
    if (status == STATUS_OK && (page.failed || text->failed || decoded.failed))
        status = error_set(error, STATUS_MEMORY, "no memory for a page's text");
    text_deinit(&page);
    text_deinit(&decoded);
    return status;
}
