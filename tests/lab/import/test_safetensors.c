/* safetensors: what is well-formed is read, what is not is refused by file, tensor and field. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/json.h"
#include "lab/import/safetensors.h"

/* Builds a file in a fresh block of exactly its size, so that a sanitizer sees one byte too many. */
static uint8_t *build(const char *header, size_t data_bytes, size_t *size_bytes) {
    uint64_t length = strlen(header);
    *size_bytes = 8 + length + data_bytes;
    uint8_t *file = malloc(*size_bytes);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) file[8 + length + i] = (uint8_t)i;
    return file;
}

static enum status open_text(struct safetensors *safetensors, const char *header, size_t data_bytes,
                             uint8_t **file, struct error *error) {
    size_t size_bytes;
    *file = build(header, data_bytes, &size_bytes);
    return safetensors_open_memory(safetensors, *file, size_bytes, "model.safetensors", error);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                           "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
                           "\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[26,26]}}   ";

static void reads_what_is_good(void **state) {
    (void)state;
    struct safetensors safetensors;
    struct error error;
    uint8_t *file;
    assert_ok(open_text(&safetensors, good, 26, &file, &error), error);
    assert_int_equal(safetensors.tensor_count, 3);
    const struct safetensors_tensor *tensor = safetensors_find(&safetensors, "b");
    assert_non_null(tensor);
    assert_string_equal(tensor->dtype, "F32");
    assert_int_equal(tensor->dimension_count, 2);
    assert_int_equal(tensor->dimensions[0], 2);
    assert_int_equal(tensor->dimensions[1], 3);
    for (uint8_t i = 0; i < 24; i++) assert_int_equal(tensor->data[i], i);
    tensor = safetensors_find(&safetensors, "a");
    assert_non_null(tensor);
    assert_int_equal(tensor->dimension_count, 0);
    assert_int_equal(tensor->data[0], 24);
    assert_non_null(safetensors_find(&safetensors, "none"));
    assert_null(safetensors_find(&safetensors, "__metadata__"));
    assert_null(safetensors_find(&safetensors, "c"));
    safetensors_close(&safetensors);
    safetensors_close(&safetensors);
    free(file);
}

struct bad_header {
    const char *header;
    const char *found;
};

#define T(dtype, shape, offsets) \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

/* Each with 24 bytes of data. */
static const struct bad_header bad_headers[] = {
    {"", "JSON: line"},
    {"{", "JSON: line"},
    {"nothing", "JSON: line"},
    {"{}x", "JSON: line"},
    {"[]", "header: expected a JSON object"},
    {"3", "header: expected a JSON object"},
    {"null", "header: expected a JSON object"},
    {"\xff\xfe{}", "JSON: line"},
    {"{\"\xc0\x80\":{}}", "JSON: line"},
    {"{\"t\":3}", "tensor 't': description: expected a JSON object"},
    {"{\"t\":[]}", "tensor 't': description: expected a JSON object"},
    {"{\"t\":{}}", "tensor 't': dtype: not found"},
    {"{\"t\":{\"dtype\":\"F32\"}}", "tensor 't': shape: not found"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[6]}}", "tensor 't': data_offsets"},
    {"{\"t\":{},\"t\":{}}", "duplicate object key"},
    {T("\"F31\"", "[6]", "[0,24]"), "tensor 't': dtype: found 'F31', which loam does not know"},
    {T("\"\"", "[6]", "[0,24]"), "tensor 't': dtype: found ''"},
    {T("\"f32\"", "[6]", "[0,24]"), "tensor 't': dtype: found 'f32'"},
    {T("4", "[6]", "[0,24]"), "tensor 't': dtype: not found, expected a string"},
    {T("\"F32\"", "6", "[0,24]"), "tensor 't': shape: not found, expected an array"},
    {T("\"F32\"", "[6.0]", "[0,24]"), "tensor 't': shape: dimension 0 is no integer"},
    {T("\"F32\"", "[6,\"1\"]", "[0,24]"), "tensor 't': shape: dimension 1 is no integer"},
    {T("\"F32\"", "[-6]", "[0,24]"), "tensor 't': shape: dimension 0"},
    {T("\"F32\"", "[9223372036854775808]", "[0,24]"), "JSON: line 1: too big integer"},
    {T("\"F32\"", "[9223372036854775807]", "[0,24]"), "tensor 't': shape: the product"},
    {T("\"F32\"", "[4294967296,4294967296]", "[0,24]"), "tensor 't': shape: the product"},
    {T("\"F32\"", "[4611686018427387904]", "[0,24]"), "tensor 't': shape: the product"},
    {T("\"F32\"", "[1,1,1,1,1,1,1,1,6]", "[0,24]"), "tensor 't': shape: found 9 dimensions"},
    {T("\"F32\"", "[6]", "24"), "tensor 't': data_offsets: expected an array of two"},
    {T("\"F32\"", "[6]", "[]"), "tensor 't': data_offsets: expected an array of two"},
    {T("\"F32\"", "[6]", "[24]"), "tensor 't': data_offsets: expected an array of two"},
    {T("\"F32\"", "[6]", "[0,24,48]"), "tensor 't': data_offsets: expected an array of two"},
    {T("\"F32\"", "[6]", "[\"0\",24]"), "tensor 't': data_offsets: expected two integers"},
    {T("\"F32\"", "[6]", "[-8,16]"), "tensor 't': data_offsets: expected two integers"},
    {T("\"F32\"", "[6]", "[0,-1]"), "tensor 't': data_offsets: expected two integers"},
    {T("\"F32\"", "[6]", "[24,0]"), "tensor 't': data_offsets: 24 to 0, the file holds 0 to 24"},
    {T("\"F32\"", "[6]", "[1,25]"), "tensor 't': data_offsets: 1 to 25, the file holds 0 to 24"},
    {T("\"F32\"", "[6]", "[0,9223372036854775807]"), "tensor 't': data_offsets: 0 to 9223372036854775807"},
    {T("\"F32\"", "[6]", "[0,20]"), "tensor 't': data_offsets: found 20 bytes, expected 24"},
    {T("\"F32\"", "[5]", "[0,24]"), "tensor 't': data_offsets: found 24 bytes, expected 20"},
    {T("\"F64\"", "[6]", "[0,24]"), "tensor 't': data_offsets: found 24 bytes, expected 48"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[8,20]}}",
     "tensor 'b': data_offsets: overlaps tensor 'a'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
     "overlaps tensor"},
    {"{\"a\\u0000b\":{}}", "JSON: line 1: NUL byte in object key"},
};

static void refuses_what_is_bad(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        struct safetensors safetensors;
        struct error error = {0};
        uint8_t *file;
        enum status status = open_text(&safetensors, bad_headers[i].header, 24, &file, &error);
        if (status != STATUS_MODEL || strncmp(error.message, "model.safetensors: ", 19) != 0 ||
            strstr(error.message, bad_headers[i].found) == NULL) {
            print_error("header %zu: expected '%s' in (%s): %s\n", i, bad_headers[i].found,
                        status_name(status), error.message);
            wrong++;
        }
        safetensors_close(&safetensors);
        free(file);
    }
    assert_int_equal(wrong, 0);
}

static void refuses_wrong_lengths(void **state) {
    (void)state;
    static const uint64_t lengths[] = {0,         1, sizeof good + 26, 1ull << 32, INT64_MAX, UINT64_MAX - 7,
                                       UINT64_MAX};
    size_t size_bytes;
    uint8_t *file = build(good, 26, &size_bytes);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct safetensors safetensors;
        struct error error = {0};
        memcpy(file, &lengths[i], 8);
        assert_int_equal(safetensors_open_memory(&safetensors, file, size_bytes, "x", &error), STATUS_MODEL);
        assert_int_equal(strncmp(error.message, "x: ", 3), 0);
    }
    free(file);
}

static void refuses_deep_nesting(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    static char text[2 * DEPTH + 1];
    struct error error = {0};
    json_t *value;
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    assert_int_equal(json_parse_bytes(text, 2 * DEPTH, "x", STATUS_USAGE, &value, &error), STATUS_USAGE);
    assert_string_equal(error.message, "x: JSON: nested deeper than 64");
    assert_ok(json_parse_bytes("[\"[[[\\\"[[\"]", 11, "x", STATUS_USAGE, &value, &error), error);
    json_decref(value);
    const char *deep = text + DEPTH - 64;
    assert_ok(json_parse_bytes(deep, 128, "x", STATUS_USAGE, &value, &error), error);
    json_decref(value);
}

/* Cut at every byte, and every byte of the header replaced: opens and is readable, or is refused. */
static void sweep(void **state) {
    (void)state;
    size_t size_bytes, opened = 0, refused = 0;
    uint8_t *file = build(good, 26, &size_bytes);
    for (size_t i = 0; i < size_bytes - 26; i++) {
        const uint8_t old = file[i], values[] = {0, 0xff, old ^ 0x80, (uint8_t)(old + 1), '"', '}'};
        for (size_t j = 0; j < sizeof values; j++) {
            struct safetensors safetensors;
            struct error error = {0};
            file[i] = values[j];
            enum status status = safetensors_open_memory(&safetensors, file, size_bytes, "x", &error);
            assert_true(status == STATUS_OK || status == STATUS_MODEL);
            opened += status == STATUS_OK;
            refused += status != STATUS_OK;
            safetensors_close(&safetensors);
        }
        file[i] = old;
    }
    assert_true(opened > 50 && refused > 500);
    for (size_t cut = 0; cut < size_bytes; cut++) {
        struct safetensors safetensors;
        struct error error = {0};
        uint8_t *part = malloc(cut > 0 ? cut : 1);
        assert_non_null(part);
        memcpy(part, file, cut);
        assert_int_equal(safetensors_open_memory(&safetensors, part, cut, "x", &error), STATUS_MODEL);
        free(part);
    }
    free(file);
}

/* ---- folders ---- */

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/loam-st-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static void put_file(const char *name, const void *data, size_t size_bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size_bytes, file), size_bytes);
    assert_int_equal(fclose(file), 0);
}

static void put_shard(const char *name, const char *header, size_t data_bytes) {
    size_t size_bytes;
    uint8_t *file = build(header, data_bytes, &size_bytes);
    put_file(name, file, size_bytes);
    free(file);
}

static void drop_file(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static void one_file_in_a_folder(void **state) {
    (void)state;
    struct safetensors safetensors;
    struct error error;
    assert_int_equal(safetensors_open(&safetensors, folder, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "model.safetensors"));
    put_shard("model.safetensors", good, 26);
    assert_ok(safetensors_open(&safetensors, folder, &error), error);
    assert_int_equal(safetensors.tensor_count, 3);
    safetensors_close(&safetensors);
    drop_file("model.safetensors");
}

static void shards_in_a_folder(void **state) {
    (void)state;
    static const struct {
        const char *index, *found; /* found NULL: opens */
    } cases[] = {
        {"{\"weight_map\":{\"x\":\"one\",\"y\":\"two\"}}", NULL},
        {"{\"weight_map\":{\"x\":\"two\"}}", "two: tensor 'x': not found, the index says it is here"},
        {"{\"weight_map\":{\"x\":\"three\"}}", "three"},
        {"{\"weight_map\":{\"x\":\"../one\"}}",
         "weight_map: found '../one', expected a file in the folder of the index"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "expected a file in the folder of the index"},
        {"{\"weight_map\":{\"x\":\"\"}}", "expected a file in the folder of the index"},
        {"{\"weight_map\":{\"x\":3}}", "weight_map: 'x' has no file name"},
        {"{\"weight_map\":[]}", "weight_map: not found, expected an object"},
        {"{}", "weight_map: not found, expected an object"},
        {"[", "index.json: JSON: line"},
    };
    put_shard("one", "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    put_shard("two", "{\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors safetensors;
        struct error error = {0};
        put_file("model.safetensors.index.json", cases[i].index, strlen(cases[i].index));
        enum status status = safetensors_open(&safetensors, folder, &error);
        if (cases[i].found == NULL) {
            assert_ok(status, error);
            assert_int_equal(safetensors.tensor_count, 2);
            assert_int_equal(safetensors.file_count, 2);
            assert_int_equal(safetensors_find(&safetensors, "y")->size_bytes, 3);
        } else if (status == STATUS_OK || strstr(error.message, cases[i].found) == NULL) {
            fail_msg("index %zu: expected '%s' in: %s", i, cases[i].found, error.message);
        }
        safetensors_close(&safetensors);
    }
    drop_file("one");
    drop_file("two");
    drop_file("model.safetensors.index.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_is_good),
        cmocka_unit_test(refuses_what_is_bad),
        cmocka_unit_test(refuses_wrong_lengths),
        cmocka_unit_test(refuses_deep_nesting),
        cmocka_unit_test(sweep),
        cmocka_unit_test(one_file_in_a_folder),
        cmocka_unit_test(shards_in_a_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
