/* kv_disk: the folder of saved documents, as --kv-disk DIR[:SIZE] names it. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct kv_disk {
    char *directory;      /* owned */
    uint64_t limit_bytes; /* of everything in it; 0: none */
};

/* What follows the last colon is the limit, and must be a size (8G); a colon with a '/' behind it belongs to the
 * folder's name, so "a:b/" and "a:b:" are the folder a:b without a limit.  STATUS_USAGE: no folder, no size, or a
 * limit of 0. */
enum status kv_disk_parse(struct kv_disk *disk, const char *text, struct error *error) STATUS_CHECKED;
void kv_disk_deinit(struct kv_disk *disk);
/* A document's number, as loam ls shows it. */
enum status kv_disk_read_id(const char *text, uint64_t *id, struct error *error) STATUS_CHECKED;
