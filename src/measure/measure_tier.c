/* KV on disk: what a step pays for its reads, beside what the same step takes in RAM.
 *
 * Four kinds of steps, each with random keys and a token of its own, in RAM and then with most of the KV on disk:
 *   few, many   a selection of pages: requests of 4 KiB at random places, some and hundreds of them for a layer
 *   window      whole chunks that are neighbours on disk, each a request
 *   scan        everything; neighbours are read in one, while the layer before computes
 * Medians: a disk that is shared gives its usual rate, not its best one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/select.h"
#include "measure/probe.h"
#include "plan/cost.h"
#include "platform/clock.h"
#include "rates/rates.h"

enum { FEW, MANY, WINDOW, SCAN, KINDS };
enum {
    DEEP = 6144,
    DEEP_SHORT = 2048, /* with measurement.is_short */
    PAGE = 16,         /* of the selection: a request is a page of 4 KiB */
    KEEP_FEW = 256,
    KEEP_MANY = 1024,
    KEEP_MANY_SHORT = 768,
    ROUNDS = 9,      /* measurement.is_short, or where it is late, one */
    WARM_ROUNDS = 2, /* the first steps find other chunks in RAM */
};
static const uint64_t ROUNDS_NS = 1500000000;
static const double MANY_SECONDS = 0.2; /* that a step of many should not exceed */

/* What a step paid. */
struct paid {
    double seconds, requests, pages, bytes, waited;
};
struct steps {
    struct paid of[ROUNDS][KINDS];
    size_t rounds[KINDS];
};

/* Each number the median of its own. */
static struct paid median(const struct steps *steps, size_t kind) {
    struct paid result;
    double *const numbers = (double *)&result;
    for (size_t i = 0; i < sizeof result / sizeof(double); i++) {
        double values[ROUNDS];
        for (size_t round = 0; round < steps->rounds[kind]; round++)
            values[round] = ((const double *)&steps->of[round][kind])[i];
        numbers[i] = rate_median(values, steps->rounds[kind]);
    }
    return result;
}

static enum status one_step(struct probe *probe, size_t kind, int32_t token, struct paid *paid, struct error *error) {
    const struct select_method *const methods[] = {&select_meanstd, &select_meanstd, &select_window, &select_all};
    const struct select_keep keep = {.tokens = kind == FEW      ? KEEP_FEW
                                               : kind == MANY   ? probe->keep_many
                                               : kind == WINDOW ? probe->deep_tokens / 4
                                                                : probe->deep_tokens};
    const struct kv_tier_statistics before = engine_tier_statistics(probe->engine);
    TRY(sequence_set_select(probe->deep, methods[kind], keep, error));
    TRY(probe_step_of(probe, probe->deep, token, &paid->seconds, error));
    const struct kv_tier_statistics after = engine_tier_statistics(probe->engine);
    paid->requests = (double)(after.read_requests - before.read_requests);
    paid->pages = (double)(after.read_pages - before.read_pages);
    paid->bytes = (double)(after.read_bytes - before.read_bytes);
    paid->waited = (double)(after.wait_ns - before.wait_ns) * 1e-9;
    return STATUS_OK;
}

/* Beside others these steps, which wait for disk and threads in turns, may take all of the time: they have half of it,
 * and come with another plan.  Until then the disk's rates say what reads cost. */
static bool is_given_up(const struct measurement *measurement) {
    const double seconds = measurement->options->seconds;
    return measurement->is_short && seconds > 0 && clock_ns() > measurement->ends - (uint64_t)(seconds / 2 * 1e9);
}

/* Enough: rounds have come that agree, of a disk RATE_SAMPLES of each kind, or it takes long. */
static bool is_enough(const struct probe *probe, const struct rate *rates, size_t rounds, uint64_t began) {
    const size_t agreeing = probe->engine_on_disk ? RATE_SAMPLES : USUAL_ROUNDS_MIN;
    bool agree = true;
    if (rounds > 0 && measure_is_late(probe->measurement)) return true;
    if (rounds < USUAL_ROUNDS_MIN) return false;
    for (size_t kind = 0; kind < KINDS; kind++) agree &= rate_spread(&rates[kind]) < USUAL_SPREAD_MAX;
    return (agree && rounds >= agreeing) || clock_ns() - began > ROUNDS_NS;
}

static enum status some_steps(struct probe *probe, size_t first, size_t end, struct steps *steps, struct error *error) {
    const uint64_t began = clock_ns();
    const bool is_short = probe->measurement->is_short;
    struct rate rates[KINDS] = {{.count = 0}};
    struct paid warm;
    int32_t token = 1;
    size_t rounds = 0;
    for (int round = 0; round < (is_short ? 1 : WARM_ROUNDS); round++)
        for (size_t kind = first; kind < end && !is_given_up(probe->measurement); kind++)
            TRY(one_step(probe, kind, token++, &warm, error));
    for (; rounds < (is_short ? 1 : ROUNDS) && !is_enough(probe, rates, rounds, began); rounds++)
        for (size_t kind = first; kind < end && !is_given_up(probe->measurement); kind++) {
            TRY(one_step(probe, kind, token++, &steps->of[rounds][kind], error));
            rate_note(&rates[kind], 1, steps->of[rounds][kind].seconds);
        }
    for (size_t kind = first; kind < end; kind++) steps->rounds[kind] = rounds;
    return STATUS_OK;
}

/* Selections in turns, so that what else the machine does is not in one kind alone.  Scans by themselves: their chunks
 * come in the order of memory, which selections break. */
static enum status all_steps(struct probe *probe, struct steps *steps, struct error *error) {
    TRY(some_steps(probe, SCAN, KINDS, steps, error));
    return some_steps(probe, FEW, SCAN, steps, error);
}

static enum status steps_with(struct probe *probe, bool on_disk, struct steps *steps, struct error *error) {
    struct plan plan = probe_plan(probe);
    const char *directory = probe->measurement->folder.path;
    char set[64];
    snprintf(set, sizeof set, "page=%d,dense=0,units_min=1", PAGE);
    plan.sequence_capacity = 1;
    plan.document_name = "measure";
    plan.read_gap_bytes = machine_read_gap(probe->measurement->machine);
    enum status status = on_disk ? plan_set_disk(&plan, directory, strlen(directory), 0, error) : STATUS_OK;
    if (status == STATUS_OK) status = plan_set_axes(&plan, "meanstd", set, "50%", error);
    if (status == STATUS_OK && on_disk) {
        const uint64_t kv_bytes =
            (uint64_t)PROBE_LAYERS * PROBE_KV_HEADS * 2 * PROBE_DIMENSION * sizeof(uint16_t) * probe->deep_tokens;
        status = plan_host_bytes_around(&plan, &probe->model->config, kv_bytes / 4, &plan.host_bytes, error);
    }
    if (status == STATUS_OK) status = probe_open_engine(probe, &plan, error);
    plan_deinit(&plan);
    probe->engine_on_disk = on_disk;
    TRY(status);
    return all_steps(probe, steps, error);
}

/* Where `seconds` lie between reading beside computing and reading, then computing; 0 to 1. */
static double serial_share(double seconds, double reading, double handling, double computing) {
    const double beside = cost_overlapped(0, reading, handling, computing, PROBE_LAYERS),
                 after = cost_overlapped(1, reading, handling, computing, PROBE_LAYERS);
    return after > beside ? fmin(fmax((seconds - beside) / (after - beside), 0), 1) : 0;
}

static void set_scan(struct machine *machine, const struct paid *scan, double in_memory) {
    if (scan->pages < 1) return;
    const double checksums = scan->bytes / machine->memory.copy, beyond = scan->seconds - in_memory;
    const double handling = fmax(beyond - scan->waited, 0);
    machine->tier.page_seconds = fmax((handling - checksums) / scan->pages, 1e-9);
    double reading = scan->bytes / machine_disk_rate(machine, scan->bytes / scan->pages * COST_SEGMENT_CHUNKS);
    machine->disk.serial = serial_share(scan->seconds, reading, handling, in_memory);
    /* Slower than one after the other: chunks come more slowly than such reads alone. */
    if (machine->disk.serial >= 1) reading = fmax(cost_disk_share(beyond, handling), reading);
    machine->tier.scan_rate = scan->bytes / reading;
}

static void set_chosen(struct machine *machine, const struct steps *memory, const struct steps *disk) {
    const struct paid few = median(disk, FEW), many = median(disk, MANY), window = median(disk, WINDOW);
    const double byte_seconds = machine_tier_byte_seconds(machine);
    const double few_seconds = few.seconds - median(memory, FEW).seconds - few.bytes * byte_seconds,
                 many_seconds = many.seconds - median(memory, MANY).seconds - many.bytes * byte_seconds,
                 window_seconds = window.seconds - median(memory, WINDOW).seconds - window.bytes * byte_seconds;
    struct machine_tier *tier = &machine->tier;
    if (many.requests <= few.requests || window.requests < 1) return;
    tier->request_seconds = fmax((many_seconds - few_seconds) / (many.requests - few.requests), 1e-8);
    tier->layer_seconds = fmax(few_seconds - few.requests * tier->request_seconds, 0) /
                          fmin(fmax(few.requests / MACHINE_LAYER_REQUESTS, 1), PROBE_LAYERS);
    tier->neighbour_seconds = fmax((window_seconds - PROBE_LAYERS * tier->layer_seconds) / window.requests, 1e-8);
}

/* All kinds, in RAM: the sum of what they take. */
static double seconds_of(const struct steps *steps, bool at_their_quickest) {
    double sum = 0;
    for (size_t kind = 0; kind < KINDS; kind++) {
        double quickest = INFINITY;
        for (size_t round = 0; round < steps->rounds[kind]; round++)
            quickest = fmin(quickest, steps->of[round][kind].seconds);
        sum += at_their_quickest ? quickest : median(steps, kind).seconds;
    }
    return sum;
}

/* The machine's other numbers are what it does at its quickest.  Now it does this. */
static void set_pace(struct machine *machine, const struct steps *memory, enum measure_pace pace) {
    const double usual = seconds_of(memory, false);
    if (pace == PACE_REFERENCE)
        machine->tier.memory_seconds = seconds_of(memory, true);
    else if (pace == PACE_NOW && machine->tier.memory_seconds > 0)
        machine_set_pace(machine, machine->tier.memory_seconds / usual);
}

enum status measure_tier(struct measurement *measurement, enum measure_pace pace, struct error *error) {
    struct machine *machine = measurement->machine;
    const bool is_short = measurement->is_short || measure_is_late(measurement);
    const double request_seconds = machine_disk_bytes[0] / machine->disk.read[0][MACHINE_DISK_DEPTHS - 1],
                 requests = MANY_SECONDS / request_seconds / PROBE_LAYERS / PROBE_KV_HEADS;
    struct probe probe = {
        .measurement = measurement,
        .layers = PROBE_LAYERS,
        .group = 1,
        .deep_tokens = is_short ? DEEP_SHORT : DEEP,
        .keep_many = (uint32_t)fmin(fmax(requests * PAGE, 2 * KEEP_FEW), is_short ? KEEP_MANY_SHORT : KEEP_MANY)};
    struct steps memory, disk;
    if (is_given_up(measurement)) return STATUS_OK;
    TRY(measure_part(measurement, "pages", error));
    enum status status = probe_open_model(&probe, error);
    if (status == STATUS_OK) status = steps_with(&probe, false, &memory, error);
    if (status == STATUS_OK && !is_given_up(measurement)) status = steps_with(&probe, true, &disk, error);
    probe_close(&probe);
    if (status != STATUS_OK || is_given_up(measurement)) return status;
    const struct paid scan = median(&disk, SCAN);
    set_scan(machine, &scan, median(&memory, SCAN).seconds);
    set_chosen(machine, &memory, &disk);
    set_pace(machine, &memory, pace);
    return STATUS_OK;
}
