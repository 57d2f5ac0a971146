#include "measure/measure_internal.h"
#include "measure/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "platform/clock.h"
#include "platform/memory.h"

static const size_t CACHES_BYTES = (size_t)96 << 20, CACHES_BYTES_SHORT = (size_t)6 << 20, /* others empty them */
    CACHES_BYTES_TEST = (size_t)64 << 10, COPY_BYTES = (size_t)32 << 20, READ_BYTES = (size_t)256 << 20; /* at most */
static const uint64_t CHECK_NS = 40000000, OTHERS_NS = 30000000;

static double read_rate(const struct measurement *measurement, const struct bandwidth *memory, struct pool *pool) {
    struct quickest pass = {0};
    while (quickest_is_open(&pass, measurement)) quickest_add(&pass, (double)bandwidth_pass_ns(memory, pool) * 1e-9);
    return (double)memory->size_bytes / pass.seconds;
}

double machine_measure_memory(size_t thread_count) {
    const struct measurement brief = {.ends = clock_ns() + CHECK_NS};
    struct bandwidth memory = {0};
    struct pool *pool;
    struct error ignored;
    double rate = 0;
    if (pool_create(&pool, thread_count, &ignored) != STATUS_OK) return 0;
    if (bandwidth_open(&memory, pool, bandwidth_beyond_caches(4, READ_BYTES), &ignored) == STATUS_OK)
        rate = read_rate(&brief, &memory, pool);
    bandwidth_close(&memory);
    pool_destroy(pool);
    return rate;
}

static enum status copy_rate(const struct measurement *measurement, double *bytes_per_second, struct error *error) {
    uint8_t *memory = malloc(2 * COPY_BYTES);
    struct quickest copy = {0};
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "measuring memory: out of memory");
    memset(memory, 1, 2 * COPY_BYTES);
    while (quickest_is_open(&copy, measurement)) {
        const uint64_t began = clock_ns();
        memcpy(memory, memory + COPY_BYTES, COPY_BYTES);
        __asm__ volatile("" : : "r"(memory) : "memory"); /* it is wanted */
        quickest_add(&copy, (double)(clock_ns() - began) * 1e-9);
    }
    free(memory);
    *bytes_per_second = (double)COPY_BYTES / copy.seconds;
    return STATUS_OK;
}

static enum status measure_memory(struct measurement *measurement, struct error *error) {
    struct pool *all = device_pool(measurement->device);
    struct bandwidth memory = {0};
    TRY(measure_part(measurement, "memory", error));
    if (measurement->options->device != NULL) {
        TRY(copy_rate(measurement, &measurement->machine->memory.copy, error));
        return measure_link(measurement, error);
    }
    TRY(bandwidth_open(&memory, all, bandwidth_beyond_caches(4, READ_BYTES) / (measurement->is_short ? 4 : 1), error));
    measurement->machine->memory.all = read_rate(measurement, &memory, all);
    bandwidth_close(&memory);
    return copy_rate(measurement, &measurement->machine->memory.copy, error);
}

/* Others have half of the processors where all threads, which read memory, get less than half of the time it takes.
 * The load of the last minute may not have them yet. */
static enum status find_others(struct measurement *measurement, struct error *error) {
    struct pool *all = device_pool(measurement->device);
    struct bandwidth memory = {0};
    TRY(bandwidth_open(&memory, all, CACHES_BYTES_SHORT, error));
    const uint64_t began = clock_ns(), before = clock_processor_ns();
    while (clock_ns() - began < OTHERS_NS) bandwidth_pass_ns(&memory, all);
    const uint64_t took = clock_ns() - began, had = clock_processor_ns() - before;
    bandwidth_close(&memory);
    const size_t threads = pool_thread_count(all);
    measurement->is_short = had < took * threads / 2;
    if (measurement->is_short) measurement->machine->load = fmax(measurement->machine->load, (double)threads);
    return STATUS_OK;
}

static enum status open_caches(struct measurement *measurement, struct error *error) {
    struct device *device = measurement->device;
    if (measurement->options->device == NULL)
        return bandwidth_open(&measurement->caches, device_pool(device),
                              measurement->is_short ? CACHES_BYTES_SHORT : bandwidth_beyond_caches(2, CACHES_BYTES),
                              error);
    TRY(device->operations->stream_create(device, &measurement->stream, error));
    return device->operations->allocate(device, MEMORY_DEVICE,
                                        measurement->options->is_short ? CACHES_BYTES_TEST : 2 * CACHES_BYTES,
                                        &measurement->device_caches, error);
}

/* The device with the threads that are asked for, memory that empties the caches, a folder on the disk. */
static enum status open_measurement(struct measurement *measurement, struct error *error) {
    const struct measure_options *options = measurement->options;
    const struct device_options device = {
        .thread_count = options->thread_count != 0 ? options->thread_count : cpu_count(), .mask = options->mask};
    uint64_t no_limit = 0;
    if (measurement->use.threads) {
        measurement->threads = calloc(MACHINE_THREAD_COUNTS + 1, sizeof *measurement->threads);
        if (measurement->threads == NULL) return error_set(error, STATUS_MEMORY, "measuring: out of memory");
        for (size_t i = 0; i <= MACHINE_THREAD_COUNTS; i++) machine_init(&measurement->threads[i].machine);
    }
    measurement->device = options->device;
    if (options->device == NULL) TRY(device_cpu_create(&measurement->device, &device, error));
    measurement->is_short = options->is_short;
    if (!measurement->is_short && options->seconds > 0) TRY(find_others(measurement, error));
    TRY(open_caches(measurement, error));
    return kv_scratch_open(&measurement->folder, options->directory, &no_limit, error);
}

static struct measurement measurement_of(struct machine *machine, const struct measure_options *options) {
    return (struct measurement){.options = options,
                                .machine = machine,
                                .use = machine_lacks(machine, measure_use(options)),
                                .ends = options->seconds > 0 ? clock_ns() + (uint64_t)(options->seconds * 1e9)
                                                             : UINT64_MAX};
}

static void close_measurement(struct measurement *measurement) {
    kv_scratch_close(&measurement->folder);
    bandwidth_close(&measurement->caches);
    if (measurement->stream != NULL) {
        measurement->device->operations->release(measurement->device, &measurement->device_caches);
        measurement->device->operations->stream_destroy(measurement->stream);
    }
    if (measurement->options->device == NULL) device_destroy(measurement->device);
    free(measurement->threads);
}

const char *measure_processor(const struct measure_options *options) {
    return options->device != NULL ? options->device->model : cpu_model_name();
}

struct machine_use measure_use(const struct measure_options *options) {
    struct machine_use use = options->use;
    if (options->device == NULL) return use;
    use.threads = false;
    use.selections = probe_selections(options->device, use.selections);
    return use;
}

static void name_machine(struct machine *machine, const struct measure_options *options) {
    machine_init(machine);
    snprintf(machine->processor, sizeof machine->processor, "%s", measure_processor(options));
    cpu_mask_text(options->mask, machine->kernels, sizeof machine->kernels);
    machine->thread_count = (uint32_t)(options->thread_count != 0 ? options->thread_count : cpu_count());
    machine->memory.bytes = (double)memory_total_bytes();
}

/* Numbers that are added beside a lower load leave the higher one standing. */
static void note_when(struct machine *machine) {
    double load;
    machine->measured = time(NULL);
    if (getloadavg(&load, 1) == 1) machine->load = fmax(machine->load, load);
}

/* The numbers of another machine have no pace here. */
static bool is_this_machine(const struct machine *machine, const struct measure_options *options) {
    struct machine here;
    name_machine(&here, options);
    return strcmp(machine->processor, here.processor) == 0 && strcmp(machine->kernels, here.kernels) == 0 &&
           machine->thread_count == here.thread_count;
}

static enum status measure_disk_used(struct measurement *measurement, struct error *error) {
    if (!measurement->use.disk) return STATUS_OK;
    if (!machine_knows_disk(measurement->machine)) TRY(measure_disk(measurement, error));
    return measure_tier(measurement, PACE_REFERENCE, error);
}

enum status machine_measure(struct machine *machine, const struct measure_options *options, struct error *error) {
    name_machine(machine, options);
    note_when(machine);
    struct measurement measurement = measurement_of(machine, options);
    measurement.use.types |= UINT64_C(1) << TENSOR_Q8_0; /* the probe model's, too */
    if (measurement.use.threads) measurement.use.selections |= UINT32_C(1) << measure_threads_selection();
    enum status status = open_measurement(&measurement, error);
    if (status == STATUS_OK) status = measure_memory(&measurement, error);
    if (status == STATUS_OK) status = measure_matrices(&measurement, error);
    if (status == STATUS_OK) status = measure_disk_used(&measurement, error);
    if (status == STATUS_OK) status = measure_steps(&measurement, error);
    if (status == STATUS_OK) measure_threads(&measurement);
    close_measurement(&measurement);
    return status;
}

enum status machine_measure_more(struct machine *machine, const struct measure_options *options, struct error *error) {
    note_when(machine);
    struct measurement measurement = measurement_of(machine, options);
    measurement.adds = true;
    const bool has_matrices = measurement.use.types != 0 || measurement.use.threads,
               has_steps = measurement.use.selections != 0 || measurement.use.q8 || measurement.use.threads;
    enum status status = open_measurement(&measurement, error);
    if (status == STATUS_OK && has_matrices) status = measure_matrices(&measurement, error);
    if (status == STATUS_OK) status = measure_disk_used(&measurement, error);
    if (status == STATUS_OK && has_steps) status = measure_steps(&measurement, error);
    if (status == STATUS_OK) measure_threads(&measurement);
    close_measurement(&measurement);
    return status;
}

enum status machine_measure_disk(struct machine *machine, const struct measure_options *options, struct error *error) {
    struct measurement measurement = measurement_of(machine, options);
    enum status status = open_measurement(&measurement, error);
    if (status == STATUS_OK) status = measure_disk(&measurement, error);
    const enum measure_pace pace = is_this_machine(machine, options) ? PACE_NOW : PACE_OTHER;
    if (status == STATUS_OK) status = measure_tier(&measurement, pace, error);
    close_measurement(&measurement);
    return status;
}
