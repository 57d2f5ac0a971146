/* What catalog.c, the connection, shares with catalog_rows.c, the rows of catalog.db, and with conversations.c. */
#pragma once

#include <sqlite3.h>

#include "cache/store/store_internal.h"

struct catalog_kind {
    const char *name;          /* of the file */
    const char *const *schema; /* [schema_count] in the order of their names; compared with what sqlite_schema says */
    size_t schema_count;
    int version_first, version_last; /* a new one has the first */
};
/* catalog_open of a catalog whose kind is set, and whose other members are zeros. */
enum status catalog_open_kind(struct catalog *catalog, const struct io_folder *folder, bool read_only, bool may_create,
                              const char *vfs, struct error *error) STATUS_CHECKED;

enum status catalog_execute(struct catalog *catalog, const char *sql, const char *doing, struct error *error)
    STATUS_CHECKED;
enum status catalog_prepare(struct catalog *catalog, const char *sql, const char *doing, sqlite3_stmt **statement,
                            struct error *error) STATUS_CHECKED;
/* Finalizes the statement; code is what its last step gave. */
enum status catalog_finish(struct catalog *catalog, sqlite3_stmt *statement, int code, const char *doing,
                           struct error *error) STATUS_CHECKED;
