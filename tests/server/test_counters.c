/* Every table of counters: names that say what they count, and no number of a struct that is left out. */
#include "testing.h"

#include <string.h>

#include "attention/attention.h"
#include "cache/kv_watch.h"
#include "model/weight_stream.h"
#include "server/service.h"

static const struct {
    const struct counter_table *table;
    size_t other_bytes; /* of the struct, which are no row's: reported apart, or padding */
} tables[] = {
    {&kv_tier_counters, 0},
    {&kv_watch_counters, 0},
    {&device_counters, 0},
    {&fetch_counters, 0},
    {&list_buffer_counters, 0},
    {&weight_counters, 7},
    {&rebuild_counters, sizeof(const char *)},
    {&select_counters, sizeof(struct tree_counts) + sizeof(struct mass_bounds) + sizeof(struct mass_receipt) +
                           sizeof(struct reuse_counts)},
    {&service_counters, sizeof(struct kv_tier_statistics) + sizeof(struct select_statistics) +
                            sizeof(struct weight_figures) + sizeof(struct device_counts) +
                            sizeof(struct fetch_counts) +
                            SERVICE_STOPS * sizeof(uint64_t) + 256 + 7},
};
enum { TABLE_COUNT = sizeof tables / sizeof tables[0] };

static void every_number_has_one_row(void **state) {
    (void)state;
    for (size_t t = 0; t < TABLE_COUNT; t++) {
        const struct counter_table *table = tables[t].table;
        size_t bytes = tables[t].other_bytes;
        for (size_t i = 0; i < table->count; i++) {
            const struct counter *row = &table->rows[i];
            bytes += row->member == COUNTER_FLAG ? sizeof(bool) : sizeof(uint64_t);
            for (size_t j = 0; j < i; j++) assert_int_not_equal(row->offset, table->rows[j].offset);
        }
        if (bytes != table->struct_bytes) print_message("table %zu, of %s\n", t, table->rows[0].name);
        assert_int_equal(bytes, table->struct_bytes);
    }
}

static void names_say_the_unit_and_are_unique(void **state) {
    (void)state;
    for (size_t t = 0; t < TABLE_COUNT; t++) {
        const struct counter_table *table = tables[t].table;
        for (size_t i = 0; i < table->count; i++) {
            const struct counter *row = &table->rows[i];
            const size_t length = strlen(row->help);
            assert_true(length > 0 && row->help[length - 1] == '.');
            assert_int_equal(strspn(row->name, "abcdefghijklmnopqrstuvwxyz_"), strlen(row->name));
            assert_int_equal(strstr(row->name, "bytes") != NULL,
                             row->unit == COUNTER_BYTES || strstr(row->name, "bytes_per_second") != NULL);
            assert_int_equal(strstr(row->name, "second") != NULL,
                             row->unit == COUNTER_SECONDS || row->unit == COUNTER_PER_SECOND);
            assert_true(row->member != COUNTER_REAL || row->unit != COUNTER_ITEMS);
            for (size_t j = 0; j < i; j++) assert_string_not_equal(row->name, table->rows[j].name);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_has_one_row),
        cmocka_unit_test(names_say_the_unit_and_are_unique),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
