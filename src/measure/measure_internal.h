/* The parts of a measurement. */
#pragma once

#include <math.h>

#include "device/device.h"
#include "measure/bandwidth.h"
#include "measure/kv_scratch.h"
#include "measure/measure.h"
#include "platform/clock.h"

struct thread_numbers {
    struct machine machine; /* attend_f16.one 0: it was too late */
    double empty_seconds;   /* of a step of the empty sequence */
};

struct measurement {
    const struct measure_options *options;
    struct machine *machine;
    struct device *device;
    struct bandwidth caches; /* reading it empties them; of a device with memory of its own copying within: */
    struct buffer device_caches;
    struct stream *stream;    /* of these copies */
    struct kv_scratch folder; /* within the options' directory */
    struct machine_use use;
    uint64_t ends;                  /* clock_ns: then it is late */
    bool adds;                      /* to numbers that are there */
    bool is_short;                  /* with less of everything, in one round */
    struct thread_numbers *threads; /* owned; [MACHINE_THREAD_COUNTS + 1], the last of all; NULL: not asked for */
};

/* Asks the caller whether to go on; STATUS_INTERRUPTED: no. */
STATUS_CHECKED static inline enum status measure_part(const struct measurement *measurement, const char *part,
                                                      struct error *error) {
    const struct measure_options *options = measurement->options;
    if (options->progress == NULL || !options->progress(options->context, part, false)) return STATUS_OK;
    return error_set(error, STATUS_INTERRUPTED, "interrupted");
}
void measure_empty_caches(const struct measurement *measurement);
static inline bool measure_is_late(const struct measurement *measurement) { return clock_ns() > measurement->ends; }
/* A disk gives its usual rate, the median of so many rounds (rates.h), or of more until they lie no further apart. */
enum { USUAL_ROUNDS_MIN = 3 };
#define USUAL_SPREAD_MAX 0.1
/* The quickest of several rounds: as many as it takes until the two quickest agree within 2%, since what others do only
 * adds to a round.  Where they never agree it ends by the clock, where it is late behind two, is_short behind one. */
struct quickest {
    double seconds, second; /* the two quickest */
    unsigned rounds;
    uint64_t began; /* behind the first round */
};
enum { QUICKEST_ROUNDS_MIN = 3, QUICKEST_ROUNDS_LATE = 2, QUICKEST_ROUNDS_MAX = 24, QUICKEST_NS = 150000000 };
static inline bool quickest_is_open(const struct quickest *quickest, const struct measurement *measurement) {
    if (quickest->rounds < (measurement->is_short ? 1 : QUICKEST_ROUNDS_LATE)) return true;
    if (measurement->is_short || measure_is_late(measurement)) return false;
    return quickest->rounds < QUICKEST_ROUNDS_MIN ||
           (quickest->second > quickest->seconds * 1.02 && quickest->rounds < QUICKEST_ROUNDS_MAX &&
            clock_ns() - quickest->began < QUICKEST_NS);
}
static inline void quickest_add(struct quickest *quickest, double seconds) {
    if (quickest->rounds == 0) quickest->began = clock_ns();
    if (quickest->rounds == 0 || seconds < quickest->seconds) {
        quickest->second = quickest->rounds == 0 ? INFINITY : quickest->seconds;
        quickest->seconds = seconds;
    } else if (seconds < quickest->second) {
        quickest->second = seconds;
    }
    quickest->rounds++;
}

/* Copies from the host's memory to the device's and back: machine->device_link.  On measurement->stream. */
enum status measure_link(struct measurement *measurement, struct error *error) STATUS_CHECKED;
enum status measure_matrices(struct measurement *measurement, struct error *error) STATUS_CHECKED;
enum status measure_disk(struct measurement *measurement, struct error *error) STATUS_CHECKED;
/* Of the types and selections with which numbers of threads are compared; it stands for all. */
static const enum tensor_type measure_threads_type = TENSOR_Q8_0;
size_t measure_threads_selection(void); /* hata's index */
/* A part of the measurement with each number of threads, the most first, while there is time; where numbers are added,
 * with all again, since a ratio is of one minute.  The device has them, and measurement->machine is that of the number.
 */
typedef enum status measure_count_part(void *context, struct thread_numbers *numbers, struct error *error);
enum status measure_each_count(struct measurement *measurement, measure_count_part *part, void *context,
                               struct error *error) STATUS_CHECKED;
/* What fewer threads reach of the speed of all, where all parts are measured: into machine->threads. */
void measure_threads(struct measurement *measurement);
/* Numbers that are not the disk's. */
enum measure_pace {
    PACE_REFERENCE, /* measured as well: steps in RAM say at which pace */
    PACE_NOW,       /* brought to the pace that the machine has now */
    PACE_OTHER,     /* of another machine: they stay */
};
/* Steps with KV on disk: machine->tier and disk.serial.  After the disk. */
enum status measure_tier(struct measurement *measurement, enum measure_pace pace, struct error *error) STATUS_CHECKED;
/* After the matrices. */
enum status measure_steps(struct measurement *measurement, struct error *error) STATUS_CHECKED;
