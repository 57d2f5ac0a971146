/* The host tier against a model: random operations on sequences whose KV is several times the budget.  Every stored
 * row is a number that follows from its sequence, layer, head and position; what a fetch shows must be exactly those.
 * Sequences are appended to in blocks, layer by layer, read whole and in parts, cut back, saved and opened again. */
#include "testing.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_cache.h"
#include "cache/kv_cache_internal.h"
#include "cache/kv_tier.h"
#include "cache/store/store_internal.h"
#include "device/host_span.h"
#include "device/queued_device.h"
#include "seed.h"

enum { SEQUENCES = 3, LAYERS = 3, HEADS = 2, CONTEXT = 4096, BLOCK = 200, KEY_INDEX = 128 };
enum { CONTEXT_LONG = 20480 };

struct setting {
    struct device *device;
    struct store *store;
    struct kv_cache *cache;
    struct kv_cache_config config;
    struct kv_backing backing;
    struct random *random;
    enum io_backend backend;
    bool whole_pages;               /* struct store_options */
    bool is_wide;                   /* pages of 32 KiB, a block of 8 tokens in each part of 4 */
    uint64_t gap_bytes;             /* struct kv_cache_config */
    uint32_t lanes[LAYERS * HEADS]; /* wanted in RAM whole, the first ones most; so many of them: */
    size_t lane_count;
    const struct io_faults *faults; /* struct store_options */
    bool grows; /* sequences are seldom cut, so that they become as long as they may */
    bool device_has_memory; /* struct kv_cache_config */
    bool is_long;           /* contexts of CONTEXT_LONG */
};

static uint64_t context_of(const struct setting *setting) { return setting->is_long ? CONTEXT_LONG : CONTEXT; }

struct model_sequence {
    struct kv_sequence *sequence; /* NULL: dead */
    uint64_t length;
    uint32_t rows[CONTEXT_LONG]; /* what was stored at each position; also its token */
};

static size_t bytes_per_chunk(const struct setting *setting) {
    return kv_cache_layout(setting->cache)->chunk_bytes;
}

static void setting_open(struct setting *setting, const char *directory, uint64_t host_bytes,
                         size_t key_index_bytes) {
    struct error error;
    setting->config = (struct kv_cache_config){.layer_count = LAYERS,
                                               .kv_head_count = HEADS,
                                               .k_dimension = setting->is_wide ? 128 : 32,
                                               .v_dimension = setting->is_wide ? 128 : 64,
                                               .k_type = KV_F16,
                                               .v_type = setting->is_wide ? KV_F16 : KV_Q8,
                                               .read_gap_bytes = setting->gap_bytes,
                                               .token_capacity = SEQUENCES * context_of(setting),
                                               .sequence_capacity = SEQUENCES,
                                               .key_index_bytes = key_index_bytes,
                                               .key_index_layer_first = 1,
                                               .buffer_bytes = 1 << 20,
                                               .device_has_memory = setting->device_has_memory,
                                               .backend = setting->backend,
                                               .eviction = setting->config.eviction,
                                               .block_tokens = BLOCK};
    setting->config.host_bytes = host_bytes > 0 ? host_bytes : kv_tier_bytes_min(&setting->config);
    assert_ok(store_open(&setting->store,
                         &(struct store_options){.directory = directory,
                                                 .backend = setting->backend,
                                                 .staging_bytes = 1 << 20,
                                                 .whole_pages = setting->whole_pages,
                                                 .faults = setting->faults},
                         &error),
              error);
    assert_ok(kv_tier_create(&setting->cache, setting->device, &setting->config, &error), error);
    setting->backing = (struct kv_backing){.store = setting->store,
                                           .model = {.fingerprint = {7}, .description = "numbers"},
                                           .layout = {.codec = "f16.32,q8.64",
                                                      .layer_count = LAYERS,
                                                      .kv_head_count = HEADS,
                                                      .chunk_bytes = (uint32_t)bytes_per_chunk(setting),
                                                      .key_index_kind = "none",
                                                      .key_index_bytes = (uint32_t)key_index_bytes},
                                           .name = "test"};
    if (key_index_bytes > 0) strcpy(setting->backing.layout.key_index_kind, "numbers");
}

static void setting_close(struct setting *setting) {
    kv_cache_destroy(setting->cache);
    store_close(setting->store);
}

static uint32_t word_of(uint32_t value, size_t layer, size_t head) {
    return value * 31 + (uint32_t)(layer * HEADS + head);
}

static struct stream *stream; /* of the device, which has no queue */

/* Where the device has a row, by its own table. */
static uint8_t *row_address(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t position) {
    const struct kv_view view = kv_sequence_view(sequence, stream, layer);
    const uint32_t place = span_place(view.chunks, head * view.chunk_stride + position / KV_CHUNK_TOKENS);
    uint8_t *chunk = span_memory(kv_pools_chunk(view.pools, place));
    assert_non_null(chunk);
    return (uint8_t *)(uintptr_t)kv_k_row(view.layout, chunk, position % KV_CHUNK_TOKENS);
}

/* The key index of a chunk: its first row's word. */
static uint32_t *key_index_address(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const struct kv_view view = kv_sequence_view(sequence, stream, layer);
    return span_memory(
        kv_pools_chunk(view.pools, span_place(view.key_index, head * view.chunk_stride + chunk)));
}

static void append_layer(struct setting *setting, struct model_sequence *model, size_t layer,
                         uint64_t count) {
    struct error error;
    assert_ok(kv_sequence_open_rows(model->sequence, layer, model->length, count, &error), error);
    for (size_t head = 0; head < HEADS; head++)
        for (uint64_t position = model->length; position < model->length + count; position++) {
            uint32_t word = word_of(model->rows[position], layer, head);
            memcpy(row_address(model->sequence, layer, head, position), &word, sizeof word);
            if (position % KV_CHUNK_TOKENS == 0 && layer >= 1 && setting->config.key_index_bytes > 0)
                *key_index_address(model->sequence, layer, head, position / KV_CHUNK_TOKENS) = word;
        }
    assert_ok(kv_sequence_write(model->sequence, layer, model->length + count, &error), error);
}

static void append(struct setting *setting, struct model_sequence *model) {
    struct error error;
    uint64_t count = 1 + random_below(setting->random, random_below(setting->random, 3) == 0 ? 3 : BLOCK);
    if (model->length + count > context_of(setting)) return;
    for (uint64_t i = 0; i < count; i++)
        model->rows[model->length + i] = (uint32_t)random_below(setting->random, 1 << 20);
    assert_ok(kv_sequence_reserve(model->sequence, model->length + count, &error), error);
    for (size_t layer = 0; layer < LAYERS; layer++) append_layer(setting, model, layer, count);
    model->length += count;
    kv_sequence_set_length(model->sequence, model->length);
}

static void check_fetch(struct setting *setting, const struct model_sequence *model, struct kv_fetch *fetch) {
    for (size_t i = 0; i < fetch->chunk_count; i++) {
        uint64_t chunk = fetch->chunks != NULL ? fetch->chunks[i] : fetch->chunk_first + i;
        uint64_t end = (chunk + 1) * KV_CHUNK_TOKENS;
        for (uint64_t position = chunk * KV_CHUNK_TOKENS; position < end && position < model->length;
             position++) {
            uint32_t word;
            if (fetch->blocks != NULL && (fetch->blocks[i] >> position % KV_CHUNK_TOKENS / 8 & 1) == 0)
                continue;
            memcpy(&word, row_address(model->sequence, fetch->layer_index, fetch->kv_head, position),
                   sizeof word);
            assert_int_equal(word, word_of(model->rows[position], fetch->layer_index, fetch->kv_head));
        }
        if (fetch->layer_index == 0 || setting->config.key_index_bytes == 0) continue;
        assert_int_equal(*key_index_address(model->sequence, fetch->layer_index, fetch->kv_head, chunk),
                         word_of(model->rows[chunk * KV_CHUNK_TOKENS], fetch->layer_index, fetch->kv_head));
    }
}

/* Everything stored of the resident heads is in memory, after any calls. */
static void check_residents(const struct setting *setting, const struct model_sequence *model) {
    const size_t count = kv_tier_statistics(setting->cache).resident_heads;
    const uint64_t stored = kv_chunks_of(model->length);
    assert_true(count <= setting->lane_count);
    for (size_t i = 0; i < count; i++) {
        const uint32_t *places =
            kv_sequence_places(model->sequence, setting->lanes[i] / HEADS, setting->lanes[i] % HEADS);
        for (uint64_t chunk = 0; chunk < stored; chunk++)
            if (places[chunk] == PLACE_NOWHERE)
                fail_msg("head %u of layer %u stays, and chunk %u of it is gone", setting->lanes[i] % HEADS,
                         setting->lanes[i] / HEADS, (unsigned)chunk);
    }
}

/* Several heads at once, as many as fit, each whole or in part. */
static void read_some(struct setting *setting, const struct model_sequence *model) {
    struct random *random = setting->random;
    struct error error;
    uint32_t chunks[2 * HEADS][CONTEXT / KV_CHUNK_TOKENS];
    uint8_t blocks[2 * HEADS][CONTEXT / KV_CHUNK_TOKENS];
    struct kv_fetch fetches[2 * HEADS];
    uint64_t stored = (model->length + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    size_t begun = 0, count = 1 + random_below(random, 2 * HEADS);
    if (stored == 0) return;
    for (size_t i = 0; i < count; i++) {
        fetches[i] = (struct kv_fetch){.sequence = model->sequence,
                                       .layer_index = random_below(random, LAYERS),
                                       .kv_head = random_below(random, HEADS)};
        fetches[i].scan = random_below(random, 2) == 0;
        if (fetches[i].scan) {
            fetches[i].chunk_first = random_below(random, 2) * random_below(random, stored);
            fetches[i].chunk_count = stored - fetches[i].chunk_first;
            fetches[i].beside = random_below(random, 2) == 0;
            continue;
        }
        fetches[i].chunks = chunks[i];
        if (random_below(random, 2) == 0) fetches[i].blocks = blocks[i];
        for (size_t c = 0; c < CONTEXT / KV_CHUNK_TOKENS; c++)
            blocks[i][c] = (uint8_t)(1 + random_below(random, UINT8_MAX));
        for (uint64_t chunk = 0; chunk < stored; chunk++)
            if (random_below(random, 3) == 0) chunks[i][fetches[i].chunk_count++] = (uint32_t)chunk;
    }
    for (size_t i = 0; i < count; i++) {
        while (begun < count && kv_fetch_begin(&fetches[begun])) begun++;
        assert_true(begun > i); /* the least budget is enough for any one head */
        assert_ok(kv_fetch_wait(&fetches[i], &error), error);
        check_fetch(setting, model, &fetches[i]);
        if (!fetches[i].scan && random_below(random, 3) == 0)
            kv_fetch_hold(&fetches[i], random_below(random, 2) == 0);
        kv_fetch_release(&fetches[i]);
    }
}

static void cut(struct setting *setting, struct model_sequence *model) {
    model->length =
        random_below(setting->random, 4) == 0 ? 0 : random_below(setting->random, model->length + 1);
    kv_sequence_set_length(model->sequence, model->length);
}

static void save(const struct model_sequence *model) {
    struct error error;
    if (!kv_sequence_is_saved(model->sequence) || model->length == 0) return;
    int32_t *tokens = calloc(model->length, sizeof *tokens);
    for (uint64_t i = 0; i < model->length; i++) tokens[i] = (int32_t)model->rows[i];
    assert_ok(kv_sequence_commit(model->sequence, tokens, &error), error);
    free(tokens);
}

static void create(struct setting *setting, struct model_sequence *model) {
    struct error error;
    model->length = 0;
    assert_ok(kv_sequence_create(&model->sequence, setting->cache, context_of(setting), &error), error);
    kv_sequence_set_backing(model->sequence, &setting->backing);
    if (random_below(setting->random, 3) > 0)
        assert_ok(kv_sequence_create_document(model->sequence, context_of(setting), &error), error);
}

/* Saved, closed, and opened from a prefix. */
static void reopen(struct setting *setting, struct model_sequence *model) {
    struct error error;
    struct store_match match;
    save(model);
    bool was_saved = kv_sequence_is_saved(model->sequence);
    assert_ok(kv_sequence_flush(model->sequence, &error), error);
    kv_sequence_destroy(model->sequence);
    int32_t *tokens = calloc(model->length + 1, sizeof *tokens);
    for (uint64_t i = 0; i < model->length; i++) tokens[i] = (int32_t)model->rows[i];
    uint64_t wanted = model->length == 0 ? 0
                                         : model->length - random_below(setting->random, 2) *
                                                               random_below(setting->random, model->length);
    assert_ok(store_find(setting->store,
                         &(struct store_query){&setting->backing.model, &setting->backing.layout, tokens,
                                               wanted, STORE_LIKE_KIND},
                         &match, &error),
              error);
    free(tokens);
    if (was_saved && wanted >= KV_CHUNK_TOKENS) assert_int_equal(match.prefix_tokens, wanted);
    if (match.document == 0) {
        create(setting, model);
        return;
    }
    model->length = match.prefix_tokens;
    bool writable = match.prefix_tokens == match.token_count;
    struct document *document;
    assert_ok(document_open(&document, setting->store, match.document, &setting->backing.model,
                            &setting->backing.layout, writable ? DOCUMENT_APPEND : DOCUMENT_READ, CONTEXT,
                            &error),
              error);
    assert_ok(kv_sequence_create(&model->sequence, setting->cache, CONTEXT, &error), error);
    kv_sequence_set_backing(model->sequence, &setting->backing);
    assert_ok(kv_sequence_open_document(model->sequence, document, match.prefix_tokens, writable, &error),
              error);
    uint64_t chunk = model->length / KV_CHUNK_TOKENS; /* what is not full is built anew */
    if (model->length % KV_CHUNK_TOKENS == 0 || setting->config.key_index_bytes == 0) return;
    for (size_t layer = 1; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++)
            *key_index_address(model->sequence, layer, head, chunk) =
                word_of(model->rows[chunk * KV_CHUNK_TOKENS], layer, head);
}

/* Returns how many chunks were not in memory when they were wanted. */
static uint64_t run(struct setting *setting, size_t steps) {
    static struct model_sequence models[SEQUENCES];
    memset(models, 0, sizeof models);
    for (size_t i = 0; i < SEQUENCES; i++) create(setting, &models[i]);
    for (size_t step = 0; step < steps; step++) {
        struct model_sequence *model = &models[random_below(setting->random, SEQUENCES)];
        switch (random_below(setting->random, setting->grows ? 256 : 16)) {
        case 0: cut(setting, model); break;
        case 1: save(model); break;
        case 2: reopen(setting, model); break;
        case 3:
            if (random_below(setting->random, 4) > 0) break;
            kv_sequence_destroy(model->sequence);
            create(setting, model);
            break;
        default:
            if (random_below(setting->random, 2) == 0)
                append(setting, model);
            else
                read_some(setting, model);
        }
        assert_true(kv_tier_statistics(setting->cache).host_bytes <= setting->config.host_bytes);
        for (size_t i = 0; i < SEQUENCES; i++) check_residents(setting, &models[i]);
    }
    for (size_t i = 0; i < SEQUENCES; i++) {
        read_some(setting, &models[i]);
        kv_sequence_destroy(models[i].sequence);
    }
    assert_int_equal(kv_cache_used_bytes(setting->cache), 0);
    return kv_tier_statistics(setting->cache).misses;
}

static struct device *make_device(size_t thread_count) {
    struct device *device;
    struct error error;
    const struct device_options options = {.thread_count = thread_count, .mask = cpu_default()};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    assert_ok(device->operations->stream_create(device, &stream, &error), error);
    return device;
}

static void test_against_a_model(void **state) {
    (void)state;
    uint64_t seed = test_seed(20261121);
    struct device *device = make_device(1);
    uint64_t misses = 0; /* of all rounds: one in a hundred cuts its sequences before they are large */
    for (size_t round = 0; round < 6; round++) {
        struct random random;
        random_init(&random, seed + round);
        print_message("round %zu: LOAM_TEST_SEED=%llu begins with it\n", round,
                      (unsigned long long)(seed + round));
        struct scratch scratch;
        scratch_create(&scratch, random_below(&random, 4) == 0 ? SCRATCH_DISK : SCRATCH_MEMORY);
        struct setting setting = {.device = device, .random = &random};
        device->buffer_max = round % 3 == 0   ? 0
                             : round % 3 == 1 ? 100000
                                              : 20000; /* slabs are one buffer, or many */
        setting.backend = round % 2 == 0 ? IO_BACKEND_AUTOMATIC : IO_BACKEND_THREADS;
        setting.config.eviction = (enum kv_eviction)(round % 3);
        setting_open(&setting, scratch.path, 0, random_below(&random, 2) * KEY_INDEX);
        misses += run(&setting, 300);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
    assert_met(misses > 0); /* or nothing was tested */
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Reads chunks [first, first + count) of layer 0, head 0, one by one; how many were not in memory. */
static uint64_t read_one_by_one(struct model_sequence *model, uint32_t first, uint32_t count) {
    uint64_t missed = 0;
    for (uint32_t chunk = first; chunk < first + count; chunk++) {
        struct error error;
        struct kv_fetch fetch = {.sequence = model->sequence, .chunks = &chunk, .chunk_count = 1};
        assert_true(kv_fetch_begin(&fetch));
        assert_ok(kv_fetch_wait(&fetch, &error), error);
        missed += fetch.missed;
        kv_fetch_release(&fetch);
    }
    return missed;
}

/* A few chunks are read often.  Then others are read once each, many times what RAM holds.  So only a policy of
 * recency still holds the last of these, and only it has lost the first chunks. */
static void what_goes_is_the_policys(void **state) {
    (void)state;
    enum { OFTEN = 8, LAST = 4, TIMES = 20 };
    static const struct {
        enum kv_eviction eviction;
        bool keeps_often, keeps_last;
    } policies[] = {
        {KV_EVICT_FREQUENCY_ADMITTED, true, false}, {KV_EVICT_LFU, true, true}, {KV_EVICT_LRU, false, true}};
    struct device *device = make_device(1);
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        static struct model_sequence model;
        struct random random;
        struct scratch scratch;
        struct error error;
        random_init(&random, 5);
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct setting setting = {.device = device, .random = &random};
        setting.config.eviction = policies[i].eviction;
        setting_open(&setting, scratch.path, 0, 0);
        memset(&model, 0, sizeof model);
        assert_ok(kv_sequence_create(&model.sequence, setting.cache, CONTEXT, &error), error);
        kv_sequence_set_backing(model.sequence, &setting.backing);
        assert_ok(kv_sequence_create_document(model.sequence, CONTEXT, &error), error);
        while (model.length < CONTEXT - BLOCK) append(&setting, &model);
        save(&model);
        assert_ok(kv_sequence_flush(model.sequence, &error), error);
        const uint32_t chunks = (uint32_t)(model.length / KV_CHUNK_TOKENS);
        for (int time = 0; time < TIMES; time++) (void)read_one_by_one(&model, 0, OFTEN);
        for (size_t layer = 1; layer < LAYERS; layer++) /* all other heads, too */
            for (size_t head = 0; head < HEADS; head++) {
                struct kv_fetch fetch = {.sequence = model.sequence, .layer_index = layer, .kv_head = head};
                uint32_t all[CONTEXT / KV_CHUNK_TOKENS];
                for (uint32_t chunk = 0; chunk < chunks; chunk++) all[chunk] = chunk;
                fetch.chunks = all;
                fetch.chunk_count = chunks;
                assert_true(kv_fetch_begin(&fetch));
                assert_ok(kv_fetch_wait(&fetch, &error), error);
                kv_fetch_release(&fetch);
            }
        (void)read_one_by_one(&model, OFTEN, chunks - OFTEN);
        const uint64_t last = read_one_by_one(&model, chunks - LAST, LAST);
        const uint64_t often = read_one_by_one(&model, 0, OFTEN);
        print_message("policy %d: of %d read last %llu gone, of %d read often %llu\n",
                      (int)policies[i].eviction, LAST, (unsigned long long)last, OFTEN,
                      (unsigned long long)often);
        assert_true(policies[i].keeps_often ? often == 0 : often == OFTEN);
        assert_true(policies[i].keeps_last ? last == 0 : last == LAST);
        kv_sequence_destroy(model.sequence);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* A page's bit of a document that is saved in the setting's folder. */
static void flip(const struct scratch *scratch, uint64_t id, uint64_t offset) {
    char name[40];
    uint8_t byte;
    document_file_name(name, id, "pages");
    int fd = open(scratch_name(scratch, name), O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)offset) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

/* Fetches blocks of one chunk of layer 0, head 0; the bytes that were read for it. */
static uint64_t read_blocks(struct setting *setting, const struct model_sequence *model, uint32_t chunk,
                            uint8_t blocks, enum status expected) {
    struct error error;
    struct kv_fetch fetch = {.sequence = model->sequence,
                             .chunks = &chunk,
                             .chunk_count = 1,
                             .blocks = blocks == UINT8_MAX ? NULL : &blocks};
    const struct kv_tier_statistics before = kv_tier_statistics(setting->cache);
    assert_true(kv_fetch_begin(&fetch));
    assert_int_equal(kv_fetch_wait(&fetch, &error), expected);
    if (expected == STATUS_OK) check_fetch(setting, model, &fetch);
    kv_fetch_release(&fetch);
    const struct kv_tier_statistics after = kv_tier_statistics(setting->cache);
    assert_int_equal(after.hits + after.misses, before.hits + before.misses + 1);
    assert_int_equal(after.misses > before.misses, after.read_bytes > before.read_bytes);
    return after.read_bytes - before.read_bytes;
}

/* Saves the rows of a new sequence of so many chunks as the store's first document. */
static struct document *save_document(struct setting *setting, struct model_sequence *model, size_t chunks) {
    struct document *document;
    struct error error;
    memset(model, 0, sizeof *model);
    assert_ok(kv_sequence_create(&model->sequence, setting->cache, CONTEXT, &error), error);
    kv_sequence_set_backing(model->sequence, &setting->backing);
    assert_ok(kv_sequence_create_document(model->sequence, CONTEXT, &error), error);
    while (model->length < chunks * KV_CHUNK_TOKENS) append(setting, model);
    save(model);
    assert_ok(kv_sequence_flush(model->sequence, &error), error);
    kv_sequence_destroy(model->sequence);
    assert_ok(document_open(&document, setting->store, 1, &setting->backing.model, &setting->backing.layout,
                            DOCUMENT_READ, 0, &error),
              error);
    return document;
}

/* A new sequence that attends to it. */
static void open_document(struct setting *setting, struct model_sequence *model, struct document *document) {
    struct error error;
    assert_ok(kv_sequence_create(&model->sequence, setting->cache, CONTEXT, &error), error);
    kv_sequence_set_backing(model->sequence, &setting->backing);
    assert_ok(kv_sequence_open_document(model->sequence, document, model->length, false, &error), error);
}

/* Only the parts of a page that hold wanted blocks are read, each once; the page's other bytes need not even be
 * valid. */
static void what_is_read_is_what_was_chosen(void **state) {
    (void)state;
    enum { PART = 4096, CHUNKS = 12 };
    struct device *device = make_device(1);
    for (int form = 0; form < 2; form++) { /* with checksums of parts, and as before */
        static struct model_sequence model;
        struct random random;
        struct scratch scratch;
        random_init(&random, 7);
        scratch_create(&scratch, SCRATCH_DISK);
        struct setting setting = {.device = device, .random = &random, .whole_pages = form == 1};
        setting_open(&setting, scratch.path, 0, 0);
        struct document *document = save_document(&setting, &model, CHUNKS);
        /* Of a chunk of 8,704 bytes: part 1 of chunk 6, and part 0 of chunk 7. */
        assert_int_equal(bytes_per_chunk(&setting), 8704);
        flip(&scratch, 1, page_offset(&document->geometry, 0, 0, 6) + PART + 100);
        flip(&scratch, 1, page_offset(&document->geometry, 0, 0, 7) + 100);
        const uint64_t last = align_up(8704 - 2 * PART, document->pages.block_bytes);
        open_document(&setting, &model, document);
        if (form == 0) {
            assert_int_equal(read_blocks(&setting, &model, 5, 1, STATUS_OK), PART);
            assert_int_equal(read_blocks(&setting, &model, 5, 7, STATUS_OK), 0); /* the same part */
            assert_int_equal(read_blocks(&setting, &model, 5, 0x10, STATUS_OK), PART);
            assert_int_equal(read_blocks(&setting, &model, 5, UINT8_MAX, STATUS_OK), last);
            assert_int_equal(read_blocks(&setting, &model, 5, UINT8_MAX, STATUS_OK), 0);
            assert_int_equal(read_blocks(&setting, &model, 4, 8, STATUS_OK), 2 * PART); /* lies in two */
            assert_int_equal(read_blocks(&setting, &model, 3, 0x41, STATUS_OK), 2 * PART);
            assert_int_equal(read_blocks(&setting, &model, 2, 0x81, STATUS_OK), 2 * PART + last);
            assert_int_equal(read_blocks(&setting, &model, 6, 1, STATUS_OK), PART);
        } else {
            assert_int_equal(read_blocks(&setting, &model, 5, 1, STATUS_OK), 2 * PART + last);
            assert_int_equal(read_blocks(&setting, &model, 5, UINT8_MAX, STATUS_OK), 0);
        }
        (void)read_blocks(&setting, &model, form == 0 ? 6 : 7, 0x20, STATUS_DOCUMENT);
        kv_sequence_destroy(model.sequence);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Chunks that fetches of four each pin, until another one would be too much. */
static uint64_t pinned_at_most(struct model_sequence *model, bool beside) {
    enum { EACH = 4, FETCHES = LAYERS * HEADS * CONTEXT / KV_CHUNK_TOKENS / EACH };
    static uint32_t chunks[CONTEXT / KV_CHUNK_TOKENS];
    struct kv_fetch fetches[FETCHES];
    struct error error;
    const size_t of_a_head = model->length / KV_CHUNK_TOKENS / EACH;
    size_t begun = 0;
    for (uint32_t i = 0; i < CONTEXT / KV_CHUNK_TOKENS; i++) chunks[i] = i;
    for (size_t i = 0; i < LAYERS * HEADS * of_a_head && begun == i; i++) {
        fetches[i] = (struct kv_fetch){.sequence = model->sequence,
                                       .layer_index = i / of_a_head / HEADS,
                                       .kv_head = i / of_a_head % HEADS,
                                       .chunks = chunks + i % of_a_head * EACH,
                                       .chunk_count = EACH,
                                       .scan = true,
                                       .beside = beside};
        begun += kv_fetch_begin(&fetches[i]);
    }
    for (size_t i = 0; i < begun; i++) {
        assert_ok(kv_fetch_wait(&fetches[i], &error), error);
        kv_fetch_release(&fetches[i]);
    }
    return begun * EACH;
}

/* Half of the slots are for chunks of a scan that are on their way, beside computing seven eighths. */
static void most_slots_are_on_their_way_beside_computing(void **state) {
    (void)state;
    static struct model_sequence model;
    struct device *device = make_device(1);
    struct random random;
    struct scratch scratch;
    random_init(&random, 11);
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct setting setting = {.device = device, .random = &random};
    setting_open(&setting, scratch.path, 0, 0);
    struct document *document = save_document(&setting, &model, CONTEXT / KV_CHUNK_TOKENS - 4);
    open_document(&setting, &model, document);
    const uint64_t beside = kv_tier_beside_chunks(setting.cache), half = beside / 7 * 4;
    const uint64_t some = pinned_at_most(&model, false), most = pinned_at_most(&model, true);
    assert_true(beside > 32 && model.length / KV_CHUNK_TOKENS * LAYERS * HEADS > beside);
    assert_true(some <= half + 3 && some + 4 > half && most <= beside && most + 4 > beside);
    kv_sequence_destroy(model.sequence);
    setting_close(&setting);
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* What lies between two wanted parts is read as well where the disk takes no longer for it than for a request. */
static void gaps_are_read_by_their_cost(void **state) {
    (void)state;
    enum { PART = 4096, CHUNKS = 4, KINDS = 3 };
    static const uint8_t wanted[KINDS] = {0x05, 0x09, 0x21}; /* gaps of 1, 2 and 4 parts */
    static const struct {
        uint64_t gap_bytes;
        size_t parts[KINDS];
    } cases[] = {{0, {3, 4, 2}}, {1, {2, 2, 2}}, {2 * PART - 1, {3, 2, 2}}, {1 << 20, {3, 4, 6}}};
    struct device *device = make_device(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct model_sequence model;
        struct random random;
        struct scratch scratch;
        random_init(&random, 8);
        scratch_create(&scratch, SCRATCH_DISK);
        struct setting setting = {
            .device = device, .random = &random, .is_wide = true, .gap_bytes = cases[i].gap_bytes};
        setting_open(&setting, scratch.path, 0, 0);
        assert_int_equal(bytes_per_chunk(&setting), 8 * PART);
        struct document *document = save_document(&setting, &model, CHUNKS);
        open_document(&setting, &model, document);
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            const size_t parts = cases[i].parts[kind];
            const uint64_t before = kv_tier_statistics(setting.cache).read_requests;
            assert_int_equal(read_blocks(&setting, &model, kind, wanted[kind], STATUS_OK), parts * PART);
            assert_int_equal(kv_tier_statistics(setting.cache).read_requests - before, parts == 2 ? 2 : 1);
        }
        kv_sequence_destroy(model.sequence);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void test_too_small_a_budget_is_refused(void **state) {
    (void)state;
    struct device *device = make_device(1);
    struct error error;
    struct kv_cache *cache;
    struct kv_cache_config config = {.layer_count = LAYERS,
                                     .kv_head_count = HEADS,
                                     .k_dimension = 32,
                                     .v_dimension = 64,
                                     .token_capacity = CONTEXT,
                                     .sequence_capacity = 1,
                                     .block_tokens = BLOCK};
    config.host_bytes = kv_tier_bytes_min(&config) - 1;
    assert_int_equal(kv_tier_create(&cache, device, &config, &error), STATUS_MEMORY);
    assert_non_null(strstr(error.message, "--kv-host"));
    config.host_bytes++;
    assert_ok(kv_tier_create(&cache, device, &config, &error), error);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Resident heads: the budget holds as many of the first ones as it can, and their chunks are never evicted. */
static void residents_never_go(void **state) {
    (void)state;
    struct device *device = make_device(1);
    struct error error;
    const uint64_t seed = test_seed(20261122);
    uint64_t misses = 0;
    for (size_t round = 0; round < 4; round++) {
        struct random random;
        random_init(&random, seed + round);
        struct scratch scratch;
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct setting setting = {
            .device = device, .random = &random, .lane_count = 1 + round, .grows = true};
        for (uint32_t lane = 0; lane < LAYERS * HEADS; lane++) setting.lanes[lane] = lane;
        for (size_t i = LAYERS * HEADS - 1; i > 0; i--) {
            const size_t other = (size_t)random_below(&random, i + 1);
            const uint32_t lane = setting.lanes[i];
            setting.lanes[i] = setting.lanes[other];
            setting.lanes[other] = lane;
        }
        const size_t held = (size_t)random_below(&random, setting.lane_count + 1);
        setting_open(&setting, scratch.path, 0, 0); /* what is needed at least */
        const uint64_t head_bytes =
            kv_chunks_of(SEQUENCES * CONTEXT) * (align_up(bytes_per_chunk(&setting), 4096) + 64);
        const uint64_t host_bytes = setting.config.host_bytes + held * head_bytes;
        setting_close(&setting);
        setting_open(&setting, scratch.path, host_bytes, 0);
        assert_ok(kv_tier_set_resident_heads(setting.cache, setting.lanes, setting.lane_count, 0, &error),
                  error);
        assert_int_equal(kv_tier_statistics(setting.cache).resident_heads, held);
        misses += run(&setting, 600);
        assert_int_equal(kv_tier_statistics(setting.cache).resident_heads, held);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
    assert_met(misses > 0); /* or there was no need for anything to go */
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* An eighth of the KV in f16, plus key index, tables and buffers, is enough RAM for contexts of 8K and more. */
static void an_eighth_is_enough(void **state) {
    (void)state;
    static const struct { size_t layers, heads; } shapes[] = {{6, 2}, {16, 8}, {32, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int form = 0; form < 4; form++)
            for (uint64_t context = 8 << 10; context <= 128 << 10; context *= 2) {
                struct kv_cache_config config = {.layer_count = shapes[i].layers,
                                                 .kv_head_count = shapes[i].heads,
                                                 .k_dimension = 64,
                                                 .v_dimension = 64,
                                                 .k_type = KV_F16,
                                                 .v_type = KV_F16,
                                                 .token_capacity = context,
                                                 .sequence_capacity = 1,
                                                 .buffer_bytes = 2 << 20,
                                                 .block_tokens = 256,
                                                 .quantized_pages = form / 2 == 1,
                                                 .key_index_bytes = form % 2 == 1 ? 256 : 0};
                struct kv_cache_config plain = config;
                plain.key_index_bytes = 0;
                uint64_t eighth = kv_cache_bytes_per_token(&plain) * context / 8;
                assert_true(kv_tier_bytes_min(&config) <= kv_tier_bytes_around(&config, eighth));
            }
}

enum { READERS = 3 };

/* While it is on, no read of a key index goes on before so many threads are in one. */
struct meeting {
    struct io_faults faults;
    bool is_on;
    pthread_mutex_t lock;
    pthread_cond_t come;
    pthread_t readers[READERS]; /* under lock */
    size_t count;
};

static struct io_fault meet(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    struct meeting *meeting = context;
    (void)offset;
    if (call != IO_CALL_READ || strstr(path, ".metadata") == NULL) return (struct io_fault){.bytes_max = bytes};
    pthread_mutex_lock(&meeting->lock);
    size_t i = 0;
    while (i < meeting->count && !pthread_equal(meeting->readers[i], pthread_self())) i++;
    if (i == meeting->count) meeting->readers[meeting->count++] = pthread_self();
    pthread_cond_broadcast(&meeting->come);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60; /* nobody comes where one thread reads all */
    while (meeting->is_on && meeting->count < READERS)
        meeting->is_on = pthread_cond_timedwait(&meeting->come, &meeting->lock, &end) == 0;
    pthread_mutex_unlock(&meeting->lock);
    return (struct io_fault){.bytes_max = bytes};
}

static enum status open_first(struct setting *setting, struct model_sequence *model, struct error *error) {
    struct document *document;
    assert_ok(document_open_begin(&document, setting->store, 1, &setting->backing.model, &setting->backing.layout,
                                  DOCUMENT_READ, 0, error),
              *error);
    assert_ok(kv_sequence_create(&model->sequence, setting->cache, context_of(setting), error), *error);
    kv_sequence_set_backing(model->sequence, &setting->backing);
    return kv_sequence_open_document(model->sequence, document, model->length, false, error);
}

static void damage(const char *path, uint64_t offset) {
    const int file = open(path, O_WRONLY);
    assert_true(file >= 0 && pwrite(file, "damage", 6, (off_t)offset) == 6);
    close(file);
}

/* As long as a context, but for a block: document 1. */
static void save_one(struct setting *setting, struct model_sequence *model) {
    struct error error;
    for (create(setting, model); !kv_sequence_is_saved(model->sequence); create(setting, model))
        kv_sequence_destroy(model->sequence);
    while (model->length < context_of(setting) - BLOCK) append(setting, model);
    save(model);
    assert_ok(kv_sequence_flush(model->sequence, &error), error);
    kv_sequence_destroy(model->sequence);
}

static void check_read_by_all(struct device *device, struct random *random, bool together) {
    static struct model_sequence model;
    struct meeting meeting = {.faults = {&meeting, meet},
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .come = PTHREAD_COND_INITIALIZER};
    struct scratch scratch;
    struct error error;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct setting setting = {.device = device, .random = random, .faults = &meeting.faults};
    setting_open(&setting, scratch.path, 0, KEY_INDEX);
    save_one(&setting, &model);

    meeting.is_on = true;
    assert_ok(open_first(&setting, &model, &error), error);
    assert_int_equal(meeting.count, READERS);
    for (size_t layer = 1; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++)
            for (uint64_t chunk = 0; chunk < model.length / KV_CHUNK_TOKENS; chunk++)
                assert_int_equal(*key_index_address(model.sequence, layer, head, chunk),
                                 word_of(model.rows[chunk * KV_CHUNK_TOKENS], layer, head));
    kv_sequence_destroy(model.sequence);

    /* [16 chunks][layer][KV head][chunk]; the first two parts, which are read together, or later ones. */
    const uint64_t chunk = together ? 4 : 20, layer = 1, head = together ? 0 : 1,
                   first = ((chunk / 16 * LAYERS + layer) * HEADS + head) * 16 + 4,
                   later = ((together ? 0 : 2) * LAYERS + 2) * HEADS * 16;
    damage(scratch_name(&scratch, "1.metadata"), later * KEY_INDEX);
    damage(scratch_name(&scratch, "1.metadata"), first * KEY_INDEX);
    meeting.is_on = together;
    meeting.count = 0;
    assert_int_equal(open_first(&setting, &model, &error), STATUS_DOCUMENT);
    char expected[120];
    snprintf(expected, sizeof expected, "1.metadata: damaged at %u (layer 1, KV head %u, chunk %u)",
             (unsigned)first * KEY_INDEX, (unsigned)head, (unsigned)chunk);
    if (strstr(error.message, expected) == NULL) fail_msg("%s, expected %s", error.message, expected);
    kv_sequence_destroy(model.sequence);
    struct document *document;
    assert_int_equal(document_open(&document, setting.store, 1, &setting.backing.model, &setting.backing.layout,
                                   DOCUMENT_READ, 0, &error),
                     STATUS_DOCUMENT); /* it is flagged */
    setting_close(&setting);
    scratch_destroy(&scratch);
}

/* Of what is damaged the first one is named, whoever read it, and whoever was done first. */
static void a_key_index_is_read_by_all_threads(void **state) {
    (void)state;
    struct random random;
    struct device *device = make_device(READERS);
    random_init(&random, test_seed(20261128));
    check_read_by_all(device, &random, false);
    check_read_by_all(device, &random, true);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void check_key_index(struct setting *setting, struct model_sequence *model, struct stream *on) {
    const struct device_operations *operations = setting->device->operations;
    const uint64_t chunks = model->length / KV_CHUNK_TOKENS;
    uint32_t(*words)[KEY_INDEX / sizeof(uint32_t)] = calloc(chunks, sizeof *words);
    struct error error;
    assert_non_null(words);
    for (size_t layer = 1; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++) {
            for (uint64_t chunk = 0; chunk < chunks; chunk++)
                operations->download(on, words[chunk], kv_key_index_block(model->sequence, layer, head, chunk),
                                     sizeof *words);
            assert_ok(operations->stream_synchronize(on, &error), error);
            for (uint64_t chunk = 0; chunk < chunks; chunk++)
                if (words[chunk][0] != word_of(model->rows[chunk * KV_CHUNK_TOKENS], layer, head))
                    fail_msg("layer %zu, KV head %zu, chunk %llu: another key index", layer, head,
                             (unsigned long long)chunk);
        }
    free(words);
}

/* A sequence of so many chunks, of which nothing is stored. */
static struct kv_sequence *reserve_chunks(struct setting *setting, uint64_t chunks) {
    struct kv_sequence *sequence;
    struct error error;
    assert_ok(kv_sequence_create(&sequence, setting->cache, context_of(setting), &error), error);
    assert_ok(kv_sequence_reserve(sequence, chunks * KV_CHUNK_TOKENS, &error), error);
    return sequence;
}

/* Columns that do not begin at a run of them, and others that begin there and end in another one: what a document has
 * together does not lie together there. */
static void a_key_index_comes_to_scattered_columns(void **state) {
    (void)state;
    static struct model_sequence model;
    struct random random;
    struct scratch scratch;
    struct error error;
    struct device *device = make_device(READERS);
    random_init(&random, test_seed(20261202));
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct setting setting = {.device = device, .random = &random, .is_long = true};
    setting_open(&setting, scratch.path, 0, KEY_INDEX);
    save_one(&setting, &model);
    setting_close(&setting);
    for (int form = 0; form < 2; form++) {
        setting_open(&setting, scratch.path, 0, KEY_INDEX);
        struct kv_sequence *first = reserve_chunks(&setting, form == 0 ? 5 : 16);
        if (form == 1) {
            struct kv_sequence *second = reserve_chunks(&setting, 8);
            kv_sequence_destroy(first); /* columns that were given back last are taken first */
            kv_sequence_destroy(second);
        }
        assert_ok(open_first(&setting, &model, &error), error);
        check_key_index(&setting, &model, stream);
        kv_sequence_destroy(model.sequence);
        if (form == 0) kv_sequence_destroy(first);
        setting_close(&setting);
    }
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Runs of all heads, at least. */
static void (*real_copy)(struct stream *on, struct span target, struct span source, size_t bytes);
static size_t run_copies;
static void count_copy(struct stream *on, struct span target, struct span source, size_t bytes) {
    run_copies += bytes >= HEADS * 16 * KEY_INDEX;
    real_copy(on, target, source, bytes);
}

/* To memory that the device alone has, which copies late: no area is read to again before it went up, and each goes up
 * by one copy. */
static void a_key_index_goes_up_area_by_area(void **state) {
    (void)state;
    enum { SEEDS = 6 };
    static struct model_sequence model;
    struct random random;
    struct scratch scratch;
    struct error error;
    struct stream *on;
    struct device *device = make_device(READERS);
    const struct device_options options = {.thread_count = READERS, .mask = cpu_default()};
    const uint64_t seed = test_seed(20261129);
    random_init(&random, seed);
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct setting setting = {.device = device, .random = &random, .is_long = true};
    setting_open(&setting, scratch.path, 0, KEY_INDEX);
    save_one(&setting, &model);
    setting_close(&setting);
    for (uint64_t i = 0; i < SEEDS; i++) {
        struct setting late = {.device = queued_device_create(&options, seed + i),
                               .random = &random,
                               .is_long = true,
                               .device_has_memory = true};
        struct device_operations counted = *late.device->operations;
        real_copy = counted.copy, counted.copy = count_copy;
        late.device->operations = &counted;
        setting_open(&late, scratch.path, 0, KEY_INDEX);
        assert_ok(late.device->operations->stream_create(late.device, &on, &error), error);
        run_copies = 0;
        assert_ok(open_first(&late, &model, &error), error);
        const size_t runs = model.length / KV_CHUNK_TOKENS / 16;
        assert_int_equal(run_copies, (LAYERS - 1) * ((runs + 16 / HEADS - 1) / (16 / HEADS)));
        check_key_index(&late, &model, on);
        kv_sequence_destroy(model.sequence);
        if (i + 1 == SEEDS) { /* [16 chunks][layer][KV head][chunk] */
            const uint64_t damaged = ((3 * LAYERS + 2) * HEADS + 1) * 16 + 5;
            damage(scratch_name(&scratch, "1.metadata"), damaged * KEY_INDEX);
            assert_int_equal(open_first(&late, &model, &error), STATUS_DOCUMENT);
            assert_non_null(strstr(error.message, "(layer 2, KV head 1, chunk 53)"));
            kv_sequence_destroy(model.sequence);
        }
        setting_close(&late);
        late.device->operations->stream_destroy(on);
        device_destroy(late.device);
    }
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Whatever is known of the rows before is not of those that come: after an opening that failed, and where rows were
 * stored whose length was never said. */
static void an_emptied_sequence_is_another_one(void **state) {
    (void)state;
    static struct model_sequence model;
    struct random random;
    struct scratch scratch;
    struct document *document;
    struct error error;
    struct device *device = make_device(1);
    random_init(&random, test_seed(20261130));
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct setting setting = {.device = device, .random = &random, .is_long = true};
    setting_open(&setting, scratch.path, 0, KEY_INDEX);
    save_one(&setting, &model);
    assert_ok(open_first(&setting, &model, &error), error);
    for (int i = 0; i < 2; i++) { /* with tokens, then without */
        const uint64_t generation = kv_sequence_generation(model.sequence),
                       answer = kv_sequence_answer(model.sequence);
        kv_sequence_close_documents(model.sequence);
        assert_int_equal(kv_sequence_length(model.sequence), 0);
        assert_int_not_equal(kv_sequence_generation(model.sequence), generation);
        assert_int_not_equal(kv_sequence_answer(model.sequence), answer);
    }
    damage(scratch_name(&scratch, "1.metadata"), (1 * HEADS * 16 + 5) * KEY_INDEX);
    const uint64_t generation = kv_sequence_generation(model.sequence), answer = kv_sequence_answer(model.sequence);
    assert_ok(document_open(&document, setting.store, 1, &setting.backing.model, &setting.backing.layout, DOCUMENT_READ,
                            0, &error),
              error);
    assert_int_equal(kv_sequence_open_document(model.sequence, document, model.length, false, &error), STATUS_DOCUMENT);
    assert_int_not_equal(kv_sequence_generation(model.sequence), generation);
    assert_int_not_equal(kv_sequence_answer(model.sequence), answer);
    kv_sequence_destroy(model.sequence);
    setting_close(&setting);
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_model),
        cmocka_unit_test(what_goes_is_the_policys),
        cmocka_unit_test(most_slots_are_on_their_way_beside_computing),
        cmocka_unit_test(what_is_read_is_what_was_chosen),
        cmocka_unit_test(gaps_are_read_by_their_cost),
        cmocka_unit_test(test_too_small_a_budget_is_refused),
        cmocka_unit_test(residents_never_go),
        cmocka_unit_test(an_eighth_is_enough),
        cmocka_unit_test(a_key_index_is_read_by_all_threads),
        cmocka_unit_test(a_key_index_comes_to_scattered_columns),
        cmocka_unit_test(a_key_index_goes_up_area_by_area),
        cmocka_unit_test(an_emptied_sequence_is_another_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
