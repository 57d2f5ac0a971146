/* store: saved documents on disk (--kv-disk DIR): prefilled once, opened again without loading.
 *
 * A document is a sequence of token ids with the KV and the key index that one model computed for them.  DIR holds one
 * SQLite catalog, catalog.db (who, which tokens, a checksum for every page), and two files per document: N.pages and
 * N.metadata (docs/formats.md has all of it; docs/decisions/ says why).
 *
 *   page      a chunk (64 tokens of one KV head of one layer, kernels/attention/kv_layout.h), padded to
 *             4 KiB.  Its place in the file follows from layer, head and chunk; 16 consecutive chunks of a
 *             head are neighbours on disk however they were written.
 *   key index  what a selection reads, key_index_bytes per chunk: contiguous in a file of its own.
 *   tail      the chunk that is not full yet, in one of two places that commits use in turns.
 *   state     what layers without pages keep behind so many tokens, in one of a few places; a commit names those that
 *             hold, and none of them is written again before a later commit does without it.
 *   commit    makes a prefix of the document durable.
 *
 * Invariants:
 *   1  A page that a commit covers is never written again, and no byte of it is used before its checksum,
 *      which lies in the catalog, has been found right.
 *   2  Data is flushed before the catalog's transaction names it: kill -9 at any instant leaves the
 *      last committed prefix usable, and what was written behind it is overwritten or given back.
 *   3  A document is used only by the model (fingerprint) and the layout that it was made with.
 *   4  The rows of a document are chained by checksums: a row that is missing, stale, foreign or changed
 *      is refused as a whole.  What is refused is flagged in the catalog with the reason, never removed.
 *   5  One writer per document, any number of readers, in any number of processes.
 *   6  With a limit, files and catalog together never take more: room is reserved before anything is
 *      written.  It is made by removing whole documents that nobody has open, damaged ones first (but for
 *      those whose row is), then those unused for longest; when that does not suffice the answer is STATUS_FULL.
 *   7  A write or flush that failed ends that document's writing; what was committed stays as it is.
 *   8  Nothing is destroyed because something is missing.  Files are removed, or cut back, only on intact rows
 *      that say so, under their checksums, of a catalog whose trees and indices have been checked (but for
 *      the document that a writer is closing); whatever no row explains is left alone, counts against the
 *      limit, and is reported.
 *
 * Each document has a version of the format (docs/formats.md).  One of a version that this loam does not read is
 * neither used nor flagged (store_find_other).
 *
 * Status: STATUS_DOCUMENT (exit code 4) a catalog or document that is damaged, foreign or newer: recompute;
 * STATUS_IO (6) the disk or the folder; STATUS_FULL no room: in the write-behind buffers for now, or within
 * the limit.  Each with one line.
 *
 * Thread: the engine's.  Writes are write-behind: a thread of the store computes checksums, writes, flushes
 * and commits; reads go through an io_queue of the caller's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/page_fractions.h"
#include "platform/io_queue.h"

struct store;
struct document;

enum {
    STORE_FINGERPRINT_BYTES = 32,
    STORE_TEXT_MAX = 256, /* bytes of a name or description, with the zero */
    STORE_WORD_MAX = 48,  /* of a codec's or key index kind's name */
    STORE_LAYERS_MAX = 1024,
    STORE_HEADS_MAX = 1024,
    STORE_CHUNK_BYTES_MAX = 16 << 20,
    STORE_KEY_INDEX_BYTES_MAX = 1 << 20,
    STORE_STATE_BYTES_MAX = 1 << 30,
    STORE_STATES_MAX = 8, /* of a document */
};
#define STORE_TOKENS_MAX (UINT64_C(1) << 28)

struct store_options {
    const char *directory;
    uint64_t limit_bytes; /* of everything in the folder; 0: none */
    /* Nothing is written, not even flags of damage: what is refused is not found again as long as it is open.  The
     * folder may be another user's, if nobody but its owner may write in it; its files are that user's then. */
    bool read_only;
    /* Nothing is removed to make room: without room the answer is STATUS_FULL. */
    bool keeps_documents;
    size_t staging_bytes; /* of the write-behind buffers; 0: 8 MiB; at least two buffers are made */
    enum io_backend backend;
    const struct io_faults *faults; /* tests; NULL */
    const char *sqlite_vfs;         /* tests; NULL: SQLite's own */
    bool whole_pages;               /* tests: documents are made as before version 4, without sums of parts */
};

/* Makes the folder (0700) and the catalog when they are not there, and gives back what writers that were
 * killed had left behind (invariant 8).  A folder or catalog that cannot be written, but perhaps read: STATUS_IO with
 * os_error EROFS, EACCES or EPERM. */
enum status store_open(struct store **store, const struct store_options *options, struct error *error) STATUS_CHECKED;
/* A folder that has a catalog, for a look at its documents; neither is made.  STORE_LOOK reads; STORE_VERIFY writes,
 * so that what it finds damaged is flagged.  Each tries the other way where its own fails: a folder may be read-only,
 * and a commit that was killed must be undone.  STORE_CHANGE writes. */
enum store_purpose { STORE_LOOK, STORE_VERIFY, STORE_CHANGE };
enum status store_open_existing(struct store **store, const char *directory, enum store_purpose purpose,
                                struct error *error) STATUS_CHECKED;
void store_close(struct store *store); /* after its documents; NULL is allowed */
/* What the opening left alone because the catalog may be damaged, one line for the user; NULL: nothing.  Good
 * until store_close. */
const char *store_warning(const struct store *store);

/* Whether so many bytes more fit the limit, and the disk has them.  Nothing is reserved, and nothing removed.
 * STATUS_FULL: no, with both numbers. */
enum status store_check_room(struct store *store, uint64_t bytes, struct error *error) STATUS_CHECKED;

/* Who computed the KV: whatever changes a single bit of it belongs in the fingerprint (weights, tokenizer,
 * RoPE, KV types, ...). */
struct store_model {
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES];
    const char *description; /* for people, cut to STORE_TEXT_MAX */
};

/* Makes a fingerprint of bytes, one part after another; fingerprint begins as zeros. */
void store_fingerprint_add(uint8_t fingerprint[STORE_FINGERPRINT_BYTES], const void *bytes, uint64_t count);

/* Layers whose KV has another geometry than that of the first group, which is in the layout itself.  Pages of a
 * document with such layers are all of one form, and are read whole. */
enum { STORE_GROUPS_MAX = 4, STORE_GROUP_LAYERS_MAX = PAGE_FRACTIONS_LAYERS_MAX };
enum { STORE_GROUP_NONE = STORE_GROUPS_MAX }; /* of a layer without pages: it keeps a state */
struct store_groups {
    uint8_t later_count; /* 0: all layers are alike */
    struct store_group {
        char codec[STORE_WORD_MAX];
        uint32_t kv_head_count, chunk_bytes, tail_bytes; /* as in struct store_layout */
    } later[STORE_GROUPS_MAX - 1];
    uint8_t of_layer
        [STORE_GROUP_LAYERS_MAX]; /* 0: the layout's own; n: later[n - 1]; STORE_GROUP_NONE; zeros behind the last */
};

/* Layers whose rows attend to a window of so many tokens (cache/kv_windows.h).  Of these a document has the pages that
 * the windows of rows behind its positions see (document_states), and no key index. */
enum { STORE_WINDOW_LAYERS_MAX = PAGE_FRACTIONS_LAYERS_MAX };
struct store_windows {
    uint32_t tokens;                      /* of the largest window; 0: of all layers there is everything */
    bool slides[STORE_WINDOW_LAYERS_MAX]; /* false behind the last layer */
};

/* How its pages look.  Words are of a-z 0-9 . , + - and not empty. */
struct store_layout {
    char codec[STORE_WORD_MAX]; /* types and dimensions of a row, as "f16.64,q8.64" */
    uint32_t layer_count, kv_head_count;
    uint32_t chunk_bytes; /* of 64 tokens of one head of one layer; a multiple of 8 blocks */
    uint32_t tail_bytes;  /* of the same in a tail, where full chunks are compressed; 0: chunk_bytes */
    /* Where only these pages are of chunk_bytes, and the others of tail_bytes, as a tail */
    struct page_fractions fractions;
    char key_index_kind[STORE_WORD_MAX]; /* "none" with 0 bytes */
    uint32_t key_index_bytes;            /* per chunk of one head of one layer */
    struct store_groups groups;
    struct store_windows windows; /* not with states */
    uint32_t state_bytes;         /* of all layers without pages behind one position; 0: each layer has pages */
};

/* Whether pages look the same, but for fractions and key index. */
bool store_layout_same_pages(const struct store_layout *a, const struct store_layout *b);

/* Bytes that a page read moves, and that its target must have: chunk_bytes of the largest group rounded up to 4 KiB.
 * With fractions: of the pages that are in 4 bits; the others are as large as a tail. */
size_t store_page_bytes(const struct store_layout *layout);
size_t store_tail_bytes(const struct store_layout *layout); /* the same for a tail */

/* What a page of rows may be read in: parts of 4 KiB, or larger ones where those would be more than a page has blocks
 * of 8 tokens.  The last part may be shorter.  count 0: pages are read whole. */
enum { STORE_PARTS_MAX = 8 };
struct store_parts {
    size_t bytes, count;
};
struct store_parts store_page_parts(const struct store_layout *layout);

/* Searching */

struct store_match {
    uint64_t document; /* 0: none */
    /* That the document and the tokens have in common; with states, or windows: up to what it has. */
    uint64_t prefix_tokens;
    uint64_t token_count;       /* of the document */
    struct store_layout layout; /* the document's */
};

enum store_likeness {
    STORE_LIKE_KIND,  /* the layout, but for the fractions: pages keep their form */
    STORE_LIKE_ALL,   /* exactly this layout */
    STORE_LIKE_PAGES, /* its pages have this layout, whatever the key index is */
};
struct store_query {
    const struct store_model *model;
    const struct store_layout *layout;
    const int32_t *tokens; /* [token_count] */
    uint64_t token_count;
    enum store_likeness likeness;
};
/* Finds the document of this model that is so much like the layout and has the longest prefix in common with the
 * tokens, compared id by id; at least one whole chunk (64 tokens), else there is no match.  prefix_tokens need not be a
 * multiple of 64: the page that holds the last of them then has rows of other tokens behind, which must not be used. */
enum status store_find(struct store *store, const struct store_query *query, struct store_match *match,
                       struct error *error) STATUS_CHECKED;
/* Of documents with states, or windows: the longest prefix that one has in common with the tokens, and of which no
 * position helps; *document 0: there is none of a chunk or more. */
enum status store_find_stateless(struct store *store, const struct store_query *query, uint64_t *document,
                                 uint64_t *prefix_tokens, struct error *error) STATUS_CHECKED;

/* The longest prefix among documents of this model that have another version of the format than this loam reads; 0:
 * none that is longer than those of the documents that it does read.  *why: which one, of which version, and which is
 * expected.  Nothing else reads them; they stay until they are removed by id, or to make room.  The query's layout is
 * not read. */
enum status store_find_other(struct store *store, const struct store_query *query, uint64_t *prefix_tokens,
                             struct error *why, struct error *error) STATUS_CHECKED;

struct document_info {
    uint64_t id, token_count, commits;
    uint64_t bytes;        /* of the limit, reserved or used */
    int64_t created, used; /* seconds since 1970 */
    const char *name, *model, *layout;
    const struct page_fractions *fractions; /* of the layout; NULL: all pages have one form */
    const uint8_t *fingerprint;             /* [STORE_FINGERPRINT_BYTES] */
    const char *damaged;                    /* the reason, or NULL */
    unsigned version;                       /* of its format */
    bool is_other;                          /* which this loam does not read */
    bool in_use;                            /* somebody has it open */
};

/* Every document, oldest first, incomplete and damaged ones too; the texts are good during the call. */
enum status store_list(struct store *store, void (*see)(void *context, const struct document_info *info), void *context,
                       struct error *error) STATUS_CHECKED;
/* One of them, through the same function; STATUS_DOCUMENT: there is none of that id. */
enum status store_show(struct store *store, uint64_t id, void (*see)(void *context, const struct document_info *info),
                       void *context, struct error *error) STATUS_CHECKED;
/* The tokens that it holds, newly allocated.  STATUS_DOCUMENT: there is none of that id, or it is damaged;
 * STATUS_UNSUPPORTED: another version of the format. */
enum status store_tokens(struct store *store, uint64_t id, int32_t **tokens, uint64_t *count, struct error *error)
    STATUS_CHECKED;
/* STATUS_FULL: somebody has it open. */
enum status store_remove(struct store *store, uint64_t id, struct error *error) STATUS_CHECKED;
/* Reads all of the document.  STATUS_DOCUMENT names the first thing that is wrong; STATUS_UNSUPPORTED: another version
 * of the format. */
enum status store_verify(struct store *store, uint64_t id, struct error *error) STATUS_CHECKED;

/* Measuring */

struct store_rates {                   /* seconds */
    double page_seconds, tail_seconds; /* a page of chunk_bytes, of tail_bytes, many being read at random */
    double alone_seconds;              /* one of chunk_bytes, with nothing else under way */
};
/* Before a document of so many tokens is made: writes so many bytes (at least a page of the larger kind) into a file
 * of the folder that has no name, and reads pages of it for some 50 ms.  Within the limit: room is made as for the
 * document with all pages in 4 bits, which it needs at least, and nobody else takes of it meanwhile.  STATUS_FULL:
 * there is none. */
enum status store_measure(struct store *store, const struct store_layout *layout, uint64_t token_capacity,
                          uint64_t bytes, struct store_rates *rates, struct error *error) STATUS_CHECKED;

/* Documents */

struct document_description {
    const struct store_model *model;
    const struct store_layout *layout;
    const char *name;        /* for people: the file it came from; cut to STORE_TEXT_MAX */
    uint64_t token_capacity; /* the most tokens that it may have; their room is reserved now */
};

/* A new document, open for writing.  Nobody finds it before its first commit. */
enum status document_create(struct document **document, struct store *store,
                            const struct document_description *description, struct error *error) STATUS_CHECKED;

enum document_mode {
    DOCUMENT_READ,
    DOCUMENT_APPEND, /* go on behind its last commit.  STATUS_FULL: another writer has it (names the process); one
                        that was killed a moment ago is waited for */
};

/* Verifies everything but the pages and the key index, which are verified as they are read.  STATUS_DOCUMENT:
 * damaged (it is flagged, and will not be found again), of another model or layout, or gone.  token_capacity
 * as in the description; only for DOCUMENT_APPEND. */
enum status document_open(struct document **document, struct store *store, uint64_t id, const struct store_model *model,
                          const struct store_layout *layout, enum document_mode mode, uint64_t token_capacity,
                          struct error *error) STATUS_CHECKED;

/* The same in two steps, so that the key index may be read while megabytes of other checksums are read from the catalog
 * and verified.  Between the two document_read_key_index may be called, of chunks that were committed, and nothing that
 * it has read may be used; whoever is there may go on reading while the engine's thread ends the opening.  What the
 * second step finds damaged is flagged, and the document only to be closed. */
enum status document_open_begin(struct document **document, struct store *store, uint64_t id,
                                const struct store_model *model, const struct store_layout *layout,
                                enum document_mode mode, uint64_t token_capacity, struct error *error) STATUS_CHECKED;
enum status document_open_end(struct document *document, struct error *error) STATUS_CHECKED; /* nothing: it is open */

/* Changes the fractions of a document for pages that nobody has written yet, from a segment of 16 chunks on (a later
 * span; spans that begin there or later go).  Its room is reserved anew.  STATUS_FULL: there is none;
 * STATUS_USAGE: the catalog cannot hold so many spans of so many layers.  Then nothing has changed. */
enum status document_set_fractions(struct document *document, const struct page_fractions *fractions,
                                   struct error *error) STATUS_CHECKED;

/* Waits for what is being written and gives back what was not committed; all of a new document that has become a copy
 * of another (the same tokens, model and layout) and that nobody else has open.  Reads must have finished. */
void document_close(struct document *document); /* NULL is allowed */

/* The most bytes that a document of token_capacity takes in memory while it is open: its tokens, and the checksums and
 * states of its pages and key index. */
uint64_t document_memory_bytes(const struct store_layout *layout, uint64_t token_capacity);
uint64_t document_id(const struct document *document);
const struct store_layout *document_layout(const struct document *document);
/* Tokens committed.  A writer's own grows when its commits are done. */
uint64_t document_token_count(const struct document *document);
const int32_t *document_tokens(const struct document *document); /* [document_token_count] */

/* Writing.  Nothing here waits for the disk: bytes are copied into a buffer, and STATUS_FULL says that all
 * buffers are under way (go on computing, or call document_wait_buffer).  An earlier failure of the document is
 * returned by whatever is called next. */

/* Chunks [chunk_first, chunk_first + chunk_count), all full, behind the last commit, each written once but
 * for document_forget_pages; chunks[i]: layout.chunk_bytes bytes, or tail_bytes of those that are rows by
 * layout.fractions.  At most document_write_max chunks in a call. */
enum status document_write_pages(struct document *document, size_t layer, size_t kv_head, uint64_t chunk_first,
                                 size_t chunk_count, const void *const *chunks, struct error *error) STATUS_CHECKED;
size_t document_write_max(const struct document *document);
/* Blocks of the key index of chunks [chunk, chunk + count), at most document_write_key_index_max; of several KV heads
 * where they are a whole run of 16 from a multiple of 16 on, and STORE_BUFFER_BYTES_MIN at most: they are neighbours in
 * the file, and one write. */
enum { STORE_BUFFER_BYTES_MIN = 256 << 10 }; /* every buffer for writing has so many */
struct key_index_write {
    size_t layer, kv_head, kv_head_count;
    uint64_t chunk;
    size_t count;
    const void *memory; /* [kv_head_count][count][layout.key_index_bytes] */
};
enum status document_write_key_index(struct document *document, const struct key_index_write *write,
                                     struct error *error) STATUS_CHECKED;
size_t document_write_key_index_max(const struct document *document); /* of a layout that has a key index */
/* The chunk that is not full, for the next commit, which must be of this token_count; 8 blocks of tail_bytes. */
enum status document_write_tail(struct document *document, size_t layer, size_t kv_head, uint64_t token_count,
                                const void *chunk, struct error *error) STATUS_CHECKED;

/* A page that no commit needs that comes, nor one that was asked for: where it is on disk its place is given back. */
void document_drop_page(struct document *document, size_t layer, size_t kv_head, uint64_t chunk);
/* The first token_count tokens become durable, once everything that was written for them is.  All pages and
 * key index of the whole chunks behind the last commit must have been written (of layers with windows those that the
 * positions see that it will have) and, when token_count is no
 * multiple of 64, the tail of every layer and head.  tokens: the whole document's, [token_count]. */
enum status document_commit(struct document *document, const int32_t *tokens, uint64_t token_count, struct error *error)
    STATUS_CHECKED;

/* Pages of chunks from chunk_first on, of which no commit was asked for, will be written anew, with other rows.  Waits
 * for those that are on their way.  Fails as document_flush, and nothing has changed. */
enum status document_forget_pages(struct document *document, uint64_t chunk_first, struct error *error) STATUS_CHECKED;
/* Waits until a buffer is free. */
enum status document_wait_buffer(struct document *document, struct error *error) STATUS_CHECKED;
/* A write that waits for a buffer while all are under way; for functions with an `error`. */
#define DOCUMENT_WRITE(document, call)                                                              \
    do {                                                                                            \
        enum status write_status_;                                                                  \
        while ((write_status_ = (call)) == STATUS_FULL) TRY(document_wait_buffer(document, error)); \
        TRY(write_status_);                                                                         \
    } while (0)
/* Waits until all that was asked for is done: after it a commit is durable, or the status says why not. */
enum status document_flush(struct document *document, struct error *error) STATUS_CHECKED;
bool document_is_flushed(const struct document *document); /* document_flush would not wait */

/* A writer may read its own pages as soon as they are on disk, before any commit. */
bool document_page_written(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk);

/* Reading */

struct page_read {
    uint32_t layer, kv_head;
    uint64_t chunk; /* the chunk behind the last full one is the tail */
    /* [store_page_bytes; of the tail, and of rows, store_tail_bytes], aligned to IO_ALIGNMENT */
    void *memory;
    /* Only these parts of the page, each to its place in memory; part_count 0: all of it. */
    uint8_t part_first, part_count;
};

/* The parts in which that page may be read; 0: only whole, as a tail, a page in 4 bits, and pages of documents of
 * before version 4. */
size_t document_page_parts(const struct document *document, const struct page_read *read);

/* Whether that is the tail: it has other bytes than pages where those are compressed. */
bool document_read_is_tail(const struct document *document, const struct page_read *read);

/* Submits reads[*next ...] to the queue and raises *next; STATUS_FULL: the queue took no more for now.  Neighbours on
 * disk whose targets are neighbours in memory too become one request, but for parts of pages.  A completion's tag is
 * tag_first + the index of its first read; it covers ceil(its bytes / page bytes) of them, and of parts one. */
enum status document_read_pages(struct document *document, struct io_queue *queue, const struct page_read *reads,
                                size_t read_count, size_t *next, uint64_t tag_first) STATUS_CHECKED;

/* To be asked of every page or part that was read, before its bytes are used.  STATUS_DOCUMENT: they are not what was
 * committed; the document has been flagged, and the answer must be computed without it. */
enum status document_check_page(struct document *document, const struct page_read *read, struct error *error)
    STATUS_CHECKED;
/* Why a read of its pages failed.  A file that ends before is damage like any other (STATUS_DOCUMENT, flagged); else
 * it is the disk's failure. */
enum status document_read_failed(struct document *document, const struct io_completion *completion, struct error *error)
    STATUS_CHECKED;

/* States.  Positions are counts of tokens: of documents with windows those whose next row finds its window, each with
 * a state of no bytes. */

/* Those that the last commit names that was asked for, ascending; how many. */
size_t document_states(const struct document *document, uint64_t positions[STORE_STATES_MAX]);
/* For the next commit: it is not named any more.  Nothing where there is none. */
void document_forget_state(struct document *document, uint64_t position);
/* How many more document_write_state has places for before that commit. */
size_t document_state_room(const struct document *document);
/* One that the document does not have, for the next commit, of at least so many tokens; there is room.  `fill` gives
 * its bytes in order, into the write-behind buffers; waits for those. */
enum status document_write_state(struct document *document, uint64_t position,
                                 enum status (*fill)(void *context, size_t offset, void *memory, size_t bytes,
                                                     struct error *error),
                                 void *context, struct error *error) STATUS_CHECKED;
/* Of document_states.  memory: store_state_part_bytes, from a multiple of IO_ALIGNMENT on, through which it is read;
 * NULL: of its own.  `take` gets its bytes in order; they count when all of it returned STATUS_OK.  STATUS_DOCUMENT:
 * damaged (store_find does not count on it any more; the document's pages, and its other states, are as good as
 * before), or the document has grown. */
size_t store_state_part_bytes(uint64_t state_bytes);
enum status document_read_state(struct document *document, uint64_t position, void *memory,
                                enum status (*take)(void *context, size_t offset, const void *memory, size_t bytes,
                                                    struct error *error),
                                void *context, struct error *error) STATUS_CHECKED;

/* Blocks of the key index of chunks [chunk, chunk + count), none of them behind a multiple of 16 that the first is
 * before: neighbours in the file.  So are those of several KV heads where count is 16. */
struct key_index_read {
    size_t layer, kv_head, kv_head_count;
    uint64_t chunk;
    size_t count;
    void *memory; /* [kv_head_count][count][key_index_bytes] */
};

/* Reads and verifies them, through the page cache, and waits; document_open has asked for the whole file already.  Of a
 * document that is being written, those that are on disk, committed or not.  By any thread, and by several: what failed
 * is for document_key_index_failed, which the document's own thread calls.  STATUS_DOCUMENT: they are damaged. */
enum status document_read_key_index(struct document *document, const struct key_index_read *read, struct error *why)
    STATUS_CHECKED;
/* Flags the document if `why` says damage; returns why->status. */
enum status document_key_index_failed(struct document *document, struct error *why, struct error *error) STATUS_CHECKED;
/* Both, for all heads of a layer: memory[kv_head][16][key_index_bytes], of which the first chunk_count of each head are
 * set. */
enum status document_read_key_index_run(struct document *document, size_t layer, uint64_t chunk_first,
                                        size_t chunk_count, void *memory, struct error *error) STATUS_CHECKED;
/* Asks the system for what will be read, and does not wait. */
void document_prefetch_key_index(struct document *document, size_t layer, uint64_t chunk_first, uint64_t chunk_count);
/* Of all heads. */
bool document_key_index_written(const struct document *document, size_t layer, uint64_t chunk_first,
                                uint64_t chunk_count);
