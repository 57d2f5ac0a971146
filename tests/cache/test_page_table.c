/* Page tables: the device's copy of the lanes that are brought up to date has every place of the host's, whatever was
 * set before; the others stay as they were.  On a device whose memory the host cannot touch. */
#include "cache/page_table.h"

#include "device/queued_device.h"
#include "seed.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cache/slab.h"

enum { LANES = 6, ROUNDS = 40 };

static void check(struct device *device, struct stream *stream, struct random *random, uint64_t capacity) {
    const size_t count = LANES * (size_t)capacity;
    uint32_t *expected = calloc(count + 1, sizeof *expected), *found = calloc(count + 1, sizeof *found);
    struct page_table table;
    struct error error;
    assert_ok(page_table_init(&table, device, LANES, capacity, &error), error);
    for (size_t round = 0; round < ROUNDS; round++) {
        const uint64_t changes = random_below(random, round % 5 == 0 ? 2 * count : 8);
        for (uint64_t i = 0; i < changes; i++) {
            const uint64_t chunk =
                random_below(random, 3) == 0 ? capacity - 1 : random_below(random, capacity);
            const bool nowhere = random_below(random, 4) == 0;
            page_table_set(&table, (size_t)random_below(random, LANES), chunk,
                           nowhere ? PLACE_NOWHERE
                                   : place_make((enum place_pool)(1 + random_below(random, 3)),
                                                random_below(random, PLACE_SLOTS_MAX)));
        }
        const size_t first = (size_t)random_below(random, LANES),
                     lanes = (size_t)random_below(random, LANES - first + 1);
        page_table_update(&table, stream, first, lanes);
        memcpy(expected + first * capacity, table.places + first * capacity,
               lanes * (size_t)capacity * sizeof *expected);
        assert_ok(
            device_read(device, stream, found, page_table_lane(&table, 0), count * sizeof *found, &error),
            error);
        assert_memory_equal(found, expected, count * sizeof *found);
    }
    page_table_deinit(&table);
    free(expected), free(found);
}

static void device_follows_host(void **state) {
    (void)state;
    struct random random;
    struct stream *stream;
    struct error error;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    struct device *device = queued_device_create(&options, 61);
    assert_ok(device->operations->stream_create(device, &stream, &error), error);
    random_init(&random, test_seed(61));
    static const uint64_t capacities[] = {1, 63, 64, 65, 300};
    for (size_t i = 0; i < sizeof capacities / sizeof *capacities; i++)
        check(device, stream, &random, capacities[i]);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* Of a device that gives so much at once, a slab's slots lie apart, each whole in one buffer; of one that gives more,
 * side by side. */
static void slots_lie_apart(void **state) {
    (void)state;
    static const struct {
        size_t buffer_max, slot_bytes;
        uint64_t slots;
        size_t buffers;
    } cases[] = {{0, 192, 50, 1},     {192 * 50, 192, 50, 1}, {192 * 50 - 1, 192, 50, 2},
                 {1000, 192, 50, 13}, {192, 192, 5, 5},       {191, 192, 5, 5}};
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    struct device *device;
    struct error error;
    assert_ok(device_cpu_create(&device, &options, &error), error);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct slab slab;
        device->buffer_max = cases[c].buffer_max;
        assert_ok(slab_init(&slab, device, MEMORY_SHARED, cases[c].slot_bytes, cases[c].slots, &error),
                  error);
        assert_int_equal(slab_buffer_count(&slab), cases[c].buffers);
        struct kv_pools pools = {.list = {[POOL_QUANTIZED] = slab.pool}};
        for (int pass = 0; pass < 2; pass++)
            for (uint64_t slot = 0; slot < cases[c].slots; slot++) {
                uint8_t *memory = span_host(kv_pools_chunk(&pools, place_make(POOL_QUANTIZED, slot)));
                if (pass == 0) memset(memory, (int)slot + 1, cases[c].slot_bytes);
                for (size_t i = 0; i < cases[c].slot_bytes; i++) assert_int_equal(memory[i], slot + 1);
            }
        slab_deinit(&slab);
        assert_false(slab_exists(&slab));
    }
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_follows_host),
        cmocka_unit_test(slots_lie_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
