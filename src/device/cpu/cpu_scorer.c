/* The scorer of each kind of key index. */
#include "base/assert.h"
#include "device/cpu/cpu_scorer_internal.h"

static const struct cpu_scorer nothing; /* is built, and nobody chooses by it */

static const struct cpu_scorer *const scorers[] = {
    [KEY_INDEX_NONE] = &nothing,
    [KEY_INDEX_ABSTRACT] = &cpu_scorer_abstract,
    [KEY_INDEX_HASH] = &cpu_scorer_hash,
    [KEY_INDEX_PARTIAL] = &cpu_scorer_partial,
    [KEY_INDEX_MASS] = &cpu_scorer_mass,
    [KEY_INDEX_TREE] = &cpu_scorer_tree,
    [KEY_INDEX_KEYS] = &cpu_scorer_keys,
    [KEY_INDEX_LEVEL] = &cpu_scorer_level,
    [KEY_INDEX_CLUSTER] = &cpu_scorer_cluster,
    [KEY_INDEX_PRODUCT] = &cpu_scorer_product,
};

const struct cpu_scorer *cpu_scorer_of(const struct key_index_layout *layout) {
    ASSERT(layout->kind < sizeof scorers / sizeof scorers[0] && scorers[layout->kind] != NULL);
    return scorers[layout->kind];
}
