/* file: whole files mapped read-only, and files written so that a reader never
 * sees half of one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/status.h"

/* A regular file mapped read-only.  Pages come in on first touch, so somebody who writes to the file meanwhile changes
 * what is read: file_map_check tells.  Where pages vanish (the file is truncated, its disk fails) the process reads
 * zeros from there on instead of getting SIGBUS, and file_map_check tells, too.  For that the first file_map_open
 * installs a handler of SIGBUS, which hands faults elsewhere to the handler that was there. */
struct file_map {
    const uint8_t *data; /* [size_bytes], borrowed until file_map_close */
    uint64_t size_bytes;
    char *path;         /* owned; as it was given */
    int file;           /* owned, open as long as data is there */
    struct stat before; /* of the file when it was opened */
    struct guarded_map *guard;
};

/* STATUS_IO with the path when it cannot be opened, is not a regular file, or is
 * empty (data would be NULL).  A path of a directory or device is refused.  STATUS_MEMORY: too many are mapped. */
enum status file_map_open(struct file_map *map, const char *path, struct error *error) STATUS_CHECKED;
void file_map_close(struct file_map *map);

/* STATUS_MODEL: the file may have other bytes than when it was opened, so what was computed from it is worth nothing.
 * Another file that takes its place by a rename is no change: the mapping is of the one that was opened; another name
 * for it, or other rights, are none either.  Any thread. */
enum status file_map_check(const struct file_map *map, struct error *error) STATUS_CHECKED;

/* Hints for the mapped range [offset, offset + bytes).  The range is touched here and there: nothing is read ahead. */
void file_map_scatter(const struct file_map *map, uint64_t offset, uint64_t bytes);
/* The range is not needed for now: the process no longer holds its pages. */
void file_map_drop(const struct file_map *map, uint64_t offset, uint64_t bytes);

/* Reads a whole file or standard input ("-") into memory, zero-terminated;
 * refuses more than limit_bytes.  The caller frees *text. */
enum status file_read_all(const char *path, size_t limit_bytes, char **text, size_t *size_bytes, struct error *error)
    STATUS_CHECKED;

/* Writes to a new temporary file in path's folder and puts it in place with rename only when file_writer_commit
 * has flushed it to the disk; file_writer_abort leaves nothing behind.  A symbolic link is followed, to a file of
 * the user's own; a file that is replaced keeps its permissions.  A path that is no regular file (a device, a
 * pipe), and the process's own output under any name, is written to directly. */
struct file_writer {
    FILE *stream;        /* write here */
    char *path, *target; /* owned: as it was given, and where it leads */
    char *temporary;     /* owned; NULL: written to directly */
    bool keeps;          /* a file that is there is not replaced: may be set before the commit, which then fails */
};
enum status file_writer_open(struct file_writer *writer, const char *path, struct error *error) STATUS_CHECKED;
/* Fails where file_writer_open would; leaves nothing. */
enum status file_writer_check(const char *path, struct error *error) STATUS_CHECKED;
enum status file_writer_commit(struct file_writer *writer, struct error *error) STATUS_CHECKED;
void file_writer_abort(struct file_writer *writer); /* safe after commit and after a failed open */
/* Removes the temporary files of all writers of the process, which then cannot commit.  For a signal handler that is
 * about to end it. */
void file_writer_remove_temporaries(void);
