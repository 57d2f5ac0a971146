/* The rows of catalog.db (docs/formats.md): written with their checksums, read with nothing believed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/catalog_internal.h"
#include "platform/memory.h"

#define ROW_COLUMNS                                                                                  \
    "id, generation, fingerprint, model, name, layout, created, prefix, token_count, bytes, chain, " \
    "checksum, "                                                                                     \
    "writer, damaged"

/* What a document's checksum covers, in its order: numbers little-endian, texts with their zero. */
static struct checksum row_checksum(const struct document_row *row) {
    uint8_t bytes[3 * STORE_TEXT_MAX + STORE_FINGERPRINT_BYTES + sizeof(struct checksum) + 6 * 8];
    size_t used = 0;
    const uint64_t numbers[] = {row->id,          row->generation, (uint64_t)row->created, (uint64_t)row->prefix,
                                row->token_count, row->bytes};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (size_t b = 0; b < 8; b++) bytes[used++] = (uint8_t)(numbers[i] >> 8 * b);
    memcpy(bytes + used, row->fingerprint, STORE_FINGERPRINT_BYTES);
    used += STORE_FINGERPRINT_BYTES;
    memcpy(bytes + used, row->chain.bytes, sizeof row->chain);
    used += sizeof row->chain;
    const char *const texts[] = {row->model, row->name, row->layout};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t length = strlen(texts[i]) + 1;
        memcpy(bytes + used, texts[i], length);
        used += length;
    }
    ASSERT(used <= sizeof bytes);
    return checksum_of(bytes, used);
}

/* The first failure of several. */
static void note_code(int *first, int code) {
    if (*first == SQLITE_OK) *first = code;
}

/* checksum: of the row; both live until the statement is done. */
static int bind_row(sqlite3_stmt *statement, const struct document_row *row, const struct checksum *checksum) {
    int code = SQLITE_OK;
    note_code(&code, sqlite3_bind_int64(statement, 1, (sqlite3_int64)row->id));
    note_code(&code, sqlite3_bind_int64(statement, 2, (sqlite3_int64)row->generation));
    note_code(&code, sqlite3_bind_blob(statement, 3, row->fingerprint, STORE_FINGERPRINT_BYTES, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_text(statement, 4, row->model, -1, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_text(statement, 5, row->name, -1, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_text(statement, 6, row->layout, -1, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_int64(statement, 7, row->created));
    note_code(&code, sqlite3_bind_int64(statement, 8, row->prefix));
    note_code(&code, sqlite3_bind_int64(statement, 9, (sqlite3_int64)row->token_count));
    note_code(&code, sqlite3_bind_int64(statement, 10, (sqlite3_int64)row->bytes));
    note_code(&code, sqlite3_bind_blob(statement, 11, row->chain.bytes, sizeof row->chain, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_blob(statement, 12, checksum->bytes, sizeof *checksum, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_int64(statement, 13, (sqlite3_int64)row->writer));
    if (sqlite3_bind_parameter_count(statement) >= 14) /* a row that is changed keeps its damage */
        note_code(&code, sqlite3_bind_text(statement, 14, row->damaged, -1, SQLITE_STATIC));
    return code;
}

static enum status store_row(struct catalog *catalog, const char *sql, const struct document_row *row,
                             struct error *error) {
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, sql, "writing a document's row", &statement, error));
    const struct checksum checksum = row_checksum(row);
    int code = bind_row(statement, row, &checksum);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    return catalog_finish(catalog, statement, code, "writing a document's row", error);
}

enum status catalog_insert(struct catalog *catalog, uint64_t id_used, struct document_row *row, struct error *error) {
    sqlite3_stmt *statement;
    /* The checksum covers the id: ask for the next one first.  AUTOINCREMENT: ids are never used again, and
     * should the sequence be damaged, none that anything else still names. */
    TRY(catalog_prepare(catalog,
                        "SELECT 1 + max(?1, ifnull((SELECT seq FROM sqlite_sequence WHERE name='documents'), 0), "
                        "ifnull((SELECT max(id) FROM documents), 0), ifnull((SELECT max(document) FROM commits), 0), "
                        "ifnull((SELECT max(id) FROM removals), 0))",
                        "making a document's row", &statement, error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id_used);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    row->id = code == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(statement, 0) : 0;
    TRY(catalog_finish(catalog, statement, code, "making a document's row", error));
    if (row->id == 0 || row->id > DOCUMENT_ID_MAX)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: the next document would be %" PRIu64, catalog->path,
                         row->id);
    return store_row(catalog,
                     "INSERT INTO documents(" ROW_COLUMNS ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14)",
                     row, error);
}

enum status catalog_update(struct catalog *catalog, const struct document_row *row, struct error *error) {
    TRY(store_row(catalog,
                  "UPDATE documents SET generation=?2, fingerprint=?3, model=?4, name=?5, layout=?6, created=?7, "
                  "prefix=?8, token_count=?9, bytes=?10, chain=?11, checksum=?12, writer=?13 "
                  "WHERE id=?1",
                  row, error));
    if (sqlite3_changes(catalog->database) != 1)
        return error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 " is not there any more", catalog->path,
                         row->id);
    return STATUS_OK;
}

static struct checksum removal_checksum(uint64_t id) {
    char text[40];
    snprintf(text, sizeof text, "removed %" PRIu64, id);
    return checksum_of(text, strlen(text));
}

enum status catalog_remove(struct catalog *catalog, uint64_t id, struct error *error) {
    const char *doing = "removing a document";
    char sql[128];
    snprintf(sql, sizeof sql, "DELETE FROM commits WHERE document=%" PRIu64 "; DELETE FROM documents WHERE id=%" PRIu64,
             id, id);
    TRY(catalog_execute(catalog, sql, doing, error));
    struct checksum checksum = removal_checksum(id);
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "INSERT OR REPLACE INTO removals(id, checksum) VALUES(?1, ?2)", doing, &statement,
                        error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id);
    note_code(&code, sqlite3_bind_blob(statement, 2, checksum.bytes, sizeof checksum, SQLITE_STATIC));
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    return catalog_finish(catalog, statement, code, doing, error);
}

enum status catalog_forget_removal(struct catalog *catalog, uint64_t id, struct error *error) {
    char sql[64];
    snprintf(sql, sizeof sql, "DELETE FROM removals WHERE id=%" PRIu64, id);
    return catalog_execute(catalog, sql, "forgetting a removal", error);
}

enum status catalog_flag(struct catalog *catalog, uint64_t id, const char *reason, struct error *error) {
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "UPDATE documents SET damaged=?2 WHERE id=?1 AND damaged=''", "flagging a document",
                        &statement, error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id);
    note_code(&code, sqlite3_bind_text(statement, 2, reason, -1, SQLITE_STATIC));
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    return catalog_finish(catalog, statement, code, "flagging a document", error);
}

/* False: longer than it may be, or with a zero in it. */
static bool column_text(sqlite3_stmt *statement, int column, char text[STORE_TEXT_MAX]) {
    const char *found = (const char *)sqlite3_column_text(statement, column);
    int bytes = sqlite3_column_bytes(statement, column);
    text[0] = '\0';
    if (found == NULL || bytes < 0 || bytes >= STORE_TEXT_MAX || memchr(found, '\0', (size_t)bytes) != NULL)
        return false;
    memcpy(text, found, (size_t)bytes);
    text[bytes] = '\0';
    return true;
}

static bool column_bytes(sqlite3_stmt *statement, int column, void *bytes, size_t count) {
    const void *found = sqlite3_column_blob(statement, column);
    if (found == NULL || (size_t)sqlite3_column_bytes(statement, column) != count) return false;
    memcpy(bytes, found, count);
    return true;
}

static void read_row(sqlite3_stmt *statement, struct document_row *row) {
    *row = (struct document_row){.id = (uint64_t)sqlite3_column_int64(statement, 0),
                                 .generation = (uint64_t)sqlite3_column_int64(statement, 1),
                                 .created = sqlite3_column_int64(statement, 6),
                                 .prefix = sqlite3_column_int64(statement, 7),
                                 .token_count = (uint64_t)sqlite3_column_int64(statement, 8),
                                 .bytes = (uint64_t)sqlite3_column_int64(statement, 9),
                                 .writer = (uint64_t)sqlite3_column_int64(statement, 12)};
    struct checksum stored, computed;
    bool good = column_bytes(statement, 2, row->fingerprint, STORE_FINGERPRINT_BYTES);
    good = column_text(statement, 3, row->model) && good;
    good = column_text(statement, 4, row->name) && good;
    good = column_text(statement, 5, row->layout) && good;
    good = column_bytes(statement, 10, row->chain.bytes, sizeof row->chain) && good;
    good = column_bytes(statement, 11, stored.bytes, sizeof stored) && good;
    if (!column_text(statement, 13, row->damaged)) snprintf(row->damaged, sizeof row->damaged, "flagged");
    computed = row_checksum(row);
    row->intact = good && checksum_equal(&stored, &computed) && row->token_count <= STORE_TOKENS_MAX &&
                  row->generation <= row->token_count;
}

enum status catalog_find(struct catalog *catalog, uint64_t id, struct document_row *row, bool *found,
                         struct error *error) {
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT " ROW_COLUMNS " FROM documents WHERE id=?1", "reading a document's row",
                        &statement, error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    *found = code == SQLITE_ROW;
    if (*found) read_row(statement, row);
    return catalog_finish(catalog, statement, code, "reading a document's row", error);
}

enum status catalog_rows(struct catalog *catalog, struct document_row **rows, size_t *count, struct error *error) {
    const char *doing = "reading the documents' rows";
    *rows = NULL;
    *count = 0;
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT " ROW_COLUMNS " FROM documents ORDER BY id", doing, &statement, error));
    size_t capacity = 0;
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        if (!array_reserve(rows, *count, &capacity, sizeof **rows)) {
            code = SQLITE_NOMEM;
            break;
        }
        read_row(statement, &(*rows)[(*count)++]);
    }
    enum status status = catalog_finish(catalog, statement, code, doing, error);
    if (status != STATUS_OK) {
        free(*rows);
        *rows = NULL;
    }
    return status;
}

/* The ids that a statement gives. */
static enum status read_ids(struct catalog *catalog, sqlite3_stmt *statement, const char *doing,
                            bool (*wanted)(sqlite3_stmt *statement), struct id_list *list, struct error *error) {
    *list = (struct id_list){0};
    size_t capacity = 0;
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        if (wanted != NULL && !wanted(statement)) continue;
        if (!array_reserve(&list->ids, list->count, &capacity, sizeof *list->ids)) {
            code = SQLITE_NOMEM;
            break;
        }
        list->ids[list->count++] = (uint64_t)sqlite3_column_int64(statement, 0);
    }
    enum status status = catalog_finish(catalog, statement, code, doing, error);
    if (status != STATUS_OK) {
        free(list->ids);
        list->ids = NULL;
    }
    return status;
}

static bool removal_intact(sqlite3_stmt *statement) {
    struct checksum stored, computed = removal_checksum((uint64_t)sqlite3_column_int64(statement, 0));
    return column_bytes(statement, 1, stored.bytes, sizeof stored) && checksum_equal(&stored, &computed);
}

enum status catalog_removals(struct catalog *catalog, struct id_list *list, struct error *error) {
    const char *doing = "reading what was removed";
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT id, checksum FROM removals ORDER BY id", doing, &statement, error));
    return read_ids(catalog, statement, doing, removal_intact, list, error);
}

enum status catalog_candidates(struct catalog *catalog, const uint8_t *fingerprint, const char *layout, int64_t prefix,
                               struct id_list *list, struct error *error) {
    const char *doing = "searching";
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog,
                        "SELECT id FROM documents WHERE prefix=?1 AND fingerprint=?2 AND (?3 IS NULL OR "
                        "layout=?3) AND damaged='' "
                        "ORDER BY id DESC",
                        doing, &statement, error));
    int code = sqlite3_bind_int64(statement, 1, prefix);
    note_code(&code, sqlite3_bind_blob(statement, 2, fingerprint, STORE_FINGERPRINT_BYTES, SQLITE_STATIC));
    note_code(&code, sqlite3_bind_text(statement, 3, layout, -1, SQLITE_STATIC));
    if (code != SQLITE_OK) return catalog_finish(catalog, statement, code, doing, error);
    return read_ids(catalog, statement, doing, NULL, list, error);
}

/* Commits */

static struct checksum commit_checksum(const struct commit_row *commit) {
    struct {
        uint64_t numbers[8];
        struct checksum blobs[4];
    } covered = {{commit->document, commit->number, commit->token_first, commit->token_end, commit->tokens_bytes,
                  commit->page_sums_bytes, commit->key_index_sums_bytes, commit->tail_sums_bytes},
                 {checksum_of(commit->tokens, commit->tokens_bytes),
                  checksum_of(commit->page_sums, commit->page_sums_bytes),
                  checksum_of(commit->key_index_sums, commit->key_index_sums_bytes),
                  checksum_of(commit->tail_sums, commit->tail_sums_bytes)}};
    _Static_assert(sizeof covered == 8 * 8 + 4 * 16, "no padding");
    return checksum_of(&covered, sizeof covered);
}

enum status catalog_add_commit(struct catalog *catalog, struct commit_row *commit, struct checksum *chain,
                               struct error *error) {
    const char *doing = "writing a commit";
    commit->checksum = commit_checksum(commit);
    checksum_chain(chain, &commit->checksum);
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog,
                        "INSERT INTO commits(document, number, token_first, token_end, tokens, page_sums, "
                        "metadata_sums, tail_sums, checksum) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
                        doing, &statement, error));
    const uint64_t numbers[] = {commit->document, commit->number, commit->token_first, commit->token_end};
    int code = SQLITE_OK;
    for (int i = 0; i < 4; i++) note_code(&code, sqlite3_bind_int64(statement, i + 1, (sqlite3_int64)numbers[i]));
    const void *const blobs[] = {commit->tokens, commit->page_sums, commit->key_index_sums, commit->tail_sums};
    const size_t sizes[] = {commit->tokens_bytes, commit->page_sums_bytes, commit->key_index_sums_bytes,
                            commit->tail_sums_bytes};
    for (int i = 0; i < 4; i++) /* "" for an empty one: NULL would be an SQL null */
        note_code(&code, sqlite3_bind_blob64(statement, i + 5, sizes[i] > 0 ? blobs[i] : "", sizes[i], SQLITE_STATIC));
    note_code(&code, sqlite3_bind_blob(statement, 9, commit->checksum.bytes, sizeof commit->checksum, SQLITE_STATIC));
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    return catalog_finish(catalog, statement, code, doing, error);
}

enum status catalog_see_tokens(struct catalog *catalog, uint64_t id,
                               bool (*see)(void *context, const int32_t *tokens, uint64_t count), void *context,
                               struct error *error) {
    const char *doing = "reading a document's tokens";
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT tokens FROM commits WHERE document=?1 ORDER BY number", doing, &statement,
                        error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        if (code != SQLITE_ROW) break;
        const void *tokens = sqlite3_column_blob(statement, 0);
        int bytes = sqlite3_column_bytes(statement, 0);
        if (bytes % 4 != 0 || !see(context, tokens, (uint64_t)bytes / 4)) break;
    }
    return catalog_finish(catalog, statement, code, doing, error);
}

enum status catalog_see_last(struct catalog *catalog, uint64_t id,
                             void (*see)(void *context, const struct commit_row *commit), void *context,
                             struct error *error) {
    const char *doing = "reading a document's states";
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog,
                        "SELECT token_end, tail_sums FROM commits WHERE document=?1 ORDER BY number DESC LIMIT 1",
                        doing, &statement, error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)id);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        struct commit_row commit = {.document = id,
                                    .token_end = (uint64_t)sqlite3_column_int64(statement, 0),
                                    .tail_sums = sqlite3_column_blob(statement, 1)};
        if (commit.tail_sums != NULL) commit.tail_sums_bytes = (size_t)sqlite3_column_bytes(statement, 1);
        see(context, &commit);
    }
    return catalog_finish(catalog, statement, code, doing, error);
}

/* What a commit has beside its numbers, in the order of its columns. */
enum { COMMIT_BLOBS = 4 };
static const char *const blob_names[COMMIT_BLOBS] = {"tokens", "page_sums", "metadata_sums", "tail_sums"};

/* Megabytes, of a long document: SQLite would put them into memory of its own, fresh for each, and into it page by
 * page of 4 KiB.  What has no place of its own goes into one area of huge pages; of a short one into a piece of the
 * heap. */
struct blob_area {
    uint8_t *memory;
    size_t bytes;
};

static void area_free(struct blob_area *area) {
    if (area->bytes < MEMORY_AREA_BYTES_MIN)
        free(area->memory);
    else
        memory_area_destroy(area->memory, area->bytes);
}

static bool area_reserve(struct blob_area *area, size_t bytes) {
    if (bytes <= area->bytes && area->memory != NULL) return true;
    area_free(area);
    area->memory = bytes < MEMORY_AREA_BYTES_MIN ? malloc(bytes) : memory_area_create(bytes);
    area->bytes = area->memory != NULL ? bytes : 0;
    return area->memory != NULL;
}

/* One column of a row. */
static int read_blob(struct catalog *catalog, int64_t row, const char *column, void *memory, size_t bytes) {
    sqlite3_blob *blob = NULL;
    if (bytes == 0) return SQLITE_OK;
    int code = sqlite3_blob_open(catalog->database, "main", "commits", column, row, 0, &blob);
    if (code == SQLITE_OK)
        code = (size_t)sqlite3_blob_bytes(blob) == bytes ? sqlite3_blob_read(blob, memory, (int)bytes, 0)
                                                         : SQLITE_CORRUPT;
    const int closed = sqlite3_blob_close(blob);
    return code != SQLITE_OK ? code : closed;
}

/* Of the row that the statement is at: numbers, lengths of the blobs. */
static struct commit_row read_numbers(sqlite3_stmt *statement, uint64_t document) {
    return (struct commit_row){.document = document,
                               .number = (uint64_t)sqlite3_column_int64(statement, 0),
                               .token_first = (uint64_t)sqlite3_column_int64(statement, 1),
                               .token_end = (uint64_t)sqlite3_column_int64(statement, 2),
                               .tokens_bytes = (size_t)sqlite3_column_int64(statement, 3),
                               .page_sums_bytes = (size_t)sqlite3_column_int64(statement, 4),
                               .key_index_sums_bytes = (size_t)sqlite3_column_int64(statement, 5),
                               .tail_sums_bytes = (size_t)sqlite3_column_int64(statement, 6)};
}

/* Behind so many tokens of the commits before it, within the row's. */
static bool follows(const struct commit_row *commit, uint64_t number, uint64_t tokens, const struct document_row *row) {
    return commit->number == number && commit->token_first == tokens && commit->token_end > tokens &&
           commit->token_end <= row->token_count;
}

/* Two ways to go through them have the same columns. */
#define COMMIT_COLUMNS                                                                                          \
    "number, token_first, token_end, length(tokens), length(page_sums), length(metadata_sums), length(tail_sums), " \
    "checksum, rowid"

enum status catalog_read_key_index_sums(struct catalog *catalog, const struct document_row *row,
                                        void (*place)(void *context, const struct commit_row *commit,
                                                      struct commit_places *places),
                                        void *context, bool *all, struct error *error) {
    const char *doing = "reading a document's commits";
    sqlite3_stmt *statement;
    *all = false;
    TRY(catalog_prepare(catalog, "SELECT " COMMIT_COLUMNS " FROM commits WHERE document=?1 ORDER BY number", doing,
                        &statement, error));
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)row->id);
    if (code != SQLITE_OK) return catalog_finish(catalog, statement, code, doing, error);
    uint64_t number = 0, tokens = 0;
    while (number < row->generation && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        const struct commit_row commit = read_numbers(statement, row->id);
        struct commit_places places = {0};
        if (!follows(&commit, number + 1, tokens, row)) break; /* catalog_see_commits says so */
        place(context, &commit, &places);
        if (commit.key_index_sums_bytes > 0 && places.key_index_sums == NULL) break;
        code = read_blob(catalog, sqlite3_column_int64(statement, 8), "metadata_sums", places.key_index_sums,
                         commit.key_index_sums_bytes);
        if (code != SQLITE_OK) break;
        number++;
        tokens = commit.token_end;
    }
    *all = number == row->generation && tokens == row->token_count;
    return catalog_finish(catalog, statement, code, doing, error);
}

/* The blobs. */
static int read_commit(struct catalog *catalog, sqlite3_stmt *statement, struct blob_area *area,
                       const struct commit_places *places, struct commit_row *commit) {
    const void **const blobs[COMMIT_BLOBS] = {&commit->tokens, &commit->page_sums, &commit->key_index_sums,
                                              &commit->tail_sums};
    const size_t sizes[COMMIT_BLOBS] = {commit->tokens_bytes, commit->page_sums_bytes, commit->key_index_sums_bytes,
                                        commit->tail_sums_bytes};
    void *const given[COMMIT_BLOBS] = {places->tokens, places->page_sums, places->key_index_sums, places->tail_sums};
    const bool is_there[COMMIT_BLOBS] = {false, false, places->key_index_sums_are_there, false};
    size_t offsets[COMMIT_BLOBS], total = 0;
    for (int i = 0; i < COMMIT_BLOBS; i++) {
        offsets[i] = total;
        if (given[i] == NULL) total += align_up(sizes[i], 16);
    }
    if (!area_reserve(area, max_size(total, 1))) return SQLITE_NOMEM;
    int code = SQLITE_OK;
    for (int i = 0; i < COMMIT_BLOBS && code == SQLITE_OK; i++) {
        void *to = given[i] != NULL ? given[i] : area->memory + offsets[i];
        *blobs[i] = to;
        if (is_there[i]) continue;
        code = read_blob(catalog, sqlite3_column_int64(statement, 8), blob_names[i], to, sizes[i]);
    }
    return code;
}

enum status catalog_see_commits(struct catalog *catalog, const struct document_row *row,
                                void (*place)(void *context, const struct commit_row *commit,
                                              struct commit_places *places),
                                enum status (*see)(void *context, const struct commit_row *commit, struct error *error),
                                void *context, bool may_have_grown, struct error *error) {
    const char *doing = "reading a document's commits";
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT " COMMIT_COLUMNS " FROM commits WHERE document=?1 ORDER BY number", doing,
                        &statement, error));
    struct checksum chain = {{0}}, computed;
    uint64_t number = 0, tokens = 0;
    int code = sqlite3_bind_int64(statement, 1, (sqlite3_int64)row->id);
    if (code != SQLITE_OK) return catalog_finish(catalog, statement, code, doing, error);
    enum status status = STATUS_OK;
    struct blob_area area = {NULL, 0};
    while (status == STATUS_OK && !(may_have_grown && number == row->generation) &&
           (code = sqlite3_step(statement)) == SQLITE_ROW) {
        struct commit_row commit = read_numbers(statement, row->id);
        struct commit_places places = {0};
        const bool is_next = follows(&commit, ++number, tokens, row);
        if (is_next && place != NULL) place(context, &commit, &places);
        code = read_commit(catalog, statement, &area, &places, &commit);
        if (code != SQLITE_OK) break;
        computed = commit_checksum(&commit);
        if (!column_bytes(statement, 7, commit.checksum.bytes, sizeof commit.checksum) ||
            !checksum_equal(&commit.checksum, &computed) || !is_next)
            status = error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 ": commit %" PRIu64 " is damaged",
                               catalog->path, row->id, number);
        if (status != STATUS_OK) break;
        tokens = commit.token_end;
        checksum_chain(&chain, &commit.checksum);
        status = see(context, &commit, error);
    }
    area_free(&area);
    if (status != STATUS_OK) {
        sqlite3_finalize(statement);
        return status;
    }
    TRY(catalog_finish(catalog, statement, code, doing, error));
    if (number != row->generation || tokens != row->token_count || !checksum_equal(&chain, &row->chain))
        return error_set(error, STATUS_DOCUMENT,
                         "%s: document %" PRIu64 ": found %" PRIu64 " commits of %" PRIu64 " tokens, expected %" PRIu64
                         " of %" PRIu64 ", chained by checksum",
                         catalog->path, row->id, number, tokens, row->generation, row->token_count);
    return STATUS_OK;
}
