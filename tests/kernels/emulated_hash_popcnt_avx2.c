#define LOAM_SIMDE
#define hash_avx512popcnt_install emulated_hash_avx512popcnt_install
#define hash_avx512_score         emulated_hash_avx512_score
#include "kernels/hash/hash_avx512popcnt.c"
#include "selection_emulated.h"
