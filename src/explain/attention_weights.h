/* attention_weights: the softmax weights of a decode step's query heads over all rows that are stored.
 *
 * They are computed once more, from the keys as they are stored, by the kernels of selected attention: the step's own
 * attention may have left rows out.  In a cache of which only a part is in RAM the chunks are fetched, a few at a time.
 * Each chunk is scored alone, so that the sums do not depend on who shares the work.  Thread: the engine's. */
#pragma once

#include "cache/kv_tier.h"
#include "kernels/attention/attention.h"
#include "kernels/mass/mass.h"
#include "model/model.h"

struct attention_weights {
    const struct model *model; /* borrowed */
    struct device *device;     /* borrowed */
    struct stream *stream;     /* owned */
    struct attention_kernels attention;
    struct mass_kernels mass;
    bool in_tiers;
    size_t group; /* query heads of the KV head that is added */
    size_t row_capacity, thread_count, thread_bytes, chunk_bytes;
    float *scores;    /* owned, [most of group][row_capacity]: of a KV head */
    float *m, *s;     /* owned, [chunks][most of group]: the partials of its chunks; the last ones are merged */
    uint8_t *threads; /* owned, [thread_count][thread_bytes]: room of the kernels */
    uint8_t *chunks;  /* owned: copies of those that lie in MEMORY_DEVICE */
};

/* in_tiers: chunks of the engine's KV come and go. */
enum status attention_weights_create(struct attention_weights *weights, const struct model *model, size_t row_capacity,
                                     bool in_tiers, struct error *error) STATUS_CHECKED;
void attention_weights_destroy(struct attention_weights *weights); /* safe after a failed create */
/* Queries of a step whose layer has stored its rows. */
struct attention_query {
    struct kv_sequence *sequence;
    size_t layer_index, kv_head;
    size_t row_count; /* that they see */
    const float *q;   /* [group][k_dimension], post-RoPE */
};
/* Adds their weights to sums: [row_capacity]. */
enum status attention_weights_add(struct attention_weights *weights, const struct attention_query *query, float *sums,
                                  struct error *error) STATUS_CHECKED;
