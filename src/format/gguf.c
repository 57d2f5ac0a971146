#include "format/gguf.h"

#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "format/gguf_internal.h"

static enum status out_of_memory(const struct gguf *gguf, struct error *error) {
    return error_set(error, STATUS_MEMORY, "%s: out of memory reading the header",
                     gguf->path == NULL ? "model" : gguf_path_shown(gguf->path));
}

static enum status start(struct gguf *gguf, const char *path, struct error *error) {
    *gguf = (struct gguf){0};
    arena_init(&gguf->arena);
    gguf->path = arena_text(&gguf->arena, path, strlen(path));
    if (gguf->path == NULL) return out_of_memory(gguf, error);
    return STATUS_OK;
}

/* The contents of the first file; tensors are added once all files are read. */
static enum status adopt_entries(struct gguf *gguf, const struct gguf_part *part, struct error *error) {
    struct gguf_index *index = arena_allocate(&gguf->arena, sizeof *index);
    if (index == NULL) return out_of_memory(gguf, error);
    index->entries = part->by_key;
    gguf->index = index;
    gguf->version = part->version;
    gguf->alignment = part->alignment;
    gguf->entry_count = part->entry_count;
    gguf->entries = part->entries;
    return STATUS_OK;
}

static enum status adopt_tensors(struct gguf *gguf, const struct gguf_tensor *tensors, uint64_t count,
                                 struct error *error) {
    const struct gguf_tensor **by_name = arena_array(&gguf->arena, count, sizeof *by_name);
    struct gguf_index *index = arena_allocate(&gguf->arena, sizeof *index);
    if (by_name == NULL || index == NULL) return out_of_memory(gguf, error);
    TRY(gguf_tensors_index(tensors, count, by_name, gguf->path, error));
    *index = (struct gguf_index){gguf->index->entries, by_name};
    gguf->index = index;
    gguf->tensors = tensors;
    gguf->tensor_count = count;
    return STATUS_OK;
}

static enum status read_memory(struct gguf *gguf, const void *data, uint64_t size_bytes, struct error *error) {
    struct gguf_part part;
    TRY(gguf_part_parse(&part, data, size_bytes, gguf->path, 0, &gguf->arena, error));
    TRY(adopt_entries(gguf, &part, error));
    gguf->size_bytes = size_bytes;
    return adopt_tensors(gguf, part.tensors, part.tensor_count, error);
}

enum status gguf_open_memory(struct gguf *gguf, const void *data, uint64_t size_bytes, const char *name,
                             struct error *error) {
    enum status status = start(gguf, name, error);
    if (status == STATUS_OK) status = read_memory(gguf, data, size_bytes, error);
    if (status != STATUS_OK) gguf_close(gguf);
    return status;
}

/* ---- files and split models ---- */

static enum status open_part(struct gguf *gguf, struct gguf_part *part, uint32_t file_index, const char *path,
                             struct error *error) {
    struct file_map *map = &gguf->maps[file_index];
    struct error why;
    enum status status = file_map_open(map, path, &why);
    if (status == STATUS_IO && why.os_error == 0) /* it could be read, and is none */
        return error_set(error, STATUS_MODEL, "%s, expected a GGUF file", why.message);
    if (status != STATUS_OK) {
        if (error != NULL) *error = why;
        return status;
    }
    gguf->file_count = file_index + 1;
    if (!checked_add(gguf->size_bytes, map->size_bytes, &gguf->size_bytes))
        return error_set(error, STATUS_MODEL, "%s: size: the files together are too large", gguf_path_shown(path));
    return gguf_part_parse(part, map->data, map->size_bytes, path, file_index, &gguf->arena, error);
}

struct split {
    /* count 1: not split.  tensor_count UINT64_MAX: the file does not give it. */
    uint64_t number, count, tensor_count;
};

/* Views a part as a whole model, so that its keys can be looked up. */
static enum status read_split(struct split *split, const struct gguf_part *part, const char *path,
                              struct error *error) {
    struct gguf_index index = {.entries = part->by_key};
    struct gguf view = {.entries = part->entries, .entry_count = part->entry_count, .index = &index};
    view.path = (char *)(uintptr_t)path; /* read only */
    *split = (struct split){.count = 1, .tensor_count = UINT64_MAX};
    TRY(gguf_get_uint(&view, "split.no", UINT16_MAX, &split->number, error));
    TRY(gguf_get_uint(&view, "split.count", UINT16_MAX, &split->count, error));
    TRY(gguf_get_uint(&view, "split.tensors.count", INT32_MAX, &split->tensor_count, error));
    if (split->count <= 1) split->count = 1;
    if (split->count > GGUF_FILES_MAX)
        return error_set(error, STATUS_MODEL, "%s: key 'split.count': found %llu, expected at most %d",
                         gguf_path_shown(path), (unsigned long long)split->count, GGUF_FILES_MAX);
    return STATUS_OK;
}

enum { SUFFIX_BYTES = 20 }; /* "-00001-of-00003.gguf" */

static void write_suffix(char suffix[SUFFIX_BYTES + 1], uint64_t number, uint64_t count) {
    ASSERT(number < 99999 && count <= 99999);
    snprintf(suffix, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (unsigned)number + 1, (unsigned)count);
}

/* The path of a part, from the path of the first one.  STATUS_MODEL if that is not named as a first part. */
static enum status part_path(struct gguf *gguf, const struct split *first, uint64_t number, char **path,
                             struct error *error) {
    char suffix[SUFFIX_BYTES + 1];
    write_suffix(suffix, 0, first->count);
    size_t length = strlen(gguf->path);
    if (length <= SUFFIX_BYTES || strcmp(gguf->path + length - SUFFIX_BYTES, suffix) != 0)
        return error_set(error, STATUS_MODEL, "%s: key 'split.count': found %llu, so the name must end in %s",
                         gguf_path_shown(gguf->path), (unsigned long long)first->count, suffix);
    *path = arena_text(&gguf->arena, gguf->path, length);
    if (*path == NULL) return out_of_memory(gguf, error);
    write_suffix(*path + length - SUFFIX_BYTES, number, first->count);
    return STATUS_OK;
}

static enum status check_split(const struct split *split, const struct split *first, uint64_t number, const char *path,
                               struct error *error) {
    const struct {
        const char *key;
        uint64_t found, expected;
    } checks[] = {
        {"split.count", split->count, first->count},
        {"split.no", split->number, number},
        {"split.tensors.count", split->tensor_count, first->tensor_count},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (checks[i].found != checks[i].expected)
            return error_set(error, STATUS_MODEL, "%s: key '%s': found %lld, expected %lld: not a part of this model",
                             gguf_path_shown(path), checks[i].key, (long long)checks[i].found,
                             (long long)checks[i].expected);
    return STATUS_OK;
}

static enum status gather_tensors(struct gguf *gguf, const struct gguf_part *parts, uint64_t part_count,
                                  uint64_t declared_count, struct error *error) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < part_count; i++) total += parts[i].tensor_count; /* each <= 2^20, parts <= 2^8 */
    if (declared_count != UINT64_MAX && declared_count != total)
        return error_set(error, STATUS_MODEL, "%s: key 'split.tensors.count': found %llu, the files hold %llu",
                         gguf_path_shown(gguf->path), (unsigned long long)declared_count, (unsigned long long)total);
    struct gguf_tensor *tensors = arena_array(&gguf->arena, total, sizeof *tensors), *next = tensors;
    if (tensors == NULL) return out_of_memory(gguf, error);
    for (uint64_t i = 0; i < part_count; i++) {
        if (parts[i].tensor_count == 0) continue;
        memcpy(next, parts[i].tensors, parts[i].tensor_count * sizeof *next);
        next += parts[i].tensor_count;
    }
    return adopt_tensors(gguf, tensors, total, error);
}

static enum status read_parts(struct gguf *gguf, const struct gguf_part *first_part, const struct split *first,
                              struct error *error) {
    if (first->number != 0)
        return error_set(error, STATUS_MODEL,
                         "%s: key 'split.no': found %llu: this is part %llu of %llu, give the first",
                         gguf_path_shown(gguf->path), (unsigned long long)first->number,
                         (unsigned long long)first->number + 1, (unsigned long long)first->count);
    struct file_map first_map = gguf->maps[0];
    struct file_map *maps = arena_array(&gguf->arena, first->count, sizeof *maps);
    struct gguf_part *parts = arena_array(&gguf->arena, first->count, sizeof *parts);
    if (maps == NULL || parts == NULL) return out_of_memory(gguf, error);
    maps[0] = first_map;
    gguf->maps = maps;
    parts[0] = *first_part;
    for (uint64_t i = 1; i < first->count; i++) {
        char *path;
        struct split split;
        TRY(part_path(gguf, first, i, &path, error));
        TRY(open_part(gguf, &parts[i], (uint32_t)i, path, error));
        TRY(read_split(&split, &parts[i], path, error));
        TRY(check_split(&split, first, i, path, error));
    }
    return gather_tensors(gguf, parts, first->count, first->tensor_count, error);
}

static enum status read_files(struct gguf *gguf, struct error *error) {
    struct gguf_part part;
    struct split split;
    gguf->maps = arena_array(&gguf->arena, 1, sizeof *gguf->maps);
    if (gguf->maps == NULL) return out_of_memory(gguf, error);
    TRY(open_part(gguf, &part, 0, gguf->path, error));
    TRY(adopt_entries(gguf, &part, error));
    TRY(read_split(&split, &part, gguf->path, error));
    if (split.count > 1) return read_parts(gguf, &part, &split, error);
    return adopt_tensors(gguf, part.tensors, part.tensor_count, error);
}

enum status gguf_open(struct gguf *gguf, const char *path, struct error *error) {
    enum status status = start(gguf, path, error);
    if (status == STATUS_OK) status = read_files(gguf, error);
    if (status == STATUS_OK) status = gguf_check(gguf, error);
    if (status != STATUS_OK) gguf_close(gguf);
    return status;
}

enum status gguf_check(const struct gguf *gguf, struct error *error) {
    for (uint32_t i = 0; i < gguf->file_count; i++) TRY(file_map_check(&gguf->maps[i], error));
    return STATUS_OK;
}

void gguf_close(struct gguf *gguf) {
    for (uint32_t i = 0; i < gguf->file_count; i++) file_map_close(&gguf->maps[i]);
    arena_deinit(&gguf->arena);
    *gguf = (struct gguf){0};
}
