/* parcel: a saved document as one file, to be carried to another folder (docs/formats.md has its bytes).
 *
 * A parcel holds a document whole: what identifies it, its tokens, its pages, its key index.  A second one may follow
 * that belongs to it: the kept inputs of its layers (cache/inputs.h).  It is a sequence of blocks, each followed by the
 * checksum of everything before it, so that no byte is used before it was found right, and nothing can be left out,
 * repeated or exchanged.
 *
 * Taking one in makes nothing visible before all of it was found right: pages are written as of a new document, and
 * the commit comes last.  A process that is killed before leaves what a killed writer leaves (store.h, invariant 2).
 *
 * Memory: the tables of an open document (document_memory_bytes), and some megabytes.  Thread: that of the store.
 */
#pragma once

#include "cache/store/store.h"

enum { PARCEL_DOCUMENTS_MAX = 2 };

/* Making one */

struct parcel;

/* The documents keep being open until parcel_close.  fingerprint: that the parcel gives as theirs; NULL: their own.
 * STATUS_DOCUMENT: there is none of that id, it is damaged, or it has no commit. */
enum status parcel_open(struct parcel **parcel, struct store *store, const uint64_t *ids, size_t count,
                        const uint8_t *fingerprint, struct error *error) STATUS_CHECKED;
uint64_t parcel_bytes(const struct parcel *parcel);
const char *parcel_name(const struct parcel *parcel); /* of its first document, for people */
/* The checksum of what was read so far; at the end, of all of it but these bytes, which are its last. */
enum { PARCEL_SUM_BYTES = 16 };
const uint8_t *parcel_sum(const struct parcel *parcel); /* [PARCEL_SUM_BYTES] */
/* Its next bytes, at most `bytes`; *read 0: that was all.  STATUS_DOCUMENT: the document is damaged, and flagged. */
enum status parcel_read(struct parcel *parcel, void *memory, size_t bytes, size_t *read, struct error *error)
    STATUS_CHECKED;
void parcel_close(struct parcel *parcel); /* NULL is allowed */

/* Taking one in */

struct parcel_source {
    const char *name; /* borrowed; for messages */
    uint64_t bytes;   /* UINT64_MAX: nobody knows */
    void *context;
    /* The next bytes; *read less than asked for: that was all. */
    enum status (*read)(void *context, void *memory, size_t bytes, size_t *read, struct error *error);
};

struct parcel_document {
    uint64_t id; /* in the store; 0: it was only checked */
    bool was_there;
    uint64_t token_count;
    char name[STORE_TEXT_MAX], model[STORE_TEXT_MAX], layout[STORE_TEXT_MAX];
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES]; /* as stored */
    /* While it is asked about (parcel_accept): what follows from `layout`, and the tokens, [token_count]. */
    const struct store_layout *pages;
    const int32_t *tokens;
};

struct parcel_content {
    size_t count;
    uint64_t bytes; /* of the parcel */
    struct parcel_document documents[PARCEL_DOCUMENTS_MAX];
};

/* Asked before anything is stored: may refuse the document, or change its fingerprint. */
typedef enum status parcel_accept(void *context, struct parcel_document *document, struct error *error);

/* store NULL: reads and checks all of it, and stores nothing.  A document of the same model, layout and tokens that is
 * there already is not stored again.  accept may be NULL.
 * STATUS_DOCUMENT: not a parcel, or not as it was made: one line with what was found and expected.  STATUS_FULL: the
 * limit has no room for it.  Whatever fails, no document of it is there, and those that were are (but for what made
 * room). */
enum status parcel_take(struct store *store, const struct parcel_source *source, parcel_accept *accept,
                        void *accept_context, struct parcel_content *content, struct error *error) STATUS_CHECKED;
