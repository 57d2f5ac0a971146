/* Areas of memory: zeros, aligned, of any size, and given back. */
#include "testing.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "platform/memory.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(areas_are_zeros_and_aligned),
        cmocka_unit_test(nothing_stays_mapped),
        cmocka_unit_test(what_is_too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
