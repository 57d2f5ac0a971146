/* rates: what this machine does in a second, from samples of it.  One way to sum them up, so that a busy moment is
 * nobody's answer: the median of the last RATE_SAMPLES.
 *
 *   struct rate     anything that is seen in use, or measured in rounds: reading, computing, a server's slices
 *   disk_probe      a disk, by random reads of a file that has no name
 *
 * Thread: the owner's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/io_file.h"
#include "platform/io_queue.h"

enum { RATE_SAMPLES = 5 };

struct rate {                     /* zeros: nothing is known */
    double amount, seconds;       /* of the sample that is under way */
    double samples[RATE_SAMPLES]; /* a ring: seconds for one of the amount */
    size_t count, next;
};
void rate_add(struct rate *rate, double amount, double seconds);  /* to the sample that is under way */
void rate_end_sample(struct rate *rate);                          /* nothing where nothing was added */
void rate_note(struct rate *rate, double amount, double seconds); /* a sample by itself */
/* Seconds for one: the median; before the first sample has ended what it has so far.  0: not known. */
double rate_seconds(const struct rate *rate);
double rate_per_second(const struct rate *rate); /* 0: not known */
/* How far the samples lie apart, of their median.  0: of fewer than two. */
double rate_spread(const struct rate *rate);
/* Sorts them.  Of an even number the smaller of the two; count > 0. */
double rate_median(double *values, size_t count);
/* Differs by the factor from what it was `then`, in seconds for one; false where that was not known. */
bool rate_has_changed(const struct rate *rate, double then, double factor);

/* ---- a disk ---- */

enum { DISK_PROBE_DEPTH = 64 }; /* requests in flight, at most */

struct disk_probe_options {
    struct io_folder *folder; /* borrowed */
    uint64_t bytes;           /* of the file, at least a place; rounded down to places */
    size_t place_bytes;       /* of the largest request: a multiple of 4096 */
    uint64_t write_ns;        /* behind them the file stays as short as it is; 0: all of it is written */
    enum io_backend backend;
};
struct disk_probe;
/* Writes the file.  *write_seconds, which may be NULL: for a byte, until it is on the disk. */
enum status disk_probe_open(struct disk_probe **probe, const struct disk_probe_options *options, double *write_seconds,
                            struct error *error) STATUS_CHECKED;
/* What is read at least: so many requests, for so long. */
struct disk_probe_round {
    size_t bytes, depth; /* of a request; requests in flight */
    size_t reads_min;
    uint64_t ns_min;
};
/* A sample of a request. */
enum status disk_probe_read(struct disk_probe *probe, const struct disk_probe_round *round, struct rate *rate,
                            struct error *error) STATUS_CHECKED;
void disk_probe_close(struct disk_probe *probe); /* NULL is allowed */
