#include "cli/trace_file.h"

enum status trace_file_open(struct trace_file *file, const struct options *options, struct error *error) {
    *file = (struct trace_file){.trace = NULL};
    const char *path = option_text(options, OPTION_TRACE);
    if (path == NULL) return STATUS_OK;
    TRY(file_writer_open(&file->file, path, error));
    enum status status = trace_create(&file->trace, file->file.stream, error);
    if (status != STATUS_OK) file_writer_abort(&file->file);
    return status;
}

enum status trace_file_close(struct trace_file *file, enum status status, struct error *error) {
    struct error why, unnamed;
    if (file->trace == NULL) return status;
    enum status written = trace_finish(file->trace, &unnamed);
    if (written != STATUS_OK) (void)error_set_os(&why, written, unnamed.os_error, "--trace: %s", file->file.path);
    if (written == STATUS_OK)
        written = file_writer_commit(&file->file, &why);
    else
        file_writer_abort(&file->file);
    trace_destroy(file->trace);
    *file = (struct trace_file){.trace = NULL};
    if (written == STATUS_OK || (status != STATUS_OK && status != STATUS_INTERRUPTED)) return status;
    *error = why;
    return written;
}
