/* The store's thread: checksums, writes, flushes and commits, in the order in which they were asked for.
 *
 *   free buffer --take--> filled by the engine --submit--> command --> request in flight --> free
 *
 * The engine's thread only copies and queues.  Commands of all documents share one list, so a commit comes after
 * the writes that were asked for before it; it waits for those of its own document, flushes both files, and
 * only then names them in the catalog (invariant 2 of store.h).
 *
 * Under `lock`: the two lists, and pending, failed and failure of every document.  What the thread knows of a
 * document besides (row, sums, in_flight) is its own from the first command on. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/store_internal.h"
#include "platform/memory.h"

enum { BUFFERS_MIN = 4, BUFFERS_MAX = 256 };
_Static_assert((int)STORE_BUFFER_BYTES_MIN >= (int)STATE_PART_BYTES, "a part of a state fits a buffer");

struct command { /* first in a buffer or in a commit */
    struct command *next;
    bool is_commit;
};

struct buffer {
    struct command command;
    uint8_t *memory; /* [writer->buffer_bytes] */
    struct write_range range;
};

struct commit {
    struct command command;
    struct document *document;
    uint64_t token_first, token_end;
    struct document_states states;
    int32_t tokens[]; /* [token_end - token_first] */
};

struct writer {
    struct store *store;    /* borrowed: its folder and options, which do not change */
    struct catalog catalog; /* the thread's own connection */
    struct io_queue *queue; /* the thread's */
    size_t buffer_bytes;
    uint8_t *memory; /* owned area; of all buffers */
    size_t memory_bytes;
    struct buffer *buffers;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the thread: a command or the end */
    pthread_cond_t done;  /* for the engine: a buffer is free or a command done */
    struct command *free; /* buffers */
    size_t free_count;
    struct command *first, *last;
    bool stopping;
    bool all_used, is_registered; /* the thread's */
};

/* Failures */

static void document_fail(struct writer *writer, struct document *document, const struct error *error) {
    pthread_mutex_lock(&writer->lock);
    if (document->failed == STATUS_OK) {
        document->failed = error->status;
        document->failure = *error;
    }
    pthread_mutex_unlock(&writer->lock);
}

static bool document_has_failed(struct writer *writer, struct document *document) {
    pthread_mutex_lock(&writer->lock);
    bool failed = document->failed != STATUS_OK;
    pthread_mutex_unlock(&writer->lock);
    return failed;
}

enum status writer_failure(struct writer *writer, struct document *document, struct error *error) {
    pthread_mutex_lock(&writer->lock);
    enum status status = document->failed;
    if (status != STATUS_OK && error != NULL) *error = document->failure;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

static void command_done(struct writer *writer, struct document *document, struct buffer *buffer) {
    pthread_mutex_lock(&writer->lock);
    ASSERT(document->pending > 0);
    document->pending--;
    if (buffer != NULL) {
        buffer->command.next = writer->free;
        writer->free = &buffer->command;
        writer->free_count++;
    }
    pthread_cond_broadcast(&writer->done);
    pthread_mutex_unlock(&writer->lock);
}

/* Writes */

/* Of chunk number i of its first head, and of those behind it. */
static size_t range_index(const struct write_range *range, size_t i) {
    return page_index(&range->document->geometry, range->layer, range->kv_head + i / range->count,
                      range->chunk + i % range->count);
}

/* Notes the checksums and says where the buffer goes. */
static struct io_request prepare(struct buffer *buffer) {
    const struct write_range *range = &buffer->range;
    struct document *document = range->document;
    const struct geometry *geometry = &document->geometry;
    struct io_request request = {
        .operation = IO_WRITE, .file = &document->pages, .memory = buffer->memory, .tag = (uintptr_t)buffer};
    switch (range->kind) {
    case WRITE_PAGES:
        request.offset = page_offset(geometry, range->layer, range->kv_head, range->chunk);
        request.bytes = 0;
        for (uint64_t i = 0, chunk = range->chunk; i < range->count; i++, chunk++) {
            page_sums_note(document, range->layer, range->kv_head, chunk, buffer->memory + request.bytes);
            request.bytes += page_padded_bytes(geometry, range->layer, range->kv_head, chunk);
        }
        break;
    case WRITE_TAIL: {
        size_t bytes = tail_bytes(geometry, range->layer, range->chunk);
        request.offset = tail_offset(geometry, document->row.generation + 1, range->layer, range->kv_head);
        request.bytes = align_up(bytes, IO_ALIGNMENT);
        document->tail_next[page_index(geometry, range->layer, range->kv_head, 0)] = checksum_of(buffer->memory, bytes);
        break;
    }
    case WRITE_KEY_INDEX:
        request.file = &document->key_index;
        request.offset = key_index_offset(geometry, range->layer, range->kv_head, range->chunk);
        request.bytes = range->kv_head_count * range->count * geometry->key_index_bytes;
        for (size_t i = 0; i < range->kv_head_count * range->count; i++)
            document->key_index_sums[range_index(range, i)] =
                checksum_of(buffer->memory + i * geometry->key_index_bytes, geometry->key_index_bytes);
        break;
    case WRITE_STATE: {
        const struct checksum sum = checksum_of(buffer->memory, range->count);
        struct checksum *chain = &document->state_sums[range->chunk];
        if (range->offset == 0) *chain = (struct checksum){{0}};
        checksum_chain(chain, &sum);
        request.offset = state_offset(geometry, (size_t)range->chunk) + range->offset;
        request.bytes = align_up(range->count, IO_ALIGNMENT);
        break;
    }
    }
    return request;
}

static void range_done(const struct write_range *range) {
    struct document *document = range->document;
    if (range->kind == WRITE_TAIL || range->kind == WRITE_STATE) return;
    _Atomic uint8_t *states = range->kind == WRITE_PAGES ? document->page_states : document->key_index_states;
    /* Pairs with document_page_written, document_key_index_written. */
    for (size_t i = 0; i < range->kv_head_count * range->count; i++)
        atomic_store_explicit(&states[range_index(range, i)], PAGE_WRITTEN, memory_order_release);
}

static void reap(struct writer *writer, size_t count_min) {
    struct io_completion done[16];
    struct error error;
    size_t count = io_queue_wait(writer->queue, done, sizeof done / sizeof *done, count_min);
    for (size_t i = 0; i < count; i++) {
        struct buffer *buffer = (struct buffer *)(uintptr_t)done[i].request.tag;
        struct document *document = buffer->range.document;
        if (io_completion_error(&done[i], &error) == STATUS_OK)
            range_done(&buffer->range);
        else
            document_fail(writer, document, &error);
        document->in_flight--;
        command_done(writer, document, buffer);
    }
}

/* Telling the queue about memory makes it resident: a short document does not wait for buffers that it never fills.
 * The list of free ones is a stack, so the first of them all is the last to be used. */
static void register_memory(struct writer *writer, const struct buffer *buffer) {
    writer->all_used = writer->all_used || buffer == writer->buffers;
    if (writer->is_registered || !writer->all_used || io_queue_in_flight(writer->queue) > 0) return;
    writer->is_registered = true;
    (void)io_queue_register_memory(writer->queue, writer->memory, writer->memory_bytes);
}

static void run_write(struct writer *writer, struct buffer *buffer) {
    struct document *document = buffer->range.document;
    if (document_has_failed(writer, document)) { /* invariant 7 */
        command_done(writer, document, buffer);
        return;
    }
    register_memory(writer, buffer);
    struct io_request request = prepare(buffer);
    enum status status = io_queue_submit(writer->queue, &request);
    ASSERT(status == STATUS_OK); /* as deep as there are buffers */
    document->in_flight++;
    reap(writer, 0); /* also hands the request to the kernel */
}

/* Commits */

static enum status run_transaction(struct writer *writer, struct document_row *row, struct commit_row *commit,
                                   struct error *error) {
    TRY(catalog_begin(&writer->catalog, error));
    enum status status = catalog_add_commit(&writer->catalog, commit, &row->chain, error);
    if (status == STATUS_OK) status = catalog_update(&writer->catalog, row, error);
    if (status == STATUS_OK) return catalog_commit(&writer->catalog, error);
    catalog_rollback(&writer->catalog);
    return status;
}

/* A file is as long as its pages need, the last of which a document with windows may not have. */
static enum status extend(struct document *document, uint64_t token_count, struct error *error) {
    const uint64_t end = pages_end(&document->geometry, token_count, document->row.generation + 1);
    uint64_t size = end;
    if (document->geometry.windows.tokens > 0) TRY(io_file_size(&document->pages, &size, error));
    return size < end ? io_file_truncate(&document->pages, end, error) : STATUS_OK;
}

static enum status commit_run(struct writer *writer, struct commit *asked, struct error *error) {
    struct document *document = asked->document;
    const struct geometry *geometry = &document->geometry;
    while (document->in_flight > 0) reap(writer, 1);
    TRY(writer_failure(writer, document, error));
    TRY(extend(document, asked->token_end, error));
    TRY(io_file_sync(&document->pages, error));
    if (geometry->key_index_bytes > 0) TRY(io_file_sync(&document->key_index, error));
    uint64_t first = chunks_full(asked->token_first), end = chunks_full(asked->token_end);
    const struct document_states *positions = &asked->states;
    const size_t pages_bytes = page_sums_give(document, positions, first, end, NULL),
                 key_index_bytes = key_index_sums_give(document, first, end, NULL);
    bool tail = asked->token_end % KV_CHUNK_TOKENS != 0;
    memcpy(document->tokens + asked->token_first, asked->tokens,
           (size_t)(asked->token_end - asked->token_first) * sizeof *asked->tokens);
    const size_t tail_bytes = tail ? geometry->chunk_pages * sizeof(struct checksum) : 0;
    uint8_t *sums = malloc(pages_bytes + key_index_bytes + tail_bytes + STORE_STATES_MAX * sizeof(struct state_entry));
    if (sums == NULL) return error_set(error, STATUS_MEMORY, "commit: out of memory");
    uint8_t *key_index_sums = sums + pages_bytes, *tail_sums = key_index_sums + key_index_bytes;
    (void)page_sums_give(document, positions, first, end, sums);
    (void)key_index_sums_give(document, first, end, key_index_sums);
    memcpy(tail_sums, document->tail_next, tail_bytes);
    struct document_row row = document->row;
    row.generation++;
    row.token_count = asked->token_end;
    if (row.token_count >= KV_CHUNK_TOKENS) row.prefix = prefix_of(document->tokens);
    struct commit_row row_of_commit = {
        .document = row.id,
        .number = row.generation,
        .token_first = asked->token_first,
        .token_end = asked->token_end,
        .tokens = asked->tokens,
        .tokens_bytes = (size_t)(asked->token_end - asked->token_first) * sizeof *asked->tokens,
        .page_sums = sums,
        .page_sums_bytes = pages_bytes,
        .key_index_sums = key_index_sums,
        .key_index_sums_bytes = key_index_bytes,
        .tail_sums = tail_sums,
        .tail_sums_bytes = tail_bytes + states_format(&asked->states, document->state_sums,
                                                      (struct state_entry *)(tail_sums + tail_bytes)),
    };
    const enum status status = run_transaction(writer, &row, &row_of_commit, error);
    free(sums);
    TRY(status);
    memcpy(document->tail_sums, document->tail_next, tail_bytes);
    document->row = row;
    document->committed_tokens = row.token_count; /* after everything that it covers */
    return STATUS_OK;
}

static void run_commit(struct writer *writer, struct commit *asked) {
    struct error error;
    if (commit_run(writer, asked, &error) != STATUS_OK) document_fail(writer, asked->document, &error);
    command_done(writer, asked->document, NULL);
    free(asked);
}

static void *writer_main(void *argument) {
    struct writer *writer = argument;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        struct command *command = writer->first;
        if (command == NULL) {
            if (io_queue_in_flight(writer->queue) > 0) {
                pthread_mutex_unlock(&writer->lock);
                reap(writer, 1);
                pthread_mutex_lock(&writer->lock);
                continue;
            }
            if (writer->stopping) break;
            pthread_cond_wait(&writer->work, &writer->lock);
            continue;
        }
        writer->first = command->next;
        if (writer->first == NULL) writer->last = NULL;
        pthread_mutex_unlock(&writer->lock);
        if (command->is_commit)
            run_commit(writer, (struct commit *)command);
        else
            run_write(writer, (struct buffer *)command);
        pthread_mutex_lock(&writer->lock);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* The engine's side */

static void writer_free(struct writer *writer) {
    io_queue_destroy(writer->queue);
    catalog_close(&writer->catalog);
    memory_area_destroy(writer->memory, writer->memory_bytes);
    free(writer->buffers);
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->work);
    pthread_cond_destroy(&writer->done);
    free(writer);
}

static enum status writer_allocate(struct writer *writer, size_t buffer_bytes, struct error *error) {
    size_t count = writer->store->options.staging_bytes / buffer_bytes;
    count = min_size(max_size(count, BUFFERS_MIN), BUFFERS_MAX);
    writer->buffer_bytes = buffer_bytes;
    writer->memory_bytes = count * buffer_bytes;
    writer->memory = memory_area_create(writer->memory_bytes);
    writer->buffers = calloc(count, sizeof *writer->buffers);
    if (writer->memory == NULL || writer->buffers == NULL)
        return error_set(error, STATUS_MEMORY, "store: no memory for %zu buffers of %zu bytes", count, buffer_bytes);
    for (size_t i = 0; i < count; i++) {
        writer->buffers[i].memory = writer->memory + i * buffer_bytes;
        writer->buffers[i].command.next = writer->free;
        writer->free = &writer->buffers[i].command;
    }
    writer->free_count = count;
    const struct io_queue_options options = {
        .backend = writer->store->options.backend, .depth = count, .thread_count = min_size(count, 8)};
    return io_queue_create(&writer->queue, &options, error);
}

enum status writer_start(struct store *store, const struct geometry *geometry, struct error *error) {
    size_t bytes = align_up(max_size(geometry->page_bytes, geometry->key_index_bytes), IO_ALIGNMENT);
    bytes = max_size(bytes, geometry->tail_page_bytes);
    bytes = max_size(bytes, STORE_BUFFER_BYTES_MIN);
    if (store->writer != NULL && store->writer->buffer_bytes >= bytes) return STATUS_OK;
    if (store->writer != NULL) { /* made for smaller pages */
        if (store->writing_count > 0)
            return error_set(error, STATUS_FULL, "%s: a document of smaller pages is being written",
                             store->folder.path);
        writer_stop(store->writer);
        store->writer = NULL;
    }
    struct writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) return error_set(error, STATUS_MEMORY, "store: out of memory");
    writer->store = store;
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->work, NULL);
    pthread_cond_init(&writer->done, NULL);
    enum status status = writer_allocate(writer, bytes, error);
    if (status == STATUS_OK) status = catalog_open(&writer->catalog, &store->folder, false, false, store->vfs, error);
    if (status == STATUS_OK) {
        int failed = pthread_create(&writer->thread, NULL, writer_main, writer);
        if (failed != 0) status = error_set_os(error, STATUS_MEMORY, failed, "store: starting its thread");
    }
    if (status != STATUS_OK) {
        writer_free(writer);
        return status;
    }
    store->writer = writer;
    return STATUS_OK;
}

void writer_stop(struct writer *writer) {
    if (writer == NULL) return;
    pthread_mutex_lock(&writer->lock);
    writer->stopping = true;
    pthread_cond_signal(&writer->work);
    pthread_mutex_unlock(&writer->lock);
    pthread_join(writer->thread, NULL);
    writer_free(writer);
}

size_t writer_buffer_bytes(const struct writer *writer) { return writer->buffer_bytes; }

bool writer_take_buffers(struct writer *writer, size_t count, struct buffer **buffers) {
    pthread_mutex_lock(&writer->lock);
    bool enough = writer->free_count >= count;
    for (size_t i = 0; enough && i < count; i++) {
        buffers[i] = (struct buffer *)writer->free;
        writer->free = writer->free->next;
        writer->free_count--;
    }
    pthread_mutex_unlock(&writer->lock);
    return enough;
}

uint8_t *writer_buffer_memory(struct buffer *buffer) { return buffer->memory; }

static void enter(struct writer *writer, struct document *document, struct command *command) {
    command->next = NULL;
    pthread_mutex_lock(&writer->lock);
    document->pending++;
    if (writer->last == NULL)
        writer->first = command;
    else
        writer->last->next = command;
    writer->last = command;
    pthread_cond_signal(&writer->work);
    pthread_mutex_unlock(&writer->lock);
}

void writer_submit(struct writer *writer, struct buffer *buffer, const struct write_range *range) {
    buffer->command.is_commit = false;
    buffer->range = *range;
    enter(writer, range->document, &buffer->command);
}

enum status writer_commit(struct writer *writer, struct document *document, const int32_t *tokens, uint64_t token_first,
                          uint64_t token_end, struct error *error) {
    size_t bytes = (size_t)(token_end - token_first) * sizeof *tokens;
    struct commit *asked = malloc(sizeof *asked + bytes);
    if (asked == NULL) return error_set(error, STATUS_MEMORY, "commit: out of memory");
    *asked = (struct commit){{NULL, true}, document, token_first, token_end, document->states_next};
    memcpy(asked->tokens, tokens + token_first, bytes);
    enter(writer, document, &asked->command);
    return STATUS_OK;
}

void writer_wait_buffer(struct writer *writer) {
    pthread_mutex_lock(&writer->lock);
    while (writer->free_count < WRITE_BUFFERS_MAX) pthread_cond_wait(&writer->done, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

bool writer_is_done(struct writer *writer, const struct document *document) {
    pthread_mutex_lock(&writer->lock);
    const bool is_done = document->pending == 0;
    pthread_mutex_unlock(&writer->lock);
    return is_done;
}

void writer_wait_document(struct writer *writer, struct document *document) {
    pthread_mutex_lock(&writer->lock);
    while (document->pending > 0) pthread_cond_wait(&writer->done, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}
