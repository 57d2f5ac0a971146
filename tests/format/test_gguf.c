/* What the writer writes the reader reads, and typed access to metadata. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/gguf.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/loam-gguf-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails when a test left something behind */
}

static void path_in_folder(char path[128], const char *name) { snprintf(path, 128, "%s/%s", folder, name); }

static void write_model(const char *path) {
    struct error error;
    struct gguf_writer *writer;
    assert_ok(gguf_writer_create(&writer, path, &error), error);
    const struct gguf_string words[] = {{"one", 3}, {"", 0}, {"a\0b", 3}};
    const int32_t ints[] = {-1, 0, 7};
    const float floats[] = {0.5f, -2.0f};
    assert_ok(gguf_writer_add_string(writer, "general.architecture", "llama", 5, &error), error);
    assert_ok(gguf_writer_add_uint(writer, "a.uint", 4000000000u, &error), error);
    assert_ok(gguf_writer_add_float(writer, "a.float", 1.25f, &error), error);
    assert_ok(gguf_writer_add_bool(writer, "a.bool", true, &error), error);
    assert_ok(gguf_writer_add_strings(writer, "a.words", words, 3, &error), error);
    assert_ok(gguf_writer_add_ints(writer, "a.ints", ints, 3, &error), error);
    assert_ok(gguf_writer_add_floats(writer, "a.floats", floats, 2, &error), error);
    assert_ok(gguf_writer_add_floats(writer, "a.nothing", floats, 0, &error), error);
    const uint64_t matrix[] = {32, 3}, row[] = {5}, cube[] = {2, 3, 4, 5};
    assert_ok(gguf_writer_declare_tensor(writer, "q.weight", TENSOR_Q8_0, 2, matrix, &error), error);
    assert_ok(gguf_writer_declare_tensor(writer, "bias", TENSOR_F32, 1, row, &error), error);
    assert_ok(gguf_writer_declare_tensor(writer, "cube", TENSOR_F16, 4, cube, &error), error);
    assert_ok(gguf_writer_begin_data(writer, &error), error);
    uint8_t bytes[240];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7 + 1);
    assert_ok(gguf_writer_write(writer, bytes, 34, &error), error);
    assert_ok(gguf_writer_write(writer, bytes + 34, 68, &error), error);
    assert_ok(gguf_writer_write(writer, bytes, 20, &error), error);
    assert_ok(gguf_writer_write(writer, bytes, 240, &error), error);
    assert_ok(gguf_writer_commit(writer, &error), error);
    gguf_writer_destroy(writer);
}

static void check_metadata(const struct gguf *gguf) {
    struct error error;
    struct gguf_string text = {0};
    uint64_t number = 0;
    float real = 0;
    bool flag = false;
    const struct gguf_entry *array;
    assert_ok(gguf_get_string(gguf, "general.architecture", &text, &error), error);
    assert_int_equal(text.length, 5);
    assert_memory_equal(text.text, "llama", 5);
    assert_ok(gguf_get_uint(gguf, "a.uint", UINT32_MAX, &number, &error), error);
    assert_int_equal(number, 4000000000u);
    assert_ok(gguf_get_float(gguf, "a.float", &real, &error), error);
    assert_true(real == 1.25f);
    assert_ok(gguf_get_bool(gguf, "a.bool", &flag, &error), error);
    assert_true(flag);
    assert_ok(gguf_get_array(gguf, "a.words", GGUF_STRING, &array, &error), error);
    assert_int_equal(array->count, 3);
    assert_int_equal(array->strings[1].length, 0);
    assert_memory_equal(array->strings[2].text, "a\0b", 3);
    assert_ok(gguf_get_array(gguf, "a.ints", GGUF_INT32, &array, &error), error);
    assert_int_equal(gguf_array_int(array, 0), -1);
    assert_int_equal(gguf_array_int(array, 2), 7);
    assert_ok(gguf_get_array(gguf, "a.floats", GGUF_FLOAT32, &array, &error), error);
    assert_true(gguf_array_float(array, 1) == -2.0);
    assert_ok(gguf_get_array(gguf, "a.nothing", GGUF_FLOAT32, &array, &error), error);
    assert_int_equal(array->count, 0);
    assert_ok(gguf_get_array(gguf, "absent", GGUF_FLOAT32, &array, &error), error);
    assert_null(array);
    number = 42;
    assert_ok(gguf_get_uint(gguf, "absent", 10, &number, &error), error);
    assert_int_equal(number, 42);
}

static void check_tensors(const struct gguf *gguf) {
    assert_int_equal(gguf->tensor_count, 3);
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, "cube");
    assert_non_null(tensor);
    assert_int_equal(tensor->type, TENSOR_F16);
    assert_int_equal(tensor->dimension_count, 4);
    assert_int_equal(tensor->dimensions[3], 5);
    assert_int_equal(tensor->size_bytes, 240);
    tensor = gguf_find_tensor(gguf, "q.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->size_bytes, 3 * 34);
    assert_int_equal(tensor->dimensions[2], 1);
    for (size_t i = 0; i < 102; i++) assert_int_equal(tensor->data[i], (uint8_t)(i * 7 + 1));
    assert_int_equal((uintptr_t)tensor->data % 32, 0);
    assert_null(gguf_find_tensor(gguf, "cub"));
    assert_null(gguf_find_tensor(gguf, "cubes"));
    assert_int_equal(gguf->tensors[1].name.length, 4); /* file order is kept */
}

static void round_trip(void **state) {
    (void)state;
    char path[128], copy[128];
    struct error error;
    struct gguf gguf;
    path_in_folder(path, "a.gguf");
    path_in_folder(copy, "b.gguf");
    write_model(path);
    assert_ok(gguf_open(&gguf, path, &error), error);
    assert_int_equal(gguf.version, 3);
    assert_int_equal(gguf.alignment, 32);
    check_metadata(&gguf);
    check_tensors(&gguf);

    struct gguf_writer *writer;
    assert_ok(gguf_writer_create(&writer, copy, &error), error);
    for (uint64_t i = 0; i < gguf.entry_count; i++)
        assert_ok(gguf_writer_copy_entry(writer, &gguf.entries[i], &error), error);
    assert_ok(gguf_writer_begin_data(writer, &error), error);
    assert_ok(gguf_writer_commit(writer, &error), error);
    gguf_writer_destroy(writer);
    gguf_close(&gguf);
    gguf_close(&gguf); /* safe twice */

    assert_ok(gguf_open(&gguf, copy, &error), error);
    check_metadata(&gguf);
    assert_int_equal(gguf.tensor_count, 0);
    gguf_close(&gguf);
    unlink(path);
    unlink(copy);
}

static void writer_leaves_nothing_when_dropped(void **state) {
    (void)state;
    char path[128];
    struct error error;
    struct gguf_writer *writer;
    path_in_folder(path, "dropped.gguf");
    assert_ok(gguf_writer_create(&writer, path, &error), error);
    assert_ok(gguf_writer_add_uint(writer, "a", 1, &error), error);
    assert_ok(gguf_writer_begin_data(writer, &error), error);
    gguf_writer_destroy(writer);
    gguf_writer_destroy(NULL);
    assert_int_equal(access(path, F_OK), -1); /* and the group's teardown finds the folder empty */
    path_in_folder(path, "missing/x.gguf");
    assert_int_equal(gguf_writer_create(&writer, path, &error), STATUS_IO);
    assert_null(writer);
}

static void writer_refuses_wrong_tensors(void **state) {
    (void)state;
    char path[128];
    struct error error;
    struct gguf_writer *writer;
    path_in_folder(path, "wrong.gguf");
    assert_ok(gguf_writer_create(&writer, path, &error), error);
    const uint64_t odd[] = {33}, zero[] = {32, 0}, huge[] = {1ull << 62, 1ull << 10}, good[] = {32};
    char name[GGUF_NAME_BYTES_MAX + 2];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(gguf_writer_declare_tensor(writer, "a", TENSOR_Q4_0, 1, odd, &error), STATUS_MODEL);
    assert_int_equal(gguf_writer_declare_tensor(writer, "a", TENSOR_F32, 2, zero, &error), STATUS_MODEL);
    assert_int_equal(gguf_writer_declare_tensor(writer, "a", TENSOR_F32, 2, huge, &error), STATUS_MODEL);
    assert_int_equal(gguf_writer_declare_tensor(writer, name, TENSOR_F32, 1, good, &error), STATUS_MODEL);
    assert_int_equal(gguf_writer_declare_tensor(writer, "", TENSOR_F32, 1, good, &error), STATUS_MODEL);
    assert_ok(gguf_writer_declare_tensor(writer, "a", TENSOR_F32, 1, good, &error), error);
    assert_int_equal(gguf_writer_declare_tensor(writer, "a", TENSOR_F32, 1, good, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "declared twice"));
    gguf_writer_destroy(writer);
}

static void missing_file(void **state) {
    (void)state;
    struct error error;
    struct gguf gguf;
    assert_int_equal(gguf_open(&gguf, "/nowhere/at-all.gguf", &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/nowhere/at-all.gguf"));
    assert_int_equal(gguf_open(&gguf, "/tmp", &error), STATUS_MODEL); /* it is there, and is no model */
    assert_non_null(strstr(error.message, "/tmp: not a regular file"));
    gguf_close(&gguf);
    assert_null(gguf_find(&gguf, "x"));
    assert_null(gguf_find_tensor(&gguf, "x"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(writer_leaves_nothing_when_dropped),
        cmocka_unit_test(writer_refuses_wrong_tensors),
        cmocka_unit_test(missing_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
