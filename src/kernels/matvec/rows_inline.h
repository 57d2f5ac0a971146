/* rows_inline: forces inlining, since inner loops are written once and specialised by constant arguments, which works
 * only if everything is inlined and unrolled.  Also the distances of prefetches. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL     _Pragma("clang loop unroll(full)")
#define ONE_BY_ONE _Pragma("clang loop unroll(disable)")
#else
#define UNROLL     _Pragma("GCC unroll 8")
#define ONE_BY_ONE _Pragma("GCC unroll 1")
#endif

enum {
    TILE_MAX = 8, /* inputs that share the unpacked codes of a group in registers */
    STREAMS_MAX = 4,
    GROUP_BYTES_MAX = 8 * 34,
};

/* Rows that a thread reads side by side, as far apart as its share of the rows allows.  One stream does not keep memory
 * busy: the hardware's prefetchers start anew at every page and are only a little ahead.  Measured 2026-11-21
 * on two Zen 3 cores, GB/s beside plain reads in the same run: F16 with 1, 2, 4 streams 22.4, 32, 38.7 of 28; Q8_0
 * 25.6, 30.7, 33.7 of 28; Q4_0 25.1, 31.5, 32.3 of 30; Q4_K 28.1, 31.0, 30.8 of 31; Q6_K 28.0, 30.4, 31.0 of 31.
 * From 2 inputs on computing is the longer part, and more accumulators than registers cost more than
 * streams win: at 3 inputs Q8_0 23, 23, 21, F16 22, 28, 25.  See bench/lab/matvec-streams.md. */
INLINE size_t row_streams(size_t input_count, size_t with_many) {
    return input_count == 1 ? 4 : input_count == 2 ? 2 : with_many;
}

/* How far ahead of its use a row's memory is prefetched; the sources for AVX-512 define ROWS_512 first.  Rows lie one
 * after another, so this runs into the next row; past the last row it prefetches unused memory, which is harmless.
 * Q4_0 of 8192 x 2048 on one Zen 5 core, share of plain reads in the same run (40 GB/s): 512 bytes ahead 0.78, 1 KiB
 * 0.86, 2 KiB 0.92, 3 KiB 0.89, 4 KiB 0.76; two threads 0.92 to 0.98 at 1 and 2 KiB. */
#if defined(ROWS_512)
enum { PREFETCH_AHEAD = 2048 };
#else
enum { PREFETCH_AHEAD = 1024 };
#endif

INLINE void prefetch_lines(const uint8_t *w, size_t bytes) {
    UNROLL for (size_t line = 0; line < bytes; line += 64) { __builtin_prefetch(w + PREFETCH_AHEAD + line); }
}
