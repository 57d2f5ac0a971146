/* rope: rotary position embedding (Su et al. 2021).
 *
 * Pair j of a head is rotated by position * frequency[j]; pairs are (2j, 2j+1) in the adjacent
 * order (llama GGUF files) or (j, j + dimension/2) in the split order (qwen).  The scaled
 * frequencies and YaRN's attention factor are the model's (src/model/rope_scaling.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/variants.h"

enum rope_order { ROPE_ADJACENT, ROPE_SPLIT };

struct rope_kernels {
    /* cosine_sine[2j] = factor * cos(position * frequency[j]), [2j+1] the sine; angles in double,
     * so that positions of a million and more keep their precision. */
    void (*angles)(uint64_t position, const float *frequency, size_t pair_count, float factor, float *cosine_sine);
    /* Rotates the first 2 * pair_count elements of each of head_count heads, in place. */
    void (*apply)(float *x, size_t head_count, size_t head_stride, size_t pair_count, enum rope_order order,
                  const float *cosine_sine);
};

KERNELS(rope);
