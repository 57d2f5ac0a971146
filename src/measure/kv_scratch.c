#include "measure/kv_scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "bench."

/* Removes the files in the folder, and the folder.  fd: of the folder. */
static void remove_folder(int fd, const char *path) {
    DIR *folder = fdopendir(dup(fd));
    if (folder == NULL) return;
    rewinddir(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) (void)unlinkat(fd, entry->d_name, 0);
    closedir(folder);
    (void)rmdir(path);
}

/* The blocks of the files in the folder; removes what killed processes left there. */
static uint64_t survey(const char *parent) {
    uint64_t bytes = 0;
    DIR *folder = opendir(parent);
    if (folder == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat info;
        char *path;
        if (fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISREG(info.st_mode)) bytes += (uint64_t)info.st_blocks * 512;
        if (!S_ISDIR(info.st_mode) || strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 || info.st_uid != geteuid())
            continue;
        int fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && asprintf(&path, "%s/%s", parent, entry->d_name) >= 0) {
            remove_folder(fd, path);
            free(path);
        }
        close(fd);
    }
    closedir(folder);
    return bytes;
}

static enum status reserve_space(const char *parent, uint64_t *limit_bytes, struct error *error) {
    const uint64_t taken = survey(parent);
    if (*limit_bytes == 0) return STATUS_OK;
    if (taken >= *limit_bytes)
        return error_set(error, STATUS_FULL,
                         "%s: what is saved there takes %" PRIu64 " MiB of the limit of %" PRIu64
                         " MiB, and this command removes nothing",
                         parent, (taken >> 20) + 1, *limit_bytes >> 20);
    *limit_bytes -= taken;
    return STATUS_OK;
}

/* Makes and locks the folder.  *gone: another process removed it as abandoned before it was locked. */
static enum status make(struct kv_scratch *scratch, bool *gone, struct error *error) {
    struct stat info;
    *gone = false;
    if (asprintf(&scratch->path, "%s/" PREFIX "XXXXXX", scratch->parent) < 0) {
        scratch->path = NULL;
        return error_set(error, STATUS_MEMORY, "%s: out of memory", scratch->parent);
    }
    const char *made = mkdtemp(scratch->path);
    if (made != NULL) scratch->fd = open(made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (made != NULL && scratch->fd >= 0 && flock(scratch->fd, LOCK_EX) == 0) {
        *gone = fstat(scratch->fd, &info) == 0 && info.st_nlink == 0;
        return STATUS_OK;
    }
    const int failed = errno;
    *gone = made != NULL && scratch->fd < 0 && failed == ENOENT;
    if (made == NULL) {
        free(scratch->path);
        scratch->path = NULL;
    }
    return error_set_os(error, STATUS_IO, failed, "%s: making a folder in it", scratch->parent);
}

enum status kv_scratch_open(struct kv_scratch *scratch, const char *directory, uint64_t *limit_bytes,
                            struct error *error) {
    *scratch = (struct kv_scratch){.parent = strdup(directory), .fd = -1};
    if (scratch->parent == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", directory);
    scratch->made_parent = mkdir(directory, 0700) == 0;
    enum status status = reserve_space(directory, limit_bytes, error);
    for (bool gone = true; gone && (status == STATUS_OK || status == STATUS_IO);) {
        if (scratch->fd >= 0) close(scratch->fd);
        free(scratch->path);
        scratch->path = NULL, scratch->fd = -1;
        status = make(scratch, &gone, error);
    }
    if (status != STATUS_OK) kv_scratch_close(scratch);
    return status;
}

void kv_scratch_close(struct kv_scratch *scratch) {
    if (scratch->parent == NULL) return;
    if (scratch->path != NULL && scratch->fd >= 0) remove_folder(scratch->fd, scratch->path);
    if (scratch->fd >= 0) close(scratch->fd);
    if (scratch->made_parent) (void)rmdir(scratch->parent); /* unless somebody else has come */
    free(scratch->path);
    free(scratch->parent);
    *scratch = (struct kv_scratch){0};
}
