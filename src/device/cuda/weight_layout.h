/* weight_layout: how a matrix lies in the device's memory.
 *
 * The blocks of a file (tensor/block.h) have odd sizes.  Here each kind of bits has a plane of its own, row
 * after row, a piece for each 32 columns, so that a lane's loads are aligned and neighbours' are side by side:
 *
 *   codes   4 bits: 16 bytes; column i < 16 is the low nibble of byte i, i + 16 the high one.  8 bits: 32 bytes.
 *           2 bits: two words; column e < 16 is bits 8 (e % 4) + 2 (e / 4) of the first, e + 16 of the second.
 *   high    Q5: a word, column e in bit 8 (e % 4) + e / 4.  Q6_K: two words, as 2-bit codes.  Q3_K: a word, as Q5.
 *   scales  Q4_0 Q5_0 Q8_0 IQ4_NL: a half.  Q4_1 Q5_1: two, scale and minimum.  Q2_K: two bytes, scale and minimum of
 *           each 16 in the nibbles of one.  Q3_K Q6_K: two int8, of each 16.
 *           For each 256 columns: Q4_K Q5_K 16 bytes, IQ4_XS 8, which are the first of the file's block.
 *   supers  for each 256 columns: Q3_K Q6_K a half, Q2_K two, scale and minimum.
 *
 * F32, F16 and BF16 are as in the file, in codes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tensor/type.h"

struct weight_plane_bytes {
    size_t codes, high, scales, supers; /* of a row; multiples of what is loaded at once */
};

struct weight_planes_host {
    uint8_t *codes, *high, *scales, *supers; /* those of a size 0 are not touched */
};

/* The type that kernels know a weight by: its own; F16 for those of points of grids and of 4-bit floats, which are
 * rounded to halves at upload (2^-11 of a weight). */
enum tensor_type weight_plane_type(enum tensor_type type);

/* For a row of `columns`, whole blocks.  Zeros: the device multiplies by no weights of this type. */
struct weight_plane_bytes weight_plane_row(enum tensor_type type, size_t columns);

/* Rows [row_begin, row_end) of a matrix into planes whose first row is row_begin.  scale: of a matrix whose plane type
 * is another than its own, what its values are multiplied by. */
void weight_repack(const struct matrix *matrix, float scale, size_t row_begin, size_t row_end,
                   const struct weight_planes_host *planes);
