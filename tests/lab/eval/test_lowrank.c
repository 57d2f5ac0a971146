/* The infinigen preset through the whole engine on the bundled model and its committed calibration: how many of the
 * tokens with the most attention its partial keys find, and the answers it gives.  The same thresholds must fail with a
 * skew that does nothing: the identity, with which partial keys are the first columns of the keys as they are.  (All
 * columns together would still give the exact product: nothing but a threshold sees it.) */
#include "testing.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broken_calibration.h"
#include "cli/process.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano"

static char broken_model[200];

/* [kv heads][columns][columns] halves. */
static void set_identity(uint8_t *data, size_t rows, size_t columns) {
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < columns; i++) {
            uint16_t half = row % columns == i ? 0x3c00 : 0;
            memcpy(data + 2 * (row * columns + i), &half, sizeof half);
        }
}

static int break_skew(void **state) {
    (void)state;
    broken_calibration_write("skew", set_identity, broken_model);
    return 0;
}

static json_t *evaluate(const char *const *arguments, const char *json_path) {
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
    json_t *root = json_load_file(json_path, 0, NULL);
    assert_non_null(root);
    return root;
}

/* The mean of a figure over the results of a preset whose name begins so. */
static double mean_of(const json_t *root, const char *preset, const char *figure, json_int_t layer_first) {
    double sum = 0;
    size_t count = 0, index;
    json_t *row;
    json_array_foreach(json_object_get(root, "results"), index, row) {
        if (strncmp(json_string_value(json_object_get(row, "preset")), preset, strlen(preset)) != 0) continue;
        if (json_integer_value(json_object_get(row, "layer")) < layer_first) continue;
        sum += json_number_value(json_object_get(row, figure));
        count++;
    }
    assert_true(count > 0);
    return sum / (double)count;
}

/* How many of the 5% of tokens with the most attention were found by 5%, and how many are in the window; the first
 * layer attends to little but the begin token. */
static double recall(const char *model, double *of_window) {
    const char *json = scratch_path("recall.json");
    json_t *root =
        evaluate((const char *const[]){"eval", "recall", "-m", model, "--preset",
                                       "infinigen:dense=0:5%,streaming:dense=0:5%", "--lengths", "2048",
                                       "--stretch", "8", "--chunks", "1", "-q", "--json", json, NULL},
                 json);
    double found = mean_of(root, "infinigen", "top", 1);
    *of_window = mean_of(root, "streaming", "top", 1);
    json_decref(root);
    return found;
}

static double share_answered(const char *model, double *of_full) {
    const char *json = scratch_path("answers.json");
    json_t *root =
        evaluate((const char *const[]){"eval", "ruler", "-m", model, "--tasks",
                                       "niah_single_2,niah_multikey_1,niah_multiquery", "--shared-text",
                                       "niah", "--lengths", "2048", "--samples", "4", "--preset",
                                       "full,infinigen:dense=0", "-q", "--json", json, NULL},
                 json);
    double found = mean_of(root, "infinigen", "score", 0);
    *of_full = mean_of(root, "full", "score", 0);
    json_decref(root);
    return found;
}

static bool recalls(double found, double of_window) { return found >= 2.2 * of_window; }
static bool answers(double found, double of_full) { return found >= of_full - 0.2; }

static void partial_keys_find_what_is_attended_to(void **state) {
    (void)state;
    double window, found = recall(MODEL ".gguf", &window), broken = recall(broken_model, &window);
    print_message("top tokens found: %.3f, by a broken skew %.3f, in the window %.3f\n", found, broken,
                  window);
    assert_true(recalls(found, window));
    assert_false(recalls(broken, window));
}

static void partial_keys_answer(void **state) {
    (void)state;
    double full, found = share_answered(MODEL ".gguf", &full), broken = share_answered(broken_model, &full);
    print_message("answers found: %.3f, by a broken skew %.3f, with full attention %.3f\n", found, broken,
                  full);
    assert_true(full >= 0.8);
    assert_true(answers(found, full));
    assert_false(answers(broken, full));
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_keys_find_what_is_attended_to),
        cmocka_unit_test(partial_keys_answer),
    };
    return cmocka_run_group_tests(tests, break_skew, NULL);
}
