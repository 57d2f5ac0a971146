/* Areas of memory: zeros, aligned, of any size, and given back.  What a system has, and its control groups leave. */
#include "testing.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "platform/memory.h"
#include "scratch.h"

static void areas_are_zeros_and_aligned(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, 9 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *area = memory_area_create(sizes[i]);
        assert_non_null(area);
        assert_int_equal((uintptr_t)area % (sizes[i] >= MEMORY_AREA_BYTES_MIN ? 2 << 20 : 4096), 0);
        for (size_t j = 0; j < sizes[i]; j++)
            if (area[j] != 0) fail_msg("byte %zu of %zu is %d", j, sizes[i], area[j]);
        memset(area, 0xa5, sizes[i]);
        memory_area_destroy(area, sizes[i]);
    }
    memory_area_destroy(NULL, 1 << 20);
}

/* Mapped bytes of this process. */
static size_t mapped_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "re");
    size_t pages = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

/* Slack of the alignment goes back at once, and the rest with the area. */
static void nothing_stays_mapped(void **state) {
    (void)state;
    const size_t size = (16 << 20) + 4096, before = mapped_bytes();
    void *areas[16];
    for (size_t i = 0; i < 16; i++) assert_non_null(areas[i] = memory_area_create(size));
    assert_in_range(mapped_bytes() - before, 16 * size, 16 * (size + (2 << 20)));
    for (size_t i = 0; i < 16; i++) memory_area_destroy(areas[i], size);
    assert_in_range(mapped_bytes(), 0, before + (1 << 20));
}

static void what_is_too_much_is_refused(void **state) {
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - (2 << 20), SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        errno = 0;
        assert_null(memory_area_create(sizes[i]));
        assert_int_equal(errno, ENOMEM);
    }
}

/* With the folders above it. */
static void write_file(const struct scratch *scratch, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", scratch->path, name);
    for (char *slash = strchr(path + strlen(scratch->path) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700); /* it may be there */
        *slash = '/';
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void expect_sizes(const struct scratch *scratch, uint64_t total, uint64_t available) {
    const struct memory_sizes sizes = memory_sizes_of(scratch->path);
    assert_int_equal(sizes.total, total);
    assert_int_equal(sizes.available, available);
}

/* The least of the system's and of each group's from the process's own up to the mount; pages of files are not used. */
static void control_groups_bound_it(void **state) {
    (void)state;
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    expect_sizes(&scratch, UINT64_MAX, UINT64_MAX); /* no files at all */
    write_file(&scratch, "/proc/meminfo", "MemTotal: 64000 kB\nMemFree: 1 kB\nMemAvailable:   60000 kB\n");
    expect_sizes(&scratch, 64000 << 10, 60000 << 10);

    write_file(&scratch, "/proc/self/cgroup", "0::/a/b\n");
    expect_sizes(&scratch, 64000 << 10,
                 60000 << 10); /* a group of another namespace, whose files are not there */
    write_file(&scratch, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    write_file(&scratch, "/sys/fs/cgroup/a/b/memory.high", "max\n");
    write_file(&scratch, "/sys/fs/cgroup/a/b/memory.current", "5000000\n");
    expect_sizes(&scratch, 64000 << 10, 60000 << 10);
    write_file(&scratch, "/sys/fs/cgroup/a/memory.max", "30000000\n");
    write_file(&scratch, "/sys/fs/cgroup/a/memory.current", "9000000\n");
    expect_sizes(&scratch, 30000000, 21000000);
    write_file(&scratch, "/sys/fs/cgroup/a/memory.stat",
               "anon 7\nactive_file 1000000\ninactive_file 3000000\n");
    expect_sizes(&scratch, 30000000, 25000000);
    write_file(&scratch, "/sys/fs/cgroup/a/b/memory.high", "6000000\n");
    expect_sizes(&scratch, 6000000, 1000000);
    write_file(&scratch, "/sys/fs/cgroup/memory.max",
               "4000000\n"); /* a container sees its group as the mount */
    write_file(&scratch, "/sys/fs/cgroup/memory.current", "4000001\n");
    expect_sizes(&scratch, 4000000, 0);

    /* Version 1, where no limit is a large number. */
    write_file(&scratch, "/proc/self/cgroup", "5:devices:/x\n4:memory:/c\n0::/\n");
    write_file(&scratch, "/sys/fs/cgroup/memory.max", "max\n");
    write_file(&scratch, "/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(&scratch, "/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "800\n");
    expect_sizes(&scratch, 64000 << 10, 60000 << 10);
    write_file(&scratch, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n");
    write_file(&scratch, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n");
    write_file(&scratch, "/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
    expect_sizes(&scratch, 7000, 7000);
    scratch_destroy(&scratch);
    assert_true(memory_available_bytes() > 0 && memory_available_bytes() <= memory_total_bytes());
}

static void the_largest_cache_is_found(void **state) {
    (void)state;
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    assert_int_equal(memory_cache_bytes(scratch.path), 0);
    write_file(&scratch, "/sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n");
    write_file(&scratch, "/sys/devices/system/cpu/cpu0/cache/index2/size", "32768K\n");
    write_file(&scratch, "/sys/devices/system/cpu/cpu0/cache/index3/size", "512K\n");
    assert_int_equal(memory_cache_bytes(scratch.path), 32 << 20);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(areas_are_zeros_and_aligned),
        cmocka_unit_test(nothing_stays_mapped),
        cmocka_unit_test(what_is_too_much_is_refused),
        cmocka_unit_test(control_groups_bound_it),
        cmocka_unit_test(the_largest_cache_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
