#include "cli/kv_disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/option.h"

enum status kv_disk_parse(struct kv_disk *disk, const char *text, struct error *error) {
    *disk = (struct kv_disk){0};
    const char *colon = strrchr(text, ':');
    if (colon != NULL && strchr(colon, '/') != NULL) colon = NULL; /* of a folder on the way */
    bool has_limit = colon != NULL && colon[1] != '\0';
    if (has_limit && !size_parse(colon + 1, &disk->limit_bytes))
        return error_set(error, STATUS_USAGE,
                         "--kv-disk: found '%.80s' behind the colon, expected a size (8G, 512M), or '%.200s/' for "
                         "a folder of that name",
                         colon + 1, text);
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    if (length == 0 || (has_limit && disk->limit_bytes == 0))
        return error_set(error, STATUS_USAGE, "--kv-disk: found '%.200s', expected DIR or DIR:SIZE", text);
    disk->directory = strndup(text, length);
    if (disk->directory == NULL) return error_set(error, STATUS_MEMORY, "--kv-disk: out of memory");
    return STATUS_OK;
}

void kv_disk_deinit(struct kv_disk *disk) {
    free(disk->directory);
    *disk = (struct kv_disk){0};
}

enum status kv_disk_read_id(const char *text, uint64_t *id, struct error *error) {
    char *end;
    errno = 0;
    *id = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "found '%.40s', expected a document's number as loam ls shows it", text);
}
