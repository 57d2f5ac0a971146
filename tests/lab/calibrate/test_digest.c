/* A calibration of which any byte of a matrix has changed is refused. */
#include "testing.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/calibration.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"

struct rig {
    struct device *device;
    struct model *model;
    struct error error;
};

static void rig_open(struct rig *rig, const char *model_file) {
    const struct device_options options = {.thread_count = 1};
    assert_ok(device_cpu_create(&rig->device, &options, &rig->error), rig->error);
    assert_ok(model_load(&rig->model, model_file, rig->device, &rig->error), rig->error);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static void a_changed_byte_is_refused(void **state) {
    (void)state;
    struct rig rig;
    struct calibration *calibration;
    struct gguf gguf;
    struct error error;
    char model_file[200];
    struct tiny_model tiny = tiny_model_default("llama");
    tiny_model_write(&tiny, tiny_model_path("digest.gguf", model_file, sizeof model_file));
    rig_open(&rig, model_file);
    char *path = tiny_calibration_write(rig.model);
    assert_ok(calibration_open(&calibration, rig.model, NULL, &error), error);
    calibration_close(calibration);
    assert_ok(gguf_open(&gguf, path, &error), error);
    size_t cases = 0;
    for (uint64_t i = 0; i < gguf.tensor_count; i++)
        for (int end = 0; end < 2; end++, cases++) {
            const struct gguf_tensor *tensor = &gguf.tensors[i];
            const off_t at =
                (off_t)(tensor->data - gguf.maps[0].data) + (end ? (off_t)tensor->size_bytes - 2 : 0);
            uint8_t byte;
            int file = open(path, O_RDWR | O_CLOEXEC);
            assert_int_equal(pread(file, &byte, 1, at), 1);
            byte ^= 1; /* the lowest bit of a number, which is one still */
            assert_int_equal(pwrite(file, &byte, 1, at), 1);
            assert_int_equal(calibration_open(&calibration, rig.model, NULL, &error), STATUS_MODEL);
            if (strstr(error.message, "digest") == NULL) fail_msg("%s", error.message);
            byte ^= 1;
            assert_int_equal(pwrite(file, &byte, 1, at), 1);
            close(file);
        }
    assert_true(cases > 4);
    gguf_close(&gguf);
    assert_ok(calibration_open(&calibration, rig.model, NULL, &error), error);
    calibration_close(calibration);
    rig_close(&rig);
    unlink(path), unlink(model_file);
    free(path);
}

/* The bundled model's calibration has a digest: without it a changed byte would pass. */
static void the_bundled_one_has_a_digest(void **state) {
    (void)state;
    struct rig rig;
    struct calibration *calibration;
    struct gguf gguf;
    struct error error;
    rig_open(&rig, LOAM_SOURCE_DIR "/models/loam-nano.gguf");
    assert_ok(calibration_open(&calibration, rig.model, NULL, &error), error);
    assert_non_null(calibration);
    assert_ok(gguf_open(&gguf, calibration_file(calibration), &error), error);
    assert_non_null(gguf_find(&gguf, CALIBRATION_KEY "digest"));
    gguf_close(&gguf);
    calibration_close(calibration);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_changed_byte_is_refused),
                                       cmocka_unit_test(the_bundled_one_has_a_digest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
