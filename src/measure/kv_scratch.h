/* kv_scratch: a temporary folder inside that of --kv-disk, for documents that are not reused.  The user's saved
 * documents stay untouched, and the temporary folder is removed.
 *
 * It is named bench.XXXXXX and locked (flock) while its process lives.  A killed process leaves it; the next
 * kv_scratch_open in the same folder removes those that no process holds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct kv_scratch {
    char *parent, *path; /* owned; NULL: not open */
    int fd;              /* of the folder, locked */
    bool made_parent;
};

/* Creates directory if it is missing, and the scratch folder in it.  *limit_bytes: in, the limit of the whole
 * directory, 0: none; out, what its files leave of it.  STATUS_FULL: they leave nothing. */
enum status kv_scratch_open(struct kv_scratch *scratch, const char *directory, uint64_t *limit_bytes,
                            struct error *error) STATUS_CHECKED;
/* Removes what kv_scratch_open created.  Close all files in it first.  Safe on zeros. */
void kv_scratch_close(struct kv_scratch *scratch);
