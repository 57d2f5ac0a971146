#include "cli/prompt_files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"
#include "document/document.h"
#include "document/folder.h"
#include "document/mark.h"
#include "platform/file.h"

static const size_t bytes_max = (size_t)1 << 30;
enum { NOTES_MAX = 10 };

void prompt_files_cut(struct prompt_files *files, size_t count) {
    while (files->count > count) {
        const struct prompt_file *last = &files->files[--files->count];
        free(last->path);
        free(last->bytes);
    }
}

void prompt_files_deinit(struct prompt_files *files) {
    prompt_files_cut(files, 0);
    free(files->files);
    *files = (struct prompt_files){0};
}

static enum status read_document(const struct options *options, const char *path, struct document *document,
                                 struct error *error) {
    char *bytes;
    size_t length;
    TRY(file_read_all(path, bytes_max, &bytes, &length, error));
    const struct document_source source = {.name = strcmp(path, "-") == 0 ? "standard input" : path,
                                           .bytes = bytes,
                                           .length = length,
                                           .encoding = option_text(options, OPTION_ENCODING)};
    const enum status status = document_read(document, &source, error);
    free(bytes);
    return status;
}

/* Takes the bytes, also where it fails. */
static enum status add(struct prompt_files *files, const char *path, char *bytes, size_t length, struct error *error) {
    char *own = strdup(path);
    if (own == NULL || !array_reserve(&files->files, files->count, &files->capacity, sizeof *files->files)) {
        free(own);
        free(bytes);
        return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
    }
    files->files[files->count++] = (struct prompt_file){own, bytes, length};
    return STATUS_OK;
}

/* Behind a mark with that name.  Takes the document. */
static enum status add_marked(struct prompt_files *files, const char *path, const char *name, struct document *document,
                              struct error *error) {
    struct text text = {0};
    mark_add_file(&text, name);
    text_append(&text, document->text, document->length);
    document_deinit(document);
    if (!text.failed) return add(files, path, text.bytes, text.length, error);
    text_deinit(&text);
    return error_set(error, STATUS_MEMORY, "%s: out of memory", path);
}

/* As a folder's files are named: without the way to it. */
static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (strcmp(path, "-") == 0) return "standard input";
    return slash != NULL ? slash + 1 : path;
}

/* The first without a mark: alone it is its text, and one more file behind it leaves it as it was. */
static enum status add_file(struct prompt_files *files, const struct options *options, const char *path,
                            struct error *error) {
    struct document document;
    TRY(read_document(options, path, &document, error));
    const char *note = document.length == 0 ? "is empty" : document.note;
    if (note[0] != '\0' && !option_flag(options, OPTION_QUIET))
        fprintf(stderr, "loam: note: %s: %s\n", strcmp(path, "-") == 0 ? "standard input" : path, note);
    if (files->count == 0 || document.length == 0) return add(files, path, document.text, document.length, error);
    return add_marked(files, path, name_of(path), &document, error);
}

/* STATUS_USAGE, STATUS_IO: it is no text, or cannot be read. */
static enum status add_member(struct prompt_files *files, const struct options *options, const char *path,
                              const char *name, struct error *error) {
    struct document document;
    TRY(read_document(options, path, &document, error));
    if (document.length > 0) return add_marked(files, path, name, &document, error);
    document_deinit(&document);
    return error_set(error, STATUS_USAGE, "%s: is empty", path);
}

static enum status add_members(struct prompt_files *files, const struct options *options, const char *path,
                               const struct folder *folder, struct error *error) {
    const size_t before = files->count;
    size_t left_out = 0, bytes = 0;
    for (size_t i = 0; i < folder->count; i++) {
        char whole[PATH_MAX];
        const size_t length = strlen(path);
        snprintf(whole, sizeof whole, "%s%s%s", path, length > 0 && path[length - 1] == '/' ? "" : "/",
                 folder->names[i]);
        const enum status status = add_member(files, options, whole, folder->names[i], error);
        if (status != STATUS_OK && status != STATUS_USAGE && status != STATUS_IO) return status;
        if (status != STATUS_OK && ++left_out <= NOTES_MAX && !option_flag(options, OPTION_QUIET))
            fprintf(stderr, "loam: note: left out %s\n", error->message);
        if (status == STATUS_OK) bytes += files->files[files->count - 1].length;
        if (bytes > bytes_max)
            return error_set(error, STATUS_IO, "%s: larger than the limit of %zu bytes", path, bytes_max);
    }
    if (left_out > NOTES_MAX && !option_flag(options, OPTION_QUIET))
        fprintf(stderr, "loam: note: left out %zu more files of %s\n", left_out - NOTES_MAX, path);
    if (files->count > before) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: has no file with text (of %zu)", path, folder->count);
}

enum status prompt_files_add(struct prompt_files *files, const struct options *options, const char *path,
                             struct error *error) {
    if (strcmp(path, "-") == 0 || !folder_is(path)) return add_file(files, options, path, error);
    struct folder folder;
    enum status status = folder_open(&folder, path, error);
    if (status == STATUS_OK) status = add_members(files, options, path, &folder, error);
    folder_close(&folder);
    return status;
}
