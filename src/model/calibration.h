/* calibration: the results of `loam-lab calibrate`, in a GGUF file next to the model (docs/calibration.md).
 *
 * The file belongs to one model file, identified by a fingerprint of the relevant metadata, the table of tensors and
 * samples of the tensors' bytes.  The fingerprint guards against mix-ups, not against malice.  Shapes, types, finite
 * numbers and score ranges are checked before use.  Thread: any, after open.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"

#define CALIBRATION_ARCHITECTURE "loam-calibration"
#define CALIBRATION_KEY          "loam.calibration." /* before version, fingerprint ... */

enum { CALIBRATION_VERSION = 1, CALIBRATION_FINGERPRINT_BYTES = 17 /* 16 hexadecimal digits and the zero */ };

/* Reads about 1,000 bytes of every tensor. */
void calibration_fingerprint(const struct gguf *gguf, const struct model_config *config,
                             char text[CALIBRATION_FINGERPRINT_BYTES]);

/* Adds one tensor's name and bytes to the digest of a calibration.  The first digest is CALIBRATION_DIGEST_BEGIN. */
#define CALIBRATION_DIGEST_BEGIN UINT64_C(0xcbf29ce484222325)
uint64_t calibration_digest(uint64_t digest, const char *name, size_t name_bytes, const void *data, size_t bytes);

/* What lies beside MODEL.gguf (the first file of a split model): MODEL and the ending; newly allocated. */
enum status model_companion_path(const char *model_path, const char *ending, char **path, struct error *error)
    STATUS_CHECKED;
/* MODEL.calib.gguf; newly allocated. */
enum status calibration_path(const char *model_path, char **path, struct error *error) STATUS_CHECKED;

struct calibration;

/* path NULL: the model's own; if it is missing, STATUS_OK and *calibration = NULL.  STATUS_MODEL: the file is
 * damaged, of another kind or of another model; the message says which. */
enum status calibration_open(struct calibration **calibration, const struct model *model, const char *path,
                             struct error *error) STATUS_CHECKED;
void calibration_close(struct calibration *calibration); /* NULL allowed */
const char *calibration_file(const struct calibration *calibration);

/* A layer's matrices, [kv_head_count][k_dimension][*columns] halves; NULL: none.  kind: "hash" (columns are bits) or
 * "skew" (columns by falling importance).  *columns: in, the wanted count, 0: any; out, the count found.  A hash must
 * have exactly the wanted count, a skew at least.  context: the struct calibration.  This is select_calibration's
 * find. */
const uint16_t *calibration_find(void *context, const char *kind, size_t layer_index, size_t *columns);

/* [layer_count][head_count]; NULL: not in the file. */
const float *calibration_head_importance(const struct calibration *calibration); /* 0..1: CLO's s_i */
/* -1..1: CLO's average, of a text's tokens and of decode steps */
const float *calibration_query_similarity(const struct calibration *calibration);
const float *calibration_decoded_similarity(const struct calibration *calibration);
/* The columns of calibration_kv_sensitivity: which of K and V is rounded, and to how many bits. */
enum calibration_rounding { CALIBRATION_K8, CALIBRATION_V8, CALIBRATION_K4, CALIBRATION_V4, CALIBRATION_ROUNDINGS };
/* [layer_count][kv_head_count][points][3]: threshold, hits and loss of reuse (attention/reuse_thresholds.h); NULL: not
 * in the file.  points must be what the caller knows. */
const float *calibration_reuse_curve(const struct calibration *calibration, size_t points);
/* [layer_count][CALIBRATION_ROUNDINGS]: relative error of a layer's attention with K or V rounded; NULL: not in the
 * file. */
const float *calibration_kv_sensitivity(const struct calibration *calibration);
