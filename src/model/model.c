#include "model/model.h"

#include <stdlib.h>

#include "model/model_internal.h"
#include "model/weight_stream.h"

static enum status load(struct model *model, const char *path, uint64_t stretched, struct error *error) {
    TRY(gguf_open(&model->gguf, path, error));
    TRY(model_config_read_stretched(&model->config, &model->gguf, &model->arena, stretched, error));
    TRY(weights_load(model, error));
    return gguf_check(&model->gguf, error);
}

enum status model_load(struct model **model, const char *path, struct device *device, struct error *error) {
    return model_load_split(model, path, device, SIZE_MAX, 0, error);
}

enum status model_load_split(struct model **model, const char *path, struct device *device, size_t device_layers,
                             uint64_t stretched, struct error *error) {
    *model = NULL;
    struct model *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the model");
    made->device = device;
    made->device_layers = device_layers;
    arena_init(&made->arena);
    enum status status = load(made, path, stretched, error);
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
