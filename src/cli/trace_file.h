/* trace_file: --trace FILE of a command: the timeline of its engine (platform/trace.h). */
#pragma once

#include "base/status.h"
#include "cli/option.h"
#include "platform/file.h"
#include "platform/trace.h"

struct trace_file {
    struct file_writer file;
    struct trace *trace; /* owned; NULL: --trace was not given */
};

/* Call before work begins; zeroed if the option is not given.  STATUS_IO: the file cannot be written. */
enum status trace_file_open(struct trace_file *file, const struct options *options, struct error *error) STATUS_CHECKED;
/* Call when the engine is destroyed, also after a failure or an interruption, when the timeline is wanted most.
 * Returns status, or, if status was OK, why the file could not be written. */
enum status trace_file_close(struct trace_file *file, enum status status, struct error *error) STATUS_CHECKED;
