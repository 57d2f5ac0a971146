/* random: xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64.
 * The same seed gives the same numbers on every machine and thread count. */
#pragma once

#include <stdint.h>

struct random {
    uint64_t state[4];
};

void random_init(struct random *random, uint64_t seed);
uint64_t random_next(struct random *random);
/* Uniform in [0, bound), without modulo bias; bound > 0. */
uint64_t random_below(struct random *random, uint64_t bound);
/* Uniform in [0, 1), 53 bits. */
double random_double(struct random *random);
/* Standard normal (Box-Muller, one of the pair). */
double random_normal(struct random *random);
