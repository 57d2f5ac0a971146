/* A document opened: verified, read. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/layout.h"
#include "cache/store/store_internal.h"

enum { DEAD_WRITER_MILLISECONDS = 5000 };

enum status document_allocate(struct document **result, struct store *store, const struct store_layout *layout,
                              bool writing, struct error *error) {
    struct document *document = calloc(1, sizeof *document);
    if (document == NULL) return error_set(error, STATUS_MEMORY, "document: out of memory");
    document->store = store;
    document->layout = *layout;
    document->writing = writing;
    document->pages.fd = document->key_index.fd = -1;
    geometry_init(&document->geometry, layout);
    if (store->options.whole_pages) geometry_without_parts(&document->geometry);
    store->document_count++;
    store->writing_count += writing;
    *result = document;
    return STATUS_OK;
}

/* For its token_capacity. */
static void place_tables(struct document *document, struct layout *layout) {
    const struct geometry *geometry = &document->geometry;
    const size_t width = geometry->chunk_pages, chunks = (size_t)chunks_full(document->token_capacity),
                 key_index_chunks = geometry->key_index_bytes > 0 ? chunks : 0;
    document->tokens = layout_take(layout, (size_t)document->token_capacity, sizeof *document->tokens);
    document->page_sums = layout_take(layout, chunks, width * geometry->page_sum_bytes);
    document->key_index_sums = layout_take(layout, key_index_chunks, width * sizeof(struct checksum));
    document->tail_sums = layout_take(layout, width, sizeof *document->tail_sums);
    if (!document->writing) return;
    document->page_states = layout_take(layout, chunks, width);
    document->key_index_states = layout_take(layout, key_index_chunks, width);
    document->tail_states = layout_take(layout, width, sizeof *document->tail_states);
    document->tail_next = layout_take(layout, width, sizeof *document->tail_next);
}

enum status document_tables(struct document *document, uint64_t token_capacity, struct error *error) {
    struct layout counted = {NULL, 0}, layout = {NULL, 0};
    document->token_capacity = token_capacity;
    document->chunk_capacity = chunks_full(token_capacity);
    place_tables(document, &counted);
    /* Zeroed, and in memory only where it is touched.  What is read whole is filled by its commits, or not used. */
    const bool is_filled = !document->writing && document->geometry.windows.tokens == 0;
    layout.memory = is_filled ? malloc(max_size(counted.used, 1)) : calloc(1, max_size(counted.used, 1));
    if (layout.memory == NULL)
        return error_set(error, STATUS_MEMORY, "document: no memory for the tables of %" PRIu64 " tokens",
                         token_capacity);
    place_tables(document, &layout);
    return STATUS_OK;
}

uint64_t document_memory_bytes(const struct store_layout *layout, uint64_t token_capacity) {
    struct document document = {.writing = true, .token_capacity = token_capacity};
    struct layout counted = {NULL, 0};
    geometry_init(&document.geometry, layout);
    place_tables(&document, &counted);
    return sizeof document + counted.used;
}

void document_free(struct document *document) {
    if (document == NULL) return;
    document->store->document_count--;
    document->store->writing_count -= document->writing;
    io_file_close(&document->pages);
    io_file_close(&document->key_index);
    free(document->tokens); /* and the other tables */
    free(document);
}

uint64_t document_id(const struct document *document) { return document->id; }
const struct store_layout *document_layout(const struct document *document) { return &document->layout; }
uint64_t document_token_count(const struct document *document) { return document->committed_tokens; }
const int32_t *document_tokens(const struct document *document) {
    ASSERT(!document->is_begun);
    return document->tokens;
}

/* Opening */

static enum status commit_wrong(const struct document *document, const struct commit_row *commit, const char *field,
                                size_t found, uint64_t expected, struct error *error) {
    return error_set(error, STATUS_DOCUMENT,
                     "%s: document %" PRIu64 ": commit %" PRIu64 ": %s: found %zu bytes, expected %" PRIu64,
                     document->store->catalog.path, commit->document, commit->number, field, found, expected);
}

/* Megabytes of a long document: without a copy of them in between. */
static void commit_place(void *context, const struct commit_row *commit, struct commit_places *places) {
    const struct document *document = context;
    const uint64_t chunk_first = chunks_full(commit->token_first), chunk_end = chunks_full(commit->token_end);
    ASSERT(commit->token_end <= document->token_capacity);
    if (commit->tokens_bytes == (commit->token_end - commit->token_first) * sizeof(int32_t))
        places->tokens = document->tokens + commit->token_first;
    places->page_sums = page_sums_place(document, chunk_first, chunk_end, commit->page_sums_bytes);
    places->key_index_sums = key_index_sums_place(document, chunk_first, chunk_end, commit->key_index_sums_bytes);
    places->key_index_sums_are_there = document->is_begun;
}

/* Takes over the tables of one commit, whose checksum is right; a catalog made by somebody else may still say
 * anything. */
static enum status commit_take(void *context, const struct commit_row *commit, struct error *error) {
    struct document *document = context;
    const struct geometry *geometry = &document->geometry;
    uint64_t tokens = commit->token_end - commit->token_first;
    uint64_t chunk_first = chunks_full(commit->token_first);
    const uint64_t chunk_end = chunks_full(commit->token_end);
    uint64_t tail = commit->token_end % KV_CHUNK_TOKENS == 0 ? 0 : geometry->chunk_pages * sizeof(struct checksum);
    ASSERT(commit->token_end <= document->token_capacity); /* at most the row's, by which it was allocated */
    if (commit->tokens_bytes != tokens * sizeof(int32_t))
        return commit_wrong(document, commit, "tokens", commit->tokens_bytes, tokens * 4, error);
    if (!key_index_sums_take(document, chunk_first, chunk_end, commit->key_index_sums, commit->key_index_sums_bytes))
        return commit_wrong(document, commit, "metadata_sums", commit->key_index_sums_bytes,
                            key_index_sums_give(document, chunk_first, chunk_end, NULL), error);
    if (geometry_has_positions(geometry) ? !states_parse(commit, (size_t)tail, &document->states, document->state_sums)
                                         : commit->tail_sums_bytes != tail)
        return commit_wrong(document, commit, "tail_sums", commit->tail_sums_bytes, tail, error);
    if (!page_sums_take(document, &document->states, chunk_first, chunk_end, commit->page_sums,
                        commit->page_sums_bytes))
        return commit_wrong(document, commit, "page_sums", commit->page_sums_bytes,
                            page_sums_give(document, &document->states, chunk_first, chunk_end, NULL), error);
    if (commit->tokens != document->tokens + commit->token_first)
        memcpy(document->tokens + commit->token_first, commit->tokens, commit->tokens_bytes);
    if (tail > 0) memcpy(document->tail_sums, commit->tail_sums, tail);
    return STATUS_OK;
}

static enum status row_check(struct store *store, const struct document_row *row, const struct store_model *model,
                             const char *layout, struct error *error) {
    const char *path = store->catalog.path;
    if (row->damaged[0] != '\0') return error_set(error, STATUS_DOCUMENT, "%s", row->damaged);
    if (!row->intact)
        return error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 ": its row in the catalog is damaged", path,
                         row->id);
    if (model != NULL && memcmp(model->fingerprint, row->fingerprint, STORE_FINGERPRINT_BYTES) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 " is of another model: %s", path, row->id,
                         row->model);
    if (layout != NULL && strcmp(layout, row->layout) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 " is laid out %s, expected %s", path, row->id,
                         row->layout, layout);
    return STATUS_OK;
}

static enum status size_check(struct io_file *file, uint64_t expected, struct error *error) {
    uint64_t size;
    TRY(io_file_size(file, &size, error));
    if (size >= expected) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "%s: truncated: found %" PRIu64 " bytes, expected at least %" PRIu64,
                     file->path, size, expected);
}

/* Whether what is there cannot be the file that was made: gone, or something else in its place. */
static bool is_replaced(struct store *store, const char *name) {
    struct stat info;
    if (fstatat(store->folder.fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
    return !S_ISREG(info.st_mode);
}

static enum status files_open(struct document *document, uint64_t id, enum document_mode mode, struct error *error) {
    struct store *store = document->store;
    enum io_file_mode how = mode == DOCUMENT_APPEND ? IO_FILE_UPDATE : IO_FILE_READ;
    char name[40];
    struct error why;
    document_file_name(name, id, "pages");
    enum status status = io_file_open(&document->pages, &store->folder, name, how, true, &why);
    if (status == STATUS_OK) {
        document_file_name(name, id, "metadata");
        status = io_file_open(&document->key_index, &store->folder, name, how, false, &why);
    }
    if (status == STATUS_OK) return STATUS_OK;
    const bool damaged = status == STATUS_IO && is_replaced(store, name);
    if (damaged) why.status = STATUS_DOCUMENT; /* the row says that it was there */
    if (error != NULL) *error = why;
    return damaged ? store_flag(store, id, &why) : status;
}

static enum status files_lock(struct document *document, uint64_t id, enum document_mode mode, struct error *error) {
    struct error why;
    enum status status = STATUS_OK;
    if (mode == DOCUMENT_APPEND)
        status = document_lock_writer(document->store, id, &document->pages, DEAD_WRITER_MILLISECONDS, &why);
    if (status == STATUS_OK) {
        status = io_file_try_lock(&document->pages, LOCK_IN_USE, IO_LOCK_SHARED, &why);
        if (status == STATUS_FULL)
            return error_set(error, STATUS_DOCUMENT, "document %" PRIu64 " is just being removed", id);
    }
    if (status != STATUS_OK && error != NULL) *error = why;
    return status;
}

static enum status find_row(struct store *store, uint64_t id, struct document_row *row, struct error *error) {
    bool found;
    TRY(catalog_find(&store->catalog, id, row, &found, error));
    if (found) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "%s: there is no document %" PRIu64, store->folder.path, id);
}

/* Whether reading may begin before the commits are verified.  Positions are needed by what opening does besides. */
static enum status begin_early(struct document *document, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    if (geometry->key_index_bytes == 0 || geometry_has_positions(geometry)) return STATUS_OK;
    return catalog_read_key_index_sums(&document->store->catalog, &document->row, commit_place, document,
                                       &document->is_begun, error);
}

/* What the files and the commits of the row say; is_early: of the latter what document_open_begin needs.  Tables are
 * made once files are as long as so many tokens need: a row may say anything. */
static enum status document_load(struct document *document, uint64_t token_capacity, bool is_early,
                                 struct error *error) {
    const struct document_row *row = &document->row;
    TRY(size_check(&document->pages, pages_end(&document->geometry, row->token_count, row->generation), error));
    TRY(size_check(&document->key_index, key_index_end(&document->geometry, row->token_count), error));
    TRY(document_tables(document, token_capacity, error));
    if (is_early) TRY(begin_early(document, error));
    if (document->is_begun) return STATUS_OK;
    return catalog_see_commits(&document->store->catalog, row, commit_place, commit_take, document, false, error);
}

/* Reserves so many bytes for the document, of that geometry, and writes its row. */
static enum status row_reserve(struct document *document, const struct geometry *geometry, uint64_t bytes_max,
                               struct document_row row, struct error *error) {
    struct store *store = document->store;
    uint64_t more = bytes_max > row.bytes ? bytes_max - row.bytes : 0;
    if (bytes_max == UINT64_MAX) more = UINT64_MAX;
    TRY(store_make_space(store, more, error));
    TRY(catalog_begin(&store->catalog, error));
    enum status status = store_check_space(store, more, error);
    row.bytes = bytes_max > row.bytes ? bytes_max : row.bytes;
    if (status == STATUS_OK) status = catalog_update(&store->catalog, &row, error);
    if (status == STATUS_OK) status = catalog_note_version(&store->catalog, geometry, error);
    if (status == STATUS_OK)
        status = catalog_commit(&store->catalog, error);
    else
        catalog_rollback(&store->catalog);
    if (status == STATUS_OK) document->row = row;
    return status;
}

/* And says who writes it. */
static enum status append_begin(struct document *document, struct error *error) {
    struct document_row row = document->row;
    const struct geometry *geometry = &document->geometry;
    const uint64_t chunks = chunks_full(row.token_count), windows = window_pages_bytes(geometry, chunks);
    uint64_t bytes = document_bytes_reserved(geometry, document->token_capacity);
    if (bytes != UINT64_MAX) bytes += windows - absent_bytes(geometry, &document->states, chunks);
    row.writer = (uint64_t)getpid();
    document->window_room = window_room_bytes(geometry, document->chunk_capacity);
    return row_reserve(document, geometry, bytes, row, error);
}

enum status document_use_room(struct document *document, uint64_t bytes, struct error *error) {
    struct writer *writer = document->store->writer;
    const struct geometry *geometry = &document->geometry;
    uint64_t more = window_room_bytes(geometry, document->chunk_capacity);
    if (bytes > document->window_room) {
        more = more > bytes ? more : bytes;
        writer_wait_document(writer, document); /* the row is its thread's */
        TRY(writer_failure(writer, document, error));
        const enum status status = row_reserve(document, geometry, document->row.bytes + more, document->row, error);
        if (status == STATUS_FULL && error != NULL) error->status = STATUS_IO; /* it is not the buffers */
        if (status != STATUS_OK) return status == STATUS_FULL ? STATUS_IO : status;
        document->window_room += more;
    }
    document->window_room -= bytes;
    return STATUS_OK;
}

static bool is_written_from(const struct document *document, uint64_t chunk) {
    const struct geometry *geometry = &document->geometry;
    if (chunk >= document->chunk_capacity) return false;
    for (size_t i = 0; i < geometry->chunk_pages; i++)
        if (document->page_states[page_index(geometry, 0, 0, chunk) + i] != PAGE_NONE) return true;
    return false;
}

/* Where the two begin to differ. */
static uint64_t fractions_differ_at(const struct page_fractions *a, const struct page_fractions *b) {
    size_t same = 0;
    while (same < a->later_count && same < b->later_count && a->later[same].chunk_first == b->later[same].chunk_first)
        same++;
    const uint64_t first = same < a->later_count ? a->later[same].chunk_first : UINT64_MAX,
                   second = same < b->later_count ? b->later[same].chunk_first : UINT64_MAX;
    return first < second ? first : second;
}

enum status document_set_fractions(struct document *document, const struct page_fractions *fractions,
                                   struct error *error) {
    struct store_layout layout = document->layout;
    struct geometry geometry;
    ASSERT(document->writing && fractions->layer_count == layout.fractions.layer_count &&
           fractions->first_is_rows == layout.fractions.first_is_rows);
    ASSERT(memcmp(fractions->sixteenths, layout.fractions.sixteenths, sizeof fractions->sixteenths) == 0 &&
           !is_written_from(document, fractions_differ_at(&layout.fractions, fractions)));
    layout.fractions = *fractions;
    TRY(layout_check(&layout, error));
    geometry_init(&geometry, &layout);
    if (document->store->options.whole_pages) geometry_without_parts(&geometry);
    writer_wait_document(document->store->writer, document); /* its thread finds pages by the geometry */
    TRY(writer_failure(document->store->writer, document, error));
    struct document_row row = document->row;
    layout_format(&layout, row.layout);
    TRY(row_reserve(document, &geometry, document_bytes_max(&geometry, document->token_capacity), row, error));
    document->layout = layout;
    document->geometry = geometry;
    return STATUS_OK;
}

/* A writer's states begin with what is committed. */
static void states_begin(struct document *document) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t chunks = chunks_full(document->row.token_count);
    const size_t pages = (size_t)chunks * geometry->chunk_pages;
    memset((void *)document->page_states, PAGE_WRITTEN, pages);
    for (uint64_t chunk = 0; geometry->windows.tokens > 0 && chunk < chunks; chunk++)
        for (size_t layer = 0; layer < geometry->layer_count; layer++)
            if (!page_is_kept(geometry, &document->states, layer, chunk))
                memset((void *)&document->page_states[page_index(geometry, layer, 0, chunk)], PAGE_NONE,
                       geometry_heads(geometry, layer));
    if (document->geometry.key_index_bytes > 0) memset((void *)document->key_index_states, PAGE_WRITTEN, pages);
    document->asked_tokens = document->row.token_count;
    document->asked_generation = document->opened_generation = document->row.generation;
    document->states_next = document->states;
}

/* The row, its commits and the files as of one moment: inside a read transaction, no writer can commit. */
static enum status load_row(struct document *document, uint64_t id, const struct store_model *model, const char *layout,
                            uint64_t token_capacity, bool is_early, struct error *error) {
    struct store *store = document->store;
    TRY(find_row(store, id, &document->row, error));
    TRY(row_check(store, &document->row, model, layout, error));
    uint64_t tokens = document->row.token_count;
    const enum status status = document_load(
        document, document->writing && token_capacity > tokens ? token_capacity : tokens, is_early, error);
    document->flag = status == STATUS_DOCUMENT;
    document->committed_tokens = tokens;
    return status;
}

static enum status open_locked(struct document *document, uint64_t id, const struct store_model *model,
                               const char *layout, uint64_t token_capacity, bool is_early, struct error *error) {
    struct store *store = document->store;
    TRY(catalog_begin_read(&store->catalog, error));
    enum status status = load_row(document, id, model, layout, token_capacity, is_early, error);
    catalog_rollback(&store->catalog); /* nothing was changed */
    if (document->flag) return store_flag(store, id, error);
    TRY(status);
    if (!document->writing) return STATUS_OK;
    TRY(append_begin(document, error));
    states_begin(document);
    return STATUS_OK;
}

static enum status open_document(struct document **result, struct store *store, uint64_t id,
                                 const struct store_model *model, const struct store_layout *layout,
                                 enum document_mode mode, uint64_t token_capacity, bool is_early, struct error *error) {
    char text[STORE_TEXT_MAX];
    struct document_row row;
    struct error why;
    if (error == NULL) error = &why;
    if (mode == DOCUMENT_APPEND && store->options.read_only)
        return error_set(error, STATUS_IO, "%s: opened read-only", store->folder.path);
    TRY(layout_check(layout, error));
    layout_format(layout, text);
    TRY(find_row(store, id, &row, error));
    enum status status = row_check(store, &row, model, text, error);
    if (status == STATUS_DOCUMENT && !row.intact) return store_flag(store, id, error);
    TRY(status);
    struct geometry geometry;
    geometry_init(&geometry, layout);
    if (mode == DOCUMENT_APPEND) TRY(writer_start(store, &geometry, error));
    if (token_capacity > STORE_TOKENS_MAX)
        return error_set(error, STATUS_USAGE, "document: %" PRIu64 " tokens, at most %" PRIu64, token_capacity,
                         STORE_TOKENS_MAX);
    struct document *document;
    TRY(document_allocate(&document, store, layout, mode == DOCUMENT_APPEND, error));
    document->id = id;
    status = files_open(document, id, mode, error);
    if (status == STATUS_OK) status = files_lock(document, id, mode, error);
    if (status == STATUS_OK) status = open_locked(document, id, model, text, token_capacity, is_early, error);
    if (status != STATUS_OK) {
        document_free(document);
        return status;
    }
    io_file_will_need(&document->key_index, 0, 0);
    (void)futimens(document->pages.fd, NULL); /* "used": decides which document is removed first when space is needed */
    *result = document;
    return STATUS_OK;
}

enum status document_open(struct document **document, struct store *store, uint64_t id, const struct store_model *model,
                          const struct store_layout *layout, enum document_mode mode, uint64_t token_capacity,
                          struct error *error) {
    return open_document(document, store, id, model, layout, mode, token_capacity, false, error);
}

enum status document_open_begin(struct document **document, struct store *store, uint64_t id,
                                const struct store_model *model, const struct store_layout *layout,
                                enum document_mode mode, uint64_t token_capacity, struct error *error) {
    return open_document(document, store, id, model, layout, mode, token_capacity, true, error);
}

/* What was committed when it was opened, whatever has come behind it since. */
static enum status verify_commits(struct document *document, struct error *error) {
    struct catalog *catalog = &document->store->catalog;
    struct document_row row;
    TRY(find_row(document->store, document->id, &row, error));
    return catalog_see_commits(catalog, &document->row, commit_place, commit_take, document,
                               row.generation != document->row.generation, error);
}

enum status document_open_end(struct document *document, struct error *error) {
    struct store *store = document->store;
    struct error why;
    if (!document->is_begun) return STATUS_OK;
    if (error == NULL) error = &why;
    TRY(catalog_begin_read(&store->catalog, error));
    const enum status status = verify_commits(document, error);
    catalog_rollback(&store->catalog);
    if (status == STATUS_DOCUMENT) return store_flag(store, document->id, error);
    TRY(status);
    document->is_begun = false;
    return STATUS_OK;
}

/* Reading */

bool document_page_written(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct geometry *geometry = &document->geometry;
    if (chunk >= document->chunk_capacity) return false;
    if (!document->writing)
        return chunk < chunks_full(document->committed_tokens) &&
               page_is_kept(geometry, &document->states, layer, chunk);
    return atomic_load_explicit(&document->page_states[page_index(geometry, layer, kv_head, chunk)],
                                memory_order_acquire) == PAGE_WRITTEN; /* pairs with range_done in writer.c */
}

/* The tail is what the last commit had behind its last full chunk. */
bool document_read_is_tail(const struct document *document, const struct page_read *read) {
    uint64_t tokens = document->committed_tokens;
    if (read->chunk != chunks_full(tokens) || tokens % KV_CHUNK_TOKENS == 0) return false;
    if (!document->writing) return true;
    /* A writer that goes on may read the tail it found, until the chunk is full and has a page, or until its first
     * commit: then the row is its thread's. */
    return document->asked_generation == document->opened_generation &&
           !document_page_written(document, read->layer, read->kv_head, read->chunk);
}

size_t document_page_parts(const struct document *document, const struct page_read *read) {
    if (document_read_is_tail(document, read)) return 0;
    return page_sums_parts(document, read->layer, read->kv_head, read->chunk);
}

/* Bytes of its chunk, of which the parts that are read. */
static size_t part_bytes(const struct document *document, const struct page_read *read) {
    const struct geometry *geometry = &document->geometry;
    const size_t chunk = page_chunk_bytes(geometry, read->layer, read->kv_head, read->chunk),
                 end = ((size_t)read->part_first + read->part_count) * geometry->part_bytes;
    return min_size(chunk, end) - read->part_first * geometry->part_bytes;
}

static size_t place_bytes(const struct document *document, const struct page_read *read) {
    return page_padded_bytes(&document->geometry, read->layer, read->kv_head, read->chunk);
}

/* Up to the disk's block that holds the last byte; the rest of a place is zeros. */
static size_t read_bytes(const struct document *document, const struct page_read *read) {
    const struct geometry *geometry = &document->geometry;
    size_t bytes = read->part_count > 0 ? part_bytes(document, read)
                   : document_read_is_tail(document, read)
                       ? tail_bytes(geometry, read->layer, document->committed_tokens)
                       : page_chunk_bytes(geometry, read->layer, read->kv_head, read->chunk);
    return align_up(bytes, document->pages.block_bytes);
}

static uint64_t read_offset(const struct document *document, const struct page_read *read) {
    if (document_read_is_tail(document, read))
        return tail_offset(&document->geometry, document->row.generation, read->layer, read->kv_head);
    ASSERT(document_page_written(document, read->layer, read->kv_head, read->chunk));
    return page_offset(&document->geometry, read->layer, read->kv_head, read->chunk) +
           read->part_first * document->geometry.part_bytes;
}

static void *read_target(const struct document *document, const struct page_read *read) {
    return (uint8_t *)read->memory + read->part_first * document->geometry.part_bytes;
}

enum status document_read_pages(struct document *document, struct io_queue *queue, const struct page_read *reads,
                                size_t read_count, size_t *next, uint64_t tag_first) {
    enum { RUN_BYTES_MAX = 1 << 20 };
    while (*next < read_count) {
        const struct page_read *first = &reads[*next];
        const size_t place = place_bytes(document, first);
        const uint64_t offset = read_offset(document, first);
        size_t before = 0, count = 1; /* before: of all but the last */
        while (first->part_count == 0 && *next + count < read_count) {
            const struct page_read *read = &first[count];
            const size_t bytes = before + place;
            if (bytes + place > RUN_BYTES_MAX || read->part_count > 0 ||
                (uint8_t *)read->memory != (uint8_t *)first->memory + bytes ||
                read_offset(document, read) != offset + bytes || place != place_bytes(document, read) ||
                document_read_is_tail(document, first))
                break; /* pages of one size: which of them a completion covers follows from its bytes */
            before = bytes;
            count++;
        }
        const size_t bytes = before + read_bytes(document, &first[count - 1]);
        const struct io_request request = {IO_READ, &document->pages, offset, read_target(document, first),
                                           bytes,   tag_first + *next};
        TRY(io_queue_submit(queue, &request));
        *next += count;
    }
    return STATUS_OK;
}

bool document_has_grown(struct document *document) {
    struct document_row row;
    bool found;
    return !document->writing &&
           catalog_find(&document->store->catalog, document->id, &row, &found, NULL) == STATUS_OK && found &&
           row.generation != document->row.generation;
}

enum status document_is_truncated(struct document *document, struct error *why, struct error *error) {
    why->status = STATUS_DOCUMENT;
    if (error != NULL) *error = *why;
    return store_flag(document->store, document->id, why);
}

enum status document_read_failed(struct document *document, const struct io_completion *completion,
                                 struct error *error) {
    struct error why;
    enum status status = io_completion_error(completion, &why);
    ASSERT(status != STATUS_OK);
    if (why.os_error == 0 && !document_has_grown(document)) return document_is_truncated(document, &why, error);
    if (error != NULL) *error = why;
    return status;
}

static enum status check_parts(struct document *document, const struct page_read *read, struct error *error) {
    struct part_sum found, expected;
    struct error why;
    size_t part;
    if (page_sums_check_parts(document, read, &found, &expected, &part)) return STATUS_OK;
    char found_text[17], expected_text[17];
    (void)error_set(&why, STATUS_DOCUMENT,
                    "%s: damaged at %" PRIu64 " (layer %u, KV head %u, chunk %" PRIu64
                    ", part %zu): found checksum %s, expected %s",
                    document->pages.path,
                    page_offset(&document->geometry, read->layer, read->kv_head, read->chunk) +
                        part * document->geometry.part_bytes,
                    read->layer, read->kv_head, read->chunk, part, part_sum_text(&found, found_text),
                    part_sum_text(&expected, expected_text));
    if (error != NULL) *error = why;
    return store_flag(document->store, document->id, &why);
}

enum status document_check_page(struct document *document, const struct page_read *read, struct error *error) {
    ASSERT(!document->is_begun);
    if (read->part_count > 0) return check_parts(document, read, error);
    const struct geometry *geometry = &document->geometry;
    bool tail = document_read_is_tail(document, read);
    size_t index = page_index(geometry, read->layer, read->kv_head, tail ? 0 : read->chunk);
    const struct checksum *expected =
        tail ? &document->tail_sums[index] : (const struct checksum *)page_sum_at(document, index);
    struct checksum found =
        checksum_of(read->memory, tail ? tail_bytes(geometry, read->layer, document->committed_tokens)
                                       : page_chunk_bytes(geometry, read->layer, read->kv_head, read->chunk));
    if (checksum_equal(&found, expected)) return STATUS_OK;
    if (tail && document_has_grown(document))
        return error_set(error, STATUS_DOCUMENT, "document %" PRIu64 " has grown since it was opened: open it again",
                         document->id);
    char found_text[33], expected_text[33];
    struct error why;
    (void)error_set(&why, STATUS_DOCUMENT,
                    "%s: damaged at %" PRIu64 " (layer %u, KV head %u, chunk %" PRIu64
                    "): found checksum %s, expected %s",
                    document->pages.path, read_offset(document, read), read->layer, read->kv_head, read->chunk,
                    checksum_text(&found, found_text), checksum_text(expected, expected_text));
    if (error != NULL) *error = why;
    return store_flag(document->store, document->id, &why);
}

/* Key index */

bool document_key_index_written(const struct document *document, size_t layer, uint64_t chunk_first,
                                uint64_t chunk_count) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t end = chunk_first + chunk_count;
    if (end > document->chunk_capacity) return false;
    if (!document->writing) return end <= chunks_full(document->committed_tokens);
    for (uint64_t chunk = chunk_first; chunk < end; chunk++)
        for (size_t head = 0; head < geometry_heads(geometry, layer); head++)
            if (atomic_load_explicit(&document->key_index_states[page_index(geometry, layer, head, chunk)],
                                     memory_order_acquire) != PAGE_WRITTEN) /* pairs with range_done */
                return false;
    return true;
}

static enum status key_index_check(const struct document *document, size_t layer, size_t head, uint64_t chunk,
                                   const uint8_t *entry, struct error *why) {
    const struct geometry *geometry = &document->geometry;
    const struct checksum *expected = &document->key_index_sums[page_index(geometry, layer, head, chunk)];
    struct checksum found = checksum_of(entry, geometry->key_index_bytes);
    if (checksum_equal(&found, expected)) return STATUS_OK;
    char found_text[33], expected_text[33];
    return error_set(why, STATUS_DOCUMENT,
                     "%s: damaged at %" PRIu64 " (layer %zu, KV head %zu, chunk %" PRIu64
                     "): found checksum %s, expected %s",
                     document->key_index.path, key_index_offset(geometry, layer, head, chunk), layer, head, chunk,
                     checksum_text(&found, found_text), checksum_text(expected, expected_text));
}

enum status document_read_key_index(struct document *document, const struct key_index_read *read, struct error *why) {
    const size_t entry = document->geometry.key_index_bytes;
    const size_t blocks = read->kv_head_count * read->count;
    ASSERT(entry > 0 && read->chunk % SEGMENT_CHUNKS + read->count <= SEGMENT_CHUNKS);
    ASSERT(read->kv_head_count == 1 || read->count == SEGMENT_CHUNKS);
    ASSERT(read->kv_head + read->kv_head_count <= geometry_key_index_heads(&document->geometry, read->layer) &&
           document_key_index_written(document, read->layer, read->chunk, read->count));
    const uint64_t offset = key_index_offset(&document->geometry, read->layer, read->kv_head, read->chunk);
    const enum status status = io_file_read(&document->key_index, offset, read->memory, blocks * entry, why);
    if (status != STATUS_OK && why->os_error == 0) return why->status = STATUS_DOCUMENT; /* the file ends before */
    TRY(status);
    for (size_t i = 0; i < blocks; i++)
        TRY(key_index_check(document, read->layer, read->kv_head + i / read->count, read->chunk + i % read->count,
                            (const uint8_t *)read->memory + i * entry, why));
    return STATUS_OK;
}

enum status document_key_index_failed(struct document *document, struct error *why, struct error *error) {
    if (error != NULL) *error = *why;
    return why->status == STATUS_DOCUMENT ? store_flag(document->store, document->id, why) : why->status;
}

enum status document_read_key_index_run(struct document *document, size_t layer, uint64_t chunk_first,
                                        size_t chunk_count, void *memory, struct error *error) {
    const size_t run = SEGMENT_CHUNKS * document->geometry.key_index_bytes;
    struct error why;
    for (size_t head = 0; head < geometry_key_index_heads(&document->geometry, layer); head++) {
        const struct key_index_read read = {layer, head, 1, chunk_first, chunk_count, (uint8_t *)memory + head * run};
        if (document_read_key_index(document, &read, &why) != STATUS_OK)
            return document_key_index_failed(document, &why, error);
    }
    return STATUS_OK;
}

void document_prefetch_key_index(struct document *document, size_t layer, uint64_t chunk_first, uint64_t chunk_count) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t bytes = geometry_heads(geometry, layer) * SEGMENT_CHUNKS * geometry->key_index_bytes;
    for (uint64_t chunk = chunk_first - chunk_first % SEGMENT_CHUNKS; chunk < chunk_first + chunk_count;
         chunk += SEGMENT_CHUNKS)
        io_file_will_need(&document->key_index, key_index_offset(geometry, layer, 0, chunk), bytes);
}
