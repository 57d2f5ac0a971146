/* States of a document: written to places that the last commit does without, and read. */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/store_internal.h"
#include "platform/memory.h"

static const struct document_state *find(const struct document_states *states, uint64_t position) {
    for (size_t i = 0; i < states->count; i++)
        if (states->list[i].position == position) return &states->list[i];
    return NULL;
}

size_t document_states(const struct document *document, uint64_t positions[STORE_STATES_MAX]) {
    for (size_t i = 0; i < document->states.count; i++) positions[i] = document->states.list[i].position;
    return document->states.count;
}

/* ---- written ---- */

void document_forget_state(struct document *document, uint64_t position) {
    struct document_states *states = &document->states_next;
    size_t count = 0;
    for (size_t i = 0; i < states->count; i++)
        if (states->list[i].position != position) states->list[count++] = states->list[i];
    states->count = count;
}

static bool has_place(const struct document_states *states, uint64_t place) {
    for (size_t i = 0; i < states->count; i++)
        if (states->list[i].place == place) return true;
    return false;
}

/* Nothing lies in places of no bytes. */
static bool is_free(const struct document *document, uint64_t place) {
    const bool may_be_read = document->geometry.state_bytes > 0 && has_place(&document->states, place);
    return !may_be_read && !has_place(&document->states_next, place);
}

size_t document_state_room(const struct document *document) {
    size_t places = 0;
    for (uint64_t place = 0; place < STATE_PLACES; place++) places += is_free(document, place);
    return min_size(places, STORE_STATES_MAX - document->states_next.count);
}

static void insert(struct document_states *states, struct document_state state) {
    size_t at = states->count++;
    for (; at > 0 && states->list[at - 1].position > state.position; at--) states->list[at] = states->list[at - 1];
    states->list[at] = state;
}

enum status document_write_state(struct document *document, uint64_t position,
                                 enum status (*fill)(void *context, size_t offset, void *memory, size_t bytes,
                                                     struct error *error),
                                 void *context, struct error *error) {
    struct writer *writer = document->store->writer;
    const size_t all = document->geometry.state_bytes;
    ASSERT(document->writing && document_state_room(document) > 0 && geometry_has_positions(&document->geometry));
    ASSERT(position > 0 && position <= document->token_capacity);
    ASSERT(find(&document->states_next, position) == NULL);
    /* Until the last commit is durable the one before it counts, and its places are taken. */
    if (all > 0 && document->committed_tokens != document->asked_tokens) TRY(document_flush(document, error));
    struct document_state state = {.position = position};
    while (!is_free(document, state.place)) state.place++;
    for (size_t offset = 0; offset < all; offset += STATE_PART_BYTES) {
        const size_t bytes = min_size(all - offset, STATE_PART_BYTES);
        struct buffer *buffer;
        TRY(writer_failure(writer, document, error));
        while (!writer_take_buffers(writer, 1, &buffer)) TRY(document_wait_buffer(document, error));
        uint8_t *memory = writer_buffer_memory(buffer);
        const enum status status = fill(context, offset, memory, bytes, error);
        if (status != STATUS_OK) memset(memory, 0, bytes); /* what is taken must be submitted */
        memset(memory + bytes, 0, align_up(bytes, IO_ALIGNMENT) - bytes);
        const struct write_range range = {WRITE_STATE, document, 0, 0, 1, state.place, bytes, offset};
        writer_submit(writer, buffer, &range);
        TRY(status);
    }
    insert(&document->states_next, state);
    return STATUS_OK;
}

/* ---- read ---- */

static enum status damaged(struct document *document, const struct document_state *state, const struct checksum *found,
                           struct error *error) {
    char found_text[33], expected_text[33];
    if (document_has_grown(document))
        return error_set(error, STATUS_DOCUMENT, "document %" PRIu64 " has grown since it was opened: open it again",
                         document->id);
    store_refuse_state(document->store, document->id, state->position);
    return error_set(error, STATUS_DOCUMENT,
                     "%s: damaged at %" PRIu64 " (state behind %" PRIu64 " tokens): found checksum %s, expected %s",
                     document->pages.path, state_offset(&document->geometry, (size_t)state->place), state->position,
                     checksum_text(found, found_text),
                     checksum_text(&document->state_sums[state->place], expected_text));
}

static enum status read_parts(struct document *document, const struct document_state *state, uint8_t *part,
                              enum status (*take)(void *context, size_t offset, const void *memory, size_t bytes,
                                                  struct error *error),
                              void *context, struct error *error) {
    const size_t all = document->geometry.state_bytes;
    struct checksum chain = {{0}};
    for (size_t offset = 0; offset < all; offset += STATE_PART_BYTES) {
        const size_t bytes = min_size(all - offset, STATE_PART_BYTES);
        struct error why;
        const enum status status =
            io_file_read(&document->pages, state_offset(&document->geometry, (size_t)state->place) + offset, part,
                         align_up(bytes, IO_ALIGNMENT), &why);
        if (status != STATUS_OK && why.os_error == 0) return document_is_truncated(document, &why, error);
        if (status != STATUS_OK && error != NULL) *error = why;
        TRY(status);
        const struct checksum sum = checksum_of(part, bytes);
        checksum_chain(&chain, &sum);
        if (take != NULL) TRY(take(context, offset, part, bytes, error));
    }
    if (checksum_equal(&chain, &document->state_sums[state->place])) return STATUS_OK;
    return damaged(document, state, &chain, error);
}

enum status document_read_state(struct document *document, uint64_t position, void *memory,
                                enum status (*take)(void *context, size_t offset, const void *memory, size_t bytes,
                                                    struct error *error),
                                void *context, struct error *error) {
    const struct document_state *state = find(&document->states, position);
    ASSERT(state != NULL);
    if (document->writing) TRY(document_flush(document, error)); /* its checksum is known then */
    if (memory != NULL) return read_parts(document, state, memory, take, context, error);
    uint8_t *part = memory_area_create(STATE_PART_BYTES);
    if (part == NULL) return error_set(error, STATUS_MEMORY, "state: out of memory");
    const enum status status = read_parts(document, state, part, take, context, error);
    memory_area_destroy(part, STATE_PART_BYTES);
    return status;
}

size_t store_state_part_bytes(uint64_t state_bytes) {
    return (size_t)align_up(min_size(state_bytes, STATE_PART_BYTES), IO_ALIGNMENT);
}
