/* persistent_heads: which KV heads stay in RAM whole (place=persistent, plan/persistent_heads.h), by what is measured
 * on this machine. */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/engine_internal.h"
#include "model/calibration.h"
#include "plan/persistent_heads.h"

/* Bytes that a KV head's list is read with: the pages that it lies in. */
static double head_bytes(const struct engine *engine) {
    const struct select_options *options = select_get_options(engine->select);
    const uint64_t chunks = kv_chunks_of(engine->context_size),
                   kept = select_kept_tokens(engine->select, engine->context_size - 1),
                   units = kept / max_size(options->page, 1);
    return (double)(units < chunks ? max_size(units, 1) : chunks) *
           (double)kv_cache_layout(engine->cache)->chunk_bytes;
}

/* N_p; 0: nothing could be measured. */
static size_t prefetchable(struct engine *engine) {
    struct store_rates rates;
    struct kv_sequence *kv;
    if (documents_measure(engine->documents, engine->context_size, &rates, NULL) != STATUS_OK) return 0;
    if (kv_sequence_create(&kv, engine->cache, KV_CHUNK_TOKENS, NULL) != STATUS_OK) return 0;
    const double seconds = engine_layer_seconds(engine, kv);
    kv_sequence_destroy(kv);
    const double rate = (double)kv_cache_layout(engine->cache)->chunk_bytes / rates.page_seconds;
    return persistent_prefetchable(seconds, rate, head_bytes(engine));
}

enum status engine_choose_persistent(struct engine *engine, const struct plan *plan, struct error *error) {
    const struct model_config *config = &engine->model->config;
    struct persistent_question question;
    struct calibration *file = NULL;
    if (!engine_persists(engine) || engine->documents == NULL) return STATUS_OK;
    TRY(engine_ask_persistent(engine, &question, &file, error));
    uint32_t *lanes = calloc(config->layer_count * config->kv_head_count, sizeof *lanes);
    enum status status = lanes == NULL ? error_set(error, STATUS_MEMORY, "out of memory") : STATUS_OK;
    if (status == STATUS_OK && question.similarity != NULL) {
        question.prefetchable = engine->prefetches ? prefetchable(engine) : 0;
        size_t count = persistent_choose(&question, lanes);
        status = plan_keep_heads(plan, config, &engine->kv, &count, error);
        if (status == STATUS_OK)
            status = kv_tier_set_resident_heads(engine->cache, lanes, count, engine->kv.list_bytes, error);
    }
    free(lanes);
    calibration_close(file);
    return status;
}
