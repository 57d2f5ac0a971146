/* pdf: the text of a PDF, by poppler's pdftotext.
 *
 * A program and not a library: a PDF is the most hostile of these formats, and a process of its own can be bounded and
 * can crash; its library would bring cairo, fonts and C++ to whoever never reads one. */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* Appends; each page ends with its mark (mark.h).  STATUS_USAGE: pdftotext is not installed, does not manage it, or
 * finds no text; the message goes on behind the file's name. */
enum status pdf_read(const char *bytes, size_t length, size_t text_bytes_max, struct text *text, struct error *error)
    STATUS_CHECKED;
