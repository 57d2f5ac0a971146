/* The files of documents: their names, their locks, and who they belong to. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/store/store_internal.h"
#include "platform/clock.h"
#include "platform/process.h"

void document_file_name(char name[40], uint64_t id, const char *suffix) {
    snprintf(name, 40, "%" PRIu64 ".%s", id, suffix);
}

enum status document_remove_files(struct store *store, uint64_t id, struct error *error) {
    char name[40];
    document_file_name(name, id, "pages");
    TRY(io_folder_remove(&store->folder, name, error));
    document_file_name(name, id, "metadata");
    return io_folder_remove(&store->folder, name, error);
}

/* The id of a document's file; 0: not one of ours. */
static uint64_t file_id(const char *name) {
    char again[40];
    uint64_t id = strtoull(name, NULL, 10);
    if (id == 0 || id >= DOCUMENT_ID_MAX) return 0;
    document_file_name(again, id, "pages");
    if (strcmp(name, again) == 0) return id;
    document_file_name(again, id, "metadata");
    return strcmp(name, again) == 0 ? id : 0;
}

enum status store_see_files(struct store *store,
                            enum status (*see)(struct store *store, const char *name, uint64_t id, void *context,
                                               struct error *error),
                            void *context, struct error *error) {
    int fd = openat(store->folder.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (folder == NULL) return error_set_os(error, STATUS_IO, errno, "%s", store->folder.path);
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        uint64_t id = file_id(entry->d_name);
        if (id > 0) status = see(store, entry->d_name, id, context, error);
    }
    closedir(folder);
    return status;
}

enum status document_lock_writer(struct store *store, uint64_t id, struct io_file *pages, unsigned milliseconds,
                                 struct error *error) {
    uint64_t end = clock_ns() + milliseconds * UINT64_C(1000000);
    for (;;) {
        struct document_row row;
        bool found;
        enum status status = io_file_try_lock(pages, LOCK_WRITER, IO_LOCK_EXCLUSIVE, error);
        if (status != STATUS_FULL) return status;
        TRY(catalog_find(&store->catalog, id, &row, &found, error));
        if (!found)
            return error_set(error, STATUS_DOCUMENT, "%s: there is no document %" PRIu64, store->folder.path, id);
        /* 0: it has just been opened, and will say so, or is just being closed. */
        if ((row.writer != 0 && process_is_running(row.writer)) || clock_ns() >= end)
            return error_set(error, STATUS_FULL, "document %" PRIu64 " is being written by process %" PRIu64, id,
                             row.writer);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}
