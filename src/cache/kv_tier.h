/* kv_tier: KV that does not fit in RAM.  The host tier is slots under a budget; the disk tier is pages of saved
 * documents (cache/store/store.h).
 *
 * A chunk (64 tokens of one KV head of one layer) is on disk, or in a slot, or both.  Its page is written once, when
 * the chunk is full, behind the computation; from then on eviction only forgets the slot.  Attention fetches the chunks
 * of one head (struct kv_fetch), computes and releases them, while those of the next heads are being read.
 *
 *   free -> reading -> clean -> free              a page read from disk
 *   free -> dirty -> queued -> clean -> free      rows computed here; queued: the page is on its way to the disk
 *
 *   1  A slot is free, or holds one chunk; the page tables of the sequences that have it say where.
 *   2  Only clean slots with no pins are evicted.  The chunk that rows are appended to is dirty.
 *   3  A fetch is ready when all of its chunks are in memory and their checksums were right.  The chunks stay there
 *      until it is released.
 *   4  Slots in use <= slots counted.  Slots, key index (but in a device's own memory), the tables of both and of an
 *      open document for each sequence, and write buffers together <= host_bytes at every instant: all of it is counted
 *      at the start.
 *   5  A page that cannot be read, or is not what was written, fails the tier for good, with the reason
 *      (kv_tier_failure); nothing of it is attended to.  While a document is being opened it fails the opening alone.
 *   6  A write that fails ends the writing of its sequence, not the sequence: what is on disk is read from there, the
 *      rest stays in RAM.  When RAM does not hold the rest, kv_tier_full gives the write's reason.
 *
 * Shared pages.  Sequences over the same document have its pages in memory once: one that wants a page which another
 * has, or is reading, takes over its place.  So with the key index: its columns are shared.  Whoever is about to
 * change rows or blocks, behind a cut, gets a copy first.  Tails are never shared: who goes on changes them.
 *
 * Resident layers.  The chunks of the first resident_layers layers stay in RAM (LeoAM: "first layers never on disk"),
 * in the form in which they are chosen from.  They are written like all others, and read once, when a document is
 * opened.  A budget that does not hold so many layers keeps fewer, the first ones.  Heads of later layers stay in the
 * same way (kv_tier_set_resident_heads), as many as the budget holds beside those layers.
 *
 * 4-bit pages.  With quantized_pages a full chunk is quantized to 4 bits (kernels/codec), on disk and in its slot, and
 * attention to chosen rows reads it so.  Slots are then of two kinds, plain (rows) and quantized.  Attention over
 * everything reads rows: its chunks are decoded into plain slots, from the quantized slot or from the page; these
 * copies may always go.  A growing chunk is plain, in RAM and as the tail of a document.  It is quantized as soon as
 * its last row has been stored and attended to, whether or not it is ever written: what is attended to does not depend
 * on the budget.
 *
 *   plain: free -> dirty -> free, when quantized          quantized: free -> dirty -> queued -> clean -> free
 *          free -> reading -> clean -> free, copies                  free -> reading -> clean -> free
 *
 * Mixed pages.  With mixes_pages only some of each layer's chunks are quantized (cache/page_fractions.h); the others
 * stay plain, on disk and in their slots, and are copies of nothing.  A sequence has the fractions of its first
 * document, which may change for chunks that come (kv_sequence_change_fractions), and what it attends to depends on
 * nothing else.  Slots are divided by the first sequence's fractions.
 *
 * Pages in parts.  A fetch may want some blocks of a chunk alone.  Its slot then holds those parts of the page that
 * somebody wanted (store.h); a later fetch reads what it lacks, while others may be attending to what is there.  Pages
 * in 4 bits, tails and pages without checksums of parts are read whole.
 *
 * Windows (decision 0110).  Of layers that slide a sequence has the chunks that kv_windows.h says.  Those that a
 * planned snapshot sees are written like others; the rest by the commit that needs them, or when no slot can be had.
 * One that no window sees is forgotten, in RAM and on disk.
 *
 * Groups of layers.  A slot is as large as the largest chunk of any group, so that each holds any chunk; on disk a page
 * is as large as its own layer's chunk, and with more than one group it is read whole.
 *
 * Key index on disk (LeoAM's lightweight abstracts).  With key_index_on_disk the blocks of full chunks are in the
 * documents alone, each under its checksum.  A layer that chooses reads its blocks in the order of the file
 * (kv_sequence_load_key_index); two layers' blocks are in memory at once, this one's and the next one's, or this
 * one's alone (key_index_places).  Full chunks are then written at once by every sequence, and invariant 6 ends at the
 * next full chunk: there is no room for its block.
 *
 * After a cut back into a quantized chunk its rows stay rounded.  Abstracts were made of the exact keys: at 64 tokens
 * they bound the rounded keys too, at fewer these may exceed them by a thirtieth of the chunk's range.
 *
 * Eviction.  Among chunks that a scan fetched (attention over everything) the latest is evicted first, so that a scan
 * larger than the budget finds the rest still there the next time.  A scan has at most a quarter of the slots on their
 * way (behind rebuilding half, and beside it seven eighths, since nothing is released before it ends), and neighbouring
 * chunks get neighbouring slots, so that one request reads many pages.  Among chunks that were fetched for a choice,
 * those that are used less often are evicted first (access frequency, LeoAM section 4.1).
 *
 * Slots lie in MEMORY_SHARED, and the key index where the device has no memory of its own.  Thread: the engine's.
 */
#pragma once

#include "base/counter.h"
#include "cache/kv_cache.h"
#include "cache/store/store.h"
#include "platform/trace.h"

/* A cache whose chunks are in RAM under config->host_bytes, and on disk. */
enum status kv_tier_create(struct kv_cache **cache, struct device *device, const struct kv_cache_config *config,
                           struct error *error) STATUS_CHECKED;

/* What one KV head needs for one attention: begun in order, released in any. */
struct kv_fetch {
    struct kv_sequence *sequence;
    size_t layer_index, kv_head;
    const uint32_t *chunks; /* [chunk_count] ascending, borrowed until released; NULL: from chunk_first on */
    uint64_t chunk_first;
    size_t chunk_count;
    /* [chunk_count], borrowed with `chunks`: which blocks of 8 tokens of each, a bit each, are attended to.  The others
     * may not be in memory.  NULL: all of them. */
    const uint8_t *blocks;
    bool is_prefetch; /* takes only slots that may be evicted now, and is not counted as a use of a chunk */
    bool scan;        /* all of a head's chunks, in order, step after step */
    bool ahead;       /* others are attended to first: it waits for no work of the device */
    bool beside;      /* a scan's, read while other chunks are computed: none is released before that ends */
    bool stays;       /* what was read is soon wanted again: it is no victim when it is released */
    bool quantized;   /* full chunks may come in 4 bits, where the tier has them in 4 bits; else all come as rows */
    /* Set by the tier; all count chunks. */
    size_t pinned;        /* with a slot */
    size_t arrived;       /* pinned and in memory */
    size_t missed;        /* read from disk */
    size_t prefetch_hits; /* found in memory because a prefetch had read them */
};

/* The most chunks, of all heads, that fetches beside computing may hold. */
uint64_t kv_tier_beside_chunks(const struct kv_cache *cache);
static inline uint64_t kv_slots_beside(uint64_t slots) { return slots / 8 * 7; } /* of so many */
/* Takes slots and starts reads, as far as there are slots.  Returns whether all chunks have a slot now; if not, call
 * again after something was released.  Reads gather until they are flushed, or somebody waits. */
bool kv_fetch_begin(struct kv_fetch *fetch);
void kv_fetch_flush(struct kv_fetch *fetch);    /* of all fetches of its cache */
bool kv_fetch_is_ready(struct kv_fetch *fetch); /* takes completions, without waiting */
/* Waits until it is ready.  The fetch must have all its slots. */
enum status kv_fetch_wait(struct kv_fetch *fetch, struct error *error) STATUS_CHECKED;
/* Holds its chunks, which must all be in memory, in RAM for the steps to come, as far as others leave slots
 * (residency.h).  more: the head also keeps those that it holds already; else these may be evicted. */
void kv_fetch_hold(const struct kv_fetch *fetch, bool more);
void kv_fetch_release(struct kv_fetch *fetch); /* a fetch that was begun in part, too */
/* The same while work of the device still reads the chunks: their slots are taken once the ticket is done. */
void kv_fetch_release_after(struct kv_fetch *fetch, struct ticket ticket);

/* Whether RAM has room for chunk_count more chunks of rows of every head, without evicting others. */
bool kv_sequence_has_room(const struct kv_sequence *sequence, uint64_t chunk_count);
/* Takes free slots for chunks [chunk_first, chunk_first + chunk_count) of a layer, full ones of a document, which the
 * caller computes instead of reading them: it writes the rows of every head to where the view shows them.  false: there
 * are no such slots, or some of the chunks are on their way; nothing has changed. */
bool kv_sequence_begin_computing(struct kv_sequence *sequence, size_t layer_index, uint64_t chunk_first,
                                 uint64_t chunk_count);
/* The first computed_count of them have their rows, and are from now on like chunks that were read; the slots of the
 * others are free again.  ticket: as in kv_fetch_release_after. */
void kv_sequence_end_computing(struct kv_sequence *sequence, size_t layer_index, uint64_t chunk_first,
                               uint64_t chunk_count, uint64_t computed_count, struct ticket ticket);

/* Gets slots for the rows [position_first, position_first + row_count) of a layer, to be written now.  STATUS_MEMORY:
 * no slot may be evicted. */
enum status kv_sequence_open_rows(struct kv_sequence *sequence, size_t layer_index, uint64_t position_first,
                                  uint64_t row_count, struct error *error) STATUS_CHECKED;
/* With key_index_on_disk, around building the key index of a layer's rows [position_first, position_end): the block of
 * the chunk that grows, and those that it is built of, come to where the view shows them, and it is kept.  On the
 * stream.  Nothing in other caches.  STATUS_DOCUMENT: damaged. */
enum status kv_sequence_open_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                       uint64_t position_first, uint64_t position_end, struct error *error)
    STATUS_CHECKED;
void kv_sequence_keep_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                uint64_t position_end);
/* Reads all of the layer's key index into memory, checks it and waits.  It stays until a layer other than the next one
 * is loaded or appended to.  stream: that it is built on.  Does nothing in other caches.  STATUS_DOCUMENT: damaged. */
enum status kv_sequence_load_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                       struct error *error) STATUS_CHECKED;
/* Writes a layer's full chunks of the first token_count tokens to the disk, behind the computation.  Without a document
 * to write to they stay in RAM.  Without slots to quantize them into (kv_tier_full) it may be called again. */
enum status kv_sequence_write(struct kv_sequence *sequence, size_t layer_index, uint64_t token_count,
                              struct error *error) STATUS_CHECKED;
/* Chunks that are complete in front of a row have the form that they keep, on which slots of a device rely.  True in
 * other caches. */
bool kv_sequence_keeps_forms(const struct kv_sequence *sequence, size_t layer_index, uint64_t position);

/* How documents have the chunks of such a cache, but for the names of codecs and of the key index. */
struct store_layout kv_tier_store_layout(const struct kv_cache_config *config);

/* Where the KV of a sequence comes from and goes to. */
struct kv_backing {
    struct store *store; /* borrowed; NULL: no disk, everything must fit */
    struct store_model model;
    struct store_layout layout;
    const char *name; /* borrowed; of the document, for people */
    /* Builds the key index of rows of a layer whose K is in memory, at once; NULL: there is none. */
    enum status (*build_key_index)(void *context, struct kv_sequence *sequence, size_t layer_index,
                                   uint64_t position_first, uint64_t row_count, struct error *error);
    void *build_context;
};
/* For an empty sequence, once. */
void kv_sequence_set_backing(struct kv_sequence *sequence, const struct kv_backing *backing);
/* Keeps what is computed in RAM: the sequence has no document, or one that it only reads, because of `why`, which
 * kv_tier_full gives when RAM is full.  `why` was reported already, so kv_sequence_flush does not repeat it. */
void kv_sequence_keep_in_ram(struct kv_sequence *sequence, const struct error *why);
/* Whether RAM will hold what such a sequence computes until it has token_count tokens, while older chunks of any head
 * come from the disk; resident layers make room.  All other possible sequences are taken to need as much.  STATUS_OK
 * for any sequence that writes a document.  STATUS_IO or STATUS_MEMORY, as kv_tier_full. */
enum status kv_sequence_holds(struct kv_sequence *sequence, uint64_t token_count, struct error *error) STATUS_CHECKED;
/* For an empty sequence without documents, where pages are mixed: what it will be saved with, and has in memory whether
 * it is saved or not.  Slots that nobody has used yet are divided anew. */
enum status kv_sequence_set_fractions(struct kv_sequence *sequence, const struct page_fractions *fractions,
                                      struct error *error) STATUS_CHECKED;
/* Whether kv_sequence_set_fractions would divide slots: nobody uses any. */
bool kv_sequence_divides_slots(const struct kv_sequence *sequence);
/* For a sequence that grows, with a document: adds a last span of fractions behind all that it has.  Layers with
 * resident heads keep their fractions, and slots stay divided as they are.  Fails as document_set_fractions. */
bool kv_sequence_may_change_fractions(const struct kv_sequence *sequence);
enum status kv_sequence_change_fractions(struct kv_sequence *sequence, const struct page_fractions *wanted,
                                         struct error *error) STATUS_CHECKED;
/* NULL: it has none, or none yet. */
const struct page_fractions *kv_sequence_fractions(const struct kv_sequence *sequence);
/* Gives the sequence the first token_count tokens of a document, which becomes the sequence's and is closed with it.
 * Reads the key index of full chunks, and the chunk that will be appended to, whose key index is to be built anew.  The
 * document's fractions become the sequence's; where pages are mixed, a document of plain pages has fractions of zero.
 * writable: the document is opened to be appended to, and token_count is all of it. */
enum status kv_sequence_open_document(struct kv_sequence *sequence, struct document *document, uint64_t token_count,
                                      bool writable, struct error *error) STATUS_CHECKED;
/* For a sequence that only reads its document: what is computed from here on is saved in a new one, into which the
 * pages so far are copied, checked.  When it fails the sequence is as it was, if there is no room for a document, or
 * empty (kv_sequence_close_documents), if what is copied could not be read. */
enum status kv_sequence_copy_document(struct kv_sequence *sequence, uint64_t token_capacity, struct error *error)
    STATUS_CHECKED;
/* What its K and V are computed from (cache/inputs.h), taken over: committed, cut back and closed with the sequence's
 * documents.  NULL: nothing is kept. */
struct inputs;
void kv_sequence_set_inputs(struct kv_sequence *sequence, struct inputs *inputs);
struct inputs *kv_sequence_inputs(const struct kv_sequence *sequence);
/* Reads some of its documents' pages that are not in memory into slots that hold nothing, and waits for them: for times
 * in which nothing is computed.  No chunk goes for it.  Each page is looked at once.  *more: there is more to read.
 * Nothing in other caches.  STATUS_DOCUMENT: damaged. */
enum status kv_sequence_warm(struct kv_sequence *sequence, bool *more, struct error *error) STATUS_CHECKED;
/* The document that it writes to, or else one that has all of its tokens, tokens[length]; 0: none. */
uint64_t kv_sequence_document(const struct kv_sequence *sequence, const int32_t *tokens);
/* Its first token_count tokens are in that document; behind a commit that is under way, too. */
bool kv_sequence_is_committed(const struct kv_sequence *sequence, const int32_t *tokens, uint64_t token_count);
/* Of the document that it writes. */
uint64_t kv_sequence_committed_tokens(const struct kv_sequence *sequence);
/* Whether it has that document open. */
bool kv_sequence_uses_document(const struct kv_sequence *sequence, uint64_t id);
/* An empty sequence again, without documents. */
void kv_sequence_close_documents(struct kv_sequence *sequence);
/* A new document that the sequence's KV will be saved in (kv_sequence_commit). */
enum status kv_sequence_create_document(struct kv_sequence *sequence, uint64_t token_capacity, struct error *error)
    STATUS_CHECKED;
/* The sequence is being saved: commits will name all of its tokens. */
bool kv_sequence_is_saved(const struct kv_sequence *sequence);
/* Makes the stored tokens durable, behind the computation.  tokens: [kv_sequence_length]. */
enum status kv_sequence_commit(struct kv_sequence *sequence, const int32_t *tokens, struct error *error) STATUS_CHECKED;
/* Waits until the last commit is durable.  The first failure of a write, of whatever kv_sequence_write and
 * kv_sequence_commit asked for since the sequence was made; those two go on without the disk and say nothing. */
enum status kv_sequence_flush(struct kv_sequence *sequence, struct error *error) STATUS_CHECKED;
bool kv_sequence_is_flushed(const struct kv_sequence *sequence); /* kv_sequence_flush would not wait */

/* Keeps the chunks of more KV heads in RAM, beside the resident layers: of lanes (kv_lane, each once, the most wanted
 * first) as many of the first ones as the budget holds whole beside list_bytes of rows of lists
 * (struct kv_cache_config).  Call before there is KV in the tier. */
enum status kv_tier_set_resident_heads(struct kv_cache *cache, const uint32_t *lanes, size_t count, uint64_t list_bytes,
                                       struct error *error) STATUS_CHECKED;
/* [kv_lane]: the head is one of those, or of a resident layer.  The tier's, and changes with it. */
const bool *kv_tier_staying(const struct kv_cache *cache);

struct kv_tier_statistics { /* since the cache was made; bytes of pages */
    uint64_t read_bytes, read_pages, write_bytes;
    uint64_t read_requests;             /* neighbours on the disk are read in one; parts of a page in several */
    uint64_t hits, misses;              /* chunks that were fetched to be attended to */
    uint64_t prefetched, prefetch_hits; /* chunks that were prefetched; hits on such chunks */
    uint64_t wait_ns;                   /* time in which nothing could be computed */
    uint64_t key_index_read_bytes;      /* with key_index_on_disk */
    uint64_t host_bytes;                /* slots that were ever used, key index, tables and buffers */
    uint64_t resident_read_pages;       /* those of read_pages that are of resident layers */
    size_t resident_layers;             /* the first ones, which stay in RAM */
    size_t resident_heads;              /* of later layers, which stay, too */
    uint64_t held;                      /* chunks that heads hold now */
};
extern const struct counter_table kv_tier_counters;
struct kv_tier_statistics kv_tier_statistics(const struct kv_cache *cache);
/* Reads are shown in a trace (platform/trace.h), borrowed, from now on.  Nothing where there is no tier. */
enum status kv_tier_set_trace(struct kv_cache *cache, struct trace *trace, struct error *error) STATUS_CHECKED;
/* No slot can be had, and why: the tier's failure, STATUS_IO when writing has failed, else STATUS_MEMORY. */
enum status kv_tier_full(const struct kv_cache *cache, struct error *error);
/* The first failure; STATUS_OK: none. */
enum status kv_tier_failure(const struct kv_cache *cache, struct error *error) STATUS_CHECKED;
/* The document whose page could not be read; 0: there is no failure, or it was another. */
uint64_t kv_tier_failed_document(const struct kv_cache *cache);

/* What lies in a device's own memory: the key index, where that is not on disk, states, and page tables as the device
 * has them. */
uint64_t kv_tier_device_bytes(const struct kv_cache_config *config);
/* The least host_bytes of a configuration, with key_index_bytes per chunk; for messages. */
uint64_t kv_tier_bytes_min(const struct kv_cache_config *config);
/* Of slots for the whole contexts of so many KV heads, in rows. */
uint64_t kv_tier_heads_bytes(const struct kv_cache_config *config, size_t head_count);
/* Where so many of 16 pages are in 4 bits: slots for full chunks that host_bytes has, and bytes of a page, the mean of
 * all, as it is read whole. */
uint64_t kv_tier_chunk_slots(const struct kv_cache_config *config, uint8_t quantized_of_16);
double kv_tier_page_bytes(const struct kv_cache_config *config, uint8_t quantized_of_16);
/* Slots for so many bytes of K and V: chunks in whole pages, each with a row of a table. */
uint64_t kv_tier_slots_bytes(const struct kv_cache_config *config, uint64_t kv_bytes);
/* The host_bytes that leave kv_bytes for slots. */
uint64_t kv_tier_bytes_around(const struct kv_cache_config *config, uint64_t kv_bytes);
