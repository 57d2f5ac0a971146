/* store_sample: documents whose every byte follows from a seed, written to a store and read back. */
#pragma once

#include "base/random.h"
#include "cache/store/store.h"

struct sample {
    struct store_layout layout;
    struct store_model model;
    uint64_t seed;        /* of everything below */
    uint64_t shared_seed; /* tokens before shared_tokens follow from this one */
    uint64_t shared_tokens;
};

/* Small shapes: up to 3 layers, 3 heads and 4 pages of 4 KiB a chunk, with and without key index. */
struct sample sample_random(struct random *random);
/* The same shape and model, other contents. */
struct sample sample_other(const struct sample *sample, uint64_t seed);

/* Pages of two sizes from now on, a random fraction of each layer. */
void sample_share(struct sample *sample, struct random *random);

/* Other ones of pages behind the first token_count tokens, more than none, from the next segment on. */
void sample_share_again(struct sample *sample, uint64_t token_count, struct random *random);

/* Layers of other heads and bytes from now on, after the first; with at least two layers.  Not with sample_share. */
void sample_group(struct sample *sample, struct random *random);
/* One more layer from now on, which has no pages, and states of some parts, behind every commit and between them. */
void sample_state(struct sample *sample, struct random *random);
/* Some layers, at least one, have windows from now on; positions are behind every commit and between them. */
void sample_window(struct sample *sample, struct random *random);
size_t sample_heads(const struct sample *sample, size_t layer);
/* Whether a document with these positions has the layer's page of a chunk. */
bool sample_has(const struct sample *sample, const uint64_t *positions, size_t count, size_t layer, uint64_t chunk);

int32_t sample_token(const struct sample *sample, uint64_t position);
/* The caller frees them. */
int32_t *sample_tokens(const struct sample *sample, uint64_t count);
void sample_page(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk, uint8_t *bytes);
void sample_key_index(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk,
                      uint8_t *bytes);

/* A store of the folder, with requests by threads: what fails or is damaged there is the test's doing. */
struct store *sample_store_open(const char *directory);

/* Writes what tokens [from, to) need and asks for the commit.  random (may be NULL) shuffles the order. */
enum status sample_write(const struct sample *sample, struct document *document, uint64_t from, uint64_t to,
                         struct random *random, struct error *error);
/* A new document with commits at the given token counts (ascending), closed again. */
enum status sample_save(const struct sample *sample, struct store *store, const uint64_t *commits,
                        size_t commit_count, uint64_t *id, struct error *error);
/* Reads everything.  STATUS_OK: every byte is the sample's, for document_token_count tokens (asserted: what
 * passes its checksum and differs is the one thing that must not be). */
enum status sample_check(const struct sample *sample, struct document *document, struct error *error);
/* find, open, check: the tokens that could be used, 0 when none.  *error says why when a document was refused;
 * anything but OK and DOCUMENT is returned. */
enum status sample_reuse(const struct sample *sample, struct store *store, uint64_t token_count,
                         uint64_t *reused, struct error *error);
