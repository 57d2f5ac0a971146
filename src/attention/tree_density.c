#include "attention/tree_density.h"

/* Of a new step in the average: some ten steps are remembered; of a level that only probes measure, the last few. */
static const double STEP_SHARE = 0.125, PROBE_SHARE = 0.5;

double tree_density_cost(const struct tree_density *density, enum tree_level leaf, enum tree_level start,
                         double scattered_cost) {
    double cost = 1 / (double)tree_tokens(start);
    for (enum tree_level level = start; level > leaf; level--)
        cost += scattered_cost * (double)tree_children(level) * density->rho[level] / (double)tree_tokens(level);
    return cost;
}

/* The cheapest of the levels that are known. */
static enum tree_level cheapest(const struct tree_density *density, enum tree_level leaf) {
    enum tree_level best = leaf;
    for (enum tree_level level = leaf + 1; level <= density->measured; level++)
        if (tree_density_cost(density, leaf, level, TREE_SCATTERED_COST) <
            tree_density_cost(density, leaf, best, TREE_SCATTERED_COST))
            best = level;
    return best;
}

static bool is_probe(const struct tree_density *density, size_t layer_index) {
    return density->steps >= TREE_FINE_STEPS &&
           (density->steps - TREE_FINE_STEPS) % TREE_PROBE_STEPS == layer_index % TREE_PROBE_STEPS;
}

enum tree_level tree_density_start(const struct tree_density *density, enum tree_level leaf, size_t layer_index) {
    if (layer_index < TREE_FINE_LAYERS || density->steps < TREE_FINE_STEPS) return leaf;
    enum tree_level best = cheapest(density, leaf);
    return is_probe(density, layer_index) && best < tree_top(leaf) ? best + 1 : best;
}

void tree_density_add(struct tree_density *density, enum tree_level leaf, size_t layer_index, enum tree_level start,
                      const struct tree_counts *counts) {
    bool probe = is_probe(density, layer_index);
    density->steps++;
    for (enum tree_level level = leaf + 1; level <= start; level++) {
        if (counts->nodes[level] == 0) return; /* too short for more */
        double rho = (double)counts->opened[level] / (double)counts->nodes[level];
        if (level > density->measured) {
            density->measured = level;
            density->rho[level] = rho;
        }
        density->rho[level] += (probe && level == start ? PROBE_SHARE : STEP_SHARE) * (rho - density->rho[level]);
    }
}
