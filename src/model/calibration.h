/* calibration: what was learned from a model by `loam calibrate`, in a GGUF file beside it (docs/calibration.md).
 *
 * The file belongs to one model file: its fingerprint is over the model's metadata that matter, its table of
 * tensors and samples of their bytes.  It guards against mix-ups, not against malice.  Everything in the file is
 * checked before it is used: shapes, types, finite numbers, scores in their ranges.  Thread: any, after open.
 */
#ifndef LOAM_MODEL_CALIBRATION_H
#define LOAM_MODEL_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"

#define CALIBRATION_ARCHITECTURE "loam-calibration"
#define CALIBRATION_KEY          "loam.calibration." /* before version, fingerprint ... */

enum { CALIBRATION_VERSION = 1, CALIBRATION_FINGERPRINT_BYTES = 17 /* 16 hexadecimal digits and the zero */ };

/* Reads some 1,000 bytes of every tensor. */
void calibration_fingerprint(const struct model *model, char text[CALIBRATION_FINGERPRINT_BYTES]);

/* Over the names and bytes of a calibration's tensors, one after another; begins as CALIBRATION_DIGEST_BEGIN. */
#define CALIBRATION_DIGEST_BEGIN UINT64_C(0xcbf29ce484222325)
uint64_t calibration_digest(uint64_t digest, const char *name, size_t name_bytes, const void *data,
                            size_t bytes);

/* MODEL.calib.gguf for MODEL.gguf (of a split model, of its first file); newly allocated. */
enum status calibration_path(const char *model_path, char **path, struct error *error) STATUS_CHECKED;

struct calibration;

/* path NULL: beside the model, and when there is none, STATUS_OK with *calibration = NULL.  A file that is damaged,
 * of another kind or of another model is STATUS_MODEL with the reason. */
enum status calibration_open(struct calibration **calibration, const struct model *model, const char *path,
                             struct error *error) STATUS_CHECKED;
void calibration_close(struct calibration *calibration); /* NULL allowed */
const char *calibration_file(const struct calibration *calibration);

/* A layer's matrices, [kv_head_count][k_dimension][*columns] halves; NULL: there is none.  kind: "hash" (columns:
 * bits) or "skew" (columns: most important first).  *columns: how many are wanted, 0: whatever there is; then how
 * many were found.  A hash has them exactly, a skew at least.  context: the struct calibration (a
 * select_calibration's find). */
const uint16_t *calibration_find(void *context, const char *kind, size_t layer_index, size_t *columns);

/* [layer_count][head_count], or NULL: not in the file. */
const float *calibration_head_importance(const struct calibration *calibration);  /* 0..1: CLO's s_i */
const float *calibration_query_similarity(const struct calibration *calibration); /* -1..1: CLO's average */
/* [layer_count][CALIBRATION_ROUNDINGS] relative errors of a layer's attention with K or V rounded, or NULL. */
enum calibration_rounding {
    CALIBRATION_K8,
    CALIBRATION_V8,
    CALIBRATION_K4,
    CALIBRATION_V4,
    CALIBRATION_ROUNDINGS
};
const float *calibration_kv_sensitivity(const struct calibration *calibration);

#endif
