#include "broken_calibration.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/process.h"
#include "format/gguf.h"
#include "model/calibration.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano"

/* The digest of what is there now, in place of that of the matrices before: a file that was damaged is refused. */
static void digest_write(const struct gguf *gguf, uint8_t *bytes) {
    uint64_t digest = CALIBRATION_DIGEST_BEGIN;
    struct gguf_string old = {0};
    struct error error;
    char text[17];
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        digest = calibration_digest(digest, tensor->name.text, (size_t)tensor->name.length,
                                    bytes + (tensor->data - gguf->maps[0].data), (size_t)tensor->size_bytes);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    assert_ok(gguf_get_string(gguf, CALIBRATION_KEY "digest", &old, &error), error);
    assert_int_equal(old.length, strlen(text));
    memcpy(bytes + ((const uint8_t *)old.text - gguf->maps[0].data), text, strlen(text));
}

void broken_calibration_write(const char *kind, calibration_breaker *breaker, char model_path[200]) {
    struct gguf gguf = {0};
    struct error error;
    char path[220];
    snprintf(model_path, 200, "%s", scratch_path("broken.gguf"));
    snprintf(path, sizeof path, "%s", scratch_path("broken.calib.gguf"));
    assert_int_equal(symlink(MODEL ".gguf", model_path), 0);
    assert_ok(gguf_open(&gguf, MODEL ".calib.gguf", &error), error);
    size_t size = (size_t)gguf.maps[0].size_bytes, count = 0;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    memcpy(bytes, gguf.maps[0].data, size);
    for (uint64_t i = 0; i < gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf.tensors[i];
        const char *name = strchr(tensor->name.text + strlen("blk."), '.');
        if (strncmp(tensor->name.text, "blk.", 4) != 0 || strncmp(name + 1, kind, strlen(kind)) != 0)
            continue;
        size_t columns = (size_t)tensor->dimensions[0];
        breaker(bytes + (tensor->data - gguf.maps[0].data), (size_t)tensor->size_bytes / 2 / columns,
                columns);
        count++;
    }
    assert_true(count > 3);
    digest_write(&gguf, bytes);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    free(bytes);
    gguf_close(&gguf);
}
