/* html: what a page says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* Whether bytes are a page, by how they begin. */
bool html_begins(const char *bytes, size_t length);
/* Appends the text of a page: what scripts, styles and other unseen elements hold is left out, paragraphs are parted by
 * an empty line.  is_xml: as a chapter of an EPUB is, without its title.  Nothing is appended of an empty one. */
enum status html_read(const char *bytes, size_t length, bool is_xml, struct text *text, struct error *error)
    STATUS_CHECKED;
