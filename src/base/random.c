#include "base/random.h"

#include <math.h>

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void random_init(struct random *random, uint64_t seed) {
    for (int i = 0; i < 4; i++) random->state[i] = splitmix64(&seed);
}

static uint64_t rotate_left(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

uint64_t random_next(struct random *random) {
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t random_below(struct random *random, uint64_t bound) {
    uint64_t limit = -bound % bound; /* 2^64 mod bound: below it the low values would be too frequent */
    for (;;) {
        uint64_t value = random_next(random);
        if (value >= limit) return value % bound;
    }
}

double random_double(struct random *random) { return (double)(random_next(random) >> 11) * 0x1.0p-53; }

double random_normal(struct random *random) {
    double u = 1.0 - random_double(random), v = random_double(random);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
