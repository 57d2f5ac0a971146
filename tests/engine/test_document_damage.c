/* Damage as answers show it: hundreds of flipped bits in pages, key index and catalog, bits of every column of the
 * document's rows, truncation at 4 KiB and one byte before and after, pages swapped, stale and foreign, another model
 * and other types.  The prompt is answered with the bits of a fresh one, computed anew with the reason named, or
 * rejected with the catalog's name.  tests/cache has thousands of flips, every bit of the rows and every 4 KiB.
 *
 * LOAM_TEST_SEED repeats a run, LOAM_TEST_FUZZ=N runs N times as many random cases. */
#include "testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/document_rig.h"
#include "seed.h"

enum {
    SEED = 20261121,
    FILES = 7,
    PAYLOAD_FLIPS = 480,
    KEY_INDEX_FLIPS = 80,
    BLOCK_BYTES = 64, /* the least that a block of the key index has */
    CATALOG_FLIPS = 100,
    HEADER_BYTES = 28 /* to the change counter */,
    ROW_STRIDE = 61 /* of no bit of a byte alone */
};

static struct document_rig rig;
static struct random random_cases;

/* The folder with the first prompt and another one saved, byte for byte. */
static struct kept_file {
    char name[64];
    uint8_t *bytes;
    size_t size;
} files[FILES];
static size_t file_count;
static uint64_t right_count, refused_count, anew_count, silent_count;
static bool may_be_silent; /* answers that took what was saved, and the others */

static void write_whole(const char *name, const uint8_t *bytes, size_t size) {
    int file = open(scratch_name(&rig.scratch, name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0 && write(file, bytes, size) == (ssize_t)size);
    close(file);
}

static void restore(void) {
    scratch_empty(&rig.scratch);
    for (size_t i = 0; i < file_count; i++) write_whole(files[i].name, files[i].bytes, files[i].size);
}

static void keep_files(void) {
    DIR *folder = opendir(rig.scratch.path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.' || strstr(entry->d_name, "journal") != NULL) continue;
        assert_true(file_count < FILES);
        struct kept_file *kept = &files[file_count++];
        snprintf(kept->name, sizeof kept->name, "%.60s", entry->d_name);
        int file = open(scratch_name(&rig.scratch, entry->d_name), O_RDONLY);
        struct stat info;
        assert_true(file >= 0 && fstat(file, &info) == 0);
        kept->size = (size_t)info.st_size;
        kept->bytes = malloc(kept->size + 1);
        assert_true(read(file, kept->bytes, kept->size) == info.st_size);
        close(file);
    }
    closedir(folder);
}

static struct kept_file *kept(const char *name) {
    for (size_t i = 0; i < file_count; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    fail_msg("no file %s", name);
    return NULL;
}

static void set_scene(const struct select_method *method, enum rig_pages pages) {
    document_rig_open(&rig, method, pages);
    document_rig_reset(&rig);
    assert_int_equal(rig_ask_clean(&rig, RIG_FIRST, "the scene", NULL), 0);
    keep_files();
    random_init(&random_cases, test_seed(SEED));
    right_count = refused_count = anew_count = silent_count = 0;
    may_be_silent = false;
}

static void clear_scene(void) {
    for (size_t i = 0; i < file_count; i++) free(files[i].bytes);
    file_count = 0;
    document_rig_close(&rig);
}

/* The saved prompt was not used; or it was used, and nothing is wrong. */
static void assert_prompt(enum rig_prompt prompt, bool must_notice, const char *what) {
    static struct rig_answer answer;
    rig_ask(&rig, rig.model, &rig.options, NULL, prompt, &answer);
    if (answer.status != STATUS_OK) {
        refused_count++;
        if (answer.status != STATUS_DOCUMENT || strstr(answer.error.message, "catalog.db") == NULL)
            fail_msg("%s: %s: %s", what, status_name(answer.status), answer.error.message);
        return;
    }
    if (!rig_is_right(&rig, prompt, &answer)) fail_msg("%s: another answer", what);
    bool says = strstr(answer.notice, "computed anew") != NULL || answer.refusals > 0;
    if (answer.refusals > 0 && answer.error.message[0] == '\0') fail_msg("%s: no reason", what);
    if (says && answer.reused > 0 && answer.refusals == 0) fail_msg("%s: %s, and used", what, answer.notice);
    anew_count += says;
    right_count += answer.reused > 0;
    bool silent = !says && answer.reused == 0 && answer.warning[0] == '\0';
    silent_count += silent;
    if (silent && !may_be_silent) fail_msg("%s: not used, and no reason", what);
    if (must_notice && !says) fail_msg("%s: %llu tokens used", what, (unsigned long long)answer.reused);
}

static void flip(const char *name, uint64_t offset, unsigned bit) {
    int file = open(scratch_name(&rig.scratch, name), O_RDWR);
    uint8_t byte = 0;
    assert_true(file >= 0 && pread(file, &byte, 1, (off_t)offset) == 1);
    byte ^= (uint8_t)(1U << bit);
    assert_int_equal(pwrite(file, &byte, 1, (off_t)offset), 1);
    close(file);
}

/* Of the document that was saved second. */
static const char *const payload[] = {"2.pages", "2.metadata"};

static bool is_empty(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0) return false;
    return true;
}

/* Where something was written: files are sparse. */
static uint64_t random_offset(const struct kept_file *file) {
    for (;;) {
        uint64_t offset = random_below(&random_cases, file->size), page = offset / 4096 * 4096;
        size_t size = file->size - page < 4096 ? (size_t)(file->size - page) : 4096;
        if (!is_empty(file->bytes + page, size)) return offset;
    }
}

static void flip_payload(enum rig_pages pages, uint64_t cases_max) {
    uint64_t cases = 0;
    set_scene(&select_tree, pages);
    for (; cases < cases_max; cases++) {
        char what[120];
        const struct kept_file *file = kept(payload[cases % 4 == 3]);
        uint64_t offset = random_offset(file);
        unsigned bit = (unsigned)random_below(&random_cases, 8);
        snprintf(what, sizeof what, "seed %llu: %s, byte %llu, bit %u", (unsigned long long)test_seed(SEED),
                 file->name, (unsigned long long)offset, bit);
        restore();
        flip(file->name, offset, bit);
        assert_prompt(cases % 2 == 0 ? RIG_FIRST : RIG_LONGER, false, what);
    }
    printf("%llu flips in pages and metadata: %llu computed anew, %llu in what no one reads\n",
           (unsigned long long)cases, (unsigned long long)anew_count, (unsigned long long)right_count);
    /* Two fifths of a page in 4 bits are padding. */
    assert_met(anew_count > (pages == RIG_ROWS ? cases / 2 : cases / 3));
    assert_int_equal(refused_count, 0);
    clear_scene();
}

/* Half of them where pages are of both forms. */
static void payload_flips(void **state) {
    (void)state;
    uint64_t cases_max = test_part(PAYLOAD_FLIPS) * (rig_fuzz() > 0 ? rig_fuzz() : 1);
    flip_payload(RIG_ROWS, cases_max / 2);
    flip_payload(RIG_MIXED, cases_max - cases_max / 2);
}

/* States lie in front of the pages.  One that is damaged is told of and not used: the state before it is, with the
 * pages up to there. */
static void state_flips(void **state) {
    (void)state;
    enum { CASES = 96 };
    static struct rig_answer answer;
    set_scene(&select_all, RIG_STATES);
    const uint64_t place = align_up(model_state_floats(&rig.model->config) * sizeof(float), 4096);
    uint64_t cases = 0, last = 0;
    for (; cases < test_part(CASES); cases++) {
        char what[640];
        const enum rig_prompt prompt = cases % 2 == 0 ? RIG_FIRST : RIG_LONGER;
        const uint64_t whole = rig_prompt_count(RIG_FIRST), most = prompt == RIG_LONGER ? whole : whole - 64;
        uint64_t offset;
        do offset = random_offset(kept("2.pages"));
        while (offset >= 10 * place); /* the places that there are */
        restore();
        flip("2.pages", offset, (unsigned)random_below(&random_cases, 8));
        rig_ask(&rig, rig.model, &rig.options, NULL, prompt, &answer);
        snprintf(what, sizeof what, "seed %llu: byte %llu: %llu tokens, %s", (unsigned long long)test_seed(SEED),
                 (unsigned long long)offset, (unsigned long long)answer.reused, answer.notice);
        if (answer.status != STATUS_OK || !rig_is_right(&rig, prompt, &answer)) fail_msg("%s", what);
        const bool is_noticed = strstr(answer.notice, "(state behind ") != NULL;
        if (answer.reused != (is_noticed ? most - 64 : most)) fail_msg("%s", what);
        last += is_noticed;
    }
    printf("%llu flips in states, %llu in the one that was wanted\n", (unsigned long long)cases,
           (unsigned long long)last);
    assert_met(last > cases / 8 && last < cases);
    clear_scene();
}

/* Where the key index is on disk its damage is found when a layer chooses, and not before. */
static void key_index_flips(void **state) {
    (void)state;
    uint64_t cases = 0, most = test_part(KEY_INDEX_FLIPS) * (rig_fuzz() > 0 ? rig_fuzz() : 1);
    set_scene(&select_tree, RIG_INDEX_APART);
    const struct kept_file *file = kept("2.metadata");
    for (; cases < most; cases++) {
        char what[120];
        uint64_t offset;
        do offset = random_offset(file); /* in a block that was written */
        while (is_empty(file->bytes + offset / BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES));
        unsigned bit = (unsigned)random_below(&random_cases, 8);
        snprintf(what, sizeof what, "seed %llu: %s, byte %llu, bit %u", (unsigned long long)test_seed(SEED),
                 file->name, (unsigned long long)offset, bit);
        restore();
        flip(file->name, offset, bit);
        assert_prompt(RIG_LONGER, true, what);
    }
    printf("%llu flips in the key index on disk: %llu computed anew\n", (unsigned long long)cases,
           (unsigned long long)anew_count);
    assert_true(anew_count == cases && refused_count == 0);
    clear_scene();
}

static void catalog_flips(void **state) {
    (void)state;
    uint64_t cases = 0, cases_max = test_part(CATALOG_FLIPS) * (rig_fuzz() > 0 ? rig_fuzz() : 1);
    set_scene(&select_all, RIG_ROWS);
    may_be_silent = true;
    cases_max += (uint64_t)HEADER_BYTES * 8;
    for (; cases < cases_max; cases++) { /* every bit of the file's header, then any */
        char what[120];
        uint64_t offset = random_below(&random_cases, kept("catalog.db")->size);
        unsigned bit = (unsigned)random_below(&random_cases, 8);
        if (cases < (uint64_t)HEADER_BYTES * 8) {
            if (!test_takes(test_seed(SEED), cases)) continue;
            offset = cases / 8, bit = (unsigned)cases % 8;
        }
        snprintf(what, sizeof what, "seed %llu: catalog.db, byte %llu, bit %u",
                 (unsigned long long)test_seed(SEED), (unsigned long long)offset, bit);
        restore();
        flip("catalog.db", offset, bit);
        assert_prompt(RIG_LONGER, false, what);
    }
    printf("%llu flips in the catalog: %llu used what was saved, %llu computed anew, %llu refused, %llu not "
           "found\n",
           (unsigned long long)cases, (unsigned long long)right_count, (unsigned long long)anew_count,
           (unsigned long long)refused_count, (unsigned long long)silent_count);
    assert_met(right_count > 0);
    clear_scene();
}

/* ---- rows ---- */

static sqlite3 *open_database(void) {
    sqlite3 *database;
    assert_int_equal(sqlite3_open(scratch_name(&rig.scratch, "catalog.db"), &database), SQLITE_OK);
    return database;
}

/* Bit `bit` of a column of a row, through SQLite, which therefore finds nothing wrong; false: it has fewer. */
static bool flip_column(const char *table, const char *column, const char *where, uint64_t bit) {
    sqlite3 *database = open_database();
    sqlite3_stmt *statement;
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT CAST(%s AS BLOB), typeof(%s) FROM %s WHERE %s", column, column, table,
             where);
    assert_int_equal(sqlite3_prepare_v2(database, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    size_t size = (size_t)sqlite3_column_bytes(statement, 0);
    uint8_t *bytes = malloc(size + 1);
    if (size > 0) memcpy(bytes, sqlite3_column_blob(statement, 0), size);
    bool text = strcmp((const char *)sqlite3_column_text(statement, 1), "text") == 0;
    sqlite3_finalize(statement);
    bool there = bit / 8 < size;
    if (there) bytes[bit / 8] ^= (uint8_t)(1U << bit % 8);
    snprintf(sql, sizeof sql, "UPDATE %s SET %s=?1 WHERE %s", table, column, where);
    assert_int_equal(sqlite3_prepare_v2(database, sql, -1, &statement, NULL), SQLITE_OK);
    if (text)
        sqlite3_bind_text(statement, 1, (const char *)bytes, (int)size, SQLITE_STATIC);
    else
        sqlite3_bind_blob(statement, 1, bytes, (int)size, SQLITE_STATIC);
    if (there) assert_int_equal(sqlite3_step(statement), SQLITE_DONE);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    free(bytes);
    return there;
}

/* tests/cache does every bit by every store; here every ROW_STRIDEth is answered. */
static void bits_of_the_rows(void **state) {
    (void)state;
    static const struct {
        const char *table, *column, *where;
    } columns[] = {
        {"documents", "fingerprint", "id=2"},  {"documents", "layout", "id=2"},
        {"documents", "chain", "id=2"},        {"documents", "token_count", "id=2"},
        {"documents", "checksum", "id=2"},     {"documents", "generation", "id=2"},
        {"commits", "tokens", "document=2"},   {"commits", "page_sums", "document=2"},
        {"commits", "checksum", "document=2"}, {"commits", "metadata_sums", "document=2"},
    };
    uint64_t cases = 0, stride = rig_fuzz() > 0 ? 1 : ROW_STRIDE * test_divisor();
    set_scene(&select_tree, RIG_ROWS);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        for (uint64_t bit = random_below(&random_cases, stride);; bit += stride, cases++) {
            char what[120];
            restore();
            if (!flip_column(columns[i].table, columns[i].column, columns[i].where, bit)) break;
            snprintf(what, sizeof what, "%s.%s, bit %llu", columns[i].table, columns[i].column,
                     (unsigned long long)bit);
            /* Another first chunk is another document's. */
            may_be_silent = strcmp(columns[i].column, "tokens") == 0 && bit < 64 * 32;
            assert_prompt(RIG_LONGER, false, what);
        }
    printf("%llu bits of rows: %llu used what was saved, %llu computed anew, %llu refused, %llu not found\n",
           (unsigned long long)cases, (unsigned long long)right_count, (unsigned long long)anew_count,
           (unsigned long long)refused_count, (unsigned long long)silent_count);
    assert_int_equal(right_count, 0);
    clear_scene();
}

/* ---- files ---- */

static void cut_files(enum rig_pages pages) {
    enum { EDGE = 3 * 4096 }; /* of pages of one and of two blocks, between and within */
    uint64_t cases = 0;
    set_scene(&select_tree, pages);
    for (size_t f = 0; f < 2; f++) {
        const struct kept_file *file = kept(payload[f]);
        for (size_t edge = 0; edge <= file->size; edge += EDGE)
            for (int overlap = -1; overlap <= 1; overlap++) {
                if ((edge == 0 && overlap < 0) || edge + (size_t)(overlap + 1) > file->size) continue;
                size_t size = edge + (size_t)(overlap + 1) - 1;
                char what[120];
                restore();
                assert_int_equal(truncate(scratch_name(&rig.scratch, file->name), (off_t)size), 0);
                snprintf(what, sizeof what, "%s cut to %zu of %zu bytes", file->name, size, file->size);
                assert_prompt(RIG_LONGER, false, what);
                cases++;
            }
        restore();
        assert_int_equal(unlink(scratch_name(&rig.scratch, file->name)), 0);
        assert_prompt(RIG_LONGER, true, "removed");
        cases++;
    }
    printf("%llu truncations: %llu computed anew\n", (unsigned long long)cases,
           (unsigned long long)anew_count);
    assert_true(anew_count > cases / 2 && refused_count == 0);
    clear_scene();
}

static void truncations(void **state) {
    (void)state;
    test_skip_part();
    cut_files(RIG_ROWS);
    cut_files(RIG_INDEX_APART);
}

static void count_damaged(void *context, const struct document_info *info) {
    *(size_t *)context += info->damaged != NULL;
}

struct cut {
    const char *file;
    size_t reads, at; /* the read that finds it cut */
};

static struct io_fault cut_file(void *context, enum io_call call, const char *path, uint64_t offset,
                                size_t bytes) {
    struct cut *cut = context;
    (void)offset, (void)bytes;
    if (call == IO_CALL_READ && strstr(path, cut->file) != NULL && cut->reads++ == cut->at)
        assert_int_equal(truncate(path, 512), 0);
    return (struct io_fault){0, SIZE_MAX};
}

static size_t damaged_count(void) {
    struct store *store;
    struct error error;
    size_t damaged = 0;
    const struct store_options options = {.directory = rig.scratch.path};
    assert_ok(store_open(&store, &options, &error), error);
    assert_ok(store_list(store, count_damaged, &damaged, &error), error);
    store_close(store);
    return damaged;
}

/* A file cut while it is being read is damage as any other: flagged, and the prompt computed anew. */
static void cut_amid_an_answer(const char *file, const struct select_method *method, enum rig_pages pages) {
    static struct rig_answer answer;
    struct cut cut = {.file = file};
    size_t late = 0;
    set_scene(method, pages);
    for (cut.at = 0; cut.at <= cut.reads; cut.at++) {
        const struct io_faults faults = {&cut, cut_file};
        const struct engine_options options = {.io_faults = &faults};
        restore();
        cut.reads = 0;
        rig_ask(&rig, rig.model, &rig.options, &options, RIG_LONGER, &answer);
        if (cut.reads <= cut.at) break; /* all of them have been tried */
        assert_ok(answer.status, answer.error);
        assert_true(rig_is_right(&rig, RIG_LONGER, &answer));
        if (answer.refusals == 0 && strstr(answer.notice, "computed anew") == NULL)
            fail_msg("read %zu: no word", cut.at);
        if (damaged_count() != 1) fail_msg("read %zu: not flagged: %s", cut.at, answer.error.message);
        late += answer.refusals;
    }
    printf("%s: %zu reads, %zu of them while computing\n", file, cut.at, late);
    assert_true(cut.at > 1 && late > 0);
    clear_scene();
}

static void truncation_amid_an_answer(void **state) {
    (void)state;
    test_skip_part();
    cut_amid_an_answer(payload[0], &select_all, RIG_ROWS);
    cut_amid_an_answer(payload[1], &select_tree, RIG_INDEX_APART);
}

/* Pages of the same document swapped, each with some others, and pages of the other document, which are as valid. */
static void swapped_and_foreign_pages(void **state) {
    (void)state;
    test_skip_part();
    enum { STEP = 7 * 4096 };
    uint64_t cases = 0;
    set_scene(&select_all, RIG_ROWS);
    const struct kept_file *pages = kept("2.pages"), *foreign = kept("1.pages");
    for (size_t at = 0; at + 4096 <= pages->size; at += 4096) {
        if (is_empty(pages->bytes + at, 4096)) continue;
        for (size_t other = at + 4096; other + 4096 <= pages->size; other += STEP) {
            if (memcmp(pages->bytes + at, pages->bytes + other, 4096) == 0) continue;
            uint8_t *swapped = malloc(pages->size);
            memcpy(swapped, pages->bytes, pages->size);
            memcpy(swapped + at, pages->bytes + other, 4096);
            memcpy(swapped + other, pages->bytes + at, 4096);
            restore();
            write_whole("2.pages", swapped, pages->size);
            free(swapped);
            assert_prompt(RIG_LONGER, true, "pages swapped");
            cases++;
        }
        if (at + 4096 > foreign->size || memcmp(pages->bytes + at, foreign->bytes + at, 4096) == 0) continue;
        uint8_t *mixed = malloc(pages->size);
        memcpy(mixed, pages->bytes, pages->size);
        memcpy(mixed + at, foreign->bytes + at, 4096);
        restore();
        write_whole("2.pages", mixed, pages->size);
        free(mixed);
        assert_prompt(RIG_LONGER, true, "a foreign page");
        cases++;
    }
    printf("%llu pages swapped or foreign: %llu computed anew\n", (unsigned long long)cases,
           (unsigned long long)anew_count);
    assert_true(cases > 20);
    clear_scene();
}

/* An older generation of one file with newer ones of the others: as after a restore of half a backup. */
static void stale_files(void **state) {
    (void)state;
    test_skip_part();
    set_scene(&select_tree, RIG_ROWS);
    struct kept_file older[FILES];
    size_t count = file_count;
    memcpy(older, files, sizeof older);
    restore();
    assert_int_equal(rig_ask_clean(&rig, RIG_LONGER, "grown", NULL), rig_prompt_count(RIG_FIRST));
    file_count = 0;
    keep_files();
    for (size_t i = 0; i < count; i++) {
        restore();
        write_whole(older[i].name, older[i].bytes, older[i].size);
        assert_prompt(RIG_LONGER, false, older[i].name);
    }
    printf("%zu stale files: %llu used what was saved, %llu computed anew, %llu refused, %llu not found\n",
           count, (unsigned long long)right_count, (unsigned long long)anew_count,
           (unsigned long long)refused_count, (unsigned long long)silent_count);
    for (size_t i = 0; i < count; i++) free(older[i].bytes);
    clear_scene();
}

/* What another model saved, or this one with other types, is not used, and the answer is right all the same. */
static void other_models_and_types(void **state) {
    (void)state;
    test_skip_part();
    static struct rig_answer fresh, found;
    set_scene(&select_all, RIG_ROWS);
    struct plan plain = rig.options;
    plain.disk_directory = NULL;
    plain.host_bytes = 0;
    rig_ask(&rig, rig.other, &plain, NULL, RIG_FIRST, &fresh);
    assert_ok(fresh.status, fresh.error);
    rig_ask(&rig, rig.other, &rig.options, NULL, RIG_FIRST, &found);
    assert_ok(found.status, found.error);
    assert_int_equal(found.reused, 0);
    assert_memory_equal(found.logits, fresh.logits, sizeof fresh.logits);
    assert_memory_not_equal(found.logits, rig.expected[RIG_FIRST], sizeof fresh.logits);
    restore();
    struct plan q4 = rig.options;
    q4.quantized_pages = true;
    assert_ok(plan_host_bytes_min(&q4, &rig.model->config, &q4.host_bytes, &found.error), found.error);
    rig_ask(&rig, rig.model, &q4, NULL, RIG_FIRST, &found);
    assert_ok(found.status, found.error);
    assert_int_equal(found.reused, 0);
    assert_int_equal(rig_ask_clean(&rig, RIG_FIRST, "as it was", NULL), rig_prompt_count(RIG_FIRST) - 1);
    clear_scene();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payload_flips),
        cmocka_unit_test(state_flips),
        cmocka_unit_test(key_index_flips),
        cmocka_unit_test(catalog_flips),
        cmocka_unit_test(bits_of_the_rows),
        cmocka_unit_test(truncations),
        cmocka_unit_test(truncation_amid_an_answer),
        cmocka_unit_test(swapped_and_foreign_pages),
        cmocka_unit_test(stale_files),
        cmocka_unit_test(other_models_and_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
