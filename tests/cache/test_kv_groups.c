/* Layers of several geometries in one cache, without a model: every byte of every chunk follows from its sequence,
 * layer, head and number.  In RAM alone, and over documents on disk: saved, closed, opened and read back; sizes by the
 * formula.  Reads and writes end when they are waited for, the last one first (platform/held_io.h). */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_cache.h"
#include "cache/kv_tier.h"
#include "cache/store/store.h"
#include "device/host_span.h"
#include "kernels/codec/codec.h"
#include "platform/held_io.h"

/* AT_ONCE: tails of the heads of four layers, which are read together. */
enum {
    LAYERS = 5,
    GROUPS = 3,
    AT_ONCE = 4 + 1 + 4 + 3,
    CHUNKS = 19,
    TAIL = 13,
    TOKENS = CHUNKS * 64 + TAIL,
    KEY_INDEX = 64
};

static const struct kv_geometry shapes[LAYERS] = {{4, 32, 64}, {1, 128, 128}, {4, 32, 64}, {3, 64, 32}, {1, 128, 128}};
static const size_t group_of[LAYERS] = {0, 1, 0, 2, 1};

static struct kv_groups groups;
static struct stream *stream; /* of the device, which has no queue */

static struct device *make_device(void) {
    struct device *device;
    struct error error;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    assert_ok(device->operations->stream_create(device, &stream, &error), error);
    assert_true(kv_groups_init(&groups, shapes, NULL, LAYERS));
    return device;
}

/* In f16; a multiple of 512, so that pages need no padding only by chance. */
static size_t chunk_bytes(size_t layer) { return 64 * 2 * (shapes[layer].k_dimension + shapes[layer].v_dimension); }

/* Halves between -2 and 2. */
static void fill(uint8_t *bytes, uint64_t sequence, size_t layer, size_t head, uint64_t chunk) {
    struct random random;
    random_init(&random, (((sequence * 64 + layer) * 64 + head) << 20) + chunk);
    for (size_t i = 0; i < chunk_bytes(layer); i += 2) {
        const uint16_t half = (uint16_t)(random_next(&random) & 0xbfff);
        memcpy(bytes + i, &half, sizeof half);
    }
}

static uint8_t *chunk_at(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const struct kv_view view = kv_sequence_view(sequence, stream, layer);
    const uint32_t place = span_place(view.chunks, head * view.chunk_stride + chunk);
    assert_true(place != PLACE_NOWHERE);
    assert_int_equal(view.layout->chunk_bytes, chunk_bytes(layer));
    uint8_t *bytes = span_memory(kv_pools_chunk(view.pools, place));
    assert_ptr_equal(bytes, span_memory(kv_sequence_chunk(sequence, layer, head, chunk)));
    return bytes;
}

static uint8_t *key_index_at(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const struct kv_view view = kv_sequence_view(sequence, stream, layer);
    return span_memory(kv_pools_chunk(view.pools, span_place(view.key_index, head * view.chunk_stride + chunk)));
}

static void expect_chunk(const uint8_t *bytes, uint64_t sequence, size_t layer, size_t head, uint64_t chunk,
                         size_t count) {
    static uint8_t expected[1 << 16];
    fill(expected, sequence, layer, head, chunk);
    assert_memory_equal(bytes, expected, count);
}

static void test_groups(void **state) {
    (void)state;
    struct kv_groups all;
    struct kv_geometry many[KV_GROUPS_MAX + 1];
    assert_true(kv_groups_init(&groups, shapes, NULL, LAYERS));
    assert_int_equal(groups.group_count, GROUPS);
    static const size_t layers[GROUPS] = {2, 2, 1}, lanes[LAYERS + 1] = {0, 4, 5, 9, 12, 13},
                        number[LAYERS] = {0, 0, 1, 0, 1};
    for (size_t i = 0; i < GROUPS; i++) assert_int_equal(groups.list[i].layer_count, layers[i]);
    for (size_t i = 0; i < LAYERS; i++) {
        assert_int_equal(groups.of_layer[i], group_of[i]);
        assert_int_equal(groups.in_group[i], number[i]);
        for (size_t lane = lanes[i]; lane < lanes[i + 1]; lane++) assert_int_equal(kv_groups_layer(&groups, lane), i);
    }
    for (size_t i = 0; i <= LAYERS; i++) assert_int_equal(groups.lane_first[i], lanes[i]);
    assert_int_equal(kv_groups_heads_max(&groups), 4);
    for (size_t i = 0; i <= KV_GROUPS_MAX; i++) many[i] = (struct kv_geometry){1, 8 * (i + 1), 8};
    assert_true(kv_groups_init(&all, many, NULL, KV_GROUPS_MAX));
    assert_false(kv_groups_init(&all, many, NULL, KV_GROUPS_MAX + 1));
}

static struct kv_cache_config config_of(uint64_t tokens, size_t sequences) {
    return (struct kv_cache_config){.layer_count = LAYERS,
                                    .groups = &groups,
                                    .k_type = KV_F16,
                                    .v_type = KV_F16,
                                    .token_capacity = tokens,
                                    .sequence_capacity = sequences};
}

static void test_in_ram(void **state) {
    (void)state;
    struct device *device = make_device();
    struct kv_cache *cache;
    struct kv_sequence *sequences[2];
    struct error error;
    struct kv_cache_config config = config_of(2 * TOKENS, 2);
    uint64_t token = 0, lanes = 0;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        token += shapes[layer].kv_head_count * chunk_bytes(layer) / 64;
        lanes += layer >= 1 ? shapes[layer].kv_head_count : 0;
    }
    assert_int_equal(kv_cache_bytes_per_token(&config), token);
    config.key_index_bytes = KEY_INDEX;
    config.key_index_layer_first = 1;
    assert_int_equal(kv_cache_bytes_per_token(&config), token + lanes * KEY_INDEX / 64);
    assert_ok(kv_cache_create(&cache, device, &config, &error), error);
    for (uint64_t s = 0; s < 2; s++) {
        assert_ok(kv_sequence_create(&sequences[s], cache, TOKENS, &error), error);
        assert_ok(kv_sequence_reserve(sequences[s], CHUNKS * 64, &error), error);
    }
    assert_int_equal(kv_cache_used_bytes(cache), 2 * CHUNKS * (token * 64 + lanes * KEY_INDEX));
    for (int writes = 1; writes >= 0; writes--)
        for (uint64_t s = 0; s < 2; s++)
            for (size_t layer = 0; layer < LAYERS; layer++)
                for (size_t head = 0; head < shapes[layer].kv_head_count; head++)
                    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) {
                        uint8_t *bytes = chunk_at(sequences[s], layer, head, chunk);
                        uint8_t *index = layer >= 1 ? key_index_at(sequences[s], layer, head, chunk) : NULL;
                        const uint8_t mark = (uint8_t)(s * 101 + layer * 37 + head * 11 + chunk);
                        if (writes > 0) {
                            fill(bytes, s, layer, head, chunk);
                            if (index != NULL) memset(index, mark, KEY_INDEX);
                            continue;
                        }
                        expect_chunk(bytes, s, layer, head, chunk, chunk_bytes(layer));
                        for (size_t i = 0; index != NULL && i < KEY_INDEX; i++) assert_int_equal(index[i], mark);
                    }
    assert_int_equal(kv_cache_used_bytes(cache), 2 * CHUNKS * (token * 64 + lanes * KEY_INDEX));
    for (uint64_t s = 0; s < 2; s++) kv_sequence_destroy(sequences[s]);
    kv_cache_destroy(cache);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* ---- on disk ---- */

static uint32_t stored_bytes(size_t layer, bool quantized) {
    struct kv_layout layout;
    kv_layout_init(&layout, KV_F16, KV_F16, shapes[layer].k_dimension, shapes[layer].v_dimension);
    return (uint32_t)(quantized ? kv_q4_chunk_bytes(&layout) : chunk_bytes(layer));
}

static struct store_layout layout_of(bool quantized, size_t key_index_bytes) {
    struct store_layout layout = {.codec = "first",
                                  .layer_count = LAYERS,
                                  .kv_head_count = (uint32_t)shapes[0].kv_head_count,
                                  .chunk_bytes = stored_bytes(0, quantized),
                                  .tail_bytes = quantized ? (uint32_t)chunk_bytes(0) : 0,
                                  .key_index_kind = "none",
                                  .key_index_bytes = (uint32_t)key_index_bytes};
    if (key_index_bytes > 0) strcpy(layout.key_index_kind, "marks");
    for (size_t layer = 0; layer < LAYERS; layer++) {
        const size_t group = layout.groups.of_layer[layer] = (uint8_t)group_of[layer];
        if (group == 0) continue;
        struct store_group *later = &layout.groups.later[group - 1];
        *later = (struct store_group){.codec = "later",
                                      .kv_head_count = (uint32_t)shapes[layer].kv_head_count,
                                      .chunk_bytes = stored_bytes(layer, quantized),
                                      .tail_bytes = quantized ? (uint32_t)chunk_bytes(layer) : 0};
        if (group > layout.groups.later_count) layout.groups.later_count = (uint8_t)group;
    }
    return layout;
}

struct setting {
    struct kv_cache_config config;
    struct kv_cache *cache;
    struct store *store;
    struct kv_backing backing;
    bool quantized;
};

static void append(const struct setting *setting, struct kv_sequence *sequence, uint64_t token_end) {
    const uint64_t length = kv_sequence_length(sequence), chunk = length / 64;
    struct error error;
    assert_ok(kv_sequence_reserve(sequence, token_end, &error), error);
    for (size_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kv_sequence_open_rows(sequence, layer, length, token_end - length, &error), error);
        for (size_t head = 0; head < shapes[layer].kv_head_count; head++) {
            fill(chunk_at(sequence, layer, head, chunk), 0, layer, head, chunk);
            if (setting->config.key_index_bytes > 0 && layer >= setting->config.key_index_layer_first)
                memset(key_index_at(sequence, layer, head, chunk), (int)(layer * 37 + head * 11 + chunk), KEY_INDEX);
        }
        assert_ok(kv_sequence_write(sequence, layer, token_end, &error), error);
    }
    kv_sequence_set_length(sequence, token_end);
}

/* Whole heads one after another, or some of their chunks, as they are stored. */
static void expect_all(const struct setting *setting, struct kv_sequence *sequence, bool chosen) {
    static uint8_t rows[1 << 16], coded[1 << 16];
    struct codec_kernels codec;
    struct error error;
    codec_kernels_init(&codec, cpu_default());
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < shapes[layer].kv_head_count; head++) {
            uint32_t chunks[CHUNKS + 1];
            struct kv_fetch fetch = {.sequence = sequence,
                                     .layer_index = layer,
                                     .kv_head = head,
                                     .quantized = setting->quantized,
                                     .chunk_count = CHUNKS + 1};
            if (chosen) {
                fetch.chunks = chunks;
                fetch.chunk_count = 0;
                for (uint32_t chunk = (uint32_t)head % 2; chunk <= CHUNKS; chunk += 2)
                    chunks[fetch.chunk_count++] = chunk;
            }
            assert_true(kv_fetch_begin(&fetch));
            assert_ok(kv_fetch_wait(&fetch, &error), error);
            for (size_t i = 0; i < fetch.chunk_count; i++) {
                const uint64_t chunk = chosen ? chunks[i] : i;
                const struct kv_view view = kv_sequence_view(sequence, stream, layer);
                if (chunk == CHUNKS) { /* whole blocks of 8 tokens */
                    expect_chunk(chunk_at(sequence, layer, head, chunk), 0, layer, head, chunk,
                                 (TAIL + 7) / 8 * chunk_bytes(layer) / 8);
                } else if (!setting->quantized) {
                    expect_chunk(chunk_at(sequence, layer, head, chunk), 0, layer, head, chunk, chunk_bytes(layer));
                } else {
                    fill(rows, 0, layer, head, chunk);
                    codec.q4_encode(view.layout, rows, coded);
                    const uint32_t place = span_place(view.quantized, head * view.chunk_stride + chunk);
                    assert_memory_equal(span_memory(kv_pools_chunk(view.pools, place)), coded,
                                        stored_bytes(layer, true));
                }
                if (setting->config.key_index_bytes == 0 || layer < setting->config.key_index_layer_first ||
                    chunk == CHUNKS)
                    continue;
                for (size_t byte = 0; byte < KEY_INDEX; byte++)
                    assert_int_equal(key_index_at(sequence, layer, head, chunk)[byte],
                                     (uint8_t)(layer * 37 + head * 11 + chunk));
            }
            kv_fetch_release(&fetch);
        }
}

static uint64_t padded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

static void expect_file_size(const struct scratch *scratch, bool quantized) {
    struct stat info;
    uint64_t tails = 0, segment = 0;
    for (size_t layer = 0; layer < LAYERS; layer++) {
        tails += shapes[layer].kv_head_count * padded(chunk_bytes(layer));
        segment += shapes[layer].kv_head_count * 16 * padded(stored_bytes(layer, quantized));
    }
    const size_t last = LAYERS - 1; /* of its last head's segment the chunks behind the last are not there */
    const uint64_t behind = (32 - CHUNKS) * padded(stored_bytes(last, quantized));
    assert_int_equal(stat(scratch_name(scratch, "1.pages"), &info), 0);
    assert_int_equal(info.st_size, 2 * tails + 2 * segment - behind);
}

static int32_t prompt[TOKENS];

static void setting_open(struct setting *setting, const char *directory, size_t sequences, size_t key_index_bytes,
                         uint64_t more_bytes) {
    struct kv_cache_config *config = &setting->config;
    struct error error;
    for (size_t i = 0; i < TOKENS; i++) prompt[i] = (int32_t)i;
    *config = config_of((CHUNKS + 1) * 64 * sequences, sequences);
    config->key_index_bytes = key_index_bytes;
    config->key_index_layer_first = 1;
    config->quantized_pages = setting->quantized;
    config->buffer_bytes = 1 << 20;
    config->block_tokens = 64;
    config->host_bytes = kv_tier_bytes_min(config) + more_bytes;
    const struct store_options options = {.directory = directory, .staging_bytes = 1 << 20};
    assert_ok(store_open(&setting->store, &options, &error), error);
    setting->backing = (struct kv_backing){.store = setting->store,
                                           .model = {.fingerprint = {7}, .description = "bytes"},
                                           .layout = layout_of(setting->quantized, key_index_bytes),
                                           .name = "test"};
}

static struct kv_sequence *sequence_of(const struct setting *setting) {
    struct kv_sequence *sequence;
    struct error error;
    assert_ok(kv_sequence_create(&sequence, setting->cache, TOKENS, &error), error);
    kv_sequence_set_backing(sequence, &setting->backing);
    return sequence;
}

static void save(const struct setting *setting, struct kv_sequence *sequence) {
    struct error error;
    assert_ok(kv_sequence_create_document(sequence, TOKENS, &error), error);
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) append(setting, sequence, (chunk + 1) * 64);
    append(setting, sequence, TOKENS);
    assert_ok(kv_sequence_commit(sequence, prompt, &error), error);
    assert_ok(kv_sequence_flush(sequence, &error), error);
}

static enum status open_saved(const struct setting *setting, struct kv_sequence *sequence, struct error *error) {
    struct document *document;
    struct store_match match;
    const struct store_query query = {&setting->backing.model, &setting->backing.layout, prompt, TOKENS,
                                      STORE_LIKE_KIND};
    TRY(store_find(setting->store, &query, &match, error));
    assert_int_equal(match.prefix_tokens, TOKENS);
    TRY(document_open(&document, setting->store, match.document, &setting->backing.model, &match.layout, DOCUMENT_READ,
                      0, error));
    held_io_forget();
    return kv_sequence_open_document(sequence, document, TOKENS, false, error);
}

static void round_trip(bool quantized, size_t key_index_bytes, uint64_t more_bytes) {
    struct device *device = make_device();
    struct scratch scratch;
    struct setting setting = {.quantized = quantized};
    struct error error;
    scratch_create(&scratch, SCRATCH_MEMORY);
    setting_open(&setting, scratch.path, 1, key_index_bytes, more_bytes);
    for (int opened = 0; opened < 2; opened++) {
        assert_ok(kv_tier_create(&setting.cache, device, &setting.config, &error), error);
        struct kv_sequence *sequence = sequence_of(&setting);
        if (opened == 0) {
            save(&setting, sequence);
            expect_file_size(&scratch, quantized);
        } else {
            assert_ok(open_saved(&setting, sequence, &error), error);
            assert_int_equal(held_io_now().reads_max, AT_ONCE); /* asked for before anybody waits */
        }
        for (int i = 0; i < 2; i++) {
            expect_all(&setting, sequence, false);
            expect_all(&setting, sequence, true);
        }
        const struct kv_tier_statistics statistics = kv_tier_statistics(setting.cache);
        assert_true(statistics.host_bytes <= setting.config.host_bytes);
        if (opened == 1) assert_true(statistics.misses >= 13 * CHUNKS); /* each was read */
        kv_sequence_destroy(sequence);
        kv_cache_destroy(setting.cache);
    }
    assert_ok(store_verify(setting.store, 1, &error), error);
    store_close(setting.store);
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Takes slots for chunks of the sequence until there are none, then gives so many back; how many it holds. */
static size_t hold_all_but(struct kv_sequence *sequence, struct kv_fetch *held, uint32_t *chunks, size_t left) {
    struct error error;
    size_t count = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < shapes[layer].kv_head_count; head++)
            for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
                struct kv_fetch *fetch = &held[count];
                chunks[count] = chunk;
                *fetch = (struct kv_fetch){.sequence = sequence,
                                           .layer_index = layer,
                                           .kv_head = head,
                                           .chunks = &chunks[count],
                                           .chunk_count = 1};
                if (!kv_fetch_begin(fetch)) goto full;
                assert_ok(kv_fetch_wait(fetch, &error), error);
                count++;
            }
    fail_msg("there are slots for everything");
full:
    assert_true(count >= left);
    for (size_t i = 0; i < left; i++) kv_fetch_release(&held[--count]);
    return count;
}

/* While another sequence's step holds the slots: where one of a tail is missing the sequence is not opened, and of what
 * it had taken by then nothing stays taken. */
static void test_slots_for_all_tails(void **state) {
    (void)state;
    enum { TAILS = 4 + 1 + 4 + 3 + 1, HELD_MAX = TAILS * CHUNKS };
    size_t all = 0;
    static struct kv_fetch held[HELD_MAX];
    static uint32_t chunks[HELD_MAX];
    struct device *device = make_device();
    struct scratch scratch;
    struct setting setting = {.quantized = false};
    struct error error;
    scratch_create(&scratch, SCRATCH_MEMORY);
    setting_open(&setting, scratch.path, 2, 0, 0);
    assert_ok(kv_tier_create(&setting.cache, device, &setting.config, &error), error);
    struct kv_sequence *holder = sequence_of(&setting);
    save(&setting, holder);
    for (size_t left = 0; left <= TAILS + 1; left++) {
        const size_t count = hold_all_but(holder, held, chunks, left);
        struct kv_sequence *opened = sequence_of(&setting);
        const enum status status = open_saved(&setting, opened, &error);
        assert_int_equal(status, left < TAILS ? STATUS_MEMORY : STATUS_OK);
        if (left >= TAILS) assert_int_equal(held_io_now().reads_max, AT_ONCE);
        if (left == 0) all = count;
        assert_int_equal(count + left, all);
        for (size_t i = 0; i < count; i++) kv_fetch_release(&held[i]);
        if (status == STATUS_OK) expect_all(&setting, opened, false);
        kv_sequence_destroy(opened);
    }
    kv_sequence_destroy(holder);
    kv_cache_destroy(setting.cache);
    store_close(setting.store);
    scratch_destroy(&scratch);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

static void test_on_disk(void **state) {
    (void)state;
    round_trip(false, 0, 0);
    round_trip(false, KEY_INDEX, 1 << 20);
}

static void test_in_4_bits(void **state) {
    (void)state;
    round_trip(true, 0, 0);
    round_trip(true, KEY_INDEX, 1 << 20);
}

/* Which layer comes behind so many with K and V. */
static void test_layers_with_heads(void **state) {
    (void)state;
    static const struct kv_geometry own[] = {{0, 32, 32}, {2, 32, 32}, {0, 32, 32},
                                             {0, 32, 32}, {2, 32, 32}, {0, 32, 32}};
    static struct kv_groups mixed, all;
    assert_true(kv_groups_init(&mixed, own, NULL, 6));
    static const size_t expected[] = {1, 4, 6, 6};
    for (size_t i = 0; i < 4; i++) assert_int_equal(kv_layer_behind(&mixed, 6, i), expected[i]);
    assert_int_equal(kv_groups_with_heads(&mixed), 1);
    assert_true(kv_groups_init(&all, shapes, NULL, LAYERS));
    for (size_t i = 0; i < 8; i++) {
        const size_t behind = i < LAYERS ? i : LAYERS;
        assert_int_equal(kv_layer_behind(&all, LAYERS, i), behind);
        assert_int_equal(kv_layer_behind(NULL, LAYERS, i), behind);
    }
    assert_int_equal(kv_groups_with_heads(&all), GROUPS);
    assert_int_equal(kv_groups_with_heads(NULL), 1);
}

/* ---- windows ---- */

/* The layers of gemma3 27B and of gpt-oss 120B, of one KV head each: every so many of them attend to everything. */
static const struct window_shape {
    size_t layers, period, dimension;
    uint64_t window;
} window_shapes[] = {{62, 6, 128, 1024}, {36, 2, 64, 128}};

static struct kv_windows windows_of(const struct window_shape *shape) {
    struct kv_windows windows = {.tokens = shape->window};
    for (size_t i = 0; i < shape->layers; i++) windows.slides[i] = i % shape->period < shape->period - 1;
    return windows;
}

/* Within 1%: tokens of the layers that attend to everything, and of the others those that some windows see. */
static void assert_bytes(const struct kv_cache *cache, const struct window_shape *shape, uint64_t tokens,
                         uint64_t seen) {
    const uint64_t full = shape->layers / shape->period, row = 2 * shape->dimension * sizeof(uint16_t);
    const double formula = (double)((tokens * full + seen * (shape->layers - full)) * row),
                 found = (double)kv_cache_used_bytes(cache);
    assert_true(found >= formula && found < 1.01 * formula);
}

/* Of layers with windows a budget that is larger than all of it has slots for what a sequence has of them at most, and
 * so have layers that stay. */
static void assert_slots(const struct kv_cache_config *wanted, const struct window_shape *shape) {
    struct kv_cache_config config = *wanted;
    const uint64_t full = shape->layers / shape->period, chunks = config.token_capacity / 64,
                   columns = kv_window_columns(config.windows, config.batch_tokens);
    config.host_bytes = UINT64_C(1) << 40;
    config.block_tokens = 512;
    const struct page_fractions none = {.layer_count = 0};
    const struct kv_residents nobody = {.layer_count = 0}, period = {.layer_count = shape->period};
    assert_int_equal(kv_budget_slots(&config, &none, &nobody).plain,
                     full * chunks + (shape->layers - full) * columns + shape->layers);
    assert_int_equal(kv_budget_resident_slots(&config, &none, &period).plain, chunks + (shape->period - 1) * columns);
    config.windows = NULL;
    assert_int_equal(kv_budget_slots(&config, &none, &nobody).plain, shape->layers * (chunks + 1));
}

/* A prompt in segments, an answer, and the next prompt, which leaves the first one behind its newest message. */
static void test_windows(void **state) {
    (void)state;
    enum { PROMPT = 120000, ANSWER = 500, SEGMENT = 3000, CAPACITY = 1 << 17 };
    struct device *device = make_device();
    for (size_t i = 0; i < 2; i++) {
        const struct window_shape *shape = &window_shapes[i];
        const struct kv_windows windows = windows_of(shape);
        const struct kv_cache_config config = {.layer_count = shape->layers,
                                               .kv_head_count = 1,
                                               .k_dimension = shape->dimension,
                                               .v_dimension = shape->dimension,
                                               .token_capacity = CAPACITY,
                                               .sequence_capacity = 1,
                                               .windows = &windows,
                                               .batch_tokens = SEGMENT};
        struct kv_cache *cache;
        struct kv_sequence *sequence;
        struct error error;
        const uint64_t turn = PROMPT - 100, near = (PROMPT - shape->window) / 64 * 64,
                       far = (PROMPT - 4 * shape->window) / 64 * 64;
        assert_ok(kv_cache_create(&cache, device, &config, &error), error);
        assert_ok(kv_sequence_create(&sequence, cache, CAPACITY, &error), error);
        assert_ok(kv_sequence_reserve(sequence, PROMPT, &error), error);
        kv_sequence_plan_snapshots(sequence, (const uint64_t[]){far, near, turn, PROMPT}, 4, turn);
        for (uint64_t end = SEGMENT; end <= PROMPT; end += SEGMENT) {
            kv_sequence_begin_rows(sequence, end, end);
            assert_true(kv_cache_used_bytes(cache) <= kv_cache_sequence_bytes(&config, PROMPT + 63));
            kv_sequence_set_length(sequence, end);
        }
        /* The windows of the end, of `turn` and of `near` touch. */
        const uint64_t seen = shape->window - 1 + PROMPT - near + shape->window - 1;
        assert_bytes(cache, shape, PROMPT, seen);
        for (uint64_t end = PROMPT + 1; end <= PROMPT + ANSWER; end++) {
            assert_ok(kv_sequence_reserve(sequence, end, &error), error);
            kv_sequence_begin_rows(sequence, end, end);
            kv_sequence_set_length(sequence, end);
        }
        assert_int_equal(kv_sequence_cut_of(sequence, PROMPT), PROMPT);
        assert_int_equal(kv_sequence_cut_of(sequence, turn), turn);
        kv_sequence_set_length(sequence, turn);
        assert_true(kv_cache_used_bytes(cache) < kv_cache_sequence_bytes(&config, PROMPT));
        assert_true(kv_cache_sequence_bytes(&config, PROMPT) < kv_cache_bytes_per_token(&config) * PROMPT);
        kv_sequence_destroy(sequence);
        assert_int_equal(kv_cache_used_bytes(cache), 0);
        kv_cache_destroy(cache);
        assert_slots(&config, shape);
    }
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers_with_heads),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_in_ram),
                                       cmocka_unit_test(test_on_disk),
                                       cmocka_unit_test(test_in_4_bits),
                                       cmocka_unit_test(test_slots_for_all_tails),
                                       cmocka_unit_test(test_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
