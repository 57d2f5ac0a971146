/* Hand-made damage: each row changes one field of a good file and names what the message must say. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "format/gguf_draft.h"

#define MAX64 UINT64_MAX
#define MAX63 ((uint64_t)INT64_MAX)

struct damage {
    const char *mark;    /* the field that is overwritten */
    unsigned size_bytes; /* of the value; 0: the file ends at the mark plus value */
    uint64_t value;
    const char *field; /* what the message must name ... */
    const char *found; /* ... and say */
};

static const struct damage damages[] = {
    /* the fixed header */
    {"magic", 4, 0, "magic", "expected 'GGUF'"},
    {"magic", 4, MAX64, "magic", "expected 'GGUF'"},
    {"magic", 4, 0x67676766, "magic", "expected 'GGUF'"},
    {"magic", 4, 0x47475546, "magic", "expected 'GGUF'"},
    {"magic", 1, 'g', "magic", "expected 'GGUF'"},
    {"magic", 0, 0, "magic", "needs 4 bytes at offset 0, the file ends at 0"},
    {"magic", 0, 1, "magic", "the file ends at 1"},
    {"magic", 0, 3, "magic", "the file ends at 3"},
    {"version", 4, 0, "version", "found 0, expected 2 or 3"},
    {"version", 4, 1, "version", "found 1, expected 2 or 3"},
    {"version", 4, 4, "version", "found 4, expected 2 or 3"},
    {"version", 4, 0x7fffffff, "version", "expected 2 or 3"},
    {"version", 4, 0xffffffff, "version", "expected 2 or 3"},
    {"version", 4, 0x03000000, "version", "big-endian"},
    {"version", 4, 0x02000000, "version", "big-endian"},
    {"version", 0, 0, "version", "the file ends at 4"},
    {"version", 0, 3, "version", "the file ends at 7"},
    {"tensors", 8, 4, "tensor 3: name", "found 0 bytes, expected 1 to 64"},
    {"tensors", 8, GGUF_TENSORS_MAX, "tensor 3: name", "found 0 bytes"},
    {"tensors", 8, GGUF_TENSORS_MAX + 1, "tensor count", "found 1048577, expected at most 1048576"},
    {"tensors", 8, 1ull << 32, "tensor count", "expected at most"},
    {"tensors", 8, MAX63, "tensor count", "expected at most"},
    {"tensors", 8, MAX63 + 1, "tensor count", "expected at most"},
    {"tensors", 8, MAX64 - 1, "tensor count", "expected at most"},
    {"tensors", 8, MAX64, "tensor count", "found 18446744073709551615"},
    {"tensors", 0, 0, "tensor count", "needs 8 bytes"},
    {"tensors", 0, 7, "tensor count", "needs 8 bytes"},
    {"keys", 8, 0, "tensor 's': dimension count", "found 8, expected 1 to 4"},
    {"keys", 8, 8, "tensor 'general.alignment': type", "found 2048"},
    {"keys", 8, 10, "tensor 0: name", "expected 1 to 64"},
    {"keys", 8, GGUF_ENTRIES_MAX, "key", ""},
    {"keys", 8, GGUF_ENTRIES_MAX + 1, "key count", "found 65537, expected at most 65536"},
    {"keys", 8, 1ull << 33, "key count", "expected at most"},
    {"keys", 8, MAX63, "key count", "expected at most"},
    {"keys", 8, MAX64, "key count", "found 18446744073709551615"},
    {"keys", 0, 4, "key count", "needs 8 bytes"},
    /* names of keys */
    {"s.length", 8, 0, "key 0: name", "found 0 bytes, expected 1 to 65535"},
    {"s.length", 8, 65535, "key 0: name", "needs 65535 bytes"},
    {"s.length", 8, 65536, "key 0: name", "found 65536 bytes, expected 1 to 65535"},
    {"s.length", 8, 1ull << 32, "key 0: name", "expected 1 to 65535"},
    {"s.length", 8, MAX63, "key 0: name", "expected 1 to 65535"},
    {"s.length", 8, MAX64 - 7, "key 0: name", "expected 1 to 65535"},
    {"s.length", 8, MAX64, "key 0: name", "expected 1 to 65535"},
    {"s.length", 0, 0, "key 0: name", "needs 8 bytes"},
    {"s.length", 0, 8, "key 0: name", "needs 1 bytes"},
    {"s.name", 1, 0, "key '", "holds a zero byte"},
    {"words.name", 5, 0x726f77, "key 'wor", "holds a zero byte"},
    {"u8.length", 8, 3, "key 'u8", "holds a zero byte"},
    {"general.alignment.name", 1, 's', "", ""}, /* good: the default is 32 too */
    /* types of values */
    {"s.type", 4, GGUF_TYPE_COUNT, "key 's': type", "found 13, expected 0 to 12"},
    {"s.type", 4, 0x7fffffff, "key 's': type", "expected 0 to 12"},
    {"s.type", 4, 0x80000000, "key 's': type", "expected 0 to 12"},
    {"s.type", 4, 0xffffffff, "key 's': type", "found 4294967295, expected 0 to 12"},
    {"s.type", 4, GGUF_UINT8, "key", "name"},
    {"s.type", 4, GGUF_UINT32, "key 1: name", "expected 1 to 65535"},
    {"s.type", 4, GGUF_ARRAY, "key 's': count", "found"},
    {"u8.type", 4, GGUF_STRING, "key 'u8': string", "needs"},
    {"u8.type", 4, GGUF_UINT64, "key 2: name", "expected 1 to 65535"},
    {"i32.type", 4, GGUF_STRING, "key 'i32': string", "needs"},
    {"i32.type", 4, GGUF_ARRAY, "key 'i32': element type", "expected 0 to 12"},
    {"s.type", 0, 0, "key 's': type", "needs 4 bytes"},
    {"s.type", 0, 3, "key 's': type", "needs 4 bytes"},
    /* values */
    {"s.value", 8, 1000, "key 's': string", "needs 1000 bytes"},
    {"s.value", 8, MAX63, "key 's': string", "needs 9223372036854775807 bytes"},
    {"s.value", 8, MAX63 + 1, "key 's': string", "needs 9223372036854775808 bytes"},
    {"s.value", 8, MAX64, "key 's': string", "needs 18446744073709551615 bytes"},
    {"s.value", 8, MAX64 - 40, "key 's': string", "needs 18446744073709551575 bytes"},
    {"s.value", 8, 0, "key 1: name", "expected 1 to 65535"},
    {"s.value", 8, 6, "key 1: name", "expected 1 to 65535"},
    {"s.value", 8, 4, "key 1: name", "needs 609 bytes"},
    {"s.value", 0, 0, "key 's': string", "needs 8 bytes"},
    {"s.value", 0, 12, "key 's': string", "needs 5 bytes"},
    {"u8.value", 0, 0, "key 'u8': value", "needs 1 bytes"},
    {"i32.value", 0, 3, "key 'i32': value", "needs 4 bytes"},
    {"f32.value", 0, 1, "key 'f32': value", "needs 4 bytes"},
    {"flag.value", 1, 2, "key 'flag': value", "found 2, expected a bool"},
    {"flag.value", 1, 255, "key 'flag': value", "found 255, expected a bool"},
    /* arrays */
    {"words.element", 4, GGUF_ARRAY, "key 'words': element type", "arrays of arrays"},
    {"words.element", 4, GGUF_TYPE_COUNT, "key 'words': element type", "found 13"},
    {"words.element", 4, 0xffffffff, "key 'words': element type", "expected 0 to 12"},
    {"words.element", 4, GGUF_UINT8, "key 6: name", "expected 1 to 65535"},
    {"words.element", 4, GGUF_UINT64, "key 6: name", ""},
    {"words.element", 0, 0, "key 'words': element type", "needs 4 bytes"},
    {"words.count", 8, 0, "key 7: name", "expected 1 to 65535"},
    {"words.count", 8, 1, "key 7: name", "expected 1 to 65535"},
    {"words.count", 8, 3, "key 6: name", "expected 1 to 65535"},
    {"words.count", 8, 1000, "key 'words': count", "found 1000 strings, more than the file could hold"},
    {"words.count", 8, MAX63, "key 'words': count", "more than the file could hold"},
    {"words.count", 8, 1ull << 61, "key 'words': count", "more than the file could hold"},
    {"words.count", 8, MAX64, "key 'words': count", "more than the file could hold"},
    {"words.count", 0, 4, "key 'words': count", "needs 8 bytes"},
    {"words.elements", 8, 9999, "key 'words': string", "needs 9999 bytes"},
    {"words.elements", 8, MAX64, "key 'words': string", "needs 18446744073709551615 bytes"},
    {"words.second", 8, MAX64 - 3, "key 'words': string", "needs"},
    {"words.second", 0, 0, "key 'words': count", "more than the file could hold"},
    {"words.second", 0, 9, "key 'words': string", "needs 3 bytes"},
    {"ints.element", 4, GGUF_STRING, "key 'ints': string", "needs"},
    {"ints.element", 4, GGUF_UINT16, "key 7: name", "expected 1 to 65535"},
    {"ints.element", 4, GGUF_FLOAT64, "key 7: name", "expected 1 to 65535"},
    {"ints.element", 4, GGUF_BOOL, "key 7: name", "expected 1 to 65535"},
    {"ints.count", 8, 0, "key 7: name", ""},
    {"ints.count", 8, 2, "key 7: name", "expected 1 to 65535"},
    {"ints.count", 8, 4, "key 7: name", ""},
    {"ints.count", 8, 10000, "key 'ints': value", "needs 40000 bytes"},
    {"ints.count", 8, 1ull << 62, "key 'ints': count", "more than the file could hold"},
    {"ints.count", 8, MAX63, "key 'ints': count", "more than the file could hold"},
    {"ints.count", 8, MAX64, "key 'ints': count", "found 18446744073709551615"},
    {"ints.count", 8, (1ull << 62) - 1, "key 'ints': value", "needs 18446744073709551612 bytes"},
    {"ints.elements", 0, 11, "key 'ints': value", "needs 12 bytes"},
    {"flags.elements", 1, 7, "key 'flags': value", "found 7, expected a bool"},
    {"flags.count", 8, 100000, "key 'flags': value", "needs 100000 bytes"},
    {"flags.count", 8, MAX64, "key 'flags': value", "needs 18446744073709551615 bytes"},
    /* alignment */
    {"general.alignment.value", 4, 0, "key 'general.alignment': value", "found 0, expected a power of two"},
    {"general.alignment.value", 4, 1, "key 'general.alignment': value", "found 1"},
    {"general.alignment.value", 4, 4, "key 'general.alignment': value", "found 4"},
    {"general.alignment.value", 4, 31, "key 'general.alignment': value", "found 31"},
    {"general.alignment.value", 4, 33, "key 'general.alignment': value", "found 33"},
    {"general.alignment.value", 4, 48, "key 'general.alignment': value", "found 48"},
    {"general.alignment.value", 4, 1u << 21, "key 'general.alignment': value", "found 2097152"},
    {"general.alignment.value", 4, 1u << 30, "key 'general.alignment': value", "found 1073741824"},
    {"general.alignment.value", 4, 1u << 31, "key 'general.alignment': value", "found 2147483648"},
    {"general.alignment.value", 4, 0xffffffff, "key 'general.alignment': value", "found 4294967295"},
    {"general.alignment.value", 4, 64, "tensor 'y': offset",
     "found 160, expected a multiple of the alignment 64"},
    {"general.alignment.value", 4, 1u << 20, "tensor 'q': offset", "is beyond the end of the file"},
    {"general.alignment.type", 4, GGUF_INT32, "key 'general.alignment': type",
     "found int32, expected uint32"},
    {"general.alignment.type", 4, GGUF_FLOAT32, "key 'general.alignment': type", "found float32"},
    /* tensors: names */
    {"q.length", 8, 0, "tensor 0: name", "found 0 bytes, expected 1 to 64"},
    {"q.length", 8, 65, "tensor 0: name", "found 65 bytes, expected 1 to 64"},
    {"q.length", 8, 64, "tensor '", "holds a zero byte"},
    {"q.length", 8, MAX63, "tensor 0: name", "expected 1 to 64"},
    {"q.length", 8, MAX64, "tensor 0: name", "found 18446744073709551615 bytes"},
    {"q.length", 0, 3, "tensor 0: name", "needs 8 bytes"},
    {"y.length", 0, 8, "tensor 2: name", "needs 1 bytes"},
    {"q.name", 1, 0, "tensor '", "holds a zero byte"},
    {"q.name", 1, 'x', "tensor 'x': name", "found twice, expected once"},
    {"y.name", 1, 'q', "tensor 'q': name", "found twice, expected once"},
    /* tensors: shapes */
    {"q.dimensions", 4, 0, "tensor 'q': dimension count", "found 0, expected 1 to 4"},
    {"q.dimensions", 4, 5, "tensor 'q': dimension count", "found 5, expected 1 to 4"},
    {"q.dimensions", 4, 1, "tensor 1: name", "found 0 bytes"},
    {"q.dimensions", 4, 3, "tensor 1: name", "expected 1 to 64"},
    {"q.dimensions", 4, 0x80000000, "tensor 'q': dimension count", "found 2147483648"},
    {"q.dimensions", 4, 0xffffffff, "tensor 'q': dimension count", "found 4294967295"},
    {"q.dimensions", 0, 2, "tensor 'q': dimension count", "needs 4 bytes"},
    {"q.d0", 8, 0, "tensor 'q': dimension 0", "found 0"},
    {"q.d0", 8, 1, "tensor 'q': dimension 0", "expected a multiple of 32 for Q8_0"},
    {"q.d0", 8, 31, "tensor 'q': dimension 0", "expected a multiple of 32"},
    {"q.d0", 8, 33, "tensor 'q': dimension 0", "found 33, expected a multiple of 32"},
    {"q.d0", 8, 64, "tensor 'q': size", "204 bytes from offset"},
    {"q.d0", 8, 1u << 20, "tensor 'q': size", "beyond the end of the file"},
    {"q.d0", 8, MAX63 - 31, "tensor 'q': dimensions", "overflows"},
    {"q.d0", 8, MAX63, "tensor 'q': dimension 0", "expected a multiple of 32"},
    {"q.d0", 8, MAX63 + 1, "tensor 'q': dimension 0", "expected 1 to 2^63 - 1"},
    {"q.d0", 8, MAX64, "tensor 'q': dimension 0", "expected 1 to 2^63 - 1"},
    {"q.d0", 0, 5, "tensor 'q': dimension 0", "needs 8 bytes"},
    {"q.d1", 8, 0, "tensor 'q': dimension 1", "found 0"},
    {"q.d1", 8, 4, "tensor 'x': offset", "overlaps tensor 'q'"},
    {"q.d1", 8, 1000, "tensor 'q': size", "34000 bytes from offset"},
    {"q.d1", 8, 1ull << 57, "tensor 'q': size", "beyond the end"},
    {"q.d1", 8, 1ull << 58, "tensor 'q': dimensions", "overflows"},
    {"q.d1", 8, 1ull << 59, "tensor 'q': dimensions", "overflows"},
    {"q.d1", 8, MAX63, "tensor 'q': dimensions", "overflows"},
    {"q.d1", 8, MAX63 + 1, "tensor 'q': dimension 1", "expected 1 to"},
    {"q.d1", 8, MAX64, "tensor 'q': dimension 1", "found 18446744073709551615"},
    {"x.d0", 8, 9, "tensor 'y': offset", "overlaps tensor 'x'"},
    {"x.d0", 8, 1ull << 62, "tensor 'x': dimensions", "overflows"},
    {"x.d0", 8, (1ull << 62) - 1, "tensor 'x': size", "beyond the end"},
    {"y.d0", 8, 17, "tensor 'y': size", "68 bytes from offset"},
    {"y.d1", 8, 3, "tensor 'y': size", "48 bytes from offset"},
    {"y.d1", 8, MAX63 / 2, "tensor 'y': dimensions", "overflows"},
    /* tensors: types */
    {"q.type", 4, 4, "tensor 'q': type", "found 4 (Q4_2), which loam does not read"},
    {"q.type", 4, 9, "tensor 'q': type", "found 9 (Q8_1)"},
    {"q.type", 4, 15, "tensor 'q': type", "found 15 (Q8_K)"},
    {"q.type", 4, 34, "tensor 'q': type", "found 34 (TQ1_0)"},
    {"q.type", 4, 16, "tensor 'q': dimension 0", "multiple of 256 for IQ2_XXS"},
    {"q.type", 4, 36, "tensor 'q': type", "found 36, which loam does not read"},
    {"q.type", 4, 41, "tensor 'q': type", "found 41, which loam does not read"},
    {"q.type", 4, 99, "tensor 'q': type", "found 99, which"},
    {"q.type", 4, 0x7fffffff, "tensor 'q': type", "found 2147483647"},
    {"q.type", 4, 0xffffffff, "tensor 'q': type", "found 4294967295"},
    {"q.type", 4, TENSOR_F32, "tensor 'q': size", "384 bytes from offset"},
    {"q.type", 4, TENSOR_F16, "tensor 'x': offset", "overlaps tensor 'q'"},
    {"q.type", 4, TENSOR_Q4_K, "tensor 'q': dimension 0", "expected a multiple of 256 for Q4_K"},
    {"y.type", 4, TENSOR_F64, "tensor 'y': size", "beyond the end"},
    {"y.type", 4, TENSOR_Q4_0, "tensor 'y': dimension 0", "found 8, expected a multiple of 32"},
    {"q.type", 0, 1, "tensor 'q': type", "needs 4 bytes"},
    /* tensors: places */
    {"q.offset", 8, 1, "tensor 'q': offset", "found 1, expected a multiple of the alignment 32"},
    {"q.offset", 8, 31, "tensor 'q': offset", "expected a multiple"},
    {"q.offset", 8, 16, "tensor 'q': offset", "found 16, expected a multiple"},
    {"q.offset", 8, 32, "tensor 'x': offset", "overlaps tensor 'q'"},
    {"q.offset", 8, 128, "tensor 'q': size", "102 bytes from offset"},
    {"x.offset", 8, 96, "tensor 'x': offset", "overlaps tensor 'q'"},
    {"x.offset", 8, 0, "tensor", "overlaps tensor"},
    {"x.offset", 8, 160, "tensor", "overlaps tensor"},
    {"x.offset", 8, 192, "tensor 'x': size", "20 bytes from offset"},
    {"y.offset", 8, 192, "tensor 'y': size", "32 bytes from offset"},
    {"y.offset", 8, 224, "tensor 'y': offset", "224 in the data is beyond the end of the file"},
    {"y.offset", 8, 1ull << 32, "tensor 'y': offset", "4294967296 in the data is beyond the end"},
    {"y.offset", 8, MAX63 - 31, "tensor 'y': offset", "is beyond the end of the file"},
    {"y.offset", 8, MAX63, "tensor 'y': offset", "expected a multiple"},
    {"y.offset", 8, MAX64 - 31, "tensor 'y': offset", "is beyond the end of the file"},
    {"y.offset", 8, MAX64, "tensor 'y': offset", "expected a multiple"},
    {"y.offset", 0, 0, "tensor 'y': offset", "needs 8 bytes"},
    {"y.offset", 0, 7, "tensor 'y': offset", "needs 8 bytes"},
    {"y.offset", 0, 8, "tensor 'q': offset", "beyond the end of the file"},
    {"data", 0, 0, "tensor 'q': size", "beyond the end of the file"},
    {"data", 0, 101, "tensor 'q': size", "102 bytes from offset"},
    {"data", 0, 102, "tensor 'x': offset", "128 in the data is beyond the end of the file"},
    {"data", 0, 128, "tensor 'x': size", "20 bytes from offset"},
    {"data", 0, 147, "tensor 'x': size", "20 bytes from offset"},
    {"data", 0, 159, "tensor 'y': offset", "is beyond the end of the file"},
    {"data", 0, 191, "tensor 'y': size", "32 bytes from offset"},
};

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Status, file, field, one line, and that it was quick; says what is wrong and returns false. */
static bool is_refused(const struct draft *draft, const char *label, const char *field, const char *found) {
    struct error error = {0};
    double begin = cpu_seconds();
    enum status status = draft_open(draft->data, draft->size_bytes, &error);
    double seconds = cpu_seconds() - begin;
    if (status == STATUS_MODEL && strncmp(error.message, "model.gguf: ", 12) == 0 &&
        strstr(error.message, field) != NULL && strstr(error.message, found) != NULL &&
        strchr(error.message, '\n') == NULL && seconds <= 1)
        return true;
    print_error("%s: expected '%s' and '%s', found (%s, %.3f s): %s\n", label, field, found,
                status_name(status), seconds, error.message);
    return false;
}

static void check_refused(const struct draft *draft, const char *label, const char *field,
                          const char *found) {
    assert_true(is_refused(draft, label, field, found));
}

static void one_field_damaged(void **state) {
    (void)state;
    static struct draft draft;
    size_t refused = 0, wrong = 0;
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const struct damage *damage = &damages[i];
        char label[100];
        draft_small(&draft);
        snprintf(label, sizeof label, "row %zu (%s)", i, damage->mark);
        uint64_t offset = draft_offset(&draft, damage->mark);
        if (damage->size_bytes == 0)
            draft.size_bytes = offset + damage->value;
        else
            memcpy(draft.data + offset, &damage->value, damage->size_bytes);
        if (damage->field[0] == '\0') {
            struct error error = {0};
            assert_ok(draft_open(draft.data, draft.size_bytes, &error), error);
            continue;
        }
        if (is_refused(&draft, label, damage->field, damage->found))
            refused++;
        else
            wrong++;
    }
    print_message("%zu damaged files refused\n", refused);
    assert_int_equal(wrong, 0);
    assert_true(refused >= 150);
}

static void undamaged_is_read(void **state) {
    (void)state;
    static struct draft draft;
    struct error error = {0};
    draft_small(&draft);
    assert_ok(draft_open(draft.data, draft.size_bytes, &error), error);
    draft.data[draft_offset(&draft, "version")] = 2;
    assert_ok(draft_open(draft.data, draft.size_bytes, &error), error);
    for (size_t i = 0; i < 100; i++) draft_u8(&draft, 0xff); /* what follows the last tensor is not ours */
    assert_ok(draft_open(draft.data, draft.size_bytes, &error), error);
}

static void same_key_twice(void **state) {
    (void)state;
    static struct draft draft;
    memset(&draft, 0, sizeof draft);
    draft_header(&draft, 3, 0, 3);
    draft_key_uint(&draft, "a.b", GGUF_UINT32, 1);
    draft_key_uint(&draft, "a", GGUF_UINT32, 1);
    draft_key_string(&draft, "a.b", "x");
    check_refused(&draft, "same key", "key 'a.b': name", "found twice");
}

static void control_characters_stay_out_of_the_message(void **state) {
    (void)state;
    static struct draft draft;
    memset(&draft, 0, sizeof draft);
    draft_header(&draft, 3, 0, 1);
    draft_key(&draft, "a\n\x1b[31m", (enum gguf_type)77);
    check_refused(&draft, "control characters", "key 'a??[31m': type", "found 77");
}

static void long_names_leave_space_for_the_reason(void **state) {
    (void)state;
    static struct draft draft;
    static char name[60001];
    memset(&draft, 0, sizeof draft);
    memset(name, 'n', sizeof name - 1);
    draft_header(&draft, 3, 0, 1);
    draft_key(&draft, name, (enum gguf_type)77);
    check_refused(&draft, "long name", "nnnn': type", "found 77, expected 0 to 12");
}

/* Many keys: the limit is reached by a file that really holds them, and none of it is slow. */
static void many_keys_are_quick(void **state) {
    (void)state;
    static struct draft draft;
    memset(&draft, 0, sizeof draft);
    enum { COUNT = 3000 };
    draft_header(&draft, 3, 0, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        char key[16];
        int length = snprintf(key, sizeof key, "%u", i * 2654435761u % COUNT);
        draft_u64(&draft, (uint64_t)length);
        draft_put(&draft, key, (size_t)length);
        draft_u32(&draft, GGUF_UINT8);
        draft_u8(&draft, 1);
    }
    struct error error = {0};
    double begin = cpu_seconds();
    enum status status = draft_open(draft.data, draft.size_bytes, &error);
    assert_true(cpu_seconds() - begin < 1);
    assert_true(status == STATUS_OK || status == STATUS_MODEL);
}

struct getter_case {
    const char *key;
    char getter; /* u(int) U(int up to 100) f(loat) b(ool) s(tring), array of: i(nts) w(ords) r(eals) */
    const char *found;
};

/* draft_small's keys asked for as what they are not. */
static const struct getter_case getter_cases[] = {
    {"s", 'u', "key 's': found string, expected an integer"},
    {"s", 'f', "key 's': found string, expected a float"},
    {"s", 'b', "key 's': found string, expected a bool"},
    {"s", 'w', "key 's': found string, expected an array of string"},
    {"u8", 'U', "key 'u8': found 200, expected 0 to 100"},
    {"u8", 'f', "key 'u8': found uint8, expected a float"},
    {"u8", 's', "key 'u8': found uint8, expected a string"},
    {"u8", 'i', "key 'u8': found uint8, expected an array of int32"},
    {"i32", 'u', "key 'i32': found -5, expected 0 to"},
    {"i32", 'b', "key 'i32': found int32, expected a bool"},
    {"f32", 'u', "key 'f32': found float32, expected an integer"},
    {"f32", 's', "key 'f32': found float32, expected a string"},
    {"flag", 'u', "key 'flag': found bool, expected an integer"},
    {"flag", 'r', "key 'flag': found bool, expected an array of float32"},
    {"words", 's', "key 'words': found an array of string, expected a string"},
    {"words", 'i', "key 'words': found an array of string, expected an array of int32"},
    {"ints", 'u', "key 'ints': found an array of int32, expected an integer"},
    {"ints", 'w', "key 'ints': found an array of int32, expected an array of string"},
    {"ints", 'r', "key 'ints': found an array of int32, expected an array of float32"},
    {"flags", 'i', "key 'flags': found an array of bool, expected an array of int32"},
};

static enum status get_as(const struct gguf *gguf, const char *key, char getter, struct error *error) {
    uint64_t number;
    float real;
    bool flag;
    struct gguf_string text;
    const struct gguf_entry *array;
    switch (getter) {
    case 'u': return gguf_get_uint(gguf, key, UINT64_MAX, &number, error);
    case 'U': return gguf_get_uint(gguf, key, 100, &number, error);
    case 'f': return gguf_get_float(gguf, key, &real, error);
    case 'b': return gguf_get_bool(gguf, key, &flag, error);
    case 's': return gguf_get_string(gguf, key, &text, error);
    case 'i': return gguf_get_array(gguf, key, GGUF_INT32, &array, error);
    case 'w': return gguf_get_array(gguf, key, GGUF_STRING, &array, error);
    case 'r': return gguf_get_array(gguf, key, GGUF_FLOAT32, &array, error);
    default: fail(); return STATUS_FAILED;
    }
}

static void asked_for_as_what_it_is_not(void **state) {
    (void)state;
    static struct draft draft;
    struct error error;
    struct gguf gguf;
    draft_small(&draft);
    assert_ok(gguf_open_memory(&gguf, draft.data, draft.size_bytes, "model.gguf", &error), error);
    for (size_t i = 0; i < sizeof getter_cases / sizeof getter_cases[0]; i++) {
        const struct getter_case *c = &getter_cases[i];
        error = (struct error){0};
        assert_int_equal(get_as(&gguf, c->key, c->getter, &error), STATUS_MODEL);
        if (strncmp(error.message, "model.gguf: ", 12) != 0 || strstr(error.message, c->found) == NULL)
            fail_msg("getter %zu: expected '%s' in: %s", i, c->found, error.message);
    }
    assert_int_equal(gguf_required(&gguf, "nothing.here", &error), STATUS_MODEL);
    assert_string_equal(error.message, "model.gguf: key 'nothing.here': not found, expected it");
    assert_ok(gguf_required(&gguf, "u8", &error), error);
    gguf_close(&gguf);
}

static void floats_must_be_finite(void **state) {
    (void)state;
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001};
    static struct draft draft;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error error = {0};
        struct gguf gguf;
        float value = 1;
        draft_small(&draft);
        memcpy(draft.data + draft_offset(&draft, "f32.value"), &bad[i], 4);
        assert_ok(gguf_open_memory(&gguf, draft.data, draft.size_bytes, "model.gguf", &error), error);
        assert_int_equal(gguf_get_float(&gguf, "f32", &value, &error), STATUS_MODEL);
        assert_non_null(strstr(error.message, "key 'f32'"));
        assert_true(value == 1);
        gguf_close(&gguf);
    }
}

static void unsigned_beyond_signed(void **state) {
    (void)state;
    static struct draft draft;
    memset(&draft, 0, sizeof draft);
    draft_header(&draft, 3, 0, 2);
    draft_key_uint(&draft, "big", GGUF_UINT64, UINT64_MAX - 1);
    draft_key(&draft, "double", GGUF_FLOAT64);
    double huge = 1e300;
    draft_put(&draft, &huge, sizeof huge);
    struct error error = {0};
    struct gguf gguf;
    uint64_t value = 7;
    float real = 2;
    assert_ok(gguf_open_memory(&gguf, draft.data, draft.size_bytes, "model.gguf", &error), error);
    assert_int_equal(gguf_get_uint(&gguf, "big", INT64_MAX, &value, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "found 18446744073709551614"));
    assert_int_equal(value, 7);
    assert_ok(gguf_get_uint(&gguf, "big", UINT64_MAX, &value, &error), error);
    assert_true(value == UINT64_MAX - 1);
    assert_int_equal(gguf_get_float(&gguf, "double", &real, &error), STATUS_MODEL); /* no float32 */
    gguf_close(&gguf);
}

/* What people have in the place of a model is named. */
static void other_files_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"},
        {"<!DOCTYPE html>", "a web page"},
        {"<html>", "a web page"},
        {"{\"error\":\"Entry not found\"}", "JSON"},
        {"PK\x03\x04....", "an archive"},
        {"tjgg....", "an older format"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf gguf;
        struct error error;
        assert_int_equal(gguf_open_memory(&gguf, cases[i].text, strlen(cases[i].text), "model.gguf", &error),
                         STATUS_MODEL);
        if (strstr(error.message, cases[i].said) == NULL) fail_msg("%s", error.message);
        gguf_close(&gguf);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undamaged_is_read),
        cmocka_unit_test(other_files_are_named),
        cmocka_unit_test(one_field_damaged),
        cmocka_unit_test(same_key_twice),
        cmocka_unit_test(control_characters_stay_out_of_the_message),
        cmocka_unit_test(long_names_leave_space_for_the_reason),
        cmocka_unit_test(many_keys_are_quick),
        cmocka_unit_test(asked_for_as_what_it_is_not),
        cmocka_unit_test(floats_must_be_finite),
        cmocka_unit_test(unsigned_beyond_signed),
    };
#ifndef __SANITIZE_ADDRESS__
    /* A file of a few hundred bytes must not cost more than 64 MiB, whatever sizes it declares. */
    struct rlimit limit = {64u << 20, 64u << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
