/* gguf_draft: GGUF files put together byte by byte in tests, with the place of every field marked by
 * name, so that a test can damage one field and leave the rest as it was. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/gguf.h"

enum { DRAFT_BYTES_MAX = 64 * 1024, DRAFT_MARKS_MAX = 256 };

struct draft_mark {
    char name[64];
    uint64_t offset;
};

struct draft {
    uint8_t data[DRAFT_BYTES_MAX];
    uint64_t size_bytes;
    struct draft_mark marks[DRAFT_MARKS_MAX];
    size_t mark_count;
    char subject[48]; /* prefix of the marks being made */
};

void draft_mark(struct draft *draft, const char *field);
uint64_t draft_offset(const struct draft *draft, const char *mark); /* of a mark that exists */
void draft_put(struct draft *draft, const void *data, size_t size_bytes);
void draft_u8(struct draft *draft, uint8_t value);
void draft_u32(struct draft *draft, uint32_t value);
void draft_u64(struct draft *draft, uint64_t value);
void draft_string(struct draft *draft, const char *text);

/* Marks: magic version tensors keys. */
void draft_header(struct draft *draft, uint32_t version, uint64_t tensor_count, uint64_t key_count);
/* Marks: KEY.length KEY.name KEY.type KEY.value; of an array also KEY.element KEY.count. */
void draft_key(struct draft *draft, const char *key, enum gguf_type type);
void draft_key_array(struct draft *draft, const char *key, enum gguf_type element_type, uint64_t count);
void draft_key_uint(struct draft *draft, const char *key, enum gguf_type type, uint64_t value);
void draft_key_string(struct draft *draft, const char *key, const char *text);
/* Marks: NAME.length NAME.name NAME.dimensions NAME.d0..d3 NAME.type NAME.offset. */
void draft_tensor(struct draft *draft, const char *name, uint32_t type, uint32_t dimension_count,
                  const uint64_t *dimensions, uint64_t offset);
void draft_align(struct draft *draft, uint64_t alignment);
void draft_zeros(struct draft *draft, size_t count);

/* A small whole file with every kind of field: keys s (string) u8 i32 f32 flag words (array of strings)
 * ints (array of int32) flags (array of bools) general.alignment; tensors q (Q8_0 32 x 3), x (F32 5),
 * y (F16 8 x 2).  The data section begins at the mark "data". */
void draft_small(struct draft *draft);

/* Opens the bytes with their end against an unreadable page, so that one byte too many is a fault;
 * when it opens, reads every byte that struct gguf reaches and closes it. */
enum status draft_open(const uint8_t *data, uint64_t size_bytes, struct error *error);
