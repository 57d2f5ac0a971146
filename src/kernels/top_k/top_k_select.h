/* The selection of top_k; included by top_k_avx2.c, top_k_avx512.c and top_k_neon.c, which define collect and keep.
 *
 * Mapping: a sample of up to 2048 scores, spread evenly, gives a threshold that is very likely a little below the
 * k-th largest score; one pass compares all scores with it, 64 to a mask, and lists the bits of the masks:
 * the candidates, 1.1 to 2 k of them; the k-th largest key of these comes from histograms, and a last pass keeps
 * the scores that are not below it.  Bits are listed eight at a time, even where there are fewer: a loop over the set
 * bits mispredicts at the end of every mask.  Where the threshold was too high or let too many pass (a third of
 * all scores equal, say), the reference does the work: the result is exact in any case.
 * Bytes: 4 per score, once, as they come out of the scoring: mostly from L2.
 * Bound: the comparisons at small k / count, the listing and the histograms at large.  Reached, one core of an AMD
 * EPYC (Zen 3), 2026-11-21, k 2048, scores in L2, us: 9.5 of 8K, 16 of 32K, 36 of 128K; scoring the tokens by 128-bit
 * codes takes 7, 31 and 140.
 */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/floats.h"
#include "kernels/top_k/top_k_internal.h"

enum {
    BIN_BITS = 10,
    BINS = 1 << BIN_BITS,
    SAMPLE_MAX = 2048,
    COUNT_SMALL = 1024, /* from here on a sample is worth it */
    SLACK = 64          /* a compressing store writes a whole register; the capacity is checked once per SLACK */
};

struct candidates {
    uint32_t *indices; /* [capacity + SLACK], ascending */
    uint32_t *keys;    /* [capacity + SLACK] */
    uint32_t *ranked;  /* [capacity + SLACK]: a copy of the keys to be reordered */
    size_t capacity;
};

/* Bit i: scores[i] is not below the threshold (or is NaN). */
static uint64_t mask_of(const float *scores, float threshold);
/* Moves the indices of candidates [begin, end) with keys of key_min or more to place `at` on.  Returns the place
 * behind them. */
static size_t keep(struct candidates *set, size_t begin, size_t end, uint32_t key_min, size_t at);

FLOATS_INLINE size_t candidate_capacity(size_t count, size_t k) { return min_size(count, 4 * k + 8192); }

static size_t scratch_bytes(size_t count, size_t k) {
    size_t capacity = align_up(candidate_capacity(count, k) + SLACK, 16);
    return sizeof(uint32_t) * (BINS + SAMPLE_MAX + 3 * capacity);
}

static float key_score(uint32_t key) {
    if (key == UINT32_MAX) return NAN;
    return bits_to_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key);
}

/* The rank-th largest (from 1) of `count` keys, which it reorders.  Also how many equal to it belong to the `rank`
 * largest, and how many equal to it there are. */
struct ranked_key {
    uint32_t key;
    size_t wanted, equal;
};

static struct ranked_key key_ranked(uint32_t *keys, size_t count, size_t rank, uint32_t *bins) {
    for (;;) {
        uint32_t low = UINT32_MAX, high = 0;
        for (size_t i = 0; i < count; i++) {
            low = keys[i] < low ? keys[i] : low;
            high = keys[i] > high ? keys[i] : high;
        }
        if (low == high) return (struct ranked_key){low, rank, count};
        int bits = 32 - __builtin_clz(high - low), shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
        uint32_t bin = (high - low) >> shift;
        size_t kept = 0;
        memset(bins, 0, (bin + 1) * sizeof *bins);
        for (size_t i = 0; i < count; i++) bins[(keys[i] - low) >> shift]++;
        if (rank <= count / 2) {
            while (bins[bin] < rank) rank -= bins[bin--];
        } else { /* from below, with the rank from below */
            size_t below = count - rank + 1;
            for (bin = 0; bins[bin] < below; bin++) below -= bins[bin];
            rank = bins[bin] - below + 1;
        }
        if (shift == 0) return (struct ranked_key){low + bin, rank, bins[bin]};
        for (size_t i = 0; i < count; i++) {
            uint32_t key = keys[i];
            if (__builtin_expect((key - low) >> shift == bin, 0)) keys[kept++] = key;
        }
        count = kept;
    }
}

/* A score below which all but about k, and a few more, of the scores lie. */
static float threshold_of(const struct top_k_args *args, uint32_t *bins, uint32_t *sample) {
    const size_t count = args->count, size = min_size(count / 32, SAMPLE_MAX);
    if (count < COUNT_SMALL) return -INFINITY;
    const double expected = (double)size * (double)args->k / (double)count;
    const double rank = expected + 3 * sqrt(expected) + 4;
    if (rank >= (double)size) return -INFINITY;
    const uint64_t step = count / size;
    for (size_t i = 0; i < size; i++) { /* one per step scores, at places without a period */
        uint64_t place = (uint32_t)i * 2654435761u * step >> 32;
        sample[i] = float_to_bits(args->scores[i * step + place]);
    }
    for (size_t i = 0; i < size; i++) sample[i] = top_k_key(bits_to_float(sample[i]));
    return key_score(key_ranked(sample, size, (size_t)rank, bins).key);
}

/* Lists the scores that are not below the threshold; returns how many.  More than the capacity: it stopped. */
static size_t collect(const struct top_k_args *args, float threshold, struct candidates *set) {
    size_t found = 0, i = 0;
    for (; i + SLACK <= args->count && found <= set->capacity; i += SLACK) {
        uint64_t mask = mask_of(args->scores + i, threshold);
        uint32_t *list = set->indices + found, *end = list + __builtin_popcountll(mask);
        do {
            FLOATS_UNROLL
            for (size_t n = 0; n < 8; n++) {
                list[n] = (uint32_t)(i + (size_t)__builtin_ctzll(mask | (uint64_t)1 << 63));
                mask &= mask - 1;
                __asm__("" : "+r"(mask)); /* else the eight are first gathered into a register, which is slower */
            }
            list += 8;
        } while (__builtin_expect(list < end, 0));
        found = (size_t)(end - set->indices);
    }
    for (; i < args->count && found <= set->capacity; i++) {
        set->indices[found] = (uint32_t)i;
        found += !(args->scores[i] < threshold);
    }
    return found;
}

static void select_largest(const struct top_k_args *args) {
    uint32_t *bins = args->scratch, *sample = bins + BINS;
    struct candidates set = {.capacity = candidate_capacity(args->count, args->k)};
    const size_t stride = align_up(set.capacity + SLACK, 16);
    set.keys = sample + SAMPLE_MAX;
    set.indices = set.keys + stride;
    set.ranked = set.indices + stride;
    if (args->k == 0 || args->k >= args->count) {
        top_k_ref(args);
        return;
    }
    size_t count = collect(args, threshold_of(args, bins, sample), &set);
    if (count < args->k || count > set.capacity) {
        top_k_ref(args);
        return;
    }
    for (size_t i = 0; i < count; i++) set.keys[i] = float_to_bits(args->scores[set.indices[i]]);
    for (size_t i = 0; i < count; i++) set.ranked[i] = set.keys[i] = top_k_key(bits_to_float(set.keys[i]));
    struct ranked_key last = key_ranked(set.ranked, count, args->k, bins);
    size_t split = count; /* ties are taken up to here */
    if (last.wanted < last.equal)
        for (split = 0; last.wanted > 0; split++) last.wanted -= set.keys[split] == last.key;
    size_t taken = keep(&set, 0, split, last.key, 0);
    if (last.key != UINT32_MAX) keep(&set, split, count, last.key + 1, taken);
    for (size_t i = 0; i < args->k; i++) args->indices[i] = set.indices[i] + args->index_first;
}

FLOATS_INSTALL(top_k, top_k) {
    *kernels = (struct top_k_kernels){.select = select_largest, .scratch_bytes = scratch_bytes};
}
