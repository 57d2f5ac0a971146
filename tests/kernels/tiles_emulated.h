/* tiles_emulated: the AMX tile instructions that loam uses, in plain C, so that the source of the AMX
 * kernel runs in tests on any machine.  Semantics: Intel's instruction set reference; rows and row bytes come
 * from the configuration, and using a tile without one fails the test. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/vector.h"
#include "tensor/half.h"

static struct {
    uint8_t data[8][16][64];
    uint16_t row_bytes[8];
    uint8_t rows[8];
} tiles;

static inline void tiles_load_configuration(const void *memory) {
    const uint8_t *bytes = memory;
    if (bytes[0] != 1) abort();
    memcpy(tiles.row_bytes, bytes + 16, sizeof tiles.row_bytes);
    memcpy(tiles.rows, bytes + 48, sizeof tiles.rows);
    memset(tiles.data, 0, sizeof tiles.data);
}

static inline void tiles_release(void) { memset(&tiles, 0, sizeof tiles); }

static inline void tile_load(size_t tile, const void *base, size_t stride) {
    if (tiles.rows[tile] == 0) abort();
    for (size_t r = 0; r < tiles.rows[tile]; r++)
        memcpy(tiles.data[tile][r], (const char *)base + r * stride, tiles.row_bytes[tile]);
}

static inline void tile_store(size_t tile, void *base, size_t stride) {
    if (tiles.rows[tile] == 0) abort();
    for (size_t r = 0; r < tiles.rows[tile]; r++)
        memcpy((char *)base + r * stride, tiles.data[tile][r], tiles.row_bytes[tile]);
}

static inline float tile_bf16_get(size_t tile, size_t row, size_t index) {
    uint16_t value;
    memcpy(&value, tiles.data[tile][row] + 2 * index, sizeof value);
    return bfloat_to_float(value);
}

static inline void tile_multiply_bf16(size_t c, size_t a, size_t b) {
    if (tiles.rows[b] * 4u != tiles.row_bytes[a] || tiles.rows[c] != tiles.rows[a]) abort();
    for (size_t m = 0; m < tiles.rows[c]; m++)
        for (size_t n = 0; n < tiles.row_bytes[c] / 4u; n++) {
            float sum;
            memcpy(&sum, tiles.data[c][m] + 4 * n, sizeof sum);
            for (size_t k = 0; k < tiles.rows[b]; k++) {
                sum += tile_bf16_get(a, m, 2 * k) * tile_bf16_get(b, k, 2 * n);
                sum += tile_bf16_get(a, m, 2 * k + 1) * tile_bf16_get(b, k, 2 * n + 1);
            }
            memcpy(tiles.data[c][m] + 4 * n, &sum, sizeof sum);
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(memory)         tiles_load_configuration(memory)
#define _tile_release()                  tiles_release()
#define _tile_loadd(tile, base, stride)  tile_load(tile, base, stride)
#define _tile_stored(tile, base, stride) tile_store(tile, base, stride)
#define _tile_dpbf16ps(c, a, b)          tile_multiply_bf16(c, a, b)
