/* loam ls, show, rm, verify, export and import on the real binary, over documents made by the store: they print what is
 * there; damage gives exit code 4; a missing folder gives 6 and is not made; a document that is open stays. */
#include "testing.h"

#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/store_sample.h"
#include "cli/kv_disk.h"
#include "cli/process.h"

enum { DOCUMENTS = 3 };

static const uint64_t token_counts[DOCUMENTS] = {64, 200, 1000};
static const char *const names[DOCUMENTS] = {"holmes.txt", "red \x1b[31m text", "log.txt"};

struct folder {
    char path[200];
    uint64_t ids[DOCUMENTS];
    struct sample sample;
    struct error error;
};

static struct store *open_store(struct folder *folder) {
    struct store *store;
    const struct store_options options = {.directory = folder->path};
    assert_ok(store_open(&store, &options, &folder->error), folder->error);
    return store;
}

static struct document *new_document(struct folder *folder, struct store *store, size_t i) {
    struct document *document;
    const struct document_description description = {&folder->sample.model, &folder->sample.layout, names[i],
                                                     token_counts[i]};
    assert_ok(document_create(&document, store, &description, &folder->error), folder->error);
    folder->ids[i] = document_id(document);
    return document;
}

static void folder_init(struct folder *folder, const char *name, size_t document_count) {
    struct random random;
    random_init(&random, 7);
    *folder = (struct folder){.sample = sample_random(&random)};
    snprintf(folder->path, sizeof folder->path, "%s", scratch_path(name));
    struct store *store = open_store(folder);
    for (size_t i = 0; i < document_count; i++) {
        struct document *document = new_document(folder, store, i);
        assert_ok(sample_write(&folder->sample, document, 0, token_counts[i], NULL, &folder->error),
                  folder->error);
        assert_ok(document_flush(document, &folder->error), folder->error);
        document_close(document);
    }
    store_close(store);
}

static const char *id_text(const struct folder *folder, size_t i) {
    static char texts[4][24];
    static size_t next;
    char *text = texts[next++ % 4];
    snprintf(text, sizeof texts[0], "%llu", (unsigned long long)folder->ids[i]);
    return text;
}

static json_t *parse(const struct process_result *result) {
    json_error_t why;
    json_t *root = json_loads(result->output, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) fail_msg("%s in\n%s", why.text, result->output);
    return root;
}

static const char *word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static json_t *list(const struct folder *folder) {
    struct process_result result = LOAM("ls", "--kv-disk", folder->path, "--json");
    assert_int_equal(result.code, 0);
    json_t *root = parse(&result);
    process_deinit(&result);
    return root;
}

/* Text on standard output, or on standard error. */
static void expect(struct process_result result, int code, const char *text) {
    if (result.code != code ||
        (strstr(result.output, text) == NULL && strstr(result.complaints, text) == NULL))
        fail_msg("exit code %d, expected %d; no '%s' in\n%s%s", result.code, code, text, result.output,
                 result.complaints);
    process_deinit(&result);
}

/* A bit of every page: of the tail's two places only one is in use. */
static void flip_bits(const struct folder *folder, size_t i) {
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s.pages", folder->path, id_text(folder, i));
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    for (long offset = 1; offset < info.st_size; offset += 4096) {
        assert_int_equal(fseek(file, offset, SEEK_SET), 0);
        int byte = fgetc(file);
        assert_int_equal(fseek(file, offset, SEEK_SET), 0);
        fputc(byte ^ 0x10, file);
    }
    assert_int_equal(fclose(file), 0);
}

static void documents_are_listed(void **state) {
    (void)state;
    struct folder folder;
    folder_init(&folder, "listed", DOCUMENTS);
    struct process_result result = LOAM("ls", "--kv-disk", folder.path);
    assert_int_equal(result.code, 0);
    static const char *const expected[] = {"holmes.txt",           "|   1000 |",         "ready",
                                           "a model of the tests", "red \\x1b[31m text", "3 documents"};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (strstr(result.output, expected[i]) == NULL)
            fail_msg("no '%s' in\n%s", expected[i], result.output);
    assert_null(strchr(result.output, '\x1b'));
    process_deinit(&result);
    json_t *root = list(&folder);
    assert_int_equal(json_array_size(root), DOCUMENTS);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        const json_t *object = json_array_get(root, i);
        assert_int_equal(json_integer_value(json_object_get(object, "id")), folder.ids[i]);
        assert_int_equal(json_integer_value(json_object_get(object, "tokens")), token_counts[i]);
        assert_string_equal(word(object, "name"), names[i]);
        assert_string_equal(word(object, "state"), "ready");
        assert_true(json_is_null(json_object_get(object, "damaged")));
        assert_int_equal(json_integer_value(json_object_get(object, "commits")), 1);
        assert_true(json_integer_value(json_object_get(object, "bytes")) > 4096);
        assert_int_equal(strlen(word(object, "fingerprint")), 2 * STORE_FINGERPRINT_BYTES);
        assert_int_equal(strlen(word(object, "used")), strlen("2026-11-21T10:00:00Z"));
    }
    json_decref(root);
}

static void one_is_shown(void **state) {
    (void)state;
    struct folder folder;
    char limited[220], environment[240];
    folder_init(&folder, "shown", DOCUMENTS);
    expect(LOAM("show", id_text(&folder, 0), "--kv-disk", folder.path), 0, "name         holmes.txt");
    expect(LOAM("show", id_text(&folder, 2), "--kv-disk", folder.path), 0, "tokens       1000");
    snprintf(limited, sizeof limited, "%s:8G", folder.path);
    struct process_result result = LOAM("show", "--kv-disk", limited, "--json", id_text(&folder, 1));
    assert_int_equal(result.code, 0);
    json_t *root = parse(&result);
    assert_int_equal(json_integer_value(json_object_get(root, "tokens")), 200);
    char expected[3];
    snprintf(expected, sizeof expected, "%02x", folder.sample.model.fingerprint[0]);
    assert_memory_equal(word(root, "fingerprint"), expected, 2);
    json_decref(root);
    process_deinit(&result);
    snprintf(environment, sizeof environment, "LOAM_ARG_KV_DISK=%s", folder.path);
    const char *const arguments[] = {"show", "12345", NULL};
    expect(process_run(&(struct process_request){.arguments = arguments, .environment = environment}), 4,
           "there is no document 12345");
    expect(LOAM("show", "x1", "--kv-disk", folder.path), 2, "expected a document's number");
    expect(LOAM("show", "1"), 2, "--kv-disk DIR");
    expect(LOAM("show", "--kv-disk", folder.path), 2, "show");
}

static void damage_is_found_and_flagged(void **state) {
    (void)state;
    struct folder folder;
    char line[64];
    folder_init(&folder, "damaged", DOCUMENTS);
    expect(LOAM("verify", "--kv-disk", folder.path), 0, "document 1: ok\ndocument 2: ok\ndocument 3: ok\n");
    flip_bits(&folder, 1);
    expect(LOAM("verify", "--kv-disk", folder.path, id_text(&folder, 0), id_text(&folder, 2)), 0, "3: ok");
    struct process_result result = LOAM("verify", "--kv-disk", folder.path, "--json");
    assert_int_equal(result.code, 4);
    assert_non_null(strstr(result.complaints, "1 of 3 documents are damaged"));
    json_t *root = parse(&result);
    assert_int_equal(json_array_size(root), DOCUMENTS);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        const json_t *object = json_array_get(root, i);
        assert_int_equal(json_is_true(json_object_get(object, "ok")), i != 1);
        assert_int_equal(json_is_null(json_object_get(object, "damaged")), i != 1);
    }
    json_decref(root);
    process_deinit(&result);
    root = list(&folder);
    assert_string_equal(word(json_array_get(root, 1), "state"), "damaged");
    assert_string_equal(word(json_array_get(root, 2), "state"), "ready");
    assert_true(strlen(word(json_array_get(root, 1), "damaged")) > 10);
    json_decref(root);
    expect(LOAM("show", id_text(&folder, 1), "--kv-disk", folder.path), 0, "reason       ");
    snprintf(line, sizeof line, "document %s: damaged: ", id_text(&folder, 1));
    expect(LOAM("verify", id_text(&folder, 1), "--kv-disk", folder.path), 4, line);
    expect(LOAM("rm", id_text(&folder, 1), "--kv-disk", folder.path), 0, "removed document");
    expect(LOAM("verify", "--kv-disk", folder.path), 0, "document 3: ok");
}

static void documents_are_removed(void **state) {
    (void)state;
    struct folder folder;
    char pages[256];
    struct stat info;
    folder_init(&folder, "removed", DOCUMENTS);
    expect(LOAM("rm", "1", "two", "--kv-disk", folder.path), 2, "'two'");
    struct store *store = open_store(&folder);
    struct document *document;
    assert_ok(document_open(&document, store, folder.ids[2], &folder.sample.model, &folder.sample.layout,
                            DOCUMENT_READ, 0, &folder.error),
              folder.error);
    expect(LOAM("ls", "--kv-disk", folder.path), 0, "in use");
    expect(LOAM("rm", id_text(&folder, 2), "--kv-disk", folder.path), 1, "somebody has it open");
    document_close(document);
    store_close(store);
    json_t *root = list(&folder);
    assert_int_equal(json_array_size(root), DOCUMENTS); /* nothing is gone yet */
    json_decref(root);
    snprintf(pages, sizeof pages, "%s/%s.pages", folder.path, id_text(&folder, 2));
    assert_int_equal(stat(pages, &info), 0);
    expect(LOAM("rm", id_text(&folder, 2), id_text(&folder, 0), "--kv-disk", folder.path), 0,
           "removed document 3\nremoved document 1\n");
    assert_int_equal(stat(pages, &info), -1);
    expect(LOAM("rm", id_text(&folder, 2), "--kv-disk", folder.path), 4, "there is no document 3");
    root = list(&folder);
    assert_int_equal(json_array_size(root), 1);
    assert_string_equal(word(json_array_get(root, 0), "name"), names[1]);
    json_decref(root);
}

/* A document that somebody has begun. */
static void what_is_not_committed_is_empty(void **state) {
    (void)state;
    struct folder folder;
    folder_init(&folder, "begun", 0);
    struct process_result result = LOAM("ls", "--kv-disk", folder.path);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.output, "");
    assert_non_null(strstr(result.complaints, "no saved documents"));
    process_deinit(&result);
    expect(LOAM("ls", "--kv-disk", folder.path, "--json"), 0, "[]");
    struct store *store = open_store(&folder);
    struct document *document = new_document(&folder, store, 0);
    json_t *root = list(&folder);
    assert_int_equal(json_array_size(root), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(root, 0), "tokens")), 0);
    assert_string_equal(word(json_array_get(root, 0), "state"), "in use");
    json_decref(root);
    result = LOAM("verify", "--kv-disk", folder.path);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.output, "");
    process_deinit(&result);
    document_close(document);
    store_close(store);
}

static void nothing_is_made(void **state) {
    (void)state;
    static const char *const commands[] = {"ls", "verify"};
    struct stat info;
    char missing[200], bare[200], garbage[256];
    snprintf(missing, sizeof missing, "%s", scratch_path("missing"));
    snprintf(bare, sizeof bare, "%s", scratch_path("bare"));
    assert_int_equal(mkdir(bare, 0700), 0);
    for (size_t i = 0; i < 2; i++) {
        expect(LOAM(commands[i], "--kv-disk", missing), 6, "no saved documents");
        expect(LOAM(commands[i], "--kv-disk", bare), 6, "no saved documents");
    }
    expect(LOAM("rm", "1", "--kv-disk", missing), 6, "no saved documents");
    assert_int_equal(stat(missing, &info), -1);
    assert_int_equal(rmdir(bare), 0); /* nothing is in it */
    struct folder folder;
    folder_init(&folder, "garbage", 1);
    snprintf(garbage, sizeof garbage, "%s/catalog.db", folder.path);
    FILE *file = fopen(garbage, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < 4096; i++) fputc((int)(i * 37 % 251), file);
    fclose(file);
    expect(LOAM("ls", "--kv-disk", folder.path), 4, "catalog.db");
    expect(LOAM("verify", "--kv-disk", folder.path), 4, "catalog.db");
    assert_int_equal(stat(garbage, &info), 0);
    assert_int_equal(info.st_size, 4096);
}

/* ---- carried to another folder ---- */

static long file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (long)info.st_size : -1;
}

static void change_byte(const char *path, long offset) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    fputc(byte ^ 4, file);
    assert_int_equal(fclose(file), 0);
}

static void documents_are_carried(void **state) {
    (void)state;
    struct folder folder;
    struct stat info;
    char out[200], there[200], limited[220], says[300];
    folder_init(&folder, "carried", DOCUMENTS);
    snprintf(out, sizeof out, "%s", scratch_path("log.loam"));
    snprintf(there, sizeof there, "%s", scratch_path("there"));
    expect(LOAM("export", id_text(&folder, 2), out, "--kv-disk", folder.path), 0, "(log.txt) is in ");
    const long bytes = file_bytes(out);
    assert_true(bytes > 0);
    snprintf(says, sizeof says, "%s: is there already; --force replaces it", out);
    expect(LOAM("export", id_text(&folder, 0), out, "--kv-disk", folder.path), 2, says);
    assert_int_equal(file_bytes(out), bytes);
    expect(LOAM("import", out, "--kv-disk", there), 0,
           "document 1: log.txt, 1000 tokens, a model of the tests\n");
    expect(LOAM("verify", "--kv-disk", there), 0, "document 1: ok\n");
    expect(LOAM("import", out, "--kv-disk", there), 0, "was there already");
    expect(LOAM("import", out, "--kv-disk", folder.path), 0, "document 3: log.txt");
    expect(LOAM("ls", "--kv-disk", there), 0, "1 document,");
    expect(LOAM("export", id_text(&folder, 0), out, "--kv-disk", folder.path, "--force"), 0, "holmes.txt");
    assert_true(file_bytes(out) < bytes);
    /* Numbers and files that are none. */
    expect(LOAM("export", "9", "x.loam", "--kv-disk", folder.path), 4, "there is no document 9");
    expect(LOAM("export", "1", "x.loam"), 2, "--kv-disk DIR");
    expect(LOAM("export", "1"), 2, "too few arguments");
    expect(LOAM("import", out), 2, "needs --kv-disk DIR");
    expect(LOAM("import", scratch_path("none"), "--kv-disk", there), 6, "none");
    expect(LOAM("export", "1", scratch_path("no/such"), "--kv-disk", folder.path), 6, "no/such");
    assert_int_equal(stat("x.loam", &info), -1);
    snprintf(limited, sizeof limited, "%s:300K", scratch_path("limited"));
    expect(LOAM("export", id_text(&folder, 2), out, "--kv-disk", folder.path, "--force"), 0, "");
    expect(LOAM("import", out, "--kv-disk", limited), 5, "of the limit of 0 MiB");
    /* What is damaged is found before a folder is made. */
    char missing[200], catalog[230];
    snprintf(missing, sizeof missing, "%s", scratch_path("not-made"));
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder.path);
    change_byte(out, bytes / 2);
    snprintf(says, sizeof says, "loam: %s: document 1, ", out);
    expect(LOAM("import", out, "--kv-disk", missing), 4, says);
    assert_int_equal(truncate(out, bytes - 1), 0);
    snprintf(says, sizeof says, "%s: truncated: found %ld bytes, expected %ld", out, bytes - 1, bytes);
    expect(LOAM("import", out, "--kv-disk", missing), 4, says);
    expect(LOAM("import", catalog, "--kv-disk", missing), 4, "not an exported document");
    assert_int_equal(stat(missing, &info), -1);
    /* Of a damaged document there is no file. */
    flip_bits(&folder, 1);
    assert_int_equal(unlink(out), 0);
    expect(LOAM("export", id_text(&folder, 1), out, "--kv-disk", folder.path), 4, "damaged at");
    assert_int_equal(stat(out, &info), -1);
    expect(LOAM("ls", "--kv-disk", folder.path), 0, "damaged");
}

/* A process that died within a transaction leaves a journal.  Only a process that may write can play it back. */
static void an_unfinished_commit_is_undone(void **state) {
    (void)state;
    struct folder folder;
    char catalog[256], journal[270];
    struct stat info;
    folder_init(&folder, "killed", DOCUMENTS);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder.path);
    snprintf(journal, sizeof journal, "%s-journal", catalog);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sqlite3 *database;
        int code = sqlite3_open(catalog, &database);
        if (code == SQLITE_OK)
            code = sqlite3_exec(
                database,
                "PRAGMA journal_mode=TRUNCATE; PRAGMA cache_size=1; PRAGMA cache_spill=1; BEGIN; "
                "UPDATE documents SET name=hex(zeroblob(8000)) WHERE id=3; "
                "DELETE FROM commits; DELETE FROM documents",
                NULL, NULL, NULL);
        _exit(code == SQLITE_OK ? 0 : 1);
    }
    int ended;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_int_equal(stat(journal, &info), 0);
    assert_true(info.st_size > 0); /* there is something to undo */
    json_t *root = list(&folder);
    assert_int_equal(json_array_size(root), DOCUMENTS);
    assert_string_equal(word(json_array_get(root, 2), "name"), names[2]);
    json_decref(root);
    expect(LOAM("verify", "--kv-disk", folder.path), 0, "document 3: ok");
}

static void a_lost_catalog_is_named(void **state) {
    (void)state;
    struct folder folder;
    char path[240];
    folder_init(&folder, "catalogless", 1);
    snprintf(path, sizeof path, "%s/catalog.db", folder.path);
    assert_int_equal(truncate(path, 0), 0);
    static const char *const commands[][8] = {
        {"ls"}, {"verify"}, {"run", "-p", "In the beginning", "-n", "1"}};
    for (size_t i = 0; i < 3; i++) {
        const char *arguments[9];
        size_t count = 0;
        for (; commands[i][count] != NULL; count++) arguments[count] = commands[i][count];
        arguments[count] = "--kv-disk", arguments[count + 1] = folder.path, arguments[count + 2] = NULL;
        expect(process_run(&(struct process_request){.arguments = arguments}), 4,
               "put a copy of it back, or remove all of the folder but conversations.db");
    }
}

/* What cannot be read keeps nobody from the others: a fifo in a file's place is damage, a file of another user's an
 * error that is told at the end. */
static void verify_goes_on(void **state) {
    (void)state;
    struct folder folder;
    char path[240];
    folder_init(&folder, "planted", DOCUMENTS);
    snprintf(path, sizeof path, "%s/%s.pages", folder.path, id_text(&folder, 0));
    assert_int_equal(unlink(path) | mkfifo(path, 0600), 0);
    struct process_result result = LOAM("verify", "--kv-disk", folder.path);
    assert_int_equal(result.code, 4);
    assert_non_null(strstr(result.output, "document 1: damaged: "));
    assert_non_null(strstr(result.output, "document 2: ok\ndocument 3: ok\n"));
    process_deinit(&result);
    json_t *root = list(&folder);
    assert_string_equal(word(json_array_get(root, 0), "state"), "damaged");
    json_decref(root);
    if (geteuid() != 0) return; /* only root gives files away */
    snprintf(path, sizeof path, "%s/%s.pages", folder.path, id_text(&folder, 1));
    assert_int_equal(chown(path, 12345, 12345), 0);
    result = LOAM("verify", "--kv-disk", folder.path);
    assert_int_equal(result.code, 6);
    assert_non_null(strstr(result.complaints, "belongs to user 12345"));
    assert_non_null(strstr(result.output, "document 3: ok\n"));
    process_deinit(&result);
}

static void the_folder_and_its_limit_are_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *text, *directory;
        uint64_t limit_bytes;
    } good[] = {{"a", "a", 0},        {"a:8G", "a", UINT64_C(8) << 30}, {"a:1024", "a", 1024},
                {"a:8GB", "a", UINT64_C(8000000000)},
                {"a:b/", "a:b/", 0},  {"a:b:2K", "a:b", 2048},          {"/x/y:", "/x/y", 0},
                {"a:10:", "a:10", 0}, {"a:b/:3M", "a:b/", 3 << 20},     {"a:/b", "a:/b", 0}};
    static const char *const bad[] = {"",      ":8G",    ":",     "a:0",  "a:b",   "a:8Q",
                                      "a:8GX", "a:1.5G", "a:abc", "a:-1", "a: 8G", "a:0x10"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct kv_disk disk;
        struct error error;
        assert_ok(kv_disk_parse(&disk, good[i].text, &error), error);
        assert_string_equal(disk.directory, good[i].directory);
        assert_int_equal(disk.limit_bytes, good[i].limit_bytes);
        kv_disk_deinit(&disk);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_disk disk;
        struct error error;
        assert_int_equal(kv_disk_parse(&disk, bad[i], &error), STATUS_USAGE);
        kv_disk_deinit(&disk);
    }
    char argument[240], folder[240];
    struct stat info;
    snprintf(folder, sizeof folder, "%s", scratch_path("limit:8GX"));
    snprintf(argument, sizeof argument, "%s", folder);
    expect(LOAM("run", "-p", "In the beginning", "-n", "1", "--kv-disk", argument), 2,
           "'8GX' behind the colon, expected a size");
    assert_int_not_equal(stat(folder, &info), 0); /* and no folder of that name is made */
}

/* Files that the catalog does not know are left alone; opening the folder for writing reports them. */
static void lost_files_are_told(void **state) {
    (void)state;
    struct folder folder;
    char path[240];
    folder_init(&folder, "lost", 1);
    snprintf(path, sizeof path, "%s/77.pages", folder.path);
    FILE *file = fopen(path, "w");
    fputs("all that is left of a document", file);
    fclose(file);
    static const char *const commands[][12] = {
        {"verify", "1", "--kv-disk", NULL},
        {"run", "-p", "In the beginning", "-n", "2", "--kv-host", "64M", "--kv-disk", NULL},
    };
    for (size_t i = 0; i < 2; i++) {
        const char *arguments[13];
        size_t count = 0;
        for (; commands[i][count] != NULL; count++) arguments[count] = commands[i][count];
        arguments[count] = folder.path;
        arguments[count + 1] = NULL;
        struct process_result result = process_run(&(struct process_request){.arguments = arguments});
        if (result.code != 0 || strstr(result.complaints, "77.pages: left alone") == NULL)
            fail_msg("%s: exit %d: %s", arguments[0], result.code, result.complaints);
        process_deinit(&result);
        assert_int_equal(access(path, F_OK), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_listed),
        cmocka_unit_test(one_is_shown),
        cmocka_unit_test(damage_is_found_and_flagged),
        cmocka_unit_test(documents_are_removed),
        cmocka_unit_test(what_is_not_committed_is_empty),
        cmocka_unit_test(nothing_is_made),
        cmocka_unit_test(documents_are_carried),
        cmocka_unit_test(an_unfinished_commit_is_undone),
        cmocka_unit_test(a_lost_catalog_is_named),
        cmocka_unit_test(verify_goes_on),
        cmocka_unit_test(the_folder_and_its_limit_are_told_apart),
        cmocka_unit_test(lost_files_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
