/* context: one card in use: its properties, its first error, and what was asked of it.
 *
 * Calls that put work on a stream return nothing.  A context that the driver reports an error of is broken: it keeps
 * the first error, and later work is dropped, until the context is closed.  Running out of memory breaks nothing.
 *
 * Thread: the thread that opened it, but for cuda_flag_raise and cuda_flag_value (flag.h).
 */
#pragma once

#include "device/cuda/driver.h"

enum { CUDA_CAPABILITY_MIN = 80, CUDA_FLAGS_MAX = 64, CUDA_FLAG_BYTES = 64 };

struct cuda_counts {         /* since the context was opened */
    uint64_t launches;       /* kernels, those of graphs included */
    uint64_t graphs, graph_changes, graph_launches; /* captures, changes, replays */
    uint64_t copies, copied_bytes;
    uint64_t waits; /* for flags, by streams */
    /* Of many rows, attention of prompts too, put on a stream or into a graph; those by wgmma. */
    uint64_t products, wgmma_products;
};

struct cuda_options {
    uint64_t wait_limit_ns; /* without any progress of a stream that the host waits for; 0: 20 s */
};

struct cuda_context {
    const struct cuda_driver *driver; /* borrowed */
    struct cuda_properties properties;
    int32_t device;
    struct cu_context *handle; /* NULL: closed */
    bool has_stream_waits;     /* a stream can wait for a word in memory; else the host waits in its place */
    uint64_t wait_limit_ns;
    struct error error; /* the first that broke it */
    bool is_stuck;      /* work that never ends: the driver would wait for it in every call that frees */
    struct cuda_counts counts;

    /* flag.h */
    uint8_t *flag_words;   /* pinned, [CUDA_FLAGS_MAX][CUDA_FLAG_BYTES]: a flag has a cache line for itself */
    uint64_t flag_address; /* of flag_words, for the card */
    uint64_t flags_in_use; /* bits */
    uint32_t flag_awaited[CUDA_FLAGS_MAX]; /* the largest value that a stream was made to wait for */
};

/* STATUS_UNSUPPORTED: the card is too old; STATUS_USAGE: there is no such index. */
enum status cuda_context_open(struct cuda_context *context, const struct cuda_driver *driver, uint32_t index,
                              const struct cuda_options *options, struct error *error) STATUS_CHECKED;
/* All that was created in it must be gone.  A closed one: allowed. */
void cuda_context_close(struct cuda_context *context);

/* The first error, or STATUS_OK. */
enum status cuda_context_status(const struct cuda_context *context, struct error *error) STATUS_CHECKED;

/* Device memory that is free, by the driver, and all. */
enum status cuda_memory_read(struct cuda_context *context, uint64_t *free_bytes, uint64_t *total_bytes,
                             struct error *error) STATUS_CHECKED;

/* Programmatic dependent launch, which a driver need not take for an older card. */
static inline bool cuda_starts_early(const struct cuda_context *context) {
    return context->properties.capability >= 90;
}

/* For the files of this folder.  Whether work may be put on it; whether the call succeeded, and if not, the context is
 * broken from now on. */
static inline bool cuda_context_works(const struct cuda_context *context) { return context->error.status == STATUS_OK; }
bool cuda_context_check(struct cuda_context *context, enum cu_result result, const char *what);
