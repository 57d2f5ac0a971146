#include "format/gguf_draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

void draft_mark(struct draft *draft, const char *field) {
    ASSERT(draft->mark_count < DRAFT_MARKS_MAX);
    struct draft_mark *mark = &draft->marks[draft->mark_count++];
    if (draft->subject[0] == '\0')
        snprintf(mark->name, sizeof mark->name, "%s", field);
    else
        snprintf(mark->name, sizeof mark->name, "%.40s.%.20s", draft->subject, field);
    mark->offset = draft->size_bytes;
}

uint64_t draft_offset(const struct draft *draft, const char *name) {
    for (size_t i = 0; i < draft->mark_count; i++)
        if (strcmp(draft->marks[i].name, name) == 0) return draft->marks[i].offset;
    fprintf(stderr, "no mark %s\n", name);
    ASSERT(false && "the mark exists");
    return 0;
}

void draft_put(struct draft *draft, const void *data, size_t size_bytes) {
    ASSERT(size_bytes <= sizeof draft->data - draft->size_bytes);
    if (size_bytes > 0) memcpy(draft->data + draft->size_bytes, data, size_bytes);
    draft->size_bytes += size_bytes;
}

void draft_u8(struct draft *draft, uint8_t value) { draft_put(draft, &value, sizeof value); }
void draft_u32(struct draft *draft, uint32_t value) { draft_put(draft, &value, sizeof value); }
void draft_u64(struct draft *draft, uint64_t value) { draft_put(draft, &value, sizeof value); }

void draft_string(struct draft *draft, const char *text) {
    draft_u64(draft, strlen(text));
    draft_put(draft, text, strlen(text));
}

void draft_header(struct draft *draft, uint32_t version, uint64_t tensor_count, uint64_t key_count) {
    draft_mark(draft, "magic");
    draft_put(draft, "GGUF", 4);
    draft_mark(draft, "version");
    draft_u32(draft, version);
    draft_mark(draft, "tensors");
    draft_u64(draft, tensor_count);
    draft_mark(draft, "keys");
    draft_u64(draft, key_count);
}

static void subject_set(struct draft *draft, const char *name) {
    snprintf(draft->subject, sizeof draft->subject, "%.40s", name);
}

static void name_put(struct draft *draft, const char *name) {
    subject_set(draft, name);
    draft_mark(draft, "length");
    draft_u64(draft, strlen(name));
    draft_mark(draft, "name");
    draft_put(draft, name, strlen(name));
}

void draft_key(struct draft *draft, const char *key, enum gguf_type type) {
    name_put(draft, key);
    draft_mark(draft, "type");
    draft_u32(draft, type);
    draft_mark(draft, "value");
}

void draft_key_array(struct draft *draft, const char *key, enum gguf_type element_type, uint64_t count) {
    draft_key(draft, key, GGUF_ARRAY);
    draft_mark(draft, "element");
    draft_u32(draft, element_type);
    draft_mark(draft, "count");
    draft_u64(draft, count);
    draft_mark(draft, "elements");
}

void draft_key_uint(struct draft *draft, const char *key, enum gguf_type type, uint64_t value) {
    size_t bytes = type == GGUF_UINT8 || type == GGUF_INT8 || type == GGUF_BOOL ? 1
                   : type == GGUF_UINT16 || type == GGUF_INT16                  ? 2
                   : type == GGUF_UINT64 || type == GGUF_INT64                  ? 8
                                                                                : 4;
    draft_key(draft, key, type);
    draft_put(draft, &value, bytes);
}

void draft_key_string(struct draft *draft, const char *key, const char *text) {
    draft_key(draft, key, GGUF_STRING);
    draft_string(draft, text);
}

void draft_tensor(struct draft *draft, const char *name, uint32_t type, uint32_t dimension_count,
                  const uint64_t *dimensions, uint64_t offset) {
    name_put(draft, name);
    draft_mark(draft, "dimensions");
    draft_u32(draft, dimension_count);
    for (uint32_t i = 0; i < dimension_count; i++) {
        char field[8];
        snprintf(field, sizeof field, "d%u", i % 10);
        draft_mark(draft, field);
        draft_u64(draft, dimensions[i]);
    }
    draft_mark(draft, "type");
    draft_u32(draft, type);
    draft_mark(draft, "offset");
    draft_u64(draft, offset);
}

void draft_zeros(struct draft *draft, size_t count) {
    for (size_t i = 0; i < count; i++) draft_u8(draft, 0);
}

void draft_align(struct draft *draft, uint64_t alignment) {
    while (draft->size_bytes % alignment != 0) draft_u8(draft, 0);
}

void draft_small(struct draft *draft) {
    static const uint64_t q[] = {32, 3}, x[] = {5}, y[] = {8, 2};
    memset(draft, 0, sizeof *draft);
    draft_header(draft, 3, 3, 9);
    draft_key_string(draft, "s", "llama");
    draft_key_uint(draft, "u8", GGUF_UINT8, 200);
    draft_key_uint(draft, "i32", GGUF_INT32, (uint32_t)-5);
    draft_key_uint(draft, "f32", GGUF_FLOAT32, 0x3f800000);
    draft_key_uint(draft, "flag", GGUF_BOOL, 1);
    draft_key_array(draft, "words", GGUF_STRING, 2);
    draft_string(draft, "ab");
    draft_mark(draft, "second");
    draft_string(draft, "cde");
    draft_key_array(draft, "ints", GGUF_INT32, 3);
    for (uint32_t i = 0; i < 3; i++) draft_u32(draft, i);
    draft_key_array(draft, "flags", GGUF_BOOL, 3);
    for (uint8_t i = 0; i < 3; i++) draft_u8(draft, i & 1);
    draft_key_uint(draft, "general.alignment", GGUF_UINT32, 32);
    draft_tensor(draft, "q", TENSOR_Q8_0, 2, q, 0);
    draft_tensor(draft, "x", TENSOR_F32, 1, x, 128);
    draft_tensor(draft, "y", TENSOR_F16, 2, y, 160);
    subject_set(draft, "");
    draft_align(draft, 32);
    draft_mark(draft, "data");
    for (uint32_t i = 0; i < 192; i++) draft_u8(draft, (uint8_t)i);
}

/* Reads all that is reachable: a pointer or size that is wrong faults here. */
static uint64_t read_everything(const struct gguf *gguf) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf->entry_count; i++) {
        const struct gguf_entry *entry = &gguf->entries[i];
        for (uint64_t j = 0; j < entry->key.length; j++) sum += (uint8_t)entry->key.text[j];
        for (uint64_t j = 0; j < entry->count; j++)
            if (entry->element_type == GGUF_STRING)
                for (uint64_t k = 0; k < entry->strings[j].length; k++)
                    sum += (uint8_t)entry->strings[j].text[k];
            else
                sum += (uint64_t)gguf_array_int(entry, j);
    }
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        for (uint64_t j = 0; j < tensor->name.length; j++) sum += (uint8_t)tensor->name.text[j];
        for (uint64_t j = 0; j < tensor->size_bytes; j++) sum += tensor->data[j];
    }
    return sum;
}

enum status draft_open(const uint8_t *data, uint64_t size_bytes, struct error *error) {
    enum { GUARDED_BYTES = DRAFT_BYTES_MAX };
    static uint8_t *guarded;
    if (guarded == NULL) {
        guarded =
            mmap(NULL, GUARDED_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT(guarded != MAP_FAILED && mprotect(guarded + GUARDED_BYTES, 4096, PROT_NONE) == 0);
    }
    ASSERT(size_bytes <= GUARDED_BYTES);
    uint8_t *copy = guarded + GUARDED_BYTES - size_bytes;
    if (size_bytes > 0) memcpy(copy, data, size_bytes);
    struct gguf gguf;
    enum status status = gguf_open_memory(&gguf, copy, size_bytes, "model.gguf", error);
    if (status == STATUS_OK) {
        uint64_t sum = read_everything(&gguf);
        __asm__ volatile("" : : "r"(sum)); /* or the reading is left out */
    }
    gguf_close(&gguf);
    return status;
}
