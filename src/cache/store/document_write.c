/* Making and extending a document: the engine's side of the writing. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/store_internal.h"

static void copy_text(char text[STORE_TEXT_MAX], const char *from) {
    snprintf(text, STORE_TEXT_MAX, "%s", from != NULL ? from : "");
}

/* Both files, new, and the locks; the folder is flushed, so that they are there after a power cut too. */
static enum status files_create(struct document *document, struct error *error) {
    struct io_folder *folder = &document->store->folder;
    char pages[40], key_index[40];
    document_file_name(pages, document->row.id, "pages");
    document_file_name(key_index, document->row.id, "metadata");
    TRY(io_file_open(&document->pages, folder, pages, IO_FILE_CREATE, true, error));
    TRY(io_file_open(&document->key_index, folder, key_index, IO_FILE_CREATE, false, error));
    TRY(io_file_try_lock(&document->pages, LOCK_WRITER, IO_LOCK_EXCLUSIVE, error));
    TRY(io_file_try_lock(&document->pages, LOCK_IN_USE, IO_LOCK_SHARED, error));
    return io_folder_sync(folder, error);
}

/* Those that this document has made, as well as it can: what stays is swept at the next opening. */
static void files_forget(struct document *document) {
    static const char *const suffixes[] = {"pages", "metadata"};
    const struct io_file *const files[] = {&document->pages, &document->key_index};
    for (size_t i = 0; i < 2; i++) {
        char name[40];
        if (files[i]->fd < 0) continue;
        document_file_name(name, document->row.id, suffixes[i]);
        enum status ignored = io_folder_remove(&document->store->folder, name, NULL);
        (void)ignored;
    }
}

static enum status see_largest(struct store *store, const char *name, uint64_t id, void *context, struct error *error) {
    (void)store, (void)name, (void)error;
    uint64_t *largest = context;
    if (id > *largest) *largest = id;
    return STATUS_OK;
}

static enum status row_create(struct document *document, uint64_t bytes_max, struct error *error) {
    struct store *store = document->store;
    TRY(catalog_begin(&store->catalog, error));
    enum status status = store_check_space(store, bytes_max, error);
    uint64_t id_used = 0; /* by files that the catalog may not know: an id of theirs would endanger them */
    if (status == STATUS_OK) status = store_see_files(store, see_largest, &id_used, error);
    if (status == STATUS_OK) status = catalog_insert(&store->catalog, id_used, &document->row, error);
    if (status == STATUS_OK) status = catalog_note_version(&store->catalog, &document->geometry, error);
    if (status == STATUS_OK) status = files_create(document, error);
    if (status == STATUS_OK)
        status = catalog_commit(&store->catalog, error);
    else
        catalog_rollback(&store->catalog);
    if (status != STATUS_OK && document->row.id > 0) files_forget(document);
    return status;
}

enum status document_create(struct document **result, struct store *store,
                            const struct document_description *description, struct error *error) {
    const struct store_layout *layout = description->layout;
    if (store->options.read_only) return error_set(error, STATUS_IO, "%s: opened read-only", store->folder.path);
    TRY(layout_check(layout, error));
    if (description->token_capacity > STORE_TOKENS_MAX)
        return error_set(error, STATUS_USAGE, "document: %" PRIu64 " tokens, at most %" PRIu64,
                         description->token_capacity, STORE_TOKENS_MAX);
    struct geometry geometry;
    geometry_init(&geometry, layout);
    uint64_t bytes_max = document_bytes_reserved(&geometry, description->token_capacity);
    TRY(store_make_space(store, bytes_max, error));
    TRY(writer_start(store, &geometry, error));
    struct document *document;
    TRY(document_allocate(&document, store, layout, true, error));
    struct document_row *row = &document->row;
    row->bytes = bytes_max;
    row->created = (int64_t)time(NULL);
    row->writer = (uint64_t)getpid();
    memcpy(row->fingerprint, description->model->fingerprint, STORE_FINGERPRINT_BYTES);
    copy_text(row->model, description->model->description);
    copy_text(row->name, description->name);
    layout_format(layout, row->layout);
    document->window_room = window_room_bytes(&geometry, chunks_full(description->token_capacity));
    enum status status = document_tables(document, description->token_capacity, error);
    if (status == STATUS_OK) status = row_create(document, bytes_max, error);
    document->id = row->id;
    if (status != STATUS_OK) {
        document_free(document);
        return status;
    }
    *result = document;
    return STATUS_OK;
}

struct same_tokens {
    const int32_t *tokens; /* [count] */
    uint64_t count, seen;
    bool differ, same;
};

static bool compare_tokens(void *context, const int32_t *tokens, uint64_t count) {
    struct same_tokens *same = context;
    same->differ = count > same->count - same->seen ||
                   memcmp(tokens, same->tokens + same->seen, (size_t)count * sizeof *tokens) != 0;
    same->seen += count;
    return !same->differ;
}

/* compared->same: that document has the same tokens in the same layout, and files as long as they must be. */
static enum status is_same(struct store *store, const struct geometry *geometry, uint64_t id,
                           struct same_tokens *compared, struct error *error) {
    struct document_row row;
    bool found;
    compared->seen = 0;
    compared->differ = compared->same = false;
    TRY(catalog_find(&store->catalog, id, &row, &found, error));
    if (!found || !row.intact || row.damaged[0] != '\0' || row.token_count != compared->count) return STATUS_OK;
    TRY(catalog_see_tokens(&store->catalog, id, compare_tokens, compared, error));
    if (compared->differ || compared->seen != compared->count) return STATUS_OK;
    static const char *const suffixes[] = {"pages", "metadata"};
    const uint64_t ends[] = {pages_end(geometry, row.token_count, row.generation),
                             key_index_end(geometry, row.token_count)};
    for (size_t i = 0; i < 2; i++) {
        char name[40];
        struct stat info;
        document_file_name(name, id, suffixes[i]);
        if (fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode) ||
            (uint64_t)info.st_size < ends[i])
            return STATUS_OK;
    }
    compared->same = true;
    return STATUS_OK;
}

enum status document_find_same(struct store *store, const struct document_row *row, const struct geometry *geometry,
                               const int32_t *tokens, uint64_t *id, struct error *error) {
    struct id_list list;
    struct same_tokens compared = {.tokens = tokens, .count = row->token_count};
    *id = 0;
    TRY(catalog_candidates(&store->catalog, row->fingerprint, row->layout, row->prefix, &list, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < list.count && !compared.same; i++) {
        if (list.ids[i] == row->id) continue;
        status = is_same(store, geometry, list.ids[i], &compared, error);
        if (compared.same) *id = list.ids[i];
    }
    free(list.ids);
    return status;
}

/* Processes that begin at once with one prompt each find nothing saved, and each saves it: those that close later see
 * the first one's, whole, and take theirs back.  Inside the transaction, so never both; not one that was there before,
 * and not one that somebody reads. */
static enum status is_copy(struct document *document, const struct document_row *ours, bool *copy) {
    uint64_t other;
    *copy = false;
    if (document->opened_generation > 0 || ours->token_count < KV_CHUNK_TOKENS) return STATUS_OK;
    TRY(document_find_same(document->store, ours, &document->geometry, document->tokens, &other, NULL));
    *copy = other != 0 && io_file_try_lock(&document->pages, LOCK_IN_USE, IO_LOCK_EXCLUSIVE, NULL) == STATUS_OK;
    return STATUS_OK;
}

/* What the catalog says now, not what we remember: a commit that failed may have happened all the same (the last
 * flush of SQLite's journal comes after the point of no return). */
static enum status give_back(struct document *document, bool *forget) {
    struct store *store = document->store;
    struct document_row row;
    bool found;
    TRY(catalog_find(&store->catalog, document->row.id, &row, &found, NULL));
    if (!found || !row.intact) return STATUS_OK;
    if (row.generation < document->row.generation) return STATUS_OK; /* a commit was lost: nothing is cut off */
    bool copy = false;
    if (row.generation > 0) TRY(is_copy(document, &row, &copy));
    *forget = row.generation == 0 || copy;
    if (copy) return catalog_remove(&store->catalog, row.id, NULL);
    const struct document_files files = {.pages = &document->pages,
                                         .key_index = &document->key_index,
                                         .tail_begun = document->tail_tokens > row.token_count};
    return document_give_back(store, &row, &document->geometry, &files, NULL);
}

/* Gives back what was not committed: as well as it can, the next store_open does the rest. */
static void writing_end(struct document *document) {
    struct catalog *catalog = &document->store->catalog;
    bool forget = false;
    writer_wait_document(document->store->writer, document);
    if (catalog_begin(catalog, NULL) != STATUS_OK) return;
    if (give_back(document, &forget) != STATUS_OK)
        catalog_rollback(catalog);
    else if (catalog_commit(catalog, NULL) == STATUS_OK && forget)
        files_forget(document);
}

void document_close(struct document *document) {
    if (document == NULL) return;
    if (document->writing) writing_end(document);
    document_free(document);
}

/* Writing */

size_t document_write_max(const struct document *document) {
    size_t buffer = writer_buffer_bytes(document->store->writer), count = buffer / page_padded_max(&document->geometry);
    if (document->geometry.key_index_bytes > 0) count = min_size(count, buffer / document->geometry.key_index_bytes);
    return min_size(count, SEGMENT_CHUNKS);
}

size_t document_write_key_index_max(const struct document *document) {
    return min_size(writer_buffer_bytes(document->store->writer) / document->geometry.key_index_bytes, SEGMENT_CHUNKS);
}

static void range_assert(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk_first,
                         size_t chunk_count) {
    ASSERT(document->writing && layer < document->geometry.layer_count &&
           kv_head < geometry_heads(&document->geometry, layer));
    ASSERT(chunk_count > 0 && chunk_count <= SEGMENT_CHUNKS);
    ASSERT(chunk_first >= chunks_full(document->asked_tokens)); /* invariant 1 */
    ASSERT(chunk_first + chunk_count <= document->chunk_capacity);
}

struct taken_buffers {
    struct buffer *buffers[WRITE_BUFFERS_MAX];
    size_t counts[WRITE_BUFFERS_MAX]; /* of chunks in each */
    size_t count;
};

/* Those for [chunk_first, chunk_first + chunk_count): one, or two when a segment ends among them. */
static enum status take(struct document *document, uint64_t chunk_first, size_t chunk_count,
                        struct taken_buffers *taken, struct error *error) {
    struct writer *writer = document->store->writer;
    TRY(writer_failure(writer, document, error));
    taken->counts[0] = min_size(chunk_count, SEGMENT_CHUNKS - chunk_first % SEGMENT_CHUNKS);
    taken->counts[1] = chunk_count - taken->counts[0];
    taken->count = taken->counts[1] > 0 ? 2 : 1;
    if (writer_take_buffers(writer, taken->count, taken->buffers)) return STATUS_OK;
    return error_set(error, STATUS_FULL, "document %" PRIu64 ": every write-behind buffer is on its way to the disk",
                     document->id);
}

static void mark(struct document *document, _Atomic uint8_t *states, const struct write_range *range) {
    for (size_t i = 0; i < range->kv_head_count * range->count; i++) {
        _Atomic uint8_t *state = &states[page_index(
            &document->geometry, range->layer, range->kv_head + i / range->count, range->chunk + i % range->count)];
        ASSERT(atomic_load_explicit(state, memory_order_relaxed) == PAGE_NONE); /* written once */
        atomic_store_explicit(state, PAGE_QUEUED, memory_order_relaxed);
    }
}

enum status document_write_pages(struct document *document, size_t layer, size_t kv_head, uint64_t chunk_first,
                                 size_t chunk_count, const void *const *chunks, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    struct taken_buffers taken;
    range_assert(document, layer, kv_head, chunk_first, chunk_count);
    ASSERT(chunk_count <= document_write_max(document));
    uint64_t windows = 0;
    for (size_t i = 0; geometry->windows.tokens > 0 && geometry->windows.slides[layer] && i < chunk_count; i++)
        windows += page_padded_bytes(geometry, layer, kv_head, chunk_first + i);
    TRY(document_use_room(document, windows, error));
    const enum status status = take(document, chunk_first, chunk_count, &taken, error);
    if (status != STATUS_OK) document->window_room += windows;
    TRY(status);
    for (size_t b = 0; b < taken.count; b++) {
        uint8_t *page = writer_buffer_memory(taken.buffers[b]);
        for (size_t i = 0; i < taken.counts[b]; i++) {
            size_t bytes = page_chunk_bytes(geometry, layer, kv_head, chunk_first + i);
            size_t place = page_padded_bytes(geometry, layer, kv_head, chunk_first + i);
            memcpy(page, *chunks++, bytes);
            memset(page + bytes, 0, place - bytes);
            page += place;
        }
        const struct write_range range = {WRITE_PAGES, document, layer, kv_head, 1, chunk_first, taken.counts[b], 0};
        mark(document, document->page_states, &range);
        writer_submit(document->store->writer, taken.buffers[b], &range);
        chunk_first += taken.counts[b];
    }
    return STATUS_OK;
}

enum status document_write_key_index(struct document *document, const struct key_index_write *write,
                                     struct error *error) {
    const size_t entry = document->geometry.key_index_bytes, heads = write->kv_head_count;
    const uint8_t *bytes = write->memory;
    uint64_t chunk = write->chunk;
    struct taken_buffers taken;
    ASSERT(entry > 0 && heads > 0 && heads * write->count * entry <= writer_buffer_bytes(document->store->writer));
    ASSERT(heads == 1 || (write->count == SEGMENT_CHUNKS && chunk % SEGMENT_CHUNKS == 0));
    range_assert(document, write->layer, write->kv_head + heads - 1, chunk, write->count);
    TRY(take(document, chunk, write->count, &taken, error));
    for (size_t b = 0; b < taken.count; b++) {
        const struct write_range range = {WRITE_KEY_INDEX, document, write->layer,    write->kv_head,
                                          heads,           chunk,    taken.counts[b], 0};
        memcpy(writer_buffer_memory(taken.buffers[b]), bytes, heads * range.count * entry);
        mark(document, document->key_index_states, &range);
        writer_submit(document->store->writer, taken.buffers[b], &range);
        bytes += heads * range.count * entry;
        chunk += range.count;
    }
    return STATUS_OK;
}

enum status document_write_tail(struct document *document, size_t layer, size_t kv_head, uint64_t token_count,
                                const void *chunk, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    struct taken_buffers taken;
    const size_t bytes = tail_bytes(geometry, layer, token_count);
    ASSERT(document->writing && layer < geometry->layer_count && kv_head < geometry_heads(geometry, layer));
    ASSERT(token_count % KV_CHUNK_TOKENS != 0 && token_count > document->asked_tokens &&
           token_count <= document->token_capacity);
    if (document->tail_tokens != token_count) memset(document->tail_states, PAGE_NONE, geometry->chunk_pages);
    document->tail_tokens = token_count;
    uint8_t *state = &document->tail_states[page_index(geometry, layer, kv_head, 0)];
    ASSERT(*state == PAGE_NONE);
    TRY(take(document, 0, 1, &taken, error));
    uint8_t *page = writer_buffer_memory(taken.buffers[0]);
    memcpy(page, chunk, bytes);
    memset(page + bytes, 0, align_up(bytes, IO_ALIGNMENT) - bytes);
    *state = PAGE_QUEUED;
    const struct write_range range = {WRITE_TAIL, document, layer, kv_head, 1, token_count, 1, 0};
    writer_submit(document->store->writer, taken.buffers[0], &range);
    return STATUS_OK;
}

/* A commit of what was never written would only be found when it is read. */
static void complete_assert(const struct document *document, uint64_t token_count) {
    const struct geometry *geometry = &document->geometry;
    for (uint64_t chunk = chunks_full(document->asked_tokens); chunk < chunks_full(token_count); chunk++)
        for (size_t layer = 0, i = page_index(geometry, 0, 0, chunk); layer < geometry->layer_count; layer++)
            for (size_t head = 0; head < geometry_heads(geometry, layer); head++, i++) {
                ASSERT(!page_is_kept(geometry, &document->states_next, layer, chunk) ||
                       atomic_load_explicit(&document->page_states[i], memory_order_relaxed) != PAGE_NONE);
                ASSERT(geometry->key_index_bytes == 0 || geometry_key_index_heads(geometry, layer) == 0 ||
                       atomic_load_explicit(&document->key_index_states[i], memory_order_relaxed) != PAGE_NONE);
            }
    if (token_count % KV_CHUNK_TOKENS == 0) return;
    ASSERT(document->tail_tokens == token_count);
    for (size_t i = 0; i < geometry->chunk_pages; i++) ASSERT(document->tail_states[i] != PAGE_NONE);
}

enum status document_commit(struct document *document, const int32_t *tokens, uint64_t token_count,
                            struct error *error) {
    struct writer *writer = document->store->writer;
    ASSERT(document->writing && !document->is_begun);
    ASSERT(token_count > document->asked_tokens && token_count <= document->token_capacity);
    TRY(writer_failure(writer, document, error));
    complete_assert(document, token_count);
    TRY(writer_commit(writer, document, tokens, document->asked_tokens, token_count, error));
    document->asked_tokens = token_count;
    document->asked_generation++;
    document->states = document->states_next;
    return STATUS_OK;
}

enum status document_forget_pages(struct document *document, uint64_t chunk_first, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    ASSERT(document->writing && chunk_first >= chunks_full(document->asked_tokens)); /* invariant 1 */
    TRY(document_flush(document, error));
    const size_t end = page_index(geometry, 0, 0, document->chunk_capacity);
    for (size_t i = page_index(geometry, 0, 0, chunk_first); i < end; i++) {
        atomic_store_explicit(&document->page_states[i], PAGE_NONE, memory_order_relaxed);
        if (geometry->key_index_bytes > 0)
            atomic_store_explicit(&document->key_index_states[i], PAGE_NONE, memory_order_relaxed);
    }
    return STATUS_OK;
}

void document_drop_page(struct document *document, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct geometry *geometry = &document->geometry;
    if (chunk < chunks_full(document->asked_tokens) || !document_page_written(document, layer, kv_head, chunk)) return;
    io_file_punch(&document->pages, page_offset(geometry, layer, kv_head, chunk),
                  page_padded_bytes(geometry, layer, kv_head, chunk));
    atomic_store_explicit(&document->page_states[page_index(geometry, layer, kv_head, chunk)], PAGE_NONE,
                          memory_order_relaxed);
    document->window_room += page_padded_bytes(geometry, layer, kv_head, chunk);
}

enum status document_wait_buffer(struct document *document, struct error *error) {
    writer_wait_buffer(document->store->writer);
    return writer_failure(document->store->writer, document, error);
}

enum status document_flush(struct document *document, struct error *error) {
    writer_wait_document(document->store->writer, document);
    return writer_failure(document->store->writer, document, error);
}

bool document_is_flushed(const struct document *document) { return writer_is_done(document->store->writer, document); }
