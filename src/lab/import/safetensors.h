/* safetensors: reading the weight files of Hugging Face models, every byte of them untrusted.
 *
 * A file is a length of 8 bytes (little-endian), a JSON header of that length which gives each tensor's
 * dtype, shape and data_offsets, and the data.  Checked before use: header within the file and at most
 * SAFETENSORS_HEADER_MAX, known dtypes, shape times dtype equal to the bytes, every tensor inside the
 * file, none overlapping another.  After STATUS_OK every pointer is inside the mapping.
 * A model in shards is read through model.safetensors.index.json.
 */
#pragma once

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "platform/file.h"

enum {
    SAFETENSORS_HEADER_MAX = 100000000, /* as the reference implementation */
    SAFETENSORS_DIMENSIONS_MAX = 8,
    SAFETENSORS_FILES_MAX = 1024,
};

struct safetensors_tensor {
    const char *name;  /* zero-terminated, without a zero byte inside */
    const char *dtype; /* "F32", "BF16", ...: a constant, as the format spells it */
    uint32_t dimension_count;
    uint64_t dimensions[SAFETENSORS_DIMENSIONS_MAX]; /* slowest first; 0 is allowed */
    uint64_t size_bytes;
    const uint8_t *data; /* borrowed; no alignment is promised */
};

struct safetensors {
    const struct safetensors_tensor *tensors; /* [tensor_count], by name */
    uint64_t tensor_count;
    struct file_map *maps; /* [file_count] */
    uint32_t file_count;
    struct arena arena;
};

/* The model in a folder: model.safetensors.index.json if there is one, else model.safetensors. */
enum status safetensors_open(struct safetensors *safetensors, const char *folder, struct error *error) STATUS_CHECKED;
/* One file in memory; for tests and fuzzing. */
enum status safetensors_open_memory(struct safetensors *safetensors, const void *data, uint64_t size_bytes,
                                    const char *name, struct error *error) STATUS_CHECKED;
void safetensors_close(struct safetensors *safetensors); /* safe on a zeroed struct */

const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors,
                                                  const char *name); /* NULL: absent */
