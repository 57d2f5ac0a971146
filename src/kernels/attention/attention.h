/* attention: softmax(scale * q.k) v over rows of the KV cache, as partials.
 *
 * A partial over a set of rows is (m, s, o): the maximum score, the sum of exp(score - m), and the
 * un-normalised output sum of exp(score - m) * v.  Partials over disjoint rows merge exactly
 * (Milakov and Gimelshein 2018; flash-decoding), so every source of rows is attended when it is
 * ready.  An empty partial is m = -INFINITY, s = 0, o = 0.
 */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention/kv_layout.h"
#include "kernels/variants.h"

/* What a softmax is taken of, of a product of query and key; softcap 0: none. */
static inline float attention_score(float product, float scale, float softcap) {
    return softcap > 0 ? softcap * tanhf(product * scale / softcap) : product * scale;
}

/* A query's rows are attended in ranges that begin at multiples of attention_range_rows, and the partials are merged
 * in the order of the ranges.  So the output of a row depends only on its position, not on which thread attends a
 * range or what else is computed with it. */
enum {
    ATTENTION_RANGE_ROWS = 512 /* minimum: 128 KiB of K and V at 64 elements in f16, 10 us */,
    ATTENTION_RANGES = 32 /* maximum; a window that begins within a range has one more */
};

/* For a query that sees row_count rows. */
static inline uint64_t attention_range_rows(uint64_t row_count) {
    uint64_t rows = ATTENTION_RANGE_ROWS;
    while ((row_count + rows - 1) / rows > ATTENTION_RANGES) rows *= 2;
    return rows;
}

/* Decode: all query heads of one group over rows [row_begin, row_end) of one KV head.  K and V are read once for the
 * group. */
struct attention_decode_args {
    const struct kv_layout *layout;
    const void *const *chunks; /* row r is token r % 64 of chunks[r / 64] */
    uint64_t row_begin, row_end;
    const float *q;  /* [group][q_stride], k_dimension each */
    size_t q_stride; /* floats */
    size_t group;    /* query heads of this KV head, 1..64 */
    float scale;
    float softcap; /* 0: none; else score = softcap * tanh(score / softcap) */
    float *m, *s;  /* [group] */
    float *o;      /* [group][o_stride], v_dimension each */
    size_t o_stride;
    void *scratch;    /* decode_scratch_bytes(group, layout) */
    const void *then; /* the block that the caller reads next, which is prefetched at the end; or NULL */
    /* 0, or the entries of `chunks`.  A line of the entry ATTENTION_CHUNKS_AHEAD ahead, beyond row_end too, is
     * prefetched, so that its page is in the TLB when it is read (bench/lab/prefetches.md). */
    size_t chunk_count;
};
enum { ATTENTION_CHUNKS_AHEAD = 4 };

/* Gather: decode over selected rows, which are named by their index in the sequence.  The result is the partial that
 * decode gives for these rows.  With `scores`, also the score of each row, scaled and soft-capped: exp(score - m) / s
 * is the row's probability, with the m and s of all partials merged. */
struct attention_gather_args {
    const struct kv_layout *layout;
    /* row r is token r % 64 of chunks[r / 64]; only the chunks of `rows` are read */
    const void *const *chunks;
    const uint32_t *rows; /* [row_count], ascending, each once */
    size_t row_count;
    const float *q;  /* [group][q_stride], k_dimension each */
    size_t q_stride; /* floats */
    size_t group;    /* query heads of this KV head, 1..64 */
    float scale;
    float softcap; /* 0: none */
    float *m, *s;  /* [group] */
    float *o;      /* [group][o_stride], v_dimension each */
    size_t o_stride;
    float *scores; /* out: [group][scores_stride], row_count each; may be NULL */
    size_t scores_stride;
    void *scratch; /* gather_scratch_bytes(group, layout) or gather_q4's, aligned to 8 */
    const void *const
        *then_chunks;          /* the rows that the caller goes on with, of which the first are prefetched at the */
    const uint32_t *then_rows; /* end; in the same layout; none: then_count is 0 */
    size_t then_count;
};

/* Prefill: query_count consecutive queries of one group over rows [0, position + 1) each, causal, within one KV head.
 * Query i is at absolute position position_first + i and sees rows (position - window, position], or all rows up to
 * its own if window is 0.  The output is normalised: bit for bit what decode, merge and finish over its ranges give
 * (except with AMX, which multiplies in bf16). */
struct attention_prefill_args {
    const struct kv_layout *layout;
    const void *const *chunks;
    uint64_t position_first; /* of query 0; rows [0, position_first + query_count) exist */
    size_t query_count;
    uint64_t window;
    const float *q;  /* query i, head g of the group: q + i * q_stride + g * k_dimension */
    size_t q_stride; /* floats between queries */
    size_t group;
    float scale, softcap;
    /* [group]: each head's sink, one more partial, merged last: m the sink, s 1, o 0; NULL: none */
    const float *sinks;
    float *out; /* query i, head g: out + i * out_stride + g * v_dimension */
    size_t out_stride;
    void *scratch; /* prefill_scratch_bytes(group, layout), this thread's own */
};

struct attention_kernels {
    /* Writes the partial of these rows.  The old m, s, o are overwritten, not merged. */
    void (*decode)(const struct attention_decode_args *args);
    size_t (*decode_scratch_bytes)(size_t group, const struct kv_layout *layout);
    void (*gather)(const struct attention_gather_args *args);
    size_t (*gather_scratch_bytes)(size_t group, const struct kv_layout *layout);
    /* The same over chunks in their 4-bit form (kernels/codec; the layout is that of the decoded chunk).  An element
     * is low + code (high - low) / 15 of its group, which is not rounded to a half here. */
    void (*gather_q4)(const struct attention_gather_args *args);
    size_t (*gather_q4_scratch_bytes)(size_t group, const struct kv_layout *layout);
    /* target = merge(target, source), for `heads` heads of `dimension` each. */
    void (*merge)(size_t heads, size_t dimension, float *target_m, float *target_s, float *target_o,
                  size_t target_stride, const float *source_m, const float *source_s, const float *source_o,
                  size_t source_stride);
    /* out[h] = o[h] / s[h]; an empty partial gives zeros. */
    void (*finish)(size_t heads, size_t dimension, const float *s, const float *o, size_t o_stride, float *out,
                   size_t out_stride);
    void (*prefill)(const struct attention_prefill_args *args);
    size_t (*prefill_scratch_bytes)(size_t group, const struct kv_layout *layout);
    /* the number of queries x group that the variant computes at once: split prompts at multiples of it */
    size_t prefill_block_rows;
    /* Stores one token's K and V (floats, post-RoPE) as row `token` (0..63) of a chunk. */
    void (*store)(const struct kv_layout *layout, void *chunk, size_t token, const float *k, const float *v);
    /* Reads a row back as floats (tests, and methods that need exact keys). */
    void (*load)(const struct kv_layout *layout, const void *chunk, size_t token, float *k, float *v);
};

KERNELS(attention);
