/* The scorer of each kind of key index. */
#include "base/assert.h"
#include "device/cpu/cpu_scorer_internal.h"

static const struct cpu_scorer nothing; /* is built, and nobody chooses by it */

static const struct cpu_scorer *scorers[KEY_INDEX_NESTED + 1] = {
    [KEY_INDEX_NONE] = &nothing,           [KEY_INDEX_ABSTRACT] = &cpu_scorer_abstract,
    [KEY_INDEX_HASH] = &cpu_scorer_hash,   [KEY_INDEX_TREE] = &cpu_scorer_tree,
    [KEY_INDEX_LEVEL] = &cpu_scorer_level,
};

void cpu_scorer_add(enum key_index_kind kind, const struct cpu_scorer *scorer) { scorers[kind] = scorer; }

uint32_t cpu_scorer_kinds(void) {
    uint32_t kinds = 0;
    for (uint32_t kind = 0; kind < sizeof scorers / sizeof scorers[0]; kind++)
        kinds |= (uint32_t)(scorers[kind] != NULL) << kind;
    return kinds;
}

const struct cpu_scorer *cpu_scorer_of(const struct key_index_layout *layout) {
    ASSERT(layout->kind < sizeof scorers / sizeof scorers[0] && scorers[layout->kind] != NULL);
    return scorers[layout->kind];
}
