/* size: numbers as people write them. */
#ifndef LOAM_BASE_SIZE_H
#define LOAM_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* "4K" -> 4096.  false: not a whole number with an optional K, M, G or T, or too large. */
bool size_parse(const char *text, uint64_t *value);

#endif
