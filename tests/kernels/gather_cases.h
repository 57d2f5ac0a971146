/* gather_cases: which rows the tests of gather select, and what a gather gives. */
#pragma once

#include "check.h"

#include "kernels/attention/attention.h"

enum { HEADS_MAX = 16, DIMENSION_MAX = 256, ROWS_MAX = 1280 };

/* Which rows are selected, of at most ROWS_MAX. */
enum selection { ALL, RANGE, SPARSE, DENSE, BLOCKS, CHUNKED, ONE, NONE, LAST, SELECTIONS };
static const char *const selection_names[SELECTIONS] = {"all",    "range", "sparse", "dense", "blocks",
                                                        "chunks", "one",   "none",   "last"};

/* The list, ending at a guard page; the rows are below `token_count`. */
static inline struct guarded rows_select(enum selection selection, uint32_t token_count,
                                         struct random *random) {
    static uint32_t rows[ROWS_MAX];
    size_t count = 0;
    assert_true(token_count <= ROWS_MAX);
    for (uint32_t row = 0; row < token_count; row++) {
        bool take = false;
        switch (selection) {
        case ALL: take = row < 333; break;
        case RANGE: take = row >= 37 && row < 301; break;
        case SPARSE: take = random_below(random, 17) == 0; break;
        case DENSE: take = random_below(random, 5) > 1 && row < 400; break;
        case BLOCKS: take = row / 8 * 2654435761u % 7 == 0; break;
        case CHUNKED: take = row / 64 % 2 == 1 || row < 4; break;
        case ONE: take = row == token_count * 5 / 8; break;
        case NONE: break;
        case LAST: take = row == 0 || row == token_count - 1; break;
        case SELECTIONS: break;
        }
        if (take) rows[count++] = row;
    }
    struct guarded list = guarded_create(count * sizeof(uint32_t));
    memcpy(list.data, rows, count * sizeof(uint32_t));
    return list;
}

struct partial {
    float m[HEADS_MAX], s[HEADS_MAX];
    struct guarded o, scores; /* [group][stride] */
    size_t o_stride, scores_stride;
};

/* All NaN. */
static inline void partial_create(struct partial *partial, size_t group, size_t v_dimension,
                                  size_t row_count) {
    partial->o_stride = v_dimension + 5;
    partial->scores_stride = row_count + 3;
    partial->o = guarded_create(((group - 1) * partial->o_stride + v_dimension) * sizeof(float));
    partial->scores = guarded_create(((group - 1) * partial->scores_stride + row_count) * sizeof(float));
    fill_nan(partial->o.data, partial->o.bytes / sizeof(float));
    fill_nan(partial->scores.data, partial->scores.bytes / sizeof(float));
    fill_nan(partial->m, HEADS_MAX);
    fill_nan(partial->s, HEADS_MAX);
}

static inline void partial_destroy(struct partial *partial) {
    guarded_destroy(&partial->o);
    guarded_destroy(&partial->scores);
}

struct gather_heads {
    size_t group;
    float scale, softcap;
};

/* Creates the partial; its scores stay NaN unless they are asked for. */
static inline void gather_run(void (*gather)(const struct attention_gather_args *args), size_t scratch_bytes,
                              const struct kv_layout *layout, const void *const *chunks,
                              const struct guarded *rows, const float *q, size_t q_stride,
                              const struct gather_heads *heads, bool scores, struct partial *partial) {
    const size_t count = rows->bytes / sizeof(uint32_t);
    struct guarded scratch = guarded_create((scratch_bytes + 63) / 64 * 64);
    memset(scratch.data, 0xff, scratch.bytes);
    partial_create(partial, heads->group, layout->v_dimension, count);
    /* It continues with the first rows again: they must not affect the result, and their list ends at a guard page. */
    gather(&(struct attention_gather_args){.layout = layout,
                                           .chunks = chunks,
                                           .rows = rows->data,
                                           .row_count = count,
                                           .q = q,
                                           .q_stride = q_stride,
                                           .group = heads->group,
                                           .scale = heads->scale,
                                           .softcap = heads->softcap,
                                           .m = partial->m,
                                           .s = partial->s,
                                           .o = partial->o.data,
                                           .o_stride = partial->o_stride,
                                           .scores = scores ? partial->scores.data : NULL,
                                           .scores_stride = partial->scores_stride,
                                           .scratch = scratch.data,
                                           .then_chunks = chunks,
                                           .then_rows = rows->data,
                                           .then_count = count});
    guarded_destroy(&scratch);
}
