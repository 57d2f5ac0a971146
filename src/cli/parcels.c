/* loam export, loam import: saved documents as files. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cache/inputs.h"
#include "cli/command.h"
#include "cli/kv_disk.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/utf8.h"
#include "platform/file.h"
#include "platform/io_file.h"

enum { BLOCK_BYTES = 1 << 20, SHOWN_BYTES = 4 * STORE_TEXT_MAX };

static const char *shown(const char *text, char buffer[SHOWN_BYTES]) {
    return utf8_escape(text, strlen(text), buffer, SHOWN_BYTES);
}

static void note_warning(const struct store *store) {
    if (store_warning(store) != NULL) fprintf(stderr, "loam: note: %s\n", store_warning(store));
}

/* ---- export ---- */

static enum status write_all(struct parcel *parcel, struct file_writer *writer, struct error *error) {
    struct progress progress;
    uint8_t *memory = malloc(BLOCK_BYTES);
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "export: out of memory");
    uint64_t done = 0;
    size_t read = 1;
    enum status status = STATUS_OK;
    progress_begin(&progress, "export", false);
    progress.unit = PROGRESS_WORK;
    while (status == STATUS_OK && read > 0) {
        status = parcel_read(parcel, memory, BLOCK_BYTES, &read, error);
        errno = 0;
        if (status == STATUS_OK && fwrite(memory, 1, read, writer->stream) != read)
            status = error_set_os(error, STATUS_IO, errno, "%s", writer->path);
        done += read;
        progress_update(&progress, done, parcel_bytes(parcel));
    }
    progress_end(&progress);
    free(memory);
    return status;
}

static enum status write_file(struct parcel *parcel, const char *path, bool replaces, struct error *error) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path, error));
    writer.keeps = !replaces;
    const enum status status = write_all(parcel, &writer, error);
    if (status == STATUS_OK) return file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return status;
}

static enum status export_document(struct store *store, uint64_t id, const struct options *options,
                                   struct error *error) {
    const char *path = options->positionals[1];
    uint64_t ids[PARCEL_DOCUMENTS_MAX];
    size_t count;
    struct parcel *parcel;
    char size[32], name[SHOWN_BYTES];
    TRY(kept_inputs_pack(store, id, ids, &count, error));
    TRY(parcel_open(&parcel, store, ids, count, NULL, error));
    const enum status status = write_file(parcel, path, option_flag(options, OPTION_FORCE), error);
    if (status == STATUS_OK) /* standard output may be OUT */
        fprintf(stderr, "loam: document %" PRIu64 " (%s) is in %s, %s\n", id, shown(parcel_name(parcel), name), path,
                bytes_text(parcel_bytes(parcel), size, sizeof size));
    parcel_close(parcel);
    return status;
}

enum status export_command(const struct options *options, struct error *error) {
    struct store *store;
    struct kv_disk disk;
    struct stat info;
    uint64_t id;
    const char *folder = option_text(options, OPTION_KV_DISK), *path = options->positionals[1];
    if (folder == NULL)
        return error_set(error, STATUS_USAGE, "export: which folder of saved documents?  --kv-disk DIR");
    TRY(kv_disk_read_id(options->positionals[0], &id, error));
    if (!option_flag(options, OPTION_FORCE) && stat(path, &info) == 0 && S_ISREG(info.st_mode))
        return error_set(error, STATUS_USAGE, "%s: is there already; --force replaces it", path);
    TRY(kv_disk_parse(&disk, folder, error));
    enum status status = store_open_existing(&store, disk.directory, STORE_VERIFY, error);
    kv_disk_deinit(&disk);
    TRY(status);
    note_warning(store);
    status = export_document(store, id, options, error);
    store_close(store);
    return status;
}

/* ---- import ---- */

struct input {
    struct io_file file;
    uint64_t offset, bytes;
    struct progress progress;
};

static enum status read_input(void *context, void *memory, size_t bytes, size_t *read, struct error *error) {
    struct input *input = context;
    const uint64_t left = input->bytes - input->offset;
    *read = bytes < left ? bytes : (size_t)left;
    TRY(io_file_read(&input->file, input->offset, memory, *read, error));
    input->offset += *read;
    progress_update(&input->progress, input->offset, input->bytes);
    return STATUS_OK;
}

/* store NULL: only checked. */
static enum status read_parcel(struct input *input, struct store *store, struct parcel_content *content,
                               struct error *error) {
    const struct parcel_source source = {input->file.path, input->bytes, input, read_input};
    input->offset = 0;
    progress_begin(&input->progress, store == NULL ? "check" : "import", false);
    input->progress.unit = PROGRESS_WORK;
    const enum status status = parcel_take(store, &source, NULL, NULL, content, error);
    progress_end(&input->progress);
    return status;
}

static enum status print_content(const struct parcel_content *content, struct error *error) {
    for (size_t i = 0; i < content->count; i++) {
        const struct parcel_document *document = &content->documents[i];
        char name[SHOWN_BYTES], model[SHOWN_BYTES];
        output_text("document %" PRIu64 ": %s, %" PRIu64 " tokens, %s%s%s\n", document->id, shown(document->name, name),
                    document->token_count, shown(document->model, model),
                    inputs_is_layout(document->layout) ? ", inputs of layers" : "",
                    document->was_there ? ", was there already" : "");
    }
    return output_flush(error);
}

/* What is wrong with the file is found before a folder is made, and before anything in it makes room. */
static enum status import_input(struct input *input, const struct kv_disk *disk, struct error *error) {
    struct parcel_content content;
    struct store *store;
    const struct store_options options = {.directory = disk->directory, .limit_bytes = disk->limit_bytes};
    TRY(read_parcel(input, NULL, &content, error));
    TRY(store_open(&store, &options, error));
    note_warning(store);
    enum status status = read_parcel(input, store, &content, error);
    store_close(store);
    return status == STATUS_OK ? print_content(&content, error) : status;
}

enum status import_command(const struct options *options, struct error *error) {
    if (options->positional_count == 2)
        return error_set(error, STATUS_USAGE, "import: a Hugging Face folder becomes a GGUF file by loam-lab import");
    const char *folder = option_text(options, OPTION_KV_DISK);
    struct input input = {.file = {.fd = -1}};
    struct kv_disk disk;
    if (folder == NULL)
        return error_set(error, STATUS_USAGE,
                         "import: one argument: an exported document needs --kv-disk DIR, a Hugging Face folder "
                         "the name of the GGUF file");
    TRY(kv_disk_parse(&disk, folder, error));
    enum status status = io_file_open_path(&input.file, options->positionals[0], false, NULL, error);
    if (status == STATUS_OK) status = io_file_size(&input.file, &input.bytes, error);
    if (status == STATUS_OK) status = import_input(&input, &disk, error);
    io_file_close(&input.file);
    kv_disk_deinit(&disk);
    return status;
}
