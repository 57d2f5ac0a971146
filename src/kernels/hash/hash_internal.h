/* hash_internal: what the variants of hash share. */
#pragma once

#include "kernels/hash/hash.h"

/* A token's score is (offset + slope times what its code's bytes add up to) * scale * norm. */
struct hash_line {
    float offset, slope, scale;
};

void hash_avx512popcnt_install(struct hash_kernels *kernels); /* over hash_avx512_install */
void hash_avx512_score(const struct hash_score_args *args);
