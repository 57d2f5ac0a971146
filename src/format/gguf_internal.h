/* gguf_internal: what the files of the GGUF reader share. */
#pragma once

#include "format/gguf.h"

struct gguf_index {
    const struct gguf_entry **entries;  /* [entry_count], by key */
    const struct gguf_tensor **tensors; /* [tensor_count], by name */
};

/* One file of a model, parsed. */
struct gguf_part {
    uint32_t version;
    uint64_t alignment;
    uint64_t entry_count, tensor_count;
    struct gguf_entry *entries;       /* [entry_count], in file order */
    const struct gguf_entry **by_key; /* [entry_count] */
    struct gguf_tensor *tensors;      /* [tensor_count], in file order */
};

/* Parses the header in data[size_bytes].  Everything it allocates is in arena. */
enum status gguf_part_parse(struct gguf_part *part, const uint8_t *data, uint64_t size_bytes, const char *path,
                            uint32_t file_index, struct arena *arena, struct error *error) STATUS_CHECKED;

/* Sorts tensors by name into by_name [count].  STATUS_MODEL: two have the same name. */
enum status gguf_tensors_index(const struct gguf_tensor *tensors, uint64_t count, const struct gguf_tensor **by_name,
                               const char *path, struct error *error) STATUS_CHECKED;

/* Bytes of a value of a type with a fixed size, else 0. */
uint64_t gguf_type_bytes(enum gguf_type type);

int gguf_string_compare(struct gguf_string a, struct gguf_string b);

/* A path for a message of limited length: its end if it is long. */
const char *gguf_path_shown(const char *path);

enum { GGUF_NAME_SHOWN = 80 }; /* bytes of an untrusted name in a message */
#define GGUF_SHOWN(string) (int)((string).length < GGUF_NAME_SHOWN ? (string).length : GGUF_NAME_SHOWN), (string).text
