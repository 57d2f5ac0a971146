/* leaves: the order in which the lanes of a score are added. */
#pragma once

#include <stdint.h>

/* Elements d, d + 8, d + 16 ... of a row are added in lane d % 8, also where a register holds 16 floats (decode then
 * has two rows in it).  Here the lanes are in the order of the leaves of the tree by which decode adds them
 * (floats_sums_store, floats_sums_of_two): neighbours first, then pairs, and so on. */
enum { SCORE_LANES = 8 };
#if defined(__aarch64__)
static const uint8_t score_leaves[SCORE_LANES] = {0, 4, 1, 5, 2, 6, 3, 7};
#else
static const uint8_t score_leaves[SCORE_LANES] = {0, 2, 1, 3, 4, 6, 5, 7};
#endif
