/* A real language model on a card that the fake driver has (docs/fake_driver.md): the processor's answer. */
#include "testing.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "device/cuda/images.h"
#include "real_model.h"

/* Each of its tokens leads the next likeliest by more than a nat. */
static struct process_result answer(const char *device, const char *json_path) {
    return LOAM("run", "-q", "-m", REAL_MODEL, "--device", device, "-t", "1", "-c", "128", "--raw", "--temp", "0", "-n",
                "4", "-p", "The capital of France is", "--json", json_path);
}

static void it_answers_as_the_processor_does(void **state) {
    (void)state;
    json_error_t why;
    const char *path = scratch_path("card.json");
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", "seed=2,capability=90", 1), 0);
    struct process_result card = answer("cuda", path), cpu = answer("cpu", scratch_path("cpu.json"));
    if (card.code != 0) fail_msg("exit code %d: %s", card.code, card.complaints);
    assert_int_equal(strncmp(cpu.output, " Paris.", 7), 0);
    assert_string_equal(card.output, cpu.output);
    json_t *root = json_load_file(path, 0, &why), *io = json_object_get(root, "io");
    if (root == NULL) fail_msg("%s", why.text);
    assert_true(json_integer_value(json_object_get(io, "device_launches")) > 0);
    assert_int_equal(json_integer_value(json_object_get(io, "device_captures")), 1);
    assert_true(json_integer_value(json_object_get(io, "device_replays")) > 0);
    json_decref(root);
    process_deinit(&card), process_deinit(&cpu);
}

int main(void) {
    if (real_model_missing() != 0) return 77;
    if (cuda_image_count == 0) {
        puts("skipped: without kernels for cards (there was no clang-19)");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_answers_as_the_processor_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
