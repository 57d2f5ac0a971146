/* --import-heads takes what DuoAttention published, as it was published: its scores of Llama-3-8B-Gradient-1048k. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lab/calibrate/calibrate.h"
#include "shared_data.h"

enum { LAYERS = 32, HEADS = 32, KV_HEADS = 8 }; /* of Llama-3-8B */

static char path[512];

/* The number in a column of a line, read another way than the importer does. */
static double published(size_t layer, size_t kv_head) {
    char line[1024];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (size_t i = 0; i <= layer; i++) assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    char *at = line;
    double value = 0;
    for (size_t i = 0; i <= kv_head; i++) value = strtod(at, &at);
    return value;
}

static void scores_come_in(void **state) {
    (void)state;
    struct error error;
    struct calibration_result result = {
        .layer_count = LAYERS, .head_count = HEADS, .kv_head_count = KV_HEADS};
    result.importance = calloc(LAYERS * HEADS, sizeof *result.importance);
    assert_ok(calibrate_import_heads(&result, path, &error), error);
    assert_string_equal(result.importance_source, path);
    size_t retrieval = 0;
    for (size_t i = 0; i < LAYERS * HEADS; i++) {
        double expected = fmin(1, fmax(0, published(i / HEADS, i % HEADS / (HEADS / KV_HEADS))));
        if (fabs((double)result.importance[i] - expected) > 1e-6)
            fail_msg("layer %zu, head %zu: %g, expected %g", i / HEADS, i % HEADS,
                     (double)result.importance[i], expected);
        retrieval += result.importance[i] > 0.5f;
    }
    print_message("%zu of %d heads above 0.5\n", retrieval, LAYERS * HEADS);
    assert_in_range(retrieval, LAYERS * HEADS / 10, LAYERS * HEADS * 9 / 10);
    result.layer_count = LAYERS - 1; /* another model's shape */
    assert_int_equal(calibrate_import_heads(&result, path, &error), STATUS_USAGE);
    calibration_result_deinit(&result);
}

int main(void) {
    if (!shared_path("heads/Llama-3-8B-Instruct-Gradient-1048k.tsv", path)) {
        puts("skipped: no published scores (set LOAM_SHARED to the folder that holds data/heads)");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores_come_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
