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

/* Marks them, and makes the device's slots, in which they are whole (attention_create_units): those of the first
 * layers, then the hardest.  Nothing crosses a bus ahead, so that N_p is 0 there. */
static enum status mark(struct engine *engine, const struct persistent_question *question, bool *anew, uint32_t *lanes,
                        struct error *error) {
    const size_t stays = persistent_lane(question, min_size(question->layer_first, question->layer_count), 0);
    size_t count = 0;
    for (size_t lane = 0; lane < stays; lane++) lanes[lane] = (uint32_t)lane;
    engine->hard_heads = question->similarity != NULL ? persistent_choose(question, lanes + stays) : 0;
    for (size_t i = 0; i < stays + engine->hard_heads; i++) {
        anew[lanes[i]] = true;
        if (select_layer_chooses(engine->select, persistent_layer(question, lanes[i]))) lanes[count++] = lanes[i];
    }
    attention_choose_anew(engine->attention, anew);
    return attention_create_units(engine->attention, lanes, count, error);
}

/* Which heads it is follows from the calibration and the options, not from what RAM holds and the disk's speed: the
 * same request has the same answer. */
enum status engine_mark_persistent(struct engine *engine, struct error *error) {
    struct persistent_question question;
    struct calibration *file = NULL;
    if (!engine_persists(engine)) return attention_create_units(engine->attention, NULL, 0, error);
    TRY(engine_ask_persistent(engine, &question, &file, error));
    const size_t count = persistent_lane(&question, question.layer_count, 0);
    bool *anew = calloc(count, sizeof *anew);
    uint32_t *lanes = calloc(count, sizeof *lanes);
    const enum status status = anew != NULL && lanes != NULL ? mark(engine, &question, anew, lanes, error)
                                                             : error_set(error, STATUS_MEMORY, "out of memory");
    free(anew);
    free(lanes);
    calibration_close(file);
    return status;
}
