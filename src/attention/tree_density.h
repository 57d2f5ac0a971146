/* tree_density: from which level a layer's search of the tree starts (LeoAM, 4.2, dynamic chunk resizing).
 *
 * A search that starts from level s evaluates every node of that level, and the children of every node that it opens:
 *   E(s) = N(s) + sum over the levels i from s down to the one above the leaves of  children(i) rho_i N(i)
 * N(i): nodes of level i; rho_i: the share of them that is opened, because more than k leaves may not lie above their
 * importance.  rho_i grows with the level.
 * Differs from [leoam]: Eq. 2, f(m) = m sum (2 rho)^i, has one density for all levels; a node twice as large is then
 * no likelier to hold an important token, so the sum shrinks faster than m does and, for every rho < 1/2, the
 * cheapest start is one node (tests/engine/test_tree_density.c shows both).
 *
 * What is minimised is that in time: an evaluation that a search asks for takes TREE_SCATTERED_COST of one in a row.
 *
 * Measured as an exponential average over a layer's steps: a search from level s opens every node of the levels up to
 * s that any search would, so it measures these; every TREE_PROBE_STEPS steps, each layer in another one, a probe
 * starts one level higher, to measure that (rho grows with the level, so the cheapest start is found by climbing).
 * As in the paper the first steps start from the leaves, and layers 0 and 1 always do (where they select at all).
 * What is chosen does not depend on any of this, only what it costs.
 */
#pragma once

#include "kernels/tree/tree.h"

enum { TREE_FINE_LAYERS = 2, TREE_FINE_STEPS = 4, TREE_PROBE_STEPS = 128 };
#define TREE_SCATTERED_COST 2.0 /* tree_search.c has the figures */

struct tree_density { /* of one layer; zero: nothing known */
    uint64_t steps;
    enum tree_level measured;     /* rho is known up to this level; 0: of none */
    double rho[TREE_LEVEL_COUNT]; /* [above the leaves]; opened / nodes */
};

/* Expected evaluations per token of the candidates, those that the search asks for times scattered_cost. */
double tree_density_cost(const struct tree_density *density, enum tree_level leaf, enum tree_level start,
                         double scattered_cost);
/* The level for the layer's next step. */
enum tree_level tree_density_start(const struct tree_density *density, enum tree_level leaf, size_t layer_index);
/* What a step from `start` has counted. */
void tree_density_add(struct tree_density *density, enum tree_level leaf, size_t layer_index, enum tree_level start,
                      const struct tree_counts *counts);
