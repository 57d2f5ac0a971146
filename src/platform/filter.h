/* filter: a program that turns bytes into bytes, within bounds.
 *
 * It reads them on standard input and writes to standard output; what it complains about is not heard.  It is killed
 * when it takes more than it may.  Its memory and its processor time are the kernel's to bound. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct filter {
    const char *const *arguments; /* NULL-terminated; the first is the program, looked for in PATH */
    const void *input;            /* [input_bytes] */
    size_t input_bytes;
    unsigned seconds;      /* of the clock, and of the processor */
    uint64_t memory_bytes; /* of its address space */
    size_t output_bytes;
};

/* Appends what it writes; *code: its exit code, or 128 + signal.  STATUS_UNSUPPORTED: there is no such program;
 * STATUS_FULL: it took longer or wrote more than it may, which the error says. */
enum status filter_run(const struct filter *filter, struct text *output, int *code, struct error *error) STATUS_CHECKED;
