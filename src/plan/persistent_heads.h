/* persistent_heads: KV heads whose KV stays in RAM whole, since their lists are hard to reuse and their reads do not
 * hide under computation (CLO, section 3.3).
 *
 *   D_i = tau_i - (s_i - epsilon)                                                                     Eq. 11
 *   N_p = T_comp B / mem_head                                                                         Eq. 12, corrected
 *   max(N_d - N_p, 0) of each layer's heads persist, those of the largest D                           Eq. 13
 *
 * s_i is the mean similarity of a head's queries in adjacent decode steps (loam-lab calibrate), aggregated over its
 * group as lookups are; N_d is the number of a layer's heads with D > 0; T_comp are the seconds that a layer of a step
 * takes at the whole context; B is the rate of the tier that is read from; mem_head are the bytes that a head's list is
 * read with.  [clo] prints Eq. 12 as T_comp / (B mem_head), which is no number of heads.
 *
 * Heads with D > 0 choose anew in every step, by the layer's own queries (4.2), whether they stay or not: so where
 * heads stay never changes an answer.  Differs from [clo]: there those that are prefetched reuse.
 *
 * A calibration made before decode steps were profiled gives the similarities of a text's adjacent tokens. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attention/reuse_options.h"
#include "cache/kv_groups.h"

struct persistent_question {
    size_t layer_count, layer_first; /* layers below the first one stay, or are not chosen from */
    size_t head_count, kv_head_count;
    const struct kv_groups *groups; /* borrowed; NULL: all layers have kv_head_count KV heads */
    const struct reuse_options *options;
    const double *thresholds; /* [lane] (cache/kv_groups.h): tau */
    const float *similarity;  /* [layer_count][head_count], -1..1 */
    const float *importance;  /* [layer_count][head_count], 0..1; NULL: all alike */
    size_t prefetchable;      /* N_p */
};

/* What a step computes in a layer at the whole context, in seconds; it grows with the context. */
struct persistent_times {
    double layer;        /* without attention and without a choice */
    double choose;       /* the lists of all heads, of candidates up to the last token */
    double attend;       /* to a chunk of rows of one KV head, on one thread */
    uint64_t chunks;     /* that the lists of a layer fill */
    size_t thread_count; /* of attention */
    uint64_t evaluated;  /* importances that the choice computed */
};
/* T_comp. */
double persistent_compute_seconds(const struct persistent_times *times);
/* N_p: whole heads of a layer that are read within the time of its computation. */
size_t persistent_prefetchable(double compute_seconds, double bytes_per_second, double head_bytes);
/* D of a KV head; NaN: it has no similarity. */
double persistent_difficulty(const struct persistent_question *question, size_t layer, size_t kv_head);
static inline size_t persistent_lane(const struct persistent_question *question, size_t layer, size_t kv_head) {
    return kv_layer_lane(question->groups, question->kv_head_count, layer, kv_head);
}
size_t persistent_layer(const struct persistent_question *question, uint32_t lane); /* the lane's */
static inline size_t persistent_heads_of(const struct persistent_question *question, size_t layer) {
    return kv_layer_heads(question->groups, question->kv_head_count, layer);
}
/* lanes: room for all.  Those that persist, the hardest first; returns how many. */
size_t persistent_choose(const struct persistent_question *question, uint32_t *lanes);
