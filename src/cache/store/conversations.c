#include "cache/store/conversations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/store/catalog_internal.h"

enum { ROOM_BYTES = 64 << 10 }; /* of tables and an index, beside a conversation's text */

static const char *const schema[] = {
    "CREATE TABLE conversations(owner TEXT NOT NULL, id TEXT NOT NULL, title TEXT NOT NULL, changed INTEGER NOT NULL, "
    "version TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY(owner, id))",
};
static const struct catalog_kind of_conversations = {
    .name = CONVERSATIONS_NAME, .schema = schema, .schema_count = 1, .version_first = 1, .version_last = 1};

/* database->database NULL: there is none, and `makes` is false. */
static enum status open_in(struct catalog *database, const struct io_folder *folder, bool makes, struct error *error) {
    *database = (struct catalog){.kind = &of_conversations};
    if (!makes && faccessat(folder->fd, CONVERSATIONS_NAME, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return STATUS_OK;
    /* Who may write undoes what a process that was killed had begun. */
    const bool writes = makes || faccessat(folder->fd, CONVERSATIONS_NAME, W_OK, AT_EACCESS) == 0;
    return catalog_open_kind(database, folder, !writes, true, NULL, error);
}

static enum status bind_key(struct catalog *database, const char *sql, const char *owner, const char *id,
                            sqlite3_stmt **statement, struct error *error) {
    TRY(catalog_prepare(database, sql, "conversations", statement, error));
    int code = sqlite3_bind_text(*statement, 1, owner, -1, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_bind_text(*statement, 2, id, -1, SQLITE_STATIC);
    return code == SQLITE_OK ? STATUS_OK : catalog_finish(database, *statement, code, "conversations", error);
}

static void make_version(const struct conversation_row *row, char version[CONVERSATION_VERSION_BYTES]) {
    const char *const texts[] = {row->owner, row->id, row->title};
    struct checksum chain = checksum_of(row->content, row->length);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const struct checksum next = checksum_of(texts[i], strlen(texts[i]));
        checksum_chain(&chain, &next);
    }
    (void)checksum_text(&chain, version);
}

static const char *text_of(sqlite3_stmt *statement, int column) {
    const char *text = (const char *)sqlite3_column_text(statement, column);
    return text != NULL ? text : "";
}

struct query {
    const char *sql, *owner, *id;
    void (*see)(void *context, const struct conversation_row *row);
    void *context;
    int changes;
};

#define ROWS(content)                                                               \
    "SELECT owner, id, title, changed, version, length(content), " content          \
    " FROM conversations WHERE (?1 IS NULL OR owner=?1) AND (?2 IS NULL OR id=?2) " \
    "ORDER BY changed DESC, id"

static enum status see_row(struct catalog *database, sqlite3_stmt *statement, const struct query *query,
                           struct error *error) {
    char version[CONVERSATION_VERSION_BYTES];
    struct conversation_row row = {.owner = text_of(statement, 0),
                                   .id = text_of(statement, 1),
                                   .title = text_of(statement, 2),
                                   .changed = sqlite3_column_int64(statement, 3),
                                   .length = (size_t)sqlite3_column_int64(statement, 5)};
    snprintf(row.version, sizeof row.version, "%s", text_of(statement, 4));
    if (sqlite3_column_type(statement, 6) != SQLITE_NULL) {
        row.content = sqlite3_column_blob(statement, 6);
        if (row.content == NULL) row.content = ""; /* of no bytes */
        make_version(&row, version);
        if (strcmp(version, row.version) != 0)
            return error_set(error, STATUS_DOCUMENT, "%s: conversation %s: damaged: its checksum is %s, expected %s",
                             database->path, row.id, version, row.version);
    }
    query->see(query->context, &row);
    return STATUS_OK;
}

static enum status run_in(struct catalog *database, struct query *query, struct error *error) {
    sqlite3_stmt *statement;
    int code;
    TRY(bind_key(database, query->sql, query->owner, query->id, &statement, error));
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        const enum status status = see_row(database, statement, query, error);
        if (status == STATUS_OK) continue;
        sqlite3_finalize(statement);
        return status;
    }
    query->changes = sqlite3_changes(database->database);
    return catalog_finish(database, statement, code, "conversations", error);
}

static enum status run(const char *directory, struct query *query, struct error *error) {
    struct io_folder folder;
    struct catalog database = {0};
    enum status status = io_folder_open(&folder, directory, IO_FOLDER_READ, NULL, error);
    if (status == STATUS_OK) status = open_in(&database, &folder, false, error);
    if (status == STATUS_OK && database.database != NULL) status = run_in(&database, query, error);
    catalog_close(&database);
    io_folder_close(&folder);
    return status;
}

enum status conversations_see(const char *directory, const char *owner, const char *id,
                              void (*see)(void *context, const struct conversation_row *row), void *context,
                              struct error *error) {
    struct query query = {id != NULL ? ROWS("content") : ROWS("NULL"), owner, id, see, context, 0};
    return run(directory, &query, error);
}

enum status conversations_remove(const char *directory, const char *owner, const char *id, bool *found,
                                 struct error *error) {
    struct query query = {"DELETE FROM conversations WHERE owner=?1 AND id=?2", owner, id, NULL, NULL, 0};
    const enum status status = run(directory, &query, error);
    *found = query.changes > 0;
    return status;
}

static void take_version(void *context, const struct conversation_row *row) {
    memcpy(context, row->version, sizeof row->version);
}

static enum status write_row(struct catalog *database, const struct conversation_row *row, const char *version,
                             struct error *error) {
    sqlite3_stmt *statement;
    TRY(bind_key(database,
                 "INSERT OR REPLACE INTO conversations(owner, id, title, changed, version, content) "
                 "VALUES(?1,?2,?3,?4,?5,?6)",
                 row->owner, row->id, &statement, error));
    int code = sqlite3_bind_text(statement, 3, row->title, -1, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_bind_int64(statement, 4, (int64_t)time(NULL));
    if (code == SQLITE_OK) code = sqlite3_bind_text(statement, 5, version, -1, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_bind_blob64(statement, 6, row->content, row->length, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    return catalog_finish(database, statement, code, "writing a conversation", error);
}

/* The catalog is held meanwhile, so that nobody else takes of the room. */
static enum status write_within(struct store *store, struct catalog *database, const struct conversation_row *row,
                                const char *version, struct error *error) {
    const uint64_t needed = row->length + strlen(row->title) + ROOM_BYTES;
    TRY(store_make_space(store, needed, error));
    TRY(catalog_begin(&store->catalog, error));
    enum status status = store_check_space(store, needed, error);
    if (status == STATUS_OK) status = write_row(database, row, version, error);
    if (status == STATUS_OK) status = catalog_commit(database, error);
    catalog_rollback(&store->catalog);
    return status;
}

enum status conversations_put(struct store *store, struct conversation_row *row, bool *is_stale, struct error *error) {
    struct catalog database;
    char there[CONVERSATION_VERSION_BYTES] = "", made[CONVERSATION_VERSION_BYTES];
    struct query find = {ROWS("NULL"), row->owner, row->id, take_version, there, 0};
    make_version(row, made);
    *is_stale = false;
    enum status status = open_in(&database, &store->folder, true, error);
    if (status == STATUS_OK) status = catalog_begin(&database, error);
    if (status == STATUS_OK) status = run_in(&database, &find, error);
    if (status == STATUS_OK && strcmp(there, made) != 0) { /* else it was written, and its client did not hear of it */
        *is_stale = strcmp(there, row->version) != 0;
        if (!*is_stale) status = write_within(store, &database, row, made, error);
    }
    if (status == STATUS_OK) memcpy(row->version, *is_stale ? there : made, sizeof made);
    if (database.database != NULL) catalog_rollback(&database);
    catalog_close(&database);
    return status;
}
