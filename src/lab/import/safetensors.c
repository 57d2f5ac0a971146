#include "lab/import/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "format/json.h"
#include "format/path_tail.h"

static const struct {
    const char *name;
    uint64_t bits;
} dtypes[] = {
    {"F64", 64}, {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"I64", 64}, {"I32", 32},
    {"I16", 16}, {"I8", 8},   {"U64", 64}, {"U32", 32},  {"U16", 16},    {"U8", 8},      {"BOOL", 8},
};

/* The contents of one file; names are in the arena. */
struct shard {
    const char *path;
    const uint8_t *data; /* the data section */
    uint64_t data_bytes;
    struct safetensors_tensor *tensors; /* [tensor_count], by name */
    uint64_t tensor_count;
    struct error *error;
};

__attribute__((format(printf, 4, 5))) static enum status fail(const struct shard *shard, const char *tensor,
                                                              const char *field, const char *format, ...) {
    char message[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *path = path_tail(shard->path, PATH_TAIL_BYTES);
    if (tensor == NULL) return error_set(shard->error, STATUS_MODEL, "%s: %s: %s", path, field, message);
    return error_set(shard->error, STATUS_MODEL, "%s: tensor '%.80s': %s: %s", path, tensor, field, message);
}

static enum status out_of_memory(const struct shard *shard) {
    return error_set(shard->error, STATUS_MEMORY, "%.140s: out of memory reading the header", shard->path);
}

static enum status read_dtype(const struct shard *shard, struct safetensors_tensor *tensor, const json_t *description,
                              uint64_t *bits) {
    const char *name = json_string_value(json_object_get(description, "dtype"));
    if (name == NULL) return fail(shard, tensor->name, "dtype", "not found, expected a string");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            tensor->dtype = dtypes[i].name;
            *bits = dtypes[i].bits;
            return STATUS_OK;
        }
    return fail(shard, tensor->name, "dtype", "found '%.40s', which loam does not know", name);
}

static enum status read_shape(const struct shard *shard, struct safetensors_tensor *tensor, const json_t *description,
                              uint64_t bits) {
    const json_t *shape = json_object_get(description, "shape");
    if (!json_is_array(shape)) return fail(shard, tensor->name, "shape", "not found, expected an array");
    size_t count = json_array_size(shape);
    if (count > SAFETENSORS_DIMENSIONS_MAX)
        return fail(shard, tensor->name, "shape", "found %zu dimensions, expected at most %d", count,
                    SAFETENSORS_DIMENSIONS_MAX);
    tensor->dimension_count = (uint32_t)count;
    uint64_t elements = 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *dimension = json_array_get(shape, i);
        if (!json_is_integer(dimension) || json_integer_value(dimension) < 0)
            return fail(shard, tensor->name, "shape", "dimension %zu is no integer from 0 up", i);
        tensor->dimensions[i] = (uint64_t)json_integer_value(dimension);
        if (!checked_multiply(elements, tensor->dimensions[i], &elements))
            return fail(shard, tensor->name, "shape", "the product of the dimensions overflows");
    }
    if (!checked_multiply(elements, bits / 8, &tensor->size_bytes))
        return fail(shard, tensor->name, "shape", "the product of the dimensions overflows");
    return STATUS_OK;
}

static enum status read_offsets(const struct shard *shard, struct safetensors_tensor *tensor,
                                const json_t *description) {
    const json_t *offsets = json_object_get(description, "data_offsets");
    if (json_array_size(offsets) != 2) /* 0 for what is no array */
        return fail(shard, tensor->name, "data_offsets", "expected an array of two integers");
    uint64_t edge[2];
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(offsets, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail(shard, tensor->name, "data_offsets", "expected two integers from 0 up");
        edge[i] = (uint64_t)json_integer_value(value);
    }
    if (edge[0] > edge[1] || edge[1] > shard->data_bytes)
        return fail(shard, tensor->name, "data_offsets", "%llu to %llu, the file holds 0 to %llu",
                    (unsigned long long)edge[0], (unsigned long long)edge[1], (unsigned long long)shard->data_bytes);
    if (edge[1] - edge[0] != tensor->size_bytes)
        return fail(shard, tensor->name, "data_offsets", "found %llu bytes, expected %llu for the shape",
                    (unsigned long long)(edge[1] - edge[0]), (unsigned long long)tensor->size_bytes);
    tensor->data = shard->data + edge[0];
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int compare_places(const void *a, const void *b) {
    const struct safetensors_tensor *const *x = a, *const *y = b;
    if ((*x)->data != (*y)->data) return (*x)->data < (*y)->data ? -1 : 1;
    return ((*x)->size_bytes > (*y)->size_bytes) - ((*x)->size_bytes < (*y)->size_bytes);
}

static enum status check_overlap(const struct shard *shard) {
    const struct safetensors_tensor **by_place = calloc(shard->tensor_count + 1, sizeof *by_place);
    if (by_place == NULL) return out_of_memory(shard);
    for (uint64_t i = 0; i < shard->tensor_count; i++) by_place[i] = &shard->tensors[i];
    qsort(by_place, shard->tensor_count, sizeof *by_place, compare_places);
    enum status status = STATUS_OK;
    for (uint64_t i = 1; i < shard->tensor_count && status == STATUS_OK; i++)
        if (by_place[i - 1]->data + by_place[i - 1]->size_bytes > by_place[i]->data)
            status = fail(shard, by_place[i]->name, "data_offsets", "overlaps tensor '%.80s'", by_place[i - 1]->name);
    free(by_place);
    return status;
}

static enum status read_tensors(struct shard *shard, const json_t *header, struct arena *arena) {
    if (!json_is_object(header)) return fail(shard, NULL, "header", "expected a JSON object");
    shard->tensors = arena_array(arena, json_object_size(header), sizeof *shard->tensors);
    if (shard->tensors == NULL) return out_of_memory(shard);
    const char *name;
    json_t *description;
    json_object_foreach((json_t *)(uintptr_t)header, name, description) {
        if (strcmp(name, "__metadata__") == 0) continue;
        struct safetensors_tensor *tensor = &shard->tensors[shard->tensor_count];
        tensor->name = arena_text(arena, name, strlen(name));
        if (tensor->name == NULL) return out_of_memory(shard);
        if (!json_is_object(description)) return fail(shard, name, "description", "expected a JSON object");
        uint64_t bits;
        TRY(read_dtype(shard, tensor, description, &bits));
        TRY(read_shape(shard, tensor, description, bits));
        TRY(read_offsets(shard, tensor, description));
        shard->tensor_count++;
    }
    qsort(shard->tensors, shard->tensor_count, sizeof *shard->tensors, compare_names);
    return check_overlap(shard);
}

/* Parses one file in data[size_bytes].  Keys are unique: the JSON reader rejects duplicates. */
static enum status parse_shard(struct shard *shard, const uint8_t *data, uint64_t size_bytes, const char *path,
                               struct arena *arena, struct error *error) {
    *shard = (struct shard){.path = path, .error = error};
    uint64_t header_bytes;
    if (size_bytes < sizeof header_bytes)
        return fail(shard, NULL, "header length", "needs 8 bytes, the file has %llu", (unsigned long long)size_bytes);
    memcpy(&header_bytes, data, sizeof header_bytes);
    uint64_t bytes_max = size_bytes - sizeof header_bytes;
    if (header_bytes > bytes_max)
        return fail(shard, NULL, "header length", "found %llu, the file ends after %llu",
                    (unsigned long long)header_bytes, (unsigned long long)bytes_max);
    if (header_bytes > SAFETENSORS_HEADER_MAX)
        return fail(shard, NULL, "header length", "found %llu, expected at most %d", (unsigned long long)header_bytes,
                    SAFETENSORS_HEADER_MAX);
    shard->data = data + sizeof header_bytes + header_bytes;
    shard->data_bytes = bytes_max - header_bytes;
    json_t *header;
    TRY(json_parse_part((const char *)data + sizeof header_bytes, header_bytes, path, STATUS_MODEL, &header, error));
    enum status status = read_tensors(shard, header, arena);
    json_decref(header);
    return status;
}

static const struct safetensors_tensor *find(const struct safetensors_tensor *tensors, uint64_t count,
                                             const char *name) {
    struct safetensors_tensor wanted = {.name = name};
    if (count == 0) return NULL;
    return bsearch(&wanted, tensors, count, sizeof *tensors, compare_names);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors, const char *name) {
    return find(safetensors->tensors, safetensors->tensor_count, name);
}

enum status safetensors_open_memory(struct safetensors *safetensors, const void *data, uint64_t size_bytes,
                                    const char *name, struct error *error) {
    *safetensors = (struct safetensors){0};
    arena_init(&safetensors->arena);
    struct shard shard;
    enum status status = parse_shard(&shard, data, size_bytes, name, &safetensors->arena, error);
    if (status != STATUS_OK) {
        safetensors_close(safetensors);
        return status;
    }
    safetensors->tensors = shard.tensors;
    safetensors->tensor_count = shard.tensor_count;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *safetensors) {
    for (uint32_t i = 0; i < safetensors->file_count; i++) file_map_close(&safetensors->maps[i]);
    arena_deinit(&safetensors->arena);
    *safetensors = (struct safetensors){0};
}

/* ---- models in a folder ---- */

static char *join(struct arena *arena, const char *folder, const char *name) {
    size_t length = strlen(folder) + strlen(name) + 2;
    char *path = arena_allocate(arena, length);
    if (path != NULL) snprintf(path, length, "%s/%s", folder, name);
    return path;
}

static enum status open_shard(struct safetensors *safetensors, struct shard *shard, const char *path,
                              struct error *error) {
    ASSERT(safetensors->file_count < SAFETENSORS_FILES_MAX);
    struct file_map *map = &safetensors->maps[safetensors->file_count];
    TRY(file_map_open(map, path, error));
    safetensors->file_count++;
    return parse_shard(shard, map->data, map->size_bytes, path, &safetensors->arena, error);
}

struct shards {
    struct shard *shard; /* [count] */
    const char **name;   /* [count], as the index spells it */
    uint32_t count;
    const char *index_path;
    const char *folder;
};

/* The shard that the index names, opened on first use.  A name is a file in the index's folder. */
static enum status shard_named(struct safetensors *safetensors, struct shards *shards, const char *name,
                               const struct shard **result, struct error *error) {
    for (uint32_t i = shards->count; i-- > 0;) { /* neighbours in the index share a file */
        if (strcmp(shards->name[i], name) != 0) continue;
        *result = &shards->shard[i];
        return STATUS_OK;
    }
    if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0)
        return error_set(error, STATUS_MODEL,
                         "%.140s: weight_map: found '%.80s', expected a file in the folder of the index",
                         shards->index_path, name);
    if (shards->count == SAFETENSORS_FILES_MAX)
        return error_set(error, STATUS_MODEL, "%.140s: weight_map: more than %d files", shards->index_path,
                         SAFETENSORS_FILES_MAX);
    char *path = join(&safetensors->arena, shards->folder, name);
    char *kept = arena_text(&safetensors->arena, name, strlen(name));
    if (path == NULL || kept == NULL)
        return error_set(error, STATUS_MEMORY, "%.140s: out of memory", shards->index_path);
    struct shard *shard = &shards->shard[shards->count];
    TRY(open_shard(safetensors, shard, path, error));
    shards->name[shards->count++] = kept;
    *result = shard;
    return STATUS_OK;
}

static enum status gather(struct safetensors *safetensors, struct shards *shards, const json_t *index,
                          struct error *error) {
    json_t *weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map))
        return error_set(error, STATUS_MODEL, "%.140s: weight_map: not found, expected an object", shards->index_path);
    struct safetensors_tensor *tensors =
        arena_array(&safetensors->arena, json_object_size(weight_map), sizeof *tensors);
    if (tensors == NULL) return error_set(error, STATUS_MEMORY, "%.140s: out of memory", shards->index_path);
    const char *name;
    json_t *file;
    uint64_t count = 0;
    json_object_foreach(weight_map, name, file) {
        const struct shard *shard;
        if (!json_is_string(file) || strlen(json_string_value(file)) != json_string_length(file))
            return error_set(error, STATUS_MODEL, "%.140s: weight_map: '%.80s' has no file name", shards->index_path,
                             name);
        TRY(shard_named(safetensors, shards, json_string_value(file), &shard, error));
        const struct safetensors_tensor *tensor = find(shard->tensors, shard->tensor_count, name);
        if (tensor == NULL)
            return error_set(error, STATUS_MODEL, "%.140s: tensor '%.80s': not found, the index says it is here",
                             shard->path, name);
        tensors[count++] = *tensor;
    }
    qsort(tensors, count, sizeof *tensors, compare_names);
    safetensors->tensors = tensors;
    safetensors->tensor_count = count;
    return STATUS_OK;
}

static enum status open_sharded(struct safetensors *safetensors, const char *folder, const char *index_path,
                                struct error *error) {
    struct shards shards = {.index_path = index_path, .folder = folder};
    shards.shard = arena_array(&safetensors->arena, SAFETENSORS_FILES_MAX, sizeof *shards.shard);
    shards.name = arena_array(&safetensors->arena, SAFETENSORS_FILES_MAX, sizeof *shards.name);
    if (shards.shard == NULL || shards.name == NULL)
        return error_set(error, STATUS_MEMORY, "%.140s: out of memory", index_path);
    json_t *index;
    TRY(json_parse_file(index_path, SAFETENSORS_HEADER_MAX, &index, error));
    enum status status = gather(safetensors, &shards, index, error);
    json_decref(index);
    return status;
}

static enum status open_folder(struct safetensors *safetensors, const char *folder, struct error *error) {
    char *index_path = join(&safetensors->arena, folder, "model.safetensors.index.json");
    char *path = join(&safetensors->arena, folder, "model.safetensors");
    safetensors->maps = arena_array(&safetensors->arena, SAFETENSORS_FILES_MAX, sizeof *safetensors->maps);
    if (index_path == NULL || path == NULL || safetensors->maps == NULL)
        return error_set(error, STATUS_MEMORY, "%.140s: out of memory", folder);
    if (access(index_path, F_OK) == 0) return open_sharded(safetensors, folder, index_path, error);
    struct shard shard;
    TRY(open_shard(safetensors, &shard, path, error));
    safetensors->tensors = shard.tensors;
    safetensors->tensor_count = shard.tensor_count;
    return STATUS_OK;
}

enum status safetensors_open(struct safetensors *safetensors, const char *folder, struct error *error) {
    *safetensors = (struct safetensors){0};
    arena_init(&safetensors->arena);
    enum status status = open_folder(safetensors, folder, error);
    if (status != STATUS_OK) safetensors_close(safetensors);
    return status;
}
