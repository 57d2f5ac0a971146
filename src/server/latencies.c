#include "server/latencies.h"

const double histogram_bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                    1,     2.5,    5,     10,   30,    60,   120, 300,  1200};

static void add(struct histogram *histogram, double seconds) {
    size_t bucket = 0;
    while (bucket < HISTOGRAM_BUCKETS && seconds > histogram_bounds[bucket]) bucket++;
    atomic_fetch_add(&histogram->counts[bucket], 1);
    if (seconds > 0) atomic_fetch_add(&histogram->sum_ns, (uint64_t)(seconds * 1e9));
}

void latencies_note(struct latencies *latencies, const struct service_figures *figures) {
    const double first = figures->queue_seconds + figures->prefill_seconds;
    add(&latencies->queue, figures->queue_seconds);
    if (figures->answer_tokens > 0) add(&latencies->first_token, first);
    if (figures->answer_tokens > 1)
        add(&latencies->between_tokens, figures->decode_seconds / (double)(figures->answer_tokens - 1));
    add(&latencies->whole, first + figures->decode_seconds);
    const uint64_t tokens = figures->prompt_tokens + figures->answer_tokens;
    uint64_t seen = atomic_load(&latencies->tokens_max);
    while (tokens > seen && !atomic_compare_exchange_weak(&latencies->tokens_max, &seen, tokens)) {}
}
