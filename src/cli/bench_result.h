/* bench_result: the result of one test of `loam bench`, and the printing of its row.  Private to the bench command:
 * bench.c measures, bench_print.c prints. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"
#include "cli/plan.h"
#include "device/device.h"

enum { BENCH_SAMPLES_MAX = 1000 };

enum bench_format { BENCH_MD, BENCH_JSON, BENCH_JSONL, BENCH_CSV };

struct bench_model { /* the same in every row */
    const char *path, *architecture, *kernels, *cpu, *device;
    size_t device_layers; /* in the memory of a device that has its own; 0: it has none */
    uint64_t bus_bytes;   /* of weights in RAM that it reads for each pass */
    char type[96];        /* "llama 1.24B Q4_K - Medium" */
    uint64_t size_bytes, parameter_count;
    uint64_t weight_bytes_per_token; /* read by one decode step, whatever the batch */
};

/* Of all repetitions of a test. */
struct bench_counts {
    struct select_statistics select;
    struct list_buffer_counts lists; /* zeros: no head has a buffer */
    struct device_counts device;     /* and of what makes the repetitions ready */
    struct fetch_counts fetched;     /* the same, of units; zeros where the device has no slots */
    uint64_t unit_bytes;             /* of the device's memory, that these have */
    struct kv_tier_statistics tier;  /* host_bytes at their end; zeros: all KV in RAM */
    struct rebuild_statistics rebuilt;
};

struct bench_kv_bytes {
    uint64_t per_token; /* with the key index */
    uint64_t row;       /* K and V of a token of one KV head */
    uint64_t step;      /* that a step of one sequence reads, at mid test */
};

struct bench_test {
    uint64_t prompt_count, generate_count, depth, sequence_count;
    bool random_depth; /* the depth is filled with random KV */
    bool replays;      /* depth and steps use the KV of a recording */
    uint64_t batch, ubatch, threads;
    enum kv_type k_type, v_type;
    const struct plan *plan;
    struct bench_kv_bytes kv_bytes;
    /* Of the first sequence, borrowed; NULL: all its pages have one form */
    const struct page_fractions *fractions;
    uint64_t fractions_tokens; /* of the sequence */
    struct bench_counts counted;
    time_t time;
    size_t sample_count;
    uint64_t samples_ns[BENCH_SAMPLES_MAX];
    /* Bytes per second of plain reads between the steps of a repetition; 0: not requested, or not only steps. */
    double read_rates[BENCH_SAMPLES_MAX];
};

struct bench_statistics {
    double mean_ns, deviation_ns, mean_rate, deviation_rate; /* rates in tokens per second */
};

struct bench_statistics bench_statistics(const struct bench_test *test);
/* Whether the test only decodes: memory bandwidth does not limit prefill. */
bool bench_measures_floor(const struct bench_test *test);
/* Bytes that a decode step must read: the weights once and, for every sequence at mid test, the KV it attends to and
 * the key index it scores. */
uint64_t bench_step_bytes(const struct bench_model *model, const struct bench_test *test);

struct bench_printer {
    enum bench_format format;
    const struct bench_model *model;
    bool has_floor, shows_batch, shows_ubatch, shows_k, shows_v, shows_reuse,
        shows_heads; /* columns after the usual ones */
    size_t row_count;
};

void bench_print_head(struct bench_printer *printer);
enum status bench_print_row(struct bench_printer *printer, const struct bench_test *test, struct error *error)
    STATUS_CHECKED;
enum status bench_print_end(struct bench_printer *printer, struct error *error) STATUS_CHECKED;
