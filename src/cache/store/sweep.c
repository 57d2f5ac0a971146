/* What processes that died left behind, given back when a store is opened; and what a writer gives back itself.
 *
 * Nothing is destroyed because something is missing (invariant 8 of store.h): a file that no row names may be all
 * that is left of a document whose row was lost to a flipped byte, a lost write, or an older copy of the catalog
 * put in its place.  What may go is told by something that is there:
 *
 *   removed    a row of `removals`, intact, has the id: it was written in the transaction that deleted the rows
 *   empty      neither file holds a byte: it was being made when its process died; no row was committed yet, and
 *              only then is anything written
 *   no commit  an intact row says that there is none, none is found, and nobody holds the writer's lock
 *   behind     what lies behind the last commit, when row and commits are intact and chained, and nobody holds
 *              the lock
 *
 * and by an opening, for all but the second, only in a catalog whose trees and indices are sound, which is checked
 * when there is something to give back.  All else is left alone, with one line: store_warning. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cache/store/store_internal.h"

enum { DEAD_WRITER_MILLISECONDS = 1000 }; /* other processes wait for our transaction meanwhile */

/* Giving back */

/* The hole from each committed run's end to the end of its place in the last segment: what lies there was not
 * committed, and the file may end before it or behind it. */
static void punch_behind(struct io_file *file, const struct geometry *geometry, uint64_t chunks,
                         uint64_t (*offset)(const struct geometry *geometry, size_t layer, size_t kv_head,
                                            uint64_t chunk),
                         size_t (*entry_bytes)(const struct geometry *geometry, size_t layer, size_t kv_head,
                                               uint64_t chunk)) {
    if (chunks % SEGMENT_CHUNKS == 0) return;
    uint64_t last = chunks / SEGMENT_CHUNKS * SEGMENT_CHUNKS + SEGMENT_CHUNKS - 1;
    for (size_t layer = 0; layer < geometry->layer_count; layer++)
        for (size_t head = 0; head < geometry_heads(geometry, layer); head++) {
            uint64_t first = offset(geometry, layer, head, chunks);
            uint64_t end = offset(geometry, layer, head, last) + entry_bytes(geometry, layer, head, last);
            io_file_punch(file, first, end - first);
        }
}

static size_t key_index_entry_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    (void)layer, (void)kv_head, (void)chunk;
    return geometry->key_index_bytes;
}

/* The place of the next commit's tail. */
static void punch_tail(struct io_file *pages, const struct geometry *geometry, uint64_t generation) {
    io_file_punch(pages, tail_offset(geometry, generation + 1, 0, 0), geometry_tails_bytes(geometry));
}

/* Places of states that the last commit does without; *bytes: of them. */
static void punch_states(struct io_file *pages, const struct geometry *geometry, const struct document_states *states,
                         uint64_t *bytes) {
    const size_t place_bytes = state_place_bytes(geometry);
    *bytes = (STATE_PLACES - states->count) * (uint64_t)place_bytes;
    if (place_bytes == 0) return;
    for (size_t place = 0; place < STATE_PLACES; place++) {
        bool is_named = false;
        for (size_t i = 0; i < states->count; i++) is_named = is_named || states->list[i].place == place;
        if (!is_named) io_file_punch(pages, state_offset(geometry, place), place_bytes);
    }
}

/* Pages that windows of its positions do not see; false: somebody reads the document, perhaps as of a commit before,
 * and they stay until it is closed again. */
static bool punch_unseen(struct io_file *pages, const struct geometry *geometry, const struct document_states *states,
                         uint64_t chunks) {
    if (geometry->windows.tokens == 0) return true;
    if (io_file_try_lock(pages, LOCK_IN_USE, IO_LOCK_EXCLUSIVE, NULL) != STATUS_OK) return false;
    uint64_t begin = 0, end = 0; /* neighbours go together */
    for (uint64_t segment = 0; segment < chunks; segment += SEGMENT_CHUNKS)
        for (size_t layer = 0; layer < geometry->layer_count; layer++)
            for (size_t head = 0; geometry->windows.slides[layer] && head < geometry_heads(geometry, layer); head++)
                for (uint64_t chunk = segment; chunk < segment + SEGMENT_CHUNKS && chunk < chunks; chunk++) {
                    if (page_is_kept(geometry, states, layer, chunk)) continue;
                    const uint64_t at = page_offset(geometry, layer, head, chunk);
                    if (at != end && end > begin) io_file_punch(pages, begin, end - begin);
                    if (at != end) begin = at;
                    end = at + page_padded_bytes(geometry, layer, head, chunk);
                }
    if (end > begin) io_file_punch(pages, begin, end - begin);
    const enum status ignored = io_file_try_lock(pages, LOCK_IN_USE, IO_LOCK_SHARED, NULL); /* it may be read again */
    (void)ignored;
    return true;
}

static enum status trim(struct store *store, struct document_row *row, const struct geometry *geometry,
                        const struct document_states *states, const struct document_files *files, struct error *error) {
    struct io_file *pages = files->pages, *key_index = files->key_index;
    uint64_t chunks = chunks_full(row->token_count), end = pages_end(geometry, row->token_count, row->generation);
    uint64_t size;
    TRY(io_file_size(pages, &size, error));
    if (size > end) TRY(io_file_truncate(pages, end, error));
    punch_behind(pages, geometry, chunks, page_offset, page_padded_bytes);
    if (files->tail_begun) punch_tail(pages, geometry, row->generation);
    TRY(io_file_size(key_index, &size, error));
    end = key_index_end(geometry, row->token_count);
    if (size > end) TRY(io_file_truncate(key_index, end, error));
    if (geometry->key_index_bytes > 0)
        punch_behind(key_index, geometry, chunks, key_index_offset, key_index_entry_bytes);
    uint64_t unnamed;
    punch_states(pages, geometry, states, &unnamed);
    row->bytes = document_bytes_max(geometry, row->token_count) - unnamed;
    if (punch_unseen(pages, geometry, states, chunks)) row->bytes -= absent_bytes(geometry, states, chunks);
    row->writer = 0;
    return catalog_update(&store->catalog, row, error);
}

struct intact {
    const struct geometry *geometry;
    struct document_states states; /* of the last commit */
};

static enum status see_intact(void *context, const struct commit_row *commit, struct error *error) {
    struct intact *intact = context;
    struct checksum ignored[STATE_PLACES];
    const size_t tail =
        commit->token_end % KV_CHUNK_TOKENS == 0 ? 0 : intact->geometry->chunk_pages * sizeof(struct checksum);
    if (!geometry_has_positions(intact->geometry) || states_parse(commit, tail, &intact->states, ignored))
        return STATUS_OK; /* its checksum has been found right */
    return error_set(error, STATUS_DOCUMENT, "document %" PRIu64 ": commit %" PRIu64 ": no list of states",
                     commit->document, commit->number);
}

enum status document_give_back(struct store *store, struct document_row *row, const struct geometry *geometry,
                               const struct document_files *files, struct error *error) {
    /* An old row, of a write that was lost, would have its newer commits cut off. */
    struct intact intact = {.geometry = geometry};
    TRY(catalog_see_commits(&store->catalog, row, NULL, see_intact, &intact, false, error));
    if (row->generation > 0) return trim(store, row, geometry, &intact.states, files, error);
    /* Cut first: on a full disk only then the catalog has space for its journal. */
    if (files->pages != NULL) TRY(io_file_truncate(files->pages, 0, error));
    if (files->key_index != NULL) TRY(io_file_truncate(files->key_index, 0, error));
    return catalog_remove(&store->catalog, row->id, error);
}

/* Sweeping */

struct sweep {
    struct store *store;
    bool checked, sound;
    uint64_t nameless; /* files that no row explains */
    char first[40];    /* the first of them */
};

static void warn(struct store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Behind what is to be said already: a damaged row and the files that it leaves behind are two things to know. */
static void warn(struct store *store, const char *format, ...) {
    char *before = store->warning, *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) text = NULL;
    va_end(arguments);
    if (text == NULL) return;
    store->warning = text;
    if (before == NULL) return;
    if (asprintf(&store->warning, "%s; %s", before, text) < 0)
        store->warning = before;
    else
        free(before);
    free(text);
}

/* Whether the catalog's structure can be believed; asked once. */
static enum status check(struct sweep *sweep, struct error *error) {
    if (sweep->checked) return STATUS_OK;
    struct error why;
    enum status status = catalog_check(&sweep->store->catalog, &why);
    sweep->checked = true;
    sweep->sound = status == STATUS_OK;
    if (status == STATUS_DOCUMENT) {
        warn(sweep->store, "%s; nothing of it is removed, documents that are whole can be read", why.message);
        return STATUS_OK;
    }
    if (status != STATUS_OK && error != NULL) *error = why;
    return status;
}

/* A document whose writer did not close it, with the writer's lock. */
static enum status sweep_writing(struct sweep *sweep, struct document_row *row, const struct store_layout *layout,
                                 struct io_file *pages, struct io_file *key_index, struct error *error) {
    struct geometry geometry;
    struct error why;
    geometry_init(&geometry, layout);
    TRY(check(sweep, error));
    if (!sweep->sound) return STATUS_OK;
    const struct document_files files = {.pages = pages, .key_index = key_index, .tail_begun = true};
    enum status status = document_give_back(sweep->store, row, &geometry, &files, &why);
    if (status == STATUS_DOCUMENT) return catalog_flag(&sweep->store->catalog, row->id, why.message, error);
    if (status == STATUS_IO && !io_is_full(why.os_error)) { /* no reason not to open: a later opening tries again */
        warn(sweep->store, "%s", why.message);
        return STATUS_OK;
    }
    if (status != STATUS_OK && error != NULL) *error = why;
    return status;
}

static enum status open_files(struct store *store, uint64_t id, struct io_file *pages, struct io_file *key_index,
                              struct error *error) {
    char name[40];
    document_file_name(name, id, "pages");
    TRY(io_file_open(pages, &store->folder, name, IO_FILE_UPDATE, false, error));
    document_file_name(name, id, "metadata");
    enum status status = io_file_open(key_index, &store->folder, name, IO_FILE_UPDATE, false, error);
    if (status != STATUS_OK) io_file_close(pages);
    return status;
}

/* One that somebody is writing is left alone. */
static enum status sweep_document(struct sweep *sweep, struct document_row *row, struct error *error) {
    struct store *store = sweep->store;
    if (!row->intact) { /* a search may not find it, and so not say why it was not used */
        if (row->damaged[0] != '\0') return STATUS_OK;
        if (store->warning == NULL) /* the first of many will do */
            warn(store, "%s: document %" PRIu64 " is not used: its row in the catalog is damaged", store->catalog.path,
                 row->id);
        return catalog_flag(&store->catalog, row->id, "its row in the catalog is damaged", error);
    }
    struct store_layout layout;
    struct io_file pages, key_index;
    struct error why;
    unsigned version;
    if (!layout_is_read(row->layout, &version)) return STATUS_OK; /* said when it would have been used */
    if (row->damaged[0] == '\0' && layout_parse(row->layout, &layout, &why) != STATUS_OK) {
        if (store->warning == NULL)
            warn(store, "%s: document %" PRIu64 " is not used: %s", store->catalog.path, row->id, why.message);
        return catalog_flag(&store->catalog, row->id, why.message, error);
    }
    if (row->writer == 0 || layout_parse(row->layout, &layout, NULL) != STATUS_OK) return STATUS_OK;
    if (open_files(store, row->id, &pages, &key_index, &why) != STATUS_OK) /* the reason is said when it is opened */
        return row->generation > 0 || why.os_error != ENOENT ? STATUS_OK
                                                             : sweep_writing(sweep, row, &layout, NULL, NULL, error);
    enum status status = document_lock_writer(store, row->id, &pages, DEAD_WRITER_MILLISECONDS, error);
    if (status == STATUS_OK) status = sweep_writing(sweep, row, &layout, &pages, &key_index, error);
    io_file_close(&pages);
    io_file_close(&key_index);
    return status == STATUS_FULL ? STATUS_OK : status;
}

static enum status sweep_rows(struct sweep *sweep, struct error *error) {
    struct document_row *rows;
    size_t count;
    TRY(catalog_rows(&sweep->store->catalog, &rows, &count, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) status = sweep_document(sweep, &rows[i], error);
    free(rows);
    return status;
}

/* The bytes in both files of a document; UINT64_MAX: there are none.  Nothing that cannot be told is empty. */
static uint64_t bytes_in_files(struct store *store, uint64_t id) {
    static const char *const suffixes[] = {"pages", "metadata"};
    uint64_t bytes = UINT64_MAX;
    for (size_t i = 0; i < 2; i++) {
        char name[40];
        struct stat info;
        document_file_name(name, id, suffixes[i]);
        if (fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0)
            bytes = (bytes == UINT64_MAX ? 0 : bytes) + (uint64_t)info.st_size;
        else if (errno != ENOENT)
            return 1;
    }
    return bytes;
}

/* Files of documents that were removed and whose process died, or failed, before they were. */
static enum status sweep_removed(struct sweep *sweep, struct error *error) {
    struct store *store = sweep->store;
    struct document_row row;
    struct id_list list;
    bool found;
    TRY(catalog_removals(&store->catalog, &list, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < list.count; i++) {
        status = catalog_find(&store->catalog, list.ids[i], &row, &found, error);
        if (status != STATUS_OK || found) continue; /* a contradiction: left alone */
        if (bytes_in_files(store, list.ids[i]) != UINT64_MAX) {
            status = check(sweep, error);
            if (status != STATUS_OK || !sweep->sound) break;
            struct error why;
            if (document_remove_files(store, list.ids[i], &why) != STATUS_OK) { /* a folder put there, say */
                warn(store, "%s", why.message);
                continue;
            }
        }
        if (status == STATUS_OK) status = catalog_forget_removal(&store->catalog, list.ids[i], error);
    }
    free(list.ids);
    return status;
}

/* After sweep_removed: what no row names now is empty, or not to be explained. */
static enum status see_nameless(struct store *store, const char *name, uint64_t id, void *context,
                                struct error *error) {
    struct sweep *sweep = context;
    struct document_row row;
    bool found;
    TRY(catalog_find(&store->catalog, id, &row, &found, error));
    if (found) return STATUS_OK;
    const uint64_t bytes = bytes_in_files(store, id);
    if (bytes == UINT64_MAX) return STATUS_OK; /* removed with the other of the two, while the folder was being read */
    if (bytes == 0) return document_remove_files(store, id, error);
    if (sweep->nameless++ == 0) snprintf(sweep->first, sizeof sweep->first, "%s", name);
    return STATUS_OK;
}

static enum status sweep_files(struct sweep *sweep, struct error *error) {
    TRY(sweep_removed(sweep, error));
    return store_see_files(sweep->store, see_nameless, sweep, error);
}

/* One transaction: no other process makes or removes documents meanwhile. */
static enum status transact(struct sweep *sweep, enum status (*step)(struct sweep *sweep, struct error *error),
                            struct error *error) {
    struct catalog *catalog = &sweep->store->catalog;
    TRY(catalog_begin(catalog, error));
    enum status status = step(sweep, error);
    if (status == STATUS_OK && !(sweep->checked && !sweep->sound)) return catalog_commit(catalog, error);
    catalog_rollback(catalog); /* nothing is written into a catalog that is not sound */
    return status;
}

enum status store_sweep(struct store *store, struct error *error) {
    struct sweep sweep = {.store = store};
    struct error why;
    enum status status = transact(&sweep, sweep_rows, &why);
    if (status == STATUS_OK) status = transact(&sweep, sweep_files, &why); /* once the rows are durably gone */
    /* A full disk must not keep anybody from reading or removing; a later opening does the rest. */
    if (status == STATUS_IO && io_is_full(why.os_error)) return STATUS_OK;
    if (status != STATUS_OK) {
        if (error != NULL) *error = why;
        return status;
    }
    if (sweep.nameless > 0)
        warn(store,
             "%s: the catalog does not know %" PRIu64 " file%s there, %s%s: left alone, since a damaged or older "
             "catalog may have lost what they belong to",
             store->folder.path, sweep.nameless, sweep.nameless == 1 ? "" : "s", sweep.first,
             sweep.nameless == 1 ? "" : " first");
    return STATUS_OK;
}
