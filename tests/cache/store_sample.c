#include "cache/store_sample.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64, QUEUE_DEPTH = 8 };

enum { STATES_KEPT = 5, STATE_MAX = 600000 };

static const uint64_t STREAM_TOKEN = 1, STREAM_PAGE = 2, STREAM_KEY_INDEX = 3, STREAM_STATE = 4;

struct sample sample_random(struct random *random) {
    struct sample sample = {.seed = random_next(random), .model = {.description = "a model of the tests"}};
    struct store_layout *layout = &sample.layout;
    snprintf(layout->codec, sizeof layout->codec, "f16.64,q8.64");
    layout->layer_count = 1 + (uint32_t)random_below(random, 3);
    layout->kv_head_count = 1 + (uint32_t)random_below(random, 3);
    layout->chunk_bytes = 8 * (1 + (uint32_t)random_below(random, 2048));
    snprintf(layout->key_index_kind, sizeof layout->key_index_kind, "abstract");
    static const uint32_t key_index[] = {0, 24, 512, 5000};
    layout->key_index_bytes = key_index[random_below(random, 4)];
    for (size_t i = 0; i < STORE_FINGERPRINT_BYTES; i++)
        sample.model.fingerprint[i] = (uint8_t)random_next(random);
    return sample;
}

struct sample sample_other(const struct sample *sample, uint64_t seed) {
    struct sample other = *sample;
    other.seed = seed;
    other.shared_tokens = 0;
    return other;
}

static struct random stream(uint64_t seed, uint64_t kind, uint64_t a, uint64_t b, uint64_t c) {
    struct random random;
    random_init(&random, seed + kind * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u +
                             b * 0x94d049bb133111ebu + c * 0xd6e8feb86659fd93u);
    return random;
}

int32_t sample_token(const struct sample *sample, uint64_t position) {
    uint64_t seed = position < sample->shared_tokens ? sample->shared_seed : sample->seed;
    struct random random = stream(seed, STREAM_TOKEN, position, 0, 0);
    return (int32_t)random_below(&random, 128256);
}

int32_t *sample_tokens(const struct sample *sample, uint64_t count) {
    int32_t *tokens = malloc((count > 0 ? count : 1) * sizeof *tokens);
    assert_non_null(tokens);
    for (uint64_t i = 0; i < count; i++) tokens[i] = sample_token(sample, i);
    return tokens;
}

static void fill(struct random *random, uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = random_next(random);
        memcpy(bytes + i, &word, count - i < 8 ? count - i : 8);
    }
}

size_t sample_heads(const struct sample *sample, size_t layer) {
    const struct store_groups *groups = &sample->layout.groups;
    if (groups->of_layer[layer] == STORE_GROUP_NONE) return 0;
    return groups->of_layer[layer] > 0 ? groups->later[groups->of_layer[layer] - 1].kv_head_count
                                       : sample->layout.kv_head_count;
}

static size_t tail_bytes(const struct sample *sample, size_t layer) {
    const struct store_layout *layout = &sample->layout;
    const struct store_group *group =
        layout->groups.of_layer[layer] > 0 ? &layout->groups.later[layout->groups.of_layer[layer] - 1] : NULL;
    if (group != NULL) return group->tail_bytes != 0 ? group->tail_bytes : group->chunk_bytes;
    return layout->tail_bytes != 0 ? layout->tail_bytes : layout->chunk_bytes;
}

static size_t page_bytes(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct store_layout *layout = &sample->layout;
    if (layout->groups.of_layer[layer] > 0)
        return layout->groups.later[layout->groups.of_layer[layer] - 1].chunk_bytes;
    bool rows =
        layout->fractions.layer_count > 0 &&
        !page_fractions_is_quantized(&layout->fractions, layer, kv_head, layout->kv_head_count, chunk);
    return rows ? layout->tail_bytes : layout->chunk_bytes;
}

void sample_group(struct sample *sample, struct random *random) {
    struct store_layout *layout = &sample->layout;
    struct store_groups *groups = &layout->groups;
    if (layout->layer_count < 2) layout->layer_count = 2;
    groups->later_count = (uint8_t)(1 + random_below(random, layout->layer_count < 3 ? 1 : 2));
    for (size_t i = 0; i < groups->later_count; i++) {
        struct store_group *group = &groups->later[i];
        snprintf(group->codec, sizeof group->codec, "f16.%zu,f16.128", 8 * (i + 1));
        group->kv_head_count = 1 + (uint32_t)random_below(random, 5);
        group->chunk_bytes = 8 * (1 + (uint32_t)random_below(random, 3000));
        if (layout->tail_bytes != 0) group->tail_bytes = 8 * (1 + (uint32_t)random_below(random, 3000));
    }
    const size_t first = (size_t)random_below(random, layout->layer_count); /* each group has a layer */
    for (size_t i = 0; i < layout->layer_count; i++)
        groups->of_layer[(first + i) % layout->layer_count] = (uint8_t)(i % (groups->later_count + 1u));
}

void sample_state(struct sample *sample, struct random *random) {
    struct store_layout *layout = &sample->layout;
    const size_t at = (size_t)random_below(random, layout->layer_count + 1);
    for (size_t i = layout->layer_count; i > at; i--) layout->groups.of_layer[i] = layout->groups.of_layer[i - 1];
    layout->groups.of_layer[at] = STORE_GROUP_NONE;
    layout->layer_count++;
    layout->state_bytes = 4 * (1 + (uint32_t)random_below(random, STATE_MAX / 4));
}

void sample_window(struct sample *sample, struct random *random) {
    struct store_windows *windows = &sample->layout.windows;
    windows->tokens = 2 + (uint32_t)random_below(random, 200);
    for (size_t i = 0; i < sample->layout.layer_count; i++) windows->slides[i] = random_below(random, 2) == 0;
    windows->slides[random_below(random, sample->layout.layer_count)] = true;
}

bool sample_has(const struct sample *sample, const uint64_t *positions, size_t count, size_t layer, uint64_t chunk) {
    const struct store_windows *windows = &sample->layout.windows;
    bool has = windows->tokens == 0 || !windows->slides[layer];
    for (size_t i = 0; i < count; i++) /* the row there sees the windows->tokens - 1 before it */
        for (uint64_t row = chunk * CHUNK; row < (chunk + 1) * CHUNK; row++)
            has = has || (row < positions[i] && row + windows->tokens > positions[i]);
    return has;
}

/* [state_bytes] */
static void state_bytes(const struct sample *sample, uint64_t position, uint8_t *bytes) {
    struct random random = stream(sample->seed, STREAM_STATE, position, 0, 0);
    fill(&random, bytes, sample->layout.state_bytes);
}

void sample_page(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk, uint8_t *bytes) {
    struct random random = stream(sample->seed, STREAM_PAGE, layer, kv_head, chunk);
    fill(&random, bytes, page_bytes(sample, layer, kv_head, chunk));
}

void sample_share(struct sample *sample, struct random *random) {
    struct store_layout *layout = &sample->layout;
    layout->tail_bytes = 8 * (1 + (uint32_t)random_below(random, 2048));
    layout->fractions.layer_count = (uint16_t)layout->layer_count;
    for (size_t i = 0; i < layout->layer_count; i++)
        layout->fractions.sixteenths[i] = (uint8_t)random_below(random, PAGE_FRACTION_WHOLE + 1);
}

void sample_share_again(struct sample *sample, uint64_t token_count, struct random *random) {
    struct page_fractions *fractions = &sample->layout.fractions;
    const uint64_t chunks = (token_count + CHUNK - 1) / CHUNK, first = (chunks + 15) / 16 * 16;
    while (fractions->later_count > 0 && fractions->later[fractions->later_count - 1].chunk_first >= first)
        fractions->later_count--;
    struct page_span *span = &fractions->later[fractions->later_count++];
    *span = (struct page_span){.chunk_first = (uint32_t)first};
    const bool alike = random_below(random, 3) == 0; /* is written shorter */
    for (size_t i = 0; i < fractions->layer_count; i++)
        span->sixteenths[i] =
            alike && i > 0 ? span->sixteenths[0] : (uint8_t)random_below(random, PAGE_FRACTION_WHOLE + 1);
}

static void sample_tail(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk,
                        uint8_t *bytes) {
    struct random random = stream(sample->seed, STREAM_PAGE, layer, kv_head, chunk);
    fill(&random, bytes, tail_bytes(sample, layer));
}

static size_t page_max(const struct sample *sample) {
    size_t page = store_page_bytes(&sample->layout), tail = store_tail_bytes(&sample->layout);
    return page > tail ? page : tail;
}

void sample_key_index(const struct sample *sample, size_t layer, size_t kv_head, uint64_t chunk,
                      uint8_t *bytes) {
    struct random random = stream(sample->seed, STREAM_KEY_INDEX, layer, kv_head, chunk);
    fill(&random, bytes, sample->layout.key_index_bytes);
}

/* Asks again while the buffers are under way. */
#define PATIENTLY(expression)                       \
    for (;;) {                                      \
        enum status status_ = (expression);         \
        if (status_ == STATUS_OK) break;            \
        if (status_ != STATUS_FULL) return status_; \
        TRY(document_wait_buffer(document, error)); \
    }

/* Those that the document will have with the next commit. */
struct positions {
    uint64_t list[STORE_STATES_MAX + 2];
    size_t count;
};

/* One head of one layer: runs of chunks, as a prefill writes them. */
static enum status write_head(const struct sample *sample, struct document *document, size_t layer,
                              size_t head, uint64_t chunk_first, uint64_t chunk_end,
                              const struct positions *positions, uint8_t *memory, struct random *random,
                              struct error *error) {
    size_t bytes = page_max(sample), entry = sample->layout.key_index_bytes;
    while (chunk_first < chunk_end) {
        size_t count_max = document_write_max(document), count = (size_t)(chunk_end - chunk_first);
        if (count > count_max) count = count_max;
        if (random != NULL) count = 1 + (size_t)random_below(random, count);
        const void *chunks[16];
        const bool slides = sample->layout.windows.tokens > 0 && sample->layout.windows.slides[layer];
        if (slides) count = 1;
        if (!sample_has(sample, positions->list, positions->count, layer, chunk_first)) {
            chunk_first++;
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            sample_page(sample, layer, head, chunk_first + i, memory + i * bytes);
            chunks[i] = memory + i * bytes;
        }
        PATIENTLY(document_write_pages(document, layer, head, chunk_first, count, chunks, error));
        for (size_t i = 0; entry > 0 && i < count; i++)
            sample_key_index(sample, layer, head, chunk_first + i, memory + i * entry);
        if (entry > 0 && !slides)
            PATIENTLY(document_write_key_index(
                document, &(struct key_index_write){layer, head, 1, chunk_first, count, memory}, error));
        chunk_first += count;
    }
    return STATUS_OK;
}

static enum status write_all(const struct sample *sample, struct document *document, uint64_t from,
                             uint64_t to, const struct positions *positions, uint8_t *memory,
                             struct random *random, struct error *error) {
    size_t columns = 0;
    for (size_t layer = 0; layer < sample->layout.layer_count; layer++)
        columns += sample_heads(sample, layer);
    size_t start = random != NULL ? (size_t)random_below(random, columns) : 0;
    for (size_t i = 0; i < columns; i++) {
        size_t layer = 0, head = (start + i) % columns;
        while (head >= sample_heads(sample, layer)) head -= sample_heads(sample, layer++);
        TRY(write_head(sample, document, layer, head, from / CHUNK, to / CHUNK, positions, memory, random, error));
        if (to % CHUNK == 0) continue;
        sample_tail(sample, layer, head, to / CHUNK, memory);
        PATIENTLY(document_write_tail(document, layer, head, to, memory, error));
    }
    return STATUS_OK;
}

struct store *sample_store_open(const char *directory) {
    struct store *store;
    struct error error;
    const struct store_options options = {
        .directory = directory, .backend = IO_BACKEND_THREADS, .staging_bytes = 1 << 20};
    assert_ok(store_open(&store, &options, &error), error);
    return store;
}

static enum status give_state(void *context, size_t offset, void *memory, size_t bytes, struct error *error) {
    (void)error;
    memcpy(memory, (const uint8_t *)context + offset, bytes);
    return STATUS_OK;
}

/* Behind the commit's last token, and halfway to it; of the earlier ones some stay. */
static struct positions next_positions(const struct document *document, uint64_t from, uint64_t to) {
    const uint64_t middle = from + (to - from) / 2;
    uint64_t kept[STORE_STATES_MAX];
    const size_t count = document_states(document, kept);
    struct positions next = {.count = 0};
    for (size_t i = count > STATES_KEPT ? count - STATES_KEPT : 0; i < count; i++) next.list[next.count++] = kept[i];
    if (middle > from) next.list[next.count++] = middle;
    next.list[next.count++] = to;
    return next;
}

static enum status write_states(const struct sample *sample, struct document *document, uint64_t from,
                                const struct positions *next, struct error *error) {
    uint64_t kept[STORE_STATES_MAX];
    if (sample->layout.state_bytes == 0 && sample->layout.windows.tokens == 0) return STATUS_OK;
    uint8_t *bytes = malloc(sample->layout.state_bytes + 1);
    assert_non_null(bytes);
    const size_t count = document_states(document, kept);
    for (size_t i = 0; i + STATES_KEPT < count; i++) document_forget_state(document, kept[i]);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < next->count && status == STATUS_OK; i++) {
        if (next->list[i] <= from) continue;
        assert_true(document_state_room(document) > 0);
        state_bytes(sample, next->list[i], bytes);
        status = document_write_state(document, next->list[i], give_state, bytes, error);
    }
    free(bytes);
    return status;
}

enum status sample_write(const struct sample *sample, struct document *document, uint64_t from, uint64_t to,
                         struct random *random, struct error *error) {
    size_t widest = page_max(sample);
    if (widest < sample->layout.key_index_bytes) widest = sample->layout.key_index_bytes;
    uint8_t *memory = malloc(16 * widest);
    int32_t *tokens = sample_tokens(sample, to);
    assert_non_null(memory);
    const struct positions positions = next_positions(document, from, to);
    enum status status = write_all(sample, document, from, to, &positions, memory, random, error);
    if (status == STATUS_OK) status = write_states(sample, document, from, &positions, error);
    if (status == STATUS_OK) status = document_commit(document, tokens, to, error);
    free(memory);
    free(tokens);
    return status;
}

enum status sample_save(const struct sample *sample, struct store *store, const uint64_t *commits,
                        size_t commit_count, uint64_t *id, struct error *error) {
    struct document *document;
    const struct document_description description = {&sample->model, &sample->layout, "sample.txt",
                                                     commits[commit_count - 1]};
    TRY(document_create(&document, store, &description, error));
    *id = document_id(document);
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < commit_count; i++)
        status = sample_write(sample, document, i > 0 ? commits[i - 1] : 0, commits[i], NULL, error);
    enum status flushed = document_flush(document, status == STATUS_OK ? error : NULL);
    document_close(document);
    return status == STATUS_OK ? flushed : status;
}

/* Rows of the tail that were stored: whole blocks of 8. */
static size_t bytes_of(const struct sample *sample, const struct page_read *read, uint64_t tokens) {
    if (read->chunk < tokens / CHUNK) return page_bytes(sample, read->layer, read->kv_head, read->chunk);
    return (size_t)((tokens % CHUNK + 7) / 8) * (tail_bytes(sample, read->layer) / 8);
}

static enum status check_pages(const struct sample *sample, struct document *document, struct io_queue *queue,
                               uint8_t *memory, uint8_t *expected, struct error *error) {
    size_t page_bytes = page_max(sample);
    uint64_t tokens = document_token_count(document), chunks = (tokens + CHUNK - 1) / CHUNK;
    uint64_t positions[STORE_STATES_MAX];
    const size_t position_count = document_states(document, positions);
    struct page_read reads[QUEUE_DEPTH];
    struct io_completion done[QUEUE_DEPTH];
    for (uint32_t layer = 0; layer < sample->layout.layer_count; layer++)
        for (uint32_t head = 0; head < sample_heads(sample, layer); head++)
            for (uint64_t chunk = 0; chunk < chunks;) {
                size_t count = 0, next = 0;
                for (; count < QUEUE_DEPTH && chunk < chunks; chunk++) {
                    if (!sample_has(sample, positions, position_count, layer, chunk)) continue;
                    reads[count] = (struct page_read){.layer = layer,
                                                      .kv_head = head,
                                                      .chunk = chunk,
                                                      .memory = memory + count * page_bytes};
                    count++;
                }
                TRY(document_read_pages(document, queue, reads, count, &next, 0));
                while (io_queue_in_flight(queue) > 0) {
                    size_t finished = io_queue_wait(queue, done, QUEUE_DEPTH, 1);
                    for (size_t i = 0; i < finished; i++)
                        if (done[i].status != STATUS_OK)
                            return document_read_failed(document, &done[i], error);
                }
                for (size_t i = 0; i < count; i++) {
                    TRY(document_check_page(document, &reads[i], error));
                    bool full = reads[i].chunk < tokens / CHUNK;
                    (full ? sample_page : sample_tail)(sample, layer, head, reads[i].chunk, expected);
                    assert_memory_equal(reads[i].memory, expected, bytes_of(sample, &reads[i], tokens));
                }
            }
    return STATUS_OK;
}

static enum status check_key_index(const struct sample *sample, struct document *document,
                                   struct error *error) {
    size_t entry = sample->layout.key_index_bytes, heads = 1;
    for (size_t layer = 0; layer < sample->layout.layer_count; layer++)
        if (sample_heads(sample, layer) > heads) heads = sample_heads(sample, layer);
    uint64_t chunks = document_token_count(document) / CHUNK;
    uint8_t *memory = malloc(heads * 16 * entry + 1), *expected = malloc(entry + 1);
    assert_non_null(memory);
    assert_non_null(expected);
    enum status status = STATUS_OK;
    for (size_t layer = 0; status == STATUS_OK && layer < sample->layout.layer_count; layer++) {
        const bool slides = sample->layout.windows.tokens > 0 && sample->layout.windows.slides[layer];
        for (uint64_t first = 0; status == STATUS_OK && first < chunks && entry > 0; first += 16) {
            const size_t count = chunks - first < 16 ? (size_t)(chunks - first) : 16;
            status = document_read_key_index_run(document, layer, first, count, memory, error);
            for (size_t i = 0; status == STATUS_OK && i < sample_heads(sample, layer) * count && !slides; i++) {
                sample_key_index(sample, layer, i / count, first + i % count, expected);
                assert_memory_equal(memory + (i / count * 16 + i % count) * entry, expected, entry);
            }
        }
    }
    free(memory);
    free(expected);
    return status;
}

static enum status take_state(void *context, size_t offset, const void *memory, size_t bytes, struct error *error) {
    (void)error;
    memcpy((uint8_t *)context + offset, memory, bytes);
    return STATUS_OK;
}

static enum status check_states(const struct sample *sample, struct document *document, struct error *error) {
    uint64_t positions[STORE_STATES_MAX];
    const size_t count = document_states(document, positions), bytes = sample->layout.state_bytes;
    if (bytes == 0) return STATUS_OK;
    assert_true(count > 0 && positions[count - 1] == document_token_count(document));
    uint8_t *found = malloc(bytes), *expected = malloc(bytes);
    assert_true(found != NULL && expected != NULL);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = document_read_state(document, positions[i], NULL, take_state, found, error);
        if (status != STATUS_OK) break;
        state_bytes(sample, positions[i], expected);
        assert_memory_equal(found, expected, bytes);
    }
    free(found);
    free(expected);
    return status;
}

enum status sample_check(const struct sample *sample, struct document *document, struct error *error) {
    uint64_t tokens = document_token_count(document);
    for (uint64_t i = 0; i < tokens; i++)
        assert_int_equal(document_tokens(document)[i], sample_token(sample, i));
    struct io_queue *queue;
    const struct io_queue_options options = {.depth = QUEUE_DEPTH};
    TRY(io_queue_create(&queue, &options, error));
    size_t page_bytes = page_max(sample);
    uint8_t *memory = aligned_alloc(IO_ALIGNMENT, QUEUE_DEPTH * page_bytes), *expected = malloc(page_bytes);
    assert_non_null(memory);
    assert_non_null(expected);
    enum status status = check_key_index(sample, document, error);
    if (status == STATUS_OK) status = check_states(sample, document, error);
    if (status == STATUS_OK) status = check_pages(sample, document, queue, memory, expected, error);
    io_queue_destroy(queue);
    free(memory);
    free(expected);
    return status;
}

enum status sample_reuse(const struct sample *sample, struct store *store, uint64_t token_count,
                         uint64_t *reused, struct error *error) {
    int32_t *tokens = sample_tokens(sample, token_count);
    struct store_match match = {0};
    struct document *document;
    *reused = 0;
    enum status status = store_find(
        store, &(struct store_query){&sample->model, &sample->layout, tokens, token_count, STORE_LIKE_KIND},
        &match, error);
    if (status == STATUS_OK && match.document > 0) {
        status = document_open_begin(&document, store, match.document, &sample->model, &match.layout, DOCUMENT_READ,
                                     0, error);
        if (status == STATUS_OK) {
            status = document_open_end(document, error);
            if (status == STATUS_OK) status = sample_check(sample, document, error);
            if (status == STATUS_OK) *reused = match.prefix_tokens;
            document_close(document);
        }
    }
    free(tokens);
    return status == STATUS_DOCUMENT ? STATUS_OK : status;
}
