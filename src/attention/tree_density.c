#include "attention/tree_density.h"

/* Of a new step in the average: some ten steps are remembered; of a probe, which is rare: the last few. */
static const double STEP_SHARE = 0.125, PROBE_SHARE = 0.5;
/* An evaluation that a search asks for, in those of nodes that follow each other in memory. */
static const double SCATTERED_COST = 1.0;

double tree_density_cost(const struct tree_density *density, enum tree_level leaf, enum tree_level start) {
    double cost = 1 / (double)tree_tokens(start);
    for (enum tree_level level = start; level > leaf; level--)
        cost +=
            SCATTERED_COST * (double)tree_children(level) * density->rho[level] / (double)tree_tokens(level);
    return cost;
}

static bool is_probe(const struct tree_density *density) {
    return density->steps >= TREE_FINE_STEPS && (density->steps - TREE_FINE_STEPS) % TREE_PROBE_STEPS == 0;
}

enum tree_level tree_density_start(const struct tree_density *density, enum tree_level leaf,
                                   size_t layer_index) {
    if (layer_index < TREE_FINE_LAYERS || density->steps < TREE_FINE_STEPS) return leaf;
    if (is_probe(density)) return TREE_RUN;
    enum tree_level best = leaf;
    for (enum tree_level level = leaf + 1; level <= density->measured; level++)
        if (tree_density_cost(density, leaf, level) < tree_density_cost(density, leaf, best)) best = level;
    return best;
}

void tree_density_add(struct tree_density *density, enum tree_level leaf, enum tree_level start,
                      const struct tree_counts *counts) {
    double share = is_probe(density) ? PROBE_SHARE : STEP_SHARE;
    density->steps++;
    for (enum tree_level level = leaf + 1; level <= start; level++) {
        if (counts->nodes[level] == 0) return; /* too short for more */
        double rho = (double)counts->opened[level] / (double)counts->nodes[level];
        if (level > density->measured) {
            density->measured = level;
            density->rho[level] = rho;
        }
        density->rho[level] += share * (rho - density->rho[level]);
    }
}
