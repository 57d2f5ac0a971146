/* Models in several files, and files that are shorter than they say. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/gguf_draft.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/loam-split-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static void part_path(char path[128], unsigned number, unsigned count) {
    snprintf(path, 128, "%s/m-%05u-of-%05u.gguf", folder, number, count);
}

static void write_file(const char *path, const void *data, size_t size_bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size_bytes, file), size_bytes);
    assert_int_equal(fclose(file), 0);
}

struct part_plan {
    uint32_t number, count, tensor_count; /* what the keys say */
    const char *tensor_name;              /* each part holds one tensor, or NULL: none */
};

static void write_part(const char *path, const struct part_plan *plan) {
    static struct draft draft;
    static const uint64_t dimensions[] = {8};
    memset(&draft, 0, sizeof draft);
    draft_header(&draft, 3, plan->tensor_name != NULL, 4);
    draft_key_string(&draft, "general.architecture", "llama");
    draft_key_uint(&draft, "split.no", GGUF_UINT16, plan->number);
    draft_key_uint(&draft, "split.count", GGUF_UINT16, plan->count);
    draft_key_uint(&draft, "split.tensors.count", GGUF_INT32, plan->tensor_count);
    if (plan->tensor_name != NULL) draft_tensor(&draft, plan->tensor_name, TENSOR_F32, 1, dimensions, 0);
    draft_align(&draft, 32);
    for (uint8_t i = 0; i < 32; i++) draft_u8(&draft, (uint8_t)(plan->number * 50 + i));
    write_file(path, draft.data, draft.size_bytes);
}

static const struct part_plan good[] = {{0, 3, 3, "a"}, {1, 3, 3, "b"}, {2, 3, 3, "c"}};

static void write_parts(const struct part_plan plans[3]) {
    char path[128];
    for (unsigned i = 0; i < 3; i++) {
        part_path(path, i + 1, 3);
        write_part(path, &plans[i]);
    }
}

static void remove_parts(void) {
    char path[128];
    for (unsigned i = 0; i < 3; i++) {
        part_path(path, i + 1, 3);
        unlink(path);
    }
}

static void three_parts(void **state) {
    (void)state;
    char path[128];
    struct gguf gguf;
    struct error error;
    write_parts(good);
    part_path(path, 1, 3);
    assert_ok(gguf_open(&gguf, path, &error), error);
    assert_int_equal(gguf.tensor_count, 3);
    assert_int_equal(gguf.file_count, 3);
    for (uint8_t i = 0; i < 3; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        const struct gguf_tensor *tensor = gguf_find_tensor(&gguf, name);
        assert_non_null(tensor);
        assert_int_equal(tensor->file_index, i);
        for (uint8_t j = 0; j < 32; j++) assert_int_equal(tensor->data[j], i * 50 + j);
    }
    gguf_close(&gguf);
    remove_parts();
}

/* The three files as planned, opened by their first: refused with file and reason. */
static void check_refused(const struct part_plan plans[3], enum status status, const char *file,
                          const char *found) {
    char path[128];
    struct gguf gguf;
    struct error error = {0};
    write_parts(plans);
    part_path(path, 1, 3);
    assert_int_equal(gguf_open(&gguf, path, &error), status);
    if (strstr(error.message, file) == NULL || strstr(error.message, found) == NULL)
        fail_msg("expected '%s' and '%s' in: %s", file, found, error.message);
    gguf_close(&gguf);
    remove_parts();
}

static void foreign_parts(void **state) {
    (void)state;
    struct part_plan plans[3];
#define PLAN() memcpy(plans, good, sizeof good)
    PLAN();
    plans[1].count = 4;
    check_refused(plans, STATUS_MODEL, "m-00002-of-00003.gguf", "key 'split.count': found 4, expected 3");
    PLAN();
    plans[2].number = 1;
    check_refused(plans, STATUS_MODEL, "m-00003-of-00003.gguf", "key 'split.no': found 1, expected 2");
    PLAN();
    plans[2].tensor_count = 30;
    check_refused(plans, STATUS_MODEL, "m-00003-of-00003.gguf", "key 'split.tensors.count': found 30");
    PLAN();
    plans[1].count = 1; /* a whole model of its own */
    check_refused(plans, STATUS_MODEL, "m-00002-of-00003.gguf", "key 'split.count': found 1, expected 3");
    PLAN();
    plans[2].tensor_name = "a";
    check_refused(plans, STATUS_MODEL, "m-00001-of-00003.gguf", "tensor 'a': name: found twice");
    PLAN();
    plans[2].tensor_name = NULL;
    check_refused(plans, STATUS_MODEL, "m-00001-of-00003.gguf", "found 3, the files hold 2");
    PLAN();
    plans[0].number = 1;
    check_refused(plans, STATUS_MODEL, "m-00001-of-00003.gguf", "this is part 2 of 3, give the first");
    PLAN();
    plans[0].count = 300;
    check_refused(plans, STATUS_MODEL, "m-00001-of-00003.gguf",
                  "'split.count': found 300, expected at most 256");
    PLAN();
    plans[0].count = 2; /* the name says 3 */
    check_refused(plans, STATUS_MODEL, "m-00001-of-00003.gguf", "must end in -00001-of-00002.gguf");
#undef PLAN
}

static void missing_parts(void **state) {
    (void)state;
    char path[128], other[128];
    struct gguf gguf;
    struct error error = {0};
    write_parts(good);
    part_path(other, 2, 3);
    unlink(other);
    part_path(path, 1, 3);
    assert_int_equal(gguf_open(&gguf, path, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "m-00002-of-00003.gguf"));
    write_file(other, "", 0);
    assert_int_equal(gguf_open(&gguf, path, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "m-00002-of-00003.gguf: the file is empty"));
    write_file(other, "GGUF", 4);
    assert_int_equal(gguf_open(&gguf, path, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "m-00002-of-00003.gguf: version: needs 4 bytes"));
    part_path(path, 3, 3);
    assert_int_equal(gguf_open(&gguf, path, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "this is part 3 of 3, give the first"));
    remove_parts();
}

static void renamed_first_part(void **state) {
    (void)state;
    char path[128];
    struct gguf gguf;
    struct error error = {0};
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    write_part(path, &good[0]);
    assert_int_equal(gguf_open(&gguf, path, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "so the name must end in -00001-of-00003.gguf"));
    unlink(path);
}

static void shorter_than_it_says(void **state) {
    (void)state;
    static struct draft draft;
    char path[128];
    struct gguf gguf;
    struct error error = {0};
    snprintf(path, sizeof path, "%s/short.gguf", folder);
    draft_small(&draft);
    const uint64_t sizes[] = {
        1, 23, 24, draft.size_bytes / 2, draft_offset(&draft, "data"), draft.size_bytes - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_file(path, draft.data, sizes[i]);
        assert_int_equal(gguf_open(&gguf, path, &error), STATUS_MODEL);
        assert_non_null(strstr(error.message, "short.gguf: "));
    }
    write_file(path, draft.data, draft.size_bytes);
    assert_ok(gguf_open(&gguf, path, &error), error);
    gguf_close(&gguf);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_parts),          cmocka_unit_test(foreign_parts),
        cmocka_unit_test(missing_parts),        cmocka_unit_test(renamed_first_part),
        cmocka_unit_test(shorter_than_it_says),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
