/* inputs: what went into the K and V of a sequence, kept with its document, so that K and V can be computed again
 * instead of read (KVPR).
 *
 * A layer's input is the row that its W_K and W_V multiply: the state after the layer's norm.  The first layer's
 * follow from the token ids and are not kept.  The inputs of the other layers are a document of their own in the same
 * store, of the same tokens and fingerprint, with a layout of its own: pages of 64 tokens, cut into slices of columns
 * where a page would be larger than 256 KiB.  So they are verified, committed, limited and removed like KV, and a loam
 * that does not know them leaves them alone.
 *
 *   f32   the rows as they are
 *   q8    32 columns in 8 bits and their largest magnitude, 36 bytes: what the kernels round a row to before they
 *         multiply it with quantized weights.  A row that comes back is rounded to the same bits, so K and V have them
 *         too
 *   f16   halves, and the power of two of the row that they are multiples of: what a card's kernels make of the rows of
 *         a prompt, with any weights
 *
 * engine/inputs.c asks the device which of them gives the bits of the rows; f32 does everywhere.
 *
 * A write that fails, a sequence that is cut back behind what was written, or a gap ends the keeping, not the sequence:
 * what was committed stays.  Thread: the engine's.
 */
#pragma once

#include "cache/store/parcel.h"
#include "cache/store/store.h"

struct inputs;

enum inputs_form { INPUTS_F32, INPUTS_Q8, INPUTS_F16 };

struct inputs_shape {
    size_t layer_count; /* of the model; at least 2 */
    size_t hidden_size; /* of INPUTS_Q8 a multiple of 32, of INPUTS_F16 of 2 */
    enum inputs_form form;
};

size_t inputs_row_bytes(const struct inputs_shape *shape);   /* of a token and layer */
size_t inputs_chunk_bytes(const struct inputs_shape *shape); /* of 64 of them, as they are read from disk */
/* Columns of a row as they are kept, and back.  Those of q8 are a multiple of 32; `power` is inputs_power of the whole
 * row. */
float inputs_power(enum inputs_form form, const float *row, size_t columns);
void inputs_encode(enum inputs_form form, float power, const float *row, size_t columns, uint8_t *kept);
void inputs_decode(enum inputs_form form, const uint8_t *kept, size_t columns, float *row);

struct inputs_options {
    struct store *store;      /* borrowed */
    struct store_model model; /* whose KV it is */
    struct inputs_shape shape;
    const char *name; /* borrowed; of the document, for people */
    uint64_t token_capacity;
    size_t read_chunks; /* that there is memory to read at once; 0: it is never read */
    enum io_backend backend;
};

/* Whether that is the layout, as the catalog has it, of a document of inputs. */
bool inputs_is_layout(const char *layout);
/* The document that keeps the inputs of another one's layers. */
struct kept_inputs {
    uint64_t document;    /* 0: there is none */
    uint64_t token_count; /* in common with the other one */
    uint64_t held;        /* that it has */
};
enum status kept_inputs_find(struct store *store, uint64_t id, struct kept_inputs *found, struct error *error)
    STATUS_CHECKED;
/* What a parcel of the document takes along: itself, and the kept inputs of its layers if they are of no tokens but
 * its. */
enum status kept_inputs_pack(struct store *store, uint64_t id, uint64_t ids[PARCEL_DOCUMENTS_MAX], size_t *count,
                             struct error *error) STATUS_CHECKED;
/* Memory that an open one takes, its document's tables included. */
uint64_t inputs_bytes(const struct inputs_shape *shape, uint64_t token_capacity, size_t read_chunks);
/* A new document. */
enum status inputs_create(struct inputs **inputs, const struct inputs_options *options, struct error *error)
    STATUS_CHECKED;
/* The saved inputs of the longest prefix of the tokens, of which `reused` have KV; *inputs NULL: there are none.  They
 * go on being kept if they end where that KV ends and writable is set; else they are only read. */
enum status inputs_open(struct inputs **inputs, const struct inputs_options *options, const int32_t *tokens,
                        uint64_t reused, bool writable, struct error *error) STATUS_CHECKED;
void inputs_close(struct inputs *inputs); /* NULL is allowed */
const struct inputs_shape *inputs_get_shape(const struct inputs *inputs);

/* ---- keeping ---- */

bool inputs_keeps(const struct inputs *inputs); /* rows are still wanted */
/* Rows [position, position + count) of a layer, [count][hidden_size]; the first layer's are ignored. */
void inputs_append(struct inputs *inputs, size_t layer, uint64_t position, size_t count, const float *rows);
/* The sequence has only so many tokens now. */
void inputs_truncate(struct inputs *inputs, uint64_t token_count);
/* The first token_count tokens become durable, behind the computation; as many of them as have come. */
void inputs_commit(struct inputs *inputs, const int32_t *tokens, uint64_t token_count);
/* Waits for it.  The reason why keeping ended, if a write failed. */
enum status inputs_flush(struct inputs *inputs, struct error *error) STATUS_CHECKED;
bool inputs_is_flushed(const struct inputs *inputs); /* that would not wait */

/* ---- reading ---- */

/* Chunks from the first on whose inputs can be had. */
uint64_t inputs_chunks(const struct inputs *inputs);
/* The tokens of those chunks. */
const int32_t *inputs_tokens(const struct inputs *inputs);
/* Chunks of one reading, at most: more than read_chunks, where that is at least 2.  Their rows are then taken in order:
 * memory of those before is read into again. */
size_t inputs_read_max(const struct inputs *inputs);
/* Begins to read chunks of a layer (not of the first), at most inputs_read_max; the reading before has been ended. */
enum status inputs_read_begin(struct inputs *inputs, size_t layer, uint64_t chunk_first, size_t chunk_count,
                              struct error *error) STATUS_CHECKED;
/* Of that reading what the disk was asked for at once, in bytes; whether the index-th chunk is of it; and whether all
 * of it is in memory, without waiting. */
uint64_t inputs_begun_bytes(const struct inputs *inputs);
bool inputs_has_begun(const struct inputs *inputs, size_t index);
enum status inputs_begun_look(struct inputs *inputs, bool *arrived, struct error *error) STATUS_CHECKED;
/* From the index-th on, how many may be waited for together: those behind come once the rows of these are taken. */
size_t inputs_read_ahead(const struct inputs *inputs, size_t index);
/* Until the index-th of them is in memory; as inputs_read_rows in order. */
enum status inputs_read_wait(struct inputs *inputs, size_t index, struct error *error) STATUS_CHECKED;
/* The 64 rows of the index-th of them, waited for and verified: [64][hidden_size].  STATUS_DOCUMENT: they are not what
 * was committed, which is flagged. */
enum status inputs_read_rows(struct inputs *inputs, size_t index, float *rows, struct error *error) STATUS_CHECKED;
/* Waits for what is being read, and forgets it. */
void inputs_read_end(struct inputs *inputs);
/* They could not be read: there are none from now on. */
void inputs_refuse(struct inputs *inputs);
