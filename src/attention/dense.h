/* dense: exact attention over everything a sequence has stored.
 *
 * A layer's step is two halves, because the last layer of a prefill appends the K and V of all its rows but
 * attends only for those whose logits are wanted: dense_append, then dense_attend over the same views.
 * The sequences' room must have been reserved up to their last new position; their lengths are the engine's
 * to raise, after the last layer.  Thread: the engine's.
 */
#ifndef LOAM_ATTENTION_DENSE_H
#define LOAM_ATTENTION_DENSE_H

#include <stddef.h>
#include <stdint.h>

#include "cache/kv_cache.h"
#include "device/device.h"

struct dense_rows { /* a layer's new K and V */
    size_t layer_index, kv_head_count;
    const float *k, *v; /* [rows][k_stride], [rows][v_stride]: kv_head_count heads each, RoPE applied to K */
    size_t k_stride, v_stride;
    struct kv_sequence *const *sequences; /* [item_count] */
    struct attend_item *items;            /* [item_count]; rows and positions given, views filled in here */
    size_t item_count;
};

/* Puts the append on the stream; items must stay until it has run. */
void dense_append(struct stream *stream, const struct device *device, const struct dense_rows *rows);

/* Puts the attention of operation's items on the stream; their views are those that dense_append filled in. */
void dense_attend(struct stream *stream, const struct device *device,
                  const struct attend_operation *operation);

#endif
