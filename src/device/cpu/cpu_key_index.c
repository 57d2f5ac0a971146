/* key_index_build on the cpu.  A unit is one KV head of one chunk of an item: it reads the stored keys and writes the
 * chunk's block, so units share nothing.  The nodes of several chunks of a tree are built in a second pass.  Where a
 * block needs those before it, a unit is all chunks of a KV head, in order. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

/* Below this (the keys of a step of one sequence) the work costs less than waking a thread. */
enum { BUILD_ELEMENTS_ALONE = 2048 };

struct build_run {
    const struct cpu_device *device;
    const struct key_index_build_operation *operation;
    const struct cpu_scorer *scorer;
    size_t unit_count;
    uint8_t *threads;
    size_t thread_bytes;
};

static struct build_scratch scratch_in(const struct build_run *run, struct layout *layout) {
    const struct kv_layout *kv = run->operation->items[0].view.layout;
    const size_t block_count = cpu_chunks_before(run->scorer, run->operation->layout) + 1;
    struct build_scratch scratch;
    scratch.keys = layout_take(layout, KV_CHUNK_TOKENS * kv->k_dimension, sizeof *scratch.keys);
    scratch.value = layout_take(layout, kv->v_dimension, sizeof *scratch.value);
    scratch.norms = layout_take(layout, KV_CHUNK_TOKENS, sizeof *scratch.norms);
    scratch.centroids = layout_take(layout, KV_CHUNK_TOKENS * kv->k_dimension, sizeof *scratch.centroids);
    scratch.codes = layout_take(layout, KV_CHUNK_TOKENS, HASH_CODE_BYTES_MAX);
    scratch.blocks = layout_take(layout, block_count, sizeof *scratch.blocks);
    return scratch;
}

static size_t item_chunks(const struct attend_item *item) {
    if (item->row_count == 0) return 0;
    uint64_t last = item->position_first + item->row_count - 1;
    return (size_t)(last / KV_CHUNK_TOKENS - item->position_first / KV_CHUNK_TOKENS + 1);
}

/* Units of a KV head of an item. */
static size_t head_units(const struct build_run *run, const struct attend_item *item) {
    const size_t chunks = item_chunks(item);
    return run->scorer->builds_in_order ? min_size(chunks, 1) : chunks;
}

/* The item's chunk `index`, counted from that of its first row. */
static void build_chunk(const struct build_run *run, const struct attend_item *item, size_t head, size_t index,
                        bool above, const struct build_scratch *scratch) {
    const struct key_index_build_operation *operation = run->operation;
    const uint64_t chunk = item->position_first / KV_CHUNK_TOKENS + index, first = chunk * KV_CHUNK_TOKENS;
    const uint64_t row_end = item->position_first + item->row_count;
    const size_t lane = head * item->view.chunk_stride, before = cpu_chunks_before(run->scorer, operation->layout);
    const uint64_t block_first = chunk > before ? chunk - before : 0;
    ASSERT(cpu_places(item->view.key_index) != NULL);
    cpu_find_chunks(item->view.pools, cpu_places(item->view.key_index) + lane + block_first,
                    (size_t)(chunk - block_first + 1), scratch->blocks);
    const struct build_unit unit = {
        .kv = item->view.layout,
        .chunk = cpu_chunk(item->view.pools, cpu_places(item->view.chunks)[lane + chunk]),
        .block = scratch->blocks[chunk - block_first],
        .blocks = scratch->blocks,
        .block_first = block_first,
        .chunk_index = chunk,
        .kv_head = head,
        .token_begin = item->position_first > first ? (size_t)(item->position_first - first) : 0,
        .token_end = (size_t)(row_end - first < KV_CHUNK_TOKENS ? row_end - first : KV_CHUNK_TOKENS)};
    if (above) { /* of blocks that other units wrote before the barrier */
        run->scorer->build_above(operation->layout, &unit);
        return;
    }
    if (run->scorer->build != NULL) run->scorer->build(run->device, operation, &unit, scratch);
    if (operation->layout->sample_count > 0) cpu_key_sample_build(run->device, operation, &unit, scratch);
}

static void build_range(const struct build_run *run, struct range range, bool above,
                        const struct build_scratch *scratch) {
    const size_t heads = run->operation->kv_head_count;
    size_t before = 0;
    for (size_t i = 0; i < run->operation->item_count && before < range.end; i++) {
        const struct attend_item *item = &run->operation->items[i];
        const size_t units = head_units(run, item) * heads, end = min_size(range.end, before + units);
        for (size_t index = max_size(range.begin, before); index < end; index++) {
            const size_t head = (index - before) % heads, first = (index - before) / heads;
            const size_t chunks = run->scorer->builds_in_order ? item_chunks(item) : 1;
            for (size_t chunk = first; chunk < first + chunks; chunk++)
                build_chunk(run, item, head, chunk, above, scratch);
        }
        before += units;
    }
}

static void build_task(void *context, const struct pool_worker *worker) {
    const struct build_run *run = context;
    struct layout layout = {.memory = run->threads + worker->index * run->thread_bytes};
    const struct build_scratch scratch = scratch_in(run, &layout);
    struct range range = pool_range(worker, run->unit_count, 1);
    build_range(run, range, false, &scratch);
    if (run->scorer->build_above == NULL || !run->scorer->builds_above(run->operation->layout)) return;
    cpu_barrier(worker);
    build_range(run, range, true, &scratch);
}

void cpu_key_index_build(struct stream *stream, const struct key_index_build_operation *operation) {
    struct cpu_device *device = stream->device;
    struct build_run run = {.device = device, .operation = operation};
    size_t rows = 0;
    run.scorer = cpu_scorer_of(operation->layout);
    for (size_t i = 0; i < operation->item_count; i++) {
        run.unit_count += head_units(&run, &operation->items[i]) * operation->kv_head_count;
        rows += operation->items[i].row_count;
    }
    if (run.unit_count == 0 || (run.scorer->build == NULL && operation->layout->sample_count == 0)) return;
    const struct kv_layout *kv = operation->items[0].view.layout;
    struct layout layout = {0};
    (void)scratch_in(&run, &layout);
    run.thread_bytes = layout.used;
    run.threads = cpu_scratch_reserve(device, device->thread_count * run.thread_bytes);
    if (run.threads == NULL) return;
    cpu_run(device, rows * operation->kv_head_count * kv->k_dimension <= BUILD_ELEMENTS_ALONE, build_task, &run);
}
