/* rows_inline: inner loops are written once and specialised by constant arguments, which only works when
 * everything is inlined and unrolled; and how far ahead rows are fetched. */
#ifndef LOAM_KERNELS_MATVEC_ROWS_INLINE_H
#define LOAM_KERNELS_MATVEC_ROWS_INLINE_H

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    TILE_MOST = 4, /* inputs that share the unpacked codes of a group in registers */
    GROUP_BYTES_MOST = 8 * 34,
};

/* How far ahead of its use a row's memory is asked for.  Rows lie one after another, so this runs into the
 * next row; past the last row it asks for what is not used, which is harmless. */
enum { PREFETCH_AHEAD = 2048 };

INLINE void prefetch_lines(const uint8_t *w, size_t bytes) {
    UNROLL for (size_t line = 0; line < bytes; line += 64) { __builtin_prefetch(w + PREFETCH_AHEAD + line); }
}

#endif
