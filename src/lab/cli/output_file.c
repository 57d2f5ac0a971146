#include "lab/cli/output_file.h"

#include <errno.h>

enum status output_file_open_lines(struct output_file *file, const char *path, bool appends, struct error *error) {
    *file = (struct output_file){.path = path};
    errno = 0;
    file->stream = fopen(path, appends ? "ae" : "we");
    return file->stream != NULL ? STATUS_OK : error_set_os(error, STATUS_IO, errno, "%s", path);
}

enum status output_file_open(struct output_file *file, const char *path, struct error *error) {
    *file = (struct output_file){.path = path};
    TRY(file_writer_open(&file->writer, path, error));
    file->stream = file->writer.stream;
    return STATUS_OK;
}

enum status output_file_put(struct output_file *file, const char *bytes, size_t length, struct error *error) {
    errno = 0;
    if (fwrite(bytes, 1, length, file->stream) == length) return STATUS_OK;
    return error_set_os(error, STATUS_IO, errno, "%s", file->path);
}

enum status output_file_flush(struct output_file *file, struct error *error) {
    errno = 0;
    if (fflush(file->stream) == 0) return STATUS_OK;
    return error_set_os(error, STATUS_IO, errno, "%s", file->path);
}

enum status output_file_commit(struct output_file *file, struct error *error) {
    FILE *stream = file->stream;
    file->stream = NULL;
    if (file->writer.stream != NULL) return file_writer_commit(&file->writer, error);
    errno = 0;
    return fclose(stream) == 0 ? STATUS_OK : error_set_os(error, STATUS_IO, errno, "%s", file->path);
}

void output_file_abort(struct output_file *file) {
    if (file->stream != NULL && file->writer.stream == NULL) fclose(file->stream);
    file_writer_abort(&file->writer);
    file->stream = NULL;
}
