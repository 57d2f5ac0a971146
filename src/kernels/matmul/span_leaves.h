/* span_leaves: how matmul walks through a span of blocks (kernels/span.h), whose lanes are added in a tree.
 *
 * Lanes are computed in the order of the leaves of their tree, so that few sums wait instead of eight: each lane is
 * added to the sums that wait for it.  The first and the second block of a lane follow each other, and inputs lie
 * in this order (span_place), so that they are read as one stream. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/checked.h"
#include "kernels/span.h"

/* A lane, and the number of waiting sums to add it to, the last that began to wait first; then it waits itself. */
struct span_leaf {
    uint8_t lane, joins;
};

enum { SPAN_WAITING_MAX = 3 };

/* By the number of lanes, minus one: the last span of a row may be short. */
static const struct span_leaf span_leaves[SPAN_LANES][SPAN_LANES] = {
    {{0, 0}},
    {{0, 0}, {1, 1}},
    {{0, 0}, {2, 1}, {1, 1}},
    {{0, 0}, {2, 1}, {1, 0}, {3, 2}},
    {{0, 0}, {4, 1}, {2, 1}, {1, 0}, {3, 2}},
    {{0, 0}, {4, 1}, {2, 1}, {1, 0}, {5, 1}, {3, 2}},
    {{0, 0}, {4, 1}, {2, 0}, {6, 2}, {1, 0}, {5, 1}, {3, 2}},
    {{0, 0}, {4, 1}, {2, 0}, {6, 2}, {1, 0}, {5, 1}, {3, 0}, {7, 3}},
};

/* The place of block `block`, of a span of block_count blocks, in the inputs. */
static inline size_t span_place(size_t block, size_t block_count) {
    const struct span_leaf *leaf = span_leaves[min_size(block_count, SPAN_LANES) - 1];
    size_t place = 0;
    for (; leaf->lane != block % SPAN_LANES; leaf++) place += (size_t)leaf->lane + SPAN_LANES < block_count ? 2 : 1;
    return place + block / SPAN_LANES;
}
