/* leaves: the order in which the lanes of a score are added. */
#ifndef LOAM_KERNELS_ATTENTION_LEAVES_H
#define LOAM_KERNELS_ATTENTION_LEAVES_H

#include "kernels/floats.h"

/* The lanes of a register in the order of the leaves of the tree by which floats_sums_store adds them: neighbours
 * first, then pairs, and so on. */
#if defined(FLOATS_512)
static const uint8_t floats_leaves[FLOATS] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};
#elif defined(__aarch64__)
static const uint8_t floats_leaves[FLOATS] = {0, 4, 1, 5, 2, 6, 3, 7};
#else
static const uint8_t floats_leaves[FLOATS] = {0, 2, 1, 3, 4, 6, 5, 7};
#endif

#endif
