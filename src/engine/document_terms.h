/* document_terms: what identifies a model's saved documents and those of one owner, for a thread that exports or
 * imports a document with a store of its own while the engine goes on.
 */
#pragma once

#include "cache/store/parcel.h"

struct document_terms {
    uint64_t limit_bytes;                               /* of the folder; 0: none */
    uint8_t model_fingerprint[STORE_FINGERPRINT_BYTES]; /* of documents that nobody owns */
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES];       /* of the owner's */
    struct store_layout layouts[2];                     /* [layout_count]: pages that prompts attach to */
    size_t layout_count;
    bool fixes_fractions; /* and to no other fractions than these */
    bool takes_key_index; /* and to no other key index; else one of rows is built anew */
    size_t vocabulary_size;
};

/* A parcel_accept; context: the terms.  A document of the model that nobody owns, or the owner's, becomes the owner's.
 * STATUS_DOCUMENT: it is of another model, or of another key, or its pages are not those that this plan's prompts
 * attach to: the field, found and expected. */
enum status document_terms_accept(void *context, struct parcel_document *document, struct error *error) STATUS_CHECKED;
