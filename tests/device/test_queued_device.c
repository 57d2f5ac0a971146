/* The queued device itself: each stream's work in order, that of two streams in either order, nothing late for who
 * waits, and what the host may not touch faults. */
#include "testing.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "device/host_turns.h"
#include "device/queued_device.h"
#include "seed.h"

enum { ROUNDS = 60, WIDTH = 16 };

struct rig {
    struct device *device;
    const struct device_operations *operations;
    struct stream *streams[2];
    struct buffer host; /* MEMORY_SHARED; float [4][WIDTH] */
    struct buffer own;  /* MEMORY_DEVICE; float [4][WIDTH] */
    struct error error;
};

enum { BYTES = 4 * WIDTH * sizeof(float), ROW = WIDTH * sizeof(float) };

static void rig_open(struct rig *rig, uint64_t seed) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    rig->device = queued_device_create(&options, seed);
    rig->operations = rig->device->operations;
    assert_ok(rig->operations->allocate(rig->device, MEMORY_SHARED, BYTES, &rig->host, &rig->error),
              rig->error);
    assert_ok(rig->operations->allocate(rig->device, MEMORY_DEVICE, BYTES, &rig->own, &rig->error),
              rig->error);
    for (size_t i = 0; i < 2; i++)
        assert_ok(rig->operations->stream_create(rig->device, &rig->streams[i], &rig->error), rig->error);
}

static void wait_all(struct rig *rig) {
    for (size_t i = 0; i < 2; i++)
        assert_ok(rig->operations->stream_synchronize(rig->streams[i], &rig->error), rig->error);
}

static void rig_close(struct rig *rig) {
    wait_all(rig);
    for (size_t i = 0; i < 2; i++) rig->operations->stream_destroy(rig->streams[i]);
    rig->operations->release(rig->device, &rig->host);
    rig->operations->release(rig->device, &rig->own);
    device_destroy(rig->device);
}

/* Row `to` of the device's memory holds this number. */
static void put(struct rig *rig, size_t stream, size_t to, float value) {
    float row[WIDTH];
    for (size_t i = 0; i < WIDTH; i++) row[i] = value;
    rig->operations->upload(rig->streams[stream], span_of(&rig->own, to * ROW), row, ROW);
    memset(row, 0, sizeof row); /* it was read */
}

static float get(struct rig *rig, size_t stream, size_t from) {
    float row[WIDTH];
    assert_ok(
        device_read(rig->device, rig->streams[stream], row, span_of(&rig->own, from * ROW), ROW, &rig->error),
        rig->error);
    return row[0];
}

static void in_order_and_late(void **state) {
    (void)state;
    size_t late = 0, at_once = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct rig rig;
        float row[WIDTH] = {0};
        rig_open(&rig, test_seed(5) + round);
        put(&rig, 0, 0, 1);
        put(&rig, 0, 0, 2);
        rig.operations->download(rig.streams[0], row, span_of(&rig.own, 0), ROW);
        put(&rig, 0, 0, 3);
        float zero;
        memset(&zero, 0xff, sizeof zero);
        assert_memory_equal(row, &zero, sizeof zero); /* whether it was run or not */
        const struct queued_device_counts counts = queued_device_counts(rig.device);
        wait_all(&rig);
        assert_true(row[0] == 2 && get(&rig, 1, 0) == 3);
        late += queued_device_counts(rig.device).late > counts.late;
        at_once += queued_device_counts(rig.device).late == 0;
        rig_close(&rig);
    }
    assert_met(late > ROUNDS / 4 && at_once > 0);
}

static void two_streams(void **state) {
    (void)state;
    size_t firsts[2] = {0, 0};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct rig rig;
        rig_open(&rig, test_seed(5) + round);
        put(&rig, 0, 0, 1);
        put(&rig, 1, 0, 2);
        wait_all(&rig);
        const float last = get(&rig, 0, 0);
        assert_true(last == 1 || last == 2);
        firsts[last == 1]++;
        rig_close(&rig);
    }
    assert_met(firsts[0] > 0 && firsts[1] > 0);
}

static void tickets(void **state) {
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct rig rig;
        rig_open(&rig, test_seed(5) + round);
        const struct ticket none = {NULL, 0};
        assert_true(rig.operations->ticket_done(none));
        assert_ok(rig.operations->ticket_wait(none, &rig.error), rig.error);
        put(&rig, 0, 0, 1);
        rig.operations->copy(rig.streams[0], span_of(&rig.host, 0), span_of(&rig.own, 0), ROW);
        const struct ticket ticket = rig.operations->ticket(rig.streams[0]);
        put(&rig, 0, 0, 2);
        put(&rig, 1, 1, 3);
        if (round % 2 == 0) assert_ok(rig.operations->ticket_wait(ticket, &rig.error), rig.error);
        while (!rig.operations->ticket_done(ticket)) assert_int_equal(round % 2, 1);
        assert_true(*(float *)rig.host.host == 1);
        rig_close(&rig);
    }
}

/* An operation has its places as they were when it was launched. */
static void places_are_staged(void **state) {
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct rig rig;
        rig_open(&rig, test_seed(5) + round);
        struct buffer moved = rig.own;
        put(&rig, 0, 0, 1);
        rig.operations->copy(rig.streams[0], span_of(&rig.host, 0), span_of(&moved, 0), ROW);
        moved = (struct buffer){.device = NULL};
        wait_all(&rig);
        assert_true(*(float *)rig.host.host == 1);
        rig_close(&rig);
    }
}

enum touch { HOST_READS_DEVICE, HOST_READS_SHARED, OPERATION_READS_SHARED, OPERATION_READS_WHAT_IS_GONE };

/* In a child process; true: it ends by a fault. */
static bool faults(enum touch touch) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rig rig;
        end_at_failure();
        (void)signal(SIGSEGV, SIG_DFL);
        rig_open(&rig, 1);
        put(&rig, 0, 1, 1);
        wait_all(&rig); /* memory was open meanwhile */
        struct buffer source = touch == HOST_READS_DEVICE ? rig.own : rig.host;
        if (touch == OPERATION_READS_WHAT_IS_GONE) {
            struct buffer gone;
            assert_ok(rig.operations->allocate(rig.device, MEMORY_DEVICE, BYTES, &gone, &rig.error),
                      rig.error);
            source = gone;
            rig.operations->release(rig.device, &gone);
        }
        const struct gather_operation gather = {.x = span_of(&source, 0),
                                                .x_stride = WIDTH,
                                                .indices = (uint32_t[]){0},
                                                .row_count = 1,
                                                .count = WIDTH,
                                                .y = span_of(&rig.own, ROW),
                                                .y_stride = WIDTH};
        if (touch == HOST_READS_DEVICE || touch == HOST_READS_SHARED)
            *(volatile float *)(uintptr_t)source.address += 1;
        else
            rig.operations->gather(rig.streams[0], &gather);
        wait_all(&rig);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) || (WIFEXITED(how) && WEXITSTATUS(how) == 0));
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV;
}

static void walls_hold(void **state) {
    (void)state;
    assert_true(faults(HOST_READS_DEVICE));
    assert_false(faults(HOST_READS_SHARED));
    assert_false(faults(OPERATION_READS_SHARED));
    assert_true(faults(OPERATION_READS_WHAT_IS_GONE));
}

/* Within a graph the host has its turns while it waits for that stream, whatever the other one does, and not before. */
static void host_has_turns(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct rig rig;
        struct host_turns turns;
        rig_open(&rig, seed);
        host_turns_open(&turns, rig.device, rig.streams[0]);
        for (size_t round = 0; round < 6; round++) {
            const struct ticket before = rig.operations->ticket(rig.streams[0]);
            host_turns_launch(&turns);
            for (size_t i = 0; i < 4; i++) put(&rig, 1, i, (float)i);
            for (size_t i = 0; i < 8; i++) (void)rig.operations->ticket_done(rig.operations->ticket(rig.streams[0]));
            assert_ok(rig.operations->ticket_wait(before, &rig.error), rig.error);
            assert_int_equal(turns.taken, 0);
            if (round % 2 == 1)
                assert_ok(rig.operations->ticket_wait(rig.operations->ticket(rig.streams[0]), &rig.error), rig.error);
            host_turns_check(&turns);
            assert_true(get(&rig, 1, 3) == 3);
        }
        host_turns_close(&turns);
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_order_and_late), cmocka_unit_test(two_streams),
                                       cmocka_unit_test(tickets), cmocka_unit_test(places_are_staged),
                                       cmocka_unit_test(walls_hold), cmocka_unit_test(host_has_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
