#include "document/document.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "document/encoding.h"
#include "document/epub.h"
#include "document/html.h"
#include "document/mark.h"
#include "document/pdf.h"
#include "document/signature.h"

const char *document_format_name(enum document_format format) {
    static const char *const names[] = {
        [DOCUMENT_PLAIN] = "plain", [DOCUMENT_HTML] = "html", [DOCUMENT_PDF] = "pdf", [DOCUMENT_EPUB] = "epub"};
    return names[format];
}

static bool ends_as(const char *name, const char *ending) {
    const size_t length = strlen(name), own = strlen(ending);
    return length > own && strcasecmp(name + length - own, ending) == 0;
}

static bool is_page(const struct document_source *source) {
    return ends_as(source->name, ".html") || ends_as(source->name, ".htm") || ends_as(source->name, ".xhtml") ||
           html_begins(source->bytes, source->length);
}

static enum document_format format_of(const struct document_source *source) {
    if (source->length >= 5 && memcmp(source->bytes, "%PDF-", 5) == 0) return DOCUMENT_PDF;
    if (epub_is(source->bytes, source->length)) return DOCUMENT_EPUB;
    return source->encoding == NULL && is_page(source) ? DOCUMENT_HTML : DOCUMENT_PLAIN;
}

/* ---- plain text ---- */

static size_t line_of(const char *bytes, size_t at) {
    size_t line = 1;
    for (const char *c = bytes; (c = memchr(c, '\n', at - (size_t)(c - bytes))) != NULL; c++) line++;
    return line;
}

/* Of what is no text, what it looks like. */
static enum status refuse(const struct signature *signature, struct error *error) {
    const char *way_out = signature->way_out;
    return error_set(error, STATUS_USAGE, "is %s, no text%s%s", signature->what, way_out != NULL ? ": " : "",
                     way_out != NULL ? way_out : "");
}

static enum status find_encoding(const struct document_source *source, const char **encoding, size_t *mark,
                                 struct error *error) {
    const char *bytes = source->bytes;
    *encoding = encoding_of_mark(bytes, source->length, mark);
    if (source->encoding != NULL) {
        const char *named = encoding_find(source->encoding, strlen(source->encoding));
        if (named == NULL)
            return error_set(error, STATUS_USAGE, "encoding: found '%.40s', expected one of %s", source->encoding,
                             encoding_names());
        const bool agrees = *encoding != NULL && strncmp(named, *encoding, 6) == 0; /* UTF-16 of either order */
        if (!agrees) *encoding = named, *mark = 0;
    }
    if (*encoding != NULL) return STATUS_OK;
    *encoding = encoding_of_zeros(bytes, source->length);
    if (*encoding != NULL) return STATUS_OK;
    const char *zero = source->length > 0 ? memchr(bytes, '\0', source->length) : NULL;
    const size_t valid = encoding_utf8_length(bytes, source->length);
    const struct signature *signature = signature_find(bytes, source->length);
    *encoding = "UTF-8";
    if (signature != NULL && (signature->is_text || zero != NULL || valid < source->length))
        return refuse(signature, error);
    if (zero != NULL) return error_set(error, STATUS_USAGE, "is no text: byte %zu is zero", (size_t)(zero - bytes) + 1);
    if (valid == source->length) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "is no UTF-8: byte %zu, 0x%02X in line %zu; say what it is, as in --encoding latin1 (utf-8: "
                     "replace such bytes)",
                     valid + 1, (unsigned char)bytes[valid], line_of(bytes, valid));
}

static enum status read_plain(const struct document_source *source, struct document *document, struct text *text,
                              struct error *error) {
    const char *encoding;
    size_t mark;
    TRY(find_encoding(source, &encoding, &mark, error));
    TRY(encoding_decode(encoding, source->bytes + mark, source->length - mark, text, error));
    if (text->length > 0 && !text->failed && memchr(text->bytes, '\0', text->length) != NULL)
        return error_set(error, STATUS_USAGE, "is no text in %s: it has zeros", encoding);
    if (strcmp(encoding, "UTF-8") != 0)
        snprintf(document->note, sizeof document->note, "read as %s", encoding);
    else if (mark > 0)
        snprintf(document->note, sizeof document->note, "read without its byte order mark");
    return STATUS_OK;
}

/* ---- all formats ---- */

/* Only loam sets marks of parts; and a program may write zeros. */
static void take_marks_out(struct text *text) {
    for (size_t i = 0; i < text->length; i++)
        if (text->bytes[i] == MARK_PART || text->bytes[i] == '\0') text->bytes[i] = ' ';
}

static void count_marks(struct document *document) {
    for (size_t i = 0; i < document->length; i++) {
        document->pages += document->text[i] == MARK_PAGE;
        document->chapters += document->text[i] == MARK_PART;
    }
    const enum document_format format = document->format;
    if (format == DOCUMENT_HTML) snprintf(document->note, sizeof document->note, "read as HTML");
    if (format == DOCUMENT_PDF) snprintf(document->note, sizeof document->note, "a PDF, pages: %zu", document->pages);
    if (format == DOCUMENT_EPUB)
        snprintf(document->note, sizeof document->note, "an EPUB, chapters: %zu", document->chapters);
}

static enum status read_format(const struct document_source *source, struct document *document, size_t bytes_max,
                               struct text *text, struct error *error) {
    enum status status = STATUS_OK;
    switch (document->format) {
    case DOCUMENT_PLAIN: status = read_plain(source, document, text, error); break;
    case DOCUMENT_HTML: status = html_read(source->bytes, source->length, false, text, error); break;
    case DOCUMENT_PDF: status = pdf_read(source->bytes, source->length, bytes_max, text, error); break;
    case DOCUMENT_EPUB: return epub_read(source->bytes, source->length, bytes_max, text, error);
    }
    if (status == STATUS_OK && !text->failed) take_marks_out(text);
    return status;
}

enum status document_read(struct document *document, const struct document_source *source, struct error *error) {
    struct text text = {0};
    const size_t bytes_max = source->text_bytes_max > 0 ? source->text_bytes_max : DOCUMENT_TEXT_BYTES_MAX;
    struct error reason = {0};
    *document = (struct document){.format = format_of(source)};
    enum status status = read_format(source, document, bytes_max, &text, &reason);
    text_append(&text, "", 0); /* terminated, also where there is none */
    if (status == STATUS_OK && text.failed) status = error_set(&reason, STATUS_MEMORY, "no memory for its text");
    if (status == STATUS_OK && document->format != DOCUMENT_PLAIN && text.length > bytes_max)
        status = error_set(&reason, STATUS_USAGE, "has more than %zu bytes of text", bytes_max);
    if (status != STATUS_OK) {
        text_deinit(&text);
        return error_set(error, status, "%s: %s", source->name, reason.message);
    }
    document->text = text.bytes;
    document->length = text.length;
    count_marks(document);
    return STATUS_OK;
}

void document_deinit(struct document *document) {
    free(document->text);
    *document = (struct document){0};
}
