/* dense: exact attention over everything a sequence has stored.
 *
 * For one layer of a step: the rows' new K and V go into the cache, then every query attends over all rows
 * up to its own position (or over the layer's window).  The sequences' room must have been reserved up to
 * their last new position; their lengths are the engine's to raise, after the last layer.
 * Thread: the engine's.
 */
#ifndef LOAM_ATTENTION_DENSE_H
#define LOAM_ATTENTION_DENSE_H

#include <stddef.h>
#include <stdint.h>

#include "cache/kv_cache.h"
#include "device/device.h"

struct dense_step {
    size_t layer_index;
    size_t head_count, kv_head_count;
    float scale, softcap; /* of the scores; softcap 0: none */
    uint64_t window;      /* 0: full */
    const float *q;       /* [rows][q_stride]: head_count heads of k_dimension, RoPE applied */
    const float *k, *v;   /* [rows][k_stride], [rows][v_stride]: kv_head_count heads each */
    size_t q_stride, k_stride, v_stride;
    float *out; /* [rows][out_stride]: head_count heads of v_dimension */
    size_t out_stride;
    struct kv_sequence *const *sequences; /* [item_count] */
    struct attend_item *items;            /* [item_count]; rows and positions given, views filled in here */
    size_t item_count;
};

/* Puts the layer's append and attend on the stream; items must stay until it has run. */
void dense_attend(struct stream *stream, const struct device *device, const struct dense_step *step);

#endif
