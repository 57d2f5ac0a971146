/* download: one file into a folder, whole and checked or not at all.
 *
 * It comes into NAME.part, which a later download of the same file goes on with: after a kill, a full disk, a
 * connection that broke.  The registry's digest, or the caller's, is compared before the file gets its name. */
#pragma once

#include "pull/source.h"

struct download {
    const struct source *source; /* whom to ask */
    const char *address, *folder, *name;
    const char *sha256; /* expected; NULL: what the registry says, if it does */
};

struct download_listener {
    void *context;
    /* Before the first byte.  size_bytes UINT64_MAX: not known; here_bytes came before. */
    void (*begins)(void *context, uint64_t size_bytes, uint64_t here_bytes);
    void (*progress)(void *context, uint64_t done_bytes, uint64_t size_bytes);
    void (*note)(void *context, const char *line);
    bool (*stops)(void *context);
};

/* *was_there: it is in the folder already, from the same address.  STATUS_USAGE: from another one; STATUS_MODEL: other
 * bytes than expected, which are removed; STATUS_IO: also a full disk; STATUS_INTERRUPTED. */
enum status download_file(const struct download *download, const struct download_listener *listener, bool *was_there,
                          struct error *error) STATUS_CHECKED;
