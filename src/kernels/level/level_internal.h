/* level_internal: what the variants of level share. */
#pragma once

#include "kernels/level/level.h"

/* A prepared query: this, its floats, its bytes. */
struct level_query {
    float step; /* of its bytes: q_j is about step * bytes_j */
    /* q . l = 2 step * (the sum of numbers times bytes) - offset */
    float offset;
};

static inline const float *level_query_floats(const void *query) {
    return (const float *)(const void *)((const char *)query + sizeof(struct level_query));
}
static inline const int8_t *level_query_integers(const struct level_layout *layout, const void *query) {
    return (const int8_t *)(level_query_floats(query) + layout->dimension);
}

/* Bits of the part of a number that has `planes` bits left. */
static inline size_t level_part_width(size_t planes) { return planes >= 4 ? 4 : planes >= 2 ? 2 : 1; }
/* Words of four bytes that a token has of a part. */
static inline size_t level_part_words(const struct level_layout *layout, size_t width) {
    return layout->dimension * width / 32;
}
enum { LEVEL_WORD_BYTES = KV_CHUNK_TOKENS * 4 /* of all tokens */ };
