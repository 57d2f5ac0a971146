/* zip: the files of a ZIP archive in memory, found by name.
 *
 * Only what EPUBs have: stored and deflated files, no encryption, no parts, below 4 GiB.  zlib decodes; the archive's
 * directory is read here, since that is a page of code, and a library for it would be one more to install. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { ZIP_FILES_MAX = 20000 };

struct zip {
    const unsigned char *bytes; /* [length] borrowed */
    size_t length;
    size_t directory, file_count;
    uint64_t budget; /* bytes that may still be unpacked, of all files together */
};

struct zip_file {
    size_t offset; /* of its header */
    uint32_t packed_bytes, bytes, checksum;
    uint16_t method, flags;
};

/* false: no directory is where it must be. */
bool zip_open(struct zip *zip, const char *bytes, size_t length, uint64_t budget);
bool zip_find(const struct zip *zip, const char *name, size_t name_length, struct zip_file *file);
/* Appends the file's bytes.  STATUS_USAGE: it is damaged, encrypted, packed in another way, or the budget is spent. */
enum status zip_read(struct zip *zip, const struct zip_file *file, struct text *text, struct error *error)
    STATUS_CHECKED;
