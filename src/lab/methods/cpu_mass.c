/* add_mass on the cpu.  A unit is one KV head of one item.  Its key index is its own, so units share nothing as long as
 * no two items are of one sequence. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

/* A thread's scratch: the mass that the unit's rows received, in the order of the list. */
static void mass_unit(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch) {
    const struct add_mass_operation *operation = run->operation;
    const struct attend_rows_operation *rows = run->rows;
    const struct row_list list = unit->list;
    const uint32_t *listed = cpu_rows(list);
    float m[GROUP_MAX], s[GROUP_MAX], *received = layout_take(scratch, list.count, sizeof *received);
    for (size_t i = 0; i < run->group; i++) {
        m[i] = unit->sums[i].largest;
        s[i] = unit->sums[i].sum / operation->weight;
    }
    memset(received, 0, list.count * sizeof *received);
    run->device->kernels.mass.add(
        &(struct mass_add_args){.scores = cpu_floats(rows->scores) + unit->head_first * rows->scores_stride,
                                .scores_stride = rows->scores_stride,
                                .group = run->group,
                                .m = m,
                                .s = s,
                                .row_count = list.count,
                                .mass = received});
    for (size_t i = 0; i < list.count; i++) {
        float *mass = cpu_chunk(unit->item->view.pools, unit->places[listed[i] / KV_CHUNK_TOKENS]);
        mass[listed[i] % KV_CHUNK_TOKENS] += received[i];
    }
}

static void add_mass(struct stream *stream, const struct add_mass_operation *operation) {
    const struct attend_rows_operation *rows = operation->rows;
    size_t longest = 0;
    if (rows->item_count == 0) return;
    const struct heads_run run = cpu_heads_of(stream, operation, rows);
    for (size_t i = 0; i < rows->item_count; i++)
        for (size_t head = 0; head < rows->kv_head_count; head++)
            longest = max_size(longest, rows->items[i].lists[head].count);
    ASSERT(longest <= rows->scores_stride);
    cpu_run_heads(&run, longest * sizeof(float), false, mass_unit);
}

__attribute__((constructor)) static void add(void) { cpu_operations.add_mass = add_mass; }
