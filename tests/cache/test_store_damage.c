/* Damage to a document: every bit of its rows, thousands of flips in pages, key index and the catalog's file,
 * truncation at every 4 KiB and one byte before and after, pages swapped, stale and foreign, another model, other
 * versions.  The outcome is one of two: rejected with a reason, or right to the last byte (store_sample compares).
 * The second document of the folder is unharmed.
 *
 * LOAM_TEST_SEED repeats a run (an odd one has pages of two sizes), LOAM_TEST_FUZZ=N runs N times as many random
 * cases. */
#include "testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "cache/store_sample.h"
#include "platform/scratch.h"
#include "seed.h"

enum { FILES = 5, TOKENS = 64 * 18 + 13, FEW_TOKENS = 64 * 3 + 13 };

static uint64_t seed, fuzz = 1;
static struct random random_cases;

/* A store with a document to be damaged and another one, and a copy of all their files. */
struct scene {
    struct scratch scratch;
    struct sample sample, beside;
    uint64_t id, beside_id, tokens; /* tokens: of the one to be damaged */
    size_t file_count;
    struct {
        char name[256];
        uint8_t *bytes;
        size_t size;
    } files[FILES];
    sqlite3 *database;
};

static _Noreturn void die(const char *what) {
    perror(what);
    exit(1);
}

static void run_sql(struct scene *scene, const char *sql) {
    char *message = NULL;
    if (sqlite3_exec(scene->database, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
}

static void open_database(struct scene *scene) {
    assert_int_equal(sqlite3_open(scratch_name(&scene->scratch, "catalog.db"), &scene->database), SQLITE_OK);
    run_sql(scene, "PRAGMA synchronous=OFF; PRAGMA journal_mode=MEMORY");
}

static void keep_files(struct scene *scene) {
    DIR *folder = opendir(scene->scratch.path);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.' || strstr(entry->d_name, "journal") != NULL) continue;
        assert_true(scene->file_count < FILES);
        size_t i = scene->file_count++;
        snprintf(scene->files[i].name, sizeof scene->files[i].name, "%s", entry->d_name);
        int fd = open(scratch_name(&scene->scratch, entry->d_name), O_RDONLY);
        struct stat info;
        if (fd < 0 || fstat(fd, &info) != 0) die(entry->d_name);
        scene->files[i].size = (size_t)info.st_size;
        scene->files[i].bytes = malloc(scene->files[i].size + 1);
        if (read(fd, scene->files[i].bytes, scene->files[i].size) != info.st_size) die(entry->d_name);
        close(fd);
    }
    closedir(folder);
    assert_int_equal(scene->file_count, FILES); /* the catalog and two for each document */
}

static void put_file(struct scene *scene, const char *name, const uint8_t *bytes, size_t size) {
    int fd = open(scratch_name(&scene->scratch, name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) die(name);
    close(fd);
}

static void restore(struct scene *scene) {
    scratch_empty(&scene->scratch);
    for (size_t i = 0; i < FILES; i++)
        put_file(scene, scene->files[i].name, scene->files[i].bytes, scene->files[i].size);
}

static size_t file_of(const struct scene *scene, uint64_t id, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "%llu.%s", (unsigned long long)id, suffix);
    if (id == 0) snprintf(name, sizeof name, "catalog.db");
    for (size_t i = 0; i < FILES; i++)
        if (strcmp(scene->files[i].name, name) == 0) return i;
    fail_msg("no %s", name);
    return 0;
}

/* Two of three pages are larger than the others. */
static void share(struct store_layout *layout) {
    layout->tail_bytes = 8 * 1200;
    layout->fractions = (struct page_fractions){.layer_count = 1, .sixteenths = {5}};
}

static void set_scene(struct scene *scene, uint64_t token_count) {
    *scene = (struct scene){.tokens = token_count};
    scratch_create(&scene->scratch, SCRATCH_MEMORY);
    scene->sample = sample_random(&random_cases);
    scene->sample.layout.layer_count = 1;
    scene->sample.layout.kv_head_count = 2;
    scene->sample.layout.chunk_bytes = 8 * 600; /* a page of 8 KiB with room behind the chunk */
    scene->sample.layout.key_index_bytes = 100;
    if (seed % 2 == 1) share(&scene->sample.layout);
    scene->beside = sample_other(&scene->sample, 77);
    struct store *store = sample_store_open(scene->scratch.path);
    struct error error;
    const uint64_t commits[] = {64 + 10, token_count / 64 * 64 - 64, token_count}, tokens = 64 * 3 + 1;
    assert_ok(sample_save(&scene->beside, store, &tokens, 1, &scene->beside_id, &error), error);
    assert_ok(sample_save(&scene->sample, store, commits, 3, &scene->id, &error), error);
    store_close(store);
    keep_files(scene);
}

static void clear_scene(struct scene *scene) {
    for (size_t i = 0; i < FILES; i++) free(scene->files[i].bytes);
    scratch_destroy(&scene->scratch);
}

/* The usable part of the damaged document: all of it, or nothing and the reason. */
static bool still_used(struct scene *scene, struct store *store, const char *what) {
    struct error error = {.message = ""};
    uint64_t reused;
    enum status status = sample_reuse(&scene->sample, store, scene->tokens, &reused, &error);
    if (status != STATUS_OK && status != STATUS_IO)
        fail_msg("seed %llu: %s: %s: %s", (unsigned long long)seed, what, status_name(status), error.message);
    /* Less than all: another token sequence was found in its place, and a shorter one was right. */
    if (reused != 0 && reused != scene->tokens) fail_msg("%s: %llu tokens", what, (unsigned long long)reused);
    return reused == scene->tokens;
}

static void assert_beside(struct scene *scene, struct store *store, const char *what) {
    struct error error = {.message = "not found"};
    uint64_t reused;
    assert_ok(sample_reuse(&scene->beside, store, 1000, &reused, &error), error);
    if (reused != 64 * 3 + 1) fail_msg("%s: the document beside it is lost: %s", what, error.message);
}

/* Flips bits [0, bits) of one column of one row, one at a time, through SQL; every one must be noticed. */
static size_t flip_column(struct scene *scene, struct store *store, const char *table, const char *column,
                          bool number, const char *where) {
    char sql[256];
    sqlite3_stmt *statement;
    snprintf(sql, sizeof sql, "SELECT %s FROM %s WHERE %s", column, table, where);
    assert_int_equal(sqlite3_prepare_v2(scene->database, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int type = sqlite3_column_type(statement, 0);
    size_t size = number ? 8 : (size_t)sqlite3_column_bytes(statement, 0);
    uint8_t *value = malloc(size + 1);
    int64_t integer = sqlite3_column_int64(statement, 0);
    if (number)
        memcpy(value, &integer, 8);
    else if (size > 0)
        memcpy(value, sqlite3_column_blob(statement, 0), size);
    sqlite3_finalize(statement);
    snprintf(sql, sizeof sql, "UPDATE %s SET %s=?1 WHERE %s", table, column, where);
    assert_int_equal(sqlite3_prepare_v2(scene->database, sql, -1, &statement, NULL), SQLITE_OK);
    for (size_t bit = 0; bit <= size * 8; bit++) { /* the last: as it was */
        if (bit > 0) value[(bit - 1) / 8] ^= (uint8_t)(1 << (bit - 1) % 8);
        if (bit < size * 8) value[bit / 8] ^= (uint8_t)(1 << bit % 8);
        memcpy(&integer, value, number ? 8 : 0);
        if (number)
            sqlite3_bind_int64(statement, 1, integer);
        else if (type == SQLITE_TEXT)
            sqlite3_bind_text(statement, 1, (const char *)value, (int)size, SQLITE_STATIC);
        else
            sqlite3_bind_blob(statement, 1, value, (int)size, SQLITE_STATIC);
        int code = sqlite3_step(statement);
        sqlite3_reset(statement);
        if (code == SQLITE_CONSTRAINT && number) continue; /* another row has this number */
        assert_int_equal(code, SQLITE_DONE);
        snprintf(sql, sizeof sql, "%s.%s bit %zu", table, column, bit);
        if (still_used(scene, store, sql) != (bit == size * 8))
            fail_msg("seed %llu: %s: %s", (unsigned long long)seed, sql,
                     bit < size * 8 ? "not noticed" : "not whole again");
        run_sql(scene, "UPDATE documents SET damaged=''");
    }
    sqlite3_finalize(statement);
    free(value);
    return size * 8;
}

static void test_every_bit_of_the_rows(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, FEW_TOKENS);
    struct store *store = sample_store_open(scene.scratch.path);
    open_database(&scene);
    char where[64];
    size_t cases = 0;
    snprintf(where, sizeof where, "id=%llu", (unsigned long long)scene.id);
    static const char *const texts[] = {"fingerprint", "model", "name", "layout", "chain", "checksum"};
    static const char *const numbers[] = {"generation", "created", "prefix", "token_count", "bytes"};
    for (size_t i = 0; i < 6; i++) cases += flip_column(&scene, store, "documents", texts[i], false, where);
    for (size_t i = 0; i < 5; i++) cases += flip_column(&scene, store, "documents", numbers[i], true, where);
    static const char *const blobs[] = {"page_sums", "metadata_sums", "tail_sums", "checksum"};
    static const char *const commit_numbers[] = {"number", "token_first", "token_end"};
    for (int number = 1; number <= 3; number++) {
        char by_row[96];
        snprintf(by_row, sizeof by_row, "rowid=%d", number + 1); /* the document beside it has the first */
        for (size_t i = 0; i < 4; i++)
            cases += flip_column(&scene, store, "commits", blobs[i], false, by_row);
        for (size_t i = 0; i < 3; i++)
            cases += flip_column(&scene, store, "commits", commit_numbers[i], true, by_row);
        if (number == 1) cases += flip_column(&scene, store, "commits", "tokens", false, by_row);
    }
    assert_beside(&scene, store, "rows");
    printf("%zu bits of rows\n", cases);
    sqlite3_close(scene.database);
    store_close(store);
    clear_scene(&scene);
}

static void flip_file(const struct scene *scene, const char *name, uint64_t offset, uint8_t bits) {
    int fd = open(scratch_name(&scene->scratch, name), O_RDWR);
    uint8_t byte;
    if (fd < 0 || pread(fd, &byte, 1, (off_t)offset) != 1) die(name);
    byte ^= bits;
    if (pwrite(fd, &byte, 1, (off_t)offset) != 1) die(name);
    close(fd);
}

static void test_payload_flips(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, TOKENS);
    struct store *store = sample_store_open(scene.scratch.path);
    open_database(&scene);
    size_t noticed = 0, cases = (size_t)(test_part(1600) * fuzz);
    for (size_t i = 0; i < cases; i++) {
        size_t file = file_of(&scene, scene.id, random_below(&random_cases, 4) == 0 ? "metadata" : "pages");
        uint64_t offset = random_below(&random_cases, scene.files[file].size);
        if (i % 3 > 0) /* where there is something: holes make no difference */
            while (scene.files[file].bytes[offset] == 0)
                offset = random_below(&random_cases, scene.files[file].size);
        uint8_t bits = (uint8_t)(1 << random_below(&random_cases, 8));
        flip_file(&scene, scene.files[file].name, offset, bits);
        if (!still_used(&scene, store, scene.files[file].name)) {
            noticed++;
            run_sql(&scene, "UPDATE documents SET damaged=''");
        }
        flip_file(&scene, scene.files[file].name, offset, bits);
    }
    assert_true(still_used(&scene, store, "mended"));
    assert_beside(&scene, store, "payload");
    printf("%zu flips in pages and metadata, %zu of them in what is used\n", cases, noticed);
    assert_met(noticed > cases / 3);
    sqlite3_close(scene.database);
    store_close(store);
    clear_scene(&scene);
}

/* Opens the store in its present state.  Returns whether the document can still be used. */
static bool outcome(struct scene *scene, bool beside_lives, const char *what) {
    struct store *store;
    struct error error = {.message = ""};
    const struct store_options options = {
        .directory = scene->scratch.path, .backend = IO_BACKEND_THREADS, .staging_bytes = 1 << 20};
    enum status status = store_open(&store, &options, &error);
    if (status != STATUS_OK) {
        if ((status != STATUS_DOCUMENT && status != STATUS_IO) || error.message[0] == '\0')
            fail_msg("%s: %s: %s", what, status_name(status), error.message);
        assert_false(beside_lives);
        return false;
    }
    bool used = still_used(scene, store, what);
    if (beside_lives) assert_beside(scene, store, what);
    if (!beside_lives) {
        uint64_t reused;
        status = sample_reuse(&scene->beside, store, 1000, &reused, &error);
        assert_true(status == STATUS_OK || status == STATUS_IO);
    }
    store_close(store);
    return used;
}

static void test_truncations(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene;
    set_scene(&scene, TOKENS);
    size_t cases = 0;
    for (size_t f = 0; f < 3; f++) {
        size_t file = file_of(&scene, f == 0 ? 0 : scene.id, f == 1 ? "pages" : "metadata");
        const char *name = scene.files[file].name;
        for (size_t edge = 0; edge <= scene.files[file].size; edge += f == 2 ? 512 : 4096)
            for (int beside = -1; beside <= 1; beside++) {
                size_t size = edge + (size_t)beside;
                if (edge + 1 < 1 + (size_t)(beside < 0) || size >= scene.files[file].size) continue;
                restore(&scene);
                assert_int_equal(truncate(scratch_name(&scene.scratch, name), (off_t)size), 0);
                assert_false(outcome(&scene, f > 0, name) && f > 0);
                cases++;
                if (f == 0) continue;
                /* Made as long as it was: nothing but the checksums can tell. */
                restore(&scene);
                assert_int_equal(truncate(scratch_name(&scene.scratch, name), (off_t)size), 0);
                assert_int_equal(truncate(scratch_name(&scene.scratch, name), (off_t)scene.files[file].size),
                                 0);
                (void)outcome(&scene, true, name);
                cases++;
            }
        /* Gone, and longer than it should be. */
        restore(&scene);
        assert_int_equal(unlink(scratch_name(&scene.scratch, name)), 0);
        assert_false(outcome(&scene, f > 0, name));
        if (f == 0) /* the pages are still there: a lost catalog takes nothing with it */
            assert_int_equal(
                access(scratch_name(&scene.scratch, scene.files[file_of(&scene, scene.id, "pages")].name),
                       F_OK),
                0);
        restore(&scene);
        assert_int_equal(truncate(scratch_name(&scene.scratch, name), (off_t)scene.files[file].size + 5000),
                         0);
        (void)outcome(&scene, f > 0, name);
    }
    printf("%zu truncations\n", cases);
    clear_scene(&scene);
}

static void copy_range(struct scene *scene, const char *to, uint64_t to_offset, const uint8_t *bytes,
                       size_t count) {
    int fd = open(scratch_name(&scene->scratch, to), O_WRONLY);
    if (fd < 0 || pwrite(fd, bytes, count, (off_t)to_offset) != (ssize_t)count) die(to);
    close(fd);
}

static void test_swapped_stale_foreign(void **state) {
    (void)state;
    test_skip_part();
    enum { PAGE = 8192, TAILS = 4, COLUMN = 16 }; /* pages: two tails of two heads, then 16 chunks a head */
    struct scene scene;
    set_scene(&scene, TOKENS);
    size_t mine = file_of(&scene, scene.id, "pages"), other = file_of(&scene, scene.beside_id, "pages");
    const char *name = scene.files[mine].name;
    const uint8_t *bytes = scene.files[mine].bytes;
    assert_true(scene.files[mine].size >= (TAILS + 2 * COLUMN) * PAGE);
    for (size_t a = TAILS; a < TAILS + 2 * COLUMN;
         a++) { /* each page with its neighbour, and with that of the other head */
        size_t partners[] = {a + 1, a + COLUMN};
        for (size_t i = 0; i < 2; i++) {
            size_t b = partners[i];
            if (b >= TAILS + 2 * COLUMN) continue;
            restore(&scene);
            copy_range(&scene, name, a * PAGE, bytes + b * PAGE, PAGE);
            copy_range(&scene, name, b * PAGE, bytes + a * PAGE, PAGE);
            assert_false(outcome(&scene, true, "swapped pages"));
        }
    }
    restore(&scene); /* a write that was lost: what was there before, zeros */
    uint8_t zeros[PAGE] = {0};
    copy_range(&scene, name, (TAILS + 3) * PAGE, zeros, PAGE);
    assert_false(outcome(&scene, true, "lost page"));
    restore(&scene); /* another document's page at the same place */
    copy_range(&scene, name, TAILS * PAGE, scene.files[other].bytes + TAILS * PAGE, PAGE);
    assert_false(outcome(&scene, true, "foreign page"));
    restore(&scene); /* the tail of an older commit (the first one's lies in the other place) */
    copy_range(&scene, name, 2 * PAGE, bytes, 2 * PAGE);
    copy_range(&scene, name, 0, bytes + 2 * PAGE, 2 * PAGE);
    assert_false(outcome(&scene, true, "stale tail"));
    restore(&scene);
    put_file(&scene, name, scene.files[other].bytes, scene.files[other].size);
    assert_false(outcome(&scene, true, "foreign file"));
    size_t key_index = file_of(&scene, scene.id, "metadata");
    restore(&scene);
    copy_range(&scene, scene.files[key_index].name, 0, scene.files[key_index].bytes + 100, 100);
    assert_false(outcome(&scene, true, "foreign metadata"));
    clear_scene(&scene);
}

static void test_changed_rows(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene;
    set_scene(&scene, TOKENS);
    static const char *const changes[] = {
        "DELETE FROM commits WHERE rowid=2",
        "DELETE FROM commits WHERE rowid=4",
        "UPDATE commits SET document=document+5 WHERE rowid=3",
        "UPDATE commits SET number=9 WHERE rowid=4",
        "UPDATE commits SET number=-number WHERE document=2; UPDATE commits SET number=4+number WHERE "
        "document=2",
        "UPDATE commits SET page_sums=(SELECT page_sums FROM commits WHERE rowid=1) WHERE rowid=2",
        "INSERT INTO commits SELECT 2, 4, token_end, token_end+64, tokens, page_sums, metadata_sums, "
        "tail_sums, checksum FROM commits WHERE rowid=4",
        "UPDATE documents SET generation=2, token_count=1088 WHERE id=2",
        "UPDATE documents SET chain=(SELECT chain FROM documents WHERE id=1) WHERE id=2",
        "UPDATE documents SET checksum=(SELECT checksum FROM documents WHERE id=1) WHERE id=2",
        "UPDATE documents SET layout=replace(layout, 'heads=2', 'heads=1') WHERE id=2",
        "UPDATE documents SET fingerprint=zeroblob(32) WHERE id=2",
        "UPDATE documents SET fingerprint=zeroblob(1000000) WHERE id=2",
        "UPDATE documents SET model=printf('%.*c', 100000, 'x') WHERE id=2",
        "UPDATE commits SET tokens=zeroblob(10000000) WHERE rowid=2",
        "UPDATE commits SET tokens=CAST(tokens||zeroblob(10000000) AS BLOB) WHERE rowid=4", /* the right ones first */
        "UPDATE commits SET tokens=5 WHERE rowid=2",
        "UPDATE commits SET page_sums=zeroblob(10000000) WHERE rowid=2",
        "UPDATE commits SET metadata_sums=zeroblob(10000000) WHERE rowid=4",
        "UPDATE commits SET metadata_sums=zeroblob(16) WHERE rowid=3",
        "UPDATE documents SET token_count=-1 WHERE id=2",
        "UPDATE documents SET token_count=9223372036854775807, generation=9223372036854775807 WHERE id=2",
        "UPDATE documents SET bytes=9223372036854775807 WHERE id=2",
        "UPDATE documents SET id=7 WHERE id=2",
        "DELETE FROM documents WHERE id=2",
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        restore(&scene);
        open_database(&scene);
        run_sql(&scene, changes[i]);
        sqlite3_close(scene.database);
        assert_false(outcome(&scene, true, changes[i]));
    }
    /* The whole catalog is not ours, newer, or another thing altogether. */
    static const char *const foreign[] = {
        "PRAGMA user_version=1",
        "PRAGMA user_version=10",
        "PRAGMA user_version=0",
        "PRAGMA application_id=1",
        "DROP INDEX commits_by_number",
        "ALTER TABLE documents ADD COLUMN more",
        "CREATE TABLE more(a)",
        "DROP TABLE commits",
        "CREATE TRIGGER t AFTER UPDATE ON documents BEGIN DELETE FROM commits; END"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        restore(&scene);
        open_database(&scene);
        run_sql(&scene, foreign[i]);
        sqlite3_close(scene.database);
        assert_false(outcome(&scene, false, foreign[i]));
        assert_int_equal(
            access(scratch_name(&scene.scratch, scene.files[file_of(&scene, scene.id, "pages")].name), F_OK),
            0);
    }
    restore(&scene);
    put_file(&scene, "catalog.db", (const uint8_t *)"this is no database, but a text of some length\n", 47);
    assert_false(outcome(&scene, false, "text"));
    clear_scene(&scene);
}

/* A commit of another life of the same document (the same numbers, a checksum of its own that is right): only
 * the chain can tell. */
static void test_stale_commit(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene, other;
    struct error error;
    struct document *document;
    char sql[256];
    set_scene(&scene, FEW_TOKENS);
    set_scene(&other, FEW_TOKENS); /* another sample under the same id */
    assert_int_equal(other.id, scene.id);
    for (int row = 2; row <= 4; row++) {
        restore(&scene);
        open_database(&scene);
        snprintf(sql, sizeof sql,
                 "ATTACH '%s' AS other; DELETE FROM commits WHERE rowid=%d; "
                 "INSERT INTO commits SELECT * FROM other.commits WHERE rowid=%d",
                 scratch_name(&other.scratch, "catalog.db"), row, row);
        run_sql(&scene, sql);
        sqlite3_close(scene.database);
        struct store *store = sample_store_open(scene.scratch.path);
        const struct sample *sample = &scene.sample;
        assert_int_equal(document_open(&document, store, scene.id, &sample->model, &sample->layout,
                                       DOCUMENT_READ, 0, &error),
                         STATUS_DOCUMENT);
        if (strstr(error.message, "chained by checksum") == NULL) fail_msg("%s", error.message);
        store_close(store);
        assert_false(outcome(&scene, true, "stale commit"));
    }
    clear_scene(&other);
    clear_scene(&scene);
}

/* Whatever the catalog lost, the documents' files are unchanged. */
static bool is_whole(const struct scene *scene, size_t file) {
    static uint8_t bytes[2 << 20];
    int fd = open(scratch_name(&scene->scratch, scene->files[file].name), O_RDONLY);
    if (fd < 0) return false;
    ssize_t size = read(fd, bytes, sizeof bytes);
    close(fd);
    return size >= 0 && (size_t)size == scene->files[file].size && scene->files[file].size < sizeof bytes &&
           memcmp(bytes, scene->files[file].bytes, (size_t)size) == 0;
}

static void assert_files_whole(const struct scene *scene, const char *what) {
    for (size_t i = 0; i < FILES; i++)
        if (i != file_of(scene, 0, "") && !is_whole(scene, i))
            fail_msg("seed %llu: %s: %s was removed or changed", (unsigned long long)seed, what,
                     scene->files[i].name);
}

static size_t flip_catalog(struct scene *scene, uint64_t offset, unsigned bit) {
    restore(scene);
    flip_file(scene, "catalog.db", offset, (uint8_t)(1 << bit));
    char what[64];
    snprintf(what, sizeof what, "catalog byte %llu bit %u", (unsigned long long)offset, bit);
    size_t lost = !outcome(scene, false, what);
    assert_files_whole(scene, what);
    return lost;
}

/* Any byte of the catalog's file: SQLite's own structures included, which have no checksums. */
static void test_catalog_flips(void **state) {
    (void)state;
    struct scene scene;
    set_scene(&scene, TOKENS);
    size_t file = file_of(&scene, 0, ""), lost = 0, cases = (size_t)(test_part(400) * fuzz);
    for (size_t i = 0; i < cases; i++) {
        uint64_t offset = i % 4 == 0 ? random_below(&random_cases, 4096)
                                     : random_below(&random_cases, scene.files[file].size);
        lost += flip_catalog(&scene, offset, (unsigned)random_below(&random_cases, 8));
    }
    printf("%zu flips in the catalog's file, %zu made a document unusable\n", cases, lost);
    clear_scene(&scene);
}

/* Every bit of what SQLite leads with to the documents' rows: the page's header, the places of the cells, their
 * lengths and ids, and the rows' headers.  A flipped id (once found as byte 20,063 of seed 1795245838) makes
 * a document vanish, in a file that SQLite finds nothing wrong with. */
static void test_flips_around_the_rows(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene;
    set_scene(&scene, FEW_TOKENS);
    sqlite3_stmt *statement;
    open_database(&scene);
    assert_int_equal(sqlite3_prepare_v2(scene.database,
                                        "SELECT rootpage FROM sqlite_schema WHERE name='documents'", -1,
                                        &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    size_t page = (size_t)(sqlite3_column_int(statement, 0) - 1) * 4096, cases = 0, lost = 0;
    sqlite3_finalize(statement);
    sqlite3_close(scene.database);
    const uint8_t *bytes = scene.files[file_of(&scene, 0, "")].bytes + page;
    assert_int_equal(bytes[0], 13); /* a leaf of a table */
    assert_int_equal(bytes[4], 2);  /* its cells: the two documents */
    for (size_t at = 0; at < 8 + 2 * 2; at++)
        for (unsigned bit = 0; bit < 8; bit++, cases++) lost += flip_catalog(&scene, page + at, bit);
    for (size_t cell = 0; cell < 2; cell++) {
        size_t begin = (size_t)bytes[8 + 2 * cell] << 8 | bytes[9 + 2 * cell];
        for (size_t at = begin; at < begin + 24; at++)
            for (unsigned bit = 0; bit < 8; bit++, cases++) lost += flip_catalog(&scene, page + at, bit);
    }
    printf("%zu flips around the documents' rows, %zu made a document unusable\n", cases, lost);
    assert_true(lost > cases / 3);
    clear_scene(&scene);
}

struct listed {
    bool sound[FILES]; /* by the file of the document */
    uint64_t bytes;
    struct scene *scene;
};

static void see_sound(void *context, const struct document_info *info) {
    struct listed *listed = context;
    listed->bytes += info->bytes;
    if (info->damaged != NULL && strstr(info->damaged, "its row in the catalog is damaged") != NULL) return;
    if (info->id != listed->scene->id && info->id != listed->scene->beside_id) return;
    listed->sound[file_of(listed->scene, info->id, "pages")] = true;
    listed->sound[file_of(listed->scene, info->id, "metadata")] = true;
}

/* The same where space must be made: a document may only be removed if its row is intact. */
static void test_catalog_flips_and_space(void **state) {
    (void)state;
    struct scene scene;
    struct error error;
    struct store *store;
    set_scene(&scene, FEW_TOKENS);
    size_t catalog = file_of(&scene, 0, ""), removed = 0, cases = (size_t)(test_part(400) * fuzz);
    struct listed whole = {.scene = &scene};
    store = sample_store_open(scene.scratch.path);
    assert_ok(store_list(store, see_sound, &whole, &error), error);
    store_close(store);
    const struct store_options options = {.directory = scene.scratch.path,
                                          .backend = IO_BACKEND_THREADS,
                                          .staging_bytes = 1 << 20,
                                          .limit_bytes =
                                              whole.bytes + scene.files[catalog].size + (520 << 10)};
    for (size_t i = 0; i < cases; i++) {
        restore(&scene);
        uint64_t offset = random_below(&random_cases, scene.files[catalog].size), id, tokens = 64 * 3 + 1;
        flip_file(&scene, "catalog.db", offset, (uint8_t)(1 << random_below(&random_cases, 8)));
        struct listed listed = {.scene = &scene};
        if (store_open(&store, &options, &error) == STATUS_OK) {
            struct sample another = sample_other(&scene.sample, 1000 + i);
            if (store_list(store, see_sound, &listed, &error) != STATUS_OK) listed = (struct listed){0};
            (void)!sample_save(&another, store, &tokens, 1, &id, &error);
            store_close(store);
        }
        for (size_t f = 0; f < FILES; f++) {
            if (f == catalog || is_whole(&scene, f)) continue;
            removed++;
            if (!listed.sound[f])
                fail_msg("seed %llu: catalog byte %llu: %s was removed or changed for room",
                         (unsigned long long)seed, (unsigned long long)offset, scene.files[f].name);
        }
    }
    printf("%zu flips before room was made, %zu files of sound rows went\n", cases, removed);
    assert_met(removed > cases / 2);
    clear_scene(&scene);
}

/* Rows that are gone altogether, and an older catalog in the place of the newer one: their files are left alone,
 * with a line that says so, by openings and by new documents, whose ids are new to the folder too. */
static void test_lost_rows(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene;
    struct error error;
    set_scene(&scene, FEW_TOKENS);
    static const char *const losses[] = {
        "DELETE FROM documents WHERE id=2",
        "DELETE FROM documents",
        "UPDATE documents SET id=7 WHERE id=2",
        "DELETE FROM documents WHERE id=2; DELETE FROM commits WHERE document=2",
        ("DELETE FROM documents WHERE id=2; DELETE FROM commits WHERE document=2; "
         "UPDATE sqlite_sequence SET seq=1"),
        "DELETE FROM documents; DELETE FROM commits; DELETE FROM sqlite_sequence",
        "DELETE FROM documents WHERE id=2; INSERT INTO removals VALUES(2, zeroblob(16))",
    };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        restore(&scene);
        open_database(&scene);
        run_sql(&scene, losses[i]);
        sqlite3_close(scene.database);
        for (uint64_t again = 0; again < 3; again++) {
            struct store *store = sample_store_open(scene.scratch.path);
            if (store_warning(store) == NULL || strstr(store_warning(store), "left alone") == NULL)
                fail_msg("%s: no warning", losses[i]);
            struct sample another = sample_other(&scene.sample, again);
            uint64_t id, tokens = 64 * 3 + 1, reused;
            assert_ok(sample_save(&another, store, &tokens, 1, &id, &error), error);
            assert_true(id > 2);
            assert_ok(sample_reuse(&another, store, tokens, &reused, &error), error);
            assert_int_equal(reused, tokens);
            store_close(store);
            assert_files_whole(&scene, losses[i]);
        }
    }
    restore(&scene);
    struct store *store = sample_store_open(scene.scratch.path);
    assert_null(store_warning(store));
    store_close(store);
    clear_scene(&scene);
}

/* How often the damaged document, the longest for these tokens, is found before the shorter one behind it is. */
static unsigned refusals(struct scene *scene, struct store *store, uint64_t shorter_tokens) {
    struct error error = {.message = "not found"};
    for (unsigned count = 0; count < 10; count++) {
        uint64_t reused;
        assert_ok(sample_reuse(&scene->sample, store, scene->tokens, &reused, &error), error);
        if (reused == shorter_tokens) return count;
        assert_int_equal(reused, 0); /* refused */
        assert_non_null(strstr(error.message, "damaged at"));
    }
    return 10;
}

/* What is refused is found once: where its flag cannot be set, since the folder is only read or the catalog cannot be
 * written, the store keeps its number, or everybody who asks would find it again and never what lies behind it. */
static void test_refused_is_not_found_again(void **state) {
    (void)state;
    test_skip_part();
    struct scene scene;
    struct error error;
    set_scene(&scene, FEW_TOKENS);
    const uint64_t shorter_tokens = 64 * 2;
    const char *pages = scene.files[file_of(&scene, scene.id, "pages")].name;
    uint64_t id;
    struct store *store = sample_store_open(scene.scratch.path);
    assert_ok(sample_save(&scene.sample, store, &shorter_tokens, 1, &id, &error), error);
    store_close(store);
    uint64_t offset = 0; /* of the first page, in the disk's blocks that hold no zeros alone */
    while (scene.files[file_of(&scene, scene.id, "pages")].bytes[offset] == 0) offset++;
    flip_file(&scene, pages, offset, 1);
    struct store_options options = {.directory = scene.scratch.path, .backend = IO_BACKEND_THREADS, .read_only = true};
    for (int again = 0; again < 2; again++) { /* nothing is written: the next reader finds the same */
        assert_ok(store_open(&store, &options, &error), error);
        assert_int_equal(refusals(&scene, store, shorter_tokens), 1);
        assert_int_equal(refusals(&scene, store, shorter_tokens), 0);
        store_close(store);
    }
    options.read_only = false;
    assert_ok(store_open(&store, &options, &error), error);
    open_database(&scene);
    run_sql(&scene, "CREATE TRIGGER full BEFORE UPDATE ON documents BEGIN SELECT RAISE(FAIL, 'full'); END");
    assert_int_equal(refusals(&scene, store, shorter_tokens), 1);
    assert_int_equal(refusals(&scene, store, shorter_tokens), 0);
    run_sql(&scene, "DROP TRIGGER full");
    sqlite3_close(scene.database);
    store_close(store);
    assert_ok(store_open(&store, &options, &error), error); /* this time the flag is set */
    assert_int_equal(refusals(&scene, store, shorter_tokens), 1);
    store_close(store);
    assert_ok(store_open(&store, &options, &error), error);
    assert_int_equal(refusals(&scene, store, shorter_tokens), 0);
    store_close(store);
    clear_scene(&scene);
}

int main(void) {
    const char *more = getenv("LOAM_TEST_FUZZ");
    seed = test_seed(20261121);
    if (more != NULL && strtoull(more, NULL, 0) > 0) fuzz = strtoull(more, NULL, 0);
    random_init(&random_cases, seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bit_of_the_rows),
        cmocka_unit_test(test_payload_flips),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_swapped_stale_foreign),
        cmocka_unit_test(test_changed_rows),
        cmocka_unit_test(test_stale_commit),
        cmocka_unit_test(test_catalog_flips),
        cmocka_unit_test(test_flips_around_the_rows),
        cmocka_unit_test(test_catalog_flips_and_space),
        cmocka_unit_test(test_lost_rows),
        cmocka_unit_test(test_refused_is_not_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
