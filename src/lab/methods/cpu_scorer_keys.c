/* Keys as they are stored, scored in place. */
#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

static size_t kernel_scratch(const struct select_run *run) {
    return align_up(run->device->kernels.score.scratch_bytes(run->kv->k_dimension), 64);
}

static size_t scratch_bytes(const struct select_run *run) {
    return kernel_scratch(run) + (SCORE_TOKENS / KV_BLOCK_TOKENS + 1) * sizeof(void *);
}

/* The keys of a block of 8 tokens are adjacent, so blocks are the kernel's unit of rows. */
static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct kv_view *view = &run->rows[range->row].item->view;
    const uint32_t *places = cpu_places(view->chunks) + range->kv_head * view->chunk_stride + range->chunk_first;
    const void **blocks = (const void **)(void *)(scratch + kernel_scratch(run));
    uint64_t first = range->begin / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    ASSERT(run->kv->k_type == KV_F16 && range->end - range->begin <= SCORE_TOKENS);
    for (uint64_t token = first; token < range->end; token += KV_BLOCK_TOKENS)
        blocks[(token - first) / KV_BLOCK_TOKENS] =
            kv_block(run->kv, cpu_chunk(view->pools, places[token / KV_CHUNK_TOKENS]), token % KV_CHUNK_TOKENS);
    run->device->kernels.score.rows(&(struct score_args){.blocks = blocks,
                                                         .block_rows = KV_BLOCK_TOKENS,
                                                         .columns = run->kv->k_dimension,
                                                         .row_begin = range->begin - first,
                                                         .row_end = range->end - first,
                                                         .q = range_query(range),
                                                         .q_stride = run->kv->k_dimension,
                                                         .heads = range->head_count,
                                                         .aggregate = run->operation->layout->aggregate,
                                                         .scores = scores,
                                                         .scratch = scratch});
}

static const struct cpu_scorer scorer = {.score = score, .scratch_bytes = scratch_bytes};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_KEYS, &scorer); }
