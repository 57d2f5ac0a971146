/* A document whose catalog is damaged, opened by a sequence: its key index is read before the catalog is verified. */
#include "testing.h"

#include <stdio.h>
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
                               .layout = {.codec = "f16.32,f16.32",
                                          .layer_count = LAYERS,
                                          .kv_head_count = HEADS,
                                          .chunk_bytes = KV_CHUNK_TOKENS * 2 * 32 * 2,
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

struct setting {
    struct device *device;
    struct store *store;
    struct kv_cache *cache;
    struct kv_sequence *sequence;
};

static void setting_open(struct setting *setting, const char *directory, bool device_has_memory) {
    const struct device_options options = {.thread_count = READERS, .mask = cpu_default()};
    struct kv_cache_config config = {.layer_count = LAYERS,
                                     .kv_head_count = HEADS,
                                     .k_dimension = 32,
                                     .v_dimension = 32,
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
    config.host_bytes = kv_tier_bytes_min(&config);
    setting->store = sample_store_open(directory);
    assert_ok(kv_tier_create(&setting->cache, setting->device, &config, &error), error);
    assert_ok(kv_sequence_create(&setting->sequence, setting->cache, TOKENS, &error), error);
    kv_sequence_set_backing(setting->sequence, &(struct kv_backing){.store = setting->store,
                                                                    .model = sample.model,
                                                                    .layout = sample.layout,
                                                                    .name = "test"});
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
        setting_open(&setting, scratch.path, i % 2 == 1);
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
        uint8_t found[KEY_INDEX], expected[KEY_INDEX];
        scratch_create(&scratch, SCRATCH_MEMORY);
        save(scratch.path);
        setting_open(&setting, scratch.path, form == 1);
        const struct device_operations *operations = setting.device->operations;
        struct stream *stream;
        assert_ok(operations->stream_create(setting.device, &stream, &error), error);
        assert_ok(begin(&setting, &document, &error), error);
        assert_ok(kv_sequence_open_document(setting.sequence, document, TOKENS, false, &error), error);
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t head = 0; head < HEADS; head++)
                for (uint64_t chunk = 0; chunk < TOKENS / KV_CHUNK_TOKENS; chunk++) {
                    operations->download(stream, found, kv_key_index_block(setting.sequence, layer, head, chunk),
                                         sizeof found);
                    assert_ok(operations->stream_synchronize(stream, &error), error);
                    sample_key_index(&sample, layer, head, chunk, expected);
                    assert_memory_equal(found, expected, sizeof found);
                }
        operations->stream_destroy(stream);
        setting_close(&setting);
        scratch_destroy(&scratch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_damaged_catalog_is_named),
                                       cmocka_unit_test(a_sound_one_is_opened)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
