/* Making a parcel: what a document holds, verified as it is read, block by block. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cache/store/parcel_internal.h"
#include "platform/memory.h"

enum { PAGES_BYTES = 4 << 20, PAGES_MAX = 128 }; /* read at once */

/* In this order; the tail comes early because a writer that goes on takes its place. */
enum part {
    PART_HEADER,
    PART_DESCRIPTION,
    PART_TOKENS,
    PART_POSITIONS,
    PART_TAIL,
    PART_PAGES,
    PART_KEY_INDEX,
    PART_STATES,
    PART_END
};

struct parcel {
    struct document *documents[PARCEL_DOCUMENTS_MAX]; /* owned */
    size_t count;
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES]; /* if it has another than its own */
    bool has_fingerprint;
    uint64_t bytes;
    struct checksum chain;
    struct io_queue *queue; /* owned */
    uint8_t *pages;         /* owned; [pages_bytes] */
    size_t pages_bytes;
    uint8_t *state; /* owned; that of PART_STATES, whole: nothing leaves before it was found right */
    /* What comes next. */
    enum part part;
    size_t document;
    uint64_t index;
    uint8_t *out; /* owned; [out_start, out_end) has not been taken yet */
    size_t out_start, out_end, out_capacity;
};

static size_t page_max(const struct document *document) {
    return max_size(page_padded_max(&document->geometry), document->geometry.tail_page_bytes);
}

static enum status block(struct parcel *parcel, const void *bytes, size_t count, struct error *error) {
    const size_t end = parcel->out_end + count + sizeof parcel->chain;
    if (end > parcel->out_capacity) {
        const size_t capacity = end + end / 2;
        uint8_t *grown = realloc(parcel->out, capacity);
        if (grown == NULL) return error_set(error, STATUS_MEMORY, "export: out of memory");
        parcel->out = grown;
        parcel->out_capacity = capacity;
    }
    const struct checksum sum = checksum_of(bytes, count);
    checksum_chain(&parcel->chain, &sum);
    if (count > 0) memcpy(parcel->out + parcel->out_end, bytes, count);
    memcpy(parcel->out + parcel->out_end + count, parcel->chain.bytes, sizeof parcel->chain);
    parcel->out_end = end;
    return STATUS_OK;
}

/* ---- opening ---- */

static enum status open_document(struct parcel *parcel, struct store *store, uint64_t id, struct error *error) {
    struct document **document = &parcel->documents[parcel->count];
    TRY(document_open_any(store, id, document, error));
    parcel->count++;
    const uint64_t tokens = document_token_count(*document);
    if (tokens == 0)
        return error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 ": nothing of it was committed yet",
                         store->folder.path, id);
    parcel->bytes += parcel_document_bytes(&(*document)->geometry, tokens) +
                     parcel_states_bytes(&(*document)->geometry, &(*document)->states, tokens);
    parcel->pages_bytes = max_size(parcel->pages_bytes, page_max(*document));
    return STATUS_OK;
}

static enum status open_all(struct parcel *parcel, struct store *store, const uint64_t *ids, size_t count,
                            struct error *error) {
    for (size_t i = 0; i < count; i++) TRY(open_document(parcel, store, ids[i], error));
    parcel->bytes += PARCEL_HEADER_BYTES + sizeof parcel->chain;
    parcel->pages_bytes = max_size(parcel->pages_bytes, PAGES_BYTES);
    parcel->pages = memory_area_create(parcel->pages_bytes);
    if (parcel->pages == NULL) return error_set(error, STATUS_MEMORY, "export: out of memory");
    const struct io_queue_options options = {.backend = store->options.backend, .depth = PAGES_MAX};
    return io_queue_create(&parcel->queue, &options, error);
}

enum status parcel_open(struct parcel **result, struct store *store, const uint64_t *ids, size_t count,
                        const uint8_t *fingerprint, struct error *error) {
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (parcel == NULL) return error_set(error, STATUS_MEMORY, "export: out of memory");
    parcel->has_fingerprint = fingerprint != NULL;
    if (fingerprint != NULL) memcpy(parcel->fingerprint, fingerprint, sizeof parcel->fingerprint);
    const enum status status = open_all(parcel, store, ids, count, error);
    if (status == STATUS_OK)
        *result = parcel;
    else
        parcel_close(parcel);
    return status;
}

void parcel_close(struct parcel *parcel) {
    if (parcel == NULL) return;
    io_queue_destroy(parcel->queue);
    if (parcel->pages != NULL) memory_area_destroy(parcel->pages, parcel->pages_bytes);
    for (size_t i = 0; i < parcel->count; i++) document_close(parcel->documents[i]);
    free(parcel->out);
    free(parcel->state);
    free(parcel);
}

uint64_t parcel_bytes(const struct parcel *parcel) { return parcel->bytes; }
const char *parcel_name(const struct parcel *parcel) { return parcel->documents[0]->row.name; }

const uint8_t *parcel_sum(const struct parcel *parcel) {
    _Static_assert(sizeof parcel->chain.bytes == PARCEL_SUM_BYTES, "the chain's checksum");
    return parcel->chain.bytes;
}

/* ---- blocks ---- */

static enum status write_header(struct parcel *parcel, struct error *error) {
    uint8_t bytes[PARCEL_HEADER_BYTES];
    memcpy(bytes, parcel_magic, PARCEL_MAGIC_BYTES);
    parcel_put_number(bytes + PARCEL_MAGIC_BYTES, PARCEL_VERSION, 4);
    parcel_put_number(bytes + PARCEL_MAGIC_BYTES + 4, parcel->count, 4);
    parcel_put_number(bytes + PARCEL_MAGIC_BYTES + 8, parcel->bytes, 8);
    return block(parcel, bytes, sizeof bytes, error);
}

static enum status write_description(struct parcel *parcel, const struct document *document, struct error *error) {
    uint8_t bytes[PARCEL_DESCRIPTION_BYTES];
    const struct document_row *row = &document->row;
    struct parcel_description description = {.token_count = row->token_count};
    memcpy(description.fingerprint, parcel->has_fingerprint ? parcel->fingerprint : row->fingerprint,
           sizeof description.fingerprint);
    memcpy(description.name, row->name, sizeof description.name);
    memcpy(description.model, row->model, sizeof description.model);
    memcpy(description.layout, row->layout, sizeof description.layout);
    parcel_describe(&description, bytes);
    return block(parcel, bytes, sizeof bytes, error);
}

static enum status write_tokens(struct parcel *parcel, const struct document *document, struct error *error) {
    uint8_t bytes[PARCEL_TOKENS_MAX * sizeof(int32_t)];
    const uint64_t first = parcel->index, left = document_token_count(document) - first;
    const size_t count = left < PARCEL_TOKENS_MAX ? (size_t)left : PARCEL_TOKENS_MAX;
    for (size_t i = 0; i < count; i++)
        parcel_put_number(bytes + i * sizeof(int32_t), (uint32_t)document_tokens(document)[first + i], sizeof(int32_t));
    parcel->index += count;
    return block(parcel, bytes, count * sizeof(int32_t), error);
}

static enum status wait_reads(struct parcel *parcel, struct document *document, size_t count_min, struct error *error) {
    struct io_completion done[PAGES_MAX];
    const size_t finished = io_queue_wait(parcel->queue, done, PAGES_MAX, count_min);
    for (size_t i = 0; i < finished; i++)
        if (done[i].status != STATUS_OK) return document_read_failed(document, &done[i], error);
    return STATUS_OK;
}

/* All of them; a failed read is waited for like the others. */
static enum status read_pages(struct parcel *parcel, struct document *document, const struct page_read *reads,
                              size_t count, struct error *error) {
    size_t next = 0;
    enum status status = STATUS_OK;
    while ((status == STATUS_OK && next < count) || io_queue_in_flight(parcel->queue) > 0) {
        enum status submitted = STATUS_OK, waited;
        if (status == STATUS_OK) submitted = document_read_pages(document, parcel->queue, reads, count, &next, 0);
        if (submitted != STATUS_FULL && submitted != STATUS_OK) status = submitted;
        waited = wait_reads(parcel, document, 1, status == STATUS_OK ? error : NULL);
        if (status == STATUS_OK) status = waited;
    }
    for (size_t i = 0; status == STATUS_OK && i < count; i++) status = document_check_page(document, &reads[i], error);
    return status;
}

/* As many pages from parcel->index on as are read at once, of a tail or of full chunks. */
static enum status write_pages(struct parcel *parcel, struct document *document, uint64_t page_count,
                               struct error *error) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t tokens = document_token_count(document), chunks = chunks_full(tokens);
    const bool tail = parcel->part == PART_TAIL;
    struct page_read reads[PAGES_MAX];
    size_t count = 0, used = 0;
    uint64_t index = parcel->index;
    for (; index < page_count && count < PAGES_MAX; index++) {
        const size_t layer = tail ? geometry_layer_of(geometry, (size_t)index) : 0;
        struct parcel_place place = {layer, (size_t)index - geometry_lane(geometry, layer, 0), chunks, 1};
        if (!tail) place = parcel_page_place(geometry, chunks, index);
        if (!tail && !page_is_kept(geometry, &document->states, place.layer, place.chunk)) continue;
        const size_t bytes = tail ? geometry_group(geometry, place.layer)->tail_page_bytes
                                  : page_padded_bytes(geometry, place.layer, place.kv_head, place.chunk);
        if (used + bytes > parcel->pages_bytes) break;
        reads[count++] = (struct page_read){.layer = (uint32_t)place.layer,
                                            .kv_head = (uint32_t)place.kv_head,
                                            .chunk = place.chunk,
                                            .memory = parcel->pages + used};
        used += bytes;
    }
    TRY(read_pages(parcel, document, reads, count, error));
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = tail ? tail_bytes(geometry, reads[i].layer, tokens)
                                  : page_chunk_bytes(geometry, reads[i].layer, reads[i].kv_head, reads[i].chunk);
        TRY(block(parcel, reads[i].memory, bytes, error));
    }
    parcel->index = index;
    return STATUS_OK;
}

static enum status write_key_index(struct parcel *parcel, struct document *document, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    const size_t run = SEGMENT_CHUNKS * geometry->key_index_bytes;
    const struct parcel_key_index_place place =
        parcel_key_index_place(geometry, chunks_full(document_token_count(document)), parcel->index);
    uint8_t *memory = malloc(geometry_heads(geometry, place.layer) * run);
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "export: out of memory");
    enum status status = document_read_key_index_run(document, place.layer, place.chunk, place.count, memory, error);
    for (size_t head = 0; status == STATUS_OK && head < geometry_key_index_heads(geometry, place.layer); head++)
        status = block(parcel, memory + head * run, place.count * geometry->key_index_bytes, error);
    free(memory);
    parcel->index++;
    return status;
}

static enum status write_positions(struct parcel *parcel, const struct document *document, struct error *error) {
    uint8_t bytes[PARCEL_STATES_BYTES] = {0};
    for (size_t i = 0; i < document->states.count; i++)
        parcel_put_number(bytes + 8 * i, document->states.list[i].position, 8);
    return block(parcel, bytes, sizeof bytes, error);
}

static enum status take_state(void *context, size_t offset, const void *memory, size_t bytes, struct error *error) {
    (void)error;
    memcpy((uint8_t *)context + offset, memory, bytes);
    return STATUS_OK;
}

static enum status write_state(struct parcel *parcel, struct document *document, struct error *error) {
    const size_t all = document->geometry.state_bytes, parts = parcel_state_parts(&document->geometry),
                 part = (size_t)(parcel->index % parts), offset = part * STATE_PART_BYTES;
    if (part == 0) {
        uint8_t *state = realloc(parcel->state, all);
        if (state == NULL) return error_set(error, STATUS_MEMORY, "export: no memory for a state of %zu bytes", all);
        parcel->state = state;
        TRY(document_read_state(document, document->states.list[parcel->index / parts].position, NULL, take_state,
                                state, error));
    }
    parcel->index++;
    return block(parcel, parcel->state + offset, min_size(all - offset, STATE_PART_BYTES), error);
}

/* Units of a part that parcel->index counts. */
static uint64_t part_count(const struct document *document, enum part part) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t tokens = document_token_count(document), chunks = chunks_full(tokens);
    switch (part) {
    case PART_HEADER:
    case PART_DESCRIPTION: return 1;
    case PART_TOKENS: return tokens;
    case PART_TAIL: return tokens % KV_CHUNK_TOKENS != 0 ? geometry->chunk_pages : 0;
    case PART_PAGES: return chunks * geometry->chunk_pages;
    case PART_KEY_INDEX: return parcel_key_index_count(geometry, chunks);
    case PART_POSITIONS: return geometry_has_positions(geometry);
    case PART_STATES: return document->states.count * parcel_state_parts(geometry);
    case PART_END: break;
    }
    return 0;
}

/* Descriptions and tokens of all documents, then what each holds. */
static void next_part(struct parcel *parcel) {
    const bool last = parcel->document + 1 == parcel->count;
    parcel->index = 0;
    if (parcel->part == PART_POSITIONS && !last) {
        parcel->part = PART_DESCRIPTION;
        parcel->document++;
    } else if (parcel->part == PART_STATES && !last) {
        parcel->part = PART_TAIL;
        parcel->document++;
    } else {
        if (parcel->part == PART_POSITIONS) parcel->document = 0;
        parcel->part++;
    }
}

static enum status write_next(struct parcel *parcel, struct error *error) {
    struct document *document = parcel->documents[parcel->document];
    const uint64_t count = part_count(document, parcel->part);
    if (parcel->index == count) {
        next_part(parcel);
        return STATUS_OK;
    }
    switch (parcel->part) {
    case PART_HEADER: parcel->index++; return write_header(parcel, error);
    case PART_DESCRIPTION: parcel->index++; return write_description(parcel, document, error);
    case PART_TOKENS: return write_tokens(parcel, document, error);
    case PART_TAIL:
    case PART_PAGES: return write_pages(parcel, document, count, error);
    case PART_KEY_INDEX: return write_key_index(parcel, document, error);
    case PART_POSITIONS: parcel->index++; return write_positions(parcel, document, error);
    case PART_STATES: return write_state(parcel, document, error);
    case PART_END: break;
    }
    return STATUS_OK;
}

enum status parcel_read(struct parcel *parcel, void *memory, size_t bytes, size_t *read, struct error *error) {
    *read = 0;
    while (parcel->out_start == parcel->out_end && parcel->part != PART_END) {
        parcel->out_start = parcel->out_end = 0;
        TRY(write_next(parcel, error));
    }
    *read = min_size(bytes, parcel->out_end - parcel->out_start);
    if (*read > 0) memcpy(memory, parcel->out + parcel->out_start, *read);
    parcel->out_start += *read;
    return STATUS_OK;
}
