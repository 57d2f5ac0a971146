/* utf8: makes untrusted bytes (a model's tokens, a file's names) safe to print. */
#ifndef LOAM_CLI_UTF8_H
#define LOAM_CLI_UTF8_H

#include <stddef.h>

/* A newly allocated, zero-terminated copy with U+FFFD for every byte that is not well-formed, as JSON
 * needs it; NULL without memory. */
char *utf8_repair(const char *bytes, size_t length);

/* Writes bytes into buffer (zero-terminated, cut to fit with "...") so that a terminal shows them and does
 * nothing else: control characters as \n, \t or \xHH, what is not well-formed as \xHH. */
const char *utf8_escape(const char *bytes, size_t length, char *buffer, size_t buffer_bytes);

#endif
