/* attended: attention of sampled queries over given keys and values, in plain loops on the pool.  Exact, or over only
 * the sinks and the recent tokens. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"
#include "lab/calibrate/samples.h"
#include "platform/pool.h"

struct attended_args {
    const struct samples *samples;
    size_t layer, window, query_first, query_count; /* of the window's sampled queries */
    const float *keys;                              /* [kv_head_count][window_size][k_dimension] */
    const float *values;                            /* [kv_head_count][window_size][v_dimension] */
    bool stream; /* only the first `sinks` and the last `recent` tokens, the query's own among them */
    size_t sinks, recent;
    float *scratch; /* [threads][window_size] */
    float *out;     /* [query_count][head_count][v_dimension] */
};

void attended_run(struct pool *pool, const struct attended_args *args);

/* A layer's keys and values of a window, in the shapes above. */
enum status attended_load(const struct samples *samples, size_t layer, size_t window, float *keys, float *values,
                          struct error *error) STATUS_CHECKED;
/* A layer's W_O as floats, [hidden_size][head_count * v_dimension].  STATUS_UNSUPPORTED: it has other columns. */
enum status attended_load_output(const struct samples *samples, const struct kernels *kernels, size_t layer,
                                 float *output, struct error *error) STATUS_CHECKED;
