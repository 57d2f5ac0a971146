/* The parts of a measurement. */
#ifndef LOAM_MEASURE_MEASURE_INTERNAL_H
#define LOAM_MEASURE_MEASURE_INTERNAL_H

#include "device/device.h"
#include "measure/bandwidth.h"
#include "measure/kv_scratch.h"
#include "measure/measure.h"
#include "platform/clock.h"

struct measurement {
    const struct measure_options *options;
    struct machine *machine;
    struct device *device;
    struct bandwidth caches;  /* reading it empties them */
    struct kv_scratch folder; /* within the options' directory */
    struct machine_use use;
    enum { STEPS_ALL, STEPS_BRIEF, STEPS_SELECTIONS } steps; /* brief: attention in f16 and groups of 1, for ratios */
};

/* Asks the caller whether to go on; STATUS_INTERRUPTED: no. */
STATUS_CHECKED static inline enum status measure_part(const struct measurement *measurement, const char *part,
                                                      struct error *error) {
    const struct measure_options *options = measurement->options;
    if (options->progress == NULL || !options->progress(options->context, part)) return STATUS_OK;
    return error_set(error, STATUS_INTERRUPTED, "interrupted");
}
static inline void measure_empty_caches(const struct measurement *measurement) {
    bandwidth_pass_ns(&measurement->caches, device_pool(measurement->device));
}
/* The quickest of several rounds: as many as it takes until none is quicker by 2% any more.  Where others compute, one
 * always is: then it ends by the clock. */
struct quickest {
    double seconds;
    unsigned rounds, stale; /* stale: rounds since the last that was quicker */
    uint64_t began;         /* behind the first round */
};
enum { QUICKEST_ROUNDS_MIN = 4, QUICKEST_STALE = 3, QUICKEST_ROUNDS_MAX = 24, QUICKEST_NS = 150000000 };
static inline bool quickest_is_open(const struct quickest *quickest) {
    return quickest->rounds < QUICKEST_ROUNDS_MIN ||
           (quickest->stale < QUICKEST_STALE && quickest->rounds < QUICKEST_ROUNDS_MAX &&
            clock_ns() - quickest->began < QUICKEST_NS);
}
/* Whether it is the quickest so far. */
static inline bool quickest_add(struct quickest *quickest, double seconds) {
    const bool is_quickest = quickest->rounds == 0 || seconds < quickest->seconds;
    if (quickest->rounds == 0) quickest->began = clock_ns();
    quickest->stale = quickest->rounds > 0 && seconds > quickest->seconds * 0.98 ? quickest->stale + 1 : 0;
    if (is_quickest) quickest->seconds = seconds;
    quickest->rounds++;
    return is_quickest;
}

enum status measure_matrices(struct measurement *measurement, struct error *error) STATUS_CHECKED;
enum status measure_disk(struct measurement *measurement, struct error *error) STATUS_CHECKED;
/* With which numbers of threads are compared; they stand for all types and selections. */
struct machine_use measure_threads_use(void);
/* What fewer threads reach of the speed of all: into machine->threads.  After the steps. */
enum status measure_threads(struct measurement *measurement, struct error *error) STATUS_CHECKED;
/* Numbers that are not the disk's. */
enum measure_pace {
    PACE_REFERENCE, /* measured as well: steps in RAM say at which pace */
    PACE_NOW,       /* brought to the pace that the machine has now */
    PACE_OTHER,     /* of another machine: they stay */
};
/* Steps with KV on disk: machine->tier and disk.serial.  After the disk. */
enum status measure_tier(struct measurement *measurement, enum measure_pace pace,
                         struct error *error) STATUS_CHECKED;
/* After the matrices. */
enum status measure_steps(struct measurement *measurement, struct error *error) STATUS_CHECKED;

#endif
