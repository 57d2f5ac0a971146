/* The bundled model must find needles, through a selection nearly as well as with full attention, and hardly at all
 * when it sees only the first and the last tokens: a fast subset of `loam eval ruler` that a broken selection fails.
 *
 * 16 needles of 7 digits in 2,048 tokens, of which a step may read 256 per KV head.  The samples are fixed by the
 * seed; greedy answers differ between instruction sets only by rounding, which the thresholds leave room for. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"

enum { PRESETS = 4 };
static const char *const presets[PRESETS] = {"full", "hata:256", "quest:1024", "streaming:256"};
static double found[PRESETS]; /* 0 to 1 */

static int evaluate(void **state) {
    (void)state;
    const char *json_path = scratch_path("retrieval.json");
    struct process_result result = process_run(&(struct process_request){
        .arguments =
            (const char *const[]){"eval", "ruler", "-m", MODEL, "--tasks", "niah_single_2,niah_multikey_2",
                                  "--lengths", "2048", "--samples", "8", "--seed", "1", "--preset",
                                  "full,hata:256,quest:1024,streaming:256", "--json", json_path, NULL},
        .timeout_seconds = 280});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    fputs(result.output, stdout);
    process_deinit(&result);
    json_error_t error;
    json_t *root = json_load_file(json_path, 0, &error), *row;
    if (root == NULL) fail_msg("%s", error.text);
    size_t index;
    json_array_foreach(json_object_get(root, "results"), index, row) for (size_t p = 0; p < PRESETS; p++) {
        if (strcmp(json_string_value(json_object_get(row, "preset")), presets[p]) != 0) continue;
        assert_int_equal(json_integer_value(json_object_get(row, "samples")), 8);
        found[p] += json_number_value(json_object_get(row, "score")) / 2;
    }
    json_decref(root);
    return 0;
}

static void full_attention_finds(void **state) {
    (void)state;
    if (found[0] < 0.8) fail_msg("full: %.3f", found[0]);
}

static void selections_find_nearly_as_much(void **state) {
    (void)state;
    for (size_t p = 1; p < 3; p++)
        if (found[p] < found[0] - 0.2) fail_msg("%s: %.3f, full %.3f", presets[p], found[p], found[0]);
}

static void the_window_alone_does_not(void **state) {
    (void)state;
    if (found[3] > 0.45) fail_msg("%s: %.3f", presets[3], found[3]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention_finds),
        cmocka_unit_test(selections_find_nearly_as_much),
        cmocka_unit_test(the_window_alone_does_not),
    };
    return cmocka_run_group_tests(tests, evaluate, NULL);
}
