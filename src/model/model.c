#include "model/model.h"

#include <stdlib.h>

#include "model/model_internal.h"
#include "model/weight_stream.h"

static enum status load(struct model *model, const char *path, struct error *error) {
    TRY(gguf_open(&model->gguf, path, error));
    TRY(model_config_read(&model->config, &model->gguf, &model->arena, error));
    return weights_load(model, error);
}

enum status model_load(struct model **model, const char *path, struct device *device, struct error *error) {
    *model = NULL;
    struct model *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the model");
    made->device = device;
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

void model_destroy(struct model *model) {
    if (model == NULL) return;
    weight_stream_destroy(model->stream);
    if (model->vectors != NULL)
        model->device->operations->release(model->device, MEMORY_DEVICE, model->vectors,
                                           model->vectors_bytes);
    arena_deinit(&model->arena);
    gguf_close(&model->gguf);
    free(model);
}
