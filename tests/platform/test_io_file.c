/* Folders and files of ours: what is refused and in what words, whole transfers under faults, flushes that
 * fail, locks. */
#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/fault_plan.h"
#include "platform/io_file.h"
#include "platform/scratch.h"

static struct scratch scratch;

static int set_up(void **state) {
    (void)state;
    scratch_create(&scratch, SCRATCH_DISK);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_destroy(&scratch);
    return 0;
}

static void assert_refused(enum status status, const struct error *error, const char *words) {
    assert_int_equal(status, STATUS_IO);
    if (strstr(error->message, words) == NULL) fail_msg("\"%s\" does not say \"%s\"", error->message, words);
}

static void test_folder_refused(void **state) {
    (void)state;
    struct io_folder folder;
    struct error error;
    const char *path = scratch_name(&scratch, "folder");
    assert_refused(io_folder_open(&folder, path, IO_FOLDER_READ, NULL, &error), &error, "No such file");
    assert_ok(io_folder_open(&folder, path, IO_FOLDER_CREATE, NULL, &error), error);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    io_folder_close(&folder);

    const char *link = scratch_name(&scratch, "link");
    assert_int_equal(symlink("folder", link), 0);
    assert_refused(io_folder_open(&folder, link, IO_FOLDER_CREATE, NULL, &error), &error, "a symbolic link");
    assert_int_equal(chmod(path, 0777), 0);
    assert_refused(io_folder_open(&folder, path, IO_FOLDER_READ, NULL, &error), &error, "writable by others");
    assert_int_equal(chmod(path, 0700), 0);
    if (geteuid() == 0) { /* only root can give a folder away */
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_refused(io_folder_open(&folder, path, IO_FOLDER_CREATE, NULL, &error), &error,
                       "belongs to user 12345");
        assert_int_equal(error.os_error, EPERM);
        assert_ok(io_folder_open(&folder, path, IO_FOLDER_READ, NULL, &error), error);
        assert_int_equal(folder.owner, 12345);
        io_folder_close(&folder);
    }
    const char *deep = scratch_name(&scratch, "no/such");
    assert_refused(io_folder_open(&folder, deep, IO_FOLDER_CREATE, NULL, &error), &error, "No such file");
}

static void test_file_refused(void **state) {
    (void)state;
    struct io_folder folder;
    struct io_file file;
    struct error error;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_refused(io_file_open(&file, &folder, "none", IO_FILE_READ, true, &error), &error, "No such file");
    assert_int_equal(symlink("target", scratch_name(&scratch, "link")), 0);
    assert_refused(io_file_open(&file, &folder, "link", IO_FILE_UPDATE, true, &error), &error,
                   "symbolic link");
    /* A dangling link must not be made into a file somewhere else. */
    assert_refused(io_file_open(&file, &folder, "link", IO_FILE_CREATE, true, &error), &error, "File exists");
    assert_int_equal(access(scratch_name(&scratch, "target"), F_OK), -1);
    assert_int_equal(mkfifo(scratch_name(&scratch, "fifo"), 0600), 0);
    assert_refused(io_file_open(&file, &folder, "fifo", IO_FILE_READ, true, &error), &error, "not a regular");
    assert_int_equal(mkdir(scratch_name(&scratch, "folder"), 0700), 0);
    assert_refused(io_file_open(&file, &folder, "folder", IO_FILE_READ, false, &error), &error,
                   "not a regular");
    assert_ok(io_file_open(&file, &folder, "file", IO_FILE_CREATE, true, &error), error);
    struct stat info;
    assert_int_equal(fstat(file.fd, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    io_file_close(&file);
    assert_refused(io_file_open(&file, &folder, "file", IO_FILE_CREATE, true, &error), &error, "File exists");
    if (geteuid() == 0) {
        assert_int_equal(chown(scratch_name(&scratch, "file"), 12345, 12345), 0);
        assert_refused(io_file_open(&file, &folder, "file", IO_FILE_READ, false, &error), &error,
                       "belongs to user 12345");
    }
    assert_ok(io_folder_remove(&folder, "file", &error), error);
    assert_ok(io_folder_remove(&folder, "file", &error), error);
    assert_int_equal(access(scratch_name(&scratch, "file"), F_OK), -1);
    io_folder_close(&folder);
}

/* A write and a read back under one fault.  What says OK must have moved every byte. */
static void transfers_under(enum fault_kind kind, uint64_t first, bool for_ever, bool *reached) {
    struct fault_plan plan;
    fault_plan_init(&plan, kind, first, for_ever,
                    1u << IO_CALL_READ | 1u << IO_CALL_WRITE | 1u << IO_CALL_SYNC);
    struct io_folder folder;
    struct io_file file;
    struct error error;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, &plan.faults, &error), error);
    assert_ok(io_file_open(&file, &folder, "data", IO_FILE_CREATE, false, &error), error);
    uint8_t written[3000], seen[3000] = {0};
    for (size_t i = 0; i < sizeof written; i++) written[i] = (uint8_t)(i * 7 + first);
    enum status status = io_file_write(&file, 100, written, sizeof written, &error);
    if (status == STATUS_OK) status = io_file_sync(&file, &error);
    if (status == STATUS_OK) {
        status = io_file_read(&file, 100, seen, sizeof seen, &error);
        if (status == STATUS_OK) assert_memory_equal(written, seen, sizeof seen);
    }
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_IO);
        assert_non_null(strstr(error.message, "/data: "));
    }
    /* EINTR, EAGAIN and short transfers that end are no errors; the others are. */
    bool passes = kind == FAULT_NONE || kind == FAULT_SHORT_ONE || kind == FAULT_SHORT_HALF ||
                  ((kind == FAULT_EINTR || kind == FAULT_EAGAIN) && !for_ever) || plan.hits == 0;
    assert_int_equal(status == STATUS_OK, passes);
    *reached = plan.count > first;
    io_file_close(&file);
    assert_int_equal(unlink(scratch_name(&scratch, "data")), 0);
    io_folder_close(&folder);
}

static void test_faults(void **state) {
    (void)state;
    for (enum fault_kind kind = FAULT_NONE; kind < FAULT_KILL; kind++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            uint64_t first = 0;
            for (bool reached = true; reached; first++) transfers_under(kind, first, for_ever != 0, &reached);
            assert_true(first >= 3);
        }
}

static void test_flush_failure_is_final(void **state) {
    (void)state;
    struct fault_plan plan;
    fault_plan_init(&plan, FAULT_EIO, 0, false, 1u << IO_CALL_SYNC);
    struct io_folder folder;
    struct io_file file;
    struct error error;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, &plan.faults, &error), error);
    assert_ok(io_file_open(&file, &folder, "data", IO_FILE_CREATE, false, &error), error);
    assert_ok(io_file_write(&file, 0, "text", 4, &error), error);
    assert_refused(io_file_sync(&file, &error), &error, "/data: flushing it to the disk: Input/output error");
    assert_refused(io_file_sync(&file, &error), &error, "flushing"); /* the system was not asked again */
    assert_int_equal(plan.count, 1);
    assert_refused(io_file_write(&file, 0, "text", 4, &error), &error, "/data: writing 4 bytes at 0");
    io_file_close(&file);
    io_folder_close(&folder);
}

static void test_short_file(void **state) {
    (void)state;
    struct io_folder folder;
    struct io_file file;
    struct error error;
    char text[8];
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_ok(io_file_open(&file, &folder, "data", IO_FILE_CREATE, false, &error), error);
    assert_int_equal(fcntl(file.fd, F_GETFL) & O_NONBLOCK, 0); /* its transfers may wait */
    assert_ok(io_file_write(&file, 0, "12345", 5, &error), error);
    assert_refused(io_file_read(&file, 2, text, 8, &error), &error,
                   "reading 8 bytes at 2: the file ends before");
    assert_ok(io_file_truncate(&file, 10, &error), error);
    uint64_t size;
    assert_ok(io_file_size(&file, &size, &error), error);
    assert_int_equal(size, 10);
    assert_ok(io_file_read(&file, 2, text, 8, &error), error);
    assert_memory_equal(text, "345\0\0\0\0\0", 8);
    io_file_close(&file);
    io_folder_close(&folder);
}

static void test_locks(void **state) {
    (void)state;
    struct io_folder folder;
    struct io_file a, b;
    struct error error;
    assert_ok(io_folder_open(&folder, scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_ok(io_file_open(&a, &folder, "data", IO_FILE_CREATE, false, &error), error);
    assert_ok(io_file_open(&b, &folder, "data", IO_FILE_UPDATE, false, &error), error);
    assert_ok(io_file_try_lock(&a, 0, IO_LOCK_EXCLUSIVE, &error), error);
    assert_int_equal(io_file_try_lock(&b, 0, IO_LOCK_EXCLUSIVE, &error), STATUS_FULL);
    assert_ok(io_file_try_lock(&b, 1, IO_LOCK_SHARED, &error), error);
    assert_ok(io_file_try_lock(&a, 1, IO_LOCK_SHARED, &error), error);
    assert_int_equal(io_file_try_lock(&a, 1, IO_LOCK_EXCLUSIVE, &error), STATUS_FULL);
    io_file_close(&b); /* a closed file holds nothing */
    assert_ok(io_file_try_lock(&a, 1, IO_LOCK_EXCLUSIVE, &error), error);
    assert_ok(io_file_open(&b, &folder, "data", IO_FILE_UPDATE, false, &error), error);
    assert_int_equal(io_file_try_lock(&b, 1, IO_LOCK_SHARED, &error), STATUS_FULL);
    io_file_close(&a);
    assert_ok(io_file_try_lock(&b, 0, IO_LOCK_EXCLUSIVE, &error), error);
    io_file_close(&b);
    io_folder_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_faults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flush_failure_is_final, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_short_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_locks, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
