/* epub: the chapters of an EPUB, in the order of reading. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* A ZIP archive that says so. */
bool epub_is(const char *bytes, size_t length);
/* Appends the chapters' text, each before a mark (mark.h).  Files of the spine without text are no chapters.
 * text_bytes_max bounds what is unpacked.  STATUS_USAGE: damaged, protected, or without any text. */
enum status epub_read(const char *bytes, size_t length, size_t text_bytes_max, struct text *text, struct error *error)
    STATUS_CHECKED;
