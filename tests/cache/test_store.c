/* The document store: round trips over random shapes (seed printed, LOAM_TEST_SEED repeats one), prefixes, resuming,
 * readers and writers, the limit, what a folder may not be, bytes written per byte saved, time to open. */
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

static int set_up(void **state) {
    (void)state;
    scratch_create(&scratch, SCRATCH_MEMORY);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_destroy(&scratch);
    return 0;
}

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

static enum status find(struct store *store, const struct store_model *model,
                        const struct store_layout *layout, const int32_t *tokens, uint64_t token_count,
                        enum store_likeness likeness, struct store_match *match, struct error *error) {
    return store_find(store, &(struct store_query){model, layout, tokens, token_count, likeness}, match,
                      error);
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

/* Several commits in a random order of writes, two back ends, reopened in between. */
static void round_trip(struct random *random, enum io_backend backend) {
    struct sample sample = sample_random(random);
    if (random_below(random, 2) == 0) /* as where full chunks are compressed */
        sample.layout.tail_bytes = 8 * (1 + (uint32_t)random_below(random, 2048));
    else if (random_below(random, 3) > 0)
        sample_share(&sample, random);
    if (sample.layout.fractions.layer_count == 0 && random_below(random, 2) == 0)
        sample_group(&sample, random);
    struct store *store;
    struct document *document;
    struct error error;
    const struct store_options options = {
        .directory = scratch.path, .backend = backend, .staging_bytes = 1 << 20};
    uint64_t tokens = 64 + random_below(random, 64 * 40), done = 0, id;
    assert_ok(store_open(&store, &options, &error), error);
    const struct document_description description = {&sample.model, &sample.layout, "a book", tokens};
    assert_ok(document_create(&document, store, &description, &error), error);
    id = document_id(document);
    while (done < tokens) {
        uint64_t to = done + 1 + random_below(random, tokens - done);
        if (random_below(random, 2) == 0 && to / 64 > done / 64) to = to / 64 * 64;
        assert_ok(sample_write(&sample, document, done, to, random, &error), error);
        done = to;
        if (random_below(random, 3) == 0) {
            assert_ok(document_flush(document, &error), error);
            assert_int_equal(document_token_count(document), done);
        }
        if (random_below(random, 3) > 0) continue;
        assert_ok(document_flush(document, &error), error);
        document_close(document);
        store_close(store);
        assert_ok(store_open(&store, &options, &error), error);
        assert_ok(document_open(&document, store, id, &sample.model, &sample.layout, DOCUMENT_APPEND, tokens,
                                &error),
                  error);
        assert_int_equal(document_token_count(document), done);
        if (random_below(random, 2) == 0) assert_ok(sample_check(&sample, document, &error), error);
        if (sample.layout.fractions.layer_count == 0 || random_below(random, 2) == 0) continue;
        sample_share_again(&sample, done, random);
        assert_ok(document_set_fractions(document, &sample.layout.fractions, &error), error);
    }
    document_close(document);
    assert_ok(store_verify(store, id, &error), error);
    assert_reused(store, &sample, tokens + 100, tokens);
    assert_reused(store, &sample, tokens, tokens);
    if (tokens > 70) assert_reused(store, &sample, tokens - 3, tokens - 3);
    assert_reused(store, &sample, 63, 0);
    store_close(store);
}

static void test_round_trips(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed);
    for (int i = 0; i < 12; i++) round_trip(&random, i % 3 == 0 ? IO_BACKEND_THREADS : IO_BACKEND_AUTOMATIC);
}

/* The same on a disk, where O_DIRECT and flushes are real. */
static void test_round_trips_on_disk(void **state) {
    (void)state;
    scratch_destroy(&scratch);
    scratch_create(&scratch, SCRATCH_DISK);
    struct random random;
    random_init(&random, seed + 100);
    for (int i = 0; i < 2; i++) round_trip(&random, i == 0 ? IO_BACKEND_THREADS : IO_BACKEND_AUTOMATIC);
}

/* Prefixes over several documents: the longest is found, by ids, of the same model and layout only. */
static void test_prefixes(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 1);
    struct sample a = sample_random(&random), b = sample_other(&a, 11), c = sample_other(&a, 12);
    b.shared_seed = c.shared_seed = a.seed;
    b.shared_tokens = 200;
    c.shared_tokens = 500;
    struct store *store = open_store(0);
    uint64_t id_a = save(store, &a, 300), id_b = save(store, &b, 1000), id_c = save(store, &c, 777);
    struct error error;
    struct store_match match;
    const struct {
        const struct sample *sample;
        uint64_t asked, document, common;
    } cases[] = {{&a, 2000, id_c, 500}, {&b, 2000, id_b, 1000}, {&c, 2000, id_c, 777},
                 {&c, 700, id_c, 700},  {&b, 150, 0, 150},      {&a, 280, 0, 280}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *tokens = sample_tokens(cases[i].sample, cases[i].asked);
        assert_ok(find(store, &a.model, &a.layout, tokens, cases[i].asked, STORE_LIKE_KIND, &match, &error),
                  error);
        assert_int_equal(match.prefix_tokens, cases[i].common);
        if (cases[i].document > 0) assert_int_equal(match.document, cases[i].document);
        tokens[100]++; /* one other id within the second chunk */
        assert_ok(find(store, &a.model, &a.layout, tokens, cases[i].asked, STORE_LIKE_KIND, &match, &error),
                  error);
        assert_int_equal(match.prefix_tokens, 100);
        tokens[5]++;
        assert_ok(find(store, &a.model, &a.layout, tokens, cases[i].asked, STORE_LIKE_KIND, &match, &error),
                  error);
        assert_int_equal(match.document, 0);
        free(tokens);
    }
    /* d shares 400 tokens with c, which nobody else has. */
    struct sample d = sample_other(&a, 13);
    d.shared_seed = a.seed;
    d.shared_tokens = 400;
    int32_t *tokens = sample_tokens(&d, 900);
    assert_ok(find(store, &a.model, &a.layout, tokens, 900, STORE_LIKE_KIND, &match, &error), error);
    assert_int_equal(match.document, id_c);
    assert_int_equal(match.prefix_tokens, 400);
    /* Another model, another layout. */
    struct store_model model = a.model;
    model.fingerprint[31] ^= 1;
    assert_ok(find(store, &model, &a.layout, tokens, 900, STORE_LIKE_KIND, &match, &error), error);
    assert_int_equal(match.document, 0);
    struct document *document;
    assert_int_equal(document_open(&document, store, id_a, &model, &a.layout, DOCUMENT_READ, 0, &error),
                     STATUS_DOCUMENT);
    assert_non_null(strstr(error.message, "is of another model"));
    struct store_layout layout = a.layout;
    layout.layer_count++;
    assert_ok(find(store, &a.model, &layout, tokens, 900, STORE_LIKE_KIND, &match, &error), error);
    assert_int_equal(match.document, 0);
    assert_int_equal(document_open(&document, store, id_a, &a.model, &layout, DOCUMENT_READ, 0, &error),
                     STATUS_DOCUMENT);
    assert_non_null(strstr(error.message, "is laid out"));
    free(tokens);
    store_close(store);
}

struct seen {
    size_t count, damaged, in_use;
    uint64_t tokens, last;
};

static void see(void *context, const struct document_info *info) {
    struct seen *seen = context;
    seen->count++;
    seen->damaged += info->damaged != NULL;
    seen->in_use += info->in_use;
    seen->tokens += info->token_count;
    seen->last = info->id;
    assert_string_equal(info->name, "sample.txt");
    assert_string_equal(info->model, "a model of the tests");
    assert_true(info->used >= info->created - 1 && info->bytes > 0);
}

/* Pages in 4 bits of chunks [first, end) of one head. */
static uint64_t quantized_of(const struct page_fractions *fractions, size_t head, size_t heads,
                             uint64_t first, uint64_t end) {
    uint64_t count = 0;
    for (uint64_t chunk = first; chunk < end; chunk++)
        count += page_fractions_is_quantized(fractions, 0, head, heads, chunk);
    return count;
}

static void assert_share(uint64_t quantized, uint64_t pages, unsigned sixteenths) {
    uint64_t wanted = pages * sixteenths, found = quantized * PAGE_FRACTION_WHOLE;
    if (found + PAGE_FRACTION_WHOLE <= wanted || found >= wanted + PAGE_FRACTION_WHOLE)
        fail_msg("seed %llu: %llu of %llu pages in 4 bits, expected %u sixteenths", (unsigned long long)seed,
                 (unsigned long long)quantized, (unsigned long long)pages, sixteenths);
}

/* Any run of a head, and of a layer, has its fraction to within one page; every head has some. */
static void test_fractions_are_even(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 20);
    for (unsigned sixteenths = 0; sixteenths <= PAGE_FRACTION_WHOLE; sixteenths++)
        for (int round = 0; round < 40; round++) {
            const struct page_fractions fractions = {.layer_count = 1, .sixteenths = {(uint8_t)sixteenths}};
            size_t heads = 1 + (size_t)random_below(&random, 12);
            uint64_t first = random_below(&random, 3000), end = first + random_below(&random, 100), layer = 0;
            for (size_t head = 0; head < heads; head++) {
                uint64_t quantized = quantized_of(&fractions, head, heads, first, end);
                assert_share(quantized, end - first, sixteenths);
                assert_int_equal(quantized_of(&fractions, head, heads, first, first + 16), sixteenths);
                layer += quantized;
            }
            assert_share(layer, heads * (end - first), sixteenths);
        }
}

/* First pages are rows, all others what they would be without that; and what is counted is what there is. */
static void test_first_pages_are_rows(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 27);
    for (unsigned sixteenths = 0; sixteenths <= PAGE_FRACTION_WHOLE; sixteenths++)
        for (size_t heads = 1; heads <= 20; heads++) {
            const struct page_fractions even = {.layer_count = 1, .sixteenths = {(uint8_t)sixteenths}};
            struct page_fractions kept = even;
            page_fractions_keep_first(&kept);
            assert_true(kept.first_is_rows == (sixteenths > 0));
            const uint64_t end = random_below(&random, 60);
            uint64_t layer = 0;
            for (size_t head = 0; head < heads; head++) {
                assert_false(page_fractions_is_quantized(&kept, 0, head, heads, 0));
                for (uint64_t chunk = 1; chunk < 40; chunk++)
                    assert_true(page_fractions_is_quantized(&kept, 0, head, heads, chunk) ==
                                page_fractions_is_quantized(&even, 0, head, heads, chunk));
                const uint64_t quantized = quantized_of(&kept, head, heads, 0, end);
                assert_int_equal(page_fractions_before(&kept, 0, head, heads, end), quantized);
                layer += quantized;
            }
            assert_int_equal(page_fractions_of_layer(&kept, 0, heads, end), layer);
        }
}

/* Every span has its own fractions, and what is counted over spans is what there is. */
static void test_fractions_of_spans(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 25);
    for (int round = 0; round < 200; round++) {
        struct sample sample = sample_random(&random);
        const size_t heads = 1 + (size_t)random_below(&random, 5);
        sample_share(&sample, &random);
        const struct page_fractions *fractions = &sample.layout.fractions;
        uint64_t tokens = 1 + random_below(&random, 3000);
        for (size_t spans = 1 + (size_t)random_below(&random, 7); spans > 0; spans--) {
            sample_share_again(&sample, tokens, &random);
            tokens = fractions->later[fractions->later_count - 1].chunk_first * 64 + 1 +
                     random_below(&random, 3000);
        }
        const uint64_t end = tokens / 64 + random_below(&random, 40);
        uint64_t layer = 0, first = 0;
        for (size_t head = 0; head < heads; head++) {
            const uint64_t quantized = quantized_of(fractions, head, heads, 0, end);
            assert_int_equal(page_fractions_before(fractions, 0, head, heads, end), quantized);
            layer += quantized;
        }
        assert_int_equal(page_fractions_of_layer(fractions, 0, heads, end), layer);
        for (size_t i = 0; i < fractions->later_count; i++) {
            const uint64_t next = fractions->later[i].chunk_first;
            const unsigned sixteenths =
                i > 0 ? fractions->later[i - 1].sixteenths[0] : fractions->sixteenths[0];
            assert_true(next > first && next % 16 == 0);
            for (size_t head = 0; head < heads; head++)
                assert_int_equal(quantized_of(fractions, head, heads, first, next),
                                 (next - first) / 16 * sixteenths);
            first = next;
        }
    }
}

/* Segments of [layer][head][16] pages follow each other, for any page sizes. */
static void test_places_follow_each_other(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 24);
    for (int round = 0; round < 200; round++) {
        struct sample sample = sample_random(&random);
        if (round % 4 > 0) sample_share(&sample, &random);
        if (round % 8 > 4) page_fractions_keep_first(&sample.layout.fractions);
        for (int span = 2; span < round % 4; span++)
            sample_share_again(&sample, (uint64_t)(span - 1) * 64 * (16 + 16 * random_below(&random, 2)),
                               &random);
        struct geometry geometry;
        geometry_init(&geometry, &sample.layout);
        uint64_t place = 2 * geometry.chunk_pages * geometry.tail_page_bytes;
        for (uint64_t segment = 0; segment < 5; segment++)
            for (size_t layer = 0; layer < geometry.layer_count; layer++)
                for (size_t head = 0; head < geometry.groups[0].kv_head_count; head++)
                    for (uint64_t chunk = segment * 16; chunk < segment * 16 + 16; chunk++) {
                        assert_int_equal(page_offset(&geometry, layer, head, chunk), place);
                        place += page_padded_bytes(&geometry, layer, head, chunk);
                    }
    }
}

/* The bytes that each layer's fraction implies are written, each once. */
static void test_fractions_are_what_is_written(void **state) {
    (void)state;
    struct fault_plan plan;
    fault_plan_init(&plan, FAULT_NONE, 0, false, 0);
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = scratch.path, .faults = &plan.faults};
    assert_ok(store_open(&store, &options, &error), error);
    struct random random;
    random_init(&random, seed + 21);
    struct sample sample = sample_random(&random);
    sample_share(&sample, &random);
    struct store_layout *layout = &sample.layout;
    layout->chunk_bytes = 4864;
    layout->tail_bytes = 16384;
    const uint64_t chunks = 5 + random_below(&random, 40), heads = layout->kv_head_count;
    const struct document_description description = {&sample.model, layout, "", 64 * chunks};
    struct document *document;
    assert_ok(document_create(&document, store, &description, &error), error);
    uint8_t *page = calloc(1, layout->tail_bytes);
    for (size_t layer = 0; layer < layout->layer_count; layer++) {
        uint64_t before = plan.written_bytes, share = layout->fractions.sixteenths[layer];
        for (size_t head = 0; head < heads; head++)
            for (uint64_t chunk = 0; chunk < chunks; chunk++)
                while (document_write_pages(document, layer, head, chunk, 1, (const void *const[]){page},
                                            &error) == STATUS_FULL)
                    assert_ok(document_wait_buffer(document, &error), error);
        assert_ok(document_flush(document, &error), error);
        uint64_t quantized = share * heads * chunks / 16, rows = heads * chunks - quantized;
        assert_int_equal(plan.written_bytes - before, quantized * 8192 + rows * 16384);
    }
    free(page);
    document_close(document);
    store_close(store);
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

/* A document keeps its fractions, and a search for other fractions finds it.  A search for fractions does not find a
 * document without them, and a catalog that holds only such documents keeps its version. */
static void test_fractions_stay(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 22);
    struct sample plain = sample_random(&random), mixed = plain;
    plain.layout.tail_bytes = 8 * 500; /* too little to be read in parts */
    struct store *store = open_store(0);
    save(store, &plain, 64 * 20 + 3);
    assert_int_equal(catalog_version(), 2);
    sample_share(&mixed, &random);
    mixed.layout.tail_bytes = plain.layout.tail_bytes;
    struct sample today = mixed;
    for (size_t i = 0; i < today.layout.layer_count; i++)
        today.layout.fractions.sixteenths[i] =
            (uint8_t)(PAGE_FRACTION_WHOLE - mixed.layout.fractions.sixteenths[i]);
    assert_reused(store, &today, 64 * 20 + 3, 0);
    save(store, &mixed, 64 * 21);
    assert_int_equal(catalog_version(), 3);
    store_close(store);
    store = open_store(0);
    assert_null(store_warning(store));
    assert_reused(store, &plain, 5000, 64 * 20 + 3);
    struct store_match match;
    struct error error;
    int32_t *tokens = sample_tokens(&today, 5000);
    assert_ok(find(store, &today.model, &today.layout, tokens, 5000, STORE_LIKE_KIND, &match, &error), error);
    assert_int_equal(match.prefix_tokens, 64 * 21);
    assert_memory_equal(&match.layout.fractions, &mixed.layout.fractions, sizeof mixed.layout.fractions);
    free(tokens);
    store_close(store);
}

/* A document whose fractions change is found, read and continued by its spans; a change that no commit follows does no
 * harm; and an older loam sees by the version that it cannot read the catalog. */
static void test_fractions_change(void **state) {
    (void)state;
    struct random random;
    struct error error;
    struct document *document;
    random_init(&random, seed + 26);
    struct sample sample = sample_random(&random);
    sample_share(&sample, &random);
    struct store *store = open_store(0);
    const uint64_t id = save(store, &sample, 64 * 20 + 3);
    const struct sample before = sample;
    assert_ok(
        document_open(&document, store, id, &sample.model, &sample.layout, DOCUMENT_APPEND, 64 * 60, &error),
        error);
    sample_share_again(&sample, 64 * 20 + 3, &random);
    assert_int_equal(sample.layout.fractions.later[0].chunk_first, 32);
    assert_ok(document_set_fractions(document, &sample.layout.fractions, &error), error);
    document_close(document); /* nothing was added */
    assert_ok(store_verify(store, id, &error), error);
    assert_int_equal(catalog_version(), 5);
    assert_reused(store, &before, 5000, 64 * 20 + 3); /* found by other fractions, read by its own */
    assert_ok(
        document_open(&document, store, id, &sample.model, &sample.layout, DOCUMENT_APPEND, 64 * 60, &error),
        error);
    sample_share_again(&sample, 64 * 20 + 3, &random); /* instead of the span that nothing has */
    assert_int_equal(sample.layout.fractions.later_count, 1);
    assert_ok(document_set_fractions(document, &sample.layout.fractions, &error), error);
    assert_ok(sample_write(&sample, document, 64 * 20 + 3, 64 * 45, &random, &error), error);
    sample_share_again(&sample, 64 * 45, &random);
    assert_ok(document_set_fractions(document, &sample.layout.fractions, &error),
              error); /* the commit may be under way */
    assert_ok(sample_write(&sample, document, 64 * 45, 64 * 60, &random, &error), error);
    assert_ok(document_flush(document, &error), error);
    document_close(document);
    store_close(store);
    store = open_store(0);
    assert_null(store_warning(store));
    assert_ok(store_verify(store, id, &error), error);
    assert_reused(store, &sample, 5000, 64 * 60);
    store_close(store);
}

/* Documents whose first pages are rows and documents of before lie side by side and are found by the same search; an
 * older loam sees by the version that it cannot read the catalog. */
static void test_first_rows_stay(void **state) {
    (void)state;
    struct random random;
    struct error error;
    struct store_match match;
    random_init(&random, seed + 28);
    struct sample before = sample_random(&random), sample;
    sample_share(&before, &random);
    before.layout.fractions.sixteenths[0] = PAGE_FRACTION_WHOLE;
    sample = sample_other(&before, seed + 29);
    page_fractions_keep_first(&sample.layout.fractions);
    struct store *store = open_store(0);
    const uint64_t old = save(store, &before, 64 * 20 + 3);
    assert_true(catalog_version() < 6);
    const uint64_t id = save(store, &sample, 64 * 20 + 3);
    assert_int_equal(catalog_version(), 6);
    store_close(store);
    store = open_store(0);
    assert_null(store_warning(store));
    assert_ok(store_verify(store, old, &error), error);
    assert_ok(store_verify(store, id, &error), error);
    assert_reused(store, &sample, 5000, 64 * 20 + 3);
    assert_reused(store, &before, 5000, 64 * 20 + 3);
    int32_t *tokens = sample_tokens(&sample, 5000);
    assert_ok(find(store, &sample.model, &before.layout, tokens, 5000, STORE_LIKE_KIND, &match, &error),
              error);
    assert_true(match.prefix_tokens == 64 * 20 + 3 && match.layout.fractions.first_is_rows);
    assert_ok(find(store, &sample.model, &before.layout, tokens, 5000, STORE_LIKE_ALL, &match, &error),
              error);
    assert_int_equal(match.prefix_tokens, 0); /* other fractions, where they are fixed */
    free(tokens);
    store_close(store);
}

/* Gives the row of document 1 another layout, with a valid checksum. */
static void change_layout(const char *share) {
    struct io_folder folder;
    struct catalog catalog;
    struct document_row row;
    struct error error;
    bool found;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_ok(catalog_open(&catalog, &folder, false, false, NULL, &error), error);
    assert_ok(catalog_find(&catalog, 1, &row, &found, &error), error);
    assert_true(found && row.intact);
    char *at = strstr(row.layout, " share="), rest[STORE_TEXT_MAX];
    assert_non_null(at);
    snprintf(rest, sizeof rest, "%s", strstr(at, " metadata="));
    snprintf(at, (size_t)(row.layout + sizeof row.layout - at), "%s%s", share, rest);
    assert_ok(catalog_update(&catalog, &row, &error), error);
    catalog_close(&catalog);
    io_folder_close(&folder);
}

static void see_reason(void *context, const struct document_info *info) {
    if (info->damaged != NULL) snprintf(context, STORE_TEXT_MAX, "%s", info->damaged);
}

static void test_faulty_fractions(void **state) {
    (void)state;
    static const char says[] = "expected a fraction of 0 to 9 or a to g for each of its 2 layers";
    static const char *const faulty[] = {
        " share=8",       " share=8h",      " share=8-",
        " share=888",     " share=",        " share=8 ",
        " share=8G",      " share=88,1:h",  " share=88,1:888",
        " share=88,:8",   " share=88,1",    " share=88,",
        " share=r8",      " share=rr88",    " share=88r",
        " share=88,1:8,", " share=88,01x8", " share=88,1:8,2:7,3:8,4:7,5:8,6:7,7:8,8:7"};
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        struct random random;
        random_init(&random, seed + 23);
        struct sample sample = sample_random(&random);
        sample.layout.layer_count = 2;
        sample_share(&sample, &random);
        struct store *store = open_store(0);
        save(store, &sample, 64 * 5);
        store_close(store);
        change_layout(faulty[i]);
        store = open_store(0);
        char reason[STORE_TEXT_MAX] = "";
        struct error error;
        if (store_warning(store) == NULL || strstr(store_warning(store), says) == NULL)
            fail_msg("%s: the warning is %s", faulty[i], store_warning(store));
        assert_reused(store, &sample, 1000, 0);
        assert_ok(store_show(store, 1, see_reason, reason, &error), error);
        assert_non_null(strstr(reason, says));
        assert_int_equal(store_verify(store, 1, &error), STATUS_DOCUMENT);
        assert_non_null(strstr(error.message, says));
        assert_ok(store_remove(store, 1, &error), error);
        store_close(store);
        scratch_empty(&scratch);
    }
}

/* Spans whose text is not what loam writes: in the wrong order, at the beginning, or written at length. */
static void test_faulty_spans(void **state) {
    (void)state;
    static const char *const faulty[] = {" share=88,0:8",  " share=88,2:8,1:7", " share=88,1:8,1:7",
                                         " share=88,1:88", " share=88,01:8",    " share=88,4194305:8"};
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++) {
        char text[STORE_TEXT_MAX];
        struct store_layout layout;
        struct error error;
        snprintf(text, sizeof text,
                 "codec=x layers=2 heads=1 chunk=4864 tail=16384%s metadata=none/0 segment=16", faulty[i]);
        assert_int_equal(layout_parse(text, &layout, &error), STATUS_DOCUMENT);
    }
    struct store_layout layout;
    struct error error;
    assert_ok(layout_parse("codec=x layers=2 heads=1 chunk=4864 tail=16384 share=8g,1:0,3:g8 metadata=none/0 "
                           "segment=16",
                           &layout, &error),
              error);
    assert_int_equal(layout.fractions.later_count, 2);
    assert_int_equal(page_fractions_at(&layout.fractions, 1, 15), 16);
    assert_int_equal(page_fractions_at(&layout.fractions, 1, 16), 0);
    assert_int_equal(page_fractions_at(&layout.fractions, 1, 47), 0);
    assert_int_equal(page_fractions_at(&layout.fractions, 1, 48), 8);
}

static void test_list_and_remove(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 2);
    struct sample a = sample_random(&random), b = sample_other(&a, 5);
    struct store *store = open_store(0);
    struct error error;
    struct seen seen = {0};
    uint64_t id_a = save(store, &a, 200), id_b = save(store, &b, 100);
    assert_ok(store_list(store, see, &seen, &error), error);
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.tokens, 300);
    assert_int_equal(seen.in_use, 0);
    struct document *document;
    assert_ok(document_open(&document, store, id_a, &a.model, &a.layout, DOCUMENT_READ, 0, &error), error);
    assert_int_equal(store_remove(store, id_a, &error), STATUS_FULL);
    assert_non_null(strstr(error.message, "somebody has it open"));
    seen = (struct seen){0};
    assert_ok(store_show(store, id_a, see, &seen, &error), error);
    assert_int_equal(seen.in_use, 1);
    document_close(document);
    assert_ok(store_remove(store, id_a, &error), error);
    assert_int_equal(store_remove(store, id_a, &error), STATUS_DOCUMENT);
    assert_int_equal(store_show(store, id_a, see, &seen, &error), STATUS_DOCUMENT);
    assert_int_equal(store_verify(store, id_a, &error), STATUS_DOCUMENT);
    assert_reused(store, &b, 100, 100);
    assert_reused(store, &a, 200, 0);
    assert_ok(store_remove(store, id_b, &error), error);
    /* Ids are not used again, files are gone. */
    assert_true(save(store, &a, 64) > id_b);
    store_close(store);
    assert_true(scratch_count(&scratch) <= 4); /* catalog, its journal, two files */
}

/* One writer, with readers in the same store and in another opening of it. */
static void test_writer_and_readers(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 3);
    struct sample sample = sample_random(&random);
    struct store *store = open_store(0), *other = open_store(0);
    struct document *writer, *second, *reader;
    struct error error;
    const struct document_description description = {&sample.model, &sample.layout, "sample.txt", 1000};
    assert_ok(document_create(&writer, store, &description, &error), error);
    uint64_t id = document_id(writer), reused;
    assert_reused(other, &sample, 1000, 0);
    assert_ok(sample_write(&sample, writer, 0, 130, NULL, &error), error);
    assert_ok(document_flush(writer, &error), error);
    for (uint64_t to = 200; to <= 1000; to += 100) {
        assert_ok(sample_reuse(&sample, other, 1000, &reused, &error), error);
        assert_true(reused >= 130);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(document_open(&second, i == 0 ? store : other, id, &sample.model, &sample.layout,
                                           DOCUMENT_APPEND, 1000, &error),
                             STATUS_FULL);
            char expected[80];
            snprintf(expected, sizeof expected, "document %llu is being written by process %d",
                     (unsigned long long)id, (int)getpid());
            assert_string_equal(error.message, expected);
        }
        assert_ok(document_open_begin(&reader, other, id, &sample.model, &sample.layout, DOCUMENT_READ, 0, &error),
                  error);
        assert_ok(sample_write(&sample, writer, to - 100 < 130 ? 130 : to - 100, to, NULL, &error), error);
        if (to / 100 % 2 == 0) assert_ok(document_flush(writer, &error), error); /* a commit comes in between */
        assert_ok(document_open_end(reader, &error), error);
        assert_ok(sample_check(&sample, reader, &error), error); /* what it was when it was opened */
        document_close(reader);
        assert_ok(document_flush(writer, &error), error);
    }
    /* The second commit after overwrites the tail that a reader has not read yet: this is reported, not flagged. */
    assert_ok(document_open(&reader, other, id, &sample.model, &sample.layout, DOCUMENT_READ, 0, &error),
              error);
    document_close(writer);
    assert_ok(sample_check(&sample, reader, &error), error);
    document_close(reader);
    assert_ok(document_open(&second, other, id, &sample.model, &sample.layout, DOCUMENT_APPEND, 2000, &error),
              error);
    assert_ok(document_open(&reader, store, id, &sample.model, &sample.layout, DOCUMENT_READ, 0, &error),
              error);
    for (uint64_t to = 1001; to <= 1004; to++)
        assert_ok(sample_write(&sample, second, to - 1, to, NULL, &error), error);
    assert_ok(document_flush(second, &error), error);
    struct sample changed = sample;
    changed.seed = sample.seed; /* the same pages: the tail of more rows begins with the old one */
    enum status status = sample_check(&changed, reader, &error);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_DOCUMENT);
        assert_non_null(strstr(error.message, "has grown since it was opened"));
    }
    document_close(reader);
    document_close(second);
    assert_reused(store, &sample, 2000, 1004);
    store_close(other);
    store_close(store);
}

/* A writer reads its own pages before any commit. */
static void test_own_pages(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 4);
    struct sample sample = sample_random(&random);
    sample.layout.key_index_bytes = 0;
    struct store *store = open_store(0);
    struct document *document;
    struct error error;
    const struct document_description description = {&sample.model, &sample.layout, "sample.txt", 64 * 8};
    assert_ok(document_create(&document, store, &description, &error), error);
    uint8_t *page = malloc(sample.layout.chunk_bytes);
    sample_page(&sample, 0, 0, 3, page);
    assert_false(document_page_written(document, 0, 0, 3));
    assert_ok(document_write_pages(document, 0, 0, 3, 1, (const void *const[]){page}, &error), error);
    assert_ok(document_flush(document, &error), error);
    assert_true(document_page_written(document, 0, 0, 3));
    assert_false(document_page_written(document, 0, 0, 2));
    assert_false(document_page_written(document, 0, 0, 8)); /* beyond what it may become */
    struct io_queue *queue;
    const struct io_queue_options options = {.depth = 1};
    assert_ok(io_queue_create(&queue, &options, &error), error);
    struct page_read read = {.chunk = 3, .memory = aligned_alloc(4096, store_page_bytes(&sample.layout))};
    size_t next = 0;
    struct io_completion completion;
    assert_int_equal(document_read_pages(document, queue, &read, 1, &next, 77), STATUS_OK);
    assert_int_equal(io_queue_wait(queue, &completion, 1, 1), 1);
    assert_int_equal(completion.request.tag, 77);
    assert_ok(io_completion_error(&completion, &error), error);
    assert_ok(document_check_page(document, &read, &error), error);
    assert_memory_equal(read.memory, page, sample.layout.chunk_bytes);
    io_queue_destroy(queue);
    free(read.memory);
    free(page);
    document_close(document); /* no commit: nothing stays */
    store_close(store);
    assert_true(scratch_count(&scratch) <= 2);
}

static void test_limit(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 5);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = sample.layout.kv_head_count = 2;
    sample.layout.chunk_bytes = 16384;
    sample.layout.key_index_bytes = 24;               /* three documents fit, four do not, with any seed */
    const uint64_t tokens = 64 * 32, limit = 8 << 20; /* 2 MiB each */
    struct store *store = open_store(limit);
    struct error error;
    uint64_t ids[6];
    for (uint64_t i = 0; i < 6; i++) {
        struct sample other = sample_other(&sample, i);
        ids[i] = save(store, &other, tokens);
        uint64_t disk = scratch_disk_bytes(&scratch);
        if (disk > limit)
            fail_msg("%llu bytes on disk, the limit is %llu", (unsigned long long)disk,
                     (unsigned long long)limit);
        usleep(40000); /* files have times of a clock tick, 10 ms where ticks are rare */
        if (i == 2) {  /* used again: not the oldest any more */
            struct sample first = sample_other(&sample, 0);
            assert_reused(store, &first, tokens, tokens);
            usleep(40000);
        }
    }
    struct seen seen = {0};
    assert_ok(store_list(store, see, &seen, &error), error);
    assert_int_equal(seen.count, 3);
    for (uint64_t i = 0; i < 6; i++) {
        struct sample other = sample_other(&sample, i);
        assert_reused(store, &other, tokens, i >= 3 ? tokens : 0);
    }
    /* An open document stays.  One that does not fit is rejected, and nothing is removed for it. */
    struct document *open[3];
    for (size_t i = 0; i < 3; i++)
        assert_ok(document_open(&open[i], store, ids[3 + i], &sample.model, &sample.layout, DOCUMENT_READ, 0,
                                &error),
                  error);
    uint64_t id;
    assert_int_equal(sample_save(&sample, store, &tokens, 1, &id, &error), STATUS_FULL);
    assert_non_null(strstr(error.message, "are free of the limit of 8 MiB"));
    document_close(open[0]);
    const uint64_t large = 64 * 200;
    assert_int_equal(sample_save(&sample, store, &large, 1, &id, &error), STATUS_FULL);
    seen = (struct seen){0};
    assert_ok(store_list(store, see, &seen, &error), error);
    assert_int_equal(seen.count, 3);
    assert_ok(sample_save(&sample, store, &tokens, 1, &id, &error), error);
    document_close(open[1]);
    document_close(open[2]);
    store_close(store);
}

static void assert_refused(const char *path, bool read_only, enum status expected, const char *words) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = path, .read_only = read_only};
    assert_int_equal(store_open(&store, &options, &error), expected);
    if (strstr(error.message, words) == NULL) fail_msg("\"%s\" does not say \"%s\"", error.message, words);
}

static void test_folders(void **state) {
    (void)state;
    const char *inner = scratch_name(&scratch, "store"), *link = scratch_name(&scratch, "link");
    assert_refused(scratch_name(&scratch, "no/such"), false, STATUS_IO, "No such file");
    assert_refused(inner, true, STATUS_IO, "No such file");
    assert_int_equal(mkdir(inner, 0700), 0);
    assert_refused(inner, true, STATUS_IO, "no catalog");
    assert_int_equal(symlink("store", link), 0);
    assert_refused(link, false, STATUS_IO, "a symbolic link");
    assert_int_equal(unlink(link), 0);
    char catalog[160];
    snprintf(catalog, sizeof catalog, "%s/catalog.db", inner);
    assert_int_equal(symlink("elsewhere", catalog), 0);
    assert_refused(inner, false, STATUS_IO, "a symbolic link");
    assert_int_equal(unlink(catalog), 0);
    assert_int_equal(mkdir(catalog, 0700), 0);
    assert_refused(inner, false, STATUS_IO, "not a regular file");
    assert_int_equal(rmdir(catalog), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(inner, 12345, 12345), 0);
        assert_refused(inner, false, STATUS_IO, "belongs to user 12345");
        assert_int_equal(chown(inner, 0, 0), 0);
    }
    struct stat info;
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = inner};
    assert_ok(store_open(&store, &options, &error), error);
    store_close(store);
    assert_int_equal(stat(catalog, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(unlink(catalog), 0);
    snprintf(catalog, sizeof catalog, "%s/catalog.db-journal", inner);
    (void)unlink(catalog);
    assert_int_equal(rmdir(inner), 0);
}

/* A full file system: the document being saved fails with the reason, those before it are intact.  Needs a
 * mount of its own, so root. */
static void test_full_folder(void **state) {
    (void)state;
    const char *inner = scratch_name(&scratch, "small");
    assert_int_equal(mkdir(inner, 0700), 0);
    if (mount("none", inner, "tmpfs", 0, "size=4m,mode=0700") != 0) {
        printf("no mount of a small file system here: skipped\n");
        assert_int_equal(rmdir(inner), 0);
        skip();
    }
    struct random random;
    random_init(&random, seed + 6);
    struct sample sample = sample_random(&random), other = sample_other(&sample, 9);
    sample.layout.chunk_bytes = other.layout.chunk_bytes = 16384;
    sample.layout.layer_count = other.layout.layer_count = 2;
    sample.layout.kv_head_count = other.layout.kv_head_count = 2;
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = inner};
    assert_ok(store_open(&store, &options, &error), error);
    save(store, &sample, 64 * 20);
    const uint64_t commits[] = {64 * 10, 64 * 60};
    uint64_t id;
    assert_int_equal(sample_save(&other, store, commits, 2, &id, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "No space left on device"));
    assert_reused(store, &sample, 64 * 20, 64 * 20);
    assert_reused(store, &other, 64 * 60, 64 * 10);
    store_close(store);
    /* The same, read-only: saved documents can be used. */
    if (mount(NULL, inner, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0) {
        const struct store_options reading = {.directory = inner, .read_only = true};
        assert_int_equal(store_open(&store, &options, &error), STATUS_IO);
        printf("%s\n", error.message);
        assert_ok(store_open(&store, &reading, &error), error);
        assert_reused(store, &sample, 64 * 20, 64 * 20);
        assert_int_equal(sample_save(&other, store, commits, 1, &id, &error), STATUS_IO);
        store_close(store);
    }
    assert_int_equal(umount(inner), 0);
    assert_int_equal(rmdir(inner), 0);
}

/* Bounds the bytes written (page files, key index, catalog and its journal) per byte of KV and key index; with pages of
 * two sizes, half of each, no page is written in both. */
static void write_amplification(bool shared) {
    struct fault_plan plan;
    fault_plan_init(&plan, FAULT_NONE, 0, false, 0);
    faulty_vfs_use(&plan);
    struct store *store;
    struct error error;
    const struct store_options options = {
        .directory = scratch.path, .faults = &plan.faults, .sqlite_vfs = FAULTY_VFS};
    assert_ok(store_open(&store, &options, &error), error);
    struct random random;
    random_init(&random, seed + 7);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = sample.layout.kv_head_count = 4;
    sample.layout.chunk_bytes = 16384;
    sample.layout.key_index_bytes = 512;
    if (shared) {
        sample.layout.tail_bytes = 32768; /* at dimension 128 */
        sample.layout.chunk_bytes = 9728;
        sample.layout.fractions = (struct page_fractions){.layer_count = 4, .sixteenths = {8, 8, 8, 8}};
    }
    const uint64_t commits[] = {512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4100};
    uint64_t id, before = plan.written_bytes;
    assert_ok(sample_save(&sample, store, commits, 9, &id, &error), error);
    double page = shared ? (32768 + 12288) / 2 : 16384, saved = (double)(4096 / 64 * 16) * (page + 512);
    double ratio = (double)(plan.written_bytes - before) / saved;
    printf("4,100 tokens in 9 commits%s: %.3f bytes written per byte of KV and key index\n",
           shared ? ", half of the pages in 4 bits" : "", ratio);
    assert_true(ratio >= 1 && ratio <= 1.05);
    store_close(store);
    faulty_vfs_use(NULL);
    scratch_empty(&scratch);
}

static void test_write_amplification(void **state) {
    (void)state;
    write_amplification(false);
    write_amplification(true);
}

/* 262,144 pages: what opening must verify is a table of 4 MiB (here with pages of 8 bytes of payload). */
static void test_open_is_quick(void **state) {
    (void)state;
    struct random random;
    random_init(&random, seed + 8);
    struct sample sample = sample_random(&random);
    sample.layout.layer_count = 16;
    sample.layout.kv_head_count = 8;
    sample.layout.chunk_bytes = 8;
    sample.layout.key_index_bytes = 0;
    struct store *store = open_store(0);
    struct document *document;
    struct error error;
    const struct document_description description = {&sample.model, &sample.layout, "sample.txt", 131072};
    assert_ok(document_create(&document, store, &description, &error), error);
    static uint8_t row[8];
    const void *chunks[16];
    for (size_t i = 0; i < 16; i++) chunks[i] = row;
    /* Pages that were never written read as zeros, with the same checksum: only every 16th is written. */
    uint64_t id = document_id(document);
    int32_t *tokens = sample_tokens(&sample, 131072);
    for (uint64_t chunk = 0; chunk < 2048; chunk += 16) {
        for (size_t column = 0; column < 128; column++) {
            enum status status;
            while ((status = document_write_pages(document, column / 8, column % 8, chunk, 16, chunks,
                                                  &error)) == STATUS_FULL)
                assert_ok(document_wait_buffer(document, &error), error);
            assert_ok(status, error);
        }
        if (chunk % 128 == 112)
            assert_ok(document_commit(document, tokens, (chunk + 16) * 64, &error), error);
    }
    free(tokens);
    document_close(document);
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double begin = clock_seconds();
        assert_ok(
            document_open(&document, store, id, &sample.model, &sample.layout, DOCUMENT_READ, 0, &error),
            error);
        double seconds = clock_seconds() - begin;
        if (seconds < best) best = seconds;
        assert_int_equal(document_token_count(document), 131072);
        document_close(document);
    }
    printf("opening 131,072 tokens, 262,144 pages: %.1f ms\n", best * 1e3);
    store_close(store);
    /* As after a writer that died: catalog and commits of the document are checked before anything is cut off. */
    sqlite3 *database;
    assert_int_equal(sqlite3_open(scratch_name(&scratch, "catalog.db"), &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, "UPDATE documents SET writer=1", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(database);
    double begin = clock_seconds();
    store = open_store(0);
    printf("opening its store when the last writer died: %.1f ms\n", (clock_seconds() - begin) * 1e3);
    assert_null(store_warning(store));
    store_close(store);
}

int main(void) {
    seed = test_seed(20261121);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trips, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_round_trips_on_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_prefixes, set_up, tear_down),
        cmocka_unit_test(test_fractions_are_even),
        cmocka_unit_test(test_places_follow_each_other),
        cmocka_unit_test_setup_teardown(test_fractions_are_what_is_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fractions_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_faulty_fractions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fractions_change, set_up, tear_down),
        cmocka_unit_test(test_faulty_spans),
        cmocka_unit_test(test_fractions_of_spans),
        cmocka_unit_test(test_first_pages_are_rows),
        cmocka_unit_test_setup_teardown(test_first_rows_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_list_and_remove, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_writer_and_readers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_pages, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_write_amplification, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_open_is_quick, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
