/* What the files of the store share: checksums, where things lie, rows of the catalog, and the state of stores and
 * documents. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "cache/store/store.h"
#include "kernels/attention/kv_layout.h"

/* XXH3-128 in its canonical byte order. */
struct checksum {
    uint8_t bytes[16];
};
struct checksum checksum_of(const void *bytes, size_t count);
bool checksum_equal(const struct checksum *a, const struct checksum *b);
/* chain' = checksum of chain and next, one behind the other. */
void checksum_chain(struct checksum *chain, const struct checksum *next);
/* XXH3-64 in its canonical byte order, of a part of a page. */
struct part_sum {
    uint8_t bytes[8];
};
struct part_sum part_sum_of(const void *bytes, size_t count);
const char *part_sum_text(const struct part_sum *sum, char text[17]);
/* "0123456789abcdef..." into text[33]; returns text. */
const char *checksum_text(const struct checksum *checksum, char text[33]);

/* Where things lie (layout.c) */

enum { SEGMENT_CHUNKS = 16 }; /* consecutive chunks of a head that are neighbours on disk */

struct geometry {
    size_t layer_count;
    size_t chunk_pages; /* pages of one chunk over all layers and heads */
    size_t key_index_bytes;
    size_t page_bytes, tail_page_bytes; /* of the largest group */
    size_t group_count;
    struct geometry_group {
        size_t kv_head_count; /* of a layer */
        size_t chunk_bytes, page_bytes, tail_chunk_bytes, tail_page_bytes;
    } groups[STORE_GROUPS_MAX + 1];           /* that of layers without pages, STORE_GROUP_NONE, is zeros */
    uint8_t group_of[STORE_GROUP_LAYERS_MAX]; /* by layer, with more than one group */
    bool quantizes;                           /* pages, all or some: they are not what a tail is */
    size_t part_bytes, part_count;            /* of a page of rows; 0: pages are read whole */
    size_t page_sum_bytes;                    /* a page's checksum, and behind it those of its parts */
    size_t state_bytes;                       /* 0: there are none */
    struct store_windows windows;
    struct page_fractions fractions;
    struct geometry_span {
        uint64_t chunk_first;
        uint64_t offset; /* of its pages, from the first segment on */
        uint16_t quantized_before[PAGE_FRACTIONS_LAYERS_MAX +
                                  1]; /* pages in 4 bits of a head's segment, of the layers before */
    } spans[PAGE_SPANS_MAX];          /* [1 + fractions.later_count] */
    /* First pages that fractions.first_is_rows keeps in rows, of the layers before. */
    uint32_t kept_before[PAGE_FRACTIONS_LAYERS_MAX + 1];
};

/* STATUS_USAGE names the field that is out of bounds. */
enum status layout_check(const struct store_layout *layout, struct error *error) STATUS_CHECKED;
/* The layout as the catalog has it; text[STORE_TEXT_MAX]. */
void layout_format(const struct store_layout *layout, char *text);
/* The version of the format of a document, which its layout's text begins with: "version=2 ", or nothing, which is 1.
 * One that this loam does not read is another loam's: it is not used, not flagged and not removed unasked. */
enum {
    LAYOUT_VERSION_FIRST = 1,
    LAYOUT_VERSION_GROUPS = 2,
    LAYOUT_VERSION_STATES = 3,
    LAYOUT_VERSION_WINDOWS = 4,
    LAYOUT_VERSION_LAST = LAYOUT_VERSION_WINDOWS
};
bool layout_is_read(const char *text, unsigned *version);
/* STATUS_DOCUMENT: not what layout_format writes. */
enum status layout_parse(const char *text, struct store_layout *layout, struct error *error) STATUS_CHECKED;
void geometry_init(struct geometry *geometry, const struct store_layout *layout);
void geometry_without_parts(struct geometry *geometry);

/* A layer's group, and its heads; lanes are the heads of all layers, one after another. */
const struct geometry_group *geometry_group(const struct geometry *geometry, size_t layer);
size_t geometry_heads(const struct geometry *geometry, size_t layer);
size_t geometry_heads_max(const struct geometry *geometry);
size_t geometry_key_index_heads(const struct geometry *geometry, size_t layer); /* that have key index */
/* Commits name positions. */
bool geometry_has_positions(const struct geometry *geometry);
size_t layout_lanes(const struct store_layout *layout);
size_t geometry_lane(const struct geometry *geometry, size_t layer, size_t kv_head);
size_t geometry_layer_of(const struct geometry *geometry, size_t lane);
/* Bytes of the tails of one commit. */
uint64_t geometry_tails_bytes(const struct geometry *geometry);
/* States lie before the tails.  A commit names at most STORE_STATES_MAX of so many places; the others are for the next
 * one. */
enum { STATE_PLACES = STORE_STATES_MAX + 2, STATE_PART_BYTES = 256 << 10 /* that is written and read at once */ };
size_t state_place_bytes(const struct geometry *geometry);
uint64_t state_offset(const struct geometry *geometry, size_t place);

uint64_t chunks_full(uint64_t token_count);
/* Index of a page in tables [chunk][layer][head]. */
size_t page_index(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
uint64_t page_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
/* The page is rows, as they lie in memory. */
bool page_is_rows(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
/* Bytes of a page's chunk, and with its padding; the latter of the larger form. */
size_t page_chunk_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
size_t page_padded_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
size_t page_padded_max(const struct geometry *geometry);
uint64_t key_index_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk);
uint64_t tail_offset(const struct geometry *geometry, uint64_t generation, size_t layer, size_t kv_head);
/* Bytes of the tail's page that hold its token_count % 64 rows: whole blocks. */
size_t tail_bytes(const struct geometry *geometry, size_t layer, uint64_t token_count);
/* Where the last byte that this commit covers ends. */
uint64_t pages_end(const struct geometry *geometry, uint64_t token_count, uint64_t generation);
uint64_t key_index_end(const struct geometry *geometry, uint64_t token_count);
/* Room that a document of so many tokens takes at most, its rows in the catalog included; UINT64_MAX: no
 * disk is that large. */
uint64_t document_bytes_max(const struct geometry *geometry, uint64_t token_count);

/* Of layers with windows: pages of the first so many chunks; and what is reserved of them at a time, before they are
 * written.  The rest of a document is reserved when it is made. */
uint64_t window_pages_bytes(const struct geometry *geometry, uint64_t chunks);
uint64_t window_room_bytes(const struct geometry *geometry, uint64_t chunks);
uint64_t document_bytes_reserved(const struct geometry *geometry, uint64_t token_count);

/* Rows (catalog.c) */

struct document_row {
    uint64_t id, generation; /* generation: number of its last commit, 0 before the first */
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES];
    char model[STORE_TEXT_MAX], name[STORE_TEXT_MAX], layout[STORE_TEXT_MAX];
    int64_t created;
    int64_t prefix; /* prefix_of its tokens, 0 when there are fewer than 64 */
    uint64_t token_count, bytes;
    struct checksum chain; /* over the commits, each in its order */
    /* The checksum covers what is above. */
    uint64_t writer;              /* process that writes it or died doing so; 0: closed properly */
    char damaged[STORE_TEXT_MAX]; /* the reason; "": none */
    bool intact;                  /* the checksum is right */
};

struct commit_row {
    uint64_t document, number;
    uint64_t token_first, token_end; /* tokens of this commit */
    const void *tokens, *page_sums, *key_index_sums, *tail_sums;
    size_t tokens_bytes, page_sums_bytes, key_index_sums_bytes, tail_sums_bytes;
    struct checksum checksum; /* over all above */
};

/* States of a commit, behind its tail_sums: ascending positions, each with its place and its checksum, which is chained
 * over those of its parts. */
struct document_states {
    size_t count;
    struct document_state {
        uint64_t position;
        uint64_t place;
    } list[STORE_STATES_MAX];
};
struct state_entry { /* as it is stored */
    uint8_t position[8], place[8];
    struct checksum sum;
};
/* state_sums.c.  Of a commit of so many tokens; sums: [STATE_PLACES].  false: they cannot be. */
bool states_parse(const struct commit_row *commit, size_t tail_sums_bytes, struct document_states *states,
                  struct checksum *sums);
size_t states_format(const struct document_states *states, const struct checksum *sums, struct state_entry *entries);

/* Whether a document of these positions has the layer's pages of a chunk. */
bool page_is_kept(const struct geometry *geometry, const struct document_states *positions, size_t layer,
                  uint64_t chunk);
/* Bytes of pages of the first so many chunks that it does not have. */
uint64_t absent_bytes(const struct geometry *geometry, const struct document_states *positions, uint64_t chunks);

/* Identifies the first 64 tokens; never 0. */
int64_t prefix_of(const int32_t *tokens);

#define DOCUMENT_ID_MAX (UINT64_C(1) << 62)

struct catalog {
    const struct catalog_kind *kind; /* catalog_internal.h */
    struct sqlite3 *database;
    char *path; /* owned */
};

/* may_create: an empty or absent catalog becomes a new one; without, it is damage. */
enum status catalog_open(struct catalog *catalog, const struct io_folder *folder, bool read_only, bool may_create,
                         const char *vfs, struct error *error) STATUS_CHECKED;
void catalog_close(struct catalog *catalog); /* safe after a failed open */
/* A write transaction; begin waits a few seconds for that of another process. */
enum status catalog_begin(struct catalog *catalog, struct error *error) STATUS_CHECKED;
/* A moment that stays the same until catalog_rollback. */
enum status catalog_begin_read(struct catalog *catalog, struct error *error) STATUS_CHECKED;
enum status catalog_commit(struct catalog *catalog, struct error *error) STATUS_CHECKED;
void catalog_rollback(struct catalog *catalog);

/* Fills row->id: larger than id_used and than every id that the catalog names. */
enum status catalog_insert(struct catalog *catalog, uint64_t id_used, struct document_row *row, struct error *error)
    STATUS_CHECKED;
/* The catalog has a document of that geometry from now on, which loam did not always read; inside a transaction. */
enum status catalog_note_version(struct catalog *catalog, const struct geometry *geometry, struct error *error)
    STATUS_CHECKED;
/* All but the flag of damage. */
enum status catalog_update(struct catalog *catalog, const struct document_row *row, struct error *error) STATUS_CHECKED;
/* The rows go, and in their place a row of `removals` says so: what allows its files to be removed. */
enum status catalog_remove(struct catalog *catalog, uint64_t id, struct error *error) STATUS_CHECKED;
struct id_list {
    uint64_t *ids; /* [count]; the caller's to free */
    size_t count;
};
/* Of removed documents whose files may still be there, intact rows only. */
enum status catalog_removals(struct catalog *catalog, struct id_list *list, struct error *error) STATUS_CHECKED;
enum status catalog_forget_removal(struct catalog *catalog, uint64_t id, struct error *error) STATUS_CHECKED;
enum status catalog_flag(struct catalog *catalog, uint64_t id, const char *reason, struct error *error);
/* *found false: there is none. */
enum status catalog_find(struct catalog *catalog, uint64_t id, struct document_row *row, bool *found,
                         struct error *error) STATUS_CHECKED;
/* All rows by id; *rows is the caller's to free. */
enum status catalog_rows(struct catalog *catalog, struct document_row **rows, size_t *count, struct error *error)
    STATUS_CHECKED;
/* Whether its trees and indices are sound (reads all of it: 40 ms for 126 MiB in the page cache). */
enum status catalog_check(struct catalog *catalog, struct error *error) STATUS_CHECKED;
enum status catalog_bytes(struct catalog *catalog, uint64_t *bytes, struct error *error) STATUS_CHECKED;
/* Fills commit->checksum and *chain. */
enum status catalog_add_commit(struct catalog *catalog, struct commit_row *commit, struct checksum *chain,
                               struct error *error) STATUS_CHECKED;
/* Shows the commits in order; see returns false to stop.  Only for a candidate's tokens: nothing is verified. */
enum status catalog_see_tokens(struct catalog *catalog, uint64_t id,
                               bool (*see)(void *context, const int32_t *tokens, uint64_t count), void *context,
                               struct error *error) STATUS_CHECKED;
/* Shows the last one, of which token_end and tail_sums are set.  Only for a candidate's states: nothing is verified. */
enum status catalog_see_last(struct catalog *catalog, uint64_t id,
                             void (*see)(void *context, const struct commit_row *commit), void *context,
                             struct error *error) STATUS_CHECKED;
/* Where what a commit has is read to; NULL: to memory of the catalog's, until it was seen. */
struct commit_places {
    void *tokens, *page_sums, *key_index_sums, *tail_sums;
    bool key_index_sums_are_there; /* by catalog_read_key_index_sums: not read once more */
};
/* Reads the key index's checksums of the commits to where `place` says, and verifies nothing: catalog_see_commits
 * does, of what is there then.  *all: those of all commits. */
enum status catalog_read_key_index_sums(struct catalog *catalog, const struct document_row *row,
                                        void (*place)(void *context, const struct commit_row *commit,
                                                      struct commit_places *places),
                                        void *context, bool *all, struct error *error) STATUS_CHECKED;
/* Shows the commits in order, each with its checksum found right and in *chain.  place, or NULL: asked first, of a
 * commit that has its numbers and lengths, within the row's tokens; what is there if it is wrong must not be used.
 * may_have_grown: since the row was read, so that others may come behind its commits. */
enum status catalog_see_commits(struct catalog *catalog, const struct document_row *row,
                                void (*place)(void *context, const struct commit_row *commit,
                                              struct commit_places *places),
                                enum status (*see)(void *context, const struct commit_row *commit, struct error *error),
                                void *context, bool may_have_grown, struct error *error) STATUS_CHECKED;
/* Of documents that may begin with these 64 tokens; layout NULL: of any. */
enum status catalog_candidates(struct catalog *catalog, const uint8_t *fingerprint, const char *layout, int64_t prefix,
                               struct id_list *list, struct error *error) STATUS_CHECKED;

/* Stores and documents */

struct writer;

struct store {
    struct io_folder folder;
    struct store_options options; /* directory and vfs borrowed only during open */
    char *vfs;                    /* owned; NULL: SQLite's own */
    struct catalog catalog;       /* the engine's connection */
    struct writer *writer;        /* owned; NULL until something is written */
    size_t document_count;        /* open */
    size_t writing_count;         /* of these, for writing */
    char *warning;                /* owned; of store_warning; NULL: none */
    uint64_t *refused;            /* owned; [refused_count]: found damaged where the catalog cannot say so */
    size_t refused_count, refused_capacity;
    struct refused_state {
        uint64_t document, position;
    } * refused_states; /* owned; [refused_state_count]: found damaged */
    size_t refused_state_count, refused_state_capacity;
};

/* Bytes on their own cache line would cost a gigabyte; a byte per page will do: written by the writer's
 * thread (release), read by the engine's (acquire). */
enum page_state { PAGE_NONE, PAGE_QUEUED, PAGE_WRITTEN };

struct document {
    struct store *store; /* borrowed */
    struct store_layout layout;
    struct geometry geometry;
    uint64_t id;
    /* As of the last commit; a writer's is its thread's, once commits are asked for */
    struct document_row row;
    struct io_file pages, key_index;
    bool writing;
    bool flag;     /* what was found while it was opened belongs into the catalog */
    bool is_begun; /* of its commits there are the key index's checksums alone, and nothing is verified */
    uint64_t token_capacity;
    uint64_t chunk_capacity;
    int32_t *tokens;                          /* [token_capacity]; owned, and with it the other tables */
    uint8_t *page_sums;                       /* [chunk_capacity][layer][head][geometry.page_sum_bytes] */
    uint64_t parts_first;                     /* pages of chunks before it have no checksums of parts */
    struct checksum *key_index_sums;          /* [chunk_capacity][layer][head] */
    struct checksum *tail_sums;               /* [layer][head]; of the last commit */
    struct document_states states;            /* of the last commit that was asked for */
    struct document_states states_next;       /* of the one that comes */
    struct checksum state_sums[STATE_PLACES]; /* the writer's thread's until the document is flushed */
    /* What a writer has and its thread (writer.c) does not. */
    _Atomic uint8_t *page_states, *key_index_states; /* [chunk_capacity][layer][head] */
    uint8_t *tail_states;                            /* [layer][head]: written for the next commit */
    struct checksum *tail_next;                      /* [layer][head] */
    uint64_t window_room; /* bytes that are reserved, of pages of layers with windows, and not used */
    uint64_t tail_tokens; /* the length of the tail that tail_states are of */
    uint64_t asked_tokens, asked_generation; /* after the commits asked for */
    uint64_t opened_generation;
    _Atomic uint64_t committed_tokens;
    size_t pending;     /* commands not done; under the writer's lock */
    size_t in_flight;   /* requests of its queue; the writer thread's */
    enum status failed; /* under the writer's lock; the first failure */
    struct error failure;
};

/* files.c */
void document_file_name(char name[40], uint64_t id, const char *suffix);
enum status document_remove_files(struct store *store, uint64_t id, struct error *error) STATUS_CHECKED;
/* Calls see for every file of a document in the folder, until it returns something else than OK. */
enum status store_see_files(struct store *store,
                            enum status (*see)(struct store *store, const char *name, uint64_t id, void *context,
                                               struct error *error),
                            void *context, struct error *error) STATUS_CHECKED;
enum document_lock { LOCK_WRITER, LOCK_IN_USE }; /* bytes of N.pages */
/* The writer's lock, at once or not at all (STATUS_FULL names who has it) - but for a writer that has ended: the kernel
 * lets go of its files only when what io_uring had under way is done, so those are waited for, so long at most. */
enum status document_lock_writer(struct store *store, uint64_t id, struct io_file *pages, unsigned milliseconds,
                                 struct error *error) STATUS_CHECKED;

/* store.c */
/* Flags the document, as far as that is possible, and says so.  Returns STATUS_DOCUMENT. */
enum status store_flag(struct store *store, uint64_t id, struct error *error);
/* Makes space for so many bytes more; the catalog must not be in a transaction. */
enum status store_make_space(struct store *store, uint64_t needed, struct error *error) STATUS_CHECKED;
/* Whether they fit now; inside a transaction. */
enum status store_check_space(struct store *store, uint64_t needed, struct error *error) STATUS_CHECKED;

#define CONVERSATIONS_NAME "conversations.db" /* conversations.c; its bytes count */

/* It is not found again as long as the store is open. */
void store_refuse_state(struct store *store, uint64_t id, uint64_t position);
bool store_refuses_state(const struct store *store, uint64_t id, uint64_t position);

/* sweep.c: what was not committed is given back */
enum status store_sweep(struct store *store, struct error *error) STATUS_CHECKED;
/* Inside a transaction, with the writer's lock.  Gives back what lies behind the last commit and lowers the
 * reservation; without a commit the files become empty and the rows go; after the transaction the files may.
 * STATUS_DOCUMENT, and nothing was changed: the commits are not those of the row. */
struct document_files {
    struct io_file *pages, *key_index; /* NULL: there is none */
    /* A tail may have been written for the next commit.  It lies where the tail of the commit before lay, which others
     * may still read, so its place is given back only then. */
    bool tail_begun;
};
enum status document_give_back(struct store *store, struct document_row *row, const struct geometry *geometry,
                               const struct document_files *files, struct error *error) STATUS_CHECKED;

/* document.c */
enum status document_allocate(struct document **document, struct store *store, const struct store_layout *layout,
                              bool writing, struct error *error) STATUS_CHECKED;
enum status document_tables(struct document *document, uint64_t token_capacity, struct error *error) STATUS_CHECKED;
void document_free(struct document *document);
/* So many bytes of pages of layers with windows are about to be written: reserves more where that is used up.
 * STATUS_IO: within the limit, or on the disk, there is no room for them. */
enum status document_use_room(struct document *document, uint64_t bytes, struct error *error) STATUS_CHECKED;

/* find.c: STATUS_UNSUPPORTED, with the file and the versions found and expected. */
enum status document_is_other(const struct store *store, const struct document_row *row, struct error *error);

/* verify.c: to be read, whatever its model and layout are. */
enum status document_open_any(struct store *store, uint64_t id, struct document **document, struct error *error)
    STATUS_CHECKED;

/* document_write.c */
/* A whole document of these tokens and of the row's model and layout, but the row's own; *id 0: there is none. */
enum status document_find_same(struct store *store, const struct document_row *row, const struct geometry *geometry,
                               const int32_t *tokens, uint64_t *id, struct error *error) STATUS_CHECKED;

/* The writer in another process has gone on, so that other tails and states lie where ours did. */
bool document_has_grown(struct document *document);
/* A file of it ends too early.  Returns STATUS_DOCUMENT. */
enum status document_is_truncated(struct document *document, struct error *why, struct error *error);

/* page_sums.c: a page's checksum and those of its parts, in memory and in commits */
uint8_t *page_sum_at(const struct document *document, size_t index);
/* Of a page that is about to be written, zeros behind it. */
void page_sums_note(struct document *document, size_t layer, size_t kv_head, uint64_t chunk, const uint8_t *page);
/* Those of a commit of these positions, of pages of chunks [chunk_first, chunk_end): how many bytes, and into `sums`,
 * which has so many; NULL: only counted. */
size_t page_sums_give(const struct document *document, const struct document_states *positions, uint64_t chunk_first,
                      uint64_t chunk_end, void *sums);
size_t key_index_sums_give(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, void *sums);
/* From there, of pages of either form.  False: they have other bytes. */
bool page_sums_take(struct document *document, const struct document_states *positions, uint64_t chunk_first,
                    uint64_t chunk_end, const void *sums, size_t bytes);
bool key_index_sums_take(struct document *document, uint64_t chunk_first, uint64_t chunk_end, const void *sums,
                         size_t bytes);
/* Where a commit's list of so many bytes may be read to at once, as it is that part of the table; NULL: it is not. */
void *page_sums_place(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, size_t bytes);
void *key_index_sums_place(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, size_t bytes);
/* Parts of a stored page that have checksums of their own; 0: it is read whole. */
size_t page_sums_parts(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk);
/* Of the parts that were read.  False: *found at *part is not what was *expected. */
bool page_sums_check_parts(const struct document *document, const struct page_read *read, struct part_sum *found,
                           struct part_sum *expected, size_t *part);

/* writer.c: the thread that writes.  Functions of the engine's thread. */
enum { WRITE_BUFFERS_MAX = 2 }; /* buffers that one call of document_write_... takes at most */
enum status writer_start(struct store *store, const struct geometry *geometry, struct error *error) STATUS_CHECKED;
void writer_stop(struct writer *writer); /* after its documents are done; NULL is allowed */
size_t writer_buffer_bytes(const struct writer *writer);

enum write_kind { WRITE_PAGES, WRITE_TAIL, WRITE_KEY_INDEX, WRITE_STATE };
struct write_range {
    enum write_kind kind;
    struct document *document;
    size_t layer, kv_head, kv_head_count; /* one head but for the key index */
    uint64_t chunk;                       /* the first; of a tail: its token count; of a state: its place */
    size_t count;                         /* of each head; of a state: bytes, */
    size_t offset;                        /* and where they lie in it */
};
/* count free buffers, or none of them and false.  Every one taken must be submitted. */
struct buffer;
bool writer_take_buffers(struct writer *writer, size_t count, struct buffer **buffers);
uint8_t *writer_buffer_memory(struct buffer *buffer); /* [writer_buffer_bytes] */
void writer_submit(struct writer *writer, struct buffer *buffer, const struct write_range *range);
/* tokens: of the whole document; the new ones are copied. */
enum status writer_commit(struct writer *writer, struct document *document, const int32_t *tokens, uint64_t token_first,
                          uint64_t token_end, struct error *error) STATUS_CHECKED;
void writer_wait_buffer(struct writer *writer); /* for WRITE_BUFFERS_MAX */
void writer_wait_document(struct writer *writer, struct document *document);
bool writer_is_done(struct writer *writer, const struct document *document); /* that would not wait */
/* The document's first failure, or STATUS_OK. */
enum status writer_failure(struct writer *writer, struct document *document, struct error *error) STATUS_CHECKED;
