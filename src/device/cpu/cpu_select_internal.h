/* cpu_select_internal: a run of choose, as cpu_select.c and the scorers see it. */
#pragma once

#include "device/cpu/cpu_device_internal.h"

enum {
    SCORE_TOKENS = 8192, /* 18 bytes each with 128-bit codes: 144 KiB, some 20 us */
};

enum select_phase { PHASE_PREPARE, PHASE_SCORE, PHASE_NEAR, PHASE_CHOOSE, PHASE_COUNT };

struct select_row {
    const struct select_item *item;
    size_t score_first, score_count; /* units of one KV head, the first of head 0 */
};

struct select_run {
    const struct cpu_device *device;
    const struct choose_operation *operation;
    const struct cpu_scorer *scorer;
    const struct kv_layout *kv;
    struct select_row *rows; /* [row_count] */
    size_t row_count, group;
    uint8_t *queries; /* [row][kv_head][query_bytes] */
    size_t query_bytes;
    size_t score_heads; /* scores of a KV head: 1, or those of each of its query heads apart */
    float *scores;      /* [row][kv_head][score_heads][score_stride] */
    size_t score_stride;
    struct tree_counts *tree_counts; /* [row][kv_head]; NULL: no search */
    /* [row][kv_head]: units within alpha of the best; 0: has nothing to choose; NULL: no alpha */
    size_t *near;
    uint8_t *threads;
    size_t thread_bytes;
    size_t units[PHASE_COUNT], next[PHASE_COUNT];
    uint64_t score_ended_ns, choose_ns; /* of thread 0; the second where it goes head by head */
};

/* Whether a KV head has a choice to make: some of the candidates, but not all. */
static inline bool cpu_head_is_scored(const struct select_item *item, size_t kv_head) {
    uint64_t picks = select_item_picks(item, kv_head);
    return picks > 0 && picks < item->candidate_end - item->candidate_begin;
}

static inline const uint32_t *head_key_index(const struct select_item *item, size_t kv_head) {
    return cpu_places(item->view.key_index) + kv_head * item->view.chunk_stride;
}

/* Of a KV head's first query head. */
static inline const float *head_query(const struct select_run *run, const struct select_row *row, size_t kv_head) {
    const struct choose_operation *operation = run->operation;
    return cpu_floats(operation->q) + row->item->row * operation->q_stride +
           kv_head * run->group * run->kv->k_dimension;
}

static inline uint8_t *prepared_query(const struct select_run *run, size_t row, size_t kv_head) {
    return run->queries + (row * run->operation->kv_head_count + kv_head) * run->query_bytes;
}

static inline float *head_scores(const struct select_run *run, size_t row, size_t kv_head) {
    return run->scores + (row * run->operation->kv_head_count + kv_head) * run->score_heads * run->score_stride;
}

/* Whether the query heads of a group are scored one by one. */
static inline bool scores_by_head(const struct choose_operation *operation) {
    return operation->layout->aggregate == SCORE_SOFTMAX;
}
