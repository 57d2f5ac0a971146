/* engine: makes the parts of an engine, in their order, and answers questions about them.
 *
 * After engine_create only fill.c allocates.
 */
#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "engine/engine_internal.h"
#include "platform/pool.h"

static enum status make_forward(struct engine *engine, const struct plan *plan, struct forward_options forward,
                                struct trace *trace, struct error *error) {
    struct attention_options options;
    TRY(plan_attention_options(plan, &engine->model->config, &options, error));
    options.prefetches = engine->prefetches;
    options.cache = plan->host_bytes > 0 ? engine->cache : NULL;
    options.far = engine->cache;
    options.rebuild.shares_link = engine->model->stream != NULL;
    options.rounds = engine->kv.quantized_pages;
    options.trace = trace;
    TRY(attention_create(&engine->attention, engine->model->device, &options, error));
    forward.attention = engine->attention;
    forward.trace = trace;
    return forward_create(&engine->forward, engine->model, &forward, error);
}

/* Opens the folder of saved documents, if the plan has one. */
static enum status open_documents(struct engine *engine, const struct plan *plan, const struct engine_options *options,
                                  struct error *error) {
    if (plan->disk_directory == NULL) return STATUS_OK;
    TRY(documents_open(&engine->documents,
                       &(struct documents_options){.plan = plan,
                                                   .engine = options,
                                                   .model = engine->model,
                                                   .cache = engine->cache,
                                                   .select = engine->select,
                                                   .buffer_bytes = engine->kv.buffer_bytes,
                                                   .key_index_on_disk = engine->kv.key_index_on_disk},
                       error));
    documents_build_with(engine->documents, engine_build_stored, engine);
    engine->hides_reads = engine->select == NULL || engine->prefetches;
    if (plan->mixes_pages && plan->fractions.layer_count == 0 && !plan->fixes_fractions)
        documents_choose_with(engine->documents, engine_choose_fractions, engine);
    engine->has_costs = engine->has_layer_seconds = options->page_costs != NULL;
    if (engine->has_costs) engine->costs = *options->page_costs;
    engine->layer_seconds = engine->costs.layer;
    return STATUS_OK;
}

static enum status set_trace(struct engine *engine, struct trace *trace, struct error *error) {
    struct pool *pool = device_pool(engine->model->device);
    engine->traced = trace != NULL;
    if (!engine->traced) return STATUS_OK;
    TRY(kv_tier_set_trace(engine->cache, trace, error));
    if (pool != NULL) pool_set_trace(pool, trace);
    return STATUS_OK;
}

static enum status engine_init(struct engine *engine, struct plan *plan, const struct engine_options *options,
                               struct error *error) {
    struct device *device = engine->model->device;
    TRY(device->operations->stream_create(device, &engine->stream, error));
    TRY(engine_try_inputs(engine, plan, error));
    TRY(plan_cache_config(plan, &engine->model->config, &engine->kv, error));
    engine->prefetches = plan->prefetches && !(engine->kv.key_index_on_disk && engine->kv.key_index_places == 1);
    /* The cache rejects a budget that is too small, and names what everything together needs.  So the key index counts
     * here if there is a budget; without one it is allocated with the selection. */
    if (plan->host_bytes == 0) engine->kv.key_index_bytes = engine->kv.key_index_layer_first = 0;
    TRY((engine->kv.host_bytes > 0 ? kv_tier_create : kv_cache_create)(&engine->cache, device, &engine->kv, error));
    const struct forward_options forward = plan_forward_options(plan, &engine->model->config);
    const size_t block = forward.block_capacity, rows = forward.row_capacity;
    engine->logit_rows_max = forward.logit_row_capacity;
    TRY(make_forward(engine, plan, forward, options->trace, error));
    engine->positions = calloc(rows, sizeof *engine->positions);
    engine->together = calloc(block, sizeof *engine->together);
    engine->logit_rows = calloc(rows, sizeof *engine->logit_rows);
    if (engine->positions == NULL || engine->together == NULL || engine->logit_rows == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the engine");
    for (size_t i = 0; i < rows; i++) engine->logit_rows[i] = (uint32_t)i;
    TRY(engine_replace_select(engine, &plan->select, error));
    TRY(open_documents(engine, plan, options, error));
    TRY(engine_choose_persistent(engine, plan, error));
    TRY(attention_create_lists(engine->attention, engine->kv.list_bytes, error));
    TRY(engine_measure_link(engine, plan, error));
    return set_trace(engine, options->trace, error);
}

enum status engine_create(struct engine **engine, struct model *model, const struct plan *plan,
                          const struct engine_options *options, struct error *error) {
    static const struct engine_options none;
    *engine = NULL;
    const struct select_shape shape = plan_select_shape(&model->config);
    TRY(plan_check(plan, &model->config, error));
    TRY(select_options_run_on(&plan->select, &shape, model->device, error));
    struct engine *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the engine");
    made->model = model;
    made->context_size = plan_context_size(plan, &model->config);
    made->sequence_capacity = plan->sequence_capacity;
    made->batch_size = plan_batch_size(plan);
    made->segment_size = plan_segment_size(plan, &model->config);
    made->suffix = plan->suffix;
    made->persists = plan->persistent;
    made->wanted_tokens = plan->wanted_tokens;
    struct plan own = *plan;
    enum status status = engine_init(made, &own, options != NULL ? options : &none, error);
    if (status != STATUS_OK) {
        engine_destroy(made);
        return status;
    }
    *engine = made;
    return STATUS_OK;
}

void engine_destroy(struct engine *engine) {
    if (engine == NULL) return;
    ASSERT(engine->sequence_count == 0);
    engine_drop_select(engine);
    if (engine->traced && device_pool(engine->model->device) != NULL)
        pool_set_trace(device_pool(engine->model->device), NULL);
    forward_destroy(engine->forward);
    attention_destroy(engine->attention);
    if (engine->stream != NULL) engine->model->device->operations->stream_destroy(engine->stream);
    if (engine->cache != NULL) kv_cache_destroy(engine->cache);
    documents_close(engine->documents);
    free(engine->positions);
    free(engine->together);
    free(engine->logit_rows);
    free(engine);
}

struct select *engine_select(struct engine *engine) {
    return engine->select;
}
struct attention *engine_attention(struct engine *engine) {
    return engine->attention;
}

void engine_set_attention_observer(struct engine *engine, attention_observer *observer, void *context) {
    engine->watched = observer != NULL;
    forward_set_attention_observer(engine->forward, observer, context);
}

enum status engine_check_weights(const struct engine *engine, struct error *error) {
    return model_check_numbers(engine->model, error);
}
enum status engine_device_state(const struct engine *engine, struct error *error) {
    return device_state(engine->model->device, error);
}
const char *engine_documents_damage(const struct engine *engine) {
    return engine->documents != NULL ? documents_damage(engine->documents) : NULL;
}

const char *engine_documents_warning(const struct engine *engine) {
    return engine->documents != NULL ? documents_warning(engine->documents) : NULL;
}
const struct page_costs *engine_page_costs(const struct engine *engine) {
    return engine->has_costs ? &engine->costs : NULL;
}
double engine_inputs_ratio(const struct engine *engine) { return engine->inputs_ratio; }
size_t engine_hard_heads(const struct engine *engine) { return engine->hard_heads; }
struct kv_tier_statistics engine_tier_statistics(const struct engine *engine) {
    return kv_tier_statistics(engine->cache);
}
enum status engine_fetch_counts(const struct engine *engine, struct fetch_counts *counts, struct error *error) {
    return attention_fetch_counts(engine->attention, engine->stream, counts, error);
}
struct device_counts engine_device_counts(const struct engine *engine) {
    return device_counts(engine->model->device);
}
const struct model_config *engine_config(const struct engine *engine) { return &engine->model->config; }
struct step_graph_counts engine_step_graph_counts(const struct engine *engine) {
    return forward_graph_counts(engine->forward);
}
uint64_t engine_context_size(const struct engine *engine) { return engine->context_size; }
void engine_give_back_memory(struct engine *engine) {
    forward_forget_graph(engine->forward);
    kv_cache_give_back(engine->cache);
}
size_t engine_sequence_capacity(const struct engine *engine) { return engine->sequence_capacity; }
bool engine_saves(const struct engine *engine) { return engine->documents != NULL; }
uint64_t engine_kv_used_bytes(const struct engine *engine) { return kv_cache_used_bytes(engine->cache); }
uint64_t engine_kv_device_bytes(const struct engine *engine) {
    if (device_memory_free(engine->model->device) == UINT64_MAX) return 0;
    return kv_cache_used_device_bytes(engine->cache);
}
uint64_t engine_unit_bytes(const struct engine *engine) { return attention_unit_bytes(engine->attention); }
uint64_t engine_kv_bytes_per_token(const struct engine *engine) { return kv_cache_bytes_per_token(&engine->kv); }
uint64_t engine_kv_row_bytes(const struct engine *engine) {
    struct kv_cache_config plain = engine->kv;
    plain.key_index_bytes = 0;
    return kv_cache_bytes_per_token(&plain) / kv_lane_count(&plain); /* a mean, where layers differ */
}

uint64_t engine_step_bytes(const struct engine *engine, uint64_t length) {
    struct kv_cache_config plain = engine->kv;
    const struct kv_windows *windows = engine->model->config.kv_windows;
    plain.key_index_bytes = 0;
    const uint64_t lane_bytes = kv_cache_bytes_per_token(&plain) / kv_lane_count(&plain),
                   key_index = engine_kv_bytes_per_token(engine) - kv_cache_bytes_per_token(&plain);
    uint64_t rows = 0, kept = length;
    if (engine->select != NULL && length > 0) kept = select_kept_tokens(engine->select, length - 1);
    for (size_t layer = 0; layer < plain.layer_count; layer++) {
        uint64_t seen = length;
        if (windows != NULL && windows->slides[layer])
            seen = min_size(length, windows->tokens);
        else if (engine->select != NULL && select_layer_chooses(engine->select, layer))
            seen = kept;
        rows += kv_heads(&plain, layer) * seen;
    }
    return rows * lane_bytes + (kept < length ? length * key_index : 0);
}
