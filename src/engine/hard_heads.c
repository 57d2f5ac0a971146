/* hard_heads: which KV heads are hard to reuse (place=persistent, plan/persistent_heads.h), by the calibration and the
 * options alone: they choose anew in every step. */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/engine_internal.h"
#include "model/calibration.h"

enum status engine_ask_persistent(const struct engine *engine, struct persistent_question *question,
                                  struct calibration **file, struct error *error) {
    const struct model_config *config = &engine->model->config;
    const struct select_options *options = select_get_options(engine->select);
    const size_t behind_first =
        kv_full_layer_behind(config->kv_groups, config->kv_windows, config->layer_count, 1); /* as on disk (plan.c) */
    TRY(calibration_open(file, engine->model, NULL, error));
    *question = (struct persistent_question){
        .layer_count = config->layer_count,
        .layer_first = max_size(max_size(engine->kv.resident_layers, behind_first), options->dense_layers),
        .head_count = config->head_count,
        .kv_head_count = config->kv_head_count,
        .groups = config->kv_groups,
        .options = &options->reuse,
        .thresholds = attention_reuse_thresholds(engine->attention)};
    if (*file == NULL) return STATUS_OK;
    question->similarity = calibration_decoded_similarity(*file);
    if (question->similarity == NULL) question->similarity = calibration_query_similarity(*file);
    question->importance = calibration_head_importance(*file);
    return STATUS_OK;
}

bool engine_persists(const struct engine *engine) {
    return engine->persists && engine->select != NULL && attention_reuse_thresholds(engine->attention) != NULL;
}

/* Which heads it is follows from the calibration and the options, not from what RAM holds and the disk's speed: the
 * same request has the same answer. */
enum status engine_mark_persistent(struct engine *engine, struct error *error) {
    struct persistent_question question;
    struct calibration *file = NULL;
    if (!engine_persists(engine)) return STATUS_OK;
    TRY(engine_ask_persistent(engine, &question, &file, error));
    bool *hard = calloc(persistent_lane(&question, question.layer_count, 0), sizeof *hard);
    engine->hard_heads = 0;
    for (size_t layer = 0; layer < question.layer_count && hard != NULL; layer++)
        for (size_t head = 0; head < persistent_heads_of(&question, layer); head++) {
            const bool stays = layer < question.layer_first,
                       is_hard =
                           !stays && question.similarity != NULL && persistent_difficulty(&question, layer, head) > 0;
            hard[persistent_lane(&question, layer, head)] = stays || is_hard;
            engine->hard_heads += is_hard;
        }
    if (hard != NULL) attention_choose_anew(engine->attention, hard);
    const bool done = hard != NULL;
    free(hard);
    calibration_close(file);
    return done ? STATUS_OK : error_set(error, STATUS_MEMORY, "out of memory");
}
