#include "cli/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "platform/file.h"

enum status json_file_check(const char *path, struct error *error) { return file_writer_check(path, error); }

enum { FILE_FLAGS = JSON_INDENT(1) | JSON_REAL_PRECISION(12) };

static enum status dump(const json_t *value, FILE *stream, size_t flags, const char *name, struct error *error) {
    errno = 0;
    if (value == NULL || json_dumpf(value, stream, flags) != 0 || fputc('\n', stream) == EOF) {
        if (errno != 0) return error_set_os(error, STATUS_IO, errno, "%s", name);
        return error_set(error, STATUS_MEMORY, "%s: no memory for the JSON", name);
    }
    return STATUS_OK;
}

enum status json_file_write(const json_t *value, const char *path, struct error *error) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path, error));
    enum status status = dump(value, writer.stream, FILE_FLAGS, path, error);
    if (status == STATUS_OK) return file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return status;
}

enum status json_print(const json_t *value, size_t flags, struct error *error) {
    char *text = value != NULL ? json_dumps(value, flags | JSON_REAL_PRECISION(12)) : NULL;
    if (text == NULL) return error_set(error, STATUS_MEMORY, "no memory for the JSON");
    output_bytes(text, strlen(text));
    output_bytes("\n", 1);
    free(text);
    return output_flush(error);
}
