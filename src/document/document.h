/* document: a file's bytes as text for a model, with marks where its pages, chapters and files begin (mark.h).
 *
 *   plain text  UTF-8, with or without a byte order mark; UTF-16 by its mark, or where nothing else is possible; other
 *               encodings where they are named.  Markdown, source code, CSV ... are plain text and stay as they are
 *   HTML        its text, as a browser without scripts and pictures shows it
 *   PDF         by poppler's pdftotext, a process of its own, where it is installed
 *   EPUB        its chapters in the order of reading
 *
 * Whatever else the bytes are, the error says what they look like and what to do.  The bytes may be anybody's: the
 * memory and the time are bounded by their length and by text_bytes_max.  Thread-safe. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* More than any file of text has; what a decoder makes of a file ends there. */
#define DOCUMENT_TEXT_BYTES_MAX ((size_t)256 << 20)

enum document_format { DOCUMENT_PLAIN, DOCUMENT_HTML, DOCUMENT_PDF, DOCUMENT_EPUB };
const char *document_format_name(enum document_format format); /* "plain", "html", ... */

struct document_source {
    const char *name; /* the file's: errors begin with it, and .html counts */
    const char *bytes;
    size_t length;
    /* What encodings the text has ("latin1", ...): then HTML, too, is plain text, and what the encoding does not have
     * becomes U+FFFD.  NULL: found. */
    const char *encoding;
    size_t text_bytes_max; /* 0: DOCUMENT_TEXT_BYTES_MAX */
};

struct document {
    enum document_format format;
    char *text; /* owned, [length], zero-terminated: UTF-8 without zeros */
    size_t length;
    size_t pages, chapters; /* marks */
    char note[48];          /* for people: how the bytes were read; "": they are the text */
};

/* STATUS_USAGE: it is no text, or a text of other bytes than the encoding has, or what reads it is not installed. */
enum status document_read(struct document *document, const struct document_source *source, struct error *error)
    STATUS_CHECKED;
void document_deinit(struct document *document);
