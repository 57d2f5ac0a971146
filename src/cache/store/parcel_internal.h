/* The two halves of parcels: made (parcel_write.c) and taken in (parcel_read.c).
 *
 *   header        magic, version, documents, bytes
 *   description   of every document, each followed by its tokens and, with states, by their positions
 *   then of every document: its tail, its pages, its key index, its states
 *
 * Each is cut into blocks; behind a block is chain' = checksum(chain, checksum(block)), from zeros. */
#pragma once

#include "cache/store/parcel.h"
#include "cache/store/store_internal.h"

enum {
    PARCEL_MAGIC_BYTES = 8,
    PARCEL_VERSION = 1,
    PARCEL_HEADER_BYTES = PARCEL_MAGIC_BYTES + 4 + 4 + 8,
    PARCEL_DESCRIPTION_BYTES = STORE_FINGERPRINT_BYTES + 8 + 3 * STORE_TEXT_MAX,
    PARCEL_TOKENS_MAX = 16384,                  /* of a block */
    PARCEL_STATES_BYTES = 8 * STORE_STATES_MAX, /* their positions, ascending, then zeros */
};
extern const uint8_t parcel_magic[PARCEL_MAGIC_BYTES];

struct parcel_description {
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES];
    uint64_t token_count;
    char name[STORE_TEXT_MAX], model[STORE_TEXT_MAX], layout[STORE_TEXT_MAX];
};

void parcel_put_number(uint8_t *bytes, uint64_t number, size_t count);
uint64_t parcel_get_number(const uint8_t *bytes, size_t count);
void parcel_describe(const struct parcel_description *description, uint8_t bytes[PARCEL_DESCRIPTION_BYTES]);
/* NULL, or the field that cannot be. */
const char *parcel_description_read(const uint8_t bytes[PARCEL_DESCRIPTION_BYTES],
                                    struct parcel_description *description);

/* Bytes of a document in a parcel, checksums included, but for its states, and pages of layers with windows.  Only for
 * what document_bytes_max has a number for. */
uint64_t parcel_document_bytes(const struct geometry *geometry, uint64_t token_count);
/* Of its states, each of which is as many blocks, and of those pages. */
uint64_t parcel_states_bytes(const struct geometry *geometry, const struct document_states *states,
                             uint64_t token_count);
size_t parcel_state_parts(const struct geometry *geometry);

/* Pages come segment by segment, and of a segment layer by layer, head by head, chunk by chunk. */
struct parcel_place {
    size_t layer, kv_head;
    uint64_t chunk;
    size_t run; /* chunks of the segment from this one on */
};
struct parcel_place parcel_page_place(const struct geometry *geometry, uint64_t chunks, uint64_t index);
/* Key index: segment by segment, and of a segment layer by layer; count chunks of each head. */
struct parcel_key_index_place {
    size_t layer, count;
    uint64_t chunk;
};
struct parcel_key_index_place parcel_key_index_place(const struct geometry *geometry, uint64_t chunks, uint64_t index);
uint64_t parcel_key_index_count(const struct geometry *geometry, uint64_t chunks);
