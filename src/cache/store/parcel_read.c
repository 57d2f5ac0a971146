/* Taking a parcel in: nothing of it is believed before its checksum was found right, and nothing is visible before all
 * of it was. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cache/store/parcel_internal.h"

enum {
    SAME_TRIES = 4,               /* documents like it that turn out to be damaged */
    COMMIT_BYTES_MAX = 900000000, /* of the one commit; SQLite has rows of at most 10^9 bytes */
};

struct reader {
    const struct parcel_source *source; /* borrowed */
    uint64_t position, bytes;           /* of the parcel; 0 before its header */
    struct checksum chain;
    char doing[160]; /* what is being read */
};

struct taken {
    struct parcel_description description;
    struct store_layout layout;
    struct geometry geometry;
    int32_t *tokens;               /* owned; [token_count] */
    struct document_states states; /* their positions */
    struct document *existing;     /* owned; it is there already */
    struct document *document;     /* owned; the new one; both NULL: it is only checked */
};

struct intake {
    struct store *store; /* borrowed; NULL: only checked */
    struct reader reader;
    struct parcel_content *content; /* borrowed */
    struct taken documents[PARCEL_DOCUMENTS_MAX];
    uint8_t *memory; /* owned; of the largest block, or of as many pages as are written at once */
    size_t memory_bytes;
};

/* ---- blocks ---- */

/* "FILE: document 1, layer 2 ..., at byte 3000: " and the rest. */
#define WRONG(error, reader, format, ...)                                                                              \
    error_set(error, STATUS_DOCUMENT, "%s: %s, at byte %" PRIu64 ": " format, (reader)->source->name, (reader)->doing, \
              (reader)->position, __VA_ARGS__)

static enum status read_all(struct reader *reader, void *memory, size_t bytes, struct error *error) {
    size_t used = 0;
    while (used < bytes) {
        size_t read;
        TRY(reader->source->read(reader->source->context, (uint8_t *)memory + used, bytes - used, &read, error));
        if (read == 0)
            return WRONG(error, reader, "truncated: found %" PRIu64 " bytes, expected %s%" PRIu64,
                         reader->position + used, reader->bytes == 0 ? "at least " : "",
                         reader->bytes == 0 ? PARCEL_HEADER_BYTES + sizeof(struct checksum) : reader->bytes);
        used += read;
    }
    reader->position += bytes;
    return STATUS_OK;
}

static enum status check_block(struct reader *reader, const void *memory, size_t bytes, struct error *error) {
    const struct checksum sum = checksum_of(memory, bytes);
    struct checksum found;
    char found_text[33], expected_text[33];
    checksum_chain(&reader->chain, &sum);
    TRY(read_all(reader, found.bytes, sizeof found, error));
    if (checksum_equal(&reader->chain, &found)) return STATUS_OK;
    return WRONG(error, reader, "damaged: found checksum %s, expected %s", checksum_text(&reader->chain, found_text),
                 checksum_text(&found, expected_text));
}

static enum status read_block(struct reader *reader, void *memory, size_t bytes, struct error *error) {
    TRY(read_all(reader, memory, bytes, error));
    return check_block(reader, memory, bytes, error);
}

/* ---- what is in it ---- */

static enum status wrong_magic(const struct reader *reader, const uint8_t *bytes, struct error *error) {
    struct part_sum found, expected; /* 8 bytes, shown like those of a checksum */
    char found_text[17], expected_text[17];
    _Static_assert(sizeof found == PARCEL_MAGIC_BYTES, "8 bytes");
    memcpy(found.bytes, bytes, sizeof found);
    memcpy(expected.bytes, parcel_magic, sizeof expected);
    return error_set(error, STATUS_DOCUMENT, "%s: not an exported document: magic: found %s, expected %s",
                     reader->source->name, part_sum_text(&found, found_text), part_sum_text(&expected, expected_text));
}

static enum status read_header(struct intake *intake, struct error *error) {
    struct reader *reader = &intake->reader;
    const struct parcel_source *source = reader->source;
    uint8_t bytes[PARCEL_HEADER_BYTES];
    snprintf(reader->doing, sizeof reader->doing, "header");
    TRY(read_all(reader, bytes, PARCEL_MAGIC_BYTES, error));
    if (memcmp(bytes, parcel_magic, PARCEL_MAGIC_BYTES) != 0) return wrong_magic(reader, bytes, error);
    TRY(read_all(reader, bytes + PARCEL_MAGIC_BYTES, sizeof bytes - PARCEL_MAGIC_BYTES, error));
    const uint64_t version = parcel_get_number(bytes + PARCEL_MAGIC_BYTES, 4),
                   count = parcel_get_number(bytes + PARCEL_MAGIC_BYTES + 4, 4),
                   total = parcel_get_number(bytes + PARCEL_MAGIC_BYTES + 8, 8);
    if (version != PARCEL_VERSION)
        return WRONG(error, reader, "version: found %" PRIu64 ", this loam reads %d", version, PARCEL_VERSION);
    TRY(check_block(reader, bytes, sizeof bytes, error));
    if (count < 1 || count > PARCEL_DOCUMENTS_MAX)
        return WRONG(error, reader, "documents: found %" PRIu64 ", expected 1 to %d", count, PARCEL_DOCUMENTS_MAX);
    if (total <= reader->position || total >= UINT64_C(1) << 62)
        return WRONG(error, reader, "bytes: found %" PRIu64 ", expected more than %" PRIu64, total, reader->position);
    if (source->bytes != UINT64_MAX && source->bytes != total)
        return error_set(error, STATUS_DOCUMENT, "%s: %s: found %" PRIu64 " bytes, expected %" PRIu64, source->name,
                         source->bytes < total ? "truncated" : "bytes follow its end", source->bytes, total);
    reader->bytes = intake->content->bytes = total;
    intake->content->count = (size_t)count;
    return STATUS_OK;
}

/* Left of the parcel for what is not described yet. */
static enum status check_description(struct intake *intake, size_t number, uint64_t left, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct reader *reader = &intake->reader;
    struct error why;
    const uint64_t tokens = taken->description.token_count;
    if (tokens == 0 || tokens > STORE_TOKENS_MAX)
        return WRONG(error, reader, "tokens: found %" PRIu64 ", expected 1 to %" PRIu64, tokens, STORE_TOKENS_MAX);
    if (layout_parse(taken->description.layout, &taken->layout, &why) != STATUS_OK)
        return WRONG(error, reader, "layout: %s", why.message);
    geometry_init(&taken->geometry, &taken->layout);
    const struct geometry *geometry = &taken->geometry;
    if (document_bytes_max(geometry, tokens) == UINT64_MAX) return WRONG(error, reader, "%s", "no disk is that large");
    const uint64_t bytes = parcel_document_bytes(geometry, tokens);
    if (bytes > left) return WRONG(error, reader, "bytes: found %" PRIu64 " left, expected %" PRIu64, left, bytes);
    const uint64_t sums = geometry->page_sum_bytes + sizeof(struct checksum);
    if (chunks_full(tokens) * geometry->chunk_pages > COMMIT_BYTES_MAX / sums)
        return WRONG(error, reader, "its checksums take more than the %d bytes that a commit has", COMMIT_BYTES_MAX);
    const size_t key_index = SEGMENT_CHUNKS * geometry->key_index_bytes,
                 pages = max_size(geometry->page_bytes, geometry->tail_page_bytes);
    intake->memory_bytes = max_size(intake->memory_bytes, max_size(key_index, pages));
    return STATUS_OK;
}

static enum status read_tokens(struct intake *intake, struct taken *taken, struct error *error) {
    struct reader *reader = &intake->reader;
    const uint64_t count = taken->description.token_count;
    taken->tokens = calloc((size_t)count, sizeof *taken->tokens);
    if (taken->tokens == NULL) return error_set(error, STATUS_MEMORY, "import: no memory for the tokens");
    for (uint64_t first = 0; first < count; first += PARCEL_TOKENS_MAX) {
        int32_t *tokens = taken->tokens + first;
        const size_t here = count - first < PARCEL_TOKENS_MAX ? (size_t)(count - first) : PARCEL_TOKENS_MAX;
        TRY(read_block(reader, tokens, here * sizeof *tokens, error));
        for (size_t i = 0; i < here; i++)
            tokens[i] = (int32_t)parcel_get_number((const uint8_t *)&tokens[i], sizeof *tokens);
    }
    return STATUS_OK;
}

/* Of a document with states. */
static enum status read_positions(struct intake *intake, struct taken *taken, uint64_t *left, struct error *error) {
    struct reader *reader = &intake->reader;
    uint8_t bytes[PARCEL_STATES_BYTES];
    if (!geometry_has_positions(&taken->geometry)) return STATUS_OK;
    TRY(read_block(reader, bytes, sizeof bytes, error));
    for (size_t i = 0; i < STORE_STATES_MAX; i++) {
        const uint64_t position = parcel_get_number(bytes + 8 * i, 8),
                       before = i > 0 ? parcel_get_number(bytes + 8 * (i - 1), 8) : 0;
        if (position != 0 &&
            (position <= before || position > taken->description.token_count || taken->states.count < i))
            return WRONG(error, reader,
                         "state %zu: found one behind %" PRIu64 " tokens, expected %" PRIu64 " to %" PRIu64, i + 1,
                         position, before + 1, taken->description.token_count);
        if (position != 0) taken->states.list[taken->states.count++].position = position;
    }
    const uint64_t states = parcel_states_bytes(&taken->geometry, &taken->states, taken->description.token_count);
    if (states > *left) return WRONG(error, reader, "bytes: found %" PRIu64 " left, expected %" PRIu64, *left, states);
    *left -= states;
    intake->memory_bytes = max_size(intake->memory_bytes, STATE_PART_BYTES);
    return STATUS_OK;
}

static enum status read_descriptions(struct intake *intake, struct error *error) {
    struct reader *reader = &intake->reader;
    uint64_t left = reader->bytes - reader->position;
    for (size_t i = 0; i < intake->content->count; i++) {
        uint8_t bytes[PARCEL_DESCRIPTION_BYTES];
        struct taken *taken = &intake->documents[i];
        snprintf(reader->doing, sizeof reader->doing, "document %zu, description", i + 1);
        TRY(read_block(reader, bytes, sizeof bytes, error));
        const char *field = parcel_description_read(bytes, &taken->description);
        if (field != NULL)
            return WRONG(error, reader, "%s: expected text of at most %d bytes", field, STORE_TEXT_MAX - 1);
        TRY(check_description(intake, i, left, error));
        left -= parcel_document_bytes(&taken->geometry, taken->description.token_count);
        snprintf(reader->doing, sizeof reader->doing, "document %zu, tokens", i + 1);
        TRY(read_tokens(intake, taken, error));
        snprintf(reader->doing, sizeof reader->doing, "document %zu, positions of states", i + 1);
        TRY(read_positions(intake, taken, &left, error));
    }
    if (left == 0) return STATUS_OK;
    return WRONG(error, reader, "bytes: found %" PRIu64 ", expected %" PRIu64, reader->bytes, reader->bytes - left);
}

/* ---- the store ---- */

static void row_of(const struct intake *intake, size_t number, struct document_row *row) {
    const struct taken *taken = &intake->documents[number];
    *row = (struct document_row){.token_count = taken->description.token_count};
    memcpy(row->fingerprint, intake->content->documents[number].fingerprint, sizeof row->fingerprint);
    memcpy(row->layout, taken->description.layout, sizeof row->layout);
    if (row->token_count >= KV_CHUNK_TOKENS) row->prefix = prefix_of(taken->tokens);
}

/* Whether it is there: held open then, so that nothing removes it to make room.  One that cannot be opened is flagged
 * and not found again. */
static enum status open_existing(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct document_row row;
    row_of(intake, number, &row);
    for (int i = 0; i < SAME_TRIES; i++) {
        uint64_t id;
        TRY(document_find_same(intake->store, &row, &taken->geometry, taken->tokens, &id, error));
        if (id == 0) break;
        enum status status = document_open_any(intake->store, id, &taken->existing, error);
        if (status != STATUS_OK && status != STATUS_DOCUMENT) return status;
        if (status != STATUS_OK) continue;
        if (document_token_count(taken->existing) == row.token_count) break;
        document_close(taken->existing); /* it has grown meanwhile */
        taken->existing = NULL;
    }
    return STATUS_OK;
}

static enum status create(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct store_model model = {.description = taken->description.model};
    memcpy(model.fingerprint, intake->content->documents[number].fingerprint, sizeof model.fingerprint);
    const struct document_description description = {.model = &model,
                                                     .layout = &taken->layout,
                                                     .name = taken->description.name,
                                                     .token_capacity = taken->description.token_count};
    TRY(document_create(&taken->document, intake->store, &description, error));
    taken->geometry = taken->document->geometry; /* a store of the tests has pages without parts */
    return STATUS_OK;
}

static size_t largest_write(const struct geometry *geometry) {
    return max_size(max_size(geometry->page_bytes, geometry->tail_page_bytes), geometry->key_index_bytes);
}

/* All of the new ones, with the room that they take, before anything of them is written. */
static enum status create_all(struct intake *intake, struct error *error) {
    struct taken *taken = intake->documents;
    const size_t count = intake->content->count;
    uint64_t needed = 0;
    for (size_t i = 0; i < count; i++) TRY(open_existing(intake, i, error));
    for (size_t i = 0; i < count; i++)
        if (taken[i].existing == NULL)
            needed += document_bytes_reserved(&taken[i].geometry, taken[i].description.token_count);
    if (needed == 0) return STATUS_OK;
    TRY(store_make_space(intake->store, needed, error));
    /* The write-behind buffers have the size of the first one's pages. */
    const size_t first = count > 1 && largest_write(&taken[1].geometry) > largest_write(&taken[0].geometry) ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        const size_t number = (first + i) % count;
        if (taken[number].existing == NULL) TRY(create(intake, number, error));
        if (taken[number].document != NULL)
            intake->memory_bytes = max_size(intake->memory_bytes, document_write_max(taken[number].document) *
                                                                      page_padded_max(&taken[number].geometry));
    }
    return STATUS_OK;
}

/* ---- pages ---- */

/* Asks again while the write-behind buffers are under way. */
#define PATIENTLY(document, expression)             \
    for (;;) {                                      \
        const enum status status_ = (expression);   \
        if (status_ == STATUS_OK) break;            \
        if (status_ != STATUS_FULL) return status_; \
        TRY(document_wait_buffer(document, error)); \
    }

static enum status take_tail(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct reader *reader = &intake->reader;
    const struct geometry *geometry = &taken->geometry;
    const uint64_t tokens = taken->description.token_count;
    if (tokens % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    for (size_t layer = 0; layer < geometry->layer_count; layer++)
        for (size_t head = 0; head < geometry_heads(geometry, layer); head++) {
            snprintf(reader->doing, sizeof reader->doing, "document %zu, tail of layer %zu, KV head %zu", number + 1,
                     layer, head);
            TRY(read_block(reader, intake->memory, tail_bytes(geometry, layer, tokens), error));
            if (taken->document == NULL) continue;
            PATIENTLY(taken->document,
                      document_write_tail(taken->document, layer, head, tokens, intake->memory, error));
        }
    return STATUS_OK;
}

/* Chunks of one head, as many as are written together. */
static enum status take_run(struct intake *intake, size_t number, const struct parcel_place *place, size_t count,
                            struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct reader *reader = &intake->reader;
    const void *chunks[SEGMENT_CHUNKS];
    uint8_t *memory = intake->memory;
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = page_chunk_bytes(&taken->geometry, place->layer, place->kv_head, place->chunk + i);
        snprintf(reader->doing, sizeof reader->doing, "document %zu, page of layer %zu, KV head %zu, chunk %" PRIu64,
                 number + 1, place->layer, place->kv_head, place->chunk + i);
        TRY(read_block(reader, memory, bytes, error));
        chunks[i] = memory;
        memory += bytes;
    }
    if (taken->document == NULL) return STATUS_OK;
    PATIENTLY(taken->document,
              document_write_pages(taken->document, place->layer, place->kv_head, place->chunk, count, chunks, error));
    return STATUS_OK;
}

static enum status take_pages(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    const uint64_t chunks = chunks_full(taken->description.token_count), pages = chunks * taken->geometry.chunk_pages;
    const size_t together = taken->document != NULL ? document_write_max(taken->document) : 1;
    for (uint64_t index = 0; index < pages;) {
        const struct parcel_place place = parcel_page_place(&taken->geometry, chunks, index);
        size_t count = 0;
        while (count < min_size(together, place.run) &&
               page_is_kept(&taken->geometry, &taken->states, place.layer, place.chunk + count))
            count++;
        if (count == 0) index++; /* it is not there */
        if (count > 0) TRY(take_run(intake, number, &place, count, error));
        index += count;
    }
    return STATUS_OK;
}

static enum status take_key_index(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct reader *reader = &intake->reader;
    const struct geometry *geometry = &taken->geometry;
    const uint64_t chunks = chunks_full(taken->description.token_count),
                   runs = parcel_key_index_count(geometry, chunks);
    for (uint64_t index = 0; index < runs; index++) {
        const struct parcel_key_index_place place = parcel_key_index_place(geometry, chunks, index);
        for (size_t head = 0; head < geometry_key_index_heads(geometry, place.layer); head++) {
            snprintf(reader->doing, sizeof reader->doing,
                     "document %zu, key index of layer %zu, KV head %zu, chunk %" PRIu64, number + 1, place.layer, head,
                     place.chunk);
            TRY(read_block(reader, intake->memory, place.count * geometry->key_index_bytes, error));
            if (taken->document == NULL) continue;
            const size_t together = document_write_max(taken->document);
            for (size_t done = 0; done < place.count; done += together) {
                const struct key_index_write write = {place.layer,
                                                      head,
                                                      1,
                                                      place.chunk + done,
                                                      min_size(together, place.count - done),
                                                      intake->memory + done * geometry->key_index_bytes};
                PATIENTLY(taken->document, document_write_key_index(taken->document, &write, error));
            }
        }
    }
    return STATUS_OK;
}

/* The next part of a state, into memory that may be a write-behind buffer's. */
static enum status fill_state(void *context, size_t offset, void *memory, size_t bytes, struct error *error) {
    (void)offset;
    return read_block(context, memory, bytes, error);
}

static enum status take_states(struct intake *intake, size_t number, struct error *error) {
    struct taken *taken = &intake->documents[number];
    struct reader *reader = &intake->reader;
    const size_t all = taken->geometry.state_bytes;
    for (size_t i = 0; i < taken->states.count; i++) {
        snprintf(reader->doing, sizeof reader->doing, "document %zu, state behind %" PRIu64 " tokens", number + 1,
                 taken->states.list[i].position);
        if (taken->document != NULL)
            TRY(document_write_state(taken->document, taken->states.list[i].position, fill_state, reader, error));
        for (size_t offset = 0; taken->document == NULL && offset < all; offset += STATE_PART_BYTES)
            TRY(fill_state(reader, offset, intake->memory, min_size(all - offset, STATE_PART_BYTES), error));
    }
    return STATUS_OK;
}

/* A source of unknown length may go on. */
static enum status check_end(struct intake *intake, struct error *error) {
    struct reader *reader = &intake->reader;
    uint8_t byte;
    size_t read;
    snprintf(reader->doing, sizeof reader->doing, "end");
    TRY(reader->source->read(reader->source->context, &byte, 1, &read, error));
    if (read == 0) return STATUS_OK;
    return WRONG(error, reader, "bytes follow its end: found more than %" PRIu64, reader->bytes);
}

/* ---- all of it ---- */

static enum status take_all(struct intake *intake, parcel_accept *accept, void *accept_context, struct error *error) {
    struct parcel_content *content = intake->content;
    TRY(read_header(intake, error));
    TRY(read_descriptions(intake, error));
    for (size_t i = 0; i < content->count; i++) {
        const struct parcel_description *description = &intake->documents[i].description;
        struct parcel_document *document = &content->documents[i];
        *document = (struct parcel_document){.token_count = description->token_count};
        memcpy(document->name, description->name, sizeof document->name);
        memcpy(document->model, description->model, sizeof document->model);
        memcpy(document->layout, description->layout, sizeof document->layout);
        memcpy(document->fingerprint, description->fingerprint, sizeof document->fingerprint);
        if (accept == NULL) continue;
        document->pages = &intake->documents[i].layout;
        document->tokens = intake->documents[i].tokens;
        const enum status status = accept(accept_context, document, error);
        document->pages = NULL;
        document->tokens = NULL;
        TRY(status);
    }
    if (intake->store != NULL) TRY(create_all(intake, error));
    intake->memory = malloc(intake->memory_bytes);
    if (intake->memory == NULL) return error_set(error, STATUS_MEMORY, "import: out of memory");
    for (size_t i = 0; i < content->count; i++) {
        TRY(take_tail(intake, i, error));
        TRY(take_pages(intake, i, error));
        TRY(take_key_index(intake, i, error));
        TRY(take_states(intake, i, error));
    }
    TRY(check_end(intake, error));
    for (size_t i = 0; i < content->count; i++) {
        struct taken *taken = &intake->documents[i];
        if (taken->document == NULL) continue;
        TRY(document_commit(taken->document, taken->tokens, taken->description.token_count, error));
        TRY(document_flush(taken->document, error));
    }
    return STATUS_OK;
}

/* Closes them.  One that another process has stored meanwhile, too, is taken back then: the other's counts. */
static enum status settle(struct intake *intake, bool complete, struct error *error) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < intake->content->count; i++) {
        struct taken *taken = &intake->documents[i];
        struct parcel_document *result = &intake->content->documents[i];
        struct document_row row;
        bool found = true;
        result->was_there = taken->existing != NULL;
        if (taken->existing != NULL) result->id = document_id(taken->existing);
        if (taken->document != NULL) result->id = document_id(taken->document);
        document_close(taken->existing);
        document_close(taken->document);
        if (!complete || status != STATUS_OK || taken->document == NULL) continue;
        status = catalog_find(&intake->store->catalog, result->id, &row, &found, error);
        if (status != STATUS_OK || found) continue;
        row_of(intake, i, &row);
        status = document_find_same(intake->store, &row, &taken->geometry, taken->tokens, &result->id, error);
        result->was_there = true;
    }
    return status;
}

enum status parcel_take(struct store *store, const struct parcel_source *source, parcel_accept *accept,
                        void *accept_context, struct parcel_content *content, struct error *error) {
    *content = (struct parcel_content){0};
    struct intake *intake = calloc(1, sizeof *intake);
    if (intake == NULL) return error_set(error, STATUS_MEMORY, "import: out of memory");
    intake->store = store;
    intake->content = content;
    intake->reader.source = source;
    enum status status = take_all(intake, accept, accept_context, error);
    const enum status settled = settle(intake, status == STATUS_OK, status == STATUS_OK ? error : NULL);
    if (status == STATUS_OK) status = settled;
    for (size_t i = 0; i < PARCEL_DOCUMENTS_MAX; i++) free(intake->documents[i].tokens);
    free(intake->memory);
    free(intake);
    return status;
}
