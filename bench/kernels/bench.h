/* bench: the options and measurements that the kernel benchmarks share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "platform/cpu.h"

struct bench_options {
    const char *op, *type; /* NULL: all */
    size_t threads;        /* 0: 1 and all */
    size_t inputs;
    size_t rows, columns; /* 0: the shapes of a 1B model */
    size_t buffer_mib;    /* 0: 512; small to measure from the caches */
    cpu_mask mask;
    double seconds; /* per case */
    bool csv;
};

int bench_matvec(const struct bench_options *options);
int bench_matmul(const struct bench_options *options); /* inputs 1: 8, 32, 512 and 2048 */
int bench_attention(const struct bench_options *options);
int bench_codec(const struct bench_options *options);
int bench_selection(const struct bench_options *options); /* type: how the case's name begins */

struct pool;
/* Calls run with a pool of one thread and with one of all, or with one of --threads.  1, and a line on standard
 * error: there is none. */
int bench_pools(const struct bench_options *options,
                void (*run)(const struct bench_options *options, struct pool *pool, void *context),
                void *context);

double median(double *values, size_t count); /* sorts them */
