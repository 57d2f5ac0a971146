#include "testing.h"

#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/counter.h"
#include "base/layout.h"
#include "base/random.h"
#include "base/status.h"

static void error_is_one_line(void **state) {
    (void)state;
    struct error error;
    assert_int_equal(error_set(&error, STATUS_MODEL, "a%sb", "\n\x1b"), STATUS_MODEL);
    assert_string_equal(error.message, "a??b");
    error_prefix(&error, "file.gguf");
    assert_string_equal(error.message, "file.gguf: a??b");
}

static void error_never_overflows(void **state) {
    (void)state;
    struct error error;
    char big[1000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(error_set_os(&error, STATUS_IO, 2, "%s", big), STATUS_IO);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    error_prefix(&error, big);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
}

static void checked_arithmetic(void **state) {
    (void)state;
    uint64_t r;
    assert_false(checked_add(UINT64_MAX, 1, &r));
    assert_false(checked_multiply(UINT64_MAX / 2, 3, &r));
    assert_false(checked_align(UINT64_MAX - 3, 32, &r));
    assert_true(checked_align(33, 32, &r));
    assert_int_equal(r, 64);
}

static void arena_aligns_and_zeroes(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena);
    for (size_t size = 1; size < 1 << 20; size = size * 3 + 1) {
        unsigned char *p = arena_allocate(&arena, size);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < size; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, size);
    }
    assert_null(arena_array(&arena, UINT64_MAX / 2, 8));
    arena_deinit(&arena);
}

static void random_is_repeatable(void **state) {
    (void)state;
    struct random a, b;
    random_init(&a, 7);
    random_init(&b, 7);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(random_next(&a), random_next(&b));
        assert_true(random_below(&a, 10) < 10);
        (void)random_below(&b, 10);
    }
    double mean = 0, square = 0;
    for (int i = 0; i < 100000; i++) {
        double x = random_normal(&a);
        mean += x / 1e5;
        square += x * x / 1e5;
    }
    assert_true(mean > -0.02 && mean < 0.02 && square > 0.98 && square < 1.02);
}

static void layouts_count_what_they_place(void **state) {
    (void)state;
    _Alignas(LAYOUT_ALIGNMENT) uint8_t memory[256];
    struct layout counting = {NULL, 0}, placing = {memory, 0}, large = {NULL, 0};
    for (int round = 0; round < 2; round++) {
        struct layout *layout = round == 0 ? &counting : &placing;
        uint8_t *first = layout_take(layout, 3, 5), *none = layout_take(layout, 0, 8),
                *last = layout_take(layout, 65, 1);
        if (round == 0) assert_true(first == NULL && none == NULL && last == NULL);
        if (round == 1) assert_true(first == memory && last == memory + 64);
        assert_int_equal(layout->used, 64 + 128);
    }
    (void)layout_offset(&large, SIZE_MAX / 8, 16);
    assert_true(large.used == SIZE_MAX);
    (void)layout_offset(&large, 1, 1); /* it stays so */
    assert_true(large.used == SIZE_MAX);
    large.used = 64;
    (void)layout_offset(&large, SIZE_MAX - 64, 1);
    assert_true(large.used == SIZE_MAX);
}

static void counters_are_read_added_and_subtracted(void **state) {
    (void)state;
    struct counts {
        uint64_t reads, wait_ns, slots;
        double busy;
        bool open;
    } first = {3, 2500000000, 7, 0.5, false}, later = {10, 4000000000, 5, 2, true}, sum = first,
      grown = later;
    const struct counter rows[] = {
        COUNTER_ROW(TOTAL, ITEMS, struct counts, reads, "reads", "Reads."),
        COUNTER_ROW(TOTAL, SECONDS, struct counts, wait_ns, "wait_seconds", "Waits."),
        COUNTER_ROW(LEVEL, ITEMS, struct counts, slots, "slots", "Slots."),
        COUNTER_ROW(TOTAL, SECONDS, struct counts, busy, "busy_seconds", "Works."),
        COUNTER_ROW(LEVEL, ITEMS, struct counts, open, "open", "1: open.")};
    const struct counter_table table = COUNTER_TABLE("", struct counts, rows);
    const double values[] = {3, 2.5, 7, 0.5, 0};
    assert_int_equal(table.count, 5);
    for (size_t i = 0; i < table.count; i++) assert_true(counter_value(&rows[i], &first) == values[i]);
    counters_add(&table, &sum, &later);
    assert_true(sum.reads == 13 && sum.wait_ns == 6500000000 && sum.slots == 5 && sum.busy == 2.5 &&
                sum.open);
    counters_subtract(&table, &grown, &first);
    assert_true(grown.reads == 7 && grown.wait_ns == 1500000000 && grown.slots == 5 && grown.busy == 1.5 &&
                grown.open);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_one_line),
        cmocka_unit_test(error_never_overflows),
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(arena_aligns_and_zeroes),
        cmocka_unit_test(random_is_repeatable),
        cmocka_unit_test(layouts_count_what_they_place),
        cmocka_unit_test(counters_are_read_added_and_subtracted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
