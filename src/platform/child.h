/* child: another program, asked through pipes.
 *
 * The program is found by PATH and gets default signals.  It reads what child_write sends and ends when its reader goes
 * away, so it does not outlive this process for long.  One thread uses a child. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

struct child {
    pid_t id;                     /* 0: none */
    int input, output, errors;    /* owned; this side of its standard input, output and errors; -1: closed */
    bool (*stops)(void *context); /* the caller's, set after child_start: ends child_read; NULL: nothing does */
    void *stops_context;
};

/* argv: NULL-terminated, argv[0] the program's name.  input: an open file that it reads instead of what child_write
 * sends, and nobody hears its errors; NULL: none.  STATUS_UNSUPPORTED: no such program. */
enum status child_start(struct child *child, const char *const *argv, const int *input, struct error *error)
    STATUS_CHECKED;
/* Sends all bytes.  STATUS_IO: the program no longer reads. */
enum status child_write(struct child *child, const void *bytes, size_t count, struct error *error) STATUS_CHECKED;
void child_end_input(struct child *child);
/* Up to `size` bytes of its output, as soon as there are any: *count 0 at the end.  STATUS_INTERRUPTED: `stops`, which
 * is asked several times a second, said so. */
enum status child_read(struct child *child, void *bytes, size_t size, size_t *count, struct error *error)
    STATUS_CHECKED;
/* The first line of what it wrote to its standard errors, cut to fit; waits until it has closed them. */
void child_read_errors(struct child *child, char *line, size_t size);
/* Waits for its end.  Its exit code; 128 and the signal that ended it. */
int child_wait(struct child *child);
/* Ends it where it still runs, and closes everything.  Safe after a failed start and after child_wait. */
void child_close(struct child *child);
