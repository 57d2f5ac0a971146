/* type: the element types of tensors, with the numbers that GGUF files carry.
 *
 * Quantised types store a row in blocks; a row's length is a multiple of the
 * block's.  The block layouts are in tensor/block.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q2_K = 10,
    TENSOR_Q3_K = 11,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_Q8_K = 15, /* activations only, never in a file of ours */
    TENSOR_IQ2_XXS = 16,
    TENSOR_IQ2_XS = 17,
    TENSOR_IQ3_XXS = 18,
    TENSOR_IQ1_S = 19,
    TENSOR_IQ4_NL = 20,
    TENSOR_IQ3_S = 21,
    TENSOR_IQ2_S = 22,
    TENSOR_IQ4_XS = 23,
    TENSOR_I8 = 24,
    TENSOR_I16 = 25,
    TENSOR_I32 = 26,
    TENSOR_I64 = 27,
    TENSOR_F64 = 28,
    TENSOR_IQ1_M = 29,
    TENSOR_BF16 = 30,
    TENSOR_MXFP4 = 39,
    TENSOR_NVFP4 = 40,
};

enum { TENSOR_TYPES = 41 }; /* of a table by type */

struct tensor_type_info {
    const char *name;        /* as printed and as given to `loam-lab quantize`: "Q4_K" */
    uint32_t block_elements; /* elements of one block; 1 for plain types */
    uint32_t block_bytes;
    bool is_weight; /* loam can multiply by a matrix of this type */
};

/* NULL for a number that is no type we know. */
const struct tensor_type_info *tensor_type_find(uint32_t number);

/* For a type that is known to be valid. */
const struct tensor_type_info *tensor_type_info(enum tensor_type type);

/* Case-insensitive; false when the name is unknown. */
bool tensor_type_parse(const char *name, enum tensor_type *type);

/* Bytes of a row; false when elements is no multiple of the block or the result overflows. */
bool tensor_row_bytes(enum tensor_type type, uint64_t elements, uint64_t *bytes);

/* A weight matrix as the model file holds it: w[row][column], rows = outputs, columns = inputs. */
struct matrix {
    enum tensor_type type;
    const void *data; /* borrowed; [rows] rows of row_bytes */
    size_t rows;      /* outputs, n */
    size_t columns;   /* inputs, k */
    size_t row_bytes;
};
