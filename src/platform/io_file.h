/* io_file: a file or folder of ours on disk, opened so that no other file can take its place.
 *
 * Everything is opened relative to a folder's descriptor, never through a symbolic link, and refused when
 * it is not a regular file that belongs to the user.  An io_file is what io_queue.h reads and writes
 * asynchronously; the calls here do the same and wait.  Every error names the file, and the offset and
 * length where there are some.
 *
 * A failed flush is final: the kernel may have dropped the dirty pages, so a second flush that succeeds
 * would prove nothing (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).  From
 * then on every write and flush of that io_file fails.
 *
 * Tests make the n-th call fail: struct io_faults is asked before every call to the system, by these
 * functions and by both back ends of io_queue.
 *
 * Thread: an io_file may be read and written by several; open and close by one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

/* O_DIRECT moves whole blocks: offsets, lengths and addresses are multiples of this (4,096 suits every disk
 * in use), and what a short transfer moved counts in units of the smallest block there is. */
enum { IO_ALIGNMENT = 4096, IO_BLOCK_BYTES = 512 };

enum io_call {
    IO_CALL_OPEN,
    IO_CALL_READ,
    IO_CALL_WRITE,
    IO_CALL_SYNC,
    IO_CALL_TRUNCATE,
    IO_CALL_REMOVE,
    IO_CALL_CLOSE, /* its result is ignored: what must last was flushed before */
};

/* What the next call shall do: with os_error 0 it happens, moving at most bytes_max bytes; else it fails so. */
struct io_fault {
    int os_error;
    size_t bytes_max;
};

struct io_faults {
    void *context;
    /* May be called from any thread.  offset and bytes are 0 where a call has none. */
    struct io_fault (*decide)(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes);
};

/* Whether the error says that the disk, or the user's quota, is full. */
bool io_is_full(int os_error);

struct io_folder {
    int fd;
    uint32_t owner;                 /* the user whose files in it are opened; only to be read, it may be another */
    char *path;                     /* owned; as given, for messages */
    const struct io_faults *faults; /* borrowed; NULL outside tests */
};

enum io_folder_mode {
    IO_FOLDER_READ,
    IO_FOLDER_CREATE /* to be written; made (0700) when it is not there */
};

/* STATUS_IO with one line: not there, a symbolic link, not a folder, or writable by others than its owner; to be
 * written, also of another user (os_error EPERM) or not to be written in (EROFS, EACCES).  Parents are not created. */
enum status io_folder_open(struct io_folder *folder, const char *path, enum io_folder_mode mode,
                           const struct io_faults *faults, struct error *error) STATUS_CHECKED;
void io_folder_close(struct io_folder *folder); /* safe after a failed open */
enum status io_folder_sync(struct io_folder *folder, struct error *error) STATUS_CHECKED;
/* Removing what is not there is no error. */
enum status io_folder_remove(struct io_folder *folder, const char *name, struct error *error) STATUS_CHECKED;

struct io_file {
    int fd;                         /* -1: not open */
    bool direct;                    /* O_DIRECT is on: */
    size_t block_bytes;             /* transfers are of multiples of this, and from such an offset */
    char *path;                     /* owned; folder/name, for messages */
    const struct io_faults *faults; /* borrowed; NULL outside tests */
    _Atomic int sync_error;         /* errno of the flush that failed, 0: none */
};

enum io_file_mode {
    IO_FILE_READ,
    IO_FILE_UPDATE, /* an existing file, read and written */
    IO_FILE_CREATE, /* a new one, 0600; there must be none of that name */
};

/* direct asks for O_DIRECT; a file system that has none gives file->direct = false instead.
 * STATUS_IO: the message says why ("not there", "not a regular file", "of another user", ...). */
enum status io_file_open(struct io_file *file, const struct io_folder *folder, const char *name, enum io_file_mode mode,
                         bool direct, struct error *error) STATUS_CHECKED;
/* A regular file at any path, of any user, to be read; links are followed.  faults: borrowed, NULL outside tests. */
enum status io_file_open_path(struct io_file *file, const char *path, bool direct, const struct io_faults *faults,
                              struct error *error) STATUS_CHECKED;
void io_file_close(struct io_file *file); /* safe after a failed open */

enum status io_file_size(const struct io_file *file, uint64_t *size_bytes, struct error *error) STATUS_CHECKED;

/* Whole transfers: short ones are continued, EINTR and EAGAIN are repeated.  A file that ends early is STATUS_IO. */
enum status io_file_read(struct io_file *file, uint64_t offset, void *memory, size_t bytes, struct error *error)
    STATUS_CHECKED;
enum status io_file_write(struct io_file *file, uint64_t offset, const void *memory, size_t bytes, struct error *error)
    STATUS_CHECKED;
enum status io_file_sync(struct io_file *file, struct error *error) STATUS_CHECKED; /* fdatasync */
enum status io_file_truncate(struct io_file *file, uint64_t size_bytes, struct error *error) STATUS_CHECKED;
/* Gives the blocks of the range back to the file system, as far as it can: a hint. */
void io_file_punch(struct io_file *file, uint64_t offset, uint64_t bytes);
/* The range will be read through the page cache soon: a hint. */
void io_file_will_need(struct io_file *file, uint64_t offset, uint64_t bytes);

/* One byte of the file as a lock between processes (and between open files of one process).  Never waits:
 * STATUS_FULL when somebody else holds it.  Gone when the file is closed, however the process ends. */
enum io_lock { IO_LOCK_SHARED, IO_LOCK_EXCLUSIVE };
enum status io_file_try_lock(struct io_file *file, uint64_t byte, enum io_lock lock, struct error *error)
    STATUS_CHECKED;

/* For io_queue and its back ends. */

enum { IO_RETRIES_MAX = 1000 }; /* attempts in a row that move nothing (EINTR, EAGAIN) before it is an error */

/* The fault that a test injects into this transfer; without faults there is none.  bytes_max <= bytes, and
 * whole blocks where the file needs that. */
struct io_fault io_file_fault(const struct io_file *file, enum io_call call, uint64_t offset, size_t bytes);

/* By how many bytes a transfer that moved `moved` bytes advances one that still lacked `wanted` (moved <= wanted): with
 * O_DIRECT a transfer can only go on at a block boundary. */
size_t io_file_progress(const struct io_file *file, size_t moved, size_t wanted);

/* "path: reading 4096 bytes at 8192: Input/output error", or with os_error 0 "...: the file ends there". */
enum status io_transfer_error(struct error *error, enum io_call call, const char *path, uint64_t offset, size_t bytes,
                              int os_error);
