/* Any bytes as a calibration beside a model: refused with a reason, or every number that it gives is within the file
 * and within the range that it promises.  FINGERPRINT_FIELD in the bytes stands for this model's fingerprint. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "model/calibration.h"
#include "tensor/half.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FINGERPRINT_FIELD "0123456789abcdef" /* as tools/make_fuzz_seeds.py has it */
enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIMENSION = 8, POINTS_MAX = 4 };

static void check_range(const float *values, size_t count, float min, float max) {
    for (size_t i = 0; values != NULL && i < count; i++) ASSERT(values[i] >= min && values[i] <= max);
}

static void check_matrices(struct calibration *calibration) {
    static const size_t wanted[] = {0, 1, 8, 64, 128, 256, 512};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        for (size_t layer = 0; layer <= LAYERS; layer++)
            for (int skew = 0; skew < 2; skew++) {
                size_t columns = wanted[i];
                const uint16_t *halves =
                    calibration_find(calibration, skew ? "skew" : "hash", layer, &columns);
                if (halves == NULL) continue;
                ASSERT(columns > 0 && columns >= wanted[i]);
                ASSERT(skew || wanted[i] == 0 || columns == wanted[i]);
                for (size_t j = 0; j < KV_HEADS * DIMENSION * columns; j++)
                    ASSERT(isfinite(half_to_float(halves[j])));
            }
}

static void check(struct calibration *calibration) {
    check_matrices(calibration);
    check_range(calibration_head_importance(calibration), (size_t)LAYERS * HEADS, 0, 1);
    check_range(calibration_query_similarity(calibration), (size_t)LAYERS * HEADS, -1, 1);
    check_range(calibration_kv_sensitivity(calibration), (size_t)LAYERS * CALIBRATION_ROUNDINGS, 0, INFINITY);
    for (size_t points = 1; points <= POINTS_MAX; points++)
        check_range(calibration_reuse_curve(calibration, points), (size_t)LAYERS * KV_HEADS * points * 3,
                    -INFINITY, INFINITY);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct layer_config layers[LAYERS] = {
        {.kv = {KV_HEADS, DIMENSION, DIMENSION}}, {.kv = {KV_HEADS, DIMENSION, DIMENSION}, .kv_layer = 1}};
    static struct model model = {.config = {.layers = layers,
                                            .layer_count = LAYERS,
                                            .head_count = HEADS,
                                            .kv_head_count = KV_HEADS,
                                            .k_dimension = DIMENSION,
                                            .v_dimension = DIMENSION}};
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES], path[64];
    struct calibration *calibration;
    struct error error = {0};
    uint8_t *bytes = malloc(size + 1);
    const int file = memfd_create("calibration", MFD_CLOEXEC);
    ASSERT(bytes != NULL && file >= 0);
    if (size > 0) memcpy(bytes, data, size);
    uint8_t *field = size > 0 ? memmem(bytes, size, FINGERPRINT_FIELD, sizeof FINGERPRINT_FIELD - 1) : NULL;
    calibration_fingerprint(&model.gguf, &model.config, fingerprint);
    if (field != NULL) memcpy(field, fingerprint, sizeof FINGERPRINT_FIELD - 1);
    ASSERT(write(file, bytes, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (calibration_open(&calibration, &model, path, &error) == STATUS_OK)
        check(calibration);
    else
        ASSERT(calibration == NULL && error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    calibration_close(calibration);
    close(file);
    free(bytes);
    return 0;
}
