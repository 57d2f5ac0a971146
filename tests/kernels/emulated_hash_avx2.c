#define LOAM_SIMDE
#define hash_avx512_install emulated_hash_avx512_install
#define hash_avx512_score   emulated_hash_avx512_score
#include "kernels/hash/hash_avx512.c"
#include "selection_emulated.h"
