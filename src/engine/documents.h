/* documents: the saved KV of prompts.  A document is found by the tokens of a prompt, opened without loading, and
 * extended as more is computed.
 *
 *   engine_create -> documents_open            the store, and what identifies this model's KV
 *   first prefill -> documents_attach          the longest saved prefix becomes the sequence's, or a new document
 *   later blocks  -> kv_sequence_commit        computed KV becomes durable segment by segment
 *
 * A prompt that continues a document extends it.  A prompt that diverges before the document's end only reads it, and
 * so does one that needs another key index (it is rebuilt).  Once the prompt's own KV is at least a quarter of what it
 * shares, the shared pages are copied into a new document.  So at most five bytes are written per byte of new KV.
 * A prompt with a name of its own was sent to be saved: the shared pages are copied, whatever that costs.
 *
 * With mixed pages (exact and quantized), pages keep the form that they were written in.  A search matches the model
 * and the kind of pages; a sequence takes the fractions of the document that it continues.  For what it adds they are
 * chosen again, by today's length and budget, when that is at least a quarter of what is there.
 *
 * A read-only folder is read.  New KV behind its documents stays in RAM, if RAM holds it.  A prompt that shares no
 * saved prefix is rejected.  Damage cannot be flagged in such a folder: after damage the prompt is recomputed in RAM.
 *
 * A document belongs to the bytes of the model file, the types of K and V, and the selection's key index, its learned
 * weights included.  Thread: the engine's.
 */
#pragma once

#include "engine/engine.h"

struct documents;

struct documents_options {
    const struct plan *plan;
    const struct engine_options *engine;
    const struct model *model;
    const struct kv_cache *cache;
    struct select *select; /* NULL: no key index */
    uint64_t buffer_bytes;
    bool key_index_on_disk; /* a document's key index cannot be built of its keys */
};
enum status documents_open(struct documents **documents, const struct documents_options *options, struct error *error)
    STATUS_CHECKED;
/* Sets the function that builds the key index (kv_backing.build_key_index).  Call before the first sequence. */
void documents_build_with(struct documents *documents,
                          enum status (*build)(void *context, struct kv_sequence *sequence, size_t layer_index,
                                               uint64_t position_first, uint64_t row_count, struct error *error),
                          void *context);
/* Chooses the fractions of a document, where pages are mixed.  token_count: the tokens that it is about to have.
 * token_capacity: the document's.  A sequence that is empty must be empty again on return.  false: there is nothing to
 * choose by, and all pages would be in 4 bits.  Cannot fail. */
typedef bool documents_choose(void *context, struct store *store, const struct store_layout *layout,
                              struct kv_sequence *sequence, uint64_t token_count, uint64_t token_capacity,
                              struct page_fractions *fractions);
/* Call before the first sequence. */
void documents_choose_with(struct documents *documents, documents_choose *choose, void *context);
/* How fast pages are read (store_measure), for documents of so many tokens.  STATUS_IO: the folder is read only. */
enum status documents_measure(struct documents *documents, uint64_t token_capacity, struct store_rates *rates,
                              struct error *error) STATUS_CHECKED;
/* Its store, and whose KV is in it. */
const struct kv_backing *documents_backing(const struct documents *documents);
/* A line for the user (store_warning), or NULL. */
const char *documents_warning(const struct documents *documents);
/* Of the catalog, found since the opening: prompts are computed and not saved.  NULL: none. */
const char *documents_damage(const struct documents *documents);
void documents_close(struct documents *documents); /* after the sequences; NULL is allowed */

struct documents_prompt {
    const int32_t *tokens; /* [token_count]: those whose KV may be taken */
    uint64_t token_count;
    uint64_t token_capacity; /* of a new document */
    const char *owner;       /* only this owner's documents are found, and a new one is its; NULL or "": nobody's */
    /* Of a new document; NULL: the plan's.  Lives as long as the sequence.  With one, the prompt is saved even
     * where it shares nearly all of another document, and tokens has one more: its last token. */
    const char *name;
};
struct documents_outcome {
    uint64_t reused;     /* tokens whose KV the sequence now has */
    struct error notice; /* what cost time or is not saved; empty: nothing */
};
/* The longest saved prefix. */
enum status documents_find_prefix(struct documents *documents, const struct documents_prompt *prompt,
                                  uint64_t *token_count, struct error *error) STATUS_CHECKED;
/* Whether a sequence that departs from a document behind prefix_tokens is saved in a copy of it. */
bool documents_copies(uint64_t prefix_tokens, uint64_t new_tokens);
/* Attaches an empty sequence to the longest saved prefix.  A document that is damaged, of another version of the
 * format, or being written by another process, costs time and is no error.  A folder without space for a new document
 * is no error either: the KV is not saved and must fit in RAM.  STATUS_IO: the folder is read-only and holds no usable
 * prefix. */
enum status documents_attach(struct documents *documents, struct kv_sequence *sequence,
                             const struct documents_prompt *prompt, struct documents_outcome *outcome,
                             struct error *error) STATUS_CHECKED;
/* A sequence that has tokens is about to have token_count: chooses the fractions of its document's new pages. */
void documents_grow(struct documents *documents, struct kv_sequence *sequence, uint64_t token_count,
                    uint64_t token_capacity);
/* Whether a document of the store is this model's and this owner's. */
bool documents_belongs(const struct documents *documents, const char *owner, const struct document_info *info);
/* For another thread.  STATUS_IO: the folder is read-only and the document is to be stored in it. */
struct document_terms;
enum status documents_terms(const struct documents *documents, const char *owner, bool stores,
                            struct document_terms *terms, struct error *error) STATUS_CHECKED;
/* For a sequence whose KV is not computed from tokens.  It may spill to disk, and no search finds it.  STATUS_IO: the
 * folder is read-only. */
enum status documents_attach_nameless(struct documents *documents, struct kv_sequence *sequence,
                                      uint64_t token_capacity, struct error *error) STATUS_CHECKED;
