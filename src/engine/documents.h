/* documents: an engine's saved documents: found by the tokens of a prompt, opened without loading, and saved.
 *
 *   engine_create -> documents_open            the store, and what identifies this model's KV
 *   first prefill -> documents_attach          the longest saved prefix becomes the sequence's, or a new document
 *   later blocks  -> kv_sequence_commit        what is computed becomes durable segment by segment
 *
 * What follows a document extends it.  A prompt that departs from a document before its end, or that needs other
 * metadata than it has (those are built anew), only reads it; when it has enough to say of its own (at least a quarter
 * of what it shares) the shared pages are copied into a document of its own: at most five bytes are written for each
 * byte of new KV.
 *
 * Where pages are mixed, a document keeps the shares that it was made with: a search asks for the model and the kind of
 * pages, and whoever goes on with what it found takes that document's shares, whatever would be chosen today.
 *
 * A folder that cannot be written is read: what follows a document of it is in RAM, if RAM holds it, and a prompt that
 * none of them begins like is refused.  Where one was found damaged, which cannot be flagged there, the prompt is
 * computed anew in RAM.
 *
 * A document belongs to the bytes of the model file, the types of K and V, and the selection's metadata, weights
 * included.  Thread: the engine's.
 */
#ifndef LOAM_ENGINE_DOCUMENTS_H
#define LOAM_ENGINE_DOCUMENTS_H

#include "engine/engine.h"

struct documents;

/* select NULL: no metadata. */
enum status documents_open(struct documents **documents, const struct plan *plan,
                           const struct engine_options *options, const struct model *model,
                           const struct kv_layout *layout, struct select *select, uint64_t buffer_bytes,
                           struct error *error) STATUS_CHECKED;
/* What builds metadata (kv_backing.build_metadata); before the first sequence. */
void documents_build_with(struct documents *documents,
                          enum status (*build)(void *context, struct kv_sequence *sequence,
                                               size_t layer_index, uint64_t position_first,
                                               uint64_t row_count, struct error *error),
                          void *context);
/* What chooses the shares of new documents, where pages are mixed; before the first sequence.  choose is asked once,
 * with the tokens of the prompt that the document is for, the layout of its pages and the sequence, which is empty, and
 * must be so afterwards; the document will be made for token_capacity.  It always knows an answer. */
typedef void documents_choose(void *context, struct store *store, const struct store_layout *layout,
                              struct kv_sequence *sequence, uint64_t token_count, uint64_t token_capacity,
                              struct page_shares *shares);
void documents_choose_with(struct documents *documents, documents_choose *choose, void *context);
/* store_warning of the store: a line for the user, or NULL. */
const char *documents_warning(const struct documents *documents);
void documents_close(struct documents *documents); /* after the sequences; NULL is allowed */

/* For an empty sequence.  *reused: how many of the tokens it now has.  A document that is damaged, or being written
 * by another process, costs time and is no error; nor is a folder without room for a new document, which is not
 * saved then and must fit in RAM.  *notice says why, empty if there was nothing.  STATUS_IO: the folder can only be
 * read, and there is nothing to be used. */
enum status documents_attach(struct documents *documents, struct kv_sequence *sequence, const int32_t *tokens,
                             uint64_t token_count, uint64_t token_capacity, uint64_t *reused,
                             struct error *notice, struct error *error) STATUS_CHECKED;
/* For a sequence whose KV is not computed from tokens: it may go to the disk, and nobody will find it.  STATUS_IO: it
 * may not. */
enum status documents_attach_nameless(struct documents *documents, struct kv_sequence *sequence,
                                      uint64_t token_capacity, struct error *error) STATUS_CHECKED;

#endif
