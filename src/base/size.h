/* size: numbers as people write them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "4K", "4KiB" -> 4096, "4KB" -> 4000.  false: not a whole number with an optional K, M, G or T, or too large. */
bool size_parse(const char *text, uint64_t *value);
/* "512 B", "1.23 GiB"; the text lives in buffer. */
const char *bytes_text(uint64_t bytes, char *buffer, size_t buffer_bytes);
