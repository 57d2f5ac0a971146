/* calibrate: everything that `loam-lab calibrate` learns from a model and a text, and the file with the results.
 *
 *   text --> windows through the model (samples.h) --> hash weights   (hash_learn.h)
 *                                                   --> skewing        (skew.h)
 *                                                   --> similarity of adjacent queries (samples.h)
 *                                                   --> what reuse loses, by threshold (reuse_study.h)
 *                                                   --> head importance, K/V sensitivity (layer_study.h)
 *        --> MODEL.calib.gguf (docs/formats.md), read by model/calibration.h
 *
 * Memory: KV of a context of the calibrated tokens, the sampled queries, one head's keys of all windows and the pairs
 * of a training step.  The same seed gives the same file, whatever the number of threads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/reuse_thresholds.h"
#include "base/status.h"
#include "lab/calibrate/hash_learn.h"
#include "lab/calibrate/layer_study.h"
#include "model/model.h"

enum { CALIBRATE_BITS_MAX = 4, CALIBRATE_QUANTILES = 5 };

/* done: the fraction of the work that is done, 0 to 1.  Return true to stop. */
typedef bool calibrate_progress(void *context, const char *stage, double done);

/* Of hash codes.  A step has pairs of batch_queries queries, a multiple of HASH_PAIR_SLOTS, with batch_keys keys
 * each. */
struct calibrate_training {
    size_t epochs, steps, batch_queries, batch_keys;
};

struct calibrate_options {
    size_t window_size; /* tokens */
    size_t window_count, held_out;
    size_t text_queries, probe_queries; /* per window */
    size_t run_windows, run_count;      /* runs of adjacent positions, that what reuse loses is measured in */
    struct {
        size_t windows, count; /* tokens that the model writes behind the text of the first windows */
    } decode;
    size_t bits[CALIBRATE_BITS_MAX], bits_count;
    struct calibrate_training training;
    double keep; /* the fraction of tokens that recall is measured at */
    size_t sinks, recent;
    double lambda; /* of head importance */
    uint64_t seed;
    int32_t bos; /* -1: none */
    cpu_mask mask;
    calibrate_progress *progress; /* may be NULL */
    void *progress_context;
};
struct calibrate_options calibrate_options_default(void);
/* Reduces options to what the text and the model's context hold: window_count * window_size tokens are wanted, a
 * shorter text has fewer or shorter windows.  STATUS_USAGE: too short for 4 windows of 512. */
enum status calibrate_options_fit(struct calibrate_options *options, const struct model *model, size_t token_count,
                                  struct error *error) STATUS_CHECKED;

struct calibration_result {
    size_t layer_count, head_count, kv_head_count, k_dimension;
    const struct kv_groups *groups; /* the model's; NULL: all layers have kv_head_count KV heads; below: of those */
    struct calibrate_options options;
    uint16_t *hash[CALIBRATE_BITS_MAX];               /* [layer][kv_head][k_dimension][bits] */
    struct hash_learned *learned[CALIBRATE_BITS_MAX]; /* [layer][kv_head] */
    uint16_t *skew;                                   /* [layer][kv_head][k_dimension][k_dimension] */
    float *skew_kept;                                 /* [layer][kv_head] */
    float *similarity;                                /* [layer][head]: of a text's adjacent queries */
    float *similarity_decoded;                        /* [layer][head]: of adjacent decode steps; NULL: not measured */
    float *similarity_quantiles;                      /* [layer][head][CALIBRATE_QUANTILES]: 0.01 0.1 0.5 0.9 0.99 */
    /* [layer][head]: the head's queries are zero, so it attends to all tokens equally.  Any k tokens are then its true
     * top k, whatever is learned.  Its similarity and quantiles are 0. */
    bool *idle;
    float *importance, *alone;     /* [layer][head] */
    float *sensitivity;            /* [layer][STUDY_ROUNDINGS] */
    struct reuse_point *reuse;     /* [layer][kv_head][REUSE_CURVE_POINTS]; NULL: not measured */
    const char *importance_source; /* "layer-local surrogate", or the file they came from */
};

enum status calibrate_run(struct calibration_result *result, struct model *model, const int32_t *tokens,
                          const struct calibrate_options *options, struct error *error) STATUS_CHECKED;
/* KV heads of a layer: none where it keeps a state; and where one's figures are, by [layer][kv_head] of all layers. */
static inline size_t calibration_kv_heads(const struct calibration_result *result, size_t layer) {
    return kv_layer_heads(result->groups, result->kv_head_count, layer);
}
static inline size_t calibration_lane(const struct calibration_result *result, size_t layer, size_t kv_head) {
    return kv_layer_lane(result->groups, result->kv_head_count, layer, kv_head);
}
/* Whether all query heads of the KV head are idle; its skew_kept is then 0. */
bool calibration_kv_head_is_idle(const struct calibration_result *result, size_t layer, size_t kv_head);
void calibration_result_deinit(struct calibration_result *result); /* safe on a zeroed one */

/* Replaces importance by the scores of a DuoAttention file: a line per layer, a column per KV head (or per query head),
 * separated by tabs or blanks.  Scores are clamped to 0..1, as DuoAttention does, when within 0.05 of it;
 * otherwise, and for other shapes, STATUS_USAGE with the line.  A KV head's score is its group's. */
enum status calibrate_import_heads(struct calibration_result *result, const char *path, struct error *error)
    STATUS_CHECKED;

/* Writes the file atomically: it appears whole or not at all. */
enum status calibration_write(const struct calibration_result *result, const struct model *model, const char *path,
                              struct error *error) STATUS_CHECKED;
