/* Every byte of a document against its checksums. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cache/store/store_internal.h"
#include "platform/memory.h"

enum { BATCH = 64 };

static enum status read_batch(struct document *document, struct io_queue *queue, const struct page_read *reads,
                              size_t count, struct error *error) {
    struct io_completion done[BATCH];
    size_t next = 0;
    while (next < count || io_queue_in_flight(queue) > 0) {
        enum status status = document_read_pages(document, queue, reads, count, &next, 0);
        if (status != STATUS_OK && status != STATUS_FULL) return status;
        size_t finished = io_queue_wait(queue, done, BATCH, 1);
        for (size_t i = 0; i < finished; i++)
            if (done[i].status != STATUS_OK) return document_read_failed(document, &done[i], error);
    }
    for (size_t i = 0; i < count; i++) TRY(document_check_page(document, &reads[i], error));
    return STATUS_OK;
}

static enum status verify_pages(struct document *document, struct io_queue *queue, uint8_t *memory,
                                struct error *error) {
    const struct geometry *geometry = &document->geometry;
    uint64_t tokens = document_token_count(document);
    uint64_t chunks = chunks_full(tokens) + (tokens % KV_CHUNK_TOKENS != 0);
    size_t page_max = max_size(geometry->page_bytes, geometry->tail_page_bytes);
    struct page_read reads[BATCH];
    for (uint64_t segment = 0; segment < chunks; segment += SEGMENT_CHUNKS) {
        size_t count = 0; /* in the order of the disk, but for the tail */
        for (uint32_t layer = 0; layer < geometry->layer_count; layer++)
            for (uint32_t head = 0; head < geometry_heads(geometry, layer); head++)
                for (uint64_t chunk = segment; chunk < chunks && chunk < segment + SEGMENT_CHUNKS; chunk++) {
                    if (!page_is_kept(geometry, &document->states, layer, chunk)) continue;
                    reads[count] = (struct page_read){
                        .layer = layer, .kv_head = head, .chunk = chunk, .memory = memory + count * page_max};
                    if (++count < BATCH) continue;
                    TRY(read_batch(document, queue, reads, count, error));
                    count = 0;
                }
        TRY(read_batch(document, queue, reads, count, error));
    }
    return STATUS_OK;
}

static enum status verify_key_index(struct document *document, struct error *error) {
    const struct geometry *geometry = &document->geometry;
    const uint64_t chunks = geometry->key_index_bytes > 0 ? chunks_full(document_token_count(document)) : 0;
    uint8_t *memory = malloc(max_size(geometry_heads_max(geometry) * SEGMENT_CHUNKS * geometry->key_index_bytes, 1));
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "key index: out of memory");
    enum status status = STATUS_OK;
    for (size_t layer = 0; layer < geometry->layer_count; layer++)
        for (uint64_t first = 0; status == STATUS_OK && first < chunks; first += SEGMENT_CHUNKS)
            status = document_read_key_index_run(document, layer, first, min_size(chunks - first, SEGMENT_CHUNKS),
                                                 memory, error);
    free(memory);
    return status;
}

/* Last: the document is not flagged because of them. */
static enum status verify_states(struct document *document, struct error *error) {
    uint64_t positions[STORE_STATES_MAX];
    const size_t count = document_states(document, positions);
    for (size_t i = 0; i < count; i++) TRY(document_read_state(document, positions[i], NULL, NULL, NULL, error));
    return STATUS_OK;
}

enum status document_open_any(struct store *store, uint64_t id, struct document **document, struct error *error) {
    struct document_row row;
    struct store_layout layout;
    struct error why;
    unsigned version;
    bool found;
    TRY(catalog_find(&store->catalog, id, &row, &found, error));
    if (!found) return error_set(error, STATUS_DOCUMENT, "%s: there is no document %" PRIu64, store->folder.path, id);
    if (row.intact && !layout_is_read(row.layout, &version)) return document_is_other(store, &row, error);
    if (error == NULL) error = &why;
    if (!row.intact)
        (void)error_set(error, STATUS_DOCUMENT, "%s: document %" PRIu64 ": its row in the catalog is damaged",
                        store->catalog.path, id);
    if (!row.intact || layout_parse(row.layout, &layout, error) != STATUS_OK) return store_flag(store, id, error);
    return document_open(document, store, id, NULL, &layout, DOCUMENT_READ, 0, error);
}

enum status store_tokens(struct store *store, uint64_t id, int32_t **tokens, uint64_t *count, struct error *error) {
    struct document *document;
    *tokens = NULL;
    *count = 0;
    TRY(document_open_any(store, id, &document, error));
    uint64_t held = document_token_count(document);
    *tokens = calloc((size_t)held + 1, sizeof **tokens);
    if (*tokens != NULL && held > 0) memcpy(*tokens, document_tokens(document), (size_t)held * sizeof **tokens);
    document_close(document);
    if (*tokens == NULL) return error_set(error, STATUS_MEMORY, "no memory for a document's tokens");
    *count = held;
    return STATUS_OK;
}

enum status store_verify(struct store *store, uint64_t id, struct error *error) {
    struct document *document;
    TRY(document_open_any(store, id, &document, error));
    struct io_queue *queue = NULL;
    const struct io_queue_options options = {.backend = store->options.backend, .depth = BATCH};
    const size_t bytes = BATCH * max_size(document->geometry.page_bytes, document->geometry.tail_page_bytes);
    uint8_t *memory = memory_area_create(bytes);
    enum status status = memory == NULL ? error_set(error, STATUS_MEMORY, "verify: out of memory")
                                        : io_queue_create(&queue, &options, error);
    if (status == STATUS_OK) status = verify_key_index(document, error);
    if (status == STATUS_OK) status = verify_pages(document, queue, memory, error);
    if (status == STATUS_OK) status = verify_states(document, error);
    io_queue_destroy(queue);
    memory_area_destroy(memory, bytes);
    document_close(document);
    return status;
}
