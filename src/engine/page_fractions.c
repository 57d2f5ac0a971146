/* page_fractions: chooses which fraction of each layer's pages a document has in 4 bits (codec=dynamic), when it is
 * made and when it has grown. */
#include "engine/engine_internal.h"
#include "model/calibration.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { LAYER_ROUNDS = 4 };

/* The least of some runs: beside other load one of them says how long the others take. */
double engine_layer_seconds(struct engine *engine, struct kv_sequence *kv) {
    static const int32_t token = 0;
    struct attend_item item = {.row_count = 1};
    const struct forward_batch batch = {.tokens = &token,
                                        .positions = engine->positions,
                                        .row_count = 1,
                                        .sequences = &kv,
                                        .items = &item,
                                        .item_count = 1,
                                        .logit_rows = engine->logit_rows};
    const float *logits;
    uint64_t least = UINT64_MAX;
    engine->positions[0] = 0;
    if (engine->watched) return 0;
    enum status status = kv_sequence_reserve(kv, 1, NULL);
    for (int round = 0; round < LAYER_ROUNDS && status == STATUS_OK; round++) {
        const uint64_t began = clock_ns();
        status = engine_run_batch(engine, &batch, &logits, NULL);
        const uint64_t took = clock_ns() - began;
        if (took < least) least = took;
    }
    kv_sequence_close_documents(kv); /* forgets what it stored */
    return status == STATUS_OK ? (double)least * 1e-9 / (double)engine->kv.layer_count : 0;
}

/* Once, while a sequence is empty.  Where all that an engine ever asks for is further turns of sequences that RAM held
 * before, it is not known, and counts nothing. */
static double hidden_seconds(struct engine *engine, struct kv_sequence *kv) {
    if (!engine->hides_reads) return 0;
    if (!engine->has_layer_seconds && kv_sequence_length(kv) == 0) {
        engine->layer_seconds = engine_layer_seconds(engine, kv);
        engine->has_layer_seconds = true;
    }
    return engine->layer_seconds;
}

/* Reads each layer's error at 4 bits, as loam-lab calibrate measured it; false: not known. */
static bool read_sensitivity(const struct engine *engine, float sensitivity[PAGE_FRACTIONS_LAYERS_MAX]) {
    struct calibration *file = NULL;
    bool known = calibration_open(&file, engine->model, NULL, NULL) == STATUS_OK && file != NULL &&
                 calibration_kv_sensitivity(file) != NULL;
    for (size_t i = 0; known && i < engine->kv.layer_count; i++) {
        const float *layer = calibration_kv_sensitivity(file) + i * CALIBRATION_ROUNDINGS;
        sensitivity[i] = layer[CALIBRATION_K4] + layer[CALIBRATION_V4];
    }
    calibration_close(file);
    return known;
}

bool engine_choose_fractions(void *context, struct store *store, const struct store_layout *layout,
                             struct kv_sequence *kv, uint64_t token_count, uint64_t token_capacity,
                             struct page_fractions *fractions) {
    struct engine *engine = context;
    const struct pool *pool = device_pool(engine->model->device);
    const bool selects = engine->select != NULL && token_count > 0;
    float sensitivity[PAGE_FRACTIONS_LAYERS_MAX];
    const struct page_question question = {
        .store = store,
        .layout = layout,
        .cache = &engine->kv,
        .rows = kv_cache_layout(engine->cache),
        .token_count = token_count,
        .token_capacity = token_capacity,
        .kept_tokens = selects ? select_kept_tokens(engine->select, token_count - 1) : token_count,
        .dense_layers = selects ? select_get_options(engine->select)->dense_layers : 0,
        .thread_count = pool != NULL ? pool_thread_count(pool) : 1,
        .group = engine->model->config.head_count / engine->kv.kv_head_count,
        .sensitivity = read_sensitivity(engine, sensitivity) ? sensitivity : NULL,
        .layer_seconds = hidden_seconds(engine, kv)};
    return quantized_pages_plan(&engine->costs, &engine->has_costs, &question, fractions);
}
