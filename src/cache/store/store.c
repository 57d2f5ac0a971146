/* The store as a whole: opening, space within the limit, removing. */
#include "cache/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/store_internal.h"

/* Kept free within the limit: an empty catalog and the journal of one commit. */
enum { CATALOG_RESERVE = 512 << 10, STAGING_USUAL = 8 << 20 };

static enum status see_any(struct store *store, const char *name, uint64_t id, void *context, struct error *error) {
    (void)store, (void)name, (void)id, (void)error;
    *(bool *)context = true;
    return STATUS_OK;
}

enum status store_open(struct store **result, const struct store_options *options, struct error *error) {
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", options->directory);
    store->options = *options;
    store->options.directory = store->options.sqlite_vfs = NULL;
    if (store->options.staging_bytes == 0) store->options.staging_bytes = STAGING_USUAL;
    if (options->sqlite_vfs != NULL) store->vfs = strdup(options->sqlite_vfs);
    enum status status = io_folder_open(&store->folder, options->directory,
                                        options->read_only ? IO_FOLDER_READ : IO_FOLDER_CREATE, options->faults, error);
    bool documents = false;
    if (status == STATUS_OK) status = store_see_files(store, see_any, &documents, error);
    if (status == STATUS_OK)
        status = catalog_open(&store->catalog, &store->folder, options->read_only, !documents, store->vfs, error);
    if (status == STATUS_OK && !options->read_only) status = store_sweep(store, error);
    if (status == STATUS_OK)
        *result = store;
    else
        store_close(store);
    return status;
}

static enum status check_catalog(const char *directory, struct error *error) {
    char *path;
    if (asprintf(&path, "%s/catalog.db", directory) < 0)
        return error_set(error, STATUS_MEMORY, "%s: out of memory", directory);
    enum status status = STATUS_OK;
    if (access(path, F_OK) != 0) status = error_set_os(error, STATUS_IO, errno, "%s: no saved documents", directory);
    free(path);
    return status;
}

enum status store_open_existing(struct store **store, const char *directory, enum store_purpose purpose,
                                struct error *error) {
    struct store_options options = {.directory = directory, .read_only = purpose == STORE_LOOK};
    struct error ignored; /* the first reason is the better one */
    TRY(check_catalog(directory, error));
    enum status status = store_open(store, &options, error);
    if (status != STATUS_IO || purpose == STORE_CHANGE) return status;
    options.read_only = !options.read_only;
    return store_open(store, &options, &ignored) == STATUS_OK ? STATUS_OK : status;
}

void store_close(struct store *store) {
    if (store == NULL) return;
    ASSERT(store->document_count == 0);
    writer_stop(store->writer);
    catalog_close(&store->catalog);
    io_folder_close(&store->folder);
    free(store->warning);
    free(store->refused);
    free(store->refused_states);
    free(store->vfs);
    free(store);
}

const char *store_warning(const struct store *store) { return store->warning; }

enum status store_flag(struct store *store, uint64_t id, struct error *error) {
    /* The flag is what keeps it from being found again; where it cannot be set (a folder that is only read, a full
     * disk) this store remembers, and the next reader finds the same damage. */
    char reason[STORE_TEXT_MAX];
    snprintf(reason, sizeof reason, "%.*s", STORE_TEXT_MAX - 1, error != NULL ? error->message : "damaged");
    if (!store->options.read_only && catalog_flag(&store->catalog, id, reason, NULL) == STATUS_OK)
        return STATUS_DOCUMENT;
    if (array_reserve(&store->refused, store->refused_count, &store->refused_capacity, sizeof *store->refused))
        store->refused[store->refused_count++] = id;
    return STATUS_DOCUMENT;
}

void store_refuse_state(struct store *store, uint64_t id, uint64_t position) {
    if (!array_reserve(&store->refused_states, store->refused_state_count, &store->refused_state_capacity,
                       sizeof *store->refused_states))
        return; /* it is found, and refused, again */
    store->refused_states[store->refused_state_count++] = (struct refused_state){id, position};
}

bool store_refuses_state(const struct store *store, uint64_t id, uint64_t position) {
    for (size_t i = 0; i < store->refused_state_count; i++)
        if (store->refused_states[i].document == id && store->refused_states[i].position == position) return true;
    return false;
}

/* Room */

/* What a row counts for; when its number cannot be trusted, what its files take. */
static uint64_t reserved_bytes(struct store *store, const struct document_row *row) {
    if (row->intact) return row->bytes;
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        char name[40];
        struct stat info;
        document_file_name(name, row->id, i == 0 ? "pages" : "metadata");
        if (fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0) bytes += (uint64_t)info.st_blocks * 512;
    }
    return bytes;
}

struct nameless {
    const struct document_row *rows; /* by id */
    size_t count;
    uint64_t bytes;
};

static int by_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = ((const struct document_row *)b)->id;
    return x < y ? -1 : x > y;
}

/* Blocks of a file that no row names: they may not go (sweep.c), so they count. */
static enum status see_nameless(struct store *store, const char *name, uint64_t id, void *context,
                                struct error *error) {
    (void)error;
    struct nameless *nameless = context;
    struct stat info;
    if (bsearch(&id, nameless->rows, nameless->count, sizeof *nameless->rows, by_id) == NULL &&
        fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0)
        nameless->bytes += (uint64_t)info.st_blocks * 512;
    return STATUS_OK;
}

static enum status bytes_taken(struct store *store, const struct document_row *rows, size_t count, uint64_t *bytes,
                               struct error *error) {
    struct nameless nameless = {rows, count, 0};
    struct stat conversations;
    TRY(store_see_files(store, see_nameless, &nameless, error));
    TRY(catalog_bytes(&store->catalog, bytes, error));
    *bytes += CATALOG_RESERVE + nameless.bytes;
    if (fstatat(store->folder.fd, CONVERSATIONS_NAME, &conversations, AT_SYMLINK_NOFOLLOW) == 0)
        *bytes += (uint64_t)conversations.st_size;
    for (size_t i = 0; i < count; i++)
        *bytes += reserved_bytes(store, &rows[i]); /* each below 2^62, and far fewer than disks hold */
    return STATUS_OK;
}

static enum status full(struct store *store, uint64_t needed, uint64_t taken, struct error *error) {
    uint64_t limit = store->options.limit_bytes;
    return error_set(error, STATUS_FULL,
                     "%s: %" PRIu64 " MiB are needed, %" PRIu64 " MiB are free of the limit of %" PRIu64 " MiB",
                     store->folder.path, (needed >> 20) + 1, taken < limit ? (limit - taken) >> 20 : 0, limit >> 20);
}

enum status store_check_space(struct store *store, uint64_t needed, struct error *error) {
    if (needed == UINT64_MAX) return error_set(error, STATUS_FULL, "%s: no disk is that large", store->folder.path);
    if (store->options.limit_bytes == 0) return STATUS_OK;
    struct document_row *rows;
    size_t count;
    uint64_t taken, sum;
    TRY(catalog_rows(&store->catalog, &rows, &count, error));
    enum status status = bytes_taken(store, rows, count, &taken, error);
    free(rows);
    TRY(status);
    if (checked_add(taken, needed, &sum) && sum <= store->options.limit_bytes) return STATUS_OK;
    return full(store, needed, taken, error);
}

enum status store_check_room(struct store *store, uint64_t bytes, struct error *error) {
    struct statvfs disk;
    TRY(store_check_space(store, bytes, error));
    if (fstatvfs(store->folder.fd, &disk) != 0) return error_set_os(error, STATUS_IO, errno, "%s", store->folder.path);
    const uint64_t block = disk.f_frsize, free_blocks = disk.f_bavail;
    if (bytes / block < free_blocks) return STATUS_OK;
    return error_set(error, STATUS_FULL, "%s: %" PRIu64 " MiB are needed, the disk has %" PRIu64 " MiB free",
                     store->folder.path, (bytes >> 20) + 1, (free_blocks >> 10) * block >> 10);
}

struct victim {
    uint64_t id, bytes;
    bool damaged;
    struct timespec used;
};

static int by_age(const void *a, const void *b) {
    const struct victim *x = a, *y = b;
    if (x->damaged != y->damaged) return x->damaged ? -1 : 1;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* When it was last opened: the time of its pages file (document_open sets it; no change of the catalog). */
static void time_used(struct store *store, uint64_t id, struct timespec *used) {
    char name[40];
    struct stat info;
    document_file_name(name, id, "pages");
    *used = (struct timespec){0};
    if (fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0) *used = info.st_mtim;
}

/* Opens the pages file with the lock that says nobody uses the document.  A file that is gone is no
 * hindrance: pages->path is NULL then. */
static enum status lock_unused(struct store *store, uint64_t id, struct io_file *pages, struct error *error) {
    char name[40];
    document_file_name(name, id, "pages");
    struct error why;
    *pages = (struct io_file){.fd = -1};
    if (io_file_open(pages, &store->folder, name, IO_FILE_UPDATE, false, &why) != STATUS_OK) return STATUS_OK;
    enum status status = io_file_try_lock(pages, LOCK_IN_USE, IO_LOCK_EXCLUSIVE, &why);
    if (status == STATUS_OK) return STATUS_OK;
    io_file_close(pages);
    if (status != STATUS_FULL) {
        if (error != NULL) *error = why;
        return status;
    }
    return error_set(error, STATUS_FULL, "document %" PRIu64 ": somebody has it open", id);
}

static bool in_use(struct store *store, uint64_t id) {
    struct io_file pages;
    if (lock_unused(store, id, &pages, NULL) != STATUS_OK) return true;
    io_file_close(&pages);
    return false;
}

static enum status remove_rows(struct store *store, uint64_t id, struct error *error) {
    TRY(catalog_begin(&store->catalog, error));
    enum status status = catalog_remove(&store->catalog, id, error);
    if (status == STATUS_OK) return catalog_commit(&store->catalog, error);
    catalog_rollback(&store->catalog);
    return status;
}

/* The rows are removed first, and the files once that is durable.  A full disk has no space for the catalog's journal:
 * then the pages are cut first to make it.  If the process dies between the two, the document is damaged until it is
 * removed again. */
static enum status remove_document(struct store *store, uint64_t id, struct error *error) {
    struct io_file pages;
    struct document_row row;
    bool found;
    struct error why;
    TRY(catalog_find(&store->catalog, id, &row, &found, error));
    if (!found) return error_set(error, STATUS_DOCUMENT, "%s: there is no document %" PRIu64, store->folder.path, id);
    TRY(lock_unused(store, id, &pages, error));
    enum status status = remove_rows(store, id, &why);
    if (status == STATUS_IO && io_is_full(why.os_error) && pages.fd >= 0 &&
        io_file_truncate(&pages, 0, NULL) == STATUS_OK)
        status = remove_rows(store, id, &why);
    if (status == STATUS_OK) status = document_remove_files(store, id, &why); /* or the next opening does */
    io_file_close(&pages);
    if (status != STATUS_OK && error != NULL) *error = why;
    return status;
}

/* Rows are deleted through an index: a damaged one could lead to those of another document. */
static enum status check_removal(struct store *store, struct error *error) {
    struct error why;
    enum status status = catalog_check(&store->catalog, &why);
    if (status == STATUS_OK) return STATUS_OK;
    if (status == STATUS_DOCUMENT)
        return error_set(error, status, "%s; nothing of it is removed, documents that are whole can be read",
                         why.message);
    if (error != NULL) *error = why;
    return status;
}

enum status store_make_space(struct store *store, uint64_t needed, struct error *error) {
    enum status status = store_check_space(store, needed, error);
    if (status != STATUS_FULL || needed == UINT64_MAX || store->options.keeps_documents) return status;
    struct document_row *rows;
    size_t count, victim_count = 0;
    uint64_t taken = 0, sum, evictable = 0;
    TRY(catalog_rows(&store->catalog, &rows, &count, error));
    status = bytes_taken(store, rows, count, &taken, error);
    struct victim *victims = calloc(count > 0 ? count : 1, sizeof *victims);
    if (status == STATUS_OK && victims == NULL)
        status = error_set(error, STATUS_MEMORY, "%s: out of memory", store->folder.path);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        /* A damaged row cannot even be believed its id: only who asks for it by number removes it. */
        if (!rows[i].intact || in_use(store, rows[i].id)) continue;
        struct victim *victim = &victims[victim_count++];
        *victim = (struct victim){
            .id = rows[i].id, .bytes = reserved_bytes(store, &rows[i]), .damaged = rows[i].damaged[0] != '\0'};
        time_used(store, victim->id, &victim->used);
        evictable += victim->bytes;
    }
    /* Nothing is removed for a document that will not fit even then. */
    uint64_t limit = store->options.limit_bytes;
    if (status == STATUS_OK && (!checked_add(taken > evictable ? taken - evictable : 0, needed, &sum) || sum > limit))
        status = full(store, needed, taken > evictable ? taken - evictable : 0, error);
    if (status == STATUS_OK) status = check_removal(store, error);
    if (status == STATUS_OK) qsort(victims, victim_count, sizeof *victims, by_age);
    for (size_t i = 0; status == STATUS_OK && i < victim_count; i++) {
        if (i > 0 && store_check_space(store, needed, error) == STATUS_OK) break;
        status = remove_document(store, victims[i].id, error);
        if (status == STATUS_FULL) status = STATUS_OK; /* opened since: the next one */
    }
    free(rows);
    free(victims);
    return status == STATUS_OK ? store_check_space(store, needed, error) : status;
}

enum status store_remove(struct store *store, uint64_t id, struct error *error) {
    TRY(check_removal(store, error));
    return remove_document(store, id, error);
}

/* Listing */

static void show_row(struct store *store, const struct document_row *row,
                     void (*see)(void *context, const struct document_info *info), void *context) {
    struct timespec used;
    struct store_layout layout;
    unsigned version;
    const bool is_other = !layout_is_read(row->layout, &version);
    bool mixed = layout_parse(row->layout, &layout, NULL) == STATUS_OK && layout.fractions.layer_count > 0;
    time_used(store, row->id, &used);
    const char *damaged = row->damaged[0] != '\0' ? row->damaged
                          : !row->intact          ? "its row in the catalog is damaged"
                                                  : NULL;
    const struct document_info info = {row->id,
                                       row->token_count,
                                       row->generation,
                                       row->bytes,
                                       row->created,
                                       used.tv_sec,
                                       row->name,
                                       row->model,
                                       row->layout,
                                       mixed ? &layout.fractions : NULL,
                                       row->fingerprint,
                                       damaged,
                                       version,
                                       is_other && damaged == NULL,
                                       in_use(store, row->id)};
    see(context, &info);
}

enum status store_list(struct store *store, void (*see)(void *context, const struct document_info *info), void *context,
                       struct error *error) {
    struct document_row *rows;
    size_t count;
    TRY(catalog_rows(&store->catalog, &rows, &count, error));
    for (size_t i = 0; i < count; i++) show_row(store, &rows[i], see, context);
    free(rows);
    return STATUS_OK;
}

enum status store_show(struct store *store, uint64_t id, void (*see)(void *context, const struct document_info *info),
                       void *context, struct error *error) {
    struct document_row row;
    bool found;
    TRY(catalog_find(&store->catalog, id, &row, &found, error));
    if (!found) return error_set(error, STATUS_DOCUMENT, "%s: there is no document %" PRIu64, store->folder.path, id);
    show_row(store, &row, see, context);
    return STATUS_OK;
}
