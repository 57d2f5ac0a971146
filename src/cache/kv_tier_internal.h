/* What the files of the tier share, each needing only those above it:
 *
 *   kv_budget     what a budget holds
 *   kv_slots      slots, and which one goes
 *   residency     which ones stay because they will be read again
 *   kv_read       pages on their way into slots
 *   kv_parts      which parts of them
 *   kv_key_index  blocks of the key index, where they lie on disk
 *   kv_fetch      the chunks of a head, fetched and held (struct kv_fetch)
 *   kv_computed   chunks that are computed again instead of read
 *   kv_divide     the slots' memory
 *   kv_saved_states   states of a sequence, and which windows it has, to its documents and from there
 *   kv_write      a sequence's chunks on their way to the disk
 *   kv_documents  documents of a sequence
 *   kv_warm       what of them is read before it is wanted
 *   kv_tier       all of it
 */
#pragma once

#include "base/layout.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_cache_internal.h"
#include "cache/kv_tier.h"
#include "kernels/codec/codec.h"

#define TIER_NO_SLOT UINT32_MAX
enum {
    TIER_RING_PAGES = 16384,         /* pages that are being read at once, at most */
    TIER_RUN_CHUNKS = KEY_INDEX_RUN, /* that are written together */
    TIER_UPLOADS = 2,      /* one is read to while the other one goes up, */
    TIER_UPLOAD_RUNS = 16, /* each of so many runs of the key index of a head, as runs of all heads of a layer */
    TIER_TAIL_LAYERS = 4, /* whose last chunks are read together; the least budget has slots for all layers' */
    TIER_RESERVE_SLOTS = 64,
    TIER_STAGING_PAGES = 128, /* 4-bit pages that are being read at once, at most */
    TIER_SOURCES_MAX = 8,
    TIER_READERS_MAX = 64,
    TIER_PREFETCH_CHUNKS = 8, /* into the processor's caches, ahead of a loop over slots */
};

/* ---- structures ---- */

enum slot_state { SLOT_FREE, SLOT_READING, SLOT_CLEAN, SLOT_DIRTY, SLOT_QUEUED };

struct slot {
    struct kv_sequence *sequence; /* whose chunk it holds; NULL: nobody's */
    uint32_t lane;                /* kv_lane */
    uint32_t chunk;
    uint16_t pins;
    uint8_t state;    /* enum slot_state */
    uint8_t parts;    /* of the page that are in memory or on their way, a bit each (kv_parts.c) */
    uint8_t reading;  /* requests on their way */
    bool fetched : 1; /* from disk, and not released since */
    bool is_victim : 1;
    bool reads_quantized : 1; /* being read as a 4-bit page */
    bool prefetched : 1;      /* read by a prefetch, and not released since */
    bool is_shared : 1;       /* other sequences' tables may have it, too */
    bool is_held : 1;         /* residency.h: one of the pins is that, */
    uint32_t used_at;         /* struct kv_tier, use_clock, when it was used last; wraps */
    uint32_t next_held;       /* and this the next slot of its head; TIER_NO_SLOT: none */
    uint64_t reader;          /* of struct tier_readers: the last work of the device that reads it */
};
enum { TIER_SLOT_TABLE_BYTES = sizeof(struct slot) + 2 * sizeof(uint32_t) }; /* of a slot, in tier_slots */

/* Work on a stream of the device that reads slots which nobody pins any more, in the order in which it was put there.
 * Each has a number, from 1 on.  Without a queue there is none. */
struct tier_readers {
    struct {
        uint64_t number;
        struct ticket ticket;
    } list[TIER_READERS_MAX]; /* a ring: [first], the oldest, and count - 1 more */
    size_t first, count;
    uint64_t last, done; /* numbers; those up to `done` are done */
};

/* The page of a tag; part_count 0: all of it. */
struct tier_place {
    uint32_t slot; /* TIER_NO_SLOT: it has arrived */
    uint8_t part_first, part_count;
};

/* Slots of one kind: plain ones of rows, as attention over everything reads them, or of chunks in 4 bits. */
struct tier_pool {
    struct slab memory; /* MEMORY_SHARED; [count] */
    size_t slot_bytes;
    uint64_t first, count;          /* slots [first, first + count) of the tier */
    uint64_t fresh_count;           /* so many have ever been used, the first ones */
    uint32_t *free_slots, *victims; /* in the tier's; [count], stacks */
    uint64_t free_count, victim_count;
    uint64_t hand;                 /* where least_used goes on, from first */
    uint64_t use_count;            /* since counts were halved */
    uint64_t held_count, held_max; /* residency.h */
};

struct tier_slots {
    struct slot *list; /* owned, stacks behind it; of both pools; NULL: memory is not divided yet */
    uint32_t *stacks;  /* [2] for each slot; of both pools */
    struct tier_pool plain;
    struct tier_pool quantized; /* with quantized_pages; else it has no slots */
    /* Plain slots taken for a scan, in the order of memory; the next one last. */
    uint32_t reserve[TIER_RESERVE_SLOTS];
    size_t reserve_count;
    uint64_t scan_pins; /* held by fetches that scan */
};

struct tier_reads {
    struct io_queue *queue;  /* owned */
    bool is_registered;      /* the memory that reads go to, with the queue */
    struct tier_place *ring; /* owned, fetches and lane_stays behind it; [ring_pages]: by tag */
    uint64_t ring_pages;
    uint64_t tag_oldest, tag_next; /* tags [tag_oldest, tag_next) have a place in the ring */
    uint8_t *pages;                /* [ring_pages][page_bytes], staging: where a tag's 4-bit page is read */
    size_t page_bytes;             /* a 4-bit chunk, rounded up to pages; 0: there are none */
    struct trace *trace;           /* borrowed; NULL: none */
    uint64_t *began_ns;            /* owned; [ring_pages]: when a tag's page was asked for; NULL without a trace */
};

/* Between a document and the device. */
struct tier_bounce {
    uint8_t *memory;    /* owned; [kv_budget_bounce_bytes], from a multiple of IO_ALIGNMENT on */
    struct slab upload; /* MEMORY_SHARED; TIER_UPLOADS slots, of kv_budget_upload_bytes together; or none */
};

struct kv_tier {
    struct kv_cache *cache; /* borrowed */
    struct stream *stream;  /* owned; copies the key index to and from the device's memory */
    struct slab staging;    /* MEMORY_SHARED; 4-bit pages being read, one slot; none without 4-bit pages */
    struct tier_slots slots;
    struct tier_readers readers;
    uint32_t use_clock; /* uses so far */
    struct tier_reads reads;
    struct codec_kernels codec;
    size_t quantized_bytes;        /* of a 4-bit chunk; 0: there are none */
    struct store_parts page_parts; /* of a page of rows; count 0: none */
    size_t gap_bytes;              /* between two parts that are wanted, at most, that are read as well */
    struct kv_residents residents; /* whose chunks never go; its lanes are the first of: */
    uint32_t *wanted_lanes;        /* owned; [wanted_lane_count] (kv_tier_set_resident_heads) */
    size_t wanted_lane_count;
    bool *lane_stays;                /* [layer][kv head]: one of the residents */
    struct page_fractions fractions; /* that slots are divided by, where pages are mixed */
    uint64_t host_bytes_max;         /* the most, before slots were divided anew (kv_tier_statistics) */
    struct tier_bounce bounce;
    /* [TIER_TAIL_LAYERS][kv_heads_max]: of layers of a document that is opened; the first of one that is copied */
    struct kv_fetch *fetches;
    /* No slot can be had: waits for what is being written; with spill, also writes what nobody had asked to write.
     * Set by kv_tier.c, since what it calls needs slots itself. */
    void (*reclaim)(struct kv_tier *tier, bool spill);
    struct kv_tier_statistics statistics;
    enum status failed;
    struct error failure;
    uint64_t failed_document; /* whose page it was; 0: nobody's */
};

static inline void tier_place(struct kv_tier *tier, struct layout *layout, const struct kv_cache_config *config) {
    tier->reads.ring_pages = kv_budget_ring_pages(config);
    tier->reads.ring = layout_take(layout, (size_t)tier->reads.ring_pages, sizeof *tier->reads.ring);
    tier->fetches = layout_take(layout, TIER_TAIL_LAYERS * kv_heads_max(config), sizeof *tier->fetches);
    tier->lane_stays = layout_take(layout, kv_lane_count(config), sizeof *tier->lane_stays);
}

/* Chunks [chunk_first, chunk_end) of a sequence are pages of a document. */
struct page_source {
    struct document *document; /* owned */
    uint64_t chunk_first, chunk_end;
};

/* What the tier keeps of a sequence; the tables lie behind it. */
struct sequence_pages {
    struct kv_backing backing;
    struct page_source sources[TIER_SOURCES_MAX]; /* in the order of their chunks, which do not overlap */
    size_t source_count;
    bool writes;        /* the last source is open for writing */
    bool saved;         /* and has every chunk from the first on: it may be committed */
    bool is_opening;    /* a document's tail and what stays are on their way: what is written is not decided yet */
    enum status failed; /* nothing more goes to the disk, and failure says why; STATUS_OK: not so */
    struct error failure;
    uint64_t committed_tokens;       /* of what is saved */
    struct page_fractions fractions; /* which of its full chunks are in 4 bits; no layers: all are */
    uint32_t *held;                  /* [layer][kv head]: the first slot that the head holds (residency.h) */
    uint64_t warm_lane, warm_chunk;  /* up to which kv_sequence_warm has looked */
    uint8_t *uses;                   /* [layer][kv head][column_capacity]: how often a chunk was chosen */
    /* [layer] each. */
    uint64_t *written;       /* chunks below it are on disk or on their way, */
    uint64_t *index_written; /* but for the key index of a last run, which is written with the rest of it */
    uint64_t *complete;      /* rows below it are complete */
    uint64_t *quantized_end; /* chunks below it hold what their 4-bit pages decode to */
};

/* Of a sequence of so many columns, in one piece. */
static inline struct sequence_pages *tier_pages_place(struct layout *layout, const struct kv_cache_config *config,
                                                      uint64_t columns) {
    struct sequence_pages *pages = layout_take(layout, 1, sizeof *pages), unused;
    struct sequence_pages *placed = pages != NULL ? pages : &unused;
    const size_t layers = config->layer_count, lanes = kv_lane_count(config);
    placed->written = layout_take(layout, layers, sizeof *placed->written);
    placed->index_written = layout_take(layout, layers, sizeof *placed->index_written);
    placed->complete = layout_take(layout, layers, sizeof *placed->complete);
    placed->quantized_end = layout_take(layout, layers, sizeof *placed->quantized_end);
    placed->held = layout_take(layout, lanes, sizeof *placed->held);
    placed->uses = layout_take(layout, lanes, (size_t)columns);
    return pages;
}
static inline size_t tier_pages_bytes(const struct kv_cache_config *config, uint64_t columns) {
    struct layout layout = {0};
    (void)tier_pages_place(&layout, config, columns);
    return layout.used;
}

/* Where a chunk in 4 bits is. */
static inline uint32_t kv_quantized_place(const struct kv_sequence *sequence, size_t layer, size_t head,
                                          uint64_t chunk) {
    return page_table_place(&sequence->quantized, kv_lane(&sequence->cache->config, layer, head), chunk);
}

/* Whether that chunk, once it is full, is 4 bits, on disk and in its slot. */
static inline bool kv_chunk_is_quantized(const struct kv_sequence *sequence, size_t layer, size_t head,
                                         uint64_t chunk) {
    const struct page_fractions *fractions = &sequence->pages->fractions;
    return kv_has_quantized(sequence) &&
           (fractions->layer_count == 0 ||
            page_fractions_is_quantized(fractions, layer, head, kv_heads(&sequence->cache->config, layer), chunk));
}

/* Where a full chunk is in the form that stays. */
static inline uint32_t kv_stored_place(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    return (kv_chunk_is_quantized(sequence, layer, head, chunk) ? kv_quantized_place : kv_chunk_place)(sequence, layer,
                                                                                                       head, chunk);
}

/* ---- kv_slots.c ---- */

/* Of a sequence whose writes have failed: what is lacking, STATUS_IO or STATUS_MEMORY; and the error, why they failed
 * and what RAM does not hold therefore. */
enum status tier_failure_status(const struct kv_sequence *sequence);
enum status tier_without_disk(const struct kv_sequence *sequence, enum status status, struct error *error,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));
void kv_tier_fail(struct kv_tier *tier, const struct error *error);
struct tier_pool *tier_pool_of(struct kv_tier *tier, const struct slot *slot);
/* The slot of a place, of either kind. */
struct slot *tier_slot_at(const struct kv_tier *tier, uint32_t place);
uint8_t *tier_slot_memory(const struct kv_tier *tier, const struct slot *slot);
bool tier_slot_is_quantized(const struct kv_tier *tier, const struct slot *slot);
/* The slot holds what is to stay in memory. */
bool tier_slot_is_resident(const struct kv_tier *tier, const struct slot *slot);
/* What it holds is on disk. */
bool tier_slot_is_clean(struct kv_tier *tier, struct slot *slot);
/* The document that has a chunk's page, or will have it; NULL: none. */
struct document *tier_document_of(const struct kv_sequence *sequence, uint64_t chunk);
uint64_t tier_vacant_slots(const struct tier_pool *pool); /* that can be had without an eviction */
/* The device reads the slot until the ticket is done. */
void tier_slot_read_until(struct kv_tier *tier, struct slot *slot, struct ticket ticket);
bool tier_is_read(struct kv_tier *tier);     /* slots that nobody pins, by the device */
bool tier_wait_reader(struct kv_tier *tier); /* for the oldest work that does; false: there is none */
/* A slot for a new chunk, after an eviction if need be; NULL: all are pinned, not on disk yet, or read by the
 * device. */
struct slot *tier_slot_take(struct kv_tier *tier, struct tier_pool *pool, bool scan);
void tier_slot_give(struct kv_tier *tier, struct slot *slot, struct kv_sequence *sequence, size_t lane, uint64_t chunk,
                    enum slot_state state);
void tier_slot_free(struct kv_tier *tier, struct slot *slot);
/* A sequence's chunk goes from its table; the slot is free unless others have it. */
void tier_slot_leave(struct kv_tier *tier, struct slot *slot, struct kv_sequence *sequence);
bool tier_slot_has_others(const struct kv_tier *tier, const struct slot *slot, const struct kv_sequence *sequence);
/* Another sequence that has the same page in memory, or on its way there, shares the slot; NULL: none has. */
struct slot *tier_slot_share(struct kv_tier *tier, struct kv_sequence *sequence, size_t lane, uint64_t chunk,
                             bool quantized);
uint8_t *tier_uses_at(struct kv_sequence *sequence, size_t lane, uint64_t chunk);
void tier_count_use(struct kv_tier *tier, struct slot *slot);
/* What was fetched is released: it goes before others; or it, or another that is used less. */
void tier_make_victim(struct kv_tier *tier, struct slot *slot);
void tier_admit(struct kv_tier *tier, struct slot *slot);

/* ---- kv_read.c ---- */

enum { TIER_READ_BATCH = 64 };

/* Pages of one document to be read together. */
struct read_batch {
    struct document *document;
    struct page_read reads[TIER_READ_BATCH];
    struct slot *slots[TIER_READ_BATCH];
    size_t count;
};

/* part_count 0: the whole page. */
void tier_batch_add(struct kv_tier *tier, struct read_batch *batch, struct slot *slot, size_t part_first,
                    size_t part_count);
void tier_batch_submit(struct kv_tier *tier, struct read_batch *batch);
/* Waits for at least count_min completions of requests. */
void tier_drain(struct kv_tier *tier, size_t count_min);
void tier_drain_all(struct kv_tier *tier);
/* A chunk that a sequence does not want any more, in both forms; waits for what is on its way there. */
void tier_forget_chunk(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk);
/* tier_slot_take, waiting if need be; NULL: no chunk may be evicted. */
struct slot *tier_slot_take_waiting(struct kv_tier *tier, struct tier_pool *pool, bool scan);
/* The same for a chunk that is in none of the pool, in SLOT_DIRTY. */
struct slot *tier_slot_dirty(struct kv_tier *tier, struct tier_pool *pool, struct kv_sequence *sequence, size_t lane,
                             uint64_t chunk);

/* ---- kv_parts.c ---- */

enum { TIER_PARTS_ALL = UINT8_MAX };

/* Requests that reading so much of a page takes at most, where nothing of it is in memory. */
size_t tier_requests_of(const struct kv_tier *tier, uint8_t blocks);
/* The slot's page lacks some of these blocks of 8 tokens (a bit each). */
bool tier_lacks(const struct kv_tier *tier, const struct slot *slot, uint8_t blocks);
/* Reads what it lacks. */
void tier_read_blocks(struct kv_tier *tier, struct read_batch *batch, struct slot *slot, uint8_t blocks);

/* ---- kv_key_index.c ---- */

/* Blocks of some chunks of a head, in the host's memory as a document has them: [chunk_count][key_index_bytes]. */
struct tier_blocks {
    size_t layer, head;
    uint64_t chunk_first;
    size_t chunk_count;
    uint8_t *memory;
};
/* From where they lie in the key index, on the tier's stream: neighbours by one copy. */
void tier_download_blocks(struct kv_sequence *sequence, const struct tier_blocks *blocks);
/* Reads and verifies those of one run, of one document, by any thread (document_read_key_index).  memory NULL: to where
 * they lie in the key index, which is in RAM. */
enum status tier_load_blocks(const struct kv_sequence *sequence, struct document *document,
                             const struct tier_blocks *blocks, struct error *why) STATUS_CHECKED;
/* Of a run, of all heads of the layer, whichever blocks->head is: by one read where they lie in the key index as in
 * the document.  memory: [heads][chunk_count]. */
enum status tier_load_run(const struct kv_sequence *sequence, struct document *document,
                          const struct tier_blocks *blocks, struct error *why) STATUS_CHECKED;
/* To the key index, from a span of MEMORY_SHARED that has a place for each run of blocks, of all heads of the layer, in
 * which tier_load_run has put what there is of it: neighbours by one copy. */
void tier_upload_runs(struct kv_sequence *sequence, const struct tier_blocks *blocks, struct span source);

/* A cut has made a chunk the growing one: its blocks of a layer are in memory again.  Nothing without
 * key_index_on_disk. */
enum status tier_reopen_blocks(struct kv_sequence *sequence, size_t layer, uint64_t chunk, struct error *error)
    STATUS_CHECKED;

/* ---- kv_fetch.c ---- */

/* The chunk's rows are changed from now on: it is in memory, and not on disk. */
enum status tier_make_dirty(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk,
                            struct error *error) STATUS_CHECKED;

/* ---- kv_divide.c ---- */

/* Who stays, from now on: lane_stays follows. */
void tier_set_residents(struct kv_tier *tier, struct kv_residents residents);
/* Divides the budget into slots, after the key index has changed. */
enum status tier_divide(struct kv_cache *cache, struct error *error) STATUS_CHECKED;
void tier_release_slots(struct kv_tier *tier);
void tier_release_bounce(struct kv_tier *tier);
/* Memory of slots that nobody has goes back to the system, if nobody has any. */
void tier_give_back(struct kv_cache *cache);
bool tier_is_divided(const struct kv_cache *cache);
uint64_t tier_used_bytes(const struct kv_cache *cache);
/* Bytes of slots that were ever used, key index, tables and buffers. */
uint64_t tier_host_bytes(const struct kv_tier *tier);

/* ---- kv_saved_states.c ---- */

/* For a document's next commit: of its states and those in memory the ones that would be missed most; where layers have
 * windows, the positions of these.  The three do nothing where no layer keeps a state or has a window. */
enum status tier_write_states(struct kv_sequence *sequence, struct document *document, struct error *error)
    STATUS_CHECKED;
/* For a sequence without tokens: the state of a document that it has behind token_count.  STATUS_DOCUMENT: damaged. */
enum status tier_load_state(struct kv_sequence *sequence, struct document *document, uint64_t token_count,
                            struct error *error) STATUS_CHECKED;
/* Those of a document that lie before the sequence's length, into one that takes its pages over. */
enum status tier_copy_states(struct kv_sequence *sequence, struct document *from, struct document *to,
                             struct error *error) STATUS_CHECKED;

/* ---- kv_write.c ---- */

/* A layer's chunks from the last one that was written up to chunk_end. */
enum status tier_write_chunks(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end, struct error *error)
    STATUS_CHECKED;
/* Of layers with windows, a chunk that no row to come sees: of all of them, in RAM and on disk; and of a layer those
 * of the batch that no row from `position` on sees, nor one behind a planned snapshot. */
void tier_drop(struct kv_sequence *sequence, uint64_t chunk);
void tier_drop_behind(struct kv_sequence *sequence, size_t layer, uint64_t position);
/* The key index of a layer's chunks [first, end), of all heads, which is in memory. */
enum status tier_write_key_index(struct kv_sequence *sequence, size_t layer, uint64_t first, uint64_t end,
                                 struct error *error) STATUS_CHECKED;
/* Copies the pages of one head that are in memory now into the document that is being written. */
enum status tier_copy_pages(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first, size_t count,
                            struct error *error) STATUS_CHECKED;
/* A write failed: what is in memory and not on disk stays there, and nothing more is written. */
void tier_stop_writing(struct kv_sequence *sequence, const struct error *why);

/* ---- kv_documents.c ---- */

/* See struct kv_tier. */
void tier_reclaim(struct kv_tier *tier, bool spill);
/* Chunks that have a document, written or to be written; 0: none has. */
uint64_t tier_sources_end(const struct kv_sequence *sequence);
/* Forgets the chunks and closes the documents of a sequence that goes. */
void tier_forget(struct kv_sequence *sequence);
void tier_truncate(struct kv_sequence *sequence, uint64_t token_count);
