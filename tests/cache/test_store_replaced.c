/* A file of a document is replaced by a folder, a fifo or a link: the document is flagged as damaged and can be
 * removed.  The second document of the folder is unharmed. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/store_sample.h"
#include "platform/scratch.h"

enum { TOKENS = 64 * 3 + 5 };

/* What was put in a file's place: nothing of it is opened, followed or waited for. */
enum planted { PLANTED_FOLDER, PLANTED_FULL_FOLDER, PLANTED_FIFO, PLANTED_LINK, PLANTED_KINDS };

static void plant(const char *path, enum planted kind, const char *elsewhere) {
    char inner[300];
    switch (kind) {
    case PLANTED_FOLDER: assert_int_equal(mkdir(path, 0700), 0); return;
    case PLANTED_FULL_FOLDER:
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(inner, sizeof inner, "%s/inner", path);
        assert_int_equal(mkdir(inner, 0700), 0);
        return;
    case PLANTED_FIFO: assert_int_equal(mkfifo(path, 0600), 0); return;
    case PLANTED_LINK: assert_int_equal(symlink(elsewhere, path), 0); return;
    case PLANTED_KINDS: return;
    }
}

/* A folder with two documents; one has a file replaced. */
static void replaced(const char *suffix, enum planted kind) {
    char path[200], elsewhere[200], what[80], name[64];
    struct error error;
    struct random random;
    struct scratch scratch;
    const uint64_t tokens = TOKENS;
    uint64_t id, beside_id;
    random_init(&random, 3);
    struct sample sample = sample_random(&random), beside = sample_other(&sample, 77);
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    assert_ok(sample_save(&sample, store, &tokens, 1, &id, &error), error);
    assert_ok(sample_save(&beside, store, &tokens, 1, &beside_id, &error), error);
    store_close(store);
    snprintf(name, sizeof name, "%llu.%s", (unsigned long long)id, suffix);
    snprintf(what, sizeof what, "%s, kind %d", suffix, (int)kind);
    snprintf(path, sizeof path, "%s", scratch_name(&scratch, name));
    snprintf(elsewhere, sizeof elsewhere, "%s", scratch_name(&scratch, "elsewhere"));
    if (kind == PLANTED_LINK) /* the very file */
        assert_int_equal(rename(path, elsewhere), 0);
    else
        assert_int_equal(unlink(path), 0);
    plant(path, kind, elsewhere);
    store = sample_store_open(scratch.path);
    enum status status = store_verify(store, id, &error);
    if (status != STATUS_DOCUMENT) fail_msg("%s: %s: %s", what, status_name(status), error.message);
    if (strstr(error.message, name) == NULL) fail_msg("%s: no file in '%s'", what, error.message);
    assert_ok(store_verify(store, beside_id, &error), error);
    struct store_match match;
    int32_t *ids = sample_tokens(&sample, TOKENS);
    assert_ok(store_find(store,
                         &(struct store_query){&sample.model, &sample.layout, ids, TOKENS, STORE_LIKE_KIND},
                         &match, &error),
              error);
    if (match.document != 0) fail_msg("%s: found again", what); /* it has been flagged */
    free(ids);
    status = store_remove(store, id, &error);
    assert_int_equal(status, kind == PLANTED_FULL_FOLDER ? STATUS_IO : STATUS_OK);
    store_close(store);
    store = sample_store_open(scratch.path); /* whatever could not be removed */
    assert_int_equal(store_warning(store) != NULL, kind == PLANTED_FULL_FOLDER);
    assert_ok(store_verify(store, beside_id, &error), error);
    store_close(store);
    if (kind == PLANTED_FULL_FOLDER) {
        snprintf(elsewhere, sizeof elsewhere, "%.180s/inner", path);
        assert_int_equal(rmdir(elsewhere) | rmdir(path), 0);
    }
    scratch_destroy(&scratch);
}

static void replaced_files(void **state) {
    (void)state;
    for (enum planted kind = 0; kind < PLANTED_KINDS; kind++) {
        replaced("pages", kind);
        replaced("metadata", kind);
    }
}

/* Files that SQLite opens beside the catalog: named, and not waited for; without them all is there. */
static void planted_beside_the_catalog(void **state) {
    (void)state;
    static const char *const names[] = {"catalog.db-journal", "catalog.db-wal", "catalog.db-shm"};
    const uint64_t tokens = TOKENS;
    uint64_t id;
    struct error error;
    struct random random;
    struct scratch scratch;
    random_init(&random, 3);
    struct sample sample = sample_random(&random);
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct store *store = sample_store_open(scratch.path);
    assert_ok(sample_save(&sample, store, &tokens, 1, &id, &error), error);
    store_close(store);
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        const char *path = scratch_name(&scratch, names[i / 2]);
        (void)unlink(path); /* an empty journal of ours */
        plant(path, i % 2 == 0 ? PLANTED_FIFO : PLANTED_LINK, "/dev/zero");
        const struct store_options options = {.directory = scratch.path};
        assert_int_equal(store_open(&store, &options, &error), STATUS_IO);
        if (strstr(error.message, names[i / 2]) == NULL)
            fail_msg("no %s in '%s'", names[i / 2], error.message);
        assert_int_equal(unlink(path), 0);
    }
    store = sample_store_open(scratch.path);
    assert_ok(store_verify(store, id, &error), error);
    store_close(store);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(replaced_files),
                                       cmocka_unit_test(planted_beside_the_catalog)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
