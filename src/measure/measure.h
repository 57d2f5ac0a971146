/* measure: the numbers of this machine (plan/machine.h), found by running loam's own code.
 *
 *   memory, copy                plain loops over memory that no cache holds
 *   matrices                    the device's products, by type: one row, and a block of a prompt
 *   layers, attention,          an engine over a small model of random weights (probe_model.h), whose caches are
 *   selections                  emptied before every step; each time is the smallest of several steps
 *   link                        copies of pinned memory, of a device that has its own
 *   disk                        an io_queue over a file of random bytes; steps of that engine with KV on disk
 *
 * What of it is used is measured (struct machine_use), within a time.  Thread: the engine's.
 */
#pragma once

#include "device/device.h"
#include "plan/machine.h"

struct measure_options {
    /* Borrowed; one with memory of its own, whose rates are measured, and its link to the host's memory; of the
     * processor then copies, and the disk.  NULL: the processor, with thread_count threads. */
    struct device *device;
    const char *directory; /* a folder on the disk to be measured; what is put there is removed */
    size_t thread_count;   /* 0: one per processor */
    cpu_mask mask;
    /* What is measured, beside Q8_0; what cannot be measured is not. */
    struct machine_use use;
    /* That it may take: behind them numbers are of two rounds, and what can wait is not measured; machine_lacks says
     * what.  Where others have half of the processors all numbers are of one round, with less of everything.  0: as
     * long as it takes. */
    double seconds;
    bool is_short; /* tests: with less of everything, for numbers that nobody plans by */
    /* Called before each part, and with lines for the user.  true stops with STATUS_INTERRUPTED.  May be NULL. */
    bool (*progress)(void *context, const char *part, bool is_line);
    void *context;
};

/* The name of what is measured. */
const char *measure_processor(const struct measure_options *options);
/* What of it is measured on that device: of one with memory of its own no threads, and no selections that it lacks. */
struct machine_use measure_use(const struct measure_options *options);

enum status machine_measure(struct machine *machine, const struct measure_options *options, struct error *error)
    STATUS_CHECKED;
/* Adds what is used and not there to numbers of this machine. */
enum status machine_measure_more(struct machine *machine, const struct measure_options *options, struct error *error)
    STATUS_CHECKED;
/* memory.all as it is now, in a twentieth of a second; 0: it cannot be had. */
double machine_measure_memory(size_t thread_count);
/* Only the rates at which the disk of options->directory reads and writes, and what steps pay for it; the other numbers
 * are brought to the pace that this machine has now, and stay if they are another machine's.  Some seconds. */
enum status machine_measure_disk(struct machine *machine, const struct measure_options *options, struct error *error)
    STATUS_CHECKED;
