/* utf8: makes untrusted bytes (a model's tokens, a file's names) safe to print. */
#pragma once

#include <stddef.h>

/* Writes bytes into buffer (zero-terminated, cut to fit with "...") so that a terminal only shows them: control
 * characters as \n, \t or \xHH, invalid bytes as \xHH. */
const char *utf8_escape(const char *bytes, size_t length, char *buffer, size_t buffer_bytes);
