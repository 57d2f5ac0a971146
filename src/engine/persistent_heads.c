/* persistent_heads: which KV heads stay in RAM whole (place=persistent, plan/persistent_heads.h), by what is measured
 * on this machine. */
#include <stdlib.h>
#include <string.h>

#include "attention/choice.h"
#include "base/checked.h"
#include "engine/engine_internal.h"
#include "model/calibration.h"
#include "platform/clock.h"
#include "platform/pool.h"

/* Bytes that a KV head's list is read with: the pages that it lies in. */
static double head_bytes(const struct engine *engine) {
    const struct select_options *options = select_get_options(engine->select);
    const uint64_t chunks = kv_chunks_of(engine->context_size),
                   kept = select_kept_tokens(engine->select, engine->context_size - 1),
                   units = kept / max_size(options->page, 1);
    return (double)(units < chunks ? max_size(units, 1) : chunks) * (double)kv_cache_chunk_bytes_max(&engine->kv);
}

/* The last one that attends. */
static size_t last_layer(const struct model_config *config) {
    return kv_layer_behind(config->kv_groups, config->layer_count, model_attention_layers(config) - 1);
}

/* One row's choice in the last layer at the end of the context, on the second run.  What it scores is whatever lies in
 * memory: how long that takes follows from how much it is. */
static enum status time_choice(struct engine *engine, struct kv_sequence *kv, struct choice *choice, struct span q) {
    const struct model_config *config = &engine->model->config;
    const size_t layer = last_layer(config);
    const struct kv_geometry shape = config->layers[layer].kv;
    const struct attend_item item = {.view = kv_sequence_view(kv, engine->stream, layer),
                                     .row_count = 1,
                                     .position_first = engine->context_size - 1};
    const struct attend_operation operation = {.q = q,
                                               .q_stride = config->head_count * shape.k_dimension,
                                               .head_count = config->head_count,
                                               .kv_head_count = shape.kv_head_count,
                                               .scale = config->layers[layer].scale,
                                               .items = &item,
                                               .item_count = 1};
    const struct select_rule rule = engine_default_rule(engine);
    const struct select_rule *rules = &rule;
    const struct choice_query query = {.layer_index = layer, .operation = &operation, .rules = &rules};
    for (int round = 0; round < 2; round++) {
        choice->statistics = (struct select_statistics){0};
        const uint64_t began = clock_ns();
        TRY(select_choose(engine->select, engine->stream, &query, choice, NULL));
        TRY(engine->model->device->operations->stream_synchronize(engine->stream, NULL));
        engine->persistent_times.choose = (double)(clock_ns() - began) * 1e-9;
    }
    engine->persistent_times.evaluated = choice->statistics.evaluated;
    return STATUS_OK;
}

/* Where the key index is on disk nothing is counted for the choice: fewer heads are taken to be read meanwhile. */
static enum status measure_choice(struct engine *engine) {
    const struct model_config *config = &engine->model->config;
    const struct select_shape shape = plan_select_shape(config);
    struct device *device = engine->model->device;
    struct choice_options options = {.row_capacity = 1,
                                     .kv_head_count = config->kv_head_count,
                                     .tree_layers = select_tree_layers(engine->select),
                                     .host_reads = true};
    struct choice choice = {0};
    struct buffer q = {0};
    struct kv_sequence *kv;
    if (engine->kv.key_index_on_disk) return STATUS_OK;
    TRY(select_options_kept_max(select_get_options(engine->select), &shape, engine->context_size, &options.list_rows,
                                NULL));
    options.list_rows *= config->kv_head_count;
    TRY(kv_sequence_create(&kv, engine->cache, engine->context_size, NULL));
    enum status status = kv_sequence_reserve(kv, engine->context_size, NULL);
    if (status == STATUS_OK)
        status = device->operations->allocate(device, MEMORY_SHARED,
                                              config->head_count * config->k_dimension * sizeof(float), &q, NULL);
    if (status == STATUS_OK) status = choice_init(&choice, device, &options, NULL);
    if (status == STATUS_OK) {
        memset(span_host(span_of(&q, 0)), 0, q.bytes);
        status = time_choice(engine, kv, &choice, span_of(&q, 0));
    }
    choice_deinit(&choice);
    device->operations->release(device, &q);
    kv_sequence_destroy(kv);
    return status;
}

/* N_p, by what a step computes at the whole context; 0: nothing could be measured. */
static size_t prefetchable(struct engine *engine) {
    struct persistent_times *times = &engine->persistent_times;
    const struct model_config *config = &engine->model->config;
    const struct pool *pool = device_pool(engine->model->device);
    const size_t layer = last_layer(config), heads = config->layers[layer].kv.kv_head_count;
    const struct kv_layout *layout = kv_cache_layer_layout(engine->cache, layer);
    struct store_rates rates;
    struct page_costs costs;
    struct kv_sequence *kv;
    if (documents_measure(engine->documents, engine->context_size, &rates, NULL) != STATUS_OK ||
        quantized_pages_measure_attention(&costs, layout, config->head_count / heads, NULL) != STATUS_OK ||
        kv_sequence_create(&kv, engine->cache, KV_CHUNK_TOKENS, NULL) != STATUS_OK)
        return 0;
    times->layer = engine_layer_seconds(engine, kv);
    kv_sequence_destroy(kv);
    if (measure_choice(engine) != STATUS_OK) return 0;
    times->attend = costs.rows_attend;
    times->chunks = heads * kv_chunks_of(select_kept_tokens(engine->select, engine->context_size - 1));
    times->thread_count = pool != NULL ? pool_thread_count(pool) : 1;
    return persistent_prefetchable(persistent_compute_seconds(times), (double)layout->chunk_bytes / rates.page_seconds,
                                   head_bytes(engine));
}

enum status engine_choose_persistent(struct engine *engine, const struct plan *plan, struct error *error) {
    const struct model_config *config = &engine->model->config;
    struct persistent_question question;
    struct calibration *file = NULL;
    if (!engine_persists(engine) || engine->documents == NULL) return STATUS_OK;
    TRY(engine_ask_persistent(engine, &question, &file, error));
    uint32_t *lanes = calloc(kv_lane_count(&engine->kv), sizeof *lanes);
    enum status status = lanes == NULL ? error_set(error, STATUS_MEMORY, "out of memory") : STATUS_OK;
    if (status == STATUS_OK && question.similarity != NULL) {
        question.prefetchable = engine->prefetches ? prefetchable(engine) : 0;
        question.layer_count = engine->kv.layer_count; /* that store KV */
        size_t count = persistent_choose(&question, lanes);
        status = plan_keep_heads(plan, config, &engine->kv, &count, error);
        if (status == STATUS_OK)
            status = kv_tier_set_resident_heads(engine->cache, lanes, count, engine->kv.list_bytes, error);
    }
    free(lanes);
    calibration_close(file);
    return status;
}
