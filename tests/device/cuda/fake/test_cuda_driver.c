/* The loader: no driver, half a one, one that is too old, one without a card, and one that answers. */
#include "testing.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/driver.h"
#include "device/cuda/fake/fake_control.h"

static void expect_refused(const char *library, const char *settings, enum status status, const char *text) {
    struct cuda_driver driver;
    struct error error = {0};
    (void)setenv("FAKE_CUDA", settings, 1);
    assert_int_equal(cuda_driver_open(&driver, library, &error), status);
    if (strstr(error.message, text) == NULL) fail_msg("\"%s\", expected \"%s\" in it", error.message, text);
    assert_null(strchr(error.message, '\n'));
    assert_null(driver.handle);
}

static void test_refused(void **state) {
    (void)state;
    expect_refused("/nonexistent/libcuda.so.1", "", STATUS_UNSUPPORTED,
                   "cuda: no NVIDIA driver: /nonexistent/libcuda.so.1");
    expect_refused(PARTIAL_LIBRARY, "", STATUS_UNSUPPORTED, "cuda: the NVIDIA driver lacks cu");
    expect_refused(FAKE_LIBRARY, "version=11080", STATUS_UNSUPPORTED,
                   "cuda: the NVIDIA driver is of CUDA 11.8, expected 12.0 or newer (driver 525)");
    expect_refused(FAKE_LIBRARY, "devices=0", STATUS_UNSUPPORTED, "cuda: no NVIDIA GPU was found");
    expect_refused(FAKE_LIBRARY, "fail=cuInit:1:999", STATUS_FAILED,
                   "cuda: starting the driver: CUDA_ERROR_UNKNOWN (999, unknown error)");
    /* a number that the driver has no name for */
    expect_refused(FAKE_LIBRARY, "fail=cuInit:1:803", STATUS_FAILED, "an unknown error (803, no text)");
}

static void test_properties(void **state) {
    (void)state;
    struct cuda_driver driver;
    struct cuda_properties properties;
    struct error error;
    uint32_t count = 0;
    (void)setenv("FAKE_CUDA", "version=12020,capability=90,memory=3G,devices=2", 1);
    assert_ok(cuda_driver_open(&driver, FAKE_LIBRARY, &error), error);
    assert_int_equal(driver.version, 12020);
    assert_ok(cuda_device_count(&driver, &count, &error), error);
    assert_int_equal(count, 2);
    assert_ok(cuda_properties_read(&driver, 1, &properties, &error), error);
    assert_string_equal(properties.name, "Fake GPU 1");
    assert_int_equal(properties.capability, 90);
    assert_int_equal(properties.memory_bytes, (uint64_t)3 << 30);
    assert_int_equal(properties.copy_engine_count, 2);
    assert_int_equal(properties.shared_bytes_max, 227 << 10);
    assert_true(properties.can_register_host && properties.has_unified_addresses &&
                !properties.is_integrated);
    assert_int_equal(cuda_properties_read(&driver, 2, &properties, &error), STATUS_FAILED);
    cuda_driver_close(&driver);
    cuda_driver_close(&driver);
}

/* A fault that is given later takes the place of those of the start, and "" of all. */
static void test_faults_go(void **state) {
    (void)state;
    struct cuda_driver driver;
    struct error error;
    uint32_t count = 0;
    fake_count_from_here_function *count_from_here;
    (void)setenv("FAKE_CUDA", "fail=cuDeviceGetCount:1:999,fail=cuDeviceGetCount:3:999", 1);
    assert_ok(cuda_driver_open(&driver, FAKE_LIBRARY, &error), error);
    *(void **)&count_from_here = dlsym(driver.handle, "fake_count_from_here");
    assert_non_null(count_from_here);
    assert_int_equal(cuda_device_count(&driver, &count, &error), STATUS_FAILED);
    count_from_here("fail=cuDeviceGetCount:2:999");
    for (int call = 1; call <= 3; call++)
        assert_int_equal(cuda_device_count(&driver, &count, &error), call == 2 ? STATUS_FAILED : STATUS_OK);
    count_from_here("");
    for (int call = 1; call <= 3; call++) assert_ok(cuda_device_count(&driver, &count, &error), error);
    cuda_driver_close(&driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_properties),
                                       cmocka_unit_test(test_faults_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
