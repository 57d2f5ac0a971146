/* The definition of the grids' blocks, an element at a time. */
#include "kernels/convert/grid.h"

#include <string.h>

#include "tensor/half.h"

static const int8_t levels_2[4] = {8, 25, 43, 0};
static const int8_t levels_1[4] = {-8, 0, 8, 0};
static const int8_t levels_3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t levels_3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* `count` elements of `bits` bits each, negative where `signs` has their bit. */
static void point_put(uint16_t point, const int8_t *levels, size_t count, unsigned bits, unsigned signs,
                      int8_t *codes) {
    for (size_t i = 0; i < count; i++, point = (uint16_t)(point >> bits), signs >>= 1) {
        const int8_t level = levels[point & ((1u << bits) - 1)];
        codes[i] = (int8_t)(signs & 1 ? -level : level);
    }
}

static void iq2_xxs_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq2_xxs block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d) / 8;
    for (size_t b = 0; b < 8; b++) {
        const uint32_t word = block.qs[b][2] | (uint32_t)block.qs[b][3] << 16, signs = grid_signs_get(word);
        target->scales[2 * b] = target->scales[2 * b + 1] = (int16_t)(2 * (word >> 28) + 1);
        for (size_t j = 0; j < 4; j++)
            point_put(grid_iq2_xxs[block.qs[b][j / 2] >> 8 * (j % 2) & 255], levels_2, 8, 2, signs >> 8 * j & 255,
                      target->codes + 32 * b + 8 * j);
    }
}

static void iq2_xs_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq2_xs block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d) / 8;
    for (size_t g = 0; g < 16; g++) target->scales[g] = (int16_t)(2 * (block.scales[g / 2] >> 4 * (g % 2) & 15) + 1);
    for (size_t j = 0; j < 32; j++)
        point_put(grid_iq2_xs[block.qs[j] & 511], levels_2, 8, 2, grid_signs_get(block.qs[j] >> 9) & 255,
                  target->codes + 8 * j);
}

static void iq2_s_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq2_s block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d) / 8;
    for (size_t g = 0; g < 16; g++) target->scales[g] = (int16_t)(2 * (block.scales[g / 2] >> 4 * (g % 2) & 15) + 1);
    for (size_t j = 0; j < 32; j++)
        point_put(grid_iq2_s[block.qs[j] | (block.qh[j / 4] >> 2 * (j % 4) & 3) << 8], levels_2, 8, 2, block.signs[j],
                  target->codes + 8 * j);
}

static void iq3_xxs_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq3_xxs block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d) / 4;
    for (size_t b = 0; b < 8; b++) {
        const uint32_t word = block.signs[b][0] | (uint32_t)block.signs[b][1] << 16, signs = grid_signs_get(word);
        target->scales[2 * b] = target->scales[2 * b + 1] = (int16_t)(2 * (word >> 28) + 1);
        for (size_t j = 0; j < 8; j++)
            point_put(grid_iq3_xxs[block.qs[8 * b + j]], levels_3_xxs, 4, 3, signs >> 4 * j & 15,
                      target->codes + 32 * b + 4 * j);
    }
}

static void iq3_s_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq3_s block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d);
    for (size_t b = 0; b < 8; b++) {
        target->scales[2 * b] = target->scales[2 * b + 1] =
            (int16_t)(2 * (block.scales[b / 2] >> 4 * (b % 2) & 15) + 1);
        for (size_t j = 0; j < 8; j++)
            point_put(grid_iq3_s[block.qs[8 * b + j] | (block.qh[b] >> j & 1) << 8], levels_3_s, 4, 3,
                      block.signs[4 * b + j / 2] >> 4 * (j % 2) & 15, target->codes + 32 * b + 4 * j);
    }
}

/* 8·level plus or minus 1. */
static void iq1_point_put(uint16_t point, bool is_less, int8_t *codes) {
    point_put(point, levels_1, 8, 2, 0, codes);
    for (size_t i = 0; i < 8; i++) codes[i] = (int8_t)(codes[i] + (is_less ? -1 : 1));
}

static void iq1_s_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq1_s block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(block.d) / 8;
    for (size_t b = 0; b < 8; b++) {
        const uint16_t word = block.qh[b];
        target->scales[2 * b] = target->scales[2 * b + 1] = (int16_t)(2 * (word >> 12 & 7) + 1);
        for (size_t j = 0; j < 4; j++)
            iq1_point_put(grid_iq1[block.qs[4 * b + j] | (word >> 3 * j & 7) << 8], word >> 15,
                          target->codes + 32 * b + 8 * j);
    }
}

static void iq1_m_unpack(const uint8_t *source, struct grid_block *target) {
    struct block_iq1_m block;
    memcpy(&block, source, sizeof block);
    target->d = half_to_float(iq1_m_half_get(block.scales)) / 8;
    for (size_t g = 0; g < 16; g++) target->scales[g] = (int16_t)(2 * (block.scales[g / 4] >> 3 * (g % 4) & 7) + 1);
    for (size_t j = 0; j < 32; j++) {
        const unsigned high = block.qh[j / 2] >> 4 * (j % 2) & 15;
        iq1_point_put(grid_iq1[block.qs[j] | (high & 7) << 8], high >> 3, target->codes + 8 * j);
    }
}

grid_unpack *grid_unpack_find(enum tensor_type type) {
    static grid_unpack *const unpack[TENSOR_TYPES] = {
        [TENSOR_IQ1_S] = iq1_s_unpack,   [TENSOR_IQ1_M] = iq1_m_unpack, [TENSOR_IQ2_XXS] = iq2_xxs_unpack,
        [TENSOR_IQ2_XS] = iq2_xs_unpack, [TENSOR_IQ2_S] = iq2_s_unpack, [TENSOR_IQ3_XXS] = iq3_xxs_unpack,
        [TENSOR_IQ3_S] = iq3_s_unpack,
    };
    return unpack[type];
}
