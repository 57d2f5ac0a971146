/* The bundled model must find needles, through a selection nearly as well as with full attention, and hardly at all
 * when it sees only the first and the last tokens: a fast subset of `loam eval ruler` that a broken selection fails,
 * which is shown with hash codes that are all alike.
 *
 * 16 needles of 7 digits in 2,048 tokens, of which a step may read 256 per KV head.  The samples are fixed by the
 * seed; greedy answers differ between instruction sets only by rounding, which the thresholds leave room for. */
#include "testing.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broken_calibration.h"
#include "cli/process.h"

#define MODEL   LOAM_SOURCE_DIR "/models/loam-nano.gguf"
#define PRESETS "full,hata:256,quest:1024,streaming:256"

enum { PRESET_COUNT = 4 };
static const char *const presets[PRESET_COUNT] = {"full", "hata:256", "quest:1024", "streaming:256"};
static double found[PRESET_COUNT]; /* 0 to 1 */

/* Of the presets named; the others' figures stay as they are. */
static void evaluate(const char *model, const char *names, double figures[PRESET_COUNT]) {
    const char *json_path = scratch_path("retrieval.json");
    struct process_result result = process_run(&(struct process_request){
        .arguments = (const char *const[]){"eval", "ruler", "-m", model, "--tasks",
                                           "niah_single_2,niah_multikey_2", "--lengths", "2048", "--samples",
                                           "8", "--seed", "1", "--preset", names, "--json", json_path, NULL},
        .timeout_seconds = 280});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    fputs(result.output, stdout);
    process_deinit(&result);
    json_error_t error;
    json_t *root = json_load_file(json_path, 0, &error), *row;
    if (root == NULL) fail_msg("%s", error.text);
    size_t index;
    json_array_foreach(json_object_get(root, "results"), index, row) for (size_t p = 0; p < PRESET_COUNT;
                                                                          p++) {
        if (strcmp(json_string_value(json_object_get(row, "preset")), presets[p]) != 0) continue;
        assert_int_equal(json_integer_value(json_object_get(row, "samples")), 8);
        figures[p] += json_number_value(json_object_get(row, "score")) / 2;
    }
    json_decref(root);
}

static int evaluate_bundled(void **state) {
    (void)state;
    evaluate(MODEL, PRESETS, found);
    return 0;
}

static void full_attention_finds(void **state) {
    (void)state;
    if (found[0] < 0.8) fail_msg("full: %.3f", found[0]);
}

static bool finds_nearly_as_much(double selected) { return selected >= found[0] - 0.2; }

static void selections_find_nearly_as_much(void **state) {
    (void)state;
    for (size_t p = 1; p < 3; p++)
        if (!finds_nearly_as_much(found[p])) fail_msg("%s: %.3f, full %.3f", presets[p], found[p], found[0]);
}

/* Weights of zero: no bit tells one key from another. */
static void set_zero(uint8_t *data, size_t rows, size_t columns) {
    memset(data, 0, rows * columns * sizeof(uint16_t));
}

static void a_broken_selection_does_not(void **state) {
    (void)state;
    char model[200];
    double broken[PRESET_COUNT] = {0};
    broken_calibration_write("hash_", set_zero, model);
    evaluate(model, presets[1], broken);
    print_message("%s with codes that are all alike: %.3f, as they are %.3f\n", presets[1], broken[1],
                  found[1]);
    assert_false(finds_nearly_as_much(broken[1]));
}

static void the_window_alone_does_not(void **state) {
    (void)state;
    if (found[3] > 0.45) fail_msg("%s: %.3f", presets[3], found[3]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention_finds),
        cmocka_unit_test(selections_find_nearly_as_much),
        cmocka_unit_test(a_broken_selection_does_not),
        cmocka_unit_test(the_window_alone_does_not),
    };
    return cmocka_run_group_tests(tests, evaluate_bundled, NULL);
}
