/* kv_scratch: a folder of its own, inside that of --kv-disk, for documents that nobody is to find again: what is saved
 * there stays untouched, and nothing is left.
 *
 * It is named bench.XXXXXX and locked (flock) as long as its process lives.  One that was killed leaves it; the next to
 * open one in the same folder removes those that nobody holds. */
#ifndef LOAM_CLI_KV_SCRATCH_H
#define LOAM_CLI_KV_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct kv_scratch {
    char *parent, *path; /* owned; NULL: not open */
    int fd;              /* of the folder, locked */
    bool made_parent;
};

/* Makes directory where it is not there, and the scratch folder in it.  *limit_bytes, unless 0: of all in directory;
 * becomes what the files there leave of it.  STATUS_FULL: nothing. */
enum status kv_scratch_open(struct kv_scratch *scratch, const char *directory, uint64_t *limit_bytes,
                            struct error *error) STATUS_CHECKED;
/* Removes what kv_scratch_open made; when nobody has anything in it open any more.  Safe on zeros. */
void kv_scratch_close(struct kv_scratch *scratch);

#endif
