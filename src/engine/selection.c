/* selection: what an engine and each of its sequences select, and the key indexes that this needs. */
#include <stdlib.h>

#include "attention/reuse_thresholds.h"
#include "base/checked.h"
#include "engine/engine_internal.h"
#include "model/calibration.h"

void engine_drop_select(struct engine *engine) {
    for (struct sequence *s = engine->sequences; s != NULL; s = s->next) sequence_drop_paused(s);
    if (engine->forward != NULL) forward_forget_graph(engine->forward);
    if (engine->attention != NULL) attention_drop_select(engine->attention);
    select_destroy(engine->select);
    engine->select = NULL;
}

struct select_rule engine_default_rule(const struct engine *engine) {
    if (engine->select == NULL) return (struct select_rule){.dense = true};
    return select_rule_of(select_get_options(engine->select));
}

bool engine_selects(const struct engine *engine) { return engine->select != NULL; }

static enum status make_select(struct engine *engine, const struct select_options *options, struct error *error) {
    const struct select_shape shape = plan_select_shape(&engine->model->config);
    if (options->method == NULL || options->method == &select_all) return STATUS_OK;
    struct calibration *file = NULL;
    char *path = NULL; /* where the file would be */
    enum status status = STATUS_OK;
    if (options->method->weights != NULL || options->heads == SELECT_HEADS_IMPORTANCE ||
        options->reuse.kind == REUSE_SIMILARITY) {
        TRY(calibration_path(engine->model->gguf.path, &path, error));
        status = calibration_open(&file, engine->model, NULL, error);
    }
    const struct select_calibration calibration = {
        .path = path,
        .find = file != NULL ? calibration_find : NULL,
        .context = file,
        .head_importance = file != NULL ? calibration_head_importance(file) : NULL,
        .reuse_curves =
            file != NULL ? (const struct reuse_point *)(const void *)calibration_reuse_curve(file, REUSE_CURVE_POINTS)
                         : NULL};
    if (status == STATUS_OK)
        status = select_create(
            &engine->select, engine->model->device,
            &(struct select_setup){.shape = &shape,
                                   .options = options,
                                   .calibration = &calibration,
                                   .row_capacity = max_size(engine->batch_size, engine->sequence_capacity),
                                   .sequence_capacity = engine->sequence_capacity},
            error);
    calibration_close(file);
    free(path);
    return status;
}

enum status engine_build_rows(struct engine *engine, struct kv_sequence *sequence, size_t layer_index,
                              uint64_t position_first, uint64_t row_count, struct error *error) {
    if (kv_slides(&engine->kv, layer_index)) return STATUS_OK; /* its rows choose nothing */
    struct attend_item item = {.view = kv_sequence_view(sequence, engine->stream, layer_index),
                               .row_count = row_count,
                               .position_first = position_first};
    TRY(kv_sequence_open_key_index(sequence, engine->stream, layer_index, position_first, position_first + row_count,
                                   error));
    select_append(engine->select, engine->stream, layer_index, &item, 1, (struct span){.buffer = NULL});
    kv_sequence_keep_key_index(sequence, engine->stream, layer_index, position_first + row_count);
    return STATUS_OK;
}

enum status engine_build_stored(void *context, struct kv_sequence *sequence, size_t layer_index,
                                uint64_t position_first, uint64_t row_count, struct error *error) {
    struct engine *engine = context;
    TRY(engine_build_rows(engine, sequence, layer_index, position_first, row_count, error));
    return engine->model->device->operations->stream_synchronize(engine->stream, error);
}

static enum status build_key_index(struct engine *engine, struct sequence *sequence, struct error *error) {
    uint64_t length = kv_sequence_length(sequence->kv);
    for (size_t layer = 0; layer < engine->kv.layer_count && length > 0; layer++)
        TRY(engine_build_rows(engine, sequence->kv, layer, 0, length, error));
    return engine->model->device->operations->stream_synchronize(engine->stream, error);
}

enum status engine_replace_select(struct engine *engine, const struct select_options *options, struct error *error) {
    TRY(make_select(engine, options, error));
    size_t bytes = engine->select != NULL ? select_key_index_bytes(engine->select) : 0;
    engine->kv.key_index_bytes = 0;
    const struct select_shape shape = plan_select_shape(&engine->model->config);
    const size_t layer_first = select_layer_first(options, &shape);
    TRY(kv_cache_set_key_index(engine->cache, bytes, layer_first, error));
    engine->kv.key_index_bytes = bytes;
    engine->kv.key_index_layer_first = layer_first;
    for (struct sequence *s = engine->sequences; s != NULL && engine->select != NULL; s = s->next)
        TRY(build_key_index(engine, s, error));
    TRY(attention_set_select(engine->attention, engine->select, error));
    return engine_mark_persistent(engine, error);
}

enum status engine_set_select(struct engine *engine, const struct select_options *options, struct error *error) {
    if (engine->kv.host_bytes > 0)
        return error_set(error, STATUS_UNSUPPORTED, "another selection of KV that is partly on disk");
    engine_drop_select(engine);
    enum status status = engine_replace_select(engine, options, error);
    if (status != STATUS_OK) engine_drop_select(engine);
    for (struct sequence *s = engine->sequences; s != NULL; s = s->next) s->rule = engine_default_rule(engine);
    return status;
}

enum status sequence_set_select(struct sequence *sequence, const struct select_method *method, struct select_keep keep,
                                struct error *error) {
    const struct select *select = sequence->engine->select;
    const struct select_options *options = select != NULL ? select_get_options(select) : NULL;
    bool own = options != NULL && options->method == method;
    if (method != &select_all && !own && (method != &select_window || select == NULL))
        return error_set(error, STATUS_USAGE, "a sequence with select=%s: the engine was made for select=%s",
                         method->name, options != NULL ? options->method->name : "all");
    struct select_options wanted = options != NULL ? *options : select_options_default();
    wanted.method = method;
    wanted.keep = keep;
    struct engine *engine = sequence->engine;
    if (engine->kv.host_bytes > 0 && select != NULL) {
        const struct select_shape shape = plan_select_shape(&engine->model->config);
        uint64_t now, then;
        TRY(select_options_kept_max(options, &shape, engine->context_size, &now, error));
        TRY(select_options_kept_max(&wanted, &shape, engine->context_size, &then, error));
        if (then > now)
            return error_set(error, STATUS_UNSUPPORTED,
                             "a sequence that keeps more than its engine was made for, with KV on disk");
    }
    sequence->rule = select_rule_of(&wanted);
    return STATUS_OK;
}
