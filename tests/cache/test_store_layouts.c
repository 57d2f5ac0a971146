/* What the text of a document's layout says: groups of layers that differ, and the version of its format. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "cache/faulty_vfs.h"
#include "cache/store/store_internal.h"
#include "cache/store_sample.h"
#include "platform/clock.h"
#include "platform/scratch.h"
#include "seed.h"

static struct scratch scratch;
static uint64_t seed;

static struct store *open_store(uint64_t limit) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch.path, .limit_bytes = limit};
    assert_ok(store_open(&store, &options, &error), error);
    return store;
}

static uint64_t save(struct store *store, const struct sample *sample, uint64_t tokens) {
    uint64_t id;
    struct error error;
    assert_ok(sample_save(sample, store, &tokens, 1, &id, &error), error);
    return id;
}

static void assert_reused(struct store *store, const struct sample *sample, uint64_t asked,
                          uint64_t expected) {
    uint64_t reused;
    struct error error = {.message = "not found"};
    assert_ok(sample_reuse(sample, store, asked, &reused, &error), error);
    if (reused != expected)
        fail_msg("seed %llu: reused %llu tokens of %llu, expected %llu (%s)", (unsigned long long)seed,
                 (unsigned long long)reused, (unsigned long long)asked, (unsigned long long)expected,
                 error.message);
}

static int64_t catalog_version(void) {
    sqlite3 *database;
    sqlite3_stmt *statement;
    assert_int_equal(sqlite3_open(scratch_name(&scratch, "catalog.db"), &database), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(database, "PRAGMA user_version", -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t version = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return version;
}

static uint64_t padded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

/* Layers of two geometries: where pages lie, and how long files are, by the formula of docs/formats.md, counted here
 * byte by byte; the catalog's version; and the layout's text, there and back. */
static void test_groups(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 31);
    for (size_t round = 0; round < 20; round++) {
        struct sample sample = sample_random(&random);
        struct store_layout *layout = &sample.layout, again;
        struct geometry geometry;
        struct error error;
        char text[STORE_TEXT_MAX];
        if (random_below(&random, 2) == 0)
            layout->tail_bytes = 8 * (1 + (uint32_t)random_below(&random, 2048));
        sample_group(&sample, &random);
        assert_ok(layout_check(layout, &error), error);
        layout_format(layout, text);
        assert_int_equal(strncmp(text, "version=2 codec=", 16), 0);
        assert_ok(layout_parse(text, &again, &error), error);
        assert_memory_equal(layout, &again, sizeof again);
        geometry_init(&geometry, layout);
        const uint64_t chunks = 1 + random_below(&random, 40);
        uint64_t at = 0, tails = 0;
        for (uint64_t generation = 0; generation < 2; generation++)
            for (size_t layer = 0; layer < layout->layer_count; layer++)
                for (size_t head = 0; head < sample_heads(&sample, layer); head++) {
                    const struct store_group *group =
                        layout->groups.of_layer[layer] > 0
                            ? &layout->groups.later[layout->groups.of_layer[layer] - 1]
                            : NULL;
                    const uint32_t tail = group != NULL ? group->tail_bytes : layout->tail_bytes,
                                   page = group != NULL ? group->chunk_bytes : layout->chunk_bytes;
                    assert_int_equal(tail_offset(&geometry, generation, layer, head), tails);
                    tails += padded(tail != 0 ? tail : page);
                }
        at = tails;
        uint64_t end = 0;
        for (uint64_t segment = 0; segment < chunks; segment += 16)
            for (size_t layer = 0; layer < layout->layer_count; layer++)
                for (size_t head = 0; head < sample_heads(&sample, layer); head++)
                    for (uint64_t chunk = segment; chunk < segment + 16; chunk++) {
                        const uint8_t of = layout->groups.of_layer[layer];
                        assert_int_equal(page_offset(&geometry, layer, head, chunk), at);
                        at += padded(of > 0 ? layout->groups.later[of - 1].chunk_bytes : layout->chunk_bytes);
                        if (chunk < chunks) end = at;
                    }
        assert_int_equal(pages_end(&geometry, chunks * 64, 1), end);
        struct store *store = open_store(0);
        const uint64_t id = save(store, &sample, chunks * 64 + random_below(&random, 64));
        assert_ok(store_verify(store, id, &error), error);
        assert_int_equal(catalog_version(), 7);
        struct sample other = sample; /* a geometry of the second group that is not the document's */
        other.layout.groups.later[0].kv_head_count++;
        assert_reused(store, &other, chunks * 64, 0);
        assert_reused(store, &sample, chunks * 64, chunks * 64);
        store_close(store);
        scratch_empty(&scratch);
    }
}

/* ---- states ---- */

static struct sample with_states(struct random *random) {
    struct sample sample = sample_random(random);
    if (random_below(random, 2) == 0) sample_group(&sample, random);
    sample_state(&sample, random);
    return sample;
}

static uint64_t bytes_in_list;
static void see_bytes(void *context, const struct document_info *info) {
    (void)context;
    bytes_in_list = info->bytes;
}

static void flip_byte(uint64_t id, uint64_t offset) {
    char name[64];
    uint8_t byte;
    snprintf(name, sizeof name, "%llu.pages", (unsigned long long)id);
    FILE *file = fopen(scratch_name(&scratch, name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fread(&byte, 1, 1, file), 1);
    byte ^= 1;
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&byte, 1, 1, file), 1);
    fclose(file);
}

/* Whether the pages' file has bytes there that are not zeros. */
static bool has_bytes(uint64_t id, uint64_t offset, size_t count) {
    char name[64];
    bool has = false;
    snprintf(name, sizeof name, "%llu.pages", (unsigned long long)id);
    FILE *file = fopen(scratch_name(&scratch, name), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    for (size_t i = 0; i < count; i++) has = has || fgetc(file) > 0;
    fclose(file);
    return has;
}

/* The prefix that is found of so many tokens. */
static uint64_t found_of(struct store *store, const struct sample *sample, uint64_t asked) {
    struct store_match match;
    struct error error;
    int32_t *tokens = sample_tokens(sample, asked);
    const struct store_query query = {&sample->model, &sample->layout, tokens, asked, STORE_LIKE_KIND};
    assert_ok(store_find(store, &query, &match, &error), error);
    free(tokens);
    return match.prefix_tokens;
}

/* Layers without pages: the layout's text, there and back; of a prompt as much is found as there is a state of; what a
 * document counts for when it is closed; a state that a bit was flipped in is told, and not used, and all else is. */
static void test_states(void **state) {
    (void)state;
    enum { COMMITS = 4 };
    static const uint64_t commits[COMMITS] = {64 * 2, 64 * 5 + 3, 64 * 5 + 40, 64 * 20 + 1};
    struct random random;
    random_init(&random, seed + 37);
    for (size_t round = 0; round < 8; round++) {
        struct sample sample = with_states(&random);
        struct store_layout *layout = &sample.layout, again;
        struct geometry geometry;
        struct error error;
        char text[STORE_TEXT_MAX];
        uint64_t id, positions[STORE_STATES_MAX];
        layout_format(layout, text);
        assert_int_equal(strncmp(text, "version=3 codec=", 16), 0);
        assert_ok(layout_parse(text, &again, &error), error);
        assert_memory_equal(layout, &again, sizeof again);
        geometry_init(&geometry, layout);
        struct store *store = open_store(0);
        assert_ok(sample_save(&sample, store, commits, COMMITS, &id, &error), error);
        assert_int_equal(catalog_version(), 8);
        assert_ok(store_verify(store, id, &error), error);
        struct document *document;
        assert_ok(document_open(&document, store, id, &sample.model, layout, DOCUMENT_READ, 0, &error), error);
        const size_t count = document_states(document, positions);
        assert_int_equal(count, 7); /* two of each commit, but for what sample_write forgot */
        const uint64_t last = state_offset(&geometry, (size_t)document->states.list[count - 1].place);
        bool is_named[STATE_PLACES] = {false};
        for (size_t i = 0; i < count; i++) is_named[document->states.list[i].place] = true;
        document_close(document);
        for (size_t place = 0; place < STATE_PLACES; place++) /* what no commit names was punched out */
            assert_int_equal(has_bytes(id, state_offset(&geometry, place), layout->state_bytes), is_named[place]);
        assert_ok(store_show(store, id, see_bytes, NULL, &error), error);
        assert_int_equal(bytes_in_list, document_bytes_max(&geometry, commits[COMMITS - 1]) -
                                            (STATE_PLACES - count) * state_place_bytes(&geometry));
        const uint64_t end = commits[COMMITS - 1];
        for (uint64_t asked = 64; asked <= end + 64; asked += 1 + random_below(&random, 90)) {
            uint64_t expected = 0;
            for (size_t i = 0; i < count; i++)
                if (positions[i] <= asked) expected = positions[i];
            assert_int_equal(found_of(store, &sample, asked), expected);
        }
        /* None helps: the tokens are there all the same. */
        uint64_t stateless, prefix;
        int32_t *tokens = sample_tokens(&sample, 64);
        const struct store_query query = {&sample.model, layout, tokens, 64, STORE_LIKE_KIND};
        assert_ok(store_find_stateless(store, &query, &stateless, &prefix, &error), error);
        assert_int_equal(stateless, positions[0] <= 64 ? 0 : id);
        assert_int_equal(prefix, positions[0] <= 64 ? 0 : 64);
        free(tokens);
        store_close(store);
        flip_byte(id, last + random_below(&random, layout->state_bytes));
        store = open_store(0);
        assert_int_equal(found_of(store, &sample, end), end);
        assert_reused(store, &sample, end, 0); /* reading it tells; then it is not counted on, */
        assert_int_equal(found_of(store, &sample, end), positions[count - 2]);
        assert_int_equal(store_verify(store, id, &error), STATUS_DOCUMENT);
        snprintf(text, sizeof text, "state behind %llu tokens): found checksum", (unsigned long long)end);
        assert_non_null(strstr(error.message, text));
        assert_ok(document_open(&document, store, id, &sample.model, layout, DOCUMENT_READ, 0, &error), error);
        for (size_t i = 0; i + 1 < count; i++) /* and the others are as good as before */
            assert_ok(document_read_state(document, positions[i], NULL, NULL, NULL, &error), error);
        document_close(document);
        store_close(store);
        scratch_empty(&scratch);
    }
}

/* Layers with windows: the layout's text, there and back; of a prompt as much is found as leaves the next row its
 * window; what no window of its positions sees is not on disk when a document is closed, and does not count; and a
 * flipped bit is found in what is. */
static void test_windows(void **state) {
    (void)state;
    enum { COMMITS = 5 };
    static const uint64_t commits[COMMITS] = {64 * 2, 64 * 9 + 3, 64 * 9 + 40, 64 * 20 + 1, 64 * 37};
    struct random random;
    size_t refused = 0;
    random_init(&random, seed + 41);
    for (size_t round = 0; round < 8; round++) {
        struct sample sample = sample_random(&random);
        if (round % 2 == 0) sample_group(&sample, &random);
        sample_window(&sample, &random);
        struct store_layout *layout = &sample.layout, again;
        struct geometry geometry;
        struct error error;
        char text[STORE_TEXT_MAX];
        uint64_t id, other_id, positions[STORE_STATES_MAX];
        layout_format(layout, text);
        assert_int_equal(strncmp(text, "version=4 codec=", 16), 0);
        assert_ok(layout_parse(text, &again, &error), error);
        assert_memory_equal(layout, &again, sizeof again);
        geometry_init(&geometry, layout);
        struct store *store = open_store(0);
        assert_ok(sample_save(&sample, store, commits, COMMITS, &id, &error), error);
        assert_int_equal(catalog_version(), 9);
        assert_ok(store_verify(store, id, &error), error);
        struct document *document;
        assert_ok(document_open(&document, store, id, &sample.model, layout, DOCUMENT_READ, 0, &error), error);
        const size_t count = document_states(document, positions);
        assert_int_equal(count, 7);
        document_close(document);
        const uint64_t end = commits[COMMITS - 1];
        uint64_t absent = 0, kept = UINT64_MAX;
        for (size_t layer = 0; layer < layout->layer_count; layer++)
            for (size_t head = 0; head < sample_heads(&sample, layer); head++)
                for (uint64_t chunk = 0; chunk < end / 64; chunk++) {
                    const bool has = sample_has(&sample, positions, count, layer, chunk);
                    const size_t bytes = page_padded_bytes(&geometry, layer, head, chunk);
                    const uint64_t at = page_offset(&geometry, layer, head, chunk);
                    assert_int_equal(has_bytes(id, at, bytes), has);
                    if (!has) absent += bytes;
                    if (has && layout->windows.slides[layer]) kept = at;
                }
        assert_true(absent > 0 && kept != UINT64_MAX);
        assert_ok(store_show(store, id, see_bytes, NULL, &error), error);
        assert_int_equal(bytes_in_list, document_bytes_max(&geometry, end) - absent);
        for (uint64_t asked = 64; asked <= end + 64; asked += 1 + random_below(&random, 60)) {
            uint64_t expected = 0; /* the longest one whose rows before are there, as far as the next one sees them */
            for (uint64_t length = 0; length <= asked && length <= end; length++) {
                bool has = true;
                for (uint64_t row = length + 1 > layout->windows.tokens ? length + 1 - layout->windows.tokens : 0;
                     row < length && has; row = (row / 64 + 1) * 64)
                    for (size_t layer = 0; layer < layout->layer_count; layer++)
                        has = has && sample_has(&sample, positions, count, layer, row / 64);
                if (has) expected = length;
            }
            assert_int_equal(found_of(store, &sample, asked), expected);
        }
        store_close(store);
        /* As it is written its pages are reserved a few at a time, but never more than the limit has. */
        struct scratch other;
        scratch_create(&other, SCRATCH_MEMORY);
        const uint64_t one = 64 * 200, all = document_bytes_max(&geometry, one),
                       windows = window_pages_bytes(&geometry, one / 64);
        struct store_options limited = {.directory = other.path, .limit_bytes = all - windows / 2};
        assert_ok(store_open(&store, &limited, &error), error);
        assert_ok(sample_save(&sample, store, &one, 1, &other_id, &error), error);
        assert_ok(store_remove(store, other_id, &error), error);
        store_close(store);
        limited.limit_bytes = all - windows + window_room_bytes(&geometry, one / 64) + (1 << 20);
        assert_ok(store_open(&store, &limited, &error), error);
        const uint64_t twenty[] = {64 * 20, 64 * 40, 64 * 60, 64 * 80, 64 * 100, 64 * 120, 64 * 140, 64 * 160, one};
        const enum status full = sample_save(&sample, store, twenty, 9, &other_id, &error);
        assert_true(full == STATUS_OK || (full == STATUS_IO && strstr(error.message, "limit") != NULL));
        refused += full != STATUS_OK;
        store_close(store);
        scratch_destroy(&other);
        flip_byte(id, kept);
        store = open_store(0);
        assert_int_equal(store_verify(store, id, &error), STATUS_DOCUMENT);
        assert_non_null(strstr(error.message, "found checksum"));
        assert_reused(store, &sample, end, 0);
        store_close(store);
        scratch_empty(&scratch);
    }
    assert_true(refused > 0);
}

static void test_faulty_groups(void **state) {
    (void)state;
    static const char *const faulty[] = {
        "version=3 codec=x layers=2 heads=1 chunk=64 groups=0- metadata=none/0 segment=16",
        "version=3 codec=x layers=2 heads=1 chunk=64 groups=0- states=0 metadata=none/0 segment=16",
        "version=3 codec=x layers=2 heads=1 chunk=64 groups=00 states=4 metadata=none/0 segment=16",
        "version=3 codec=x layers=2 heads=1 chunk=64 groups=-- states=4 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=0- states=4 metadata=none/0 segment=16",
        "version=3 codec=x layers=2 heads=1 chunk=64 groups=0- states=1073741825 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 metadata=none/0 segment=16",
        "codec=x layers=2 heads=1 chunk=64 groups=01/y/1/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=00/y/1/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=02/y/1/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=011/y/1/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/y/0/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/y/1/65/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/y/1/64/64 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/y/1/4294967296/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/Y/1/64/0 metadata=none/0 segment=16",
        "version=2 codec=x layers=2 heads=1 chunk=64 tail=64 share=88 groups=01/y/1/64/64 metadata=none/0 "
        "segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 windows=0/1 metadata=none/0 segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 windows=8/0 metadata=none/0 segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 windows=8/4 metadata=none/0 segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 windows=8/10 metadata=none/0 segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 windows=8/ metadata=none/0 segment=16",
        "version=3 codec=x layers=2 heads=1 chunk=64 windows=8/1 metadata=none/0 segment=16",
        "version=4 codec=x layers=2 heads=1 chunk=64 groups=0- states=4 windows=8/1 metadata=none/0 segment=16",
        "version=2codec=x",
        "version=2 ",
        "version=1 codec=x layers=2 heads=1 chunk=64 metadata=none/0 segment=16"};
    struct store_layout layout;
    struct error error;
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++)
        if (layout_parse(faulty[i], &layout, &error) != STATUS_DOCUMENT) fail_msg("%s", faulty[i]);
    assert_ok(layout_parse(
                  "version=2 codec=x layers=2 heads=1 chunk=64 groups=01/y/1/64/0 metadata=none/0 segment=16",
                  &layout, &error),
              error);
}

/* Gives the row of document 1 a version of the format, with a valid checksum. */
static void set_version(unsigned version) {
    struct io_folder folder;
    struct catalog catalog;
    struct document_row row;
    struct error error;
    bool found;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_ok(catalog_open(&catalog, &folder, false, false, NULL, &error), error);
    assert_ok(catalog_find(&catalog, 1, &row, &found, &error), error);
    assert_true(found && row.intact);
    char rest[STORE_TEXT_MAX];
    snprintf(rest, sizeof rest, "%s", strstr(row.layout, "codec="));
    const int length = snprintf(row.layout, sizeof row.layout, "version=%u %.230s", version, rest);
    assert_true(length > 0);
    assert_ok(catalog_update(&catalog, &row, &error), error);
    catalog_close(&catalog);
    io_folder_close(&folder);
}

static void see_info(void *context, const struct document_info *info) {
    struct document_info *seen = context;
    assert_null(info->damaged); /* another version is no damage */
    *seen = *info;
}

/* An older and a newer one: neither used nor flagged, read by nobody, removed by id alone. */
static void test_other_version(void **state) {
    (void)state;
    static const unsigned versions[] = {LAYOUT_VERSION_FIRST - 1, LAYOUT_VERSION_LAST + 1, 999999999};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct random random;
        random_init(&random, seed + 29);
        struct sample sample = sample_random(&random);
        struct store *store = open_store(0);
        save(store, &sample, 64 * 5);
        store_close(store);
        set_version(versions[i]);
        store = open_store(0);
        assert_null(store_warning(store));
        assert_reused(store, &sample, 1000, 0);
        struct document_info info = {0};
        struct error why = {.message = ""}, error;
        char expected[512];
        uint64_t prefix;
        int32_t *tokens = sample_tokens(&sample, 1000), *others;
        assert_ok(store_find_other(
                      store,
                      &(struct store_query){.model = &sample.model, .tokens = tokens, .token_count = 1000},
                      &prefix, &why, &error),
                  error);
        assert_int_equal(prefix, 64 * 5);
        snprintf(expected, sizeof expected,
                 "%s/catalog.db: document 1: found version %u of documents, expected %d to %d", scratch.path,
                 versions[i], LAYOUT_VERSION_FIRST, LAYOUT_VERSION_LAST);
        assert_string_equal(why.message, expected);
        assert_int_equal(store_verify(store, 1, &error), STATUS_UNSUPPORTED);
        assert_string_equal(error.message, expected);
        assert_int_equal(store_tokens(store, 1, &others, &prefix, &error), STATUS_UNSUPPORTED);
        assert_ok(store_show(store, 1, see_info, &info, &error), error);
        assert_true(info.is_other && info.version == versions[i] && info.token_count == 64 * 5);
        save(store, &sample, 64 * 5); /* computed anew */
        assert_reused(store, &sample, 1000, 64 * 5);
        assert_ok(store_find_other(
                      store,
                      &(struct store_query){.model = &sample.model, .tokens = tokens, .token_count = 63},
                      &prefix, &why, &error),
                  error);
        assert_int_equal(prefix, 0);
        free(tokens);
        assert_ok(store_remove(store, 1, &error), error);
        assert_reused(store, &sample, 1000, 64 * 5);
        store_close(store);
        scratch_empty(&scratch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups), cmocka_unit_test(test_faulty_groups),
                                       cmocka_unit_test(test_states), cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_other_version)};
    seed = test_seed(20261127);
    scratch_create(&scratch, SCRATCH_MEMORY);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_destroy(&scratch);
    return failed;
}
