#include "explain/attention_weights.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/pool.h"

enum { CHUNKS_TOGETHER = 16, THREAD_ALIGN = 64, SINKS_MAX = 64 };

enum status attention_weights_create(struct attention_weights *weights, const struct model *model, size_t row_capacity,
                                     bool in_tiers, struct error *error) {
    const struct model_config *config = &model->config;
    struct pool *pool = device_pool(model->device);
    *weights = (struct attention_weights){.model = model,
                                          .device = model->device,
                                          .in_tiers = in_tiers,
                                          .row_capacity = row_capacity,
                                          .thread_count = pool != NULL ? pool_thread_count(pool) : 1};
    attention_kernels_init(&weights->attention, cpu_features());
    mass_kernels_init(&weights->mass, cpu_features());
    size_t group_max = 1;
    for (size_t i = 0; i < config->layer_count; i++) {
        const size_t kv_heads = config->layers[i].kv.kv_head_count;
        if (kv_heads > 0) group_max = max_size(group_max, config->head_count / kv_heads);
    }
    const size_t partials = ((size_t)kv_chunks_of(row_capacity) + 1) * group_max;
    weights->scores = calloc(group_max * row_capacity, sizeof *weights->scores);
    weights->m = calloc(partials, sizeof *weights->m);
    weights->s = calloc(partials, sizeof *weights->s);
    if (weights->scores == NULL || weights->m == NULL || weights->s == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the attention to %zu tokens", row_capacity);
    return model->device->operations->stream_create(model->device, &weights->stream, error);
}

void attention_weights_destroy(struct attention_weights *weights) {
    if (weights->stream != NULL) weights->device->operations->stream_destroy(weights->stream);
    free(weights->scores);
    free(weights->m);
    free(weights->s);
    free(weights->threads);
    free(weights->chunks);
    *weights = (struct attention_weights){0};
}

/* With a query comes the layout of its layer. */
static enum status reserve(struct attention_weights *weights, const struct kv_layout *layout, struct error *error) {
    const size_t thread_bytes =
                     align_up(weights->attention.gather_scratch_bytes(weights->group, layout), THREAD_ALIGN) +
                     align_up(weights->group * layout->v_dimension * sizeof(float), THREAD_ALIGN),
                 chunk_bytes = align_up(layout->chunk_bytes, THREAD_ALIGN);
    if (thread_bytes <= weights->thread_bytes && chunk_bytes <= weights->chunk_bytes) return STATUS_OK;
    free(weights->threads);
    free(weights->chunks);
    weights->thread_bytes = max_size(thread_bytes, weights->thread_bytes);
    weights->chunk_bytes = max_size(chunk_bytes, weights->chunk_bytes);
    weights->threads = aligned_alloc(THREAD_ALIGN, weights->thread_count * weights->thread_bytes);
    weights->chunks = aligned_alloc(THREAD_ALIGN, CHUNKS_TOGETHER * weights->chunk_bytes);
    if (weights->threads != NULL && weights->chunks != NULL) return STATUS_OK;
    weights->thread_bytes = weights->chunk_bytes = 0;
    return error_set(error, STATUS_MEMORY, "no memory for the attention to %zu tokens", weights->row_capacity);
}

/* ---- a KV head ---- */

struct head_run {
    struct attention_weights *weights;
    const struct kv_layout *layout;
    const float *q; /* [group][k_dimension] */
    float scale, softcap;
    size_t row_count;
    const void *chunks[CHUNKS_TOGETHER]; /* that the host reads */
    size_t chunk_first, chunk_count;
    float *sums, sinks[SINKS_MAX]; /* [group], -INFINITY: none */
};

/* A pool_task: scores and partials of the chunks. */
static void score_part(void *context, const struct pool_worker *worker) {
    const struct head_run *run = context;
    struct attention_weights *weights = run->weights;
    uint8_t *room = weights->threads + worker->index * weights->thread_bytes;
    const size_t out_bytes = align_up(weights->group * run->layout->v_dimension * sizeof(float), THREAD_ALIGN);
    uint32_t rows[KV_CHUNK_TOKENS];
    for (size_t i = 0; i < KV_CHUNK_TOKENS; i++) rows[i] = (uint32_t)i;
    for (size_t i = worker->index; i < run->chunk_count; i += worker->count) {
        const size_t index = run->chunk_first + i, row_first = index * KV_CHUNK_TOKENS;
        const struct attention_gather_args args = {.layout = run->layout,
                                                   .chunks = &run->chunks[i],
                                                   .rows = rows,
                                                   .row_count = min_size(KV_CHUNK_TOKENS, run->row_count - row_first),
                                                   .q = run->q,
                                                   .q_stride = run->layout->k_dimension,
                                                   .group = weights->group,
                                                   .scale = run->scale,
                                                   .softcap = run->softcap,
                                                   .m = weights->m + index * weights->group,
                                                   .s = weights->s + index * weights->group,
                                                   .o = (float *)(void *)room,
                                                   .o_stride = run->layout->v_dimension,
                                                   .scores = weights->scores + row_first,
                                                   .scores_stride = weights->row_capacity,
                                                   .scratch = room + out_bytes};
        weights->attention.gather(&args);
    }
}

/* A pool_task: the weights of rows, with the last partials, added to their sums. */
static void add_part(void *context, const struct pool_worker *worker) {
    const struct head_run *run = context;
    const struct attention_weights *weights = run->weights;
    const struct range range = pool_range(worker, run->row_count, KV_CHUNK_TOKENS);
    const size_t merged = (size_t)kv_chunks_of(run->row_count) * weights->group;
    weights->mass.add(&(struct mass_add_args){.scores = weights->scores + range.begin,
                                              .scores_stride = weights->row_capacity,
                                              .group = weights->group,
                                              .m = weights->m + merged,
                                              .s = weights->s + merged,
                                              .row_first = range.begin,
                                              .row_count = range.end - range.begin,
                                              .mass = run->sums});
}

static void share_out(struct head_run *run, pool_task *task) {
    struct pool *pool = device_pool(run->weights->device);
    if (pool != NULL)
        pool_run(pool, task, run);
    else
        task(run, &(struct pool_worker){.index = 0, .count = 1});
}

/* What its heads attend to beside rows. */
static enum status read_sinks(struct head_run *run, const struct attention_query *query, struct error *error) {
    const struct attention_weights *weights = run->weights;
    const struct span sinks = weights->model->layers[query->layer_index].sinks;
    ASSERT(weights->group <= SINKS_MAX);
    for (size_t i = 0; i < weights->group; i++) run->sinks[i] = -INFINITY;
    if (!span_exists(sinks)) return STATUS_OK;
    return device_read(weights->device, weights->stream, run->sinks,
                       span_floats(sinks, query->kv_head * weights->group), weights->group * sizeof *run->sinks, error);
}

/* The partials of all chunks and the sink, behind them. */
static void merge_partials(const struct head_run *run) {
    const struct attention_weights *weights = run->weights;
    const size_t group = weights->group, count = (size_t)kv_chunks_of(run->row_count);
    for (size_t g = 0; g < group; g++) {
        float largest = run->sinks[g];
        double sum = 0;
        for (size_t i = 0; i < count; i++) largest = fmaxf(largest, weights->m[i * group + g]);
        for (size_t i = 0; i < count; i++)
            sum += (double)weights->s[i * group + g] * exp((double)weights->m[i * group + g] - (double)largest);
        if (run->sinks[g] != -INFINITY) sum += exp((double)run->sinks[g] - (double)largest);
        weights->m[count * group + g] = largest;
        weights->s[count * group + g] = (float)sum;
    }
}

/* All that is asked for, or, where slots are short, one chunk. */
static enum status fetch_chunks(struct kv_fetch *fetch, struct error *error) {
    enum status status = STATUS_OK;
    if (!kv_fetch_begin(fetch)) {
        kv_fetch_release(fetch);
        fetch->chunk_count = 1;
        if (!kv_fetch_begin(fetch))
            status = error_set(error, STATUS_MEMORY, "the RAM for KV has no room for one more chunk");
    }
    if (status == STATUS_OK) status = kv_fetch_wait(fetch, error);
    if (status != STATUS_OK) kv_fetch_release(fetch);
    return status;
}

/* The run's chunks as the host sees them: where they lie, or copied. */
static enum status copy_chunks(struct head_run *run, const struct attention_query *query, struct error *error) {
    const struct attention_weights *weights = run->weights;
    const struct device_operations *operations = weights->device->operations;
    const size_t stride = align_up(run->layout->chunk_bytes, THREAD_ALIGN);
    bool copies = false;
    for (size_t i = 0; i < run->chunk_count; i++) {
        const struct span chunk =
            kv_sequence_chunk(query->sequence, query->layer_index, query->kv_head, run->chunk_first + i);
        if (chunk.buffer->kind == MEMORY_SHARED) {
            run->chunks[i] = span_host(chunk);
            continue;
        }
        run->chunks[i] = weights->chunks + i * stride;
        operations->download(weights->stream, weights->chunks + i * stride, chunk, run->layout->chunk_bytes);
        copies = true;
    }
    return copies ? operations->stream_synchronize(weights->stream, error) : STATUS_OK;
}

static enum status score_head(struct head_run *run, const struct attention_query *query, struct error *error) {
    const size_t count = (size_t)kv_chunks_of(run->row_count);
    for (run->chunk_first = 0; run->chunk_first < count; run->chunk_first += run->chunk_count) {
        run->chunk_count = min_size(CHUNKS_TOGETHER, count - run->chunk_first);
        struct kv_fetch fetch = {.sequence = query->sequence,
                                 .layer_index = kv_sequence_source_layer(query->sequence, query->layer_index),
                                 .kv_head = query->kv_head,
                                 .chunk_first = run->chunk_first,
                                 .chunk_count = run->chunk_count};
        if (run->weights->in_tiers) TRY(fetch_chunks(&fetch, error));
        run->chunk_count = fetch.chunk_count;
        const enum status status = copy_chunks(run, query, error);
        if (status == STATUS_OK) share_out(run, score_part);
        if (run->weights->in_tiers) kv_fetch_release(&fetch);
        TRY(status);
    }
    return STATUS_OK;
}

enum status attention_weights_add(struct attention_weights *weights, const struct attention_query *query, float *sums,
                                  struct error *error) {
    const struct layer_config *layer = &weights->model->config.layers[query->layer_index];
    const struct kv_layout *layout = kv_sequence_layer_layout(query->sequence, query->layer_index);
    weights->group = layer->head_count / layer->kv.kv_head_count;
    TRY(reserve(weights, layout, error));
    struct head_run run = {.weights = weights,
                           .layout = layout,
                           .q = query->q,
                           .scale = layer->scale,
                           .softcap = weights->model->config.score_softcap,
                           .row_count = query->row_count,
                           .sums = sums};
    TRY(read_sinks(&run, query, error));
    TRY(score_head(&run, query, error));
    merge_partials(&run);
    share_out(&run, add_part);
    return STATUS_OK;
}
