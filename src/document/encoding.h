/* encoding: text of other encodings as UTF-8.  Converted by iconv, of the encodings of a table alone: a page may name
 * any, and not all converters of a C library were made for strangers' bytes. */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* iconv's name of an encoding, by any of its usual names, upper or lower case; NULL: it is not in the table. */
const char *encoding_find(const char *name, size_t length);
/* Their names, separated by commas. */
const char *encoding_names(void);

/* That of a byte order mark, of *mark_bytes bytes; NULL: there is none. */
const char *encoding_of_mark(const char *bytes, size_t length, size_t *mark_bytes);
/* "UTF-16LE" or "UTF-16BE" where the bytes are nothing else; NULL. */
const char *encoding_of_zeros(const char *bytes, size_t length);

/* Where the first bytes are that are no UTF-8; length: nowhere. */
size_t encoding_utf8_length(const char *bytes, size_t length);
/* Appends; encoding is of encoding_find.  What it does not have becomes U+FFFD. */
enum status encoding_decode(const char *encoding, const char *bytes, size_t length, struct text *text,
                            struct error *error) STATUS_CHECKED;
