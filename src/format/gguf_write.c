/* Writes GGUF v3.  The header is collected in memory, and gguf_writer_begin_data writes it.  Tensors' bytes go
 * straight to the file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/text.h"
#include "format/gguf_internal.h"

struct declared {
    char name[GGUF_NAME_BYTES_MAX + 1];
    enum tensor_type type;
    uint32_t dimension_count;
    uint64_t dimensions[GGUF_DIMENSIONS_MAX];
    uint64_t size_bytes, offset; /* offset in the data section, aligned */
};

struct gguf_writer {
    struct file_writer file;
    char *path;
    struct text entries; /* keys and values, encoded */
    uint64_t entry_count;
    struct declared *tensors; /* [tensor_count] */
    size_t tensor_count, tensor_capacity;
    uint64_t data_bytes; /* of the data section: all tensors, with padding */
    bool in_data;
    uint64_t current, current_bytes; /* the current tensor, and its bytes so far */
};

static enum status out_of_memory(const struct gguf_writer *writer, struct error *error) {
    return error_set(error, STATUS_MEMORY, "%s: out of memory", gguf_path_shown(writer->path));
}

enum status gguf_writer_create(struct gguf_writer **result, const char *path, struct error *error) {
    *result = NULL;
    struct gguf_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return error_set(error, STATUS_MEMORY, "%s: out of memory", gguf_path_shown(path));
    enum status status = STATUS_OK;
    writer->path = strdup(path);
    if (writer->path == NULL) status = error_set(error, STATUS_MEMORY, "out of memory");
    if (status == STATUS_OK) status = file_writer_open(&writer->file, path, error);
    if (status != STATUS_OK) {
        gguf_writer_destroy(writer);
        return status;
    }
    *result = writer;
    return STATUS_OK;
}

void gguf_writer_destroy(struct gguf_writer *writer) {
    if (writer == NULL) return;
    file_writer_abort(&writer->file);
    text_deinit(&writer->entries);
    free(writer->tensors);
    free(writer->path);
    free(writer);
}

static bool append(struct text *buffer, const void *data, uint64_t size_bytes) {
    return size_bytes < SIZE_MAX / 4 && text_append(buffer, data, size_bytes);
}

static bool append_string(struct text *buffer, const char *text, uint64_t length) {
    return append(buffer, &length, sizeof length) && append(buffer, text, length);
}

/* Begins an entry.  count is written for arrays only. */
static bool append_entry(struct gguf_writer *writer, const char *key, uint64_t key_length, enum gguf_type type,
                         enum gguf_type element_type, uint64_t count) {
    ASSERT(!writer->in_data);
    ASSERT(key_length > 0 && key_length <= GGUF_KEY_BYTES_MAX);
    uint32_t outer = type, inner = element_type;
    writer->entry_count++;
    struct text *entries = &writer->entries;
    if (!append_string(entries, key, key_length) || !append(entries, &outer, sizeof outer)) return false;
    if (type != GGUF_ARRAY) return true;
    return append(entries, &inner, sizeof inner) && append(entries, &count, sizeof count);
}

static enum status add(struct gguf_writer *writer, const char *key, enum gguf_type type, const void *value,
                       struct error *error) {
    const bool fits =
        append_entry(writer, key, strlen(key), type, type, 1) && append(&writer->entries, value, gguf_type_bytes(type));
    return fits ? STATUS_OK : out_of_memory(writer, error);
}

static enum status add_array(struct gguf_writer *writer, const char *key, enum gguf_type element_type, uint64_t count,
                             const void *values, struct error *error) {
    uint64_t bytes;
    const bool fits = checked_multiply(count, gguf_type_bytes(element_type), &bytes) &&
                      append_entry(writer, key, strlen(key), GGUF_ARRAY, element_type, count) &&
                      append(&writer->entries, values, bytes);
    return fits ? STATUS_OK : out_of_memory(writer, error);
}

enum status gguf_writer_add_uint(struct gguf_writer *writer, const char *key, uint32_t value, struct error *error) {
    return add(writer, key, GGUF_UINT32, &value, error);
}

enum status gguf_writer_add_float(struct gguf_writer *writer, const char *key, float value, struct error *error) {
    return add(writer, key, GGUF_FLOAT32, &value, error);
}

enum status gguf_writer_add_bool(struct gguf_writer *writer, const char *key, bool value, struct error *error) {
    uint8_t byte = value;
    return add(writer, key, GGUF_BOOL, &byte, error);
}

enum status gguf_writer_add_string(struct gguf_writer *writer, const char *key, const char *text, uint64_t length,
                                   struct error *error) {
    if (!append_entry(writer, key, strlen(key), GGUF_STRING, GGUF_STRING, 1) ||
        !append_string(&writer->entries, text, length))
        return out_of_memory(writer, error);
    return STATUS_OK;
}

enum status gguf_writer_add_strings(struct gguf_writer *writer, const char *key, const struct gguf_string *values,
                                    uint64_t count, struct error *error) {
    bool fits = append_entry(writer, key, strlen(key), GGUF_ARRAY, GGUF_STRING, count);
    for (uint64_t i = 0; fits && i < count; i++)
        fits = append_string(&writer->entries, values[i].text, values[i].length);
    return fits ? STATUS_OK : out_of_memory(writer, error);
}

enum status gguf_writer_add_ints(struct gguf_writer *writer, const char *key, const int32_t *values, uint64_t count,
                                 struct error *error) {
    return add_array(writer, key, GGUF_INT32, count, values, error);
}

enum status gguf_writer_add_floats(struct gguf_writer *writer, const char *key, const float *values, uint64_t count,
                                   struct error *error) {
    return add_array(writer, key, GGUF_FLOAT32, count, values, error);
}

enum status gguf_writer_copy_entry(struct gguf_writer *writer, const struct gguf_entry *entry, struct error *error) {
    const struct gguf_string alignment = {"general.alignment", strlen("general.alignment")};
    if (gguf_string_compare(entry->key, alignment) == 0) return STATUS_OK;
    bool fits =
        append_entry(writer, entry->key.text, entry->key.length, entry->type, entry->element_type, entry->count);
    if (entry->element_type == GGUF_STRING) {
        for (uint64_t i = 0; fits && i < entry->count; i++)
            fits = append_string(&writer->entries, entry->strings[i].text, entry->strings[i].length);
    } else {
        uint64_t bytes;
        fits = fits && checked_multiply(entry->count, gguf_type_bytes(entry->element_type), &bytes) &&
               append(&writer->entries, entry->data, bytes);
    }
    return fits ? STATUS_OK : out_of_memory(writer, error);
}

static bool tensor_bytes(enum tensor_type type, uint32_t dimension_count, const uint64_t *dimensions, uint64_t *bytes) {
    if (!tensor_row_bytes(type, dimensions[0], bytes)) return false;
    for (uint32_t i = 1; i < dimension_count; i++)
        if (!checked_multiply(*bytes, dimensions[i], bytes)) return false;
    return *bytes > 0;
}

enum status gguf_writer_declare_tensor(struct gguf_writer *writer, const char *name, enum tensor_type type,
                                       uint32_t dimension_count, const uint64_t *dimensions, struct error *error) {
    ASSERT(!writer->in_data);
    ASSERT(dimension_count >= 1 && dimension_count <= GGUF_DIMENSIONS_MAX);
    size_t length = strlen(name);
    const char *path = gguf_path_shown(writer->path);
    if (length == 0 || length > GGUF_NAME_BYTES_MAX)
        return error_set(error, STATUS_MODEL, "%s: tensor '%.80s': the name has %zu bytes, expected 1 to %d", path,
                         name, length, GGUF_NAME_BYTES_MAX);
    for (uint64_t i = 0; i < writer->tensor_count; i++)
        if (strcmp(writer->tensors[i].name, name) == 0)
            return error_set(error, STATUS_MODEL, "%s: tensor '%s': declared twice", path, name);
    if (!array_reserve(&writer->tensors, writer->tensor_count, &writer->tensor_capacity, sizeof *writer->tensors))
        return out_of_memory(writer, error);
    struct declared *tensor = &writer->tensors[writer->tensor_count];
    *tensor = (struct declared){.type = type, .dimension_count = dimension_count, .offset = writer->data_bytes};
    memcpy(tensor->name, name, length + 1);
    memcpy(tensor->dimensions, dimensions, dimension_count * sizeof *dimensions);
    uint64_t end;
    if (!tensor_bytes(type, dimension_count, dimensions, &tensor->size_bytes) ||
        !checked_add(tensor->offset, tensor->size_bytes, &end) || !checked_align(end, GGUF_ALIGNMENT_DEFAULT, &end))
        return error_set(error, STATUS_MODEL, "%s: tensor '%s': rows of %llu elements do not fit %s", path, name,
                         (unsigned long long)dimensions[0], tensor_type_info(type)->name);
    writer->data_bytes = end;
    writer->tensor_count++;
    return STATUS_OK;
}

static enum status put(struct gguf_writer *writer, const void *data, uint64_t size_bytes, struct error *error) {
    if (size_bytes == 0 || fwrite(data, 1, size_bytes, writer->file.stream) == size_bytes) return STATUS_OK;
    return error_set_os(error, STATUS_IO, errno, "%s: writing %llu bytes", gguf_path_shown(writer->path),
                        (unsigned long long)size_bytes);
}

static enum status put_padding(struct gguf_writer *writer, uint64_t written_bytes, struct error *error) {
    static const uint8_t zeros[GGUF_ALIGNMENT_DEFAULT];
    return put(writer, zeros, -written_bytes % GGUF_ALIGNMENT_DEFAULT, error);
}

enum status gguf_writer_begin_data(struct gguf_writer *writer, struct error *error) {
    ASSERT(!writer->in_data);
    writer->in_data = true;
    struct text header = {0};
    const uint32_t version = 3;
    const uint64_t tensor_count = writer->tensor_count;
    bool fits = append(&header, "GGUF", 4) && append(&header, &version, sizeof version) &&
                append(&header, &tensor_count, sizeof tensor_count) &&
                append(&header, &writer->entry_count, sizeof writer->entry_count) &&
                append(&header, writer->entries.bytes, writer->entries.length);
    for (uint64_t i = 0; fits && i < writer->tensor_count; i++) {
        const struct declared *tensor = &writer->tensors[i];
        uint32_t type = (uint32_t)tensor->type;
        fits = append_string(&header, tensor->name, strlen(tensor->name)) &&
               append(&header, &tensor->dimension_count, sizeof tensor->dimension_count) &&
               append(&header, tensor->dimensions, tensor->dimension_count * sizeof tensor->dimensions[0]) &&
               append(&header, &type, sizeof type) && append(&header, &tensor->offset, sizeof tensor->offset);
    }
    enum status status = fits ? put(writer, header.bytes, header.length, error) : out_of_memory(writer, error);
    if (status == STATUS_OK) status = put_padding(writer, header.length, error);
    text_deinit(&header);
    return status;
}

enum status gguf_writer_write(struct gguf_writer *writer, const void *data, uint64_t size_bytes, struct error *error) {
    ASSERT(writer->in_data && writer->current < writer->tensor_count);
    const struct declared *tensor = &writer->tensors[writer->current];
    ASSERT(size_bytes <= tensor->size_bytes - writer->current_bytes);
    TRY(put(writer, data, size_bytes, error));
    writer->current_bytes += size_bytes;
    if (writer->current_bytes < tensor->size_bytes) return STATUS_OK;
    writer->current++;
    writer->current_bytes = 0;
    return put_padding(writer, tensor->size_bytes, error);
}

enum status gguf_writer_commit(struct gguf_writer *writer, struct error *error) {
    ASSERT(writer->in_data && writer->current == writer->tensor_count);
    return file_writer_commit(&writer->file, error);
}
