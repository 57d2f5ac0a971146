/* A graph in which the host has turns, on any device: a number goes from the device to the host and back, so that each
 * turn sees what all before it made of it; and a page table has the places that the turns write. */
#pragma once

#include "testing.h"

#include <string.h>
#include <time.h>

#include "device/device.h"

enum { TURNS = 5, TURN_WIDTH = 16, TURN_ROW = TURN_WIDTH * sizeof(float), TURN_PLACES = 8 };
enum { TURN_SEEN = 0, TURN_ANSWER = TURN_ROW, TURN_DELTAS = 2 * TURN_ROW }; /* in shared */
enum { TURN_DELTAS_BYTES = (1 + TURN_PLACES) * sizeof(struct place_delta) };

struct host_turns {
    struct device *device;
    struct stream *stream;
    struct graph *graph;
    struct buffer shared, row, table;
    size_t number; /* of the first turn, another one in each capture */
    size_t taken;  /* in this launch */
    float value;  /* that the next turn is to see */
    uint32_t places[TURN_PLACES], round;
    long pause_ns; /* that each turn takes */
};

static void host_turn_takes(void *context, size_t number) {
    struct host_turns *turns = context;
    const float *seen = span_host(span_of(&turns->shared, TURN_SEEN));
    float *answer = span_host(span_of(&turns->shared, TURN_ANSWER));
    struct place_delta *deltas = span_host(span_of(&turns->shared, TURN_DELTAS));
    assert_int_equal(number, turns->number + turns->taken++);
    (void)nanosleep(&(struct timespec){.tv_nsec = turns->pause_ns}, NULL);
    for (size_t i = 0; i < TURN_WIDTH; i++) {
        if (seen[i] != turns->value) fail_msg("turn %zu sees %g, expected %g", number, seen[i], turns->value);
        answer[i] = turns->value / 2 + (float)number;
    }
    turns->value = answer[0];
    deltas[0].index = (uint32_t)(number % 3);
    for (uint32_t i = 0; i < deltas[0].index; i++) {
        const uint32_t at = (uint32_t)(number + i) % TURN_PLACES;
        turns->places[at] = (uint32_t)number * 10 + i + 1000 * turns->round;
        deltas[1 + i] = (struct place_delta){at, turns->places[at]};
    }
}

static void host_turns_gather(const struct host_turns *turns, struct span from, struct span to) {
    const uint32_t zero = 0;
    turns->device->operations->gather(turns->stream, &(struct gather_operation){.x = from,
                                                                               .x_stride = TURN_WIDTH,
                                                                               .indices = &zero,
                                                                               .row_count = 1,
                                                                               .count = TURN_WIDTH,
                                                                               .y = to,
                                                                               .y_stride = TURN_WIDTH});
}

/* Captures them, or changes the graph that is there. */
static void host_turns_capture(struct host_turns *turns) {
    const struct device_operations *operations = turns->device->operations;
    struct error error;
    turns->number += 100;
    assert_ok(operations->graph_begin(turns->stream, &error), error);
    for (size_t i = 0; i < TURNS; i++) {
        host_turns_gather(turns, span_of(&turns->row, 0), span_of(&turns->shared, TURN_SEEN));
        operations->host_turn(turns->stream, &(struct host_turn_operation){host_turn_takes, turns, turns->number + i});
        operations->update_places(turns->stream,
                                  &(struct update_places_operation){.table = span_of(&turns->table, 0),
                                                                    .count = TURN_PLACES,
                                                                    .written = span_of(&turns->shared, TURN_DELTAS)});
        host_turns_gather(turns, span_of(&turns->shared, TURN_ANSWER), span_of(&turns->row, 0));
    }
    assert_ok(operations->graph_end(turns->stream, &turns->graph, &error), error);
}

static void host_turns_open(struct host_turns *turns, struct device *device, struct stream *stream) {
    const struct device_operations *operations = device->operations;
    struct error error;
    *turns = (struct host_turns){.device = device, .stream = stream};
    assert_ok(operations->allocate(device, MEMORY_SHARED, TURN_DELTAS + TURN_DELTAS_BYTES, &turns->shared, &error),
              error);
    assert_ok(operations->allocate(device, MEMORY_DEVICE, TURN_ROW, &turns->row, &error), error);
    assert_ok(operations->allocate(device, MEMORY_DEVICE, sizeof turns->places, &turns->table, &error), error);
    host_turns_capture(turns);
}

static void host_turns_launch(struct host_turns *turns) {
    turns->taken = 0;
    turns->round++;
    turns->device->operations->graph_launch(turns->stream, turns->graph);
}

/* All turns were taken, and the device has what they gave. */
static void host_turns_check(struct host_turns *turns) {
    float row[TURN_WIDTH];
    uint32_t places[TURN_PLACES];
    struct error error;
    assert_ok(turns->device->operations->stream_synchronize(turns->stream, &error), error);
    assert_int_equal(turns->taken, TURNS);
    assert_ok(device_read(turns->device, turns->stream, row, span_of(&turns->row, 0), sizeof row, &error), error);
    for (size_t i = 0; i < TURN_WIDTH; i++)
        if (row[i] != turns->value) fail_msg("the row has %g, expected %g", row[i], turns->value);
    assert_ok(device_read(turns->device, turns->stream, places, span_of(&turns->table, 0), sizeof places, &error),
              error);
    assert_memory_equal(places, turns->places, sizeof places);
}

static void host_turns_close(struct host_turns *turns) {
    const struct device_operations *operations = turns->device->operations;
    operations->graph_destroy(turns->graph);
    operations->release(turns->device, &turns->shared);
    operations->release(turns->device, &turns->row);
    operations->release(turns->device, &turns->table);
}
