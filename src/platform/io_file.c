#include "platform/io_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"

static int refused(const struct io_faults *faults, enum io_call call, const char *path) {
    return faults == NULL ? 0 : faults->decide(faults->context, call, path, 0, 0).os_error;
}

struct io_fault io_file_fault(const struct io_file *file, enum io_call call, uint64_t offset, size_t bytes) {
    if (file->faults == NULL) return (struct io_fault){0, bytes};
    struct io_fault fault = file->faults->decide(file->faults->context, call, file->path, offset, bytes);
    if (fault.bytes_max > bytes) fault.bytes_max = bytes;
    if (file->direct && fault.bytes_max > 0 && fault.bytes_max < bytes)
        fault.bytes_max = max_size(fault.bytes_max / IO_BLOCK_BYTES, 1) * IO_BLOCK_BYTES;
    return fault;
}

bool io_is_full(int os_error) { return os_error == ENOSPC || os_error == EDQUOT; }

/* Folders */

static enum status folder_check(struct io_folder *folder, bool to_write, struct error *error) {
    struct stat info;
    if (fstat(folder->fd, &info) != 0) return error_set_os(error, STATUS_IO, errno, "%s", folder->path);
    if ((info.st_mode & 0022) != 0)
        return error_set(error, STATUS_IO, "%s: the folder is writable by others (mode %03o), expected 700",
                         folder->path, (unsigned)info.st_mode & 0777);
    folder->owner = info.st_uid;
    if (to_write && info.st_uid != geteuid()) {
        enum status status = error_set(error, STATUS_IO, "%s: the folder belongs to user %u, not to user %u",
                                       folder->path, (unsigned)info.st_uid, (unsigned)geteuid());
        if (error != NULL) error->os_error = EPERM;
        return status;
    }
    if (to_write && faccessat(folder->fd, ".", W_OK, AT_EACCESS) != 0)
        return error_set_os(error, STATUS_IO, errno, "%s", folder->path);
    return STATUS_OK;
}

enum status io_folder_open(struct io_folder *folder, const char *path, enum io_folder_mode mode,
                           const struct io_faults *faults, struct error *error) {
    *folder = (struct io_folder){.fd = -1, .path = strdup(path), .faults = faults};
    if (folder->path == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    int failed = refused(faults, IO_CALL_OPEN, path);
    if (failed == 0 && mode == IO_FOLDER_CREATE && mkdir(path, 0700) != 0 && errno != EEXIST) failed = errno;
    if (failed == 0) {
        folder->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder->fd < 0) failed = errno;
    }
    enum status status;
    struct stat info;
    if (failed == 0)
        status = folder_check(folder, mode == IO_FOLDER_CREATE, error);
    else if (failed == ENOTDIR && lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        status = error_set(error, STATUS_IO, "%s: a symbolic link, expected a folder", path);
    else
        status = error_set_os(error, STATUS_IO, failed, "%s", path);
    if (status != STATUS_OK) io_folder_close(folder);
    return status;
}

void io_folder_close(struct io_folder *folder) {
    if (folder->path == NULL) return;
    if (folder->fd >= 0) close(folder->fd);
    free(folder->path);
    *folder = (struct io_folder){.fd = -1};
}

enum status io_folder_sync(struct io_folder *folder, struct error *error) {
    int failed = refused(folder->faults, IO_CALL_SYNC, folder->path);
    if (failed == 0 && fsync(folder->fd) != 0) failed = errno;
    if (failed != 0) return io_transfer_error(error, IO_CALL_SYNC, folder->path, 0, 0, failed);
    return STATUS_OK;
}

enum status io_folder_remove(struct io_folder *folder, const char *name, struct error *error) {
    int failed = refused(folder->faults, IO_CALL_REMOVE, name);
    if (failed == 0 && unlinkat(folder->fd, name, 0) != 0) failed = errno;
    if (failed == EISDIR && unlinkat(folder->fd, name, AT_REMOVEDIR) == 0) failed = 0; /* put in a file's place */
    if (failed != 0 && failed != ENOENT)
        return error_set_os(error, STATUS_IO, failed, "%s/%s: removing it", folder->path, name);
    return STATUS_OK;
}

/* Files */

static int open_flags(enum io_file_mode mode) {
    switch (mode) {
    case IO_FILE_READ: return O_RDONLY;
    case IO_FILE_UPDATE: return O_RDWR;
    case IO_FILE_CREATE: return O_RDWR | O_CREAT | O_EXCL;
    }
    return O_RDONLY;
}

static enum status file_check(const struct io_file *file, uint32_t owner, struct error *error) {
    struct stat info;
    if (fstat(file->fd, &info) != 0) return error_set_os(error, STATUS_IO, errno, "%s", file->path);
    if (!S_ISREG(info.st_mode)) return error_set(error, STATUS_IO, "%s: not a regular file", file->path);
    if (info.st_uid != owner)
        return error_set(error, STATUS_IO, "%s: the file belongs to user %u, not to user %u", file->path,
                         (unsigned)info.st_uid, (unsigned)owner);
    return STATUS_OK;
}

/* The alignment that O_DIRECT needs, as far as the kernel tells. */
static size_t block_bytes_of(const struct io_file *file) {
    if (!file->direct) return IO_BLOCK_BYTES;
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0 &&
        info.stx_dio_offset_align > 0)
        return min_size(max_size(info.stx_dio_offset_align, IO_BLOCK_BYTES), IO_ALIGNMENT);
#endif
    return IO_ALIGNMENT;
}

/* Of a file that was opened with O_NONBLOCK; 0, or an errno. */
static int set_flags(struct io_file *file, bool direct) {
    /* Off again: with it io_uring may answer EAGAIN where it would else wait for the disk. */
    const int waiting = fcntl(file->fd, F_GETFL) & ~O_NONBLOCK;
    if (fcntl(file->fd, F_SETFL, waiting) != 0) return errno;
    /* Switched on after the opening, so that a file system without it has not created the file already. */
    file->direct = direct && fcntl(file->fd, F_SETFL, waiting | O_DIRECT) == 0;
    return 0;
}

enum status io_file_open(struct io_file *file, const struct io_folder *folder, const char *name, enum io_file_mode mode,
                         bool direct, struct error *error) {
    *file = (struct io_file){.fd = -1, .faults = folder->faults};
    ASSERT(strchr(name, '/') == NULL); /* names are ours, made of an id */
    if (asprintf(&file->path, "%s/%s", folder->path, name) < 0) {
        file->path = NULL;
        return error_set(error, STATUS_MEMORY, "%s: out of memory", name);
    }
    int failed = refused(file->faults, IO_CALL_OPEN, file->path);
    /* O_NONBLOCK: a fifo planted there must be rejected, not waited for. */
    int flags = open_flags(mode) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    if (failed == 0) {
        file->fd = openat(folder->fd, name, flags, 0600);
        if (file->fd < 0) failed = errno;
    }
    if (failed == 0) failed = set_flags(file, direct);
    file->block_bytes = block_bytes_of(file);
    enum status status;
    if (failed == ELOOP)
        status = error_set(error, STATUS_IO, "%s: a symbolic link, expected a file", file->path);
    else if (failed != 0)
        status = error_set_os(error, STATUS_IO, failed, "%s", file->path);
    else
        status = file_check(file, folder->owner, error);
    if (status != STATUS_OK) io_file_close(file);
    return status;
}

enum status io_file_open_path(struct io_file *file, const char *path, bool direct, const struct io_faults *faults,
                              struct error *error) {
    *file = (struct io_file){.fd = -1, .faults = faults, .path = strdup(path)};
    if (file->path == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    int failed = refused(faults, IO_CALL_OPEN, path);
    struct stat info;
    if (failed == 0) {
        file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (file->fd < 0 || fstat(file->fd, &info) != 0) failed = errno;
    }
    if (failed == 0) failed = set_flags(file, direct);
    file->block_bytes = block_bytes_of(file);
    enum status status = STATUS_OK;
    if (failed != 0)
        status = error_set_os(error, STATUS_IO, failed, "%s", path);
    else if (!S_ISREG(info.st_mode))
        status = error_set(error, STATUS_IO, "%s: not a regular file", path);
    if (status != STATUS_OK) io_file_close(file);
    return status;
}

void io_file_close(struct io_file *file) {
    if (file->path == NULL) return;
    if (file->fd >= 0) {
        /* Whatever it says the descriptor is gone: to close it again could close another's. */
        (void)refused(file->faults, IO_CALL_CLOSE, file->path);
        (void)close(file->fd);
    }
    free(file->path);
    file->path = NULL;
    file->fd = -1;
}

enum status io_file_size(const struct io_file *file, uint64_t *size_bytes, struct error *error) {
    struct stat info;
    if (fstat(file->fd, &info) != 0) return error_set_os(error, STATUS_IO, errno, "%s", file->path);
    *size_bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

static const char *call_word(enum io_call call) {
    switch (call) {
    case IO_CALL_OPEN: return "opening";
    case IO_CALL_READ: return "reading";
    case IO_CALL_WRITE: return "writing";
    case IO_CALL_SYNC: return "flushing";
    case IO_CALL_TRUNCATE: return "truncating";
    case IO_CALL_REMOVE: return "removing";
    case IO_CALL_CLOSE: return "closing";
    }
    return "?";
}

enum status io_transfer_error(struct error *error, enum io_call call, const char *path, uint64_t offset, size_t bytes,
                              int os_error) {
    if (call == IO_CALL_SYNC) return error_set_os(error, STATUS_IO, os_error, "%s: flushing it to the disk", path);
    if (os_error == 0)
        return error_set(error, STATUS_IO, "%s: %s %zu bytes at %llu: the file ends before", path, call_word(call),
                         bytes, (unsigned long long)offset);
    return error_set_os(error, STATUS_IO, os_error, "%s: %s %zu bytes at %llu", path, call_word(call), bytes,
                        (unsigned long long)offset);
}

size_t io_file_progress(const struct io_file *file, size_t moved, size_t wanted) {
    ASSERT(moved <= wanted);
    return file->direct && moved < wanted ? moved / IO_BLOCK_BYTES * IO_BLOCK_BYTES : moved;
}

static enum status transfer(struct io_file *file, enum io_call call, uint64_t offset, void *memory, size_t bytes,
                            struct error *error) {
    if (call == IO_CALL_WRITE && file->sync_error != 0)
        return io_transfer_error(error, call, file->path, offset, bytes, file->sync_error);
    size_t done = 0, retries = 0;
    while (done < bytes) {
        struct io_fault fault = io_file_fault(file, call, offset + done, bytes - done);
        ssize_t moved = -1;
        errno = fault.os_error;
        if (fault.os_error == 0) {
            if (call == IO_CALL_READ)
                moved = pread(file->fd, (uint8_t *)memory + done, fault.bytes_max, (off_t)(offset + done));
            else
                moved = pwrite(file->fd, (uint8_t *)memory + done, fault.bytes_max, (off_t)(offset + done));
        }
        if (moved < 0 && (errno == EINTR || errno == EAGAIN) && retries++ < IO_RETRIES_MAX) continue;
        if (moved < 0) return io_transfer_error(error, call, file->path, offset, bytes, errno);
        size_t progress = io_file_progress(file, (size_t)moved, bytes - done);
        if (progress == 0)
            return io_transfer_error(error, call, file->path, offset, bytes, call == IO_CALL_READ ? 0 : EIO);
        done += progress;
        retries = 0;
    }
    return STATUS_OK;
}

enum status io_file_read(struct io_file *file, uint64_t offset, void *memory, size_t bytes, struct error *error) {
    return transfer(file, IO_CALL_READ, offset, memory, bytes, error);
}

enum status io_file_write(struct io_file *file, uint64_t offset, const void *memory, size_t bytes,
                          struct error *error) {
    return transfer(file, IO_CALL_WRITE, offset, (void *)(uintptr_t)memory, bytes, error);
}

enum status io_file_sync(struct io_file *file, struct error *error) {
    int failed = file->sync_error;
    if (failed == 0) {
        size_t retries = 0;
        do { /* interrupted, or not now: nothing has been tried yet */
            failed = refused(file->faults, IO_CALL_SYNC, file->path);
            if (failed == 0 && fdatasync(file->fd) != 0) failed = errno;
        } while ((failed == EINTR || failed == EAGAIN) && retries++ < IO_RETRIES_MAX);
    }
    if (failed == 0) return STATUS_OK;
    file->sync_error = failed;
    return io_transfer_error(error, IO_CALL_SYNC, file->path, 0, 0, failed);
}

enum status io_file_truncate(struct io_file *file, uint64_t size_bytes, struct error *error) {
    int failed = refused(file->faults, IO_CALL_TRUNCATE, file->path);
    if (failed == 0 && ftruncate(file->fd, (off_t)size_bytes) != 0) failed = errno;
    if (failed != 0)
        return error_set_os(error, STATUS_IO, failed, "%s: making it %llu bytes long", file->path,
                            (unsigned long long)size_bytes);
    return STATUS_OK;
}

void io_file_punch(struct io_file *file, uint64_t offset, uint64_t bytes) {
    if (bytes > 0) (void)fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

void io_file_will_need(struct io_file *file, uint64_t offset, uint64_t bytes) {
    (void)posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

/* Locks of the open file description, not of the process: two stores in one process exclude each other too.
 * They lie far beyond any data, and mean nothing to the bytes there. */
enum status io_file_try_lock(struct io_file *file, uint64_t byte, enum io_lock lock, struct error *error) {
    struct flock range = {.l_type = lock == IO_LOCK_SHARED ? F_RDLCK : F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)((UINT64_C(1) << 62) + byte),
                          .l_len = 1};
    if (fcntl(file->fd, F_OFD_SETLK, &range) == 0) return STATUS_OK;
    if (errno == EAGAIN || errno == EACCES)
        return error_set(error, STATUS_FULL, "%s: in use by another process", file->path);
    return error_set_os(error, STATUS_IO, errno, "%s: locking it", file->path);
}
