/* chunks: the frames of a chunked body, read strictly as far as they came.  libmicrohttpd reads them as well, but
 * answers what is wrong with a page of HTML (decision 0093).  Thread-safe. */
#pragma once

#include <stddef.h>

enum { CHUNK_LINE_MAX = 256 /* a size and its extensions */, TRAILERS_MAX = 8 << 10 };

enum chunks_result { CHUNKS_WHOLE, CHUNKS_INCOMPLETE, CHUNKS_REFUSED };

/* bytes: from behind the head.  CHUNKS_REFUSED: *why is what the body does. */
enum chunks_result chunks_read(const char *bytes, size_t length, const char **why);
