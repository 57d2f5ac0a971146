/* abstract: a summary of the keys of a page, by which the page is scored without reading it.
 *
 * A page is 8, 16, 32 or 64 consecutive tokens of one KV head, within a chunk of 64.  Two kinds:
 *   ABSTRACT_MIN_MAX         element-wise minimum and maximum of the page's keys (Quest).  The score
 *                            U = sum over d of max(q_d min_d, q_d max_d) is at least q . k for each key
 *                            of the page: minima are rounded down to halves, maxima up.
 *   ABSTRACT_MEAN_DEVIATION  element-wise mean and (population) standard deviation.  The score
 *                            q . mean + |q| . deviation is no bound, but ranks pages better at equal bytes
 *                            (arXiv 2605.27740).
 * The abstracts of a chunk are one block of memory: for each kind kept, [pages][2][dimension] halves.
 * Keys are post-RoPE, scores without attention's scale.
 *
 * Among the heads of a group a page gets the score of the head that wants it most (SCORE_MAX): a sum lets
 * heads that find nothing in a page outvote one that does.  Differs from Quest, which has no groups.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention/kv_layout.h"
#include "kernels/score/score.h"
#include "kernels/variants.h"

enum abstract_kind { ABSTRACT_MIN_MAX, ABSTRACT_MEAN_DEVIATION, ABSTRACT_KIND_COUNT };

struct abstract_layout {
    size_t page_tokens, chunk_pages; /* chunk_pages * page_tokens = 64 */
    size_t dimension;                /* of a key; a multiple of 8 */
    bool has[ABSTRACT_KIND_COUNT];
    size_t offset[ABSTRACT_KIND_COUNT]; /* bytes from the start of a chunk's block to page 0 of the kind */
    size_t bytes;                       /* of a chunk's block; a multiple of 64 */
};

/* page_tokens: 8, 16, 32 or 64. */
void abstract_layout_init(struct abstract_layout *layout, size_t page_tokens, size_t dimension, bool min_max,
                          bool mean_deviation);

/* Rebuilds the pages of one chunk that hold any of its tokens [token_begin, token_end).  A page takes those of its
 * tokens that are before token_end, so it may be rebuilt many times while it fills.  A NaN in a key makes that
 * element of both rows of the pair NaN, and so the page's score. */
struct abstract_build_args {
    const struct abstract_layout *layout;
    const struct kv_layout *kv;
    const void *chunk;             /* KV rows */
    size_t token_begin, token_end; /* within the chunk, 0..64 */
    void *abstract;                /* the chunk's block, aligned to 16 */
};

/* Scores of pages [page_begin, page_end) of one KV head.  Page p is page p % chunk_pages of abstracts[p /
 * chunk_pages]. */
struct abstract_score_args {
    const struct abstract_layout *layout;
    enum abstract_kind kind; /* one that the layout has */
    enum score_aggregate aggregate;
    const void *const *abstracts;
    uint64_t page_begin, page_end;
    const float *q;          /* [group][q_stride], dimension each */
    size_t q_stride;         /* floats */
    size_t group;            /* 1..64 */
    float *scores;           /* [page_end - page_begin] */
    void *scratch;           /* score_scratch_bytes(layout, group), aligned to 4 */
    const void *const *then; /* score.h: for the chunk whose abstract is abstracts[b]; may be NULL */
};

struct abstract_kernels {
    void (*build)(const struct abstract_build_args *args);
    void (*score)(const struct abstract_score_args *args);
    size_t (*score_scratch_bytes)(const struct abstract_layout *layout, size_t group);
};

KERNELS(abstract);
