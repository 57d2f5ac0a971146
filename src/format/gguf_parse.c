/* Parses one GGUF file in two passes over its header.  The first pass checks every byte and counts; the second fills
 * arrays of exactly that size.  So memory follows from entries that exist in the file, not from numbers that it
 * declares: an entry takes at most eight times its size in the file. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "format/gguf_internal.h"
#include "format/path_tail.h"

struct cursor {
    const uint8_t *data; /* [size_bytes] */
    uint64_t size_bytes, offset;
    const char *path;
    struct error *error;
    const char *subject;     /* "key" or "tensor" being read, or NULL */
    uint64_t subject_number; /* from 0; shown until the name is known */
    struct gguf_string subject_name;
};

static const struct {
    const char *name;
    uint64_t bytes; /* 0: no fixed size */
} gguf_types[GGUF_TYPE_COUNT] = {
    [GGUF_UINT8] = {"uint8", 1},     [GGUF_INT8] = {"int8", 1},     [GGUF_UINT16] = {"uint16", 2},
    [GGUF_INT16] = {"int16", 2},     [GGUF_UINT32] = {"uint32", 4}, [GGUF_INT32] = {"int32", 4},
    [GGUF_FLOAT32] = {"float32", 4}, [GGUF_BOOL] = {"bool", 1},     [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0},     [GGUF_UINT64] = {"uint64", 8}, [GGUF_INT64] = {"int64", 8},
    [GGUF_FLOAT64] = {"float64", 8},
};

const char *gguf_type_name(enum gguf_type type) {
    ASSERT((unsigned)type < GGUF_TYPE_COUNT);
    return gguf_types[type].name;
}

uint64_t gguf_type_bytes(enum gguf_type type) {
    ASSERT((unsigned)type < GGUF_TYPE_COUNT);
    return gguf_types[type].bytes;
}

int gguf_string_compare(struct gguf_string a, struct gguf_string b) {
    uint64_t common = a.length < b.length ? a.length : b.length;
    int order = common == 0 ? 0 : memcmp(a.text, b.text, common);
    if (order != 0) return order;
    return (a.length > b.length) - (a.length < b.length);
}

const char *gguf_path_shown(const char *path) { return path_tail(path, PATH_TAIL_BYTES); }

/* "FILE: key 'general.name': FIELD: <format>", STATUS_MODEL. */
__attribute__((format(printf, 3, 4))) static enum status fail(const struct cursor *cursor, const char *field,
                                                              const char *format, ...) {
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *path = gguf_path_shown(cursor->path);
    if (cursor->subject == NULL) return error_set(cursor->error, STATUS_MODEL, "%s: %s: %s", path, field, message);
    if (cursor->subject_name.text == NULL)
        return error_set(cursor->error, STATUS_MODEL, "%s: %s %llu: %s: %s", path, cursor->subject,
                         (unsigned long long)cursor->subject_number, field, message);
    return error_set(cursor->error, STATUS_MODEL, "%s: %s '%.*s': %s: %s", path, cursor->subject,
                     GGUF_SHOWN(cursor->subject_name), field, message);
}

static enum status take(struct cursor *cursor, const char *field, uint64_t bytes, const uint8_t **data) {
    ASSERT(cursor->offset <= cursor->size_bytes);
    uint64_t left = cursor->size_bytes - cursor->offset;
    if (bytes > left)
        return fail(cursor, field, "needs %llu bytes at offset %llu, the file ends at %llu", (unsigned long long)bytes,
                    (unsigned long long)cursor->offset, (unsigned long long)cursor->size_bytes);
    *data = cursor->data + cursor->offset;
    cursor->offset += bytes;
    return STATUS_OK;
}

static enum status take_u32(struct cursor *cursor, const char *field, uint32_t *value) {
    const uint8_t *data;
    TRY(take(cursor, field, sizeof *value, &data));
    memcpy(value, data, sizeof *value);
    return STATUS_OK;
}

static enum status take_u64(struct cursor *cursor, const char *field, uint64_t *value) {
    const uint8_t *data;
    TRY(take(cursor, field, sizeof *value, &data));
    memcpy(value, data, sizeof *value);
    return STATUS_OK;
}

static enum status take_string(struct cursor *cursor, const char *field, struct gguf_string *string) {
    TRY(take_u64(cursor, field, &string->length));
    const uint8_t *data;
    TRY(take(cursor, field, string->length, &data));
    string->text = (const char *)data;
    return STATUS_OK;
}

/* The name of a key or a tensor: not empty, and without a zero byte (names are looked up as C strings). */
static enum status take_name(struct cursor *cursor, const char *field, uint64_t bytes_max) {
    struct gguf_string name;
    uint64_t length;
    struct cursor lookahead = *cursor;
    TRY(take_u64(&lookahead, field, &length));
    if (length == 0 || length > bytes_max)
        return fail(cursor, field, "found %llu bytes, expected 1 to %llu", (unsigned long long)length,
                    (unsigned long long)bytes_max);
    TRY(take_string(cursor, field, &name));
    cursor->subject_name = name;
    if (memchr(name.text, '\0', name.length) != NULL) return fail(cursor, field, "holds a zero byte");
    return STATUS_OK;
}

static void subject_set(struct cursor *cursor, const char *subject, uint64_t number) {
    cursor->subject = subject;
    cursor->subject_number = number;
    cursor->subject_name = (struct gguf_string){0};
}

static enum status take_type(struct cursor *cursor, const char *field, uint32_t *type) {
    TRY(take_u32(cursor, field, type));
    if (*type >= GGUF_TYPE_COUNT) return fail(cursor, field, "found %u, expected 0 to %d", *type, GGUF_TYPE_COUNT - 1);
    return STATUS_OK;
}

static enum status check_bools(const struct cursor *cursor, const uint8_t *data, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (data[i] > 1) return fail(cursor, "value", "found %u, expected a bool (0 or 1)", data[i]);
    return STATUS_OK;
}

/* Where the second pass puts strings: as many entries as the first pass counted. */
struct string_store {
    struct gguf_string *next, *end;
};

/* The strings of a value.  They are always checked, and stored unless store is NULL. */
static enum status take_strings(struct cursor *cursor, uint64_t count, struct string_store *store) {
    /* Every string takes at least its length: this stops a declared count of 2^64. */
    if (count > 1 && count > (cursor->size_bytes - cursor->offset) / sizeof(uint64_t))
        return fail(cursor, "count", "found %llu strings, more than the file could hold", (unsigned long long)count);
    /* Another process may have written to the mapped file since the first pass. */
    if (store != NULL && count > (uint64_t)(store->end - store->next))
        return fail(cursor, "count", "the file changed while it was read");
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_string string;
        TRY(take_string(cursor, "string", &string));
        if (store != NULL) *store->next++ = string;
    }
    return STATUS_OK;
}

/* Reads one key and value.  store: where its strings go; NULL in the first pass. */
static enum status take_entry(struct cursor *cursor, struct gguf_entry *entry, struct string_store *store) {
    *entry = (struct gguf_entry){.count = 1};
    TRY(take_name(cursor, "name", GGUF_KEY_BYTES_MAX));
    entry->key = cursor->subject_name;
    uint32_t type;
    TRY(take_type(cursor, "type", &type));
    entry->type = (enum gguf_type)type;
    entry->element_type = entry->type;
    if (type == GGUF_ARRAY) {
        TRY(take_type(cursor, "element type", &type));
        if (type == GGUF_ARRAY) return fail(cursor, "element type", "found array, arrays of arrays are not read");
        entry->element_type = (enum gguf_type)type;
        TRY(take_u64(cursor, "count", &entry->count));
    }
    if (type == GGUF_STRING) {
        entry->strings = store == NULL ? NULL : store->next;
        return take_strings(cursor, entry->count, store);
    }
    uint64_t bytes;
    if (!checked_multiply(entry->count, gguf_types[type].bytes, &bytes))
        return fail(cursor, "count", "found %llu, more than the file could hold", (unsigned long long)entry->count);
    TRY(take(cursor, "value", bytes, &entry->data));
    if (type == GGUF_BOOL) TRY(check_bools(cursor, entry->data, entry->count));
    return STATUS_OK;
}

/* ggml's numbers of types that loam does not read, for the message. */
static const char *foreign_type_name(uint32_t number) {
    static const struct {
        uint32_t number;
        const char *name;
    } foreign[] = {
        {4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},   {15, "Q8_K"},  {31, "Q4_0_4_4"},
        {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"},
    };
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (foreign[i].number == number) return foreign[i].name;
    return NULL;
}

static enum status take_dimensions(struct cursor *cursor, struct gguf_tensor *tensor) {
    TRY(take_u32(cursor, "dimension count", &tensor->dimension_count));
    if (tensor->dimension_count < 1 || tensor->dimension_count > GGUF_DIMENSIONS_MAX)
        return fail(cursor, "dimension count", "found %u, expected 1 to %d", tensor->dimension_count,
                    GGUF_DIMENSIONS_MAX);
    for (uint32_t i = 0; i < GGUF_DIMENSIONS_MAX; i++) {
        tensor->dimensions[i] = 1;
        if (i >= tensor->dimension_count) continue;
        char field[32];
        snprintf(field, sizeof field, "dimension %u", i);
        TRY(take_u64(cursor, field, &tensor->dimensions[i]));
        if (tensor->dimensions[i] == 0 || tensor->dimensions[i] > INT64_MAX)
            return fail(cursor, field, "found %llu, expected 1 to 2^63 - 1", (unsigned long long)tensor->dimensions[i]);
    }
    return STATUS_OK;
}

/* Reads one tensor's declaration; *offset is relative to the data section. */
static enum status take_tensor(struct cursor *cursor, struct gguf_tensor *tensor, uint64_t *offset) {
    *tensor = (struct gguf_tensor){0};
    TRY(take_name(cursor, "name", GGUF_NAME_BYTES_MAX));
    tensor->name = cursor->subject_name;
    TRY(take_dimensions(cursor, tensor));
    uint32_t number;
    TRY(take_u32(cursor, "type", &number));
    const struct tensor_type_info *info = tensor_type_find(number);
    const char *foreign = foreign_type_name(number);
    if (info == NULL || foreign != NULL)
        return fail(cursor, "type", "found %u%s%s%s, which loam does not read", number, foreign == NULL ? "" : " (",
                    foreign == NULL ? "" : foreign, foreign == NULL ? "" : ")");
    tensor->type = (enum tensor_type)number;
    if (tensor->dimensions[0] % info->block_elements != 0)
        return fail(cursor, "dimension 0", "found %llu, expected a multiple of %u for %s",
                    (unsigned long long)tensor->dimensions[0], info->block_elements, info->name);
    bool fits = tensor_row_bytes(tensor->type, tensor->dimensions[0], &tensor->size_bytes);
    uint64_t elements = tensor->dimensions[0];
    for (uint32_t i = 1; i < GGUF_DIMENSIONS_MAX; i++)
        fits = fits && checked_multiply(tensor->size_bytes, tensor->dimensions[i], &tensor->size_bytes) &&
               checked_multiply(elements, tensor->dimensions[i], &elements);
    if (!fits || elements > INT64_MAX)
        return fail(cursor, "dimensions", "the product of %llu x %llu x %llu x %llu overflows",
                    (unsigned long long)tensor->dimensions[0], (unsigned long long)tensor->dimensions[1],
                    (unsigned long long)tensor->dimensions[2], (unsigned long long)tensor->dimensions[3]);
    return take_u64(cursor, "offset", offset);
}

/* What people have in the place of a model. */
static const char *name_other(const struct cursor *cursor) {
    static const struct {
        const char *begin, *name;
    } others[] = {
        {"version https://git-lfs", "a pointer of Git LFS, which 'git lfs pull' replaces by the model"},
        {"<", "a web page, where a download went wrong"},
        {"{", "JSON"},
        {"PK\x03\x04", "an archive, as PyTorch's weights are ('loam-lab import' reads safetensors)"},
        {"lmgg", "a file of an older format (ggml)"},
        {"fmgg", "a file of an older format (ggmf)"},
        {"tjgg", "a file of an older format (ggjt)"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const size_t length = strlen(others[i].begin);
        if (cursor->size_bytes >= length && memcmp(cursor->data, others[i].begin, length) == 0) return others[i].name;
    }
    return NULL;
}

static enum status take_counts(struct cursor *cursor, struct gguf_part *part) {
    const uint8_t *magic;
    const char *other = name_other(cursor);
    if (other != NULL) return fail(cursor, "magic", "found %s, expected 'GGUF'", other);
    TRY(take(cursor, "magic", 4, &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return fail(cursor, "magic", "found %02x %02x %02x %02x, expected 'GGUF'", magic[0], magic[1], magic[2],
                    magic[3]);
    TRY(take_u32(cursor, "version", &part->version));
    if (part->version != 0 && (part->version & 0xffffu) == 0)
        return fail(cursor, "version", "found a big-endian file, expected a little-endian one");
    if (part->version != 2 && part->version != 3)
        return fail(cursor, "version", "found %u, expected 2 or 3", part->version);
    TRY(take_u64(cursor, "tensor count", &part->tensor_count));
    TRY(take_u64(cursor, "key count", &part->entry_count));
    if (part->tensor_count > GGUF_TENSORS_MAX)
        return fail(cursor, "tensor count", "found %llu, expected at most %d", (unsigned long long)part->tensor_count,
                    GGUF_TENSORS_MAX);
    if (part->entry_count > GGUF_ENTRIES_MAX)
        return fail(cursor, "key count", "found %llu, expected at most %d", (unsigned long long)part->entry_count,
                    GGUF_ENTRIES_MAX);
    return STATUS_OK;
}

/* First pass: checks every key and every tensor's declaration, and counts strings. */
static enum status check_header(struct cursor *cursor, const struct gguf_part *part, uint64_t *string_count) {
    *string_count = 0;
    for (uint64_t i = 0; i < part->entry_count; i++) {
        struct gguf_entry entry;
        subject_set(cursor, "key", i);
        TRY(take_entry(cursor, &entry, NULL));
        if (entry.element_type == GGUF_STRING) *string_count += entry.count; /* each was seen: no overflow */
    }
    for (uint64_t i = 0; i < part->tensor_count; i++) {
        struct gguf_tensor tensor;
        uint64_t offset;
        subject_set(cursor, "tensor", i);
        TRY(take_tensor(cursor, &tensor, &offset));
    }
    cursor->subject = NULL;
    return STATUS_OK;
}

static enum status no_memory(const struct cursor *cursor, uint64_t count, const char *what) {
    return error_set(cursor->error, STATUS_MEMORY, "%s: out of memory for %llu %s", gguf_path_shown(cursor->path),
                     (unsigned long long)count, what);
}

static int compare_entries(const void *a, const void *b) {
    const struct gguf_entry *const *x = a, *const *y = b;
    return gguf_string_compare((*x)->key, (*y)->key);
}

static enum status index_entries(struct cursor *cursor, struct gguf_part *part, struct arena *arena) {
    part->by_key = arena_array(arena, part->entry_count, sizeof *part->by_key);
    if (part->by_key == NULL) return no_memory(cursor, part->entry_count, "keys");
    for (uint64_t i = 0; i < part->entry_count; i++) part->by_key[i] = &part->entries[i];
    qsort(part->by_key, part->entry_count, sizeof *part->by_key, compare_entries);
    for (uint64_t i = 1; i < part->entry_count; i++) {
        if (gguf_string_compare(part->by_key[i - 1]->key, part->by_key[i]->key) != 0) continue;
        subject_set(cursor, "key", i);
        cursor->subject_name = part->by_key[i]->key;
        return fail(cursor, "name", "found twice, expected once");
    }
    return STATUS_OK;
}

static enum status read_alignment(struct cursor *cursor, struct gguf_part *part) {
    static const char key[] = "general.alignment";
    part->alignment = GGUF_ALIGNMENT_DEFAULT;
    for (uint64_t i = 0; i < part->entry_count; i++) {
        const struct gguf_entry *entry = &part->entries[i];
        if (entry->key.length != sizeof key - 1 || memcmp(entry->key.text, key, sizeof key - 1) != 0) continue;
        subject_set(cursor, "key", i);
        cursor->subject_name = entry->key;
        if (entry->type != GGUF_UINT32)
            return fail(cursor, "type", "found %s, expected uint32", gguf_type_name(entry->type));
        uint32_t value;
        memcpy(&value, entry->data, sizeof value);
        if (value < GGUF_ALIGNMENT_MIN || value > GGUF_ALIGNMENT_MAX || (value & (value - 1)) != 0)
            return fail(cursor, "value", "found %u, expected a power of two from %d to %d", value, GGUF_ALIGNMENT_MIN,
                        GGUF_ALIGNMENT_MAX);
        part->alignment = value;
        break;
    }
    cursor->subject = NULL;
    return STATUS_OK;
}

static int compare_places(const void *a, const void *b) {
    const struct gguf_tensor *const *x = a, *const *y = b;
    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

static enum status check_overlap(struct cursor *cursor, const struct gguf_part *part, struct arena *arena) {
    const struct gguf_tensor **by_place = arena_array(arena, part->tensor_count, sizeof *by_place);
    if (by_place == NULL) return no_memory(cursor, part->tensor_count, "tensors");
    for (uint64_t i = 0; i < part->tensor_count; i++) by_place[i] = &part->tensors[i];
    qsort(by_place, part->tensor_count, sizeof *by_place, compare_places);
    for (uint64_t i = 1; i < part->tensor_count; i++) {
        const struct gguf_tensor *before = by_place[i - 1], *tensor = by_place[i];
        if (before->data + before->size_bytes <= tensor->data) continue;
        subject_set(cursor, "tensor", i);
        cursor->subject_name = tensor->name;
        return fail(cursor, "offset", "overlaps tensor '%.*s'", GGUF_SHOWN(before->name));
    }
    return STATUS_OK;
}

/* Turns a tensor's offset into its place in the file, and checks that the file holds all of it. */
static enum status place_tensor(struct cursor *cursor, struct gguf_tensor *tensor, uint64_t data_begin,
                                uint64_t alignment, uint64_t offset) {
    if (offset % alignment != 0)
        return fail(cursor, "offset", "found %llu, expected a multiple of the alignment %llu",
                    (unsigned long long)offset, (unsigned long long)alignment);
    uint64_t begin, end;
    if (!checked_add(data_begin, offset, &begin) || begin > cursor->size_bytes)
        return fail(cursor, "offset", "%llu in the data is beyond the end of the file (%llu)",
                    (unsigned long long)offset, (unsigned long long)cursor->size_bytes);
    if (!checked_add(begin, tensor->size_bytes, &end) || end > cursor->size_bytes)
        return fail(cursor, "size", "%llu bytes from offset %llu are beyond the end of the file (%llu)",
                    (unsigned long long)tensor->size_bytes, (unsigned long long)begin,
                    (unsigned long long)cursor->size_bytes);
    tensor->data = cursor->data + begin;
    return STATUS_OK;
}

/* Second pass over the tensors, whose places in the file are now known.  The cursor is at the first one. */
static enum status fill_tensors(struct cursor *cursor, struct gguf_part *part, uint32_t file_index,
                                struct arena *arena) {
    part->tensors = arena_array(arena, part->tensor_count, sizeof *part->tensors);
    if (part->tensors == NULL) return no_memory(cursor, part->tensor_count, "tensors");
    struct cursor lookahead = *cursor;
    for (uint64_t i = 0; i < part->tensor_count; i++) {
        uint64_t offset;
        TRY(take_tensor(&lookahead, &part->tensors[i], &offset)); /* cannot fail: the first pass checked it */
    }
    uint64_t data_begin;
    if (!checked_align(lookahead.offset, part->alignment, &data_begin)) return fail(cursor, "header", "too long");
    for (uint64_t i = 0; i < part->tensor_count; i++) {
        uint64_t offset;
        subject_set(cursor, "tensor", i);
        TRY(take_tensor(cursor, &part->tensors[i], &offset));
        TRY(place_tensor(cursor, &part->tensors[i], data_begin, part->alignment, offset));
        part->tensors[i].file_index = file_index;
    }
    return check_overlap(cursor, part, arena);
}

enum status gguf_part_parse(struct gguf_part *part, const uint8_t *data, uint64_t size_bytes, const char *path,
                            uint32_t file_index, struct arena *arena, struct error *error) {
    *part = (struct gguf_part){0};
    struct cursor cursor = {.data = data, .size_bytes = size_bytes, .path = path, .error = error};
    TRY(take_counts(&cursor, part));
    uint64_t header_begin = cursor.offset, string_count;
    TRY(check_header(&cursor, part, &string_count));
    cursor.offset = header_begin;

    part->entries = arena_array(arena, part->entry_count, sizeof *part->entries);
    struct gguf_string *strings = arena_array(arena, string_count, sizeof *strings);
    if (part->entries == NULL || strings == NULL)
        return no_memory(&cursor, part->entry_count + string_count, "keys and strings");
    struct string_store store = {strings, strings + string_count};
    for (uint64_t i = 0; i < part->entry_count; i++) {
        subject_set(&cursor, "key", i);
        TRY(take_entry(&cursor, &part->entries[i], &store));
    }
    TRY(index_entries(&cursor, part, arena));
    TRY(read_alignment(&cursor, part));
    return fill_tensors(&cursor, part, file_index, arena);
}

static int compare_tensors(const void *a, const void *b) {
    const struct gguf_tensor *const *x = a, *const *y = b;
    return gguf_string_compare((*x)->name, (*y)->name);
}

enum status gguf_tensors_index(const struct gguf_tensor *tensors, uint64_t count, const struct gguf_tensor **by_name,
                               const char *path, struct error *error) {
    for (uint64_t i = 0; i < count; i++) by_name[i] = &tensors[i];
    qsort(by_name, count, sizeof *by_name, compare_tensors);
    for (uint64_t i = 1; i < count; i++)
        if (gguf_string_compare(by_name[i - 1]->name, by_name[i]->name) == 0)
            return error_set(error, STATUS_MODEL, "%s: tensor '%.*s': name: found twice, expected once",
                             gguf_path_shown(path), GGUF_SHOWN(by_name[i]->name));
    return STATUS_OK;
}
