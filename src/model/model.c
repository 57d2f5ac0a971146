#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "model/model_internal.h"
#include "model/weight_stream.h"

static enum status load(struct model *model, const char *path, struct error *error) {
    TRY(gguf_open(&model->gguf, path, error));
    TRY(model_config_read(&model->config, &model->gguf, &model->arena, error));
    TRY(weights_load(model, error));
    return gguf_check(&model->gguf, error);
}

enum status model_load(struct model **model, const char *path, struct device *device, struct error *error) {
    return model_load_split(model, path, device, SIZE_MAX, error);
}

enum status model_load_split(struct model **model, const char *path, struct device *device,
                             size_t device_layers, struct error *error) {
    *model = NULL;
    struct model *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the model");
    made->device = device;
    made->device_layers = device_layers;
    arena_init(&made->arena);
    enum status status = load(made, path, error);
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

void layer_matrices(struct layer_weights *layer, struct weight *matrices[LAYER_MATRICES]) {
    struct state_weights *state = &layer->state;
    struct mixture_weights *mixture = &layer->mixture;
    struct shared_weights *shared = &mixture->shared;
    struct weight *const list[LAYER_MATRICES] = {
        &layer->q,    &layer->k,        &layer->v,     &layer->output, &layer->gate,  &layer->up,
        &layer->down, &mixture->router, &shared->gate, &shared->up,    &shared->down, &shared->router,
        &state->in,   &state->out,      &state->gate,  &state->alpha,  &state->beta};
    memcpy(matrices, list, sizeof list);
}

bool model_leaves_out(const struct model_config *config, const struct gguf_tensor *tensor) {
    unsigned long long layer;
    char name[32] = {0};
    memcpy(name, tensor->name.text, min_size(tensor->name.length, sizeof name - 1));
    return sscanf(name, "blk.%llu.", &layer) == 1 && layer >= config->layer_count &&
           layer < config->layer_count + config->nextn_layers;
}

/* What has failed to load is not all there.  A tied output is the embedding. */
static void release_weights(struct model *model) {
    const struct device_operations *operations = model->device->operations;
    if (model->output.memory.address != model->token_embedding.memory.address)
        operations->weight_release(model->device, &model->output);
    operations->weight_release(model->device, &model->token_embedding);
    operations->weight_release(model->device, &model->position_embedding);
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
