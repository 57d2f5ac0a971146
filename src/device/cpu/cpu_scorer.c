#include "base/assert.h"
#include "device/cpu/cpu_scorer_internal.h"

static const struct cpu_scorer nothing; /* is built, and nobody chooses by it */

static const struct cpu_scorer *const scorers[] = {
    [METADATA_NONE] = &nothing,         [METADATA_ABSTRACT] = &cpu_scorer_abstract,
    [METADATA_HASH] = &cpu_scorer_hash, [METADATA_PARTIAL] = &cpu_scorer_partial,
    [METADATA_MASS] = &cpu_scorer_mass, [METADATA_TREE] = &cpu_scorer_tree,
    [METADATA_KEYS] = &cpu_scorer_keys,
};

const struct cpu_scorer *cpu_scorer_of(const struct metadata_layout *layout) {
    ASSERT(layout->kind < sizeof scorers / sizeof scorers[0] && scorers[layout->kind] != NULL);
    return scorers[layout->kind];
}
