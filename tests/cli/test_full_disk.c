/* A real disk that is full: a file system in memory of a few MiB, mounted for this test alone.  A prompt that does not
 * fit is answered, what was saved before is read and removed.  Skipped where mounting is not allowed. */
#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

#define DISK_BYTES "2M"
enum { SHORT_BYTES = 500, GROWN_BYTES = 400, LONG_BYTES = 9000, LITTLE_BYTES = 40960 };

static char model_path[160], disk_path[160], short_path[160], long_path[160], grown_path[160],
    folder_path[200], filler_path[200];

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* Root in a user namespace of its own, where the system lets users make them; false: it does not. */
static bool enter_namespaces(void) {
    const unsigned user = geteuid(), group = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        write_file("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "0 %u 1", user);
        write_file("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "0 %u 1", group);
        write_file("/proc/self/gid_map", map);
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void write_text(const char *path, size_t bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++) fputc("etaoin shrdlu"[(i + bytes) * i % 13], file);
    fclose(file);
}

static void append_text(const char *path, size_t bytes) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++) fputc("shrdlu etaoin"[i * i % 13], file);
    fclose(file);
}

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("model.gguf"));
    snprintf(disk_path, sizeof disk_path, "%s", scratch_path("disk"));
    snprintf(short_path, sizeof short_path, "%s", scratch_path("short.txt"));
    snprintf(long_path, sizeof long_path, "%s", scratch_path("long.txt"));
    snprintf(grown_path, sizeof grown_path, "%s", scratch_path("grown.txt"));
    snprintf(folder_path, sizeof folder_path, "%s/kv", disk_path);
    snprintf(filler_path, sizeof filler_path, "%s/filler", disk_path);
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1, .context = 1 << 17});
    write_text(short_path, SHORT_BYTES);
    write_text(long_path, LONG_BYTES);
    write_text(grown_path, SHORT_BYTES);
    append_text(grown_path, GROWN_BYTES);
    assert_int_equal(mkdir(disk_path, 0700), 0);
    if (!enter_namespaces() || mount("loam-test", disk_path, "tmpfs", 0, "mode=0700,size=" DISK_BYTES) != 0) {
        printf("no file system may be mounted here: %s\n", strerror(errno));
        exit(77);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return umount2(disk_path, MNT_DETACH);
}

static uint64_t free_bytes(void) {
    struct statvfs info;
    assert_int_equal(statvfs(disk_path, &info), 0);
    return (uint64_t)info.f_bavail * info.f_bsize;
}

/* By somebody else's file, but for so many bytes. */
static void fill_disk(uint64_t left) {
    static const char zeros[4096];
    int fd = open(filler_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (free_bytes() > left) assert_true(write(fd, zeros, sizeof zeros) > 0);
    close(fd);
    assert_int_equal(free_bytes(), left);
}

static void expect(struct process_result result, int code, const char *said) {
    if (result.code != code || strstr(result.complaints, said) == NULL)
        fail_msg("exit %d, expected %d and '%s': %s", result.code, code, said, result.complaints);
    process_deinit(&result);
}

#define RUN(file, ...)                                                                                   \
    LOAM("run", "-m", model_path, "-f", file, "-n", "3", "--temp", "0", "--kv-host", "64M", "--kv-disk", \
         folder_path, ##__VA_ARGS__)

static void a_full_disk_hinders_nobody(void **state) {
    (void)state;
    expect(RUN(short_path), 0, "");
    const uint64_t before = free_bytes();
    expect(RUN(long_path), 6, "saving the prompt stopped");
    assert_true(free_bytes() >= before);
    fill_disk(
        LITTLE_BYTES); /* the saved prompt's next chunks lie in its last segment: the file does not grow */
    expect(RUN(grown_path), 6, "saving the prompt stopped");
    assert_true(free_bytes() >= LITTLE_BYTES);
    expect(RUN(short_path), 0, "more were saved");
    fill_disk(0);
    expect(RUN(short_path), 0, "more were saved");
    expect(RUN(short_path, "-p", "goes on"), 0, "nothing is saved, only read");
    expect(RUN(long_path), 0, "not saved: ");
    expect(LOAM("verify", "--kv-disk", folder_path), 0, "");
    expect(LOAM("rm", "1", "--kv-disk", folder_path), 0, "");
    assert_true(free_bytes() > 0);
    assert_int_equal(unlink(filler_path), 0);
    expect(RUN(short_path), 0, "");
    expect(RUN(short_path), 0, "more were saved");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_full_disk_hinders_nobody)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
