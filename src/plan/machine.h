/* machine: what a machine does in a second, as a table of numbers (docs/planner.md).
 *
 * measure/measure.h measures it by running loam's own code; plan/cost.h predicts a step from it.  A file of numbers is
 * JSON: {"loam_machine": 4, "processor": NAME, "kernels": NAMES, "threads": N, "numbers": {"memory.all": 3.1e10, ...}}.
 * A machine that nobody has measured is planned for with such a file, in which what differs is changed.
 *
 * Times of attention and of selection are of heads of MACHINE_DIMENSION elements, for groups of 1 and of
 * MACHINE_GROUP query heads; plan/cost.h scales them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/type.h"

enum {
    MACHINE_VERSION = 4,
    MACHINE_TYPES = TENSOR_TYPES, /* of tensors, by number */
    MACHINE_DIMENSION = 64,       /* of the measured heads */
    MACHINE_GROUP = 4,
    MACHINE_NARROW = 512, /* columns of the two measured matrices */
    MACHINE_WIDE = 4096,
    MACHINE_BLOCK_ROWS = 256, /* of the measured prefill blocks */
    MACHINE_SELECTIONS_MAX = 12,
    MACHINE_DISK_SIZES = 5,
    MACHINE_DISK_DEPTHS = 3,
    MACHINE_LAYER_REQUESTS = 50, /* with which a layer pays all of tier.layer_seconds */
    MACHINE_THREAD_COUNTS = 10,  /* 1, 2, 4 .. 512 */
    MACHINE_TEXT_BYTES = 96,
};

extern const uint32_t machine_disk_bytes[MACHINE_DISK_SIZES];   /* of a request */
extern const uint32_t machine_disk_depths[MACHINE_DISK_DEPTHS]; /* requests in flight */

/* Numbers of a thing at groups of 1 and of MACHINE_GROUP query heads. */
struct machine_by_group {
    double one, many;
};

struct machine_matrix {
    double narrow, wide; /* bytes per second: one row times a matrix of MACHINE_NARROW, MACHINE_WIDE columns */
    double block;        /* multiply-adds per second: a prefill block */
};

/* A selection with the numbers of a preset that is measured. */
struct machine_selection {
    const char *name, *preset, *set; /* borrowed from preset_table: its name, what is run */
    double seconds;                  /* of a layer, whatever its length */
    struct machine_by_group score;   /* seconds for each candidate token and KV head */
    struct machine_by_group rows;    /* seconds for each row that is attended to, and KV head */
};

/* What fewer threads reach of the speed of all: 1 is as quick.  0: not measured. */
struct machine_threads {
    double narrow, wide, block;  /* struct machine_matrix */
    double layer, token;         /* a layer of a step, and of a token of a prefill block */
    double attend, attend_block; /* one row, a prefill block */
    double select;
};

/* What a step with KV on disk pays for its reads.  0: not measured, but for page_seconds; then the rates of the disk
 * say it. */
struct machine_tier {
    /* Of the processor, for a page that is fetched: request and bookkeeping.  Its checksum takes as long as a copy. */
    double page_seconds;
    double scan_rate; /* bytes per second of chunks that come one after the other, beside handling them */
    /* Of a selection's reads, which a layer waits for, handling them included: for a layer with MACHINE_LAYER_REQUESTS,
     * less in proportion to fewer; for each request at a random place; for each of those that lie side by side.  A byte
     * takes machine_tier_byte_seconds more. */
    double layer_seconds, request_seconds, neighbour_seconds;
    /* The same steps in RAM, at their quickest: the pace that all other numbers are of. */
    double memory_seconds;
};

struct machine_memory {
    double bytes; /* RAM in all; 0: not known */
    double all;   /* bytes per second that all threads read: what a file is checked by; 0: it is not */
    double copy;  /* bytes per second copied by one thread */
};

/* 0: not measured; none of its rates is there then. */
struct machine_disk {
    double read[MACHINE_DISK_SIZES][MACHINE_DISK_DEPTHS]; /* bytes per second, at random offsets */
    double write;                                         /* bytes per second */
    /* Of its reads, at most: how far the measured rounds lay apart, of their median; 0: not known. */
    double spread;
    /* Of reading and computing at once, the share of the shorter one that is added to the longer: 0 if they overlap. */
    double serial;
};

struct machine {
    char processor[MACHINE_TEXT_BYTES], kernels[MACHINE_TEXT_BYTES];
    int64_t measured; /* seconds since 1970; 0: not known */
    double load;      /* processes that wanted a processor in the minute before; below 0: not known */
    uint32_t thread_count;
    struct machine_threads threads[MACHINE_THREAD_COUNTS]; /* of 1, 2, 4 .. threads, below thread_count */
    struct machine_memory memory;
    struct machine_matrix matrices[MACHINE_TYPES];
    double step_seconds;                           /* of a step, beside its layers and its matrices */
    double layer_seconds;                          /* of a layer, beside its matrices and its attention */
    double layer_token_seconds;                    /* the same, of a token of a prefill block */
    struct machine_by_group attend_f16, attend_q8; /* bytes of KV per second that one row attends to */
    double attend_block;                           /* multiply-adds per second of prefill attention */
    struct machine_selection selections[MACHINE_SELECTIONS_MAX];
    struct machine_disk disk;
    struct machine_tier tier;
    /* A device with memory of its own, of which this is for weights and KV, of this machine's what is free now; 0: the
     * device is the processor.  All rates above but memory.copy and those of the disk are then the device's, and it
     * reads K and V in RAM over the link. */
    double device_bytes, device_link;
};

/* The numbers that not every plan needs, which are measured once somebody uses them. */
struct machine_use {
    uint64_t types;      /* a bit for each of machine.matrices */
    uint32_t selections; /* a bit for each of machine.selections */
    bool q8;             /* machine.attend_q8: of K and V in Q8_0 */
    bool threads;        /* machine.threads */
    bool disk;           /* machine.disk, machine.tier */
};
_Static_assert(MACHINE_TYPES <= 64 && MACHINE_SELECTIONS_MAX <= 32, "a bit for each");

/* Zeros, with the names of the selections. */
void machine_init(struct machine *machine);
/* Of the selections that the planner considers; with dials, of those that dial alone. */
uint32_t machine_use_planned(bool dials);
bool machine_knows_disk(const struct machine *machine);
/* What of it is not there. */
struct machine_use machine_lacks(const struct machine *machine, struct machine_use use);
bool machine_use_is_empty(struct machine_use use);
/* "leoam, Q4_K, 1 of 4 threads".  Returns buffer. */
enum { MACHINE_USE_BYTES = 200 };
const char *machine_use_text(const struct machine *machine, struct machine_use use, char buffer[MACHINE_USE_BYTES]);
/* "measured 2026-11-27 17:10 UTC, beside a load of 0.3", as far as it is known; "": nothing is.  Returns buffer. */
enum { MACHINE_WHEN_BYTES = 80 };
const char *machine_when(const struct machine *machine, char buffer[MACHINE_WHEN_BYTES]);
/* Beside such a load numbers are too low; below 0: not known. */
static inline bool machine_load_is_busy(double load) { return load >= 0.5; }
enum machine_check { MACHINE_HOLDS, MACHINE_IS_OFF, MACHINE_IS_BUSY };
/* Whether the numbers hold that memory.all is one of, by what it is now, beside this load.  Off: by a factor of 1.5.
 * Busy: slower by it because others compute; once they rest, the numbers hold.  0: it is not known. */
enum machine_check machine_check_memory(const struct machine *machine, double memory_all, double load);
/* The same machine with fewer threads: its rates are those.  false: that count was not measured. */
bool machine_with_threads(struct machine *fewer, const struct machine *machine, size_t thread_count);
/* The processor, at so many times its pace: another program, heat or a battery slows it.  The disk's numbers stay. */
void machine_set_pace(struct machine *machine, double pace);
/* NULL: that selection was not measured. */
const struct machine_selection *machine_find_selection(const struct machine *machine, const char *name);
/* Between groups of 1 and MACHINE_GROUP the numbers lie on a line, and beyond, too. */
double machine_by_group_at(struct machine_by_group numbers, double group);
/* Bytes per second of one row times a matrix with so many columns: the time of a matrix row is linear in them.  A type
 * without numbers has those of the type with the nearest bytes per element. */
double machine_matrix_rate(const struct machine *machine, enum tensor_type type, size_t columns);
double machine_matrix_block(const struct machine *machine, enum tensor_type type);
/* Bytes per second of reads of so many bytes, many in flight; linear in time between the sizes. */
double machine_disk_rate(const struct machine *machine, double bytes);
/* Until so many reads have come that are asked for at once: fewer and fewer are in flight. */
double machine_disk_seconds(const struct machine *machine, double bytes, double requests);
/* Reading a byte more with a request, many in flight, and its part of the checksum. */
double machine_tier_byte_seconds(const struct machine *machine);
/* Bytes that the disk reads in the time of one more request, many in flight, as requests of 4 and 16 KiB say: at least
 * 1, at most 1 MiB.  0: the disk was not measured. */
uint64_t machine_read_gap(const struct machine *machine);

/* STATUS_USAGE: one line with file, key, what was found and what is expected.  STATUS_IO: it cannot be read. */
enum status machine_load(struct machine *machine, const char *path, struct error *error) STATUS_CHECKED;
enum status machine_save(const struct machine *machine, const char *path, struct error *error) STATUS_CHECKED;
