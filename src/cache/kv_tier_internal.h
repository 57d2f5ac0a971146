/* What kv_tier.c and kv_tier_write.c share. */
#ifndef LOAM_CACHE_KV_TIER_INTERNAL_H
#define LOAM_CACHE_KV_TIER_INTERNAL_H

#include "cache/kv_cache_internal.h"
#include "kernels/codec/codec.h"

#define TIER_NO_SLOT UINT32_MAX
enum {
    TIER_RING_PAGES = 16384, /* pages that are being read at once, at most */
    TIER_RUN_CHUNKS = 16,    /* chunks that are written together */
    TIER_RESERVE_SLOTS = 64,
    TIER_STAGING_PAGES = 128, /* 4-bit pages that are being read at once, at most */
};

enum slot_state { SLOT_FREE, SLOT_READING, SLOT_CLEAN, SLOT_DIRTY, SLOT_QUEUED };

struct slot {
    struct kv_sequence *sequence; /* whose chunk it holds; NULL: nobody's */
    uint32_t row;                 /* layer * kv_head_count + head */
    uint32_t chunk;
    uint16_t pins;
    uint8_t state; /* enum slot_state */
    bool fetched;  /* from disk, and not released since */
    bool is_victim;
    bool staged;  /* being read as a 4-bit page */
    bool guessed; /* fetched by a guess, and not released since */
};

/* Slots of one kind: of rows as attention over everything reads them, or of chunks in 4 bits. */
struct tier_pool {
    uint8_t *memory; /* in the slab; [count][slot_bytes] */
    size_t slot_bytes;
    uint64_t first, count;          /* slots [first, first + count) of the tier */
    uint64_t fresh_count;           /* so many have ever been used, the first ones */
    uint32_t *free_slots, *victims; /* in the tier's; [count], stacks */
    uint64_t free_count, victim_count;
    uint64_t hand;      /* where least_used goes on, from first */
    uint64_t use_count; /* since counts were halved */
};

struct kv_tier {
    struct kv_cache *cache; /* borrowed */
    struct stream *stream;  /* owned; metadata to and from the device's memory */
    uint8_t *slab;          /* owned MEMORY_HOST; staging area, rows, packed */
    size_t slab_bytes;
    struct slot *slots; /* owned; of both pools */
    uint32_t *stacks;   /* owned; of both pools */
    struct tier_pool rows;
    struct tier_pool packed;   /* with q4_pages; else of no slots */
    size_t resident_layers;    /* whose chunks never go */
    struct page_shares shares; /* by which slots are divided, where pages are mixed */
    uint64_t host_bytes_most;  /* before slots were divided anew (kv_tier_statistics) */
    uint32_t
        reserve[TIER_RESERVE_SLOTS]; /* rows taken for a scan, in the order of memory; the next one last */
    size_t reserve_count;
    uint64_t scan_pins;     /* of brings that scan */
    uint64_t queued_count;  /* slots in SLOT_QUEUED */
    struct io_queue *queue; /* owned */
    bool is_registered;     /* the memory that reads go to, with the queue */
    uint32_t *ring;         /* owned; [ring_pages]: the slot of a tag; TIER_NO_SLOT: it has arrived */
    uint64_t ring_pages;
    uint64_t tag_oldest, tag_next; /* tags [tag_oldest, tag_next) have a place in the ring */
    /* Of 4-bit pages; NULL and 0 without. */
    struct codec_kernels codec;
    uint8_t *staging;     /* [ring_pages][staging_bytes]: where a tag's page is read */
    size_t staging_bytes; /* a 4-bit chunk, rounded up to pages */
    size_t q4_bytes;
    uint8_t *metadata_run; /* owned; [TIER_RUN_CHUNKS][metadata_bytes] */
    struct kv_tier_statistics statistics;
    struct trace *trace; /* borrowed; NULL: none */
    uint64_t *began_ns;  /* owned; [ring_pages]: when a tag's page was asked for; NULL without a trace */
    enum status failed;
    struct error failure;
};

void kv_tier_fail(struct kv_tier *tier, const struct error *error);
/* Whose memory that is: of rows or of 4 bits. */
struct slot *tier_slot_at(const struct kv_tier *tier, const void *chunk);
uint8_t *tier_slot_memory(const struct kv_tier *tier, const struct slot *slot);
/* A slot of the pool for a chunk that is in none of it, in SLOT_DIRTY; NULL: all are taken by what may not go. */
struct slot *tier_slot_dirty(struct kv_tier *tier, struct tier_pool *pool, struct kv_sequence *sequence,
                             size_t row, uint64_t chunk);
/* The document that has a chunk's page, or will have it; NULL: none. */
struct document *tier_document_of(const struct kv_sequence *sequence, uint64_t chunk);
void tier_slot_free(struct kv_tier *tier, struct slot *slot);
void tier_drain_all(struct kv_tier *tier);
enum status tier_make_dirty(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk,
                            struct error *error) STATUS_CHECKED;
/* A sequence that is not being written gets a document of its own, which nobody will find, for what does not fit. */
/* A write failed: what is in memory and not on disk stays there, and nothing more is written. */
void tier_stop_writing(struct kv_sequence *sequence, const struct error *why);
enum status tier_spill(struct kv_sequence *sequence, struct error *error) STATUS_CHECKED;

#endif
