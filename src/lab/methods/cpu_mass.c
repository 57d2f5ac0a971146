/* add_mass on the cpu.  A unit is one KV head of one item.  Its key index is its own, so units share nothing as long as
 * no two items are of one sequence. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

struct mass_run {
    const struct cpu_device *device;
    const struct add_mass_operation *operation;
    const struct attend_rows_operation *rows; /* the operation's */
    size_t group;
    uint8_t *threads;
    size_t thread_bytes;
};

/* A thread's scratch: the mass that the unit's rows received, in the order of the list. */
static void mass_unit(const struct mass_run *run, size_t unit, float *received) {
    const struct add_mass_operation *operation = run->operation;
    const struct attend_rows_operation *rows = run->rows;
    const struct rows_item *item = &rows->items[unit / rows->kv_head_count];
    const size_t kv_head = unit % rows->kv_head_count, query_head = unit * run->group;
    const struct row_list list = item->lists[kv_head];
    const struct softmax_sum *sums = cpu_sums(rows->sums) + query_head;
    const uint32_t *listed = cpu_rows(list);
    float m[GROUP_MAX], s[GROUP_MAX];
    for (size_t i = 0; i < run->group; i++) {
        m[i] = sums[i].largest;
        s[i] = sums[i].sum / operation->weight;
    }
    memset(received, 0, list.count * sizeof *received);
    run->device->kernels.mass.add(
        &(struct mass_add_args){.scores = cpu_floats(rows->scores) + query_head * rows->scores_stride,
                                .scores_stride = rows->scores_stride,
                                .group = run->group,
                                .m = m,
                                .s = s,
                                .row_count = list.count,
                                .mass = received});
    const uint32_t *places = cpu_places(item->view.key_index) + kv_head * item->view.chunk_stride;
    for (size_t i = 0; i < list.count; i++) {
        float *mass = cpu_chunk(item->view.pools, places[listed[i] / KV_CHUNK_TOKENS]);
        mass[listed[i] % KV_CHUNK_TOKENS] += received[i];
    }
}

static void mass_task(void *context, const struct pool_worker *worker) {
    const struct mass_run *run = context;
    size_t units = run->rows->item_count * run->rows->kv_head_count;
    struct range range = pool_range(worker, units, 1);
    for (size_t unit = range.begin; unit < range.end; unit++)
        mass_unit(run, unit, (float *)(void *)(run->threads + worker->index * run->thread_bytes));
}

static void add_mass(struct stream *stream, const struct add_mass_operation *operation) {
    const struct attend_rows_operation *rows = operation->rows;
    struct cpu_device *device = stream->device;
    struct mass_run run = {.device = device,
                           .operation = operation,
                           .rows = rows,
                           .group = rows->head_count / rows->kv_head_count};
    ASSERT(run.group * rows->kv_head_count == rows->head_count && run.group <= GROUP_MAX);
    size_t longest = 0;
    for (size_t i = 0; i < rows->item_count; i++)
        for (size_t head = 0; head < rows->kv_head_count; head++)
            longest = max_size(longest, rows->items[i].lists[head].count);
    ASSERT(longest <= rows->scores_stride);
    run.thread_bytes = align_up(longest * sizeof(float), 64);
    run.threads = cpu_scratch_reserve(device, device->thread_count * run.thread_bytes);
    if (run.threads != NULL) cpu_run(device, false, mass_task, &run);
}

__attribute__((constructor)) static void add(void) {
    cpu_operations.add_mass = add_mass;
}
