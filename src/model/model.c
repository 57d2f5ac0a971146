#include "model/model.h"

#include <stdlib.h>

#include "model/model_internal.h"
#include "model/weight_stream.h"

static enum status load(struct model *model, const char *path, const struct model_load_options *options,
                        struct error *error) {
    TRY(gguf_open(&model->gguf, path, error));
    TRY(model_config_read_stretched(&model->config, &model->gguf, &model->arena, options->stretched, error));
    TRY(weights_load(model, options, error));
    return gguf_check(&model->gguf, error);
}

enum status model_load(struct model **model, const char *path, struct device *device, struct error *error) {
    return model_load_with(model, path, device, &(struct model_load_options){.device_layers = SIZE_MAX}, error);
}

enum status model_load_with(struct model **model, const char *path, struct device *device,
                            const struct model_load_options *options, struct error *error) {
    *model = NULL;
    struct model *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the model");
    made->device = device;
    made->device_layers = options->device_layers;
    arena_init(&made->arena);
    enum status status = load(made, path, options, error);
    if (status != STATUS_OK) {
        model_destroy(made);
        return status;
    }
    *model = made;
    return STATUS_OK;
}

enum status model_limit_weights(struct model *model, uint64_t host_bytes, const struct io_faults *faults,
                                struct error *error) {
    weight_stream_destroy(model->stream);
    model->stream = NULL;
    return weight_stream_create(&model->stream, model, host_bytes, faults, error);
}

/* What has failed to load is not all there.  A tied output is the embedding. */
static void release_weights(struct model *model) {
    const struct device_operations *operations = model->device->operations;
    if (model->output.memory.address != model->token_embedding.memory.address)
        operations->weight_release(model->device, &model->output);
    operations->weight_release(model->device, &model->token_embedding);
    operations->weight_release(model->device, &model->position_embedding);
    operations->weight_release(model->device, &model->input_table);
    for (size_t i = 0; model->layers != NULL && i < model->config.layer_count; i++) {
        struct weight *weights[LAYER_MATRICES];
        layer_matrices(&model->layers[i], weights);
        for (size_t j = 0; j < LAYER_MATRICES; j++) operations->weight_release(model->device, weights[j]);
    }
    operations->release(model->device, &model->vectors);
}

void model_destroy(struct model *model) {
    if (model == NULL) return;
    weight_stream_destroy(model->stream);
    release_weights(model);
    arena_deinit(&model->arena);
    gguf_close(&model->gguf);
    free(model);
}
