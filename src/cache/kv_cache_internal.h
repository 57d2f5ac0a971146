/* What kv_cache.c and kv_tier.c share. */
#ifndef LOAM_CACHE_KV_CACHE_INTERNAL_H
#define LOAM_CACHE_KV_CACHE_INTERNAL_H

#include "cache/kv_cache.h"
#include "cache/kv_tier.h"

struct kv_tier;

struct kv_cache {
    struct device *device; /* borrowed */
    struct kv_cache_config config;
    struct kv_layout layout;
    uint8_t *slab; /* owned MEMORY_DEVICE; [layer][column][kv head] chunks; NULL with a tier */
    size_t slab_bytes;
    /* Owned MEMORY_DEVICE; blocks of the layers from metadata_layer_first on: metadata_block; NULL: none. */
    uint8_t *metadata;
    size_t metadata_slab_bytes;
    uint64_t column_count;
    uint64_t fresh_first;   /* columns from here on have never been used */
    uint64_t *free_columns; /* owned; stack of [free_count], room for column_count */
    uint64_t free_count;
    uint64_t used_columns; /* in sequences */
    size_t sequence_count;
    struct kv_sequence *sequences; /* all that live, a list */
    struct kv_tier *tier;          /* owned; NULL: every chunk is in the slab */
};

enum { KV_SOURCES_MOST = 8 };

/* Chunks [chunk_first, chunk_end) of a sequence are pages of a document. */
struct kv_source {
    struct document *document; /* owned */
    uint64_t chunk_first, chunk_end;
};

struct kv_sequence {
    struct kv_cache *cache; /* borrowed */
    struct kv_sequence *next, *previous;
    uint64_t length; /* tokens stored */
    uint64_t column_count, column_capacity;
    uint64_t *columns;         /* owned; [column_capacity] */
    void **chunks;             /* owned; [layer][kv head][column_capacity] */
    void **packed;             /* owned; the same for chunks in 4 bits (kv_tier.h); NULL: there are none */
    struct page_shares shares; /* which of its full chunks are; no layers: all are */
    void **metadata;           /* owned; the same for the blocks beside them; NULL: none */
    /* Of a tier (kv_tier.c). */
    struct kv_backing backing;
    struct kv_source sources[KV_SOURCES_MOST]; /* in the order of their chunks, which do not overlap */
    size_t source_count;
    bool writes; /* the last source is open for writing */
    enum status
        write_failed; /* nothing more goes to the disk, and write_failure says why; STATUS_OK: not so */
    struct error write_failure;
    bool saved;                /* and has every chunk from the first on: it may be committed */
    uint64_t *written;         /* owned; [layer]: chunks below it are on disk or on their way */
    uint8_t *uses;             /* owned; [layer][kv head][column_capacity]: how often a chunk was chosen */
    uint64_t *complete;        /* owned; [layer]: rows below it are complete */
    uint64_t *rounded;         /* owned; [layer]: chunks below it hold what their 4-bit pages decode to */
    uint64_t committed_tokens; /* of what is saved */
};

/* Where the table of addresses has a chunk. */
static inline void **kv_chunk_entry(const struct kv_sequence *sequence, size_t layer, size_t head,
                                    uint64_t chunk) {
    size_t row = layer * sequence->cache->config.kv_head_count + head;
    return &sequence->chunks[row * sequence->column_capacity + chunk];
}

/* The same of chunks in 4 bits. */
static inline void **kv_packed_entry(const struct kv_sequence *sequence, size_t layer, size_t head,
                                     uint64_t chunk) {
    return sequence->packed + (kv_chunk_entry(sequence, layer, head, chunk) - sequence->chunks);
}

/* Whether that chunk, once it is full, is 4 bits, on disk and in its slot. */
static inline bool kv_chunk_is_packed(const struct kv_sequence *sequence, size_t layer, size_t head,
                                      uint64_t chunk) {
    return sequence->packed != NULL && (sequence->shares.layer_count == 0 ||
                                        page_shares_is_packed(&sequence->shares, layer, head,
                                                              sequence->cache->config.kv_head_count, chunk));
}

/* Where a full chunk is in the form that stays. */
static inline void **kv_form_entry(const struct kv_sequence *sequence, size_t layer, size_t head,
                                   uint64_t chunk) {
    return (kv_chunk_is_packed(sequence, layer, head, chunk) ? kv_packed_entry
                                                             : kv_chunk_entry)(sequence, layer, head, chunk);
}

/* Bytes of metadata beside a column. */
uint64_t kv_column_metadata_bytes(const struct kv_cache_config *config);

enum status kv_tier_create(struct kv_cache *cache, struct error *error) STATUS_CHECKED;
void kv_tier_destroy(struct kv_tier *tier); /* NULL is allowed */
/* The metadata have changed: so many slots are the rest of the budget.  STATUS_MEMORY: too few. */
enum status kv_tier_divide(struct kv_tier *tier, struct error *error) STATUS_CHECKED;
bool kv_tier_is_divided(const struct kv_tier *tier);
enum status kv_tier_add(struct kv_sequence *sequence, struct error *error) STATUS_CHECKED;
void kv_tier_remove(struct kv_sequence *sequence);
/* Forgets tokens from token_count on; the sequence's length is still the old one. */
void kv_tier_truncate(struct kv_sequence *sequence, uint64_t token_count);
uint64_t kv_tier_used_bytes(const struct kv_tier *tier);

#endif
