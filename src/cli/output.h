/* output: standard output with checked writes, and the abilities of standard error.
 * Answers and results go to standard output; everything else to standard error.  Thread: main. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/size.h"
#include "base/status.h"

/* Buffered.  The first failure is remembered, and output_flush returns it. */
void output_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
void output_bytes(const char *bytes, size_t length);
/* STATUS_IO if anything since the start could not be written.  The message is empty if the reader of a pipe went
 * away, which is not an error. */
enum status output_flush(struct error *error) STATUS_CHECKED;

/* Standard error is a terminal on which a line may be drawn over (TERM is not "dumb"). */
bool output_can_draw(void);
/* Its width in characters: what the terminal says, else COLUMNS, else 80. */
size_t output_columns(void);

/* The peak of this process's resident memory. */
uint64_t peak_rss_bytes(void);
