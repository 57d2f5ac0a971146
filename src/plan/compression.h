/* compression: the fraction of a layer's reads to take in 4-bit form (LeoAM, section 4.4, "Dynamic KV compression").
 *
 * Reads of one layer overlap with the computation of another.  With a fraction x of the data compressed
 *
 *     reading    T0 + D (1 - x) / B + D x delta / B      falls with x
 *     computing  Tc + D x / R                            rises with x: the compute threads also decode
 *
 * The longer of the two is to be as short as can be.  With D as given that is where they meet, or at an end; D falls
 * with x where RAM holds the more the smaller it is, so plan/quantized_pages.h searches.
 *
 * Each page of a document has one form, so fractions are sixteenths of a layer (cache/page_fractions.h);
 * compression_spread rounds to them.
 *
 * Differs from LeoAM: the paper's condition has t(D delta), where it must be t(D x), the time to decompress the
 * fraction (delta is the given ratio of sizes, not a choice).  t is bytes over a measured rate. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct compression_costs {
    double bytes;       /* D: uncompressed bytes of the layer's reads */
    double read_rate;   /* B: bytes per second, in both forms */
    double decode_rate; /* R: uncompressed bytes decoded per second */
    /* delta: compressed over uncompressed bytes, with the padding of pages.  Where the disk's cost is per request as
     * well as per byte: the ratio of the two read times. */
    double ratio;
    double compute_seconds; /* Tc: the computation that overlaps with the reads */
    double other_seconds;   /* T0: before the reads can begin (key index, selection) */
};

/* Rounds the fractions of layers to sixteenths.  The sum over the first n layers, for every n, changes by at most
 * half a sixteenth.  sensitivity: each layer's error at 4 bits, > 0 where known.  The sum is then distributed by
 * fraction / sensitivity, up to 1 per layer; a fraction of 0 stays 0.  NULL: fractions are only rounded. */
void compression_spread(const double *fractions, const float *sensitivity, size_t layer_count, uint8_t *sixteenths);
/* Seconds of reading or of computing, whichever takes longer. */
double compression_layer_seconds(const struct compression_costs *costs, double fraction);
