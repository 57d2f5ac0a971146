/* cpu_scorer: one kind of key index on the cpu: how it is built, and how candidates are scored by it.  A file per kind;
 * cpu_scorer.c has the table, to which a program adds the kinds of its own methods before main. */
#pragma once

#include "device/cpu/cpu_select_internal.h"

/* What is built for one chunk of one KV head. */
struct build_unit {
    const struct kv_layout *kv;
    const void *chunk;
    void *block;
    void *const *blocks; /* of the chunks from block_first on, up to the unit's: the scorer's chunks_before and it */
    uint64_t block_first, chunk_index;
    size_t kv_head, token_begin, token_end; /* within the chunk */
};

/* Of a thread: keys of a chunk, one value row, then codes, norms and centroids, [KV_CHUNK_TOKENS][k_dimension]. */
struct build_scratch {
    float *keys, *value, *norms, *centroids;
    uint8_t *codes;
    void **blocks; /* of a unit */
};

/* Tokens [begin, end) of a KV head's candidates, whole units, counted from the first token of chunk chunk_first. */
struct score_range {
    const struct select_run *run;
    size_t row, kv_head;
    size_t head_first, head_count; /* query heads of its group: all, or one if they are scored one by one */
    uint64_t begin, end, chunk_first;
    const void *const *blocks; /* of the KV head, from chunk_first on; with the scorer's chunks_before */
    const void *const *then;   /* chunks that will be attended to next; NULL: no prefetch */
    size_t stride;             /* from one query head's scores to the next one's */
};

/* Candidates that are nodes of a tree: nodes of the start level are scored, and the best leaves are searched for
 * below them. */
struct cpu_search {
    /* The number of nodes of an item, and of units of work that score them (at least one). */
    size_t (*score_count)(const struct choose_operation *operation, const struct select_item *item);
    size_t (*part_count)(const struct choose_operation *operation, const struct select_item *item);
    void (*score_part)(const struct select_run *run, size_t row, size_t kv_head, size_t part,
                       uint8_t *scratch); /* of all query heads: [score_heads][score_stride] */
    /* The best units, picks / unit_tokens of them, ascending, as indices from the sequence's start.  false: the nodes
     * are the units, so the best are those with the largest scores. */
    bool (*find)(const struct select_run *run, size_t row, size_t kv_head, uint32_t *indices, uint8_t *scratch);
    void (*count)(const struct select_run *run); /* adds to the operation's tree_counts */
};

struct cpu_scorer {
    /* The chunk's block, for rows whose keys are stored; NULL: there is none. */
    void (*build)(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch);
    bool builds_in_order; /* a block needs those of the chunks before it */
    /* How many chunks' blocks before a chunk are read where it is built or scored; NULL: none. */
    size_t (*chunks_before)(const struct key_index_layout *layout);
    /* What is built of several chunks' blocks once all of them exist.  NULL: nothing. */
    void (*build_above)(const struct key_index_layout *layout, const struct build_unit *unit);
    bool (*builds_above)(const struct key_index_layout *layout);
    /* The query's side of a score, of query_bytes; NULL: the query itself. */
    size_t (*query_bytes)(const struct key_index_layout *layout, size_t group);
    void (*prepare)(const struct select_run *run, size_t kv_head, const float *q, void *prepared);
    /* One score per unit, or per token where key_index_scores_tokens.  scores_apart: where scores_by_head, of each of
     * the range's heads, range->stride apart; others are then asked for one head after the other. */
    void (*score)(const struct score_range *range, float *scores, uint8_t *scratch);
    bool scores_apart;
    size_t (*scratch_bytes)(const struct select_run *run); /* of score, or of the search; NULL: none */
    /* The factor by which a query head's scores differ from products of query and key; NULL: 1.  For SCORE_SOFTMAX.
     */
    float (*head_scale)(const struct select_run *run, const float *q);
    const struct cpu_search *search; /* NULL: every candidate is scored */
};

static inline size_t cpu_chunks_before(const struct cpu_scorer *scorer, const struct key_index_layout *layout) {
    return scorer->chunks_before != NULL ? scorer->chunks_before(layout) : 0;
}

/* The query of the range's first head. */
static inline const float *range_query(const struct score_range *range) {
    return head_query(range->run, &range->run->rows[range->row], range->kv_head) +
           range->head_first * range->run->kv->k_dimension;
}

extern const struct cpu_scorer cpu_scorer_abstract, cpu_scorer_hash, cpu_scorer_level, cpu_scorer_tree;

void cpu_scorer_add(enum key_index_kind kind, const struct cpu_scorer *scorer);
const struct cpu_scorer *cpu_scorer_of(const struct key_index_layout *layout);
uint32_t cpu_scorer_kinds(void); /* 1 << kind for each that the table has */

/* The unit's keys as floats, from row 0 of scratch->keys. */
void cpu_load_keys(const struct cpu_device *device, const struct build_unit *unit, const struct build_scratch *scratch);

/* The sampled keys of the unit's tokens (device/key_sample.h). */
void cpu_key_sample_build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                          const struct build_unit *unit, const struct build_scratch *scratch);
