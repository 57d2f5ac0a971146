/* loam devices, with cards that the fake driver has (docs/fake_driver.md). */
#include "testing.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "device/cuda/images.h"

static struct process_result devices(const char *card, const char *option) {
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", card, 1), 0);
    struct process_result result = LOAM("devices", option);
    if (result.code != 0) fail_msg("exit code %d: %s", result.code, result.complaints);
    return result;
}

static void expect_text(const char *card, const char *text) {
    struct process_result result = devices(card, NULL);
    if (strstr(result.output, text) == NULL) fail_msg("%s: no '%s' in\n%s", card, text, result.output);
    assert_ptr_equal(strstr(result.output, "cpu      "), result.output);
    assert_string_equal(result.complaints, "");
    process_deinit(&result);
}

static void test_text(void **state) {
    (void)state;
    expect_text("memory=3G,devices=2,capability=90",
                "cuda:1   Fake GPU 1\n         3.00 GiB free of 3.00 GiB\n"
                "         compute 9.0, 4 multiprocessors, 2 copy engines, "
                "reads the host's memory in place\n");
    expect_text("capability=75",
                "not usable: cuda: device 0, Fake GPU 0, has compute capability 7.5, expected 8.0");
    expect_text("fail=cuDevicePrimaryCtxRetain:1:2",
                "not usable: cuda: opening a device: CUDA_ERROR_OUT_OF_MEMORY");
    expect_text("devices=0", "no cuda  cuda: no NVIDIA GPU was found\n");
    expect_text("version=11080", "no cuda  cuda: the NVIDIA driver is of CUDA 11.8, expected 12.0 or newer");
}

static json_t *devices_json(const char *card) {
    struct process_result result = devices(card, "--json");
    json_error_t why;
    json_t *root = json_loads(result.output, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) fail_msg("%s", why.text);
    process_deinit(&result);
    return root;
}

static void test_json(void **state) {
    (void)state;
    json_t *root = devices_json("memory=1G,integrated=1");
    json_t *list = json_object_get(root, "devices"), *card = json_array_get(list, 1);
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "cpu");
    assert_string_equal(json_string_value(json_object_get(card, "name")), "cuda:0");
    assert_int_equal(json_integer_value(json_object_get(card, "memory_bytes")), 1 << 30);
    assert_int_equal(json_integer_value(json_object_get(card, "memory_free_bytes")), 1 << 30);
    assert_non_null(
        strstr(json_string_value(json_object_get(card, "abilities")), "memory shared with the host"));
    /* a build without clang-19 has no kernels, and says so */
    assert_int_equal(json_object_get(card, "not_usable") == NULL, cuda_image_count > 0);
    assert_null(json_object_get(root, "no_cuda"));
    json_decref(root);
    root = devices_json("devices=0");
    assert_int_equal(json_array_size(json_object_get(root, "devices")), 1);
    assert_string_equal(json_string_value(json_object_get(root, "no_cuda")), "cuda: no NVIDIA GPU was found");
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
