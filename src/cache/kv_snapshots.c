#include "cache/kv_snapshots.h"

#include <math.h>

#include "base/assert.h"

void kv_snapshots_plan(struct kv_snapshot_plan *plan, const uint64_t *positions, size_t count, uint64_t turn) {
    ASSERT(count <= KV_SNAPSHOTS_MAX);
    for (size_t i = 0; i < count; i++) {
        ASSERT(i == 0 || positions[i] > positions[i - 1]);
        plan->positions[i] = positions[i];
    }
    plan->count = count;
    plan->prompt_end = count > 0 ? positions[count - 1] : 0;
    plan->turn = turn;
}

size_t kv_snapshots_thin(const struct kv_snapshot_plan *plan, uint64_t *positions, size_t count, size_t most) {
    while (count > most) {
        size_t least = count - 2;
        double least_gap = HUGE_VAL;
        for (size_t i = 0; i + 1 < count; i++) {
            const double gap =
                kv_snapshot_gap(i > 0 ? positions[i - 1] : 0, positions[i], positions[i + 1], positions[count - 1]);
            if (kv_snapshot_is_wanted(plan, positions[i]) || gap >= least_gap) continue;
            least = i;
            least_gap = gap;
        }
        count--;
        for (size_t i = least; i < count; i++) positions[i] = positions[i + 1];
    }
    return count;
}
