/* --kv-disk over a folder that cannot be written, on the real binary.  A saved prompt is used: the same answer, and
 * one line that says why nothing is saved.  What RAM cannot hold, or a prompt that the folder does not have, is
 * rejected before any work.  Damage costs time only, and no byte of the folder changes. */
#include "testing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

enum { TEXT_BYTES = 1500, MORE_BYTES = 450, LAYERS = 16, ARGUMENTS = 48, SOMEBODY = 65534, ELSE = 12345 };
/* KV in f16 of a token, which has much of it: a KV head for each head. */
enum { TOKEN_BYTES = LAYERS * TINY_HEADS * 2 * TINY_HEAD_DIMENSION * 2 };

static char model_path[160], other_path[160], text_path[160], asked_path[160], more_path[160];

/* ---- running ---- */

/* `loam run` with 8 tokens of an answer, greedily; user 0: as the test. */
static struct process_result run_as(unsigned user, const char *model, const char *file,
                                    const char *const *more) {
    const char *arguments[ARGUMENTS] = {"run", "-m", model, "-f",  file,     "-n", "8",
                                        "-t",  "1",  "-ub", "256", "--temp", "0",  "--ignore-eos"};
    size_t count = 14;
    for (size_t i = 0; more[i] != NULL; i++) {
        assert_true(count + 1 < ARGUMENTS);
        arguments[count++] = more[i];
    }
    return process_run(&(struct process_request){.arguments = arguments, .user = user});
}

#define RUN_AS(user, model, file, ...) run_as(user, model, file, (const char *const[]){__VA_ARGS__, NULL})
#define RUN(file, ...)                 RUN_AS(0, model_path, file, __VA_ARGS__)

static struct process_result plain_of(const char *file) {
    struct process_result plain = RUN(file, "-c", "4K");
    if (plain.code != 0) fail_msg("%s", plain.complaints);
    return plain;
}

static size_t lines_with(const char *text, const char *word) {
    size_t count = 0;
    for (; (text = strstr(text, word)) != NULL; text++) count++;
    return count;
}

/* The same answer; what the document had is not computed; one line says why nothing is saved. */
static void expect_used(struct process_result found, const struct process_result *plain, const char *why) {
    if (found.code != 0 || strcmp(found.output, plain->output) != 0 ||
        lines_with(found.complaints, "nothing is saved, only read: ") != 1 ||
        strstr(found.complaints, why) == NULL || strstr(found.complaints, "more were saved") == NULL ||
        strstr(found.complaints, "anew") != NULL)
        fail_msg("exit code %d, no '%s'?\n%s", found.code, why, found.complaints);
    process_deinit(&found);
}

static void expect_refused(struct process_result found, int code, const char *why, const char *more) {
    if (found.code != code || found.output_bytes != 0 || strstr(found.complaints, why) == NULL ||
        strstr(found.complaints, more) == NULL || lines_with(found.complaints, "\n") != 1)
        fail_msg("exit code %d, expected %d; no '%s', '%s' in one line?\n%s", found.code, code, why, more,
                 found.complaints);
    process_deinit(&found);
}

/* ---- folders ---- */

static void write_text(const char *path, size_t bytes, const char *ending, size_t ending_bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    uint32_t value = 17;
    for (size_t i = 0; i < bytes + ending_bytes; i++) {
        value = value * 1664525 + 1013904223;
        if (i == bytes) fputs(ending, file);
        fputc(value >> 28 == 0 ? ' ' : 'a' + (int)(value >> 16) % 26, file);
    }
    fputs(ending_bytes == 0 ? ending : "", file);
    assert_int_equal(fclose(file), 0);
}

/* A folder in which the text is saved. */
static const char *saved_folder(const char *name, const char *const *more) {
    static char paths[4][160];
    static size_t next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s", scratch_path(name));
    const char *arguments[ARGUMENTS] = {"--kv-disk", path};
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) arguments[2 + i] = more[i];
    struct process_result saved = run_as(0, model_path, text_path, arguments);
    if (saved.code != 0) fail_msg("%s", saved.complaints);
    process_deinit(&saved);
    return path;
}

static void each_file(const char *folder, void (*see)(const char *path, void *context), void *context) {
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[500];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        see(path, context);
    }
    closedir(entries);
}

static void add_bytes(const char *path, void *context) {
    uint64_t *sum = context;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (const char *c = strrchr(path, '/'); *c != '\0'; c++) *sum = *sum * 31 + (unsigned char)*c;
    for (int c; (c = fgetc(file)) != EOF;) *sum = *sum * 1099511628211U + (unsigned)c;
    fclose(file);
}

/* Of names and bytes; the order of names in a folder stays while nothing is made in it. */
static uint64_t sum_of(const char *folder) {
    uint64_t sum = 1;
    each_file(folder, add_bytes, &sum);
    return sum;
}

struct owner {
    unsigned user, mode;
};

static void own_file(const char *path, void *context) {
    const struct owner *owner = context;
    assert_int_equal(chmod(path, owner->mode), 0);
    if (geteuid() == 0) assert_int_equal(chown(path, owner->user, owner->user), 0);
}

/* Folder and files of a user, where the test is root. */
static void own(const char *folder, unsigned user, unsigned folder_mode, unsigned file_mode) {
    each_file(folder, own_file, &(struct owner){user, file_mode});
    own_file(folder, &(struct owner){user, folder_mode});
}

static char mounted[160];

/* The folder on a file system that is read-only; false: this may not be done here. */
static bool mount_read_only(const char *folder) {
    if (mount(folder, folder, NULL, MS_BIND, NULL) != 0) return false;
    snprintf(mounted, sizeof mounted, "%s", folder);
    return mount(NULL, folder, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0;
}

static int unmount(void **state) {
    (void)state;
    int code = mounted[0] != '\0' ? umount2(mounted, MNT_DETACH) : 0;
    mounted[0] = '\0';
    return code;
}

/* ---- what is saved is used ---- */

/* An eighth of the KV in RAM, and everything: documents are read as far as they are wanted. */
static void uses_what_is_saved(unsigned user, const char *folder, const char *why) {
    char host_min[32];
    snprintf(host_min, sizeof host_min, "%d", TEXT_BYTES * TOKEN_BYTES / 8 + (5 << 19));
    static struct process_result plains[3];
    const char *const files[] = {text_path, asked_path, more_path};
    uint64_t before = sum_of(folder);
    for (size_t i = 0; i < 3; i++) {
        if (plains[i].output == NULL) plains[i] = plain_of(files[i]);
        const struct process_result plain = plains[i];
        expect_used(RUN_AS(user, model_path, files[i], "--kv-disk", folder), &plain, why);
        if (i < 2)
            expect_used(RUN_AS(user, model_path, files[i], "--kv-disk", folder, "--kv-host", host_min),
                        &plain, why);
    }
    assert_true(sum_of(folder) == before);
}

static void on_a_read_only_file_system(void **state) {
    (void)state;
    const char *folder = saved_folder("mounted", NULL);
    if (!mount_read_only(folder)) {
        printf("no mount of a read-only file system here (%s): skipped\n", strerror(errno));
        skip();
    }
    uses_what_is_saved(0, folder, "mounted: Read-only file system");
    /* ... and listed, and verified. */
    struct process_result result = LOAM("verify", "--kv-disk", folder);
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    /* Several answers are told once. */
    struct process_result plain = RUN(text_path, "-c", "4K", "-np", "2", "-s", "1");
    expect_used(RUN(text_path, "--kv-disk", folder, "-np", "2", "-s", "1"), &plain, "Read-only file system");
    process_deinit(&plain);
}

/* In a conversation the first turn is what was saved; the next ones are in RAM. */
static void in_a_conversation(void **state) {
    (void)state;
    static const char *const turns[] = {
        "a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4 5 6 7 8 9\n", "and then\n"};
    char talking[160], both[200];
    snprintf(talking, sizeof talking, "%s", scratch_path("talking.gguf"));
    snprintf(both, sizeof both, "%s%s", turns[0], turns[1]);
    tiny_model_write(
        talking, &(struct tiny_model){
                     .seed = 8, .context = 4096, .never_ends = true, .chat_template = TINY_CHAT_TEMPLATE});
#define TALK(words, ...)                                                                                    \
    process_run(&(struct process_request){.arguments = (const char *const[]){"chat", "-m", talking,         \
                                                                             "--temp", "0", "-n", "12",     \
                                                                             "-t", "1", __VA_ARGS__, NULL}, \
                                          .input = words})
    char folder[160];
    snprintf(folder, sizeof folder, "%s", scratch_path("talk"));
    struct process_result first = TALK(turns[0], "--kv-disk", folder), plain = TALK(both, "-c", "4K");
    assert_int_equal(first.code, 0);
    if (!mount_read_only(folder)) {
        process_deinit(&first);
        process_deinit(&plain);
        printf("no mount of a read-only file system here (%s): skipped\n", strerror(errno));
        skip();
    }
    struct process_result found = TALK(both, "--kv-disk", folder);
    if (found.code != 0 || strcmp(found.output, plain.output) != 0 ||
        lines_with(found.complaints, "nothing is saved, only read: ") != 1)
        fail_msg("exit code %d\n%s\n%s", found.code, found.output, found.complaints);
    process_deinit(&first);
    process_deinit(&plain);
    process_deinit(&found);
#undef TALK
}

/* Permissions do not hold root up, so that it becomes somebody. */
static void without_permission(void **state) {
    (void)state;
    char catalog[200], why[300];
    const char *folder = saved_folder("forbidden", NULL);
    own(folder, SOMEBODY, 0500, 0600);
    uses_what_is_saved(SOMEBODY, folder, "forbidden: Permission denied");
    own(folder, SOMEBODY, 0700, 0600);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    assert_int_equal(chmod(catalog, 0400), 0);
    uses_what_is_saved(SOMEBODY, folder, "catalog.db: Permission denied");
    own(folder, SOMEBODY, 0000, 0000);
    struct process_result found = RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder);
    snprintf(why, sizeof why, "loam: %s: Permission denied", folder);
    expect_refused(found, 6, why, "");
    own(folder, geteuid(), 0700, 0600);
}

/* Somebody else's, who alone may write in it. */
static void of_another_user(void **state) {
    (void)state;
    if (geteuid() != 0) {
        printf("nobody but root can give files away: skipped\n");
        skip();
    }
    char why[300];
    const char *folder = saved_folder("foreign", NULL);
    own(folder, ELSE, 0755, 0644);
    uses_what_is_saved(SOMEBODY, folder, "foreign: the folder belongs to user 12345, not to user 65534");
    uses_what_is_saved(0, folder, "foreign: the folder belongs to user 12345, not to user 0");
    /* A file in it that is a third one's; files that may not be read; others may write. */
    snprintf(why, sizeof why, "%s/catalog.db", folder);
    assert_int_equal(chown(why, SOMEBODY, SOMEBODY), 0);
    expect_refused(RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder), 6,
                   "the folder belongs to user 12345", "the file belongs to user 65534, not to user 12345");
    own(folder, ELSE, 0755, 0600);
    expect_refused(RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder), 6,
                   "the folder belongs to user 12345", "nor can it be read: ");
    own(folder, ELSE, 0775, 0644);
    expect_refused(RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder), 6, "writable by others", "");
    own(folder, 0, 0700, 0600);
}

/* ---- what is not there ---- */

/* A folder that cannot be written, for whoever runs; not root, or root that becomes somebody. */
static const char *closed_folder(const char *name, const char *const *more) {
    const char *folder = saved_folder(name, more);
    own(folder, SOMEBODY, 0500, 0600);
    return folder;
}

static void nothing_to_use(void **state) {
    (void)state;
    static const char nothing[] = "and of what is saved there nothing begins like the prompt";
    const char *folder = closed_folder("nothing", NULL);
    expect_refused(RUN_AS(SOMEBODY, other_path, text_path, "--kv-disk", folder), 6, "Permission denied",
                   nothing);
    expect_refused(RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder, "-ctk", "q8_0"), 6,
                   "Permission denied", nothing);
    char empty[160];
    snprintf(empty, sizeof empty, "%s", scratch_path("empty"));
    assert_int_equal(mkdir(empty, 0700), 0);
    own(empty, SOMEBODY, 0500, 0600);
    expect_refused(RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", empty), 6, "Permission denied",
                   "nor can it be read: ");
    own(folder, geteuid(), 0700, 0600);
    own(empty, geteuid(), 0700, 0600);
}

/* For any budget the run is rejected before any work, or gives the whole answer; from the least sufficient budget on
 * it always answers. */
static void what_ram_holds(const char *name, const char *const *settings) {
    const char *folder = closed_folder(name, settings);
    const char *arguments[ARGUMENTS] = {"--kv-disk", folder, "--kv-host"}; /* the fourth is the budget */
    size_t count = 4;
    for (size_t i = 0; settings[i] != NULL; i++) arguments[count++] = settings[i];
    arguments[count] = "-q"; /* of layers that stay in RAM a line is said, too */
    struct process_result plain = {0};
    uint64_t before = sum_of(folder);
    size_t refused = 0, answers = 0;
    for (uint64_t budget = 2560 << 10; budget < 10 << 20; budget += 640 << 10) {
        char host[32];
        snprintf(host, sizeof host, "%llu", (unsigned long long)budget);
        arguments[3] = host;
        struct process_result found = run_as(SOMEBODY, model_path, more_path, arguments);
        bool small = found.code == 5 && strstr(found.complaints, "this context needs at least") != NULL;
        if (found.code == 5 && !small) {
            expect_refused(found, 5, "Permission denied",
                           "tokens that the disk does not have --kv-host lacks at least ");
            refused++;
            if (answers > 0) fail_msg("%s: refused at %s, not at less", name, host);
            continue;
        }
        if (!small && found.code != 0) fail_msg("%s: --kv-host %s: %s", name, host, found.complaints);
        if (!small && plain.output != NULL && strcmp(plain.output, found.output) != 0)
            fail_msg("%s: --kv-host %s: another answer", name, host);
        answers += !small;
        if (small || plain.output != NULL)
            process_deinit(&found);
        else
            plain = found;
    }
    print_message("%s: %zu budgets refused, %zu answers\n", name, refused, answers);
    assert_true(refused > 1 && answers > 2);
    assert_true(sum_of(folder) == before);
    process_deinit(&plain);
    own(folder, geteuid(), 0700, 0600);
}

static void ram_holds_it_or_it_is_refused(void **state) {
    (void)state;
    what_ram_holds("full", (const char *const[]){"--preset", "full", NULL});
    what_ram_holds("meanstd", (const char *const[]){"--preset", "meanstd", "--keep", "256", NULL});
    what_ram_holds("q4",
                   (const char *const[]){"--preset", "meanstd", "--keep", "256", "--set", "codec=q4", NULL});
    what_ram_holds("leoam", (const char *const[]){"--preset", "leoam", "--keep", "256", NULL});
}

/* ---- damage ---- */

static void flip_bytes(const char *path, off_t first, off_t step) {
    struct stat info;
    unsigned char byte;
    int file = open(path, O_RDWR);
    assert_true(file >= 0 && fstat(file, &info) == 0);
    for (off_t at = first; at < info.st_size; at += step) {
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
}

/* It cannot be flagged, and is not used all the same, before the answer or within it; without RAM it is refused. */
static void damage_costs_time(void **state) {
    (void)state;
    enum { PLACES = 10 };
    static const char *const settings[] = {"--preset", "meanstd",    "--set", "dense=0", "--keep",
                                           "256",      "--suffix", "auto",  NULL};
    char pages[200], budget[32];
    const char *folder = closed_folder("damaged", settings);
    snprintf(pages, sizeof pages, "%s/1.pages", folder);
    snprintf(budget, sizeof budget, "%d", 5 << 20);
#define ASK(...)                                                                                      \
    RUN_AS(SOMEBODY, model_path, text_path, "--preset", "meanstd", "--set", "dense=0", "--keep", "256", \
           "--suffix", "auto", __VA_ARGS__)
    struct process_result fresh = ASK("-c", "4K"), again = ASK("--kv-disk", folder);
    assert_int_equal(fresh.code | again.code, 0);
    size_t early = 0, late = 0;
    for (off_t place = 0; place < PLACES; place++) {
        struct stat info;
        assert_int_equal(stat(pages, &info), 0);
        off_t at = info.st_size / PLACES * place + 77;
        flip_bytes(pages, at, info.st_size);
        struct process_result found = ASK("--kv-disk", folder);
        bool behind = strstr(found.complaints, "computed anew, and the answer so far") != NULL;
        bool before = !behind && strstr(found.complaints, "computed anew") != NULL;
        if (found.code != 0 || strcmp(found.output, before ? fresh.output : again.output) != 0)
            fail_msg("place %d: exit code %d: %s", (int)place, found.code, found.complaints);
        if (behind || before) assert_int_equal(lines_with(found.complaints, "not saved: "), 1);
        if (behind || before) assert_int_equal(lines_with(found.complaints, "1.pages: damaged at "), 1);
        early += before;
        late += behind;
        process_deinit(&found);
        flip_bytes(pages, at, info.st_size);
    }
    print_message("of %d places %zu found before the answer, %zu within it\n", PLACES, early, late);
    assert_true(early > 0 && late > 0);
    flip_bytes(pages, 77, 4096);
    struct process_result found = ASK("--kv-disk", folder, "--kv-host", budget);
    if (found.code != 5 || found.output_bytes != 0 || strstr(found.complaints, "--kv-host lacks") == NULL)
        fail_msg("exit code %d: %s", found.code, found.complaints);
    process_deinit(&found);
    process_deinit(&fresh);
    process_deinit(&again);
    own(folder, geteuid(), 0700, 0600);
#undef ASK
}

/* A damaged one that has more is left aside for a whole one that has less. */
static void another_document_serves(void **state) {
    (void)state;
    char half[160], pages[200], folder[160], reused[40];
    snprintf(reused, sizeof reused, "; %d more were saved", TEXT_BYTES / 2 + 2);
    snprintf(half, sizeof half, "%s", scratch_path("half"));
    snprintf(folder, sizeof folder, "%s", saved_folder("two", NULL));
    snprintf(pages, sizeof pages, "%s/1.pages", folder);
    write_text(half, TEXT_BYTES / 2, " it ends in another way ", TEXT_BYTES / 2);
    struct process_result other = RUN(half, "--kv-disk", folder), plain = plain_of(text_path);
    assert_int_equal(other.code, 0);
    flip_bytes(pages, 77, 4096);
    own(folder, SOMEBODY, 0500, 0600);
    struct process_result found = RUN_AS(SOMEBODY, model_path, text_path, "--kv-disk", folder);
    if (found.code != 0 || strcmp(found.output, plain.output) != 0 ||
        lines_with(found.complaints, "1.pages: damaged at ") != 1 ||
        strstr(found.complaints, "; computed anew; nothing is saved, only read: ") == NULL ||
        strstr(found.complaints, reused) == NULL)
        fail_msg("exit code %d: %s", found.code, found.complaints);
    process_deinit(&other);
    process_deinit(&plain);
    process_deinit(&found);
    own(folder, geteuid(), 0700, 0600);
}

int main(void) {
    snprintf(model_path, sizeof model_path, "%s", scratch_path("model.gguf"));
    snprintf(other_path, sizeof other_path, "%s", scratch_path("other.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text"));
    snprintf(asked_path, sizeof asked_path, "%s", scratch_path("asked"));
    snprintf(more_path, sizeof more_path, "%s", scratch_path("more"));
    for (uint64_t seed = 6; seed < 8; seed++)
        tiny_model_write(seed == 7 ? model_path : other_path, &(struct tiny_model){.seed = seed,
                                                                                   .context = 4096,
                                                                                   .layers = LAYERS,
                                                                                   .kv_heads = TINY_HEADS,
                                                                                   .never_ends = true});
    write_text(text_path, TEXT_BYTES, "", 0);
    write_text(asked_path, TEXT_BYTES, " who was it and when", 0);
    write_text(more_path, TEXT_BYTES, " and what then ", MORE_BYTES);
    char scratch[160];
    snprintf(scratch, sizeof scratch, "%s", text_path);
    *strrchr(scratch, '/') = '\0';
    if (chmod(scratch, 0755) != 0) return 1; /* somebody else reads models and texts in it */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(on_a_read_only_file_system, unmount),
        cmocka_unit_test_teardown(in_a_conversation, unmount),
        cmocka_unit_test(without_permission),
        cmocka_unit_test(of_another_user),
        cmocka_unit_test(nothing_to_use),
        cmocka_unit_test(ram_holds_it_or_it_is_refused),
        cmocka_unit_test(damage_costs_time),
        cmocka_unit_test(another_document_serves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
