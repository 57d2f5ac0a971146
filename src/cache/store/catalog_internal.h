/* The two halves of the catalog: its connection (catalog.c) and its rows (catalog_rows.c). */
#ifndef LOAM_CACHE_STORE_CATALOG_INTERNAL_H
#define LOAM_CACHE_STORE_CATALOG_INTERNAL_H

#include <sqlite3.h>

#include "cache/store/store_internal.h"

#define CATALOG_NAME "catalog.db"

enum status catalog_execute(struct catalog *catalog, const char *sql, const char *doing, struct error *error)
    STATUS_CHECKED;
enum status catalog_prepare(struct catalog *catalog, const char *sql, const char *doing,
                            sqlite3_stmt **statement, struct error *error) STATUS_CHECKED;
/* Finalizes the statement; code is what its last step gave. */
enum status catalog_finish(struct catalog *catalog, sqlite3_stmt *statement, int code, const char *doing,
                           struct error *error) STATUS_CHECKED;

#endif
