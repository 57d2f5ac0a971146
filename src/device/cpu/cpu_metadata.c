/* metadata_build on the cpu.  A unit is one KV head of one chunk of an item: it reads the stored keys and writes the
 * block beside them, so units share nothing; what a tree has of several chunks is built in a second pass. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

/* Keys of a step of one sequence cost less than waking a thread. */
enum { BUILD_ELEMENTS_ALONE = 2048 };

struct build_run {
    const struct cpu_device *device;
    const struct metadata_operation *operation;
    size_t unit_count;
    uint8_t *threads;
    size_t thread_bytes;
};

struct build_unit {
    const struct kv_layout *kv;
    const void *chunk;
    void *block;
    size_t kv_head, token_begin, token_end; /* within the chunk */
};

/* Scratch of a thread: keys of a chunk, one value row, then codes and norms. */
struct build_scratch {
    float *keys, *value, *norms;
    uint8_t *codes;
};

static size_t scratch_layout(uint8_t *memory, const struct kv_layout *kv, struct build_scratch *scratch) {
    size_t used = 0;
    size_t keys = cpu_scratch_add(&used, KV_CHUNK_TOKENS * kv->k_dimension * sizeof(float));
    size_t value = cpu_scratch_add(&used, kv->v_dimension * sizeof(float));
    size_t norms = cpu_scratch_add(&used, KV_CHUNK_TOKENS * sizeof(float));
    size_t codes = cpu_scratch_add(&used, (size_t)KV_CHUNK_TOKENS * HASH_CODE_BYTES_MOST);
    if (memory != NULL)
        *scratch = (struct build_scratch){(float *)(void *)(memory + keys), (float *)(void *)(memory + value),
                                          (float *)(void *)(memory + norms), memory + codes};
    return used;
}

/* The unit's keys as floats, from row 0 of scratch->keys. */
static void load_keys(const struct cpu_device *device, const struct build_unit *unit,
                      const struct build_scratch *scratch) {
    for (size_t token = unit->token_begin; token < unit->token_end; token++) {
        float *key = scratch->keys + (token - unit->token_begin) * unit->kv->k_dimension;
        if (unit->kv->k_type == KV_F16)
            device->kernels.convert.dequantize[TENSOR_F16](kv_k_row(unit->kv, unit->chunk, token), key,
                                                           unit->kv->k_dimension);
        else
            device->kernels.attention.load(unit->kv, unit->chunk, token, key, scratch->value);
    }
}

static void build_hash(const struct build_run *run, const struct build_unit *unit,
                       const struct build_scratch *scratch) {
    const struct hash_layout *layout = &run->operation->layout->hash;
    size_t dimension = unit->kv->k_dimension, count = unit->token_end - unit->token_begin;
    load_keys(run->device, unit, scratch);
    run->device->kernels.hash.encode(&(struct hash_encode_args){
        .weights = run->operation->weights + unit->kv_head * dimension * layout->bits,
        .dimension = dimension,
        .bits = layout->bits,
        .x = scratch->keys,
        .x_stride = dimension,
        .count = count,
        .codes = scratch->codes,
        .norms = scratch->norms});
    for (size_t i = 0; i < count; i++)
        hash_store(layout, unit->block, unit->token_begin + i, scratch->codes + i * layout->code_bytes,
                   scratch->norms[i]);
}

static void build_partial(const struct build_run *run, const struct build_unit *unit,
                          const struct build_scratch *scratch) {
    size_t dimension = unit->kv->k_dimension, columns = run->operation->layout->columns;
    load_keys(run->device, unit, scratch);
    run->device->kernels.project.rows(
        &(struct project_args){.weights = run->operation->weights + unit->kv_head * dimension * columns,
                               .dimension = dimension,
                               .columns = columns,
                               .x = scratch->keys,
                               .x_stride = dimension,
                               .count = unit->token_end - unit->token_begin,
                               .out_halves = (uint16_t *)unit->block + unit->token_begin * columns,
                               .out_stride = columns});
}

static void build(const struct build_run *run, const struct build_unit *unit,
                  const struct build_scratch *scratch) {
    switch (run->operation->layout->kind) {
    case METADATA_NONE:
    case METADATA_KEYS: break;
    case METADATA_ABSTRACT:
        run->device->kernels.abstract.build(
            &(struct abstract_build_args){.layout = &run->operation->layout->abstract,
                                          .kv = unit->kv,
                                          .chunk = unit->chunk,
                                          .token_begin = unit->token_begin,
                                          .token_end = unit->token_end,
                                          .abstract = unit->block});
        break;
    case METADATA_TREE:
        tree_build(&run->device->kernels.abstract,
                   &(struct tree_build_args){.layout = &run->operation->layout->tree,
                                             .kv = unit->kv,
                                             .chunk = unit->chunk,
                                             .token_begin = unit->token_begin,
                                             .token_end = unit->token_end,
                                             .block = unit->block});
        break;
    case METADATA_HASH: build_hash(run, unit, scratch); break;
    case METADATA_PARTIAL: build_partial(run, unit, scratch); break;
    case METADATA_MASS:
        memset((float *)unit->block + unit->token_begin, 0,
               (unit->token_end - unit->token_begin) * sizeof(float));
        break;
    }
}

static size_t item_chunks(const struct attend_item *item) {
    if (item->row_count == 0) return 0;
    uint64_t last = item->position_first + item->row_count - 1;
    return (size_t)(last / KV_CHUNK_TOKENS - item->position_first / KV_CHUNK_TOKENS + 1);
}

/* The run that a unit's chunk fills up, from blocks that other units have written before the barrier. */
static void build_run_above(const struct build_run *run, void *const *blocks, uint64_t chunk,
                            const struct build_unit *unit) {
    if (unit->token_end < KV_CHUNK_TOKENS || chunk % TREE_RUN_CHUNKS != TREE_RUN_CHUNKS - 1) return;
    tree_build_run(&run->operation->layout->tree, blocks + (chunk + 1 - TREE_RUN_CHUNKS));
}

static void build_share(const struct build_run *run, struct range share, bool runs,
                        const struct build_scratch *scratch) {
    const struct metadata_operation *operation = run->operation;
    size_t heads = operation->kv_head_count, before = 0;
    for (size_t i = 0; i < operation->item_count && before < share.end; i++) {
        const struct attend_item *item = &operation->items[i];
        size_t units = item_chunks(item) * heads, end = min_size(share.end, before + units);
        uint64_t row_end = item->position_first + item->row_count;
        for (size_t index = max_size(share.begin, before); index < end; index++) {
            size_t head = (index - before) % heads;
            uint64_t chunk = item->position_first / KV_CHUNK_TOKENS + (index - before) / heads;
            uint64_t first = chunk * KV_CHUNK_TOKENS;
            ASSERT(item->view.metadata != NULL);
            void *const *blocks = item->view.metadata + head * item->view.chunk_stride;
            const struct build_unit unit = {
                .kv = item->view.layout,
                .chunk = item->view.chunks[head * item->view.chunk_stride + chunk],
                .block = blocks[chunk],
                .kv_head = head,
                .token_begin = item->position_first > first ? (size_t)(item->position_first - first) : 0,
                .token_end = (size_t)(row_end - first < KV_CHUNK_TOKENS ? row_end - first : KV_CHUNK_TOKENS)};
            if (runs)
                build_run_above(run, blocks, chunk, &unit);
            else
                build(run, &unit, scratch);
        }
        before += units;
    }
}

static void build_task(void *context, const struct pool_worker *worker) {
    const struct build_run *run = context;
    struct build_scratch scratch;
    scratch_layout(run->threads + worker->index * run->thread_bytes, run->operation->items[0].view.layout,
                   &scratch);
    struct range share = pool_share(worker, run->unit_count, 1);
    build_share(run, share, false, &scratch);
    if (run->operation->layout->kind != METADATA_TREE ||
        tree_top(run->operation->layout->tree.leaf) != TREE_RUN)
        return;
    cpu_barrier(worker);
    build_share(run, share, true, &scratch);
}

void cpu_metadata_build(struct stream *stream, const struct metadata_operation *operation) {
    struct cpu_device *device = stream->device;
    struct build_run run = {.device = device, .operation = operation};
    size_t rows = 0;
    for (size_t i = 0; i < operation->item_count; i++) {
        run.unit_count += item_chunks(&operation->items[i]) * operation->kv_head_count;
        rows += operation->items[i].row_count;
    }
    if (run.unit_count == 0 || operation->layout->kind == METADATA_NONE) return;
    const struct kv_layout *kv = operation->items[0].view.layout;
    struct build_scratch unused;
    run.thread_bytes = scratch_layout(NULL, kv, &unused);
    run.threads = cpu_scratch_reserve(device, device->thread_count * run.thread_bytes);
    if (run.threads == NULL) return;
    cpu_run(device, rows * operation->kv_head_count * kv->k_dimension <= BUILD_ELEMENTS_ALONE, build_task,
            &run);
}
