/* page: the chat page at `/`, as one gzipped file (pack.py makes it when loam is built). */
#pragma once

#include <stddef.h>
#include <stdint.h>

extern const uint8_t page_bytes[]; /* [page_size], gzip */
extern const size_t page_size;
extern const char page_policy[]; /* Content-Security-Policy */
extern const char page_tag[];    /* ETag */
