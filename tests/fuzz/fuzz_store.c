/* Any changes to a folder of saved documents: the rows of its catalog, its bytes and the other files' lengths.  The
 * folder opens or is refused with one line, and so does all that it says of itself.  libFuzzer's build takes every
 * checksum of the catalog as right (src/cache/store/checksum.c), so that what lies behind them is reached; the replay
 * of the corpus does not.
 *
 * The bytes are changes, one after another: what is changed, then a number or text of the kind that it takes. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/assert.h"
#include "cache/store/store.h"
#include "fuzz_input.h"

enum { TOKENS = 150, LAYERS = 2, CHUNK = 64, CHANGES_MAX = 16, QUEUE_DEPTH = 8, FILES = 3 };

static const char *const files[FILES] = {"catalog.db", "1.pages", "1.metadata"};
static const char *const columns[][12] = {
    {"id", "generation", "fingerprint", "model", "name", "layout", "created", "prefix", "token_count",
     "bytes", "chain", "damaged"},
    {"document", "number", "token_first", "token_end", "tokens", "page_sums", "metadata_sums", "tail_sums"}};
static const char *const tables[] = {"documents", "commits"};
enum { DOCUMENT_COLUMNS = 12, COMMIT_COLUMNS = 8 };

static const struct store_model model = {.description = "a model"};
static const struct store_layout layout = {.codec = "f16.64,f16.64",
                                           .layer_count = LAYERS,
                                           .kv_head_count = 1,
                                           .chunk_bytes = 8192,
                                           .key_index_kind = "abstract",
                                           .key_index_bytes = 24};

/* ---- the folder, as it was before all changes ---- */

static uint8_t *sound[FILES];
static size_t sound_bytes[FILES];

static void remove_folder(const char *folder) {
    char path[PATH_MAX];
    DIR *entries = opendir(folder);
    ASSERT(entries != NULL);
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        ASSERT(unlink(path) == 0);
    }
    closedir(entries);
    ASSERT(rmdir(folder) == 0);
}

static void write_document(struct store *store) {
    static uint8_t page[8192], index[2 * 24];
    static const void *const pages[] = {page, page};
    const struct document_description description = {&model, &layout, "a document", TOKENS};
    struct document *document;
    struct error error;
    int32_t tokens[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)i;
    for (size_t i = 0; i < sizeof page; i++) page[i] = (uint8_t)i;
    ASSERT(document_create(&document, store, &description, &error) == STATUS_OK);
    for (size_t layer = 0; layer < LAYERS; layer++) {
        ASSERT(document_write_pages(document, layer, 0, 0, 2, pages, &error) == STATUS_OK);
        const struct key_index_write write = {layer, 0, 1, 0, 2, index};
        ASSERT(document_write_key_index(document, &write, &error) == STATUS_OK);
        ASSERT(document_write_tail(document, layer, 0, TOKENS, page, &error) == STATUS_OK);
    }
    ASSERT(document_commit(document, tokens, TOKENS, &error) == STATUS_OK);
    ASSERT(document_flush(document, &error) == STATUS_OK);
    document_close(document);
}

static void make_sound(void) {
    char folder[64], path[PATH_MAX];
    struct store *store;
    struct error error;
    new_folder(folder, "store");
    const struct store_options options = {.directory = folder, .backend = IO_BACKEND_THREADS};
    ASSERT(store_open(&store, &options, &error) == STATUS_OK);
    write_document(store);
    store_close(store);
    for (size_t i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        FILE *file = fopen(path, "rb");
        ASSERT(file != NULL && fseek(file, 0, SEEK_END) == 0);
        sound_bytes[i] = (size_t)ftell(file);
        sound[i] = malloc(sound_bytes[i]);
        rewind(file);
        ASSERT(sound[i] != NULL && fread(sound[i], 1, sound_bytes[i], file) == sound_bytes[i]);
        fclose(file);
    }
    remove_folder(folder);
}

static void copy_sound(const char *folder) {
    char path[PATH_MAX];
    for (size_t i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        ASSERT(file >= 0 && write(file, sound[i], sound_bytes[i]) == (ssize_t)sound_bytes[i]);
        close(file);
    }
}

/* ---- changes ---- */

enum {
    CHANGE_NUMBER,
    CHANGE_TEXT,
    CHANGE_BLOB,
    CHANGE_ZEROS,
    CHANGE_NULL,
    CHANGE_BYTE_OF_BLOB,
    CHANGE_KINDS
};

static void change_row(sqlite3 *catalog, struct bytes *bytes, size_t table) {
    const size_t column = take(bytes, 1) % (table == 0 ? DOCUMENT_COLUMNS : COMMIT_COLUMNS);
    const size_t kind = take(bytes, 1) % CHANGE_KINDS;
    const char *name = columns[table][column];
    sqlite3_stmt *statement;
    char sql[200];
    if (kind == CHANGE_BYTE_OF_BLOB)
        snprintf(sql, sizeof sql,
                 "UPDATE %s SET %s = CAST(substr(%s, 1, ?2) || ?1 || substr(%s, ?2 + 2) AS BLOB)",
                 tables[table], name, name, name);
    else
        snprintf(sql, sizeof sql, "UPDATE %s SET %s = ?1", tables[table], name);
    if (sqlite3_prepare_v2(catalog, sql, -1, &statement, NULL) != SQLITE_OK)
        return; /* an earlier change's doing */
    const size_t length = kind == CHANGE_TEXT || kind == CHANGE_BLOB ? take(bytes, 1) : 0;
    const size_t there = length < bytes->left ? length : bytes->left;
    switch (kind) {
    case CHANGE_NUMBER: sqlite3_bind_int64(statement, 1, (sqlite3_int64)take(bytes, 8)); break;
    case CHANGE_TEXT:
        sqlite3_bind_text(statement, 1, (const char *)bytes->at, (int)there, SQLITE_TRANSIENT);
        break;
    case CHANGE_BLOB: sqlite3_bind_blob(statement, 1, bytes->at, (int)there, SQLITE_TRANSIENT); break;
    case CHANGE_ZEROS: sqlite3_bind_zeroblob(statement, 1, (int)take(bytes, 2)); break;
    case CHANGE_NULL: sqlite3_bind_null(statement, 1); break; /* NOT NULL refuses it */
    default: {
        const uint8_t byte = (uint8_t)take(bytes, 1);
        sqlite3_bind_blob(statement, 1, &byte, 1, SQLITE_TRANSIENT);
        sqlite3_bind_int64(statement, 2, (sqlite3_int64)take(bytes, 2));
    }
    }
    bytes->at += there, bytes->left -= there;
    sqlite3_step(statement);
    sqlite3_finalize(statement);
}

/* A commit or a document twice, or a removal that nobody asked for. */
static void add_row(sqlite3 *catalog, struct bytes *bytes) {
    static const char second_commit[] = "INSERT INTO commits SELECT document, number + 1, token_end, "
                                        "token_end + token_end - token_first, tokens, "
                                        "page_sums, metadata_sums, tail_sums, checksum FROM commits";
    static const char second_document[] =
        "INSERT INTO documents SELECT id + 1, generation, fingerprint, model, name, layout, created, prefix, "
        "token_count, bytes, chain, checksum, writer, damaged FROM documents";
    static const char *const statements[] = {second_commit, second_document,
                                             "INSERT INTO removals SELECT id + 1, checksum FROM documents",
                                             "DELETE FROM commits", "UPDATE documents SET writer = 1 << 40"};
    sqlite3_exec(catalog, statements[take(bytes, 1) % (sizeof statements / sizeof *statements)], NULL, NULL,
                 NULL);
}

static void change_file(const char *folder, struct bytes *bytes) {
    char path[PATH_MAX];
    const size_t which = take(bytes, 1) % (2 * FILES);
    snprintf(path, sizeof path, "%s/%s", folder, files[which % FILES]);
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    ASSERT(file >= 0);
    const off_t offset = (off_t)(take(bytes, 3) % (sound_bytes[which % FILES] + 1));
    const uint8_t byte = (uint8_t)take(bytes, 1);
    if (which < FILES)
        ASSERT(pwrite(file, &byte, 1, offset) == 1);
    else
        ASSERT(ftruncate(file, offset) == 0);
    close(file);
}

static void change(const char *folder, struct bytes *bytes) {
    char path[PATH_MAX];
    sqlite3 *catalog;
    snprintf(path, sizeof path, "%s/catalog.db", folder);
    for (size_t i = 0; i < CHANGES_MAX && bytes->left > 0; i++) {
        const uint64_t what = take(bytes, 1) % 4;
        if (what == 3) {
            change_file(folder, bytes);
            continue;
        }
        if (sqlite3_open_v2(path, &catalog, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
            sqlite3_exec(catalog, "PRAGMA synchronous=OFF; PRAGMA journal_mode=MEMORY", NULL, NULL, NULL);
            if (what < 2)
                change_row(catalog, bytes, what);
            else
                add_row(catalog, bytes);
        }
        sqlite3_close(catalog);
    }
}

/* ---- what is asked of it ---- */

static void look(void *context, const struct document_info *info) {
    uint64_t *ids = context;
    ASSERT(strlen(info->name) < STORE_TEXT_MAX && strlen(info->model) < STORE_TEXT_MAX);
    ASSERT(info->token_count <= STORE_TOKENS_MAX || info->damaged != NULL);
    if (ids[0] < 4) ids[++ids[0]] = info->id;
}

static enum status read_all(struct document *document, struct io_queue *queue, uint8_t *memory,
                            struct error *error) {
    const struct store_layout *its = document_layout(document);
    const uint64_t tokens = document_token_count(document), chunks = (tokens + CHUNK - 1) / CHUNK;
    struct io_completion done[QUEUE_DEPTH];
    for (uint32_t layer = 0; layer < its->layer_count; layer++)
        for (uint64_t chunk = 0; chunk < chunks; chunk++) {
            const struct page_read read = {.layer = layer, .chunk = chunk, .memory = memory};
            size_t next = 0;
            TRY(document_read_pages(document, queue, &read, 1, &next, 0));
            while (io_queue_in_flight(queue) > 0) {
                const size_t finished = io_queue_wait(queue, done, QUEUE_DEPTH, 1);
                for (size_t i = 0; i < finished; i++)
                    if (done[i].status != STATUS_OK) return document_read_failed(document, &done[i], error);
            }
            TRY(document_check_page(document, &read, error));
        }
    for (uint32_t layer = 0; layer < its->layer_count; layer++)
        for (uint64_t first = 0, end = tokens / CHUNK; first < end; first += 16)
            TRY(document_read_key_index_run(document, layer, first, end - first < 16 ? end - first : 16, memory,
                                            error));
    return STATUS_OK;
}

static void read_document(struct store *store, uint64_t id, struct io_queue *queue) {
    struct document *document;
    struct error error = {0};
    if (document_open(&document, store, id, &model, &layout, DOCUMENT_READ, 0, &error) != STATUS_OK) {
        check_line(&error);
        return;
    }
    const uint64_t tokens = document_token_count(document);
    int64_t sum = 0;
    for (uint64_t i = 0; i < tokens; i++) sum += document_tokens(document)[i];
    ASSERT(sum <= (int64_t)tokens * INT32_MAX);
    if (tokens <= 4096) { /* of the catalog's; its files are small */
        uint8_t *memory = aligned_alloc(4096, 64 * 8192);
        ASSERT(memory != NULL);
        if (read_all(document, queue, memory, &error) != STATUS_OK) check_line(&error);
        free(memory);
    }
    document_close(document);
}

static void ask(struct store *store, struct io_queue *queue) {
    uint64_t ids[5] = {0};
    struct error error = {0};
    int32_t tokens[TOKENS], *saved;
    struct store_match match = {0};
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)i;
    if (store_list(store, look, ids, &error) != STATUS_OK) check_line(&error);
    if (store_find(store, &(struct store_query){&model, &layout, tokens, TOKENS, STORE_LIKE_KIND}, &match,
                   &error) != STATUS_OK)
        check_line(&error);
    ASSERT(match.prefix_tokens <= TOKENS); /* the row is believed when it is opened */
    for (size_t i = 1; i <= ids[0]; i++) {
        uint64_t count;
        if (store_tokens(store, ids[i], &saved, &count, &error) == STATUS_OK)
            free(saved);
        else
            check_line(&error);
        read_document(store, ids[i], queue);
        if (store_verify(store, ids[i], &error) != STATUS_OK) check_line(&error);
    }
    for (size_t i = 1; i <= ids[0]; i++)
        if (store_remove(store, ids[i], &error) != STATUS_OK) check_line(&error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct io_queue *queue;
    struct error error = {0};
    struct bytes bytes = {data, size};
    struct store *store;
    char folder[64];
    if (sound[0] == NULL) {
        const struct io_queue_options depth = {.depth = QUEUE_DEPTH, .backend = IO_BACKEND_THREADS};
        make_sound();
        ASSERT(io_queue_create(&queue, &depth, &error) == STATUS_OK);
    }
    new_folder(folder, "store");
    copy_sound(folder);
    change(folder, &bytes);
    const struct store_options options = {.directory = folder, .backend = IO_BACKEND_THREADS};
    if (store_open(&store, &options, &error) == STATUS_OK) {
        if (store_warning(store) != NULL) ASSERT(strchr(store_warning(store), '\n') == NULL);
        ask(store, queue);
        store_close(store);
    } else {
        check_line(&error);
    }
    remove_folder(folder);
    return 0;
}
