/* rope_scaling: the rotation frequencies of a model, with its context extension applied.
 *
 * Pair j of a head of `dimension` rotated elements turns by position * base^(-2j / dimension), and:
 *   linear  divides every frequency by the factor (Chen et al. 2023);
 *   YaRN    keeps fast pairs, divides slow ones, ramps between (Peng et al. 2023, section 3.2), and scales
 *           cos and sin by 0.1 ln(factor) + 1 (their equation 22, on q and k alike);
 *   llama3  divides pair j by its own factor, from tensor rope_freqs.weight or computed from keys.
 * Tables are computed in double and stored as floats, as the reference implementations store them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"

enum { ROPE_PAIRS_MAX = 512 }; /* of a head: half of the largest head dimension */

/* 0.1 * multiplier * ln(factor) + 1, and 1 for a factor of at most 1. */
double rope_yarn_magnitude(double factor, double multiplier);

/* The llama3 divisors of the pairs: 1 for wavelengths under original_context / high_factor, `factor` for
 * those over original_context / low_factor, smooth between.  divisors: [dimension / 2]. */
void rope_llama3_divisors(double base, size_t dimension, double factor, double low_factor, double high_factor,
                          double original_context, double *divisors);

/* frequency: [rotated / 2], of layers that rotate so many elements of a head.  divisors: the contents of
 * rope_freqs.weight, or NULL. */
void rope_frequencies(const struct model_config *config, size_t rotated, const float *divisors, float *frequency);
