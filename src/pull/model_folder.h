/* model_folder: the folder of pulled models, where -m finds them by name.
 *
 *   NAME.gguf         a model, whole and checked
 *   NAME.gguf.part    what has come of one
 *   .NAME.gguf.json   where it came from: url, sha256, license
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* LOAM_MODELS, else loam/models of XDG_DATA_HOME, else ~/.local/share/loam/models.  Owned by the caller.  STATUS_USAGE:
 * there is no home either. */
enum status model_folder_path(char **path, struct error *error) STATUS_CHECKED;
/* The same, and the folder is there. */
enum status model_folder_make(char **path, struct error *error) STATUS_CHECKED;

/* The file of a name: a name of the table (known_model.h), a file's own name, with or without ".gguf", or a split
 * model's without its "-00001-of-0000N".  *path: owned by the caller; NULL: no such model here. */
enum status model_folder_find(const char *name, char **path, struct error *error) STATUS_CHECKED;

struct model_entry {
    char *name, *path;   /* NAME.gguf; a split model's first file */
    uint64_t size_bytes; /* of all its files */
    uint32_t file_count, files_wanted;
    char *license, *url; /* NULL: not known */
    bool is_part;        /* not whole yet */
};
struct model_list {
    struct model_entry *entries; /* [count], owned, by name */
    size_t count, capacity;
};
/* No folder: an empty list. */
enum status model_list_read(struct model_list *list, struct error *error) STATUS_CHECKED;
void model_list_deinit(struct model_list *list);

/* "x-00002-of-00003.gguf": 2 of 3, and the bytes of "x".  false: the name is not of that form. */
bool shard_parse(const char *name, size_t *stem_bytes, uint32_t *index, uint32_t *count);
