/* amx_emulation: the AMX tile intrinsics in plain C, for tests on machines without them.
 *
 * Include it after kernels/vector.h and before the source under test.  Tiles are this thread's; shapes
 * come from the configuration as on the processor.  dpbf16ps keeps the order of Intel's pseudocode
 * (the even elements of the pairs, then the odd ones) but not its flushing of denormals. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/half.h"

struct amx_tile {
    uint8_t bytes[16][64];
};

struct amx_state {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;
    struct amx_tile tile[8];
};

static _Thread_local struct amx_state amx_state;

static inline void amx_loadconfig(const void *config) {
    memcpy(&amx_state.config, config, 64);
    memset(amx_state.tile, 0, sizeof amx_state.tile);
    if (amx_state.config.palette != 1) abort(); /* the processor faults */
    for (int i = 0; i < 8; i++)
        if (amx_state.config.rows[i] > 16 || amx_state.config.row_bytes[i] > 64) abort();
}
static inline void amx_release(void) { memset(&amx_state, 0, sizeof amx_state); }
static inline void amx_zero(int t) { memset(&amx_state.tile[t], 0, sizeof amx_state.tile[t]); }
static inline void amx_load(int t, const void *base, size_t stride) {
    if (amx_state.config.palette != 1) abort();
    amx_zero(t);
    for (size_t row = 0; row < amx_state.config.rows[t]; row++)
        memcpy(amx_state.tile[t].bytes[row], (const char *)base + row * stride,
               amx_state.config.row_bytes[t]);
}
static inline void amx_store(int t, void *base, size_t stride) {
    if (amx_state.config.palette != 1) abort();
    for (size_t row = 0; row < amx_state.config.rows[t]; row++)
        memcpy((char *)base + row * stride, amx_state.tile[t].bytes[row], amx_state.config.row_bytes[t]);
}

/* c[m][n] += sum over k and pair of a[m][k][pair] * b[k][n][pair] */
static inline void amx_dpbf16ps(int c, int a, int b) {
    size_t rows = amx_state.config.rows[c], columns = amx_state.config.row_bytes[c] / 4u;
    size_t depth = amx_state.config.row_bytes[a] / 4u;
    if (amx_state.config.rows[b] != depth || amx_state.config.rows[a] != rows) abort();
    for (size_t m = 0; m < rows; m++)
        for (size_t n = 0; n < columns; n++) {
            float sum[2] = {0, 0}, total;
            for (size_t k = 0; k < depth; k++)
                for (size_t pair = 0; pair < 2; pair++) {
                    uint16_t x, y;
                    memcpy(&x, &amx_state.tile[a].bytes[m][4 * k + 2 * pair], 2);
                    memcpy(&y, &amx_state.tile[b].bytes[k][4 * n + 2 * pair], 2);
                    sum[pair] += bfloat_to_float(x) * bfloat_to_float(y);
                }
            memcpy(&total, &amx_state.tile[c].bytes[m][4 * n], 4);
            total += sum[0] + sum[1];
            memcpy(&amx_state.tile[c].bytes[m][4 * n], &total, 4);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)            amx_loadconfig(config)
#define _tile_release()                     amx_release()
#define _tile_zero(t)                       amx_zero(t)
#define _tile_loadd(t, base, stride)        amx_load(t, base, stride)
#define _tile_stream_loadd(t, base, stride) amx_load(t, base, stride)
#define _tile_stored(t, base, stride)       amx_store(t, base, stride)
#define _tile_dpbf16ps(c, a, b)             amx_dpbf16ps(c, a, b)
