/* What the tier tells of the chunks that it fetches (kv_watch.h). */
#pragma once

#include "cache/kv_cache_internal.h"
#include "cache/kv_watch.h"

struct kv_watch {
    size_t lane_count, chunk_capacity;
    bool in_step, has_token;
    uint64_t position, token_count;
    struct kv_watch_counts before, token; /* of all tokens before this one; of this one */
    uint64_t number;                      /* of the last map */
    uint64_t column_count, column_chunks; /* its shape; 0: there was none */
    /* In the same block of memory. */
    uint8_t *rows;    /* [lane][chunk]: that the token attended to */
    uint8_t *read;    /* [lane][chunk]: 1: read from disk for it */
    char *cells;      /* [line][KV_MAP_COLUMNS_MAX]: what readers of the last map have, [line][column_count] */
    size_t next_cell; /* from where on changes are looked for */
};

/* A chunk was found in memory; or its page is being read. */
static inline void kv_watch_hit(struct kv_sequence *sequence, bool was_prefetched) {
    if (sequence->watch == NULL) return;
    sequence->watch->token.hits++;
    sequence->watch->token.prefetch_hits += was_prefetched;
}

static inline void kv_watch_read(struct kv_sequence *sequence, size_t lane, uint64_t chunk, bool is_prefetch) {
    struct kv_watch *watch = sequence->watch;
    if (watch == NULL) return;
    watch->token.misses += !is_prefetch;
    watch->token.prefetched += is_prefetch;
    if (chunk < watch->chunk_capacity) watch->read[lane * watch->chunk_capacity + chunk] = 1;
}

static inline void kv_watch_bytes(struct kv_sequence *sequence, uint64_t bytes) {
    if (sequence != NULL && sequence->watch != NULL) sequence->watch->token.read_bytes += bytes;
}
