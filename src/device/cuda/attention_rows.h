/* attention_rows: which rows a query sees, and the ranges in which they are attended to. */
#pragma once

#include "device/cuda/dialect.h"
#include "device/cuda/kernels.h"

struct seen_rows {
    uint32_t begin, end;        /* rows [begin, end) */
    uint32_t first, range_rows; /* range i: range_rows from first + i * range_rows on */
    uint32_t range_count;
};
DEVICE struct seen_rows seen_rows_of(uint64_t position, uint32_t window) {
    struct seen_rows rows;
    rows.end = (uint32_t)position + 1;
    rows.begin = window == 0 || rows.end <= window ? 0 : rows.end - window;
    rows.first = rows.begin / ATTENTION_CHUNK * ATTENTION_CHUNK;
    rows.range_rows = attention_range(rows.end - rows.first);
    rows.range_count = (rows.end - rows.first + rows.range_rows - 1) / rows.range_rows;
    return rows;
}

/* A list, as this launch has it. */
DEVICE struct cuda_list list_at(uint64_t lists, uint64_t limits, uint64_t index) {
    struct cuda_list list = at<struct cuda_list>(lists)[index];
    if (limits == 0) return list;
    const struct step_list now = at<struct step_list>(limits)[index];
    list.count = now.count;
    list.begin = now.candidate_begin, list.end = now.candidate_end;
    list.picks = now.picks;
    list.kept_count = now.kept_count, list.window_begin = now.window_begin;
    return list;
}

/* The same of a list: rows of the list, not of the context. */
DEVICE struct seen_rows listed_rows_of(const struct cuda_list &list) {
    struct seen_rows rows;
    rows.begin = rows.first = 0;
    rows.end = list.count;
    rows.range_rows = attention_range(rows.end);
    rows.range_count = (rows.end + rows.range_rows - 1) / rows.range_rows;
    return rows;
}

/* Scores are kept times log2 e, so that weights are powers of two.  Less than any score: */
#define SCORE_NONE (-1e30f)

/* The factor of a query times a key, and what follows. */
DEVICE float score_of(float product, float scale, float softcap) {
    const float log2e = 1.44269504f;
    if (softcap == 0) return product; /* the query has been multiplied with scale * log2 e */
    return softcap * tanh_near(product * scale / softcap) * log2e;
}
