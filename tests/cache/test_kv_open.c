/* The key index of a sequence's document: how it is written, and opened while the catalog is verified, which may be
 * damaged. */
#include "testing.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "cache/kv_cache_internal.h"
#include "cache/kv_tier.h"
#include "cache/store/store_internal.h"
#include "cache/store_sample.h"
#include "device/queued_device.h"
#include "platform/scratch.h"
#include "seed.h"

enum { LAYERS = 3, HEADS = 2, KEY_INDEX = 64, READERS = 3 };
enum { TOKENS = 50 * KV_CHUNK_TOKENS, FIRST = 20 * KV_CHUNK_TOKENS };

static struct sample sample = {.model = {.fingerprint = {7}, .description = "numbers"},
                               .layout = {.codec = "f16.128,f16.128",
                                          .layer_count = LAYERS,
                                          .kv_head_count = HEADS,
                                          .chunk_bytes = KV_CHUNK_TOKENS * 2 * 128 * 2, /* a buffer holds 8 */
                                          .key_index_kind = "numbers",
                                          .key_index_bytes = KEY_INDEX}};

/* In two commits. */
static void save(const char *directory) {
    static const uint64_t commits[] = {FIRST, TOKENS};
    struct error error;
    uint64_t id;
    struct store *store = sample_store_open(directory);
    assert_ok(sample_save(&sample, store, commits, 2, &id, &error), error);
    assert_int_equal(id, 1);
    store_close(store);
}

static void change_catalog(const struct scratch *scratch, const char *sql) {
    sqlite3 *database;
    assert_int_equal(sqlite3_open(scratch_name(scratch, "catalog.db"), &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(database), 1);
    sqlite3_close(database);
}

/* Writes to the file of a key index, by their bytes. */
struct writes {
    struct io_faults faults;
    _Atomic size_t count, of_layers; /* of_layers: a run of 16 chunks of all heads */
};

static struct io_fault count_write(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    struct writes *writes = context;
    (void)offset;
    if (call == IO_CALL_WRITE && strstr(path, ".metadata") != NULL) {
        writes->count++;
        writes->of_layers += bytes == (size_t)HEADS * 16 * KEY_INDEX;
    }
    return (struct io_fault){.bytes_max = bytes};
}

struct setting {
    struct device *device;
    struct store *store;
    struct kv_cache *cache;
    struct kv_sequence *sequence;
    struct kv_backing backing;
};

static void setting_open(struct setting *setting, const char *directory, const struct io_faults *faults,
                         bool device_has_memory) {
    const struct device_options options = {.thread_count = READERS, .mask = cpu_default()};
    struct kv_cache_config config = {.layer_count = LAYERS,
                                     .kv_head_count = HEADS,
                                     .k_dimension = 128,
                                     .v_dimension = 128,
                                     .k_type = KV_F16,
                                     .v_type = KV_F16,
                                     .token_capacity = TOKENS,
                                     .sequence_capacity = 1,
                                     .key_index_bytes = KEY_INDEX,
                                     .buffer_bytes = 1 << 20,
                                     .device_has_memory = device_has_memory,
                                     .block_tokens = 256};
    struct error error;
    if (device_has_memory)
        setting->device = queued_device_create(&options, sample.seed);
    else
        assert_ok(device_cpu_create(&setting->device, &options, &error), error);
    config.host_bytes = kv_tier_bytes_around(&config, 16 << 20);
    const struct store_options store_options = {
        .directory = directory, .backend = IO_BACKEND_THREADS, .staging_bytes = 1 << 20, .faults = faults};
    assert_ok(store_open(&setting->store, &store_options, &error), error);
    assert_ok(kv_tier_create(&setting->cache, setting->device, &config, &error), error);
    assert_ok(kv_sequence_create(&setting->sequence, setting->cache, TOKENS, &error), error);
    setting->backing =
        (struct kv_backing){.store = setting->store, .model = sample.model, .layout = sample.layout, .name = "test"};
    kv_sequence_set_backing(setting->sequence, &setting->backing);
}

static void setting_close(struct setting *setting) {
    kv_sequence_destroy(setting->sequence);
    kv_cache_destroy(setting->cache);
    store_close(setting->store);
    device_destroy(setting->device);
}

static enum status begin(struct setting *setting, struct document **document, struct error *error) {
    return document_open_begin(document, setting->store, 1, &sample.model, &sample.layout, DOCUMENT_READ, 0, error);
}

static struct stream *stream_of(const struct setting *setting) {
    struct stream *stream;
    struct error error;
    assert_ok(setting->device->operations->stream_create(setting->device, &stream, &error), error);
    return stream;
}

/* It is the sample's. */
static void check_key_index(const struct setting *setting) {
    const struct device_operations *operations = setting->device->operations;
    struct stream *stream = stream_of(setting);
    uint8_t found[KEY_INDEX], expected[KEY_INDEX];
    struct error error;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < HEADS; head++)
            for (uint64_t chunk = 0; chunk < TOKENS / KV_CHUNK_TOKENS; chunk++) {
                const struct span block = kv_key_index_block(setting->sequence, layer, head, chunk);
                operations->download(stream, found, block, sizeof found);
                assert_ok(operations->stream_synchronize(stream, &error), error);
                sample_key_index(&sample, layer, head, chunk, expected);
                assert_memory_equal(found, expected, sizeof found);
            }
    operations->stream_destroy(stream);
}

/* Rows [from, to), each layer's when they are there; pages are whatever they are, the key index is the sample's. */
static void append(struct setting *setting, uint64_t from, uint64_t to) {
    const struct device_operations *operations = setting->device->operations;
    struct stream *stream = stream_of(setting);
    uint8_t block[KEY_INDEX];
    struct error error;
    assert_ok(kv_sequence_reserve(setting->sequence, to, &error), error);
    for (size_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kv_sequence_open_rows(setting->sequence, layer, from, to - from, &error), error);
        for (size_t head = 0; head < HEADS; head++)
            for (uint64_t chunk = from / KV_CHUNK_TOKENS; chunk < to / KV_CHUNK_TOKENS; chunk++) {
                sample_key_index(&sample, layer, head, chunk, block);
                operations->upload(stream, kv_key_index_block(setting->sequence, layer, head, chunk), block,
                                   sizeof block);
                assert_ok(operations->stream_synchronize(stream, &error), error);
            }
        assert_ok(kv_sequence_write(setting->sequence, layer, to, &error), error);
    }
    kv_sequence_set_length(setting->sequence, to);
    operations->stream_destroy(stream);
}

/* Ends the document with the sample's rows, and opens what was saved. */
static void finish(struct setting *setting, uint64_t from, uint64_t id) {
    struct document *document;
    struct error error;
    int32_t *tokens = sample_tokens(&sample, TOKENS);
    tokens[TOKENS - 1] += (int32_t)id; /* or the second document would be a copy of the first one */
    append(setting, from, TOKENS);
    assert_ok(kv_sequence_commit(setting->sequence, tokens, &error), error);
    assert_ok(kv_sequence_flush(setting->sequence, &error), error);
    free(tokens);
    kv_sequence_close_documents(setting->sequence);
    assert_ok(
        document_open_begin(&document, setting->store, id, &sample.model, &sample.layout, DOCUMENT_READ, 0, &error),
        error);
    kv_sequence_set_backing(setting->sequence, &setting->backing);
    assert_ok(kv_sequence_open_document(setting->sequence, document, TOKENS, false, &error), error);
    check_key_index(setting);
}

/* Of what a cut takes back the key index is written once more, in a run that was and in one that was not; and what
 * departs from a document takes its key index with it. */
static void it_is_of_the_rows_that_stay(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20261206);
    static const uint64_t cuts[] = {5, 16, 18, 20};
    for (size_t i = 0; i < 2 * sizeof cuts / sizeof *cuts; i++) {
        const uint64_t cut = cuts[i / 2] * KV_CHUNK_TOKENS;
        struct scratch scratch;
        struct setting setting;
        struct document *document;
        struct error error;
        scratch_create(&scratch, SCRATCH_MEMORY);
        setting_open(&setting, scratch.path, NULL, i % 2 == 1);
        assert_ok(kv_sequence_create_document(setting.sequence, TOKENS, &error), error);
        sample.seed = seed;
        append(&setting, 0, cut);
        sample.seed = seed + 1;
        append(&setting, cut, FIRST + KV_CHUNK_TOKENS * 3);
        kv_sequence_set_length(setting.sequence, cut);
        sample.seed = seed;
        finish(&setting, cut, 1);
        kv_sequence_close_documents(setting.sequence);
        kv_sequence_set_backing(setting.sequence, &setting.backing);
        assert_ok(begin(&setting, &document, &error), error);
        assert_ok(kv_sequence_open_document(setting.sequence, document, cut, false, &error), error);
        assert_ok(kv_sequence_copy_document(setting.sequence, TOKENS, &error), error);
        finish(&setting, cut, 2);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
}

/* However the rows come: a run of 16 chunks of all heads of a layer is one write, and what is behind the last whole
 * run one for each head, when it is committed. */
static void a_run_of_a_layer_is_one_write(void **state) {
    (void)state;
    sample.seed = test_seed(20261205);
    static const uint64_t batches[] = {512, 1024, 1280, 3 * 1024};
    for (size_t i = 0; i < 2 * sizeof batches / sizeof *batches; i++) {
        struct writes writes = {.faults = {&writes, count_write}};
        struct scratch scratch;
        struct setting setting;
        struct error error;
        scratch_create(&scratch, SCRATCH_MEMORY);
        setting_open(&setting, scratch.path, &writes.faults, i % 2 == 1);
        assert_ok(kv_sequence_create_document(setting.sequence, TOKENS, &error), error);
        uint64_t from = 0;
        for (; from + batches[i / 2] < TOKENS; from += batches[i / 2]) append(&setting, from, from + batches[i / 2]);
        finish(&setting, from, 1);
        assert_int_equal(writes.of_layers, LAYERS * (TOKENS / KV_CHUNK_TOKENS / 16));
        assert_int_equal(writes.count, writes.of_layers + LAYERS * HEADS);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
}

/* What is damaged is named, and not a part of the key index that seems to be; nothing of the document is used, and
 * nobody finds it again. */
static void a_damaged_catalog_is_named(void **state) {
    (void)state;
    static const char *const columns[] = {"page_sums", "metadata_sums", "tokens"};
    sample.seed = test_seed(20261203);
    for (size_t i = 0; i < 4 * sizeof columns / sizeof *columns; i++) {
        const unsigned commit = 1 + i / 2 % 2;
        struct scratch scratch;
        struct setting setting;
        struct document *document;
        struct error error;
        char sql[200], expected[60];
        scratch_create(&scratch, SCRATCH_MEMORY);
        save(scratch.path);
        const char *column = columns[i / 4];
        snprintf(sql, sizeof sql, "UPDATE commits SET %s=CAST(zeroblob(length(%s)) AS BLOB) WHERE number=%u", column,
                 column, commit);
        change_catalog(&scratch, sql);
        setting_open(&setting, scratch.path, NULL, i % 2 == 1);
        assert_ok(begin(&setting, &document, &error), error);
        assert_int_equal(kv_sequence_open_document(setting.sequence, document, TOKENS, false, &error), STATUS_DOCUMENT);
        snprintf(expected, sizeof expected, "document 1: commit %u is damaged", commit);
        if (strstr(error.message, expected) == NULL) fail_msg("%s: %s", column, error.message);
        assert_int_equal(kv_sequence_length(setting.sequence), 0);
        assert_int_equal(begin(&setting, &document, &error), STATUS_DOCUMENT);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
}

/* The same without damage: the key index is there. */
static void a_sound_one_is_opened(void **state) {
    (void)state;
    sample.seed = test_seed(20261204);
    for (int form = 0; form < 2; form++) {
        struct scratch scratch;
        struct setting setting;
        struct document *document;
        struct error error;
        scratch_create(&scratch, SCRATCH_MEMORY);
        save(scratch.path);
        setting_open(&setting, scratch.path, NULL, form == 1);
        assert_ok(begin(&setting, &document, &error), error);
        assert_ok(kv_sequence_open_document(setting.sequence, document, TOKENS, false, &error), error);
        check_key_index(&setting);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_of_a_layer_is_one_write), cmocka_unit_test(it_is_of_the_rows_that_stay),
        cmocka_unit_test(a_damaged_catalog_is_named), cmocka_unit_test(a_sound_one_is_opened)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
