/* catalog.db, or conversations.db: one connection to it.
 *
 * SQLite keeps transactions whole; it does not notice a flipped bit in a value.  So every row carries a
 * checksum of its own, and the commits of a document are chained: chain' = XXH3-128(chain, checksum of the commit).
 * The schema is compared as text, the version by number, before anything is read.  Versions 3 to 8 have the tables of
 * 2.  From 3 on there may be documents with fractions, from 4 on documents whose pages have checksums of their parts,
 * from 5 on documents whose fractions change behind some segment, from 6 on documents whose first pages are rows
 * whatever their fractions, from 7 on documents whose layers differ, from 8 on documents with states: a loam that reads
 * only what was before would call them damaged.
 *
 * Rollback journal, not WAL: readers of a folder that they may not write need no shared memory file, and the
 * TRUNCATE mode with synchronous=FULL flushes the journal's end, so that a commit that returned stays. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/assert.h"
#include "cache/store/catalog_internal.h"

enum {
    APPLICATION_ID = 0x6c6f616d,
    SCHEMA_VERSION = 2,
    FRACTIONS_VERSION = 3,
    PARTS_VERSION = 4,
    SPANS_VERSION = 5,
    FIRST_ROWS_VERSION = 6,
    GROUPS_VERSION = 7,
    STATES_VERSION = 8,
    WINDOWS_VERSION = 9,
    BUSY_MILLISECONDS = 10000
};

/* What the user can do about a catalog that is gone. */
#define REPAIR "; put a copy of it back, or remove all of the folder but conversations.db"

static const char *const schema[] = {
    "CREATE TABLE commits(document INTEGER NOT NULL, number INTEGER NOT NULL, token_first INTEGER NOT NULL, "
    "token_end INTEGER NOT NULL, tokens BLOB NOT NULL, page_sums BLOB NOT NULL, metadata_sums BLOB NOT NULL, "
    "tail_sums BLOB NOT NULL, checksum BLOB NOT NULL)",
    "CREATE UNIQUE INDEX commits_by_number ON commits(document, number)",
    "CREATE TABLE documents(id INTEGER PRIMARY KEY AUTOINCREMENT, generation INTEGER NOT NULL, "
    "fingerprint BLOB NOT NULL, model TEXT NOT NULL, name TEXT NOT NULL, layout TEXT NOT NULL, "
    "created INTEGER NOT NULL, prefix INTEGER NOT NULL, token_count INTEGER NOT NULL, bytes INTEGER NOT "
    "NULL, "
    "chain BLOB NOT NULL, checksum BLOB NOT NULL, writer INTEGER NOT NULL, damaged TEXT NOT NULL)",
    "CREATE INDEX documents_by_prefix ON documents(prefix)",
    "CREATE TABLE removals(id INTEGER PRIMARY KEY, checksum BLOB NOT NULL)",
};
static const struct catalog_kind of_documents = {.name = "catalog.db",
                                                 .schema = schema,
                                                 .schema_count = sizeof schema / sizeof *schema,
                                                 .version_first = SCHEMA_VERSION,
                                                 .version_last = WINDOWS_VERSION};

/* A file whose header asks for a later SQLite to write it is opened for reading only, however it was to be opened. */
static bool header_forbids_writing(sqlite3 *database) {
    enum { WRITE_VERSION = 18, WAL_VERSION = 2 }; /* https://sqlite.org/fileformat.html, 1.3.3 */
    sqlite3_file *file = NULL;
    uint8_t version;
    if (sqlite3_file_control(database, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK) return false;
    if (file == NULL || file->pMethods == NULL) return false;
    return file->pMethods->xRead(file, &version, 1, WRITE_VERSION) == SQLITE_OK && version > WAL_VERSION;
}

/* The status and line of an SQLite error. */
static enum status failed(struct catalog *catalog, int code, const char *doing, struct error *error) {
    sqlite3 *database = catalog->database;
    const char *reason = database != NULL ? sqlite3_errmsg(database) : sqlite3_errstr(code);
    if (code == SQLITE_READONLY_DBMOVED)
        return error_set(error, STATUS_IO,
                         "%s: %s: the folder, or the catalog in it, was removed or replaced meanwhile", catalog->path,
                         doing);
    switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_SCHEMA:
    case SQLITE_CONSTRAINT:
    case SQLITE_ERROR: /* a table or column that is not there */
        return error_set(error, STATUS_DOCUMENT, "%s: %s: damaged: %s", catalog->path, doing, reason);
    case SQLITE_READONLY:
        if (database == NULL || !header_forbids_writing(database)) break;
        return error_set(error, STATUS_DOCUMENT, "%s: %s: damaged: %s", catalog->path, doing, reason);
    case SQLITE_NOMEM: return error_set(error, STATUS_MEMORY, "%s: %s: out of memory", catalog->path, doing);
    case SQLITE_BUSY:
        return error_set(error, STATUS_IO, "%s: %s: another process has kept it locked for %d s", catalog->path, doing,
                         BUSY_MILLISECONDS / 1000);
    }
    int os_error = database != NULL ? sqlite3_system_errno(database) : 0;
    if ((code & 0xff) == SQLITE_FULL) os_error = ENOSPC;
    return error_set_os(error, STATUS_IO, os_error, "%s: %s: %s", catalog->path, doing, reason);
}

enum status catalog_execute(struct catalog *catalog, const char *sql, const char *doing, struct error *error) {
    int code = sqlite3_exec(catalog->database, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? STATUS_OK : failed(catalog, code, doing, error);
}

enum status catalog_prepare(struct catalog *catalog, const char *sql, const char *doing, sqlite3_stmt **statement,
                            struct error *error) {
    int code = sqlite3_prepare_v2(catalog->database, sql, -1, statement, NULL);
    return code == SQLITE_OK ? STATUS_OK : failed(catalog, code, doing, error);
}

enum status catalog_finish(struct catalog *catalog, sqlite3_stmt *statement, int code, const char *doing,
                           struct error *error) {
    enum status status = STATUS_OK;
    if (code != SQLITE_DONE && code != SQLITE_ROW && code != SQLITE_OK)
        status = failed(catalog, code, doing, error); /* before finalize changes the message */
    sqlite3_finalize(statement);
    return status;
}

/* One number that a statement gives. */
static enum status ask_number(struct catalog *catalog, const char *sql, int64_t *number, struct error *error) {
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, sql, "opening", &statement, error));
    int code = sqlite3_step(statement);
    *number = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
    return catalog_finish(catalog, statement, code, "opening", error);
}

static enum status schema_check(struct catalog *catalog, struct error *error) {
    int64_t id, version, pages;
    TRY(ask_number(catalog, "PRAGMA application_id", &id, error));
    TRY(ask_number(catalog, "PRAGMA user_version", &version, error));
    TRY(ask_number(catalog, "PRAGMA page_count", &pages, error));
    if (id == 0 && pages == 0)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: it is empty" REPAIR, catalog->path);
    if (id != APPLICATION_ID)
        return error_set(error, STATUS_DOCUMENT, "%s: not a catalog of loam (application id %lld, expected %d)",
                         catalog->path, (long long)id, APPLICATION_ID);
    const struct catalog_kind *kind = catalog->kind;
    if (version < kind->version_first || version > kind->version_last)
        return error_set(error, STATUS_DOCUMENT, "%s: version %lld, this loam reads %d to %d", catalog->path,
                         (long long)version, kind->version_first, kind->version_last);
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' ORDER BY name", "opening",
                        &statement, error));
    int code;
    size_t seen = 0;
    bool same = true;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        same = same && seen < kind->schema_count && text != NULL && strcmp(text, kind->schema[seen]) == 0;
        seen++;
    }
    TRY(catalog_finish(catalog, statement, code, "opening", error));
    if (!same || seen != kind->schema_count)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: its tables are not those of version %lld", catalog->path,
                         (long long)version);
    return STATUS_OK;
}

static enum status schema_create(struct catalog *catalog, struct error *error) {
    const struct catalog_kind *kind = catalog->kind;
    for (size_t i = 0; i < kind->schema_count; i++)
        TRY(catalog_execute(catalog, kind->schema[i], "making the tables", error));
    char sql[96];
    snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION_ID, kind->version_first);
    return catalog_execute(catalog, sql, "making the tables", error);
}

enum status catalog_note_version(struct catalog *catalog, const struct geometry *geometry, struct error *error) {
    char sql[48];
    int64_t version;
    const int needed = geometry->windows.tokens > 0          ? WINDOWS_VERSION
                       : geometry->state_bytes > 0           ? STATES_VERSION
                       : geometry->group_count > 1           ? GROUPS_VERSION
                       : geometry->fractions.first_is_rows   ? FIRST_ROWS_VERSION
                       : geometry->fractions.later_count > 0 ? SPANS_VERSION
                       : geometry->part_count > 0            ? PARTS_VERSION
                       : geometry->fractions.layer_count > 0 ? FRACTIONS_VERSION
                                                             : SCHEMA_VERSION;
    TRY(ask_number(catalog, "PRAGMA user_version", &version, error));
    if (version >= needed) return STATUS_OK;
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d", needed);
    return catalog_execute(catalog, sql, "noting its version", error);
}

static enum status settle(struct catalog *catalog, bool read_only, bool may_create, struct error *error) {
    sqlite3 *database = catalog->database;
    sqlite3_extended_result_codes(database, 1);
    sqlite3_busy_timeout(database, BUSY_MILLISECONDS);
    sqlite3_limit(database, SQLITE_LIMIT_LENGTH, 1 << 30);
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    TRY(catalog_execute(catalog,
                        "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON; PRAGMA temp_store=MEMORY; "
                        "PRAGMA synchronous=FULL; PRAGMA mmap_size=0; PRAGMA cache_size=-4096",
                        "opening", error));
    if (read_only) return schema_check(catalog, error);
    int64_t tables, id, pages;
    TRY(catalog_execute(catalog, "PRAGMA journal_mode=TRUNCATE", "opening", error));
    TRY(ask_number(catalog, "PRAGMA page_count", &pages, error));
    /* Only of a new one: where there are tables it would be a change, for which a full disk has no space. */
    if (pages == 0) TRY(catalog_execute(catalog, "PRAGMA auto_vacuum=FULL", "opening", error));
    TRY(catalog_begin(catalog, error));
    enum status status = ask_number(catalog, "SELECT count(*) FROM sqlite_schema", &tables, error);
    if (status == STATUS_OK) status = ask_number(catalog, "PRAGMA application_id", &id, error);
    if (status == STATUS_OK && tables == 0 && id == 0) {
        /* An empty catalog in a folder with pages has lost their rows.  A new one would make them orphans. */
        status = may_create
                     ? schema_create(catalog, error)
                     : error_set(error, STATUS_DOCUMENT,
                                 "%s: damaged: it is empty or gone, and there are pages of documents beside it" REPAIR,
                                 catalog->path);
    } else if (status == STATUS_OK) {
        status = schema_check(catalog, error);
    }
    if (status == STATUS_OK) return catalog_commit(catalog, error);
    catalog_rollback(catalog);
    return status;
}

/* Looked at, never opened: closing a descriptor of it would drop the locks of other connections in this process. */
static enum status file_check(const struct catalog *catalog, const struct io_folder *folder, bool to_write,
                              bool *present, struct error *error) {
    struct stat info;
    const char *name = catalog->kind->name, *path = catalog->path;
    *present = fstatat(folder->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (!*present) return errno == ENOENT ? STATUS_OK : error_set_os(error, STATUS_IO, errno, "%s", path);
    if (!S_ISREG(info.st_mode))
        return error_set(error, STATUS_IO, "%s: %s", path,
                         S_ISLNK(info.st_mode) ? "a symbolic link, expected a file" : "not a regular file");
    if (info.st_uid != folder->owner)
        return error_set(error, STATUS_IO, "%s: the file belongs to user %u, not to user %u", path,
                         (unsigned)info.st_uid, (unsigned)folder->owner);
    /* SQLite would open it for reading, and say so only when something is written. */
    if (to_write && faccessat(folder->fd, name, W_OK, AT_EACCESS) != 0)
        return error_set_os(error, STATUS_IO, errno, "%s", path);
    return STATUS_OK;
}

/* SQLite opens these, too, and would wait for a fifo for ever. */
static enum status files_beside_check(const struct catalog *catalog, const struct io_folder *folder,
                                      struct error *error) {
    static const char *const suffixes[] = {"-journal", "-wal", "-shm"};
    const char *path = catalog->path;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char name[40];
        struct stat info;
        snprintf(name, sizeof name, "%s%s", catalog->kind->name, suffixes[i]);
        if (fstatat(folder->fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) continue;
            return error_set_os(error, STATUS_IO, errno, "%s%s", path, suffixes[i]);
        }
        if (!S_ISREG(info.st_mode)) return error_set(error, STATUS_IO, "%s%s: not a regular file", path, suffixes[i]);
        if (info.st_uid != folder->owner)
            return error_set(error, STATUS_IO, "%s%s: the file belongs to user %u, not to user %u", path, suffixes[i],
                             (unsigned)info.st_uid, (unsigned)folder->owner);
    }
    return STATUS_OK;
}

enum status catalog_open(struct catalog *catalog, const struct io_folder *folder, bool read_only, bool may_create,
                         const char *vfs, struct error *error) {
    *catalog = (struct catalog){.kind = &of_documents};
    return catalog_open_kind(catalog, folder, read_only, may_create, vfs, error);
}

enum status catalog_open_kind(struct catalog *catalog, const struct io_folder *folder, bool read_only, bool may_create,
                              const char *vfs, struct error *error) {
    const char *name = catalog->kind->name;
    if (asprintf(&catalog->path, "%s/%s", folder->path, name) < 0) {
        catalog->path = NULL;
        return error_set(error, STATUS_MEMORY, "%s: out of memory", name);
    }
    bool present;
    enum status status = file_check(catalog, folder, !read_only, &present, error);
    if (status == STATUS_OK) status = files_beside_check(catalog, folder, error);
    if (status == STATUS_OK && !present && read_only)
        status = error_set(error, STATUS_IO, "%s: there is no catalog of saved documents", catalog->path);
    if (status == STATUS_OK && !present) { /* SQLite would make it readable by others */
        int fd = openat(folder->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST) status = error_set_os(error, STATUS_IO, errno, "%s", catalog->path);
        if (fd >= 0) close(fd);
    }
    if (status == STATUS_OK) {
        int flags = (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) | SQLITE_OPEN_FULLMUTEX;
        int code = sqlite3_open_v2(catalog->path, &catalog->database, flags, vfs);
        status =
            code == SQLITE_OK ? settle(catalog, read_only, may_create, error) : failed(catalog, code, "opening", error);
    }
    if (status != STATUS_OK) catalog_close(catalog);
    return status;
}

void catalog_close(struct catalog *catalog) {
    if (catalog->database != NULL) {
        int code = sqlite3_close(catalog->database);
        ASSERT(code == SQLITE_OK); /* no statement was left */
    }
    free(catalog->path);
    *catalog = (struct catalog){0};
}

enum status catalog_begin(struct catalog *catalog, struct error *error) {
    return catalog_execute(catalog, "BEGIN IMMEDIATE", "starting a change", error);
}

enum status catalog_begin_read(struct catalog *catalog, struct error *error) {
    return catalog_execute(catalog, "BEGIN", "starting to read", error);
}

enum status catalog_commit(struct catalog *catalog, struct error *error) {
    enum status status = catalog_execute(catalog, "COMMIT", "writing", error);
    if (status != STATUS_OK) catalog_rollback(catalog);
    return status;
}

void catalog_rollback(struct catalog *catalog) {
    if (sqlite3_get_autocommit(catalog->database) == 0)
        (void)sqlite3_exec(catalog->database, "ROLLBACK", NULL, NULL, NULL);
}

enum status catalog_bytes(struct catalog *catalog, uint64_t *bytes, struct error *error) {
    int64_t pages, page_bytes;
    TRY(ask_number(catalog, "PRAGMA page_count", &pages, error));
    TRY(ask_number(catalog, "PRAGMA page_size", &page_bytes, error));
    *bytes = (uint64_t)pages * (uint64_t)page_bytes;
    return STATUS_OK;
}

enum status catalog_check(struct catalog *catalog, struct error *error) {
    sqlite3_stmt *statement;
    TRY(catalog_prepare(catalog, "PRAGMA integrity_check(1)", "checking it", &statement, error));
    int code = sqlite3_step(statement);
    const char *found = code == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : NULL;
    enum status status = STATUS_OK;
    if (code == SQLITE_ROW && (found == NULL || strcmp(found, "ok") != 0))
        status = error_set(error, STATUS_DOCUMENT, "%s: damaged: %s", catalog->path, found != NULL ? found : "?");
    enum status finished = catalog_finish(catalog, statement, code, "checking it", status == STATUS_OK ? error : NULL);
    return status == STATUS_OK ? finished : status;
}
