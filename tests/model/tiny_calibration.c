#include "model/tiny_calibration.h"

#include <stdlib.h>

#include "attention/reuse_thresholds.h"
#include "base/random.h"
#include "lab/calibrate/calibrate.h"
#include "model/calibration.h"
#include "tensor/half.h"
#include "testing.h"

char *tiny_calibration_write(const struct model *model) {
    const struct model_config *config = &model->config;
    size_t columns = config->kv_head_count * config->k_dimension * config->k_dimension;
    size_t halves = config->layer_count * columns, heads = config->layer_count * config->head_count;
    uint16_t *skew = calloc(halves, sizeof *skew);
    const size_t codes = config->layer_count * config->kv_head_count * config->k_dimension * TINY_HASH_BITS;
    uint16_t *hash = calloc(codes, sizeof *hash);
    float *zeros = calloc(heads * CALIBRATE_QUANTILES, sizeof *zeros);
    float *importance = calloc(heads, sizeof *importance), *ones = calloc(heads, sizeof *ones);
    struct random random;
    struct error error;
    char *path;
    random_init(&random, 7);
    for (size_t i = 0; i < halves; i++) skew[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < codes; i++) hash[i] = float_to_half((float)random_normal(&random));
    for (size_t i = 0; i < heads; i++)
        ones[i] = 1; /* by the text no head is hard to reuse, in decode all are */
    for (size_t layer = 0; layer < config->layer_count; layer++)
        importance[layer * config->head_count] = layer % 2 == 0 ? 1 : 0.5F;
    /* Half of the KV heads lose less by a reused list than the others: they reuse what they have, those nothing. */
    const size_t lanes = kv_layer_lane(config->kv_groups, config->kv_head_count, config->layer_count, 0);
    struct hash_learned *learned = calloc(lanes, sizeof *learned);
    struct reuse_point *reuse = calloc(lanes * REUSE_CURVE_POINTS, sizeof *reuse);
    for (size_t i = 0; i < lanes * REUSE_CURVE_POINTS; i++) {
        const size_t point = i % REUSE_CURVE_POINTS;
        const float hits = 1 - (float)point / (REUSE_CURVE_POINTS - 1);
        reuse[i] = (struct reuse_point){(float)reuse_curve_thresholds[point], hits,
                                        i / REUSE_CURVE_POINTS % 2 == 0 ? hits : 2 * hits};
    }
    const struct calibration_result result = {.layer_count = config->layer_count,
                                              .head_count = config->head_count,
                                              .kv_head_count = config->kv_head_count,
                                              .k_dimension = config->k_dimension,
                                              .options = {.bits = {TINY_HASH_BITS}, .bits_count = 1},
                                              .hash = {hash},
                                              .learned = {learned},
                                              .skew = skew,
                                              .skew_kept = zeros,
                                              .similarity = ones,
                                              .similarity_decoded = zeros,
                                              .similarity_quantiles = zeros,
                                              .importance = importance,
                                              .alone = zeros,
                                              .sensitivity = zeros,
                                              .reuse = reuse,
                                              .importance_source = "none"};
    assert_ok(calibration_path(model->gguf.path, &path, &error), error);
    assert_ok(calibration_write(&result, model, path, &error), error);
    free(zeros);
    free(importance);
    free(ones);
    free(skew);
    free(hash);
    free(learned);
    free(reuse);
    return path;
}
