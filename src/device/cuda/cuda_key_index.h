/* cuda_key_index: what the card builds beside chunks, and scores of units by it, for each kind that it chooses by. */
#pragma once

#include "device/cuda/cuda_views.h"

/* A choice that is under way; addresses are the card's. */
struct cuda_scoring {
    struct stream *stream;
    const struct choose_operation *operation;
    struct staged_views views;
    uint32_t heads, kv_heads, group;
    uint32_t unit_stride;   /* floats between the scores of heads */
    uint64_t queries;       /* [row][head] cuda_query_bytes; scratch */
    uint64_t scores;        /* float [row][cuda_score_heads][unit_stride]; scratch */
    uint64_t lists, limits; /* struct cuda_list, struct step_list [row][kv head]; limits: 0: the lists say */
    /* Where lists may look (step.h): chunks that they look into, uint32_t [row][kv head][chunk_stride], and ranks of
     * chunks; scratch.  looked 0: none looks. */
    uint64_t looked, ranks;
    uint32_t chunk_stride, chunks_most; /* where lists may look, no list has more chunks scored, in any launch */
};
/* Of a head as it is prepared; 0: it is taken as it is. */
size_t cuda_query_bytes(const struct key_index_layout *layout);
/* Scores of a unit and KV head; 0: one, which ranks as it is. */
uint32_t cuda_score_heads(const struct key_index_layout *layout, uint32_t group);
/* Of `rows` items from `first` on, whose rows follow each other; queries, scores, lists and limits are theirs. */
void cuda_score(const struct cuda_scoring *scoring, size_t first, uint32_t rows);
