/* compression: what share of a layer's reads to take in 4-bit form (LeoAM, section 4.4, "Dynamic KV compression").
 *
 * Reads of one layer hide under the computation of another.  With a share x of the data compressed
 *
 *     reading    T0 + D (1 - x) / B + D x delta / B      falls with x
 *     computing  Tc + D x / R                            rises with x: whoever computes also decodes
 *
 * so the longer of the two is least where they meet, or at an end:
 *
 *     x* = clamp((T0 + D / B - Tc) / (D ((1 - delta) / B + 1 / R)), 0, 1)
 *
 * A document's pages are of one form each, in sixteenths of a layer (cache/page_shares.h): compression_spread rounds.
 *
 * Differs from LeoAM: the paper's condition has t(D delta) where the time to decompress the share, t(D x), is meant
 * (delta is the ratio of sizes, and no choice).  t is bytes over a measured rate. */
#ifndef LOAM_PLAN_COMPRESSION_H
#define LOAM_PLAN_COMPRESSION_H

#include <stddef.h>
#include <stdint.h>

struct compression_costs {
    double bytes;       /* D: of the layer's reads as they are uncompressed */
    double read_rate;   /* B: bytes per second, of either form */
    double decode_rate; /* R: uncompressed bytes made per second */
    double
        ratio; /* delta: compressed by uncompressed bytes, padding of pages included; where requests cost as
                             * bytes do, the time of one by that of the other */
    double compute_seconds; /* Tc: of what the reads hide under */
    double other_seconds;   /* T0: before the reads can begin (metadata, selection) */
};

/* x*, 0 to 1.  Rates are positive; 0 where there is nothing to read or compressing saves nothing (ratio >= 1). */
double compression_share(const struct compression_costs *costs);
/* Shares of layers in sixteenths, with the sum that they have to within a half of one; and so over the first layers,
 * however many.  sensitivity: what 4 bits cost each layer, > 0 where it is known: the sum is then distributed by
 * share / sensitivity, as far as no layer has more than all.  A layer whose share is 0 keeps it.  NULL: as they are. */
void compression_spread(const double *shares, const float *sensitivity, size_t layer_count,
                        uint8_t *sixteenths);
/* The two sides, and the longer one. */
double compression_read_seconds(const struct compression_costs *costs, double share);
double compression_compute_seconds(const struct compression_costs *costs, double share);
double compression_layer_seconds(const struct compression_costs *costs, double share);

#endif
