/* latencies: how long requests took, counted for /metrics.  Thread-safe. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "server/service.h"

enum { HISTOGRAM_BUCKETS = 18 };
extern const double histogram_bounds[HISTOGRAM_BUCKETS]; /* seconds, upper bounds */

/* Zeros: empty. */
struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* the last: beyond all bounds */
    _Atomic uint64_t sum_ns;
};

struct latencies {
    struct histogram queue, first_token, between_tokens, whole;
    _Atomic uint64_t tokens_max; /* of a request, prompt and answer */
};

/* A request is done. */
void latencies_note(struct latencies *latencies, const struct service_figures *figures);
