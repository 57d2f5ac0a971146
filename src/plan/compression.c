#include "plan/compression.h"

#include <math.h>

#include "base/assert.h"

double compression_read_seconds(const struct compression_costs *costs, double share) {
    double bytes = costs->bytes * (1 - share) + costs->bytes * share * costs->ratio;
    return costs->other_seconds + bytes / costs->read_rate;
}

double compression_compute_seconds(const struct compression_costs *costs, double share) {
    return costs->compute_seconds + costs->bytes * share / costs->decode_rate;
}

double compression_layer_seconds(const struct compression_costs *costs, double share) {
    return fmax(compression_read_seconds(costs, share), compression_compute_seconds(costs, share));
}

double compression_share(const struct compression_costs *costs) {
    ASSERT(costs->read_rate > 0 && costs->decode_rate > 0);
    if (!(costs->bytes > 0) || !(costs->ratio < 1)) return 0;
    double late = compression_read_seconds(costs, 0) - compression_compute_seconds(costs, 0);
    double gained = costs->bytes * ((1 - costs->ratio) / costs->read_rate + 1 / costs->decode_rate);
    return fmin(fmax(late / gained, 0), 1);
}
