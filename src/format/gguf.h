/* gguf: reading and writing GGUF v2 and v3 files, every byte of them untrusted.
 *
 * gguf_open maps the file (and, for a split model, the other files named by
 * split.count) and checks every length, offset, count, type and shape before it is
 * used; after it returned STATUS_OK every pointer and size reachable from struct gguf
 * is inside the mapping.  A failure is STATUS_MODEL (or STATUS_IO for the file itself)
 * with one line: "FILE: field: found X, expected Y".
 * Split models: parts are named x-00001-of-00003.gguf and the first is given.
 * Tensors may not overlap; gaps between them and bytes behind the last are allowed.
 * Limits (gguf_limits below) bound what a small file can make us allocate: memory used
 * is at most a small multiple of the file's own header.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "platform/file.h"
#include "tensor/type.h"

enum gguf_type {
    GGUF_UINT8,
    GGUF_INT8,
    GGUF_UINT16,
    GGUF_INT16,
    GGUF_UINT32,
    GGUF_INT32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_UINT64,
    GGUF_INT64,
    GGUF_FLOAT64,
    GGUF_TYPE_COUNT
};

enum { GGUF_DIMENSIONS_MAX = 4 };

enum gguf_limits {
    GGUF_ENTRIES_MAX = 1 << 16, /* keys of one file */
    GGUF_TENSORS_MAX = 1 << 20, /* tensors of one file */
    GGUF_FILES_MAX = 256,       /* parts of a split model */
    GGUF_KEY_BYTES_MAX = 65535, /* as the format says */
    GGUF_NAME_BYTES_MAX = 64,   /* of a tensor, as the format says */
    GGUF_ALIGNMENT_MIN = 8,     /* powers of two */
    GGUF_ALIGNMENT_MAX = 1 << 20,
    GGUF_ALIGNMENT_DEFAULT = 32,
};

struct gguf_string {
    const char *text; /* not zero-terminated; borrowed from the mapping */
    uint64_t length;
};

struct gguf_entry { /* one metadata key */
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type element_type;       /* of an array; arrays of arrays are refused */
    uint64_t count;                    /* of an array, else 1 */
    const uint8_t *data;               /* raw little-endian value(s), unaligned; for an array of
                                            strings see strings */
    const struct gguf_string *strings; /* [count], for a string or an array of strings */
};

struct gguf_tensor {
    struct gguf_string name;
    enum tensor_type type;
    uint32_t dimension_count;                 /* 1..4 */
    uint64_t dimensions[GGUF_DIMENSIONS_MAX]; /* [0] is the row length; the rest 1 when absent */
    uint64_t size_bytes;
    const uint8_t *data; /* borrowed; aligned to general.alignment in its file */
    uint32_t file_index; /* of a split model */
};

struct gguf {
    uint32_t version;
    uint64_t alignment;
    uint64_t entry_count, tensor_count;
    const struct gguf_entry *entries;  /* [entry_count], in file order, of the first file */
    const struct gguf_tensor *tensors; /* [tensor_count], over all files of a split model */
    uint64_t size_bytes;               /* of all files together */
    struct file_map *maps;             /* [file_count] */
    uint32_t file_count;
    char *path;                     /* as given */
    struct arena arena;             /* owns entries, tensors, strings, index */
    const struct gguf_index *index; /* private: entries and tensors in the order of their names */
};

enum status gguf_open(struct gguf *gguf, const char *path, struct error *error) STATUS_CHECKED;
/* The same parser for bytes in memory (no split files), for tests and fuzzing.  name appears in messages. */
enum status gguf_open_memory(struct gguf *gguf, const void *data, uint64_t size_bytes, const char *name,
                             struct error *error) STATUS_CHECKED;
/* STATUS_MODEL: one of its files has changed since it was opened (file_map_check).  Any thread. */
enum status gguf_check(const struct gguf *gguf, struct error *error) STATUS_CHECKED;
void gguf_close(struct gguf *gguf); /* Works on a zeroed struct and after a failed open. */

const struct gguf_entry *gguf_find(const struct gguf *gguf, const char *key);          /* NULL: absent */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name); /* NULL: absent */

/* Typed access.  If the key is absent, *value stays unchanged and the result is STATUS_OK (so set the default first);
 * the _required forms fail.  If the key has another type or is out of range, STATUS_MODEL names the key and the types
 * found and expected.  Integers of any width are accepted where they fit. */
enum status gguf_get_uint(const struct gguf *gguf, const char *key, uint64_t max, uint64_t *value, struct error *error)
    STATUS_CHECKED;
enum status gguf_get_float(const struct gguf *gguf, const char *key, float *value, struct error *error)
    STATUS_CHECKED; /* finite only */
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value, struct error *error) STATUS_CHECKED;
enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *value, struct error *error)
    STATUS_CHECKED;
/* element_type GGUF_INT32 accepts integers of any width, and GGUF_FLOAT32 both floats; read them with gguf_array_int
 * and gguf_array_float.  Any other type must match exactly. */
enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element_type,
                           const struct gguf_entry **value, struct error *error)
    STATUS_CHECKED; /* absent: *value = NULL */
enum status gguf_required(const struct gguf *gguf, const char *key, struct error *error)
    STATUS_CHECKED; /* STATUS_MODEL when absent */

/* An element of an array of numbers (any integer or float type), converted. */
int64_t gguf_array_int(const struct gguf_entry *array, uint64_t index);
double gguf_array_float(const struct gguf_entry *array, uint64_t index);

const char *gguf_type_name(enum gguf_type type); /* "uint8", "string", ... */

/* ---- writing ---- */

/* Writes a v3 file.  Order: all metadata, all declarations of tensors, gguf_writer_begin_data, the tensors' bytes in
 * the declared order, commit.  Nothing is left behind on failure (file_writer). */
struct gguf_writer;
enum status gguf_writer_create(struct gguf_writer **writer, const char *path, struct error *error) STATUS_CHECKED;
void gguf_writer_destroy(struct gguf_writer *writer); /* aborts unless committed; NULL allowed */
enum status gguf_writer_add_uint(struct gguf_writer *writer, const char *key, uint32_t value, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_add_float(struct gguf_writer *writer, const char *key, float value, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_add_bool(struct gguf_writer *writer, const char *key, bool value, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_add_string(struct gguf_writer *writer, const char *key, const char *text, uint64_t length,
                                   struct error *error) STATUS_CHECKED;
enum status gguf_writer_add_strings(struct gguf_writer *writer, const char *key, const struct gguf_string *values,
                                    uint64_t count, struct error *error) STATUS_CHECKED;
enum status gguf_writer_add_ints(struct gguf_writer *writer, const char *key, const int32_t *values, uint64_t count,
                                 struct error *error) STATUS_CHECKED;
enum status gguf_writer_add_floats(struct gguf_writer *writer, const char *key, const float *values, uint64_t count,
                                   struct error *error) STATUS_CHECKED;
/* Copies an entry unchanged, except general.alignment: the writer aligns to GGUF_ALIGNMENT_DEFAULT. */
enum status gguf_writer_copy_entry(struct gguf_writer *writer, const struct gguf_entry *entry, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_declare_tensor(struct gguf_writer *writer, const char *name, enum tensor_type type,
                                       uint32_t dimension_count, const uint64_t *dimensions, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_begin_data(struct gguf_writer *writer, struct error *error) STATUS_CHECKED;
/* Several calls may write one tensor.  When its bytes are complete, padding follows and the next tensor begins. */
enum status gguf_writer_write(struct gguf_writer *writer, const void *data, uint64_t size_bytes, struct error *error)
    STATUS_CHECKED;
enum status gguf_writer_commit(struct gguf_writer *writer, struct error *error) STATUS_CHECKED;
