/* loam.h: models. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/checked.h"
#include "device/device_open.h"
#include "model/model_size.h"
#include "model/weight_stream.h"

static enum loam_status status_public(enum status status) {
    switch (status) {
    case STATUS_OK: return LOAM_OK;
    case STATUS_FAILED:
    case STATUS_UNSUPPORTED: return LOAM_FAILED;
    case STATUS_USAGE: return LOAM_USAGE;
    case STATUS_MODEL: return LOAM_BAD_MODEL;
    case STATUS_DOCUMENT: return LOAM_DOCUMENT;
    case STATUS_MEMORY:
    case STATUS_FULL: return LOAM_MEMORY;
    case STATUS_IO: return LOAM_IO;
    case STATUS_INTERRUPTED: return LOAM_INTERRUPTED;
    }
    return LOAM_FAILED;
}

enum loam_status api_report(enum status status, const struct error *error, struct loam_error *target) {
    enum loam_status result = status_public(status);
    if (target == NULL) return result;
    *target = (struct loam_error){.status = result};
    if (status == STATUS_OK) return result;
    size_t length = min_size(strlen(error->message), sizeof target->message - 1);
    memcpy(target->message, error->message, length);
    return result;
}

enum loam_status api_refuse_null(const char *function, const char *argument, struct loam_error *target) {
    struct error error;
    return api_report(error_set(&error, STATUS_USAGE, "%s: %s is NULL", function, argument), &error, target);
}

static enum status read_size(const void *given, size_t *size, const char *name, struct error *error) {
    memcpy(size, given, sizeof *size);
    if (*size >= sizeof *size) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "struct %s: found size %zu, expected sizeof the struct", name, *size);
}

enum status api_read_options(void *own, size_t own_bytes, const void *given, const char *name, struct error *error) {
    size_t size;
    memset(own, 0, own_bytes);
    if (given == NULL) return STATUS_OK;
    TRY(read_size(given, &size, name, error));
    memcpy(own, given, min_size(size, own_bytes));
    for (size_t i = own_bytes; i < size; i++) /* of a later version */
        if (((const unsigned char *)given)[i] != 0)
            return error_set(error, STATUS_USAGE, "struct %s: a member that loam " LOAM_VERSION " has not", name);
    return STATUS_OK;
}

enum status api_write(void *given, const void *own, size_t own_bytes, const char *name, struct error *error) {
    size_t size;
    TRY(read_size(given, &size, name, error));
    memset(given, 0, size);
    memcpy(given, own, min_size(size, own_bytes));
    memcpy(given, &size, sizeof size);
    return STATUS_OK;
}

void api_copy_ids(const int32_t *from, size_t count, int32_t *ids, size_t capacity) {
    size_t copied = min_size(count, capacity);
    if (copied > 0) memcpy(ids, from, copied * sizeof *ids);
}

const char *loam_version(void) { return LOAM_VERSION; }

static enum status model_open(struct loam_model *model, const char *path, const struct loam_model_options *options,
                              struct error *error) {
    struct device_options device = {.thread_count = options->thread_count, .mask = cpu_default()};
    if (options->cpu_mask != NULL) TRY(cpu_mask_parse(options->cpu_mask, &device.mask, error));
    model->thread_count = options->thread_count;
    model->weights_host_bytes = options->weights_host_bytes;
    model->mask = device.mask;
    const size_t device_layers = options->device_layers > 0 ? options->device_layers : SIZE_MAX;
    struct device_request request = {.name = options->device, .options = device};
    if (options->device != NULL && strcmp(options->device, "auto") == 0)
        request.weights_bytes = model_device_bytes(path, device_layers);
    TRY(device_open(&model->device, &request, NULL, error));
    const struct model_load_options load = {.device_layers = device_layers, .stretched = options->yarn_context};
    TRY(model_load_with(&model->model, path, model->device, &load, error));
    if (options->weights_host_bytes > 0)
        TRY(model_limit_weights(model->model, options->weights_host_bytes, NULL, error));
    TRY(tokenizer_create(&model->tokenizer, &model->model->gguf, options->force_pre, error));
    /* A model without one that can be used completes: the reason is told where one is wanted. */
    (void)!chat_template_of_model(&model->model->gguf, &model->chat, &model->chat_error);
    return STATUS_OK;
}

enum loam_status loam_model_open(struct loam_model **model, const char *path, const struct loam_model_options *options,
                                 struct loam_error *error) {
    API_NEED(model, error);
    *model = NULL;
    API_NEED(path, error);
    struct loam_model_options own;
    struct error reason = {.message = "no memory for the model"};
    enum status status = api_read_options(&own, sizeof own, options, "loam_model_options", &reason);
    struct loam_model *made = status == STATUS_OK ? calloc(1, sizeof *made) : NULL;
    if (status == STATUS_OK) status = made == NULL ? STATUS_MEMORY : model_open(made, path, &own, &reason);
    if (status == STATUS_OK)
        *model = made;
    else
        loam_model_close(made);
    return api_report(status, &reason, error);
}

void loam_model_close(struct loam_model *model) {
    if (model == NULL) return;
    chat_template_destroy(model->chat);
    tokenizer_destroy(model->tokenizer);
    model_destroy(model->model);
    device_destroy(model->device);
    free(model);
}

const char *loam_model_name(const struct loam_model *model) {
    if (model == NULL) return "";
    return model->model->config.name;
}
uint64_t loam_model_context_length(const struct loam_model *model) {
    if (model == NULL) return 0;
    return model->model->config.context_length;
}
uint64_t loam_model_pass_bytes(const struct loam_model *model) {
    if (model == NULL) return 0;
    return model->model->stream != NULL ? weight_stream_figures(model->model->stream).pass_bytes : 0;
}
size_t loam_model_vocabulary_size(const struct loam_model *model) {
    if (model == NULL) return 0;
    return model->model->config.vocabulary_size;
}
