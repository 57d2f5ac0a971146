#include "document/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"

bool folder_is(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

void folder_close(struct folder *folder) {
    for (size_t i = 0; i < folder->count; i++) free(folder->names[i]);
    free(folder->names);
    *folder = (struct folder){0};
}

static enum status add(struct folder *folder, const char *name, const char *path, struct error *error) {
    if (folder->count == FOLDER_FILES_MAX)
        return error_set(error, STATUS_USAGE, "%s: has more than %d files", path, FOLDER_FILES_MAX);
    const bool fits = array_reserve(&folder->names, folder->count, &folder->capacity, sizeof *folder->names);
    char *own = fits ? strdup(name) : NULL;
    if (own == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    folder->names[folder->count++] = own;
    return STATUS_OK;
}

/* below: the folder that is read, as seen from the first one, with a slash behind it. */
static enum status collect(struct folder *folder, const char *path, const char *below, size_t depth,
                           struct error *error) {
    char whole[PATH_MAX], name[PATH_MAX];
    snprintf(whole, sizeof whole, "%s/%s", path, below);
    DIR *entries = opendir(whole);
    if (entries == NULL) return error_set_os(error, STATUS_IO, errno, "%s", whole);
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(entries)) != NULL;) {
        struct stat own, target;
        if (entry->d_name[0] == '.' || fstatat(dirfd(entries), entry->d_name, &own, AT_SYMLINK_NOFOLLOW) != 0 ||
            fstatat(dirfd(entries), entry->d_name, &target, 0) != 0)
            continue;
        const bool is_folder = S_ISDIR(own.st_mode);
        if (!is_folder && !S_ISREG(target.st_mode)) continue;
        const int length = snprintf(name, sizeof name, "%s%s%s", below, entry->d_name, is_folder ? "/" : "");
        if (length < 0 || (size_t)length >= sizeof name - 1 || depth > FOLDER_DEPTH_MAX)
            status = error_set(error, STATUS_USAGE, "%s: folders are nested too deep", path);
        else
            status = is_folder ? collect(folder, path, name, depth + 1, error) : add(folder, name, path, error);
    }
    closedir(entries);
    return status;
}

static int compare(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    const int order = strverscmp(*x, *y);
    return order != 0 ? order : strcmp(*x, *y);
}

enum status folder_open(struct folder *folder, const char *path, struct error *error) {
    *folder = (struct folder){0};
    TRY(collect(folder, path, "", 0, error));
    if (folder->count > 1) qsort(folder->names, folder->count, sizeof *folder->names, compare);
    return STATUS_OK;
}
